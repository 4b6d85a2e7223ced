"""The idempotency keys of requests, durable: which were answered, with what, and of which body.

A topic of the server's own has them. What a request appends, and that its key is taken, are one transaction, so a key is there exactly
if its events are. The answer, which is known only afterwards, is in the next record; for those of the last append, which a crash may
leave without one, the events themselves say whose they are, in a header. Keys are remembered for :data:`REMEMBERED`.

One server of a name appends to a log at a time. The next one raises the producer's number before it reads the topic, so what the
one before it still sends is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import msgspec

from millstream.errors import LogUnavailable, OffsetOutOfRange, TopicExists, UnknownTopic
from millstream.event import Event
from millstream.log.contract import Log, TopicSettings

PREFIX = "millstream.serve."
"""How the topics of servers begin; nobody may post to them."""
HEADER = "millstream.request"
"""The header of an event: the key of its request, the number of the append, its place in the request."""
REMEMBERED = timedelta(hours=24)
_STEP = 1 << 32  # numbers of one server; so many appends it never makes
_SAID = re.compile(rb"([0-9a-f]{32}):([0-9]{1,19}):([0-9]{1,9})")
_Places: TypeAlias = dict[tuple[bytes, int], dict[int, tuple[int, int]]]
_CHUNK = 2_000  # keys in one record


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Where the events of a request stand, in order; None where nobody knows any more."""

    partitions: tuple[int, ...]
    offsets: tuple[int, ...] | None


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """A key that was taken: by a body of this digest, for so many events of a topic, in the append of that number."""

    key: bytes
    digest: bytes
    topic: str
    count: int
    sequence: int


class _Page(msgspec.Struct, frozen=True, array_like=True):
    """One record: the keys of its append, the lowest offsets that their events can have, and answers to earlier keys."""

    taken: list[Taken]
    since: dict[str, dict[int, int]]
    answered: dict[bytes, Position]


@dataclass
class Entry:
    """What is known of a key: the body's digest, since when, and the answer, once there is one."""

    digest: bytes
    at: float
    answer: Position | None = None


def key_of(owner: str, topic: str, key: str) -> bytes:
    """A key is one of an owner and a topic: others may use the same text."""
    parts = msgspec.msgpack.encode((owner, topic, key))
    return hashlib.blake2b(parts, digest_size=16).digest()


