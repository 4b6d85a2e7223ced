"""Repeats, batch by batch, against taking all rows in the order of their time."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millstream.kernel.state.store import FOREVER
from millstream.plan.spec import Deduplicate, Horizon, Order
from millstream.relation.nodes import Emit
from tests.kernel import oracle
from tests.kernel.alone import SECOND, TYPES, Alone, Row, Script, any_row
from tests.kernel.operators.test_top import grouped, values

few = settings(max_examples=3, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
seeds = given(seed=st.integers(0, (1 << 32) - 1))
COLUMNS = tuple(TYPES)
WITHIN = 25 * SECOND


def firsts(rows: list[Row], keys: tuple[str, ...], within: int | None, mark: int = FOREVER) -> Counter[Any]:
    """The rows that are no repeats and lie before the mark."""
    made: Counter[Any] = Counter()
    for group in grouped(rows, keys, (Order("at"),)):
        last: int | None = None
        for row in group:
            at = oracle.moment(row["at"])
            if last is None or (within is not None and at > last + within):
                last = at
                made[values(row)] += at < mark
    return +made


def check(
    chance: Random, emit: Emit = "changes", lateness: int = 0, deletes: bool = False, within: int | None = WITHIN
) -> None:
    """After every batch the rows are those that are no repeats among all; in the end nothing is kept."""
    keys = chance.choice((("k",), ("k", "s")))
    alone = Alone(Deduplicate(keys, COLUMNS, Horizon("at", lateness), within, emit, insert_only=not deletes))
    script = Script(chance, lateness=lateness, deletes=deletes)
    for _ in range(chance.randint(2, 10)):
        alone.batch(script.batch(), script.mark)
        assert alone.rows == firsts(script.there, keys, within, script.mark if emit == "final" else FOREVER)
    alone.batch([], FOREVER)
    assert alone.rows == firsts(script.there, keys, within)
    if within is not None:
        assert (alone.held, alone.segments) == (0, 0)
    if emit == "final" and not lateness and not deletes:
        assert all(weight > 0 for sent in alone.sent for weight in sent.values()), "a final row was taken back"


@pytest.mark.parametrize("within", [WITHIN, None], ids=["for a while", "for ever"])
@pytest.mark.parametrize("deletes", [False, True], ids=["inserts", "deletes"])
@pytest.mark.parametrize("lateness", [0, 45 * SECOND], ids=["in time", "late"])
@pytest.mark.parametrize("emit", ["changes", "final"])
@seeds
@few
def test_repeats_are_those_among_all_rows_whatever_the_batches(
    emit: Emit, lateness: int, deletes: bool, within: int | None, seed: int
) -> None:
    check(Random(seed), emit, lateness, deletes, within)


def test_an_endless_stream_of_ids_keeps_no_more_state_as_it_goes_on() -> None:
    chance, held = Random(1), []
    alone = Alone(Deduplicate(("k",), COLUMNS, Horizon("at"), WITHIN))
    for number in range(100):
        at = number * 10 * SECOND
        rows = [any_row(chance, at + chance.randrange(10 * SECOND), range(number, number + 20)) for _ in range(10)]
        alone.batch([(row, 1) for row in rows], at)
        held.append((alone.held, alone.segments))
    assert max(held[50:]) <= tuple(1.25 * most for most in max(held[:50])), held
