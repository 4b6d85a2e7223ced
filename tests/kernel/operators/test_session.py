"""Sessions, batch by batch, against sessions made from all rows at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random
from typing import Any, Literal

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millstream.errors import PipelineError
from millstream.kernel.operators import keyed_rows
from millstream.kernel.state.store import FOREVER
from millstream.plan.spec import Measure, Session
from millstream.relation.nodes import Emit
from tests.kernel import oracle
from tests.kernel.alone import SECOND, Alone, Row, Script, any_row
from tests.kernel.local import hashable

few = settings(max_examples=3, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
seeds = given(seed=st.integers(0, (1 << 32) - 1))

GAP = 20 * SECOND
MEASURES = (
    Measure("n", "count", ()),
    Measure("total", "sum", ("f",)),
    Measure("most", "max", ("i",)),
    Measure("list", "collect_list", ("i",)),
    Measure("kinds", "count_distinct", ("s",)),
    Measure("last", "max_by", ("s", "i")),
    Measure("middle", "percentile", ("i",), 0.5),
    Measure("high", "percentile", ("i",), 0.9),
)


def sessions(
    rows: list[Row], keys: tuple[str, ...], measures: tuple[Measure, ...], mark: int = FOREVER
) -> Counter[Any]:
    """The sessions of these rows whose end lies before the mark."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for each in rows:
        groups[tuple(each[name] for name in keys)].append(each)
    made: Counter[Any] = Counter()
    for key, group in groups.items():
        open_: list[Row] = []
        ordered: list[Row | None] = [*sorted(group, key=lambda each: each["at"]), None]
        for row in ordered:
            last = oracle.moment(open_[-1]["at"]) if open_ else 0
            if open_ and (row is None or oracle.moment(row["at"]) > last + GAP):
                if last + GAP < mark:
                    times = open_[0]["at"], oracle.stamp(last + GAP)
                    made[hashable((*key, *times, *(oracle.aggregate(measure, open_) for measure in measures)))] += 1
                open_ = []
            if row is not None:
                open_.append(row)
    return made


def check(
    chance: Random, emit: Emit = "changes", lateness: int = 0, deletes: bool = False, keys: tuple[str, ...] = ("k",)
) -> None:
    """After every batch the sessions are those of all rows; in the end nothing is kept."""
    measures = tuple(chance.sample(MEASURES, 3))
    alone = Alone(Session(keys, measures, "at", GAP, emit, lateness, insert_only=not deletes))
    script = Script(chance, lateness=lateness, deletes=deletes)
    for _ in range(chance.randint(2, 8)):
        alone.batch(script.batch(), script.mark)
        seen = script.mark if emit == "final" else FOREVER
        assert alone.rows == sessions(script.there, keys, measures, seen)
    script.close()
    alone.batch([], script.mark)
    assert alone.rows == sessions(script.there, keys, measures)
    assert (alone.held, alone.segments) == (0, 0)
    if emit == "final" and not lateness and not deletes:
        assert all(weight > 0 for sent in alone.sent for weight in sent.values()), "a final row was taken back"


@pytest.mark.parametrize("deletes", [False, True], ids=["inserts", "deletes"])
@pytest.mark.parametrize("lateness", [0, 45 * SECOND], ids=["in time", "late"])
@pytest.mark.parametrize("emit", ["changes", "final"])
@seeds
@few
def test_sessions_are_those_of_all_rows_whatever_the_batches(
    emit: Emit, lateness: int, deletes: bool, seed: int
) -> None:
    check(Random(seed), emit, lateness, deletes)


@seeds
@few
def test_without_keys_all_rows_are_in_sessions_together(seed: int) -> None:
    check(Random(seed), "final", deletes=seed % 2 == 0, keys=())


def _events(*seconds: float) -> list[tuple[Row, int]]:
    return [({"k": 1, "at": oracle.stamp(int(at * SECOND))}, 1) for at in seconds]


def test_a_row_between_two_sessions_makes_them_one_and_taking_it_back_makes_them_two_again() -> None:
    alone = Alone(Session(("k",), MEASURES[:1], "at", GAP, insert_only=False))
    alone.batch(_events(0, 30))
    assert sorted(row[3] for row in alone.rows) == [1, 1]
    alone.batch(_events(15))
    assert sorted(alone.sent[-1].values()) == [-1, -1, 1]
    assert [row[3] for row in alone.rows] == [3]
    alone.batch([(row, -1) for row, _ in _events(15)])
    assert sorted(alone.sent[-1].values()) == [-1, 1, 1]


def check_reach(_: Random) -> None:
    """A row inside a session does not hide how far the session reaches."""
    alone = Alone(Session(("k",), MEASURES[:1], "at", GAP))
    alone.batch(_events(0, 20, 40, 60))
    alone.batch(_events(10, 75))
    assert [row[3] for row in alone.rows] == [6]


def test_a_row_inside_a_session_does_not_hide_how_far_it_reaches() -> None:
    check_reach(Random(0))


def test_rows_exactly_a_gap_apart_share_a_session_and_it_is_final_only_after_its_end() -> None:
    alone = Alone(Session(("k",), MEASURES[:1], "at", GAP, "final"))
    alone.batch(_events(0, 20), 40 * SECOND)
    assert not alone.rows
    alone.batch(_events(40), 60 * SECOND)
    assert not alone.rows
    alone.batch([], 60 * SECOND + 1)
    assert [row[3] for row in alone.rows] == [3]


def test_a_session_of_many_rows_is_one_row_of_state_while_nothing_is_taken_back() -> None:
    alone = Alone(Session(("k",), MEASURES[:3], "at", GAP, "final"))
    for start in range(0, 2_000, 100):
        alone.batch(_events(*range(start, start + 100)), start * SECOND)
    assert alone.held <= 2  # the session, and its timer


def test_a_key_with_too_many_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_rows, "MOST", 10)
    alone = Alone(Session(("k",), MEASURES[:1], "at", GAP, insert_only=False))
    alone.batch(_events(*range(10)))
    with pytest.raises(PipelineError, match="k = 1: more than 10 rows"):
        alone.batch(_events(10))
    lists = Alone(Session(("k",), MEASURES[3:4], "at", GAP))
    with pytest.raises(PipelineError, match="k = 1: more than 10 rows"):
        lists.batch([({"k": 1, "at": oracle.stamp(0), "i": i}, 1) for i in range(11)])


@pytest.mark.parametrize("emit", ["changes", "final"])
def test_an_endless_stream_of_sessions_keeps_no_more_state_as_it_goes_on(emit: Literal["changes", "final"]) -> None:
    chance, held = Random(1), []
    alone = Alone(Session(("k",), MEASURES[:4], "at", GAP, emit))
    for number in range(120):
        at = number * 10 * SECOND
        rows = [any_row(chance, at + chance.randrange(10 * SECOND), range(number, number + 20)) for _ in range(20)]
        alone.batch([(row, 1) for row in rows], at)
        held.append((alone.held, alone.segments))
    assert max(held[60:]) <= tuple(1.25 * most for most in max(held[:60])), held
