"""A topic as it grows, for many who follow it: one tail reads it, and all look into the same last records.

Invariant: memory does not grow with those who follow, nor with how slow they are. Whoever has fallen behind what the tail still has reads
the log at a place of its own until it is there again, in pieces; whoever's place the log does not have any more is told, never
moved silently.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from millstream.errors import MillstreamError
from millstream.event import Record
from millstream.log.contract import Log

KEPT_BYTES = 8 << 20
"""Bytes of records that a tail keeps, about."""
_POLL = 0.5  # seconds that the tail waits at most, before it looks whether anybody is left
_PIECE = 100  # records of one piece


@dataclass(frozen=True, slots=True)
class Piece:
    """Some records in order, and the offsets to go on from."""

    records: list[Record]
    offsets: dict[int, int]


class Tail:
    """The newest records of a topic, from when it began on. Begun, used and ended by an event loop; a thread of its own reads."""

    def __init__(self, log: Log, topic: str) -> None:
        self._log, self._topic = log, topic
        self._loop = asyncio.get_running_loop()
        self._records: deque[Record] = deque()
        self._bytes = 0
        self._first = 0  # the number of the oldest record that is kept, counted from the beginning of the tail
        self._floor: dict[int, int] = {}
        self._grown = asyncio.Event()
        self._ended = threading.Event()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self.error: MillstreamError | None = None
        self._thread = threading.Thread(target=self._run, name=f"millstream-follow-{topic}", daemon=True)
        self._thread.start()

    async def begun(self) -> None:
        """Wait until it is known from which offsets on it has everything."""
        await asyncio.shield(self._ready)

    def end(self) -> None:
        """Let the thread end."""
        self._ended.set()

    def wake(self) -> None:
        """Let those who wait for more look about."""
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()

    @property
    def floor(self) -> dict[int, int]:
        """The offsets from which on it has everything."""
        return dict(self._floor)

    def place(self, offsets: Mapping[int, int]) -> int | None:
        """The number of a record from which on all is kept that these offsets have not seen; None if it lacks some."""
        if any(offsets.get(partition, 0) < floor for partition, floor in self._floor.items()):
            return None
        return self._first

    async def next(self, place: int, offsets: dict[int, int], patience: float) -> tuple[int, Piece] | None:
        """The next piece from a place on, if it is still kept; an empty one if nothing came within ``patience`` seconds."""
        if place < self._first:
            return None
        if place == self._first + len(self._records):
            grown = self._grown
            try:
                async with asyncio.timeout(patience):
                    await grown.wait()
            except TimeoutError:
                return place, Piece([], offsets)
            if self.error is not None:
                raise self.error
            if place < self._first:
                return None
        at = place - self._first
        taken = [self._records[each] for each in range(at, min(at + _PIECE, len(self._records)))]
        new = [record for record in taken if record.offset >= offsets.get(record.partition, 0)]
        after = offsets | {record.partition: record.offset + 1 for record in new}
        return place + len(taken), Piece(new, after)

    def _run(self) -> None:
        try:
            with self._log.reader(self._topic, "latest") as reader:
                self._tell(self._begin, dict(reader.positions))
                while not self._ended.is_set():
                    if records := reader.poll(1_000, timeout=_POLL):
                        self._tell(self._grow, records)
        except MillstreamError as error:
            self._tell(self._fail, error)

    def _tell(self, what: object, *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what, *arguments)  # type: ignore[arg-type]

    def _begin(self, positions: dict[int, int]) -> None:
        self._floor = positions
        self._ready.set_result(None)

    def _grow(self, records: list[Record]) -> None:
        for record in records:
            self._records.append(record)
            self._bytes += _size(record)
        while self._bytes > KEPT_BYTES:
            old = self._records.popleft()
            self._bytes -= _size(old)
            self._first += 1
            self._floor[old.partition] = old.offset + 1
        self.wake()

    def _fail(self, error: MillstreamError) -> None:
        self.error = error
        if not self._ready.done():
            self._ready.set_exception(error)
        self.wake()


class Tails:
    """The tails of a server: one for each topic that somebody follows."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.ending = asyncio.Event()
        self._tails: dict[str, tuple[Tail, int]] = {}

    @property
    def followers(self) -> int:
        """How many follow something."""
        return sum(count for _, count in self._tails.values())

    def end(self) -> None:
        """Let all who follow come to an end."""
        self.ending.set()
        for tail, _ in self._tails.values():
            tail.wake()

    def enter(self, topic: str) -> Tail:
        """The tail of a topic for one more; :meth:`leave` it afterwards."""
        tail, count = self._tails.get(topic) or (Tail(self._log, topic), 0)
        if tail.error is not None:
            tail, count = Tail(self._log, topic), 0
        self._tails[topic] = tail, count + 1
        return tail

    def leave(self, topic: str, tail: Tail) -> None:
        """One less; the last one ends it."""
        current, count = self._tails.get(topic, (None, 0))
        if current is not tail:
            return
        if count > 1:
            self._tails[topic] = tail, count - 1
        else:
            del self._tails[topic]
            tail.end()


def read_piece(log: Log, topic: str, offsets: Mapping[int, int]) -> Piece:
    """The next records from a place on, out of the log; OffsetOutOfRange if it does not have them any more."""
    with log.reader(topic, dict(offsets)) as reader:
        records = reader.poll(_PIECE, timeout=_POLL)
        return Piece(records, dict(reader.positions))


def _size(record: Record) -> int:
    return 200 + len(record.value or b"") + len(record.key or b"") + sum(len(n) + len(v) for n, v in record.headers)
