"""The rows of one transaction while its end is not known: as they came, in memory up to a bound and beyond it in a file.

What is held is read once, when the transaction has committed; a rollback, of all or to a savepoint, forgets.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from typing import IO

from millstream.capture.contract import Change, Table
from millstream.capture.mysql.rows import read_rows
from millstream.capture.mysql.table_map import Mapped

BOUND = 32 << 20
"""Bytes of rows above which a transaction is held in a file."""
EMPTIED = 0
_HEAD = struct.Struct("<BII")


class Held:
    """Events with rows of captured tables, in their order."""

    def __init__(self, bound: int = BOUND) -> None:
        self._bound = bound
        self._events: list[tuple[int, int, bytes]] = []
        self._mapped: list[Mapped] = []
        self._places: dict[int, int] = {}
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._in_file = 0
        self._ends = [0]
        self._savepoints: dict[str, int] = {}

    def __len__(self) -> int:
        return self._in_file + len(self._events)

    def add(self, kind: int, mapped: Mapped, body: bytes) -> None:
        """Hold an event."""
        place = self._places.get(id(mapped))
        if place is None:
            place = self._places[id(mapped)] = len(self._mapped)
            self._mapped.append(mapped)
        self._events.append((kind, place, body))
        self._bytes += len(body)
        if self._bytes > self._bound:
            self._spill()

    def empty(self, table: Table) -> None:
        """Hold that a table was emptied."""
        self.add(EMPTIED, Mapped(table, (), 0, 0), b"")

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

    def _read(self, kind: int, body: bytes, mapped: Mapped) -> Iterator[Change]:
        if kind == EMPTIED:
            return iter((Change(mapped.table, "t", None, None),))
        return read_rows(kind, body, mapped)

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
