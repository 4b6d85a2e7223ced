"""What a buffered producer keeps on disk while the log is slower than its caller, in a log of its own.

Invariant: a batch comes back as it was written, with its number, until it is in the log; so a repeat after a restart adds nothing.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from millstream.errors import TopicExists
from millstream.event import Event, Record, TopicPartition
from millstream.log.contract import Topic, TopicSettings
from millstream.log.embedded.batch import Batch
from millstream.log.embedded.engine import SqliteLog

_SPILL = TopicSettings(max_record_bytes=1 << 30)  # how large is too large is for the topic itself to say


class Spill:
    """Batches on disk, in order, in a log of their own; a header of each record names its batch."""

    def __init__(self, path: Path, limit: int) -> None:
        self._log = SqliteLog(path)
        with contextlib.suppress(TopicExists):
            self._log.create_topic("spill", settings=_SPILL)
        self._limit = limit
        self._place = TopicPartition("spill", 0)
        with self._log.store.read() as db:
            self._bytes = int(db.execute("SELECT sum(bytes) FROM partition").get)
        end = self._log.bounds("spill")[0].end
        self._offset = next((g.offsets.get(self._place, 0) for g in self._log.groups() if g.name == "sender"), 0)
        self.waiting = end - self._offset
        self.next_sequence = 0
        if self.waiting:
            sequence, count = _mark(self._log.read("spill", 0, end - 1, 1)[0])
            self.next_sequence = sequence + count + 1

    @property
    def full(self) -> bool:
        """Whether it has as many bytes as it may."""
        return self._bytes >= self._limit

    def check(self, event: Event) -> None:
        """Raise BadEvent now: in the file it would hold up everything behind it."""
        Batch(Topic("spill", 1, _SPILL), [event], 0)

    def add(self, events: list[Event], sequence: int) -> None:
        """Write a batch with its number."""
        mark = ("batch", f"{sequence}:{len(events)}".encode())
        self._log.append("spill", [event._replace(headers=(*event.headers, mark)) for event in events])
        self._bytes += sum(len(event.value or b"") + len(event.key or b"") for event in events)
        self.waiting += len(events)

    def next(self) -> tuple[list[Event], int]:
        """The batch to send next, exactly as it was written, and its number."""
        sequence, count = _mark(self._log.read("spill", 0, self._offset, 1)[0])
        records = self._log.read("spill", 0, self._offset, count)
        return [Event(r.value, r.key, r.time, r.headers[:-1]) for r in records], sequence

    def done(self, count: int) -> None:
        """Forget so many of the oldest events; the file begins anew when it is empty."""
        self._offset += count
        self.waiting -= count
        self._log.commit_group("sender", {self._place: self._offset})
        if not self.waiting:
            self._log.delete_topic("spill")
            self._log.create_topic("spill", settings=_SPILL)
            self._offset = self._bytes = 0

    def close(self) -> None:
        """Close the file; what is in it stays."""
        self._log.close()


def _mark(record: Record) -> tuple[int, int]:
    """The number and the size of the batch that a spilled record belongs to."""
    sequence, count = record.headers[-1][1].split(b":")
    return int(sequence), int(count)
