"""Events with the stored queries that they meet, batch by batch, against a plain loop over all events and all that queries have said."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from random import Random
from typing import Any, NamedTuple

import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millstream.errors import KeyTooLarge
from millstream.kernel.operators import percolate
from millstream.plan.build import Chain, ViewPlan, build_chain
from millstream.relation.nodes import (
    Aggregate,
    Aggregation,
    Column,
    EventTime,
    Named,
    Node,
    Select,
    Source,
    Tumbling,
    Where,
)
from millstream.relation.operators.percolate import Percolate
from tests.kernel import oracle
from tests.kernel.local import STAMP, Local, Rec, hashable, types_by_name
from tests.kernel.stored_queries import MALFORMED, Condition, Row, any_condition, any_row

few = settings(max_examples=12, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
seeds = given(seed=st.integers(0, (1 << 32) - 1))

SECOND = 1_000_000
USED = tuple(Column(*each.split(" ", 1)) for each in ("n int", "price double", "city string", "title string", "ok boolean", "day date", "cost decimal(9, 2)"))  # fmt: skip
EVENT = (*USED, Column("at", "timestamp"))
TYPES: dict[str, dict[str, Any]] = {
    "events": {
        "n": pl.Int32, "price": pl.Float64, "city": pl.String, "title": pl.String, "ok": pl.Boolean, "day": pl.Date, "cost": pl.Decimal(9, 2), "at": STAMP,
    },
    "queries": {"id": pl.Float64, "owner": pl.String, "level": pl.Int64, "condition": pl.String},
}  # fmt: skip
QUERIES = Source("table", "queries", "queries", (Column("id", "double"), Column("owner", "string"), Column("level", "long"), Column("condition", "string")), key=("id",))  # fmt: skip
IDS = (1.0, 2.0, 3.0, float("nan"), 0.0)


def stream(delay: int, lateness: int = 0) -> Source:
    late = "correct" if lateness else "drop"
    time = EventTime("at", timedelta(microseconds=delay), timedelta(microseconds=lateness), late)  # type: ignore[arg-type]
    return Source("stream", "events", "events", EVENT, time=time)


def percolated(events: Node, queries: Node = QUERIES) -> Percolate:
    return Percolate(events, queries, "condition", USED)


def chain_of(*nodes: Node, buckets: int = 2, emit: Any = "changes") -> Chain:
    plans = [ViewPlan(f"v{number}", node, "sqlite:x", emit, ()) for number, node in enumerate(nodes)]
    return build_chain(plans, buckets=buckets, to="sqlite:x")


class Said(NamedTuple):
    """What one record says of a query; None if that is gone, or does not count."""

    valid: int
    owner: str | None
    condition: Condition | None


class World:
    """A log that grows, and what is true of it: by one loop over events and one over queries."""

    def __init__(
        self, chance: Random, chain: Chain, partitions: int, delay: int, lateness: int, least: int | None
    ) -> None:
        self.chance, self.partitions, self.delay, self.lateness, self.least = chance, partitions, delay, lateness, least
        self.numbers = {feed.source.name: feed.number for feed in chain.feeds}
        self.following: Counter[tuple[str, int]] = Counter()
        self.append, self.now = 2_000 * SECOND, 1_000 * SECOND
        self.marks = dict.fromkeys(range(partitions), -(10**18))
        self.admitted: list[Row] = []
        self.said: dict[Any, list[Said]] = {}
        self.malformed = 0

    @property
    def mark(self) -> int:
        return min(self.marks.values())

    def record(self) -> Rec:
        """One more record, later than all before it."""
        self.append += self.chance.choice((1, SECOND))
        self.now += self.chance.choice((0, 0, 1, SECOND, 5 * SECOND))
        return self._query() if self.chance.random() < 0.4 else self._event()

    def _place(self, name: str, partition: int) -> tuple[int, int, int]:
        offset = self.following[name, partition]
        self.following[name, partition] += 1
        return self.numbers[name], partition, offset

    def _event(self) -> Rec:
        at = self.now - self.chance.choice((0, 0, 0, 3, 10, 30)) * SECOND
        row = {**any_row(self.chance), "at": oracle.stamp(at)}
        partition = self.chance.randrange(self.partitions)
        if at >= self.marks[partition] - self.lateness:
            self.admitted.append(row)
        self.marks[partition] = max(self.marks[partition], at - self.delay)
        return Rec(*self._place("events", partition), self.append, row)

    def _query(self) -> Rec:
        key = self.chance.choice(IDS)
        place = self._place("queries", IDS.index(key) % self.partitions)
        stamp = self.now - self.chance.choice((-10, 0, 0, 2, 20, 60)) * SECOND
        values: Row = {"id": key}
        kind = self.chance.random()
        condition = any_condition(self.chance, self.chance.randrange(3))
        if kind >= 0.2:
            values |= {
                "owner": self.chance.choice(("x", "y", None)),
                "level": self.chance.choice((None, 1, 5)),
                "condition": condition.text,
            }
        counts = kind >= 0.2 and (self.least is None or (values["level"] or 0) > self.least)
        if counts and self.chance.random() < 0.2:
            values["condition"] = self.chance.choice((*MALFORMED, None))
            self.malformed += 1
            return Rec(*place, self.append, values, stamp=stamp)
        versions = self.said.setdefault(hashable(key), [])
        valid = max([stamp, self.mark - self.lateness, *(each.valid for each in versions[-1:])])
        versions.append(Said(valid, values.get("owner"), condition if counts else None))
        return Rec(*place, self.append, values, deleted=kind < 0.2, stamp=stamp)

    def met(self) -> Counter[Any]:
        """Each event with each query that it meets."""
        found: Counter[Any] = Counter()
        for row in self.admitted:
            at = oracle.moment(row["at"])
            for key, versions in self.said.items():
                held = [each for each in versions if each.valid <= at]
                if held and held[-1].condition is not None and held[-1].condition.of(row) is True:
                    found[(*hashable(tuple(row.values())), key, held[-1].owner)] += 1
        return found


def check(chance: Random, correct: bool = False, filtered: bool = False) -> None:
    """After every batch the view has what the log so far says."""
    partitions, delay = chance.choice((1, 2)), chance.choice((0, 10, 40)) * SECOND
    lateness = chance.choice((3, 40)) * SECOND if correct else 0
    queries: Node = Where(QUERIES, "level > 1") if filtered else QUERIES
    queries = Select(queries, tuple(Named(name, name) for name in ("id", "owner", "condition")))
    chain = chain_of(percolated(stream(delay, lateness), queries), buckets=chance.choice((1, 2, 5)))
    local = Local(chain, partitions, types_by_name(chain, TYPES), chance.randrange(100))
    world = World(chance, chain, partitions, delay, lateness, 1 if filtered else None)
    for _ in range(chance.randint(1, 8)):
        records = [world.record() for _ in range(chance.choice((0, 1, 5, 30)))]
        again = local.copy() if len(records) % 3 == 0 else None
        local.batch(records)
        if again is not None:
            again.batch(records)
            assert again.sent[-1] == local.sent[-1], "a batch that runs again gives other changes"
        assert local.view("v0") == world.met()
    rejects = [row for row in local.rejects if row[0] == "queries"]
    assert len(rejects) == world.malformed
    assert all(row[5] == "malformed" and row[6] for row in rejects)


@few
@seeds
def test_events_meet_the_queries_of_their_time(seed: int) -> None:
    check(Random(seed))


@few
@seeds
def test_late_events_do_too(seed: int) -> None:
    check(Random(seed), correct=True)


@few
@seeds
def test_a_query_that_is_left_out_by_a_condition_ends_the_one_before_it(seed: int) -> None:
    check(Random(seed), filtered=True)


@few
@seeds
def test_batches_and_buckets_do_not_matter(seed: int) -> None:
    chance = Random(seed)
    delay = chance.choice((0, 20)) * SECOND
    chains = [chain_of(percolated(stream(delay, 20 * SECOND)), buckets=buckets) for buckets in (1, 4)]
    world = World(chance, chains[0], 2, delay, 20 * SECOND, None)
    records = [world.record() for _ in range(70)]
    views = []
    for chain, size in ((chains[0], 70), (chains[1], 70), (chains[1], 7)):
        local = Local(chain, 2, types_by_name(chain, TYPES), seed % 50)
        for low in range(0, len(records), size):
            local.batch(records[low : low + size])
        views.append(local.view("v0"))
    assert views[0] == views[1] == views[2]


@few
@seeds
def test_windows_over_it_close_once_and_have_what_was_met(seed: int) -> None:
    chance = Random(seed)
    made = percolated(stream(10 * SECOND))
    window = Aggregate(
        made, (Named("owner", "owner"),), Tumbling("at", timedelta(seconds=20)), (Aggregation("n", "count"),)
    )
    chain = chain_of(window, emit="final")
    local = Local(chain, 1, types_by_name(chain, TYPES))
    world = World(chance, chain, 1, 10 * SECOND, 0, None)
    for _ in range(6):
        local.batch([world.record() for _ in range(10)])
    local.close()
    wanted: Counter[Any] = Counter()
    for row, times in world.met().items():
        wanted[row[-1], oracle.moment(row[7]) // (20 * SECOND)] += times
    assert {(row[0], oracle.moment(row[1]) // (20 * SECOND)): row[3] for row in local.view("v0")} == dict(wanted)
    assert all(weight == 1 for sent in local.sent for weight in sent.get("v0", Counter()).values())


# state, limits


def event(numbers: dict[str, int], offset: int, at: int, **values: Any) -> Rec:
    row = {**dict.fromkeys(TYPES["events"]), "at": oracle.stamp(at * SECOND), **values}
    return Rec(numbers["events"], 0, offset, 9_000 * SECOND, row)


def query(numbers: dict[str, int], offset: int, condition: str, stamp: int = 0, key: float = 1.0) -> Rec:
    values = {"id": key, "owner": "x", "level": 1, "condition": condition}
    return Rec(numbers["queries"], 0, offset, 0, values, stamp=stamp * SECOND)


def started(delay: int = 0, **given: Any) -> tuple[Local, dict[str, int]]:
    chain = chain_of(percolated(stream(delay * SECOND)), **given)
    return Local(chain, 1, types_by_name(chain, TYPES)), {feed.source.name: feed.number for feed in chain.feeds}


def test_a_malformed_record_leaves_the_query_as_it_was() -> None:
    local, numbers = started()
    local.batch([query(numbers, 0, "n = 1"), query(numbers, 1, "colour = 'red'", 5), event(numbers, 0, 10, n=1)])
    assert len(local.view("v0")) == 1
    (reject,) = local.rejects
    assert reject[:3] == ("queries", 0, 1)
    assert reject[5:] == (
        "malformed",
        "condition: no column colour that a condition may use; these are n, price, city, title, ok, day, cost",
    )


@pytest.mark.parametrize("text", MALFORMED)
def test_hostile_texts_are_dead_letters_and_stop_nothing(text: str) -> None:
    local, numbers = started()
    local.batch([query(numbers, 0, text), query(numbers, 1, "n = 1", key=2.0), event(numbers, 0, 10, n=1)])
    assert [row[8] for row in local.view("v0")] == [2.0]
    assert [row[5] for row in local.rejects] == ["malformed"]
    assert sum(each.malformed for each in local.counts) == 1


def test_a_text_of_a_megabyte_is_refused_by_its_length() -> None:
    local, numbers = started()
    local.batch([query(numbers, 0, "n = 1 OR " * 120_000 + "n = 1")])
    assert local.rejects[0][6] == "condition: a condition of 1,080,005 characters; at most 10,000 are allowed"


def test_every_bucket_has_the_queries_and_an_event_is_in_one() -> None:
    local, numbers = started(buckets=5)
    local.batch([query(numbers, 0, "n IS NOT NULL")])
    local.batch([event(numbers, i, 10, n=i) for i in range(50)])
    assert len(local.view("v0")) == 50
    kept = [held.rows for held in local.held.values()]
    assert len(kept) == 5
    assert sum(kept) == 5 + 50


def test_an_endless_stream_keeps_no_more_events_and_no_more_history() -> None:
    local, numbers = started(delay=5, buckets=1)
    local.limit, chance, held = 1024, Random(3), []
    for number in range(40):
        records = [event(numbers, number * 20 + i, number * 10, n=chance.randrange(5)) for i in range(20)]
        records += [query(numbers, number * 4 + i, f"n = {number % 5}", number * 10, float(i)) for i in range(4)]
        local.batch(
            [Rec(each.feed, 0, each.offset, number * 10 * SECOND, each.values, stamp=each.stamp) for each in records]
        )
        held.append(local.state_rows)
    assert max(held[20:]) <= 1.25 * max(held[:20])


def test_a_query_that_meets_too_much_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(percolate, "MOST", 20)
    local, numbers = started(buckets=1)
    queries = [query(numbers, 0, "n = 3"), query(numbers, 1, "n IS NOT NULL", key=2.0)]
    with pytest.raises(KeyTooLarge, match=r"31 pairs .* The query id = 2.0 meets 30 events"):
        local.batch([*queries, *(event(numbers, i, 10, n=i) for i in range(30))])
