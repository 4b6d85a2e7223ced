"""Stored queries found by the index, against each condition asked of each row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.kernel.percolation import shape
from millstream.kernel.percolation.columns import Column, column_of
from millstream.kernel.percolation.index import index_of
from tests.kernel.stored_queries import any_condition, any_row

SCHEMA: dict[str, Any] = {
    "n": pl.Int32, "price": pl.Float64, "city": pl.String, "title": pl.String, "ok": pl.Boolean, "day": pl.Date, "cost": pl.Decimal(9, 2),
}  # fmt: skip
TYPES = {
    "n": "int",
    "price": "double",
    "city": "string",
    "title": "string",
    "ok": "boolean",
    "day": "date",
    "cost": "decimal(9, 2)",
}
COLUMNS: tuple[Column, ...] = tuple(each for name, kind in TYPES.items() if (each := column_of(name, kind)) is not None)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, (1 << 32) - 1))
def test_events_meet_the_queries_whose_condition_is_true(seed: int) -> None:
    chance = Random(seed)
    conditions = [any_condition(chance, chance.randrange(4)) for _ in range(chance.randint(1, 60))]
    rows = [any_row(chance) for _ in range(chance.randint(1, 40))]
    found = index_of(tuple(each.text for each in conditions), COLUMNS).matches(pl.DataFrame(rows, schema=SCHEMA))
    wanted = {(i, j) for i, row in enumerate(rows) for j, each in enumerate(conditions) if each.of(row) is True}
    assert sorted(zip(*(each.tolist() for each in found), strict=True)) == sorted(wanted)


@pytest.mark.parametrize("most", [1, 7, 1 << 21])
def test_pairs_are_compared_piece_by_piece(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape, "MOST_PAIRS", most)
    chance = Random(most)
    conditions = [any_condition(chance, 1) for _ in range(40)]
    rows = [any_row(chance) for _ in range(40)]
    found = index_of(tuple(each.text for each in conditions), COLUMNS).matches(pl.DataFrame(rows, schema=SCHEMA))
    wanted = {(i, j) for i, row in enumerate(rows) for j, each in enumerate(conditions) if each.of(row) is True}
    assert sorted(zip(*(each.tolist() for each in found), strict=True)) == sorted(wanted)


class Crowd:
    """Many events, and queries of twenty shapes over them, each with the events that it meets as a mask over all of them."""

    def __init__(self, chance: Random, events: int) -> None:
        self.chance = chance
        self.n = np.array([chance.randrange(100_000) for _ in range(events)])
        self.price = np.array([chance.random() * 1_000 for _ in range(events)])
        self.city = np.array([f"c{chance.randrange(1_000)}" for _ in range(events)])
        self.ok = np.array([chance.random() < 0.5 for _ in range(events)])
        words = [[f"w{chance.randrange(3_000)}" for _ in range(6)] for _ in range(events)]
        self.frame = pl.DataFrame(
            {
                "n": self.n,
                "price": self.price,
                "city": self.city,
                "ok": self.ok,
                "title": [" ".join(each) for each in words],
            }
        ).cast({"n": pl.Int32})
        self.word: dict[str, Any] = defaultdict(lambda: np.zeros(events, bool))
        for number, each in enumerate(words):
            for word in each:
                self.word[word][number] = True
        self.cities = {name: self.city == name for name in np.unique(self.city)}

    def query(self, number: int) -> tuple[str, Any]:
        """A query of the shape of that number, and which events it meets."""
        chance, none = self.chance, np.zeros(len(self.n), bool)
        n, price, ok = self.n, self.price, self.ok
        a, p, w, v = (
            chance.randrange(100_000),
            round(chance.random() * 1_000, 2),
            f"w{chance.randrange(3_000)}",
            f"w{chance.randrange(3_000)}",
        )
        c, d = (f"c{chance.randrange(1_000)}" for _ in range(2))
        town, other = (self.cities.get(each, none) for each in (c, d))
        shapes: list[tuple[str, Callable[[], Any]]] = [
            (f"n = {a}", lambda: n == a),
            (f"n IN ({a}, {a + 1}, {a + 5})", lambda: np.isin(n, (a, a + 1, a + 5))),
            (f"n BETWEEN {a} AND {a + 20}", lambda: (n >= a) & (n <= a + 20)),
            (f"n > {a} AND n < {a + 9} AND ok", lambda: (n > a) & (n < a + 9) & ok),
            (f"n > {a} AND n < {a + 9} AND city <> '{c}'", lambda: (n > a) & (n < a + 9) & ~town),
            (f"city = '{c}'", lambda: town),
            (f"city = '{c}' AND price > {p}", lambda: town & (price > p)),
            (f"city IN ('{c}', '{d}') AND NOT ok", lambda: (town | other) & ~ok),
            (f"city = '{c}' AND price BETWEEN {p} AND {p + 50}", lambda: town & (price >= p) & (price <= p + 50)),
            (f"city LIKE 'c{a % 90 + 10}7%' AND n < {a // 50}", lambda: np.char.startswith(self.city, f"c{a % 90 + 10}7") & (n < a // 50)),
            (f"price >= {p} AND price < {p + 0.1}", lambda: (price >= p) & (price < p + 0.1)),
            (f"ok AND price >= {p} AND price < {p + 0.2}", lambda: ok & (price >= p) & (price < p + 0.2)),
            (f"ok = FALSE AND n >= {a} AND n < {a + 30} AND price < {p}", lambda: ~ok & (n >= a) & (n < a + 30) & (price < p)),
            (f"contains_words(title, '{w}')", lambda: self.word[w]),
            (f"contains_words(title, '{w} {v}')", lambda: self.word[w] & self.word[v]),
            (f"contains_words(title, '{w}') AND ok", lambda: self.word[w] & ok),
            (f"contains_words(title, '{w}') AND price > {p}", lambda: self.word[w] & (price > p)),
            (f"contains_words(title, '{w}') AND NOT contains_words(title, '{v}')", lambda: self.word[w] & ~self.word[v]),
            (f"n = {a} OR (city = '{c}' AND ok)", lambda: (n == a) | (town & ok)),
            (f"(city = '{c}' OR city = '{d}') AND NOT (price < {p} OR ok)", lambda: (town | other) & (price >= p) & ~ok),
        ]  # fmt: skip
        text, of = shapes[number % len(shapes)]
        return text, of()


def test_ten_thousand_queries_over_twenty_thousand_events() -> None:
    crowd = Crowd(Random(7), 20_000)
    queries = [crowd.query(number) for number in range(10_000)]
    index = index_of(tuple(text for text, _ in queries), COLUMNS)
    assert len(index.shapes) <= 20
    places, found = index.matches(crowd.frame)
    wanted = [np.flatnonzero(mask) for _, mask in queries]
    assert sum(map(len, wanted)) > 20_000
    order = np.lexsort((places, found))
    assert np.array_equal(places[order], np.concatenate(wanted))
    assert np.array_equal(found[order], np.repeat(np.arange(len(wanted)), [len(each) for each in wanted]))
