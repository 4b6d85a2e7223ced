"""Rows of windows that count when those are over: a top of each window, and rows that wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millstream.plan.spec import Hold, Horizon, Order, Top
from millstream.relation.nodes import Ties
from tests.kernel.alone import SECOND, TYPES, Alone, Row, Script, any_row
from tests.kernel.local import STAMP, hashable
from tests.kernel.operators.test_top import first, grouped
from tests.kernel.oracle import moment, stamp

few = settings(max_examples=10, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
seeds = given(seed=st.integers(0, (1 << 32) - 1))
SIZE = 20 * SECOND
WITH_END = {**TYPES, "e": STAMP}
COLUMNS = tuple(WITH_END)


def in_window(chance: Random, at: int) -> Row:
    return any_row(chance, at) | {"e": stamp(at // SIZE * SIZE + SIZE)}


def values(row: Row) -> Any:
    return hashable(tuple(row[name] for name in COLUMNS))


def running(alone: Alone, script: Script) -> Iterator[list[Row]]:
    """Run some batches, then the end of all time; give the rows whose windows are over after each."""
    script.making = in_window
    for number in range(8):
        changes = script.batch()
        if number == 7:
            script.close()
        alone.batch(changes, script.mark)
        yield [row for row in script.there if moment(row["e"]) <= script.mark]


def check_top(chance: Random, lateness: int = 0, deletes: bool = False) -> None:
    """The first rows of each window that is over are shown, and no others; without late ones each once."""
    order, keys = (Order("i", chance.random() < 0.5),), chance.choice((("e",), ("k", "e")))
    ranked: tuple[Ties | None, ...] = (None, "rank", "dense_rank")
    count, ties = chance.choice((1, 2)), chance.choice(ranked)
    spec = Top(
        keys, COLUMNS, order, count, Horizon("e", lateness), not deletes, ties=ties, emit="final", lateness=lateness
    )
    alone = Alone(spec, WITH_END)
    for over in running(alone, Script(chance, lateness=lateness, deletes=deletes)):
        rows = [row for group in grouped(over, keys, order) for row in first(group, count, order, ties)]
        assert alone.rows == Counter(map(values, rows))
    assert alone.held == 0
    if not lateness:
        assert all(weight > 0 for sent in alone.sent for weight in sent.values()), "a final row was taken back"


def check_hold(chance: Random, lateness: int = 0, deletes: bool = True) -> None:
    """Rows go on when their window is over."""
    alone = Alone(Hold(("at",), COLUMNS, "e"), WITH_END)
    for over in running(alone, Script(chance, lateness=lateness, deletes=deletes)):
        assert alone.rows == Counter(map(values, over))
    assert alone.held == 0


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("lateness", [0, 45 * SECOND])
@seeds
@few
def test_the_first_of_a_window_appear_when_it_is_over(seed: int, lateness: int, deletes: bool) -> None:
    check_top(Random(seed), lateness, deletes)


@pytest.mark.parametrize("lateness", [0, 45 * SECOND])
@seeds
@few
def test_rows_go_on_when_their_window_is_over(seed: int, lateness: int) -> None:
    check_hold(Random(seed), lateness)


def test_a_window_is_over_when_the_mark_reaches_its_end() -> None:
    for spec in (
        Hold(("at",), COLUMNS, "e"),
        Top(("e",), COLUMNS, (Order("i"),), 1, Horizon("e"), emit="final"),
    ):
        alone = Alone(spec, WITH_END)
        alone.batch([(in_window(Random(1), SECOND), 1)], SIZE - 1)
        assert not alone.rows
        alone.batch([], SIZE)
        assert alone.rows.total() == 1
