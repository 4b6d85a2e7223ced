"""The embedded log against a dictionary: whatever is done to both in whatever order, they agree."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.errors import BadEvent, OffsetOutOfRange, SequenceTooOld, TopicExists, UnknownGroup, UnknownTopic
from millstream.event import Event, Record, TopicPartition, from_millis
from millstream.log.contract import Ack, Bounds, Maintenance, TopicSettings
from millstream.log.embedded.engine import SqliteLog
from millstream.log.embedded.sequence import REMEMBERED
from millstream.log.partitioner import partition_of

SECOND = timedelta(seconds=1)
SETTINGS = [
    TopicSettings(),
    TopicSettings(retention=2 * SECOND),
    TopicSettings(retention_bytes=40),
    TopicSettings(retention=5 * SECOND, retention_bytes=60),
    TopicSettings(cleanup="compact", tombstone_retention=SECOND),
    TopicSettings(cleanup="compact", compaction_lag=SECOND, tombstone_retention=timedelta(0)),
    TopicSettings(cleanup="compact,delete", retention=5 * SECOND, tombstone_retention=timedelta(0)),
]
NAMES = ["a", "b"]
GROUPS = ["g", "h"]

keys = st.sampled_from([b"", b"k1", b"k2", b"k3"])
values = st.none() | st.binary(max_size=12)
times = st.none() | st.integers(0, 20_000)


def millis(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)


def size(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"")


@dataclass
class Partition:
    records: dict[int, Record] = field(default_factory=dict)
    start: int = 0
    next: int = 0

    def as_old_as(self, age: timedelta, now: int, own: int) -> list[Record]:
        """The records of that age; what was appended while the topic was ahead of the clock, once no other is left, by its own time."""
        if all(r.appended <= now - millis(age) or r.appended > now for r in self.records.values()):
            now = own
        return [r for r in self.records.values() if r.appended <= now - millis(age)]

    def expired_before(self, settings: TopicSettings, now: int, own: int) -> int:
        """Where retention would move the start, by the clock and by the topic's own time."""
        cut = self.start
        if not settings.expires:
            return cut
        ordered = [self.records[offset] for offset in sorted(self.records)]
        if settings.retention is not None:
            cut = max([cut, *(r.offset + 1 for r in self.as_old_as(settings.retention, now, own))])
        if settings.retention_bytes is not None:
            excess = sum(map(size, ordered)) - settings.retention_bytes
            for record in ordered:
                if excess <= 0:
                    break
                excess -= size(record)
                cut = max(cut, record.offset + 1)
        return cut

    def move_start(self, start: int) -> int:
        gone = [offset for offset in self.records if offset < start]
        for offset in gone:
            del self.records[offset]
        self.start = start
        return len(gone)

    def compact(self, settings: TopicSettings, now: int, own: int) -> int:
        settled = self.as_old_as(settings.compaction_lag, now, own)
        old = {r.offset for r in self.as_old_as(settings.tombstone_retention, now, own)}
        latest = {r.key: r.offset for r in sorted(settled, key=lambda r: r.offset) if r.key is not None}
        gone = [
            r.offset
            for r in settled
            if (r.key is not None and r.offset < latest[r.key]) or (r.value is None and r.offset in old)
        ]
        for offset in gone:
            del self.records[offset]
        return len(gone)


@dataclass
class Model:
    partitions: list[Partition]
    settings: TopicSettings
    sequences: dict[str, dict[int, tuple[list[Event], Ack]]] = field(default_factory=dict)


