"""The first rows of each group, batch by batch, against sorting all rows at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random
from typing import Any

import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millstream.kernel.state import segments
from millstream.kernel.state.segments import PLACE, Table
from millstream.kernel.state.segments import place as place_of
from millstream.kernel.state.store import NEVER, Meta
from millstream.kernel.zset import WEIGHT
from millstream.plan.spec import Horizon, Order, Top
from millstream.relation.nodes import Ties
from tests.kernel import oracle
from tests.kernel.alone import SECOND, TYPES, Alone, Row, Script, any_row
from tests.kernel.local import hashable

few = settings(max_examples=3, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
seeds = given(seed=st.integers(0, (1 << 32) - 1))
COLUMNS = tuple(TYPES)


TIES: tuple[Ties | None, ...] = (None, "rank", "dense_rank")


def first(group: list[Row], count: int, order: tuple[Order, ...], ties: Ties | None) -> list[Row]:
    """The first of sorted rows, as SQL says it: by how many rows, or how many other orders, are before them."""
    if ties is None:
        return group[:count]
    ahead = [[hashable(rank(row[each.column])) for each in order] for row in group]
    better = [[place for place in ahead[:at] if place != ahead[at]] for at in range(len(group))]
    sizes = [len(found if ties == "rank" else {str(place) for place in found}) for found in better]
    return [row for row, size in zip(group, sizes, strict=True) if size < count]


def place(row: Row, order: tuple[Order, ...]) -> list[Any]:
    """What a row is sorted by: its order, then all of it; nulls first, or last where it descends."""
    by = [*order, *(Order(name) for name in ("k", *COLUMNS) if name not in {each.column for each in order})]
    return [_Down(part) if each.descending else part for each in by for part in [rank(row[each.column])]]


def rank(value: Any) -> tuple[int, Any]:
    nan = isinstance(value, float) and value != value
    return (0, 0) if value is None else (2, 0) if nan else (1, value)


class _Down:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Down) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Down) and self.value == other.value


def grouped(rows: list[Row], keys: tuple[str, ...], order: tuple[Order, ...]) -> list[list[Row]]:
    """The rows of each group, sorted."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(hashable(row[name]) for name in keys)].append(row)
    return [sorted(group, key=lambda row: place(row, order)) for group in groups.values()]


def values(row: Row) -> Any:
    return hashable(tuple(row[name] for name in COLUMNS))


def check(chance: Random, deletes: bool = False, keys: tuple[str, ...] = ("k",), order: tuple[Order, ...] = ()) -> None:
    """After every batch the rows are the first of all."""
    count, ties = chance.choice((1, 2, 5)), chance.choice(TIES)
    names = chance.sample(("i", "f", "s"), chance.randint(1, 2))
    order = order or tuple(Order(name, chance.random() < 0.5) for name in names)
    alone = Alone(Top(keys, COLUMNS, order, count, insert_only=not deletes, ties=ties))
    script = Script(chance, deletes=deletes, lateness=3_600 * SECOND)
    for _ in range(chance.randint(2, 8)):
        alone.batch(script.batch(), script.mark)
        groups = grouped(script.there, keys, order)
        expected = Counter(values(row) for group in groups for row in first(group, count, order, ties))
        assert alone.rows == expected
        if not deletes:
            assert alone.held <= (expected.total() if ties else count * len(groups))


@pytest.mark.parametrize("keys", [("k",), ("k", "s"), ()], ids=["by key", "by two keys", "of everything"])
@pytest.mark.parametrize("deletes", [False, True], ids=["inserts", "deletes"])
@seeds
@few
def test_the_first_rows_are_those_of_all_rows_whatever_the_batches(
    deletes: bool, keys: tuple[str, ...], seed: int
) -> None:
    check(Random(seed), deletes, keys)


def check_forgetting(chance: Random, lateness: int = 30 * SECOND) -> None:
    """A group with a time is forgotten when it can change no more, and what it said stays said."""
    size = 20 * SECOND
    order = (Order("i", True),)
    alone = Alone(Top(("at",), COLUMNS, order, 2, Horizon("at", size + lateness), insert_only=False))
    script = Script(chance, lateness=lateness, deletes=True)
    script.making = lambda chance, at: any_row(chance, -(-at // size) * size)
    for _ in range(chance.randint(2, 8)):
        alone.batch(script.batch(), script.mark)
        expected = Counter(values(row) for group in grouped(script.there, ("at",), order) for row in group[:2])
        assert alone.rows == expected
    alone.batch([], 1 << 62)
    assert alone.rows == expected
    assert (alone.held, alone.segments) == (0, 0)


@seeds
@few
def test_groups_that_can_change_no_more_are_forgotten_and_their_rows_stay(seed: int) -> None:
    check_forgetting(Random(seed))


def test_when_one_of_the_first_goes_the_next_one_takes_its_place() -> None:
    alone = Alone(Top(("k",), ("k", "i"), (Order("i", True),), 1, insert_only=False))
    rows = [{"k": 1, "at": oracle.stamp(0), "i": i} for i in (1, 2, 3)]
    alone.batch([(row, 1) for row in rows])
    assert alone.rows == Counter({(1, 3): 1})
    alone.batch([(rows[2], -1)])
    assert alone.sent[-1] == Counter({(1, 2): 1, (1, 3): -1})


@pytest.mark.parametrize("insert_only", [True, False])
@pytest.mark.parametrize(
    ("ties", "expected"),
    [(None, ["a", "b"]), ("rank", ["a", "b", "c"]), ("dense_rank", ["a", "b", "c"])],
    ids=["neither", "rank", "dense rank"],
)
def test_rows_of_equal_order_share_a_rank_and_stay_or_go_together(
    ties: Ties | None, expected: list[str], insert_only: bool
) -> None:
    alone = Alone(Top(("k",), ("s",), (Order("i", True),), 2, insert_only=insert_only, ties=ties))
    placed = {"a": 9, "b": 5, "c": 5, "d": 3, "e": 1}
    rows: list[tuple[Row, int]] = [({"k": 1, "at": oracle.stamp(0), "i": i, "s": s}, 1) for s, i in placed.items()]
    rows.append(rows[3])
    alone.batch(rows[:2])
    alone.batch(rows[2:])
    assert sorted(alone.rows.elements()) == [(s,) for s in expected]
    if not insert_only:
        alone.batch([(rows[0][0], -1)])
        after = {None: ["b", "c"], "rank": ["b", "c"], "dense_rank": ["b", "c", "d", "d"]}
        assert sorted(alone.rows.elements()) == [(s,) for s in after[ties]]


def test_rows_that_an_older_version_placed_by_hash_are_found() -> None:
    rows = [{"k": k, "at": oracle.stamp(0), "i": 5, "s": ""} for k in range(200)]
    spec = Top(("k",), ("k", "i"), (Order("i", True),), 1)
    alone, meta = Alone(spec), Meta(version=2)
    there = pl.DataFrame({"k": list(range(200)), "i": [5] * 200, WEIGHT: [1] * 200, "_due": [NEVER] * 200})
    table = Table(alone.store, meta, "rows", 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "LIMIT", alone.limit)
        table.save(there.with_columns(pl.Series(PLACE, place_of(there, ["k"]))))
    meta.write(alone.store)
    assert alone.segments > 10
    alone.rows = Counter({(k, 5): 1 for k in range(200)})
    alone.batch([({**row, "i": 7}, 1) for row in rows[::2]])
    assert alone.rows == Counter({(k, 5 if k % 2 else 7): 1 for k in range(200)})
    assert alone.held == 200