@dataclass
class Journal:
    """The keys of one server, in memory and in its topic. Used by one thread at a time."""

    log: Log
    name: str
    clock: Callable[[], float] = time.time
    entries: OrderedDict[bytes, Entry] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.topic = PREFIX + self.name
        self.producer = self.topic
        self._unwritten: dict[bytes, Position] = {}
        self.sequence = self._begin()
        self._read()

    def next_sequence(self) -> int:
        """The number of the next append."""
        self.sequence += 1
        return self.sequence

    def find(self, key: bytes) -> Entry | None:
        """What is known of a key."""
        oldest = self.clock() - REMEMBERED.total_seconds()
        while self.entries and next(iter(self.entries.values())).at < oldest:
            self.entries.popitem(last=False)
        return self.entries.get(key)

    def take(self, key: bytes, digest: bytes) -> None:
        """Hold a key for a request that is on its way."""
        self.entries[key] = Entry(digest, self.clock())

    def drop(self, key: bytes) -> None:
        """Let go of a key whose request appended nothing."""
        self.entries.pop(key, None)

    def pages(self, taken: Sequence[Taken], since: Mapping[str, Mapping[int, int]]) -> list[Event]:
        """What an append writes of its keys, and of the answers to those before."""
        if not taken and not self._unwritten:
            return []
        answered, pages = list(self._unwritten.items()), []
        for low in range(0, max(len(taken), len(answered)), _CHUNK):
            part = taken[low : low + _CHUNK]
            told = {topic: dict(found) for topic, found in since.items() if any(each.topic == topic for each in part)}
            pages.append(Event(msgspec.msgpack.encode(_Page(list(part), told, dict(answered[low : low + _CHUNK])))))
        return pages

    def answer(self, answers: Mapping[bytes, Position]) -> None:
        """Know the answers to the keys of an append, which wrote all answers from before it."""
        self._unwritten = dict(answers)
        for key, position in answers.items():
            if (entry := self.entries.get(key)) is not None:
                entry.answer = position

    def close(self) -> None:
        """Write the answers that are not written yet, so that the next server need not look for them."""
        if self._unwritten:
            pages = self.pages([], {})
            self.log.append_all({self.topic: pages}, producer=self.producer, sequence=self.next_sequence())
            self._unwritten = {}

    def _begin(self) -> int:
        try:
            self.log.topic(self.topic)
        except UnknownTopic:
            with contextlib.suppress(TopicExists):  # another server of this name was faster; one of us will take over
                self.log.create_topic(self.topic, 1, TopicSettings(retention=REMEMBERED * 2))
        before = self.log.last_sequence(self.topic, self.producer)
        sequence = (0 if before is None else before) + _STEP
        if not self.log.renumber(self.topic, self.producer, sequence, after=before):
            raise LogUnavailable(
                f"another server called {self.name} has just begun on this log", hint="let one run, or --name another"
            )
        return sequence

    def _read(self) -> None:
        """Read the topic's pages, then the events of requests without an answer."""
        start = self.log.offsets_at(self.topic, datetime.fromtimestamp(self.clock(), UTC) - REMEMBERED)
        end = self.log.bounds(self.topic)[0].end
        lacking: dict[bytes, tuple[Taken, Mapping[int, int]]] = {}
        with self.log.reader(self.topic, start) as reader:
            while reader.positions.get(0, end) < end:
                for record in reader.poll(1000, timeout=1.0):
                    page = msgspec.msgpack.decode(record.value or b"", type=_Page)
                    for taken in page.taken:
                        self.entries[taken.key] = Entry(taken.digest, record.appended / 1000)
                        lacking[taken.key] = taken, page.since.get(taken.topic, {})
                    for key, position in page.answered.items():
                        lacking.pop(key, None)
                        if key in self.entries:
                            self.entries[key].answer = position
        if lacking:
            self.answer(find_events(self.log, lacking))


def find_events(log: Log, lacking: Mapping[bytes, tuple[Taken, Mapping[int, int]]]) -> dict[bytes, Position]:
    """Where the events of requests are, by their headers, from these offsets on; without offsets if they are not all there."""
    places: _Places = {(key, taken.sequence): {} for key, (taken, _) in lacking.items()}
    since: dict[str, dict[int, int]] = {}
    for taken, offsets in lacking.values():
        for partition, offset in offsets.items():
            found = since.setdefault(taken.topic, {})
            found[partition] = min(offset, found.get(partition, offset))
    for topic, start in since.items():
        try:
            _scan(log, topic, start, places)
        except (UnknownTopic, OffsetOutOfRange):
            continue  # deleted meanwhile: that they were appended is known, where is not
    return {key: _position(taken.count, places[key, taken.sequence]) for key, (taken, _) in lacking.items()}


def _scan(log: Log, topic: str, start: Mapping[int, int], places: _Places) -> None:
    ends = {partition: bound.end for partition, bound in log.bounds(topic).items() if partition in start}
    with log.reader(topic, dict(start), partitions=list(start)) as reader:
        while any(position < ends[partition] for partition, position in reader.positions.items()):
            for record in reader.poll(1000, timeout=1.0):
                for name, value in record.headers:
                    said = _SAID.fullmatch(value) if name == HEADER else None  # others may write it too
                    if said is None:
                        continue
                    key, sequence, place = bytes.fromhex(said[1].decode()), int(said[2]), int(said[3])
                    if (found := places.get((key, sequence))) is not None:
                        found[place] = record.partition, record.offset


def _position(count: int, found: Mapping[int, tuple[int, int]]) -> Position:
    if len(found) < count:
        return Position((), None)
    return Position(tuple(found[i][0] for i in range(count)), tuple(found[i][1] for i in range(count)))
