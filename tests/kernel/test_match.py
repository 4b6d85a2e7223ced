"""Row patterns, batch by batch, against all mappings of all rows, one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millstream.errors import PipelineError
from millstream.kernel.pattern import deterministic
from millstream.plan.spec import Horizon, Match, Order
from tests.kernel import random_search
from tests.kernel.alone import SECOND, TYPES, Alone, Row, Script
from tests.kernel.local import hashable
from tests.kernel.operators.test_top import grouped
from tests.kernel.oracle import stamp
from tests.kernel.pattern_oracle import Endless, Meant, shown

some = settings(max_examples=12, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
seeds = given(seed=st.integers(0, (1 << 32) - 1))
COLUMNS = tuple(TYPES)
SHOWN = ("one", "one", "all", "all_with_empty", "all_with_unmatched")


def making(chance: Random, at: int) -> Row:
    """Rows of few kinds, so that many are equal and patterns are met."""
    return {
        "k": chance.choice((None, 0, 0)),
        "at": stamp(at),
        "i": chance.choice((None, 0, 1, 2, 3)),
        "f": chance.choice((None, 0.0, 0.1, 0.2, -0.3, 1e16, -1e16, float("nan"))),
        "s": chance.choice((None, "a", "a", "b")),
    }


def expected(rows: list[Row], meant: Meant, order: tuple[Order, ...], mark: int, final: bool = False) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for group in grouped(rows, ("k",), order):
        for at, row, measures in shown(meant, group, mark, final=final):
            line = [row["k"]]
            if meant.search.shown != "one":
                assert at is not None
                line += [row[name] for name in COLUMNS if name != "k"]
            found[hashable((*line, *measures))] += 1
    return found


def any_search(chance: Random, *, timed: bool) -> Meant:
    within = chance.choice(random_search.WITHIN) if timed else None
    near = within is not None and chance.random() < 0.4
    return random_search.search(
        chance, level=chance.choice((0, 1, 2)), near=near, within=within, shown=chance.choice(SHOWN)
    )


def check(chance: Random, **options: Any) -> None:
    """After every batch there is what the matches of all rows so far are; a start may go far after few rows, or after none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deterministic, "_LONG", chance.choice((0, 2, deterministic._LONG)))
        check_batches(chance, **options)


def check_batches(
    chance: Random,
    *,
    lateness: int = 0,
    deletes: bool = False,
    final: bool = False,
    timed: bool = True,
    meant: Meant | None = None,
) -> None:
    meant = meant or any_search(chance, timed=timed)
    order = (Order("at"),) if timed else (Order(chance.choice(("i", "f", "at")), chance.random() < 0.5),)
    horizon = Horizon("at", lateness) if timed else None
    emit: Any = "final" if final else "changes"
    alone = Alone(Match(("k",), COLUMNS, order, (meant.search,), horizon, emit, insert_only=not deletes))
    script = Script(chance, lateness=lateness, deletes=deletes)
    script.making = making
    for number in range(batches := chance.randint(2, 8)):
        changes = script.batch()
        if number == batches - 1:
            script.close()
        told = alone.rows.copy()
        try:
            wanted = expected(script.there, meant, order, script.mark, final)
        except Endless:
            with pytest.raises(PipelineError, match="SKIP"):
                alone.batch(changes, script.mark)
            return
        alone.batch(changes, script.mark)
        assert alone.rows == wanted, (meant.search, script.mark)
        if final and not lateness and not deletes:
            assert told <= alone.rows, "a final match was taken back"


@pytest.mark.parametrize("lateness", [0, 45 * SECOND], ids=["in time", "late"])
@pytest.mark.parametrize("deletes", [False, True], ids=["inserts", "deletes"])
@seeds
@some
def test_matches_are_those_of_all_rows_so_far(deletes: bool, lateness: int, seed: int) -> None:
    check(Random(seed), lateness=lateness, deletes=deletes)


@pytest.mark.parametrize("lateness", [0, 45 * SECOND], ids=["in time", "late"])
@pytest.mark.parametrize("deletes", [False, True], ids=["inserts", "deletes"])
@seeds
@some
def test_final_matches_are_told_as_soon_as_they_are_certain(deletes: bool, lateness: int, seed: int) -> None:
    check(Random(seed), lateness=lateness, deletes=deletes, final=True)


@contextmanager
def short_runs() -> Iterator[None]:
    """Rows that leave a search where it is are looked at together from the second on."""
    with pytest.MonkeyPatch.context() as patch:
        for name, rows in {"_STILL": 1, "_RUN": 2, "_RUN_MOST": 3}.items():
            patch.setattr(deterministic, name, rows)
        yield


@pytest.mark.parametrize("final", [False, True], ids=["changes", "final"])
@seeds
@some
def test_rows_are_looked_at_together_as_one_by_one(final: bool, seed: int) -> None:
    chance = Random(seed)
    meant = random_search.search(chance, level=1, near=False, within=None, shown=chance.choice(SHOWN))
    with short_runs():
        check(chance, meant=meant, lateness=45 * SECOND, deletes=True, final=final)


@pytest.mark.parametrize("deletes", [False, True], ids=["inserts", "deletes"])
@seeds
@some
def test_an_order_may_be_any(deletes: bool, seed: int) -> None:
    check(Random(seed), deletes=deletes, timed=False, lateness=3_600 * SECOND)
