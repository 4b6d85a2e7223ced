"""The rows of one transaction while its end is not known: as they came, in memory up to a bound and beyond it in a file.

What is held is read once, when the transaction has committed; a rollback, of all or to a savepoint, forgets. What an event is, the source
knows: here it is a number of 32 bits, what its bytes are read by, and the bytes.
"""

from __future__ import annotations

import struct
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Generic, TypeVar

from millstream.capture.contract import Change

M = TypeVar("M")

BOUND = 32 << 20
"""Bytes in memory above which a transaction is held in a file."""
_EVENT = 150
"""Bytes that an event takes beside its own."""
_HEAD = struct.Struct("<III")


class Held(Generic[M]):
    """Events with rows of captured tables, in their order; ``read`` makes changes of one."""

    def __init__(self, read: Callable[[int, bytes, M], Iterable[Change]], bound: int | None = None) -> None:
        self._read, self._bound = read, BOUND if bound is None else bound
        self._events: list[tuple[int, int, bytes]] = []
        self._mapped: list[M] = []
        self._places: dict[int, int] = {}
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._in_file = 0
        self._ends = array("q", [0])
        self._savepoints: dict[str, int] = {}

    def __len__(self) -> int:
        return self._in_file + len(self._events)

    def add(self, kind: int, mapped: M, body: bytes) -> None:
        """Hold an event."""
        place = self._places.get(id(mapped))
        if place is None:
            place = self._places[id(mapped)] = len(self._mapped)
            self._mapped.append(mapped)
        self._events.append((kind, place, body))
        self._bytes += len(body) + _EVENT
        if self._bytes > self._bound:
            self._spill()

    def savepoint(self, name: str) -> None:
        """Remember this place."""
        self._savepoints.pop(name, None)
        self._savepoints[name] = len(self)

    def back(self, name: str) -> None:
        """Forget what came behind the savepoint; one whose place is not known was before everything held."""
        self.cut(self._savepoints.get(name, 0))

    def cut(self, count: int) -> None:
        """Forget all but so many events."""
        if count >= self._in_file:
            del self._events[count - self._in_file :]
        else:
            self._events.clear()
            self._in_file = count  # those of the file are read in order, up to this
        self._savepoints = {name: place for name, place in self._savepoints.items() if place <= count}

    def changes(self) -> Iterator[Change]:
        """The changes, once."""
        try:
            if self._file is not None:
                self._file.seek(0)
                for _ in range(self._in_file):
                    kind, place, size = _HEAD.unpack(self._file.read(_HEAD.size))
                    yield from self._read(kind, self._file.read(size), self._mapped[place])
            for kind, place, body in self._events:
                yield from self._read(kind, body, self._mapped[place])
        finally:
            self.close()

    def close(self) -> None:
        """Forget everything."""
        self._events, self._in_file = [], 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="millstream-")  # noqa: SIM115  closed by close()
        self._file.seek(self._ends[self._in_file])
        del self._ends[self._in_file + 1 :]
        for kind, place, body in self._events:
            self._file.write(_HEAD.pack(kind, place, len(body)))
            self._file.write(body)
            self._ends.append(self._ends[-1] + _HEAD.size + len(body))
        self._in_file += len(self._events)
        self._events, self._bytes = [], 0
