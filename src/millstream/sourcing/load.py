"""Loading an aggregate: the newest snapshot, and the events after it, found by the index on the key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeAlias

from millstream.event import Record, TopicPartition, to_millis
from millstream.log.contract import Log
from millstream.sourcing.decider import Decider, S
from millstream.sourcing.envelope import Coded, version_in
from millstream.sourcing.snapshots import Snapshots

Position: TypeAlias = dict[str, dict[int, int]]
"""Topic → partition → the next offset: where a reader has seen something."""

_PAGE = 10_000


@dataclass(slots=True)
class Aggregate(Generic[S]):
    """An aggregate as it was when it was loaded.

    :param state: its state
    :param version: how many events it has had
    :param last: the offset of its last event; None if it has had none
    :param read: how many records were read for it
    :param kept: the version of its newest snapshot
    """

    state: S
    version: int = 0
    last: int | None = None
    read: int = 0
    kept: int = 0


class Loader(Generic[S]):
    """Loads aggregates of one kind."""

    def __init__(self, topic: str, decider: Decider[S], coded: Coded, snapshots: Snapshots[S] | None) -> None:
        self.topic, self._decider, self._coded, self._snapshots = topic, decider, coded, snapshots

    def load(self, log: Log, key: bytes, *, version: int | None = None, at: datetime | None = None) -> Aggregate[S]:
        """The aggregate as it is now, or was at a version or a time, by append time."""
        found = Aggregate(self._decider.initial)
        until = None if at is None else to_millis(at)
        if self._snapshots is not None and (kept := self._snapshots.newest(log, key, version, until)) is not None:
            found = Aggregate(kept.state, kept.version, kept.offset, 1, kept.version)
        for record in records_of(log, self.topic, key, -1 if found.last is None else found.last):
            found.read += 1
            number = version_in(record)
            if (version is not None and number > version) or (until is not None and record.appended > until):
                break
            found.state = self._decider.evolve(found.state, self._coded.unpack(record))
            found.version, found.last = number, record.offset
        return found


def records_of(log: Log, topic: str, key: bytes, after: int = -1) -> Iterator[Record]:
    """The records of a key after an offset, page by page."""
    while page := log.of_key(topic, key, after=after, limit=_PAGE):
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1].offset


def records_in(log: Log, topic: str, partition: int) -> Iterator[Record]:
    """Every record of a partition that is there now."""
    bounds = log.bounds(topic)[partition]
    offset = bounds.start
    while offset < bounds.end and (page := log.read(topic, partition, offset, _PAGE)):
        yield from (record for record in page if record.offset < bounds.end)
        offset = page[-1].offset + 1


def is_read(log: Log, group: str, topic: str) -> bool:
    """Whether a group has read a topic to its end, of whichever member's partitions."""
    offsets = next((each.offsets for each in log.groups() if each.name == group), {})
    return all(
        bounds.start == bounds.end
        or not log.read(topic, number, offsets.get(TopicPartition(topic, number), bounds.start), 1)
        for number, bounds in log.bounds(topic).items()
    )
