"""Ranks, neighbours and frames, batch by batch, against looking at all rows at once."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millstream.errors import PipelineError, PlanError
from millstream.kernel.aggregates import window_functions as frame
from millstream.kernel.state.store import FOREVER
from millstream.plan.spec import Horizon, Measure, Order, Over
from millstream.relation.nodes import Emit, Frame, Look
from tests.kernel import oracle
from tests.kernel.alone import SECOND, TYPES, Alone, Row, Script, any_row
from tests.kernel.local import hashable
from tests.kernel.operators.test_top import grouped, values

few = settings(max_examples=3, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
seeds = given(seed=st.integers(0, (1 << 32) - 1))
COLUMNS = tuple(TYPES)
SPAN = 20 * SECOND

RANKS = (
    Look("number", "row_number"), Look("rank", "rank"), Look("dense", "dense_rank"),
    Look("before", "lag", ("f",)), Look("after", "lead", ("s",), offset=2),
)  # fmt: skip
AGGREGATES = (
    ("n", "count", ()), ("sum", "sum", ("f",)), ("whole", "sum", ("i",)), ("avg", "avg", ("i",)), ("least", "min", ("f",)),
    ("most", "max", ("i",)), ("list", "collect_list", ("i",)), ("kinds", "count_distinct", ("s",)),
    ("middle", "percentile", ("i",)), ("last", "max_by", ("s", "i")),
)  # fmt: skip
BOUNDED = (
    Frame("rows", 2, 0), Frame("rows", 1, 1), Frame("rows", 0, 2), Frame("range", SPAN, 0), Frame("range", SPAN, SPAN), Frame("range", 0, 0)
)  # fmt: skip
FAR = (Frame("rows", None, 0), Frame("range", None, 0), Frame("rows", None, None), Frame("range", 0, None))


def framed(chance: Random, frames: tuple[Frame, ...], count: int = 2) -> tuple[Look, ...]:
    """Some aggregates over some frames."""
    chosen = chance.sample(AGGREGATES, count)
    return tuple(Look(name, function, args, chance.choice(frames), fraction=0.5) for name, function, args in chosen)  # type: ignore[arg-type]


def look(call: Look, group: list[Row], at: int, order: tuple[Order, ...]) -> Any:
    """One call for one row of its sorted group."""
    same = [hashable(tuple(row[each.column] for each in order)) for row in group]
    match call.function:
        case "row_number":
            return at + 1
        case "rank":
            return same.index(same[at]) + 1
        case "dense_rank":
            return len(dict.fromkeys(same[: at + 1]))
        case "lag" | "lead":
            other = at - call.offset if call.function == "lag" else at + call.offset
            return group[other][call.arguments[0]] if 0 <= other < len(group) else None
    assert call.frame is not None
    chosen = [row for index, row in enumerate(group) if _inside(call.frame, group, same, index, at, order)]
    return oracle.aggregate(Measure(call.name, call.function, call.arguments, call.fraction), chosen)


def _inside(frame: Frame, group: list[Row], same: list[Any], other: int, at: int, order: tuple[Order, ...]) -> bool:
    if frame.kind == "rows":
        return (frame.before is None or other >= at - frame.before) and (
            frame.after is None or other <= at + frame.after
        )
    if same[other] == same[at]:
        return True
    bound = frame.before if other < at else frame.after
    if bound is None:
        return True
    if not bound:
        return False
    one, two = (group[index][order[0].column] for index in (other, at))
    if one is None or two is None:
        return False
    if not isinstance(one, int):
        one, two = oracle.moment(one), oracle.moment(two)
    return bool(abs(one - two) <= bound)


def expected(
    rows: list[Row], calls: tuple[Look, ...], keys: tuple[str, ...], order: tuple[Order, ...], mark: int = FOREVER
) -> Counter[Any]:
    return Counter(
        (*values(row), *(hashable(look(call, group, at, order)) for call in calls))
        for group in grouped(rows, keys, order)
        for at, row in enumerate(group)
        if oracle.moment(row["at"]) < mark
    )


def check(chance: Random, calls: tuple[Look, ...], order: tuple[Order, ...], deletes: bool, keys: Any = ("k",)) -> None:
    """After every batch each row is what looking at all rows gives."""
    alone = Alone(Over(keys, COLUMNS, order, calls, insert_only=not deletes))
    script = Script(chance, deletes=deletes, lateness=3_600 * SECOND)
    for _ in range(chance.randint(2, 5)):
        alone.batch(script.batch(), script.mark)
        assert alone.rows == expected(script.there, calls, keys, order)


@pytest.mark.parametrize("keys", [("k",), ()], ids=["by key", "of everything"])
@pytest.mark.parametrize("deletes", [False, True], ids=["inserts", "deletes"])
@seeds
@few
def test_ranks_and_neighbours_are_those_among_all_rows(deletes: bool, keys: tuple[str, ...], seed: int) -> None:
    chance = Random(seed)
    order = tuple(Order(name, chance.random() < 0.5) for name in chance.sample(("i", "f", "s"), 2))
    check(chance, RANKS, order, deletes, keys)


@pytest.mark.parametrize("column", ["at", "i"])
@pytest.mark.parametrize("deletes", [False, True], ids=["inserts", "deletes"])
@seeds
@few
def test_aggregates_over_frames_are_those_of_their_rows(deletes: bool, column: str, seed: int) -> None:
    chance = Random(seed)
    frames = (*BOUNDED, *FAR) if column == "at" else (Frame("range", 1, 0), Frame("range", 6, 1), *FAR)
    check(chance, framed(chance, frames, 3), (Order(column, chance.random() < 0.5),), deletes)


def check_forgetting(
    chance: Random, emit: Emit = "changes", lateness: int = 0, deletes: bool = False, calls: tuple[Look, ...] = ()
) -> None:
    """Rows by time with neighbours near by: forgotten when they can change no more, and right all the same."""
    frames = tuple(each for each in BOUNDED if emit == "changes" or not each.after)
    mixed = (*framed(chance, frames), Look("before", "lag", ("i",)), Look("after", "lead", ("s",)))
    calls = calls or (mixed[: chance.randint(1, 4)] if emit == "changes" else mixed[:3])
    order = (Order("at", emit == "changes" and chance.random() < 0.3),)
    alone = Alone(Over(("k",), COLUMNS, order, calls, Horizon("at", lateness), emit, insert_only=not deletes))
    script = Script(chance, lateness=lateness, deletes=deletes)
    for _ in range(chance.randint(2, 10)):
        alone.batch(script.batch(), script.mark)
        seen = script.mark if emit == "final" else FOREVER
        assert alone.rows == expected(script.there, calls, ("k",), order, seen)
    alone.batch([], FOREVER)
    assert alone.rows == expected(script.there, calls, ("k",), order)
    if emit == "final" and not lateness and not deletes:
        assert all(weight > 0 for sent in alone.sent for weight in sent.values()), "a final row was taken back"
    if all(call.frame is not None and call.frame.kind == "range" for call in calls):
        assert (alone.held, alone.segments) == (0, 0)


@pytest.mark.parametrize("deletes", [False, True], ids=["inserts", "deletes"])
@pytest.mark.parametrize("lateness", [0, 45 * SECOND], ids=["in time", "late"])
@pytest.mark.parametrize("emit", ["changes", "final"])
@seeds
@few
def test_rows_by_time_are_right_though_the_old_ones_are_forgotten(
    emit: Emit, lateness: int, deletes: bool, seed: int
) -> None:
    check_forgetting(Random(seed), emit, lateness, deletes)


SLIDING = tuple(Look(name, function, args, Frame("range", SPAN, 0)) for name, function, args in AGGREGATES[:6])  # type: ignore[arg-type]


def check_sliding(chance: Random, emit: Emit = "changes", lateness: int = 0) -> None:
    """A window that ends with each event."""
    check_forgetting(chance, emit, lateness, calls=tuple(chance.sample(SLIDING, 2)))


@pytest.mark.parametrize("lateness", [0, 45 * SECOND], ids=["in time", "late"])
@pytest.mark.parametrize("emit", ["changes", "final"])
@seeds
@few
def test_sliding_windows_end_with_each_event_and_all_state_goes(emit: Emit, lateness: int, seed: int) -> None:
    check_sliding(Random(seed), emit, lateness)


def test_a_sliding_window_has_a_start_and_an_end() -> None:
    count = (Look("n", "count", (), Frame("range", SPAN, 0)),)
    alone = Alone(Over(("k",), ("k",), (Order("at"),), count, Horizon("at"), window=SPAN))
    alone.batch([({"k": 1, "at": oracle.stamp(at * SECOND)}, 1) for at in (0, 20, 41)])
    assert alone.rows == Counter(
        (1, oracle.stamp((at - 20) * SECOND), oracle.stamp(at * SECOND), n) for at, n in ((0, 1), (20, 2), (41, 1))
    )


@pytest.mark.parametrize("calls", [SLIDING[:2], (Look("before", "lag", ("i",)),)], ids=["range", "lag"])
def test_an_endless_stream_keeps_no_more_state_as_it_goes_on(calls: tuple[Look, ...]) -> None:
    chance, held = Random(1), []
    alone = Alone(Over(("k",), COLUMNS, (Order("at"),), calls, Horizon("at"), insert_only=True))
    for number in range(100):
        at = number * 10 * SECOND
        rows = [any_row(chance, at + chance.randrange(10 * SECOND), range(10)) for _ in range(10)]
        alone.batch([(row, 1) for row in rows], at)
        held.append((alone.held, alone.segments))
    assert max(held[50:]) <= tuple(1.25 * most for most in max(held[:50])), held


def test_frames_that_are_too_much_to_look_at_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "PAIRS", 100)
    spec = Over(("k",), COLUMNS, (Order("at"),), (Look("list", "collect_list", ("i",), Frame("rows", None, 0)),))
    with pytest.raises(PipelineError, match="would look at"):
        Alone(spec).batch([({"k": 1, "at": oracle.stamp(at), "i": at}, 1) for at in range(20)])


def test_distances_between_anything_but_times_and_whole_numbers_are_refused() -> None:
    spec = Over(("k",), COLUMNS, (Order("f"),), (Look("n", "count", (), Frame("range", 1, 0)),))
    with pytest.raises(PlanError, match="an order by a time or by whole numbers; found Float64"):
        Alone(spec).batch([(any_row(Random(1)), 1)])