class LogMachine(RuleBasedStateMachine):
    """Both sides, and a clock that the test moves, backwards too."""

    @initialize(partitions=st.integers(1, 3), chosen=st.sampled_from(SETTINGS))
    def begin(self, partitions: int, chosen: TopicSettings) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.now = 1_000_000
        self.topics: dict[str, Model] = {}
        self.newest: dict[str, int] = {}  # the latest append time of each topic, which never runs backwards
        self.seen: dict[str, int] = {}  # what the clock said at that append
        self.groups: dict[str, dict[TopicPartition, int]] = {}
        self.log = self.open()
        self.create("a", partitions, chosen)

    def open(self) -> SqliteLog:
        return SqliteLog(self.folder / "log.db", clock=lambda: self.now)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()
            shutil.rmtree(self.folder)

    # topics

    @rule(name=st.sampled_from(NAMES), partitions=st.integers(1, 3), chosen=st.sampled_from(SETTINGS))
    def create(self, name: str, partitions: int, chosen: TopicSettings) -> None:
        if name in self.topics:
            with pytest.raises(TopicExists):
                self.log.create_topic(name, partitions, chosen)
        else:
            self.log.create_topic(name, partitions, chosen)
            self.topics[name] = Model([Partition() for _ in range(partitions)], chosen)
            self.newest[name] = self.seen[name] = 0

    @rule(name=st.sampled_from(NAMES), chance=st.integers(0, 3))
    def delete(self, name: str, chance: int) -> None:
        if name not in self.topics:
            with pytest.raises(UnknownTopic):
                self.log.delete_topic(name)
        elif chance == 0:  # seldom, or nothing ever grows
            self.log.delete_topic(name)
            del self.topics[name]
            for offsets in self.groups.values():
                for place in [place for place in offsets if place.topic == name]:
                    del offsets[place]

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), more=st.integers(0, 1), chosen=st.none() | st.sampled_from(SETTINGS))
    def alter(self, data: st.DataObject, more: int, chosen: TopicSettings | None) -> None:
        name, model = self.pick(data)
        more = min(more, 4 - len(model.partitions))
        self.log.alter_topic(name, partitions=len(model.partitions) + more, settings=chosen)
        model.partitions += [Partition() for _ in range(more)]
        model.settings = chosen or model.settings

    # appending

    @precondition(lambda self: self.topics)
    @rule(
        data=st.data(),
        batch=st.lists(st.builds(lambda v, k, t: (v, k, t), values, st.none() | keys, times), min_size=1, max_size=8),
        keyed=st.booleans(),
        producer=st.none() | st.sampled_from(["p", "q"]),
        gap=st.sampled_from([1, 1, 1, 2, REMEMBERED + 5]),
        step=st.sampled_from([0, 0, 1, 300, 999, 1000, 2500, -1500]),
        clean=st.booleans(),
    )
    def append(
        self, data: st.DataObject, batch: Any, keyed: bool, producer: str | None, gap: int, step: int, clean: bool
    ) -> None:
        name, model = self.pick(data)
        events = [
            Event(v, (k or b"k1") if keyed else k, None if t is None else from_millis(t), ()) for v, k, t in batch
        ]
        sequence = None
        if producer:
            sequence = max(model.sequences.get(producer, {}), default=-1) + gap
        if model.settings.compacts and any(event.key is None for event in events):
            with pytest.raises(BadEvent):
                self.log.append(name, events, producer=producer, sequence=sequence)
            return
        ack = self.log.append(name, events, producer=producer, sequence=sequence)
        assert not ack.duplicate
        before = self.newest[name]
        self.take(name, model, events, ack)
        if producer is not None and sequence is not None:
            known = model.sequences.setdefault(producer, {})
            known[sequence] = (events, ack)
            for old in [s for s in known if s <= sequence - REMEMBERED]:
                del known[old]
        self.follow_expiry(name, model, before)
        self.now += step
        if clean:
            self.maintain_topic(name)

    def topic_time(self, name: str) -> int:
        """The clock's time; in a topic that is ahead of it, its newest append time and what has passed since that append."""
        newest, seen = self.newest[name], self.seen[name]
        if self.now >= newest:
            return self.now
        return newest + (max(0, self.now - seen) if seen < newest else 1)

    def take(self, name: str, model: Model, events: list[Event], ack: Ack) -> None:
        """Put an acknowledged batch into the model, checking the acknowledgement on the way."""
        now = self.newest[name] = self.topic_time(name)
        self.seen[name] = self.now
        assert len(ack.partitions) == len(ack.offsets) == len(events)
        for event, partition, offset in zip(events, ack.partitions, ack.offsets, strict=True):
            if event.key is not None:
                assert partition == partition_of(event.key, len(model.partitions))
            place = model.partitions[partition]
            assert offset == place.next  # dense, in the order given
            place.next += 1
            time = now if event.time is None else (event.time - from_millis(0)) // timedelta(milliseconds=1)
            place.records[offset] = Record(name, partition, offset, event.key, event.value, time, now)

    def follow_expiry(self, name: str, model: Model, before: int) -> None:
        """An append may expire some, never more than had expired at the append before; nothing else may go."""
        now, own = min(self.now, before), min(self.topic_time(name), before)
        for number, bounds in self.log.bounds(name).items():
            place = model.partitions[number]
            assert place.start <= bounds.start <= place.expired_before(model.settings, now, own)
            place.move_start(bounds.start)

    @precondition(lambda self: any(model.sequences for model in self.topics.values()))
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(n for n, m in self.topics.items() if m.sequences)))
        model = self.topics[name]
        producer = data.draw(st.sampled_from(sorted(model.sequences)))
        sequence = data.draw(st.sampled_from(sorted(model.sequences[producer])))
        events, first = model.sequences[producer][sequence]
        if model.settings.compacts and any(event.key is None for event in events):
            return  # made before the topic became a compacted one
        assert self.log.append(name, events, producer=producer, sequence=sequence) == first._replace(duplicate=True)
        with pytest.raises(BadEvent, match="repeats sequence"):
            self.log.append(name, [*events, Event(b"", b"")], producer=producer, sequence=sequence)
        assert self.log.last_sequence(name, producer) == max(model.sequences[producer])
        lowest = max(model.sequences[producer]) - REMEMBERED
        if lowest >= 0:
            with pytest.raises(SequenceTooOld):
                self.log.append(name, [Event(b"", b"")], producer=producer, sequence=lowest)

    # reading

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), limit=st.integers(1, 30), shift=st.integers(-3, 40))
    def read(self, data: st.DataObject, limit: int, shift: int) -> None:
        name, model = self.pick(data)
        number = data.draw(st.integers(0, len(model.partitions) - 1))
        place = model.partitions[number]
        offset = place.start + shift
        if place.start <= offset <= place.next:
            expected = [place.records[o] for o in sorted(place.records) if o >= offset][:limit]
            assert self.log.read(name, number, offset, limit) == expected
        else:
            missing = (offset, place.start) if offset < place.start else (place.next, offset)
            with pytest.raises(OffsetOutOfRange) as caught:
                self.log.read(name, number, offset, limit)
            assert caught.value.missing == missing

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), limit=st.integers(1, 7))
    def poll(self, data: st.DataObject, limit: int) -> None:
        name, model = self.pick(data)
        ends = {number: place.next for number, place in enumerate(model.partitions)}
        found: dict[int, list[Record]] = {number: [] for number in ends}
        with self.log.reader(name) as reader:
            while reader.positions != ends:
                for record in reader.poll(limit):
                    found[record.partition].append(record)
        for number, place in enumerate(model.partitions):
            assert found[number] == [place.records[o] for o in sorted(place.records)]

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), time=st.integers(0, 22_000) | st.integers(999_000, 1_060_000))
    def find_time(self, data: st.DataObject, time: int) -> None:
        name, model = self.pick(data)
        assert self.log.offsets_at(name, from_millis(time)) == {
            number: min((o for o, r in place.records.items() if r.timestamp >= time), default=place.next)
            for number, place in enumerate(model.partitions)
        }

    # time passes, things go

    @rule(step=st.sampled_from([1, 300, 999, 1000, 2500, 6000, -1500]))
    def tick(self, step: int) -> None:
        self.now += step

    @precondition(lambda self: self.topics)
    @rule(data=st.data())
    def maintain(self, data: st.DataObject) -> None:
        self.maintain_topic(self.pick(data)[0])

    def maintain_topic(self, name: str) -> None:
        model = self.topics[name]
        before = [dict(place.records) for place in model.partitions]
        expired = compacted = 0
        for place in model.partitions:
            expired += place.move_start(place.expired_before(model.settings, self.now, self.topic_time(name)))
        if model.settings.compacts:
            own = self.topic_time(name)
            compacted = sum(place.compact(model.settings, self.now, own) for place in model.partitions)
        assert self.log.maintain(name) == Maintenance(expired, compacted)
        bounds = self.log.bounds(name)
        for number, place in enumerate(model.partitions):
            assert bounds[number].start >= place.start  # a cut may also pass holes that compaction left
            place.start = bounds[number].start
            self.check_latest(before[number], place)

    def check_latest(self, before: dict[int, Record], place: Partition) -> None:
        """Whoever reads on from any offset that is left still meets the latest value of every key."""

        def latest(records: dict[int, Record], start: int) -> dict[bytes, bytes]:
            found = {r.key: r.value for _, r in sorted(records.items()) if r.key is not None and r.offset >= start}
            return {key: value for key, value in found.items() if value is not None}

        for start in {place.start, *(offset for offset in before if offset >= place.start)}:
            assert latest(place.records, start) == latest(before, start)

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = self.open()

    # groups

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), group=st.sampled_from(GROUPS), offset=st.integers(0, 30))
    def commit(self, data: st.DataObject, group: str, offset: int) -> None:
        name, model = self.pick(data)
        place = TopicPartition(name, data.draw(st.integers(0, len(model.partitions) - 1)))
        self.log.commit_group(group, {place: offset})
        self.groups.setdefault(group, {})[place] = offset

    @rule(group=st.sampled_from(GROUPS))
    def forget(self, group: str) -> None:
        if group in self.groups:
            self.log.delete_group(group)
            del self.groups[group]
        else:
            with pytest.raises(UnknownGroup):
                self.log.delete_group(group)

    # always

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "log"):
            return
        assert {t.name: (t.partitions, t.settings) for t in self.log.topics()} == {
            name: (len(model.partitions), model.settings) for name, model in self.topics.items()
        }
        assert {g.name: dict(g.offsets) for g in self.log.groups()} == self.groups
        for name, model in self.topics.items():
            assert self.log.bounds(name) == {n: Bounds(p.start, p.next) for n, p in enumerate(model.partitions)}
            for number, place in enumerate(model.partitions):
                expected = [place.records[o] for o in sorted(place.records)]
                assert self.log.read(name, number, place.start, 10_000) == expected

    def pick(self, data: st.DataObject) -> tuple[str, Model]:
        name = data.draw(st.sampled_from(sorted(self.topics)))
        return name, self.topics[name]


LogMachine.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


TestLog = LogMachine.TestCase
