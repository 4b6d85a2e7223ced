"""Joins of a stream with a table as of the event's time, batch by batch, against the table's whole history in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millstream.plan.build import Chain
from millstream.relation.nodes import (
    Aggregate,
    Aggregation,
    Column,
    Equality,
    How,
    Join,
    Named,
    Node,
    Select,
    Source,
    Where,
    output_columns,
)
from tests.kernel import oracle
from tests.kernel.local import Local, Rec, hashable, types_by_name
from tests.kernel.operators import test_interval_join
from tests.kernel.operators.test_interval_join import (
    COUNTS,
    SECOND,
    SIZE,
    Row,
    chain_of,
    events,
    stream,
    table,
    windowed,
)

few = settings(max_examples=3, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
seeds = given(seed=st.integers(0, (1 << 32) - 1))

TYPES = {**test_interval_join.TYPES, "users": {"id": pl.Float64, "c": pl.String, "n": pl.Int64}}
USERS = Source(
    "table", "users", "users", (Column("id", "double"), Column("c", "string"), Column("n", "long")), key=("id",)
)
IDS = (1.0, float("nan"), 0.0)


class History:
    """All that a table has said, and what it says of a key at a time."""

    def __init__(self) -> None:
        self.said: dict[Any, list[tuple[int, Row | None]]] = {}

    def batch(self, records: Sequence[Rec], least: int | None = None) -> None:
        for record in sorted(records, key=lambda each: each.offset):
            versions = self.said.setdefault(hashable(record.values["id"]), [])
            valid = max([record.stamp or 0, *(valid for valid, _ in versions)])
            counts = not record.deleted and (
                least is None or (record.values["n"] is not None and record.values["n"] > least)
            )
            versions.append((valid, record.values if counts else None))

    def at(self, key: Any, moment: int) -> Row | None:
        found = [row for valid, row in self.said.get(hashable(key), []) if valid <= moment] if key is not None else []
        return found[-1] if found else None


class Answers:
    """The answers as they stand: an event is answered anew until no other of its time can be admitted."""

    def __init__(self, lateness: int, how: How) -> None:
        self.lateness, self.how = lateness, how
        self.rows: list[tuple[Row, Row | None]] = []

    def batch(self, admitted: Sequence[Row], history: History, mark: int) -> list[Row]:
        """Take the events of a batch; ``mark`` is the one before it."""
        kept = self.rows + [(row, None) for row in admitted[len(self.rows) :]]
        self.rows = []
        for row, answer in kept:
            at = oracle.moment(row["at"])
            live = at + self.lateness >= mark
            self.rows.append((row, history.at(row["k"], at) if live else answer))
        found = [(row, answer) for row, answer in self.rows if answer is not None or self.how == "left"]
        return [{**row, "c": answer and answer["c"], "n": answer and answer["n"]} for row, answer in found]


def as_of(a: Source, how: How = "left", right: Node = USERS) -> Join:
    return Join(a, right, (Equality("k", "id"),), how, as_of="at")


def said(chance: Random, feed: int, following: Counter[Any], now: int, partitions: int) -> list[Rec]:
    """Some records of the table; their timestamps mostly go on."""
    records = []
    for _ in range(chance.randint(0, 4)):
        key = chance.choice(IDS)
        place = feed, IDS.index(key) % partitions if key in IDS else 0
        stamp = now + chance.randrange(-20, 8) * SECOND
        values: Row = {"id": key, "c": chance.choice(("x", "y", None)), "n": chance.choice((None, 1, 5))}
        deleted = chance.random() < 0.2
        kept = {"id": key} if deleted else values
        records.append(Rec(*place, following[place], now, kept, deleted=deleted, stamp=stamp))
        following[place] += 1
    return records


def script(chance: Random, chain: Chain, partitions: int) -> list[list[Rec]]:
    """Events of the streams and records of the table, in batches."""
    numbers = {feed.source.name: feed.number for feed in chain.feeds}
    streams = [feed for feed in chain.feeds if feed.source.kind == "stream"]
    following: Counter[Any] = Counter()
    made = []
    for records in events(chance, Chain(tuple(streams), (), (), 1), partitions):
        times = [oracle.moment(r.values[name]) for r in records for name in ("at", "bt") if name in r.values]
        now = max(times, default=1000 * SECOND)
        made.append(records + said(chance, numbers["users"], following, now, partitions))
    return made


def check(chance: Random, how: How = "left", correct: bool = False, filtered: bool = False) -> None:
    """After every batch each event has the row that held at its time, as far as the table had said by then."""
    partitions, lateness = chance.choice((1, 2)), chance.choice((3, 40)) * SECOND if correct else 0
    a = stream("a", chance.choice((0, 10, 40)) * SECOND, lateness)
    right: Node = USERS
    if filtered:
        right = Select(Where(USERS, "n > 1"), tuple(Named(name, name) for name in ("id", "c", "n")))
    node = as_of(a, how, right)
    window = windowed(node)
    window = Aggregate(
        node, (Named("c", "c"),), window.window, (Aggregation("rows", "count"), Aggregation("s", "sum", ("n",)))
    )
    chain = chain_of((node, "changes"), (window, "final"), buckets=chance.choice((1, 3)))
    local = Local(chain, partitions, types_by_name(chain, TYPES), chance.randrange(100))
    numbers = {feed.source.name: feed.number for feed in chain.feeds}
    judge, history, answers = oracle.Judge(a, partitions), History(), Answers(lateness, how)
    names = [name for name in output_columns(node) if name != "id"]
    for records in script(chance, chain, partitions):
        mark = judge.mark
        judge.batch([each for each in records if each.feed == numbers["a"]])
        history.batch([each for each in records if each.feed == numbers["users"]], 1 if filtered else None)
        again = local.copy() if len(records) % 3 == 0 else None
        local.batch(records)
        if again is not None:
            again.batch(records)
            assert again.sent[-1] == local.sent[-1], "a batch that runs again gives other changes"
        rows = answers.batch([record.values for record in judge.admitted], history, mark)
        found = Counter({(*row[:3], *row[4:]): n for row, n in _without_id(local.view("v0")).items()})
        assert found == table(rows, names)
        assert local.view("v1") == oracle.reduce(rows, ["c"], window.aggregates, SIZE, until=judge.mark)
    local.close()
    assert local.view("v1") == oracle.reduce(rows, ["c"], window.aggregates, SIZE)
    assert all(held.rows == 0 for held in local.held.values() if _is_window(chain, held.kernel))
    if not correct:
        assert all(weight == 1 for sent in local.sent for weight in sent.get("v1", Counter()).values())


def _without_id(rows: Counter[Any]) -> Counter[Any]:
    made: Counter[Any] = Counter()
    for row, count in rows.items():
        assert row[3] is None or row[3] == row[0]
        made[(*row[:3], "id", *row[4:])] += count
    return made


def _is_window(chain: Chain, number: int) -> bool:
    return any(each.number == number and each.sides == 1 for each in chain.operators)


@few
@pytest.mark.parametrize("how", ["inner", "left"])
@seeds
def test_an_event_has_the_row_of_the_table_that_held_at_its_time(how: How, seed: int) -> None:
    check(Random(seed), how)


@few
@seeds
def test_an_event_that_is_late_has_it_too(seed: int) -> None:
    check(Random(seed), correct=True)


@few
@seeds
def test_a_row_that_a_condition_leaves_out_ends_the_one_before_it(seed: int) -> None:
    check(Random(seed), filtered=True)


@few
@seeds
def test_an_answer_does_not_depend_on_batches_as_long_as_the_table_is_in_time(seed: int) -> None:
    chance = Random(seed)
    chain = chain_of((as_of(stream("a", 1000 * SECOND)), "changes"))
    # A heartbeat would make what the table says afterwards late for events before it.
    batches = [[each for each in records if each.beat is None] for records in script(chance, chain, 2)]
    whole, parts = (Local(chain, 2, types_by_name(chain, TYPES), seed) for seed in (0, 1))
    whole.batch([each for records in batches for each in records])
    for records in batches:
        parts.batch(records)
    assert whole.view("v0") == parts.view("v0")


def check_stacked(chance: Random, how: How = "inner", correct: bool = False) -> None:
    """A final window behind a join within an interval behind a join as of a time: it closes once, when it may."""
    partitions = chance.choice((1, 2))
    late = [chance.choice((3, 20)) * SECOND if correct else 0 for _ in range(2)]
    a, b = stream("a", chance.choice((0, 10)) * SECOND, late[0]), stream("b", chance.choice((0, 20)) * SECOND, late[1])
    low, high = test_interval_join.bounds_of(chance)
    below = as_of(a, "left")
    node = Join(
        below, b, (Equality("k", "k", "k"),), how, within=(timedelta(microseconds=low), timedelta(microseconds=high))
    )
    chain = chain_of((node, "changes"), (windowed(node), "final"), buckets=chance.choice((1, 3)))
    local = Local(chain, partitions, types_by_name(chain, TYPES), chance.randrange(100))
    numbers = {feed.source.name: feed.number for feed in chain.feeds}
    streams = test_interval_join.Streams(
        Chain(tuple(f for f in chain.feeds if f.source.kind == "stream"), (), (), 1), partitions
    )
    history, answers = History(), Answers(late[0], "left")
    names = [name for name in output_columns(node) if name != "id"]
    for records in script(chance, chain, partitions):
        mark = streams.mark("a")
        streams.batch([each for each in records if each.feed in streams.numbers])
        history.batch([each for each in records if each.feed == numbers["users"]])
        local.batch(records)
        left = answers.batch(streams.rows("a"), history, mark)
        marks = streams.mark("a"), streams.mark("b")
        rows = test_interval_join.pairs(left, streams.rows("b"), node, marks, names)
        assert Counter({(*row[:3], *row[4:]): n for row, n in _without_id(local.view("v0")).items()}) == table(
            rows, names
        )
        until = min(marks[0], marks[1] - high)
        assert local.view("v1") == oracle.reduce(rows, ["k"], COUNTS, SIZE, until=until)
    local.close()
    if correct:
        return
    assert all(weight == 1 for sent in local.sent for weight in sent.get("v1", Counter()).values())
    said = Counter(row for sent in local.sent for row in sent.get("v1", Counter()))
    assert all(times == 1 for times in said.values())


@few
@seeds
def test_late_events_amend_behind_two_joins(seed: int) -> None:
    check_stacked(Random(seed), "left", correct=True)


@few
@pytest.mark.parametrize("how", ["inner", "left"])
@seeds
def test_a_final_window_behind_two_joins_closes_once_and_when_it_may(how: How, seed: int) -> None:
    check_stacked(Random(seed), how)


def check_endless(chance: Random) -> None:
    """State of an endless stream with a table whose rows come and go stops growing."""
    chain = chain_of((as_of(stream("a", 5 * SECOND)), "changes"), buckets=1)
    numbers = {feed.source.name: feed.number for feed in chain.feeds}
    local = Local(chain, 1, types_by_name(chain, TYPES))
    local.limit = 1024
    held = []
    for number in range(40):
        now = number * 10 * SECOND
        records = [
            Rec(
                numbers["a"],
                0,
                number * 20 + i,
                now + SECOND,
                {"k": float(chance.randrange(10)), "v": i, "at": oracle.stamp(now)},
            )
            for i in range(20)
        ]
        for i in range(10):
            deleted = chance.random() < 0.3
            values = {"id": float(chance.randrange(10)), "c": "x", "n": number}
            records.append(Rec(numbers["users"], 0, number * 10 + i, now, values, deleted=deleted, stamp=now))
        local.batch(records)
        held.append(local.state_rows)
    assert max(held[20:]) <= 1.25 * max(held[:20])


def test_an_endless_stream_keeps_no_more_events_and_no_more_history() -> None:
    check_endless(Random(3))


def test_latest_answers_with_the_table_as_it_is_and_never_again() -> None:
    a = stream("a", 0)
    node = Join(a, USERS, (Equality("k", "id"),), "left", latest=True)
    assert not node.replayable
    window = windowed(Select(node, tuple(Named(name, name) for name in ("k", "at", "n"))))
    window = Aggregate(window.input, window.keys, window.window, (Aggregation("s", "sum", ("n",)),))
    chain = chain_of((node, "changes"), (window, "final"))
    numbers = {feed.source.name: feed.number for feed in chain.feeds}
    local = Local(chain, 1, types_by_name(chain, TYPES))

    def event(offset: int, key: float | None, at: int) -> Rec:
        return Rec(numbers["a"], 0, offset, 1000 * SECOND, {"k": key, "v": offset, "at": oracle.stamp(at * SECOND)})

    local.batch([event(0, 1.0, 1), event(1, None, 1)])
    local.batch([Rec(numbers["users"], 0, 0, values={"id": 1.0, "c": "x", "n": 7}), event(2, 1.0, 2)])
    local.batch([Rec(numbers["users"], 0, 1, values={"id": 1.0, "c": "y", "n": 8})])
    local.batch([event(3, 1.0, 100)])
    answers = {row[1]: row[4] for row in local.view("v0")}
    assert answers == {0: None, 1: None, 2: "x", 3: "y"}
    start, end = oracle.stamp(0), oracle.stamp(SIZE)
    assert local.view("v1") == Counter([(1.0, start, end, 7), (None, start, end, None)])
    assert not any(weight < 0 for sent in local.sent for rows in sent.values() for weight in rows.values())


def test_a_correction_reaches_only_events_that_may_still_be_amended() -> None:
    chain = chain_of((as_of(stream("a", 0)), "changes"), buckets=1)
    numbers = {feed.source.name: feed.number for feed in chain.feeds}
    local = Local(chain, 1, types_by_name(chain, TYPES))
    at = [oracle.stamp(moment * SECOND) for moment in (10, 50)]
    local.batch([Rec(numbers["a"], 0, i, 1000 * SECOND, {"k": 1.0, "v": i, "at": at[i]}) for i in range(2)])
    local.batch([Rec(numbers["users"], 0, 0, values={"id": 1.0, "c": "x", "n": 1}, stamp=5 * SECOND)])
    assert {row[1]: row[4] for row in local.view("v0")} == {0: None, 1: "x"}
