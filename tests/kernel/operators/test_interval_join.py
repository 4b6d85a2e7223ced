"""Joins of two streams within an interval, batch by batch, against all pairs of admitted events in plain Python."""

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

from millstream.errors import PipelineError
from millstream.kernel.operators import join
from millstream.kernel.state import segments
from millstream.kernel.state.store import FOREVER
from millstream.plan.build import Chain, ViewPlan, build_chain, micros
from millstream.relation.nodes import (
    Aggregate,
    Aggregation,
    Column,
    Emit,
    Equality,
    EventTime,
    How,
    Join,
    Named,
    Node,
    Select,
    Source,
    Tumbling,
    output_columns,
)
from tests.kernel import oracle
from tests.kernel.local import STAMP, Local, Rec, hashable, types_by_name

few = settings(max_examples=3, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
seeds = given(seed=st.integers(0, (1 << 32) - 1))

SECOND = 1_000_000
SIZE = 20 * SECOND
HOWS: tuple[How, ...] = ("inner", "left", "right", "full")
TYPES: dict[str, dict[str, Any]] = {
    "a": {"k": pl.Float64, "v": pl.Int64, "at": STAMP},
    "b": {"k": pl.Float64, "w": pl.Int64, "bt": STAMP},
}
KEYS = (1.0, 1.0, 1.0, 2.0, float("nan"), -0.0, None)
COUNTS = (Aggregation("n", "count"), Aggregation("total", "sum", ("w",)))
Row = dict[str, Any]


def stream(name: str, delay: int, lateness: int = 0) -> Source:
    value, at = ("v", "at") if name == "a" else ("w", "bt")
    columns = (Column("k", "double"), Column(value, "long"), Column(at, "timestamp"))
    late = "correct" if lateness else "drop"
    time = EventTime(at, timedelta(microseconds=delay), timedelta(microseconds=lateness), late)  # type: ignore[arg-type]
    return Source("stream", name, name, columns, time=time)


def joined(a: Source, b: Source, low: int, high: int, how: How) -> Join:
    bounds = timedelta(microseconds=low), timedelta(microseconds=high)
    return Join(a, b, (Equality("k", "k", "k"),), how, within=bounds)


def windowed(node: Node, column: str = "at") -> Aggregate:
    window = Tumbling(column, timedelta(microseconds=SIZE))
    return Aggregate(node, (Named("k", "k"),), window, COUNTS)


def chain_of(*views: tuple[Node, Emit], buckets: int = 2) -> Chain:
    plans = [ViewPlan(f"v{number}", node, "sqlite:x", emit, ()) for number, (node, emit) in enumerate(views)]
    return build_chain(plans, buckets=buckets, to="sqlite:x")


class Streams:
    """What was admitted of some streams, and their marks."""

    def __init__(self, chain: Chain, partitions: int) -> None:
        self.judges = {feed.source.name: oracle.Judge(feed.source, partitions) for feed in chain.feeds}
        self.numbers = {feed.number: feed.source.name for feed in chain.feeds}

    def batch(self, records: Sequence[Rec]) -> None:
        for name, judge in self.judges.items():
            judge.batch([each for each in records if self.numbers[each.feed] == name])

    def rows(self, name: str) -> list[Row]:
        return [record.values for record in self.judges[name].admitted]

    def mark(self, name: str) -> int:
        return self.judges[name].mark


def pairs(
    left: Sequence[Row], right: Sequence[Row], node: Join, marks: tuple[int, int], columns: Sequence[str]
) -> list[Row]:
    """All pairs within the bounds, and the rows without a partner whose time is over."""
    assert node.within
    low, high = map(micros, node.within)
    times = [[oracle.moment(row[name]) for row in rows] for rows, name in ((left, "at"), (right, "bt"))]

    def match(i: int, j: int) -> bool:
        one, other = hashable(left[i]["k"]), hashable(right[j]["k"])
        return one is not None and one == other and low <= times[1][j] - times[0][i] <= high

    found = [(i, j) for i in range(len(left)) for j in range(len(right)) if match(i, j)]
    made = [{**right[j], **left[i]} for i, j in found]
    if node.how in ("left", "full"):
        with_one = {i for i, _ in found}
        made += [row for i, row in enumerate(left) if i not in with_one and times[0][i] + high < marks[1]]
    if node.how in ("right", "full"):
        with_one = {j for _, j in found}
        made += [row for j, row in enumerate(right) if j not in with_one and times[1][j] - low < marks[0]]
    return [{**dict.fromkeys(columns), **row} for row in made]


def events(chance: Random, chain: Chain, partitions: int, length: int = 12) -> list[list[Rec]]:
    """Batches of events of all streams; time goes on, some are late, some partitions are silent for a while."""
    following: Counter[tuple[int, int]] = Counter()
    made, now = [], 1000 * SECOND
    for _ in range(chance.randint(2, 8)):
        records = []
        for _ in range(chance.randint(0, length)):
            feed = chance.choice(chain.feeds)
            place = feed.number, chance.randrange(partitions)
            at = now + chance.randrange(-15, 10) * SECOND + chance.choice((0, 0, 0, 0, 1, 500_000))
            assert feed.source.time is not None
            values: Row = {"k": chance.choice(KEYS), "v": chance.randrange(3), "w": chance.randrange(3)}
            values = {name: value for name, value in values.items() if name in TYPES[feed.source.name]}
            values[feed.source.time.column] = oracle.stamp(at)
            if chance.random() < 0.1:
                records.append(Rec(*place, following[place], now + 60 * SECOND, beat=at))
            else:
                records.append(Rec(*place, following[place], now + 60 * SECOND, values))
            following[place] += 1
        made.append(records)
        now += chance.choice((0, 3, 8, 15, 30)) * SECOND
    return made


def table(rows: Sequence[Row], names: Sequence[str]) -> Counter[Any]:
    return Counter(hashable(tuple(row[name] for name in names)) for row in rows)


def bounds_of(chance: Random) -> tuple[int, int]:
    low, high = sorted(chance.choice((-20, -7, -3, 0, 0, 2, 7, 20)) * SECOND for _ in range(2))
    return low, high


def check(chance: Random, how: How, correct: bool = False, windows: bool = True) -> None:
    """After every batch the join is all pairs, and windows behind it are closed when, and only when, they may be."""
    partitions = chance.choice((1, 2))
    lateness = [chance.choice((3, 12)) * SECOND if correct else 0 for _ in range(2)]
    a, b = (
        stream("a", chance.choice((0, 5)) * SECOND, lateness[0]),
        stream("b", chance.choice((0, 20)) * SECOND, lateness[1]),
    )
    low, high = bounds_of(chance)
    node = joined(a, b, low, high, how)
    column = "bt" if how == "right" else "at"
    views: list[tuple[Node, Emit]] = [(node, "changes")]
    windows = windows and how != "full"
    if windows:
        views += [(windowed(node, column), "changes"), (windowed(node, column), "final")]
    chain = chain_of(*views, buckets=chance.choice((1, 3)))
    local = Local(chain, partitions, types_by_name(chain, TYPES), chance.randrange(100))
    streams, names = Streams(chain, partitions), output_columns(node)

    def agree() -> None:
        marks = streams.mark("a"), streams.mark("b")
        rows = pairs(streams.rows("a"), streams.rows("b"), node, marks, names)
        assert local.view("v0") == table(rows, names)
        if not windows:
            return
        timed = [{**row, "at": row[column]} for row in rows]
        until = min(marks[0], marks[1] - high) if how != "right" else min(marks[0] + low, marks[1])
        assert local.view("v1") == oracle.reduce(timed, ["k"], COUNTS, SIZE)
        assert local.view("v2") == oracle.reduce(timed, ["k"], COUNTS, SIZE, until=until)

    for records in events(chance, chain, partitions):
        streams.batch(records)
        again = local.copy() if len(records) % 3 == 0 else None
        local.batch(records)
        if again is not None:
            again.batch(records)
            assert again.sent[-1] == local.sent[-1], "a batch that runs again gives other changes"
        agree()
    local.close()
    for judge in streams.judges.values():
        for partition in judge.partitions:
            partition.watermark = FOREVER
    agree()
    assert local.kept_segments == 0
    if not correct:
        said = Counter(row for sent in local.sent for row in sent.get("v2", Counter()))
        assert all(weight == 1 for sent in local.sent for weight in sent.get("v2", Counter()).values())
        assert all(times == 1 for times in said.values())


@few
@pytest.mark.parametrize("how", HOWS)
@seeds
def test_streams_join_within_an_interval_and_windows_behind_them_close_when_they_may(how: How, seed: int) -> None:
    check(Random(seed), how)


@few
@pytest.mark.parametrize("how", HOWS)
@seeds
def test_late_partners_that_are_allowed_amend(how: How, seed: int) -> None:
    check(Random(seed), how, correct=True)


@few
@seeds
def test_a_join_within_an_interval_does_not_depend_on_batches(seed: int) -> None:
    chance = Random(seed)
    node = joined(stream("a", 0), stream("b", 5 * SECOND), *bounds_of(chance), "full")
    chain = chain_of((node, "changes"))
    batches = events(chance, chain, 2)
    whole, parts = (Local(chain, 2, types_by_name(chain, TYPES), seed) for seed in (0, 1))
    whole.batch([each for records in batches for each in records])
    for records in batches:
        parts.batch(records)
    assert whole.view("v0") == parts.view("v0")


@few
@seeds
def test_a_stream_joins_itself(seed: int) -> None:
    chance = Random(seed)
    a = stream("a", 5 * SECOND)
    other = Select(a, (Named("k", "k"), Named("w", "v"), Named("at", "at")))
    node = Join(
        Select(a, (Named("k", "k"), Named("v", "v"), Named("at", "at"))),
        Select(other, (Named("k", "k"), Named("w", "w"), Named("at", "at"))),
        (Equality("k", "k", "k"), Equality("at", "at", "at")),
        within=(timedelta(0), timedelta(seconds=1)),
    )
    chain = chain_of((node, "changes"))
    local, streams = Local(chain, 1, types_by_name(chain, TYPES)), Streams(chain, 1)
    for records in events(chance, chain, 1):
        streams.batch(records)
        local.batch(records)
        rows = [row for row in streams.rows("a") if row["k"] is not None]
        expected = Counter(
            hashable((one["k"], one["v"], one["at"], other["v"]))
            for one in rows
            for other in rows
            if hashable((one["k"], one["at"])) == hashable((other["k"], other["at"]))
        )
        assert local.view("v0") == expected


@pytest.mark.parametrize("how", HOWS)
def test_an_endless_join_keeps_no_more_state_as_it_goes_on(how: How) -> None:
    chance = Random(7)
    chain = chain_of((joined(stream("a", 0), stream("b", 0), -10 * SECOND, 10 * SECOND, how), "changes"), buckets=1)
    local = Local(chain, 1, types_by_name(chain, TYPES))
    local.limit = segments.LIMIT
    held = []
    for number in range(120):
        now = number * 10 * SECOND
        records = []
        for feed, (value, at) in zip(chain.feeds, (("v", "at"), ("w", "bt")), strict=True):
            for i in range(20):
                values = {"k": float(chance.randrange(10)), value: i, at: oracle.stamp(now + i * SECOND // 2)}
                records.append(Rec(feed.number, 0, number * 20 + i, now + 20 * SECOND, values))
        local.batch(records)
        held.append(local.state_rows)
    assert max(held[60:]) <= 1.25 * max(held[:60])


def test_a_hot_key_is_refused_only_where_its_rows_really_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "MOST", 500)
    chain = chain_of((joined(stream("a", 0), stream("b", 0), 0, SECOND, "inner"), "changes"), buckets=1)
    numbers = [feed.number for feed in chain.feeds]

    def meet(apart: int) -> Local:
        local = Local(chain, 1, types_by_name(chain, TYPES))
        local.batch(
            [
                Rec(
                    number,
                    0,
                    i,
                    FOREVER // 2,
                    {"k": 1.0, "v": i, "w": i, "at": oracle.stamp(i * apart), "bt": oracle.stamp(i * apart)},
                )
                for number in numbers
                for i in range(100)
            ]
        )
        return local

    assert sum(meet(SECOND).view("v0").values()) == 199
    with pytest.raises(PipelineError, match=r"The key 1.0 has 100 rows with 100 partners each"):
        meet(1)


def check_far(chance: Random) -> None:
    """Partners are found wherever they lie, and only there is looked."""
    node = joined(stream("a", 1000 * SECOND), stream("b", 1000 * SECOND), -60 * SECOND, 60 * SECOND, "left")
    chain = chain_of((node, "changes"), buckets=1)
    one, other = (feed.number for feed in chain.feeds)
    local, streams = Local(chain, 1, types_by_name(chain, TYPES)), Streams(chain, 1)
    batches = [
        [
            Rec(
                one, 0, i, FOREVER // 2, {"k": float(i % 5), "v": i, "at": oracle.stamp(chance.randrange(600) * SECOND)}
            )
            for i in range(200)
        ]
    ]
    for i in range(4):
        values = {"k": float(i), "w": i, "bt": oracle.stamp(chance.randrange(600) * SECOND)}
        batches.append([Rec(other, 0, i, FOREVER // 2, values)])
    for records in batches:
        streams.batch(records)
        local.batch(records)
        rows = pairs(streams.rows("a"), streams.rows("b"), node, (0, 0), output_columns(node))
        assert local.view("v0") == table(rows, output_columns(node))


def test_partners_are_found_wherever_they_lie() -> None:
    check_far(Random(1))


def test_a_row_without_a_partner_is_shown_when_its_time_is_over_and_taken_back_by_a_late_one() -> None:
    check_late(Random(0))


def check_late(chance: Random) -> None:
    """A row is shown alone once its time is over, and a late partner takes that back."""
    a, b = stream("a", 0), stream("b", 0, 30 * SECOND)
    chain = chain_of((joined(a, b, 0, 10 * SECOND, "left"), "changes"), buckets=1)
    one, other = (feed.number for feed in chain.feeds)
    local = Local(chain, 1, types_by_name(chain, TYPES))

    def at(feed: int, offset: int, moment: int) -> Rec:
        column, value = ("at", "v") if feed == one else ("bt", "w")
        return Rec(feed, 0, offset, 1000 * SECOND, {"k": 1.0, value: 7, column: oracle.stamp(moment * SECOND)})

    local.batch([at(one, 0, 100)])
    assert not local.view("v0")
    local.batch([at(other, 0, 111 + chance.randrange(9, 15))])
    alone = (1.0, 7, oracle.stamp(100 * SECOND), None, None)
    assert local.view("v0") == Counter([alone])
    local.batch([at(other, 1, 105)])
    assert local.view("v0") == Counter([(*alone[:3], 7, oracle.stamp(105 * SECOND))])
    assert local.sent[-1]["v0"][alone] == -1
