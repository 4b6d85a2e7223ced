"""SQLite as a source of changes: triggers write them into a table of the same file, and whoever captures reads them from there.

A change is committed with the transaction that made it, whichever process wrote, and is kept until it was acknowledged: a capture may be
down for as long as there is room. Where reading goes on is known by whoever reads; the file says whether it still has what comes next.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from millstream.address import parse_log
from millstream.capture.contract import Position, Source, Table, Transaction
from millstream.capture.sqlite.alter import alter
from millstream.capture.sqlite.changes import Drain, Layout, layout_of
from millstream.capture.sqlite.file import SHORT, Busy, Claim, Db, File
from millstream.capture.sqlite.position import At, read_position
from millstream.capture.sqlite.registry import Registry
from millstream.capture.sqlite.shape import REPLACES, names_of, read_shape
from millstream.capture.sqlite.snapshot import SqliteSnapshot
from millstream.errors import ConfigError

POLL = timedelta(milliseconds=20)
_TELL = 0.5
"""Seconds after which a caller is told that there is nothing."""
_FORGET = 1.0
"""Seconds after which acknowledged changes are deleted, and not before."""
_FORGET_ROWS = 2000
"""How many are deleted in one transaction: writers wait for that long."""


class SqliteSource(Source):
    """Tables of one SQLite file, which another process writes.

    Never to be used in the process of the application: two SQLite libraries in one process lose each other's locks.

    :param address: ``sqlite:PATH`` of a file that is there
    :param tables: their names
    :param name: that of the capture: two captures of one file need different ones
    :param allow: ``replaces``, tables with unique keys by which a REPLACE would delete rows unseen
    :param poll: how often is looked whether something was committed
    :param rows: how many rows of a snapshot come at once
    """

    connector = "sqlite"

    def __init__(
        self,
        address: str,
        tables: Sequence[str],
        name: str,
        *,
        allow: Collection[str] = (),
        poll: timedelta = POLL,
        rows: int = 2000,
    ) -> None:
        if unknown := set(allow) - {REPLACES}:
            raise ConfigError(f"capture: found {sorted(unknown)} allowed, expected {REPLACES!r}")
        if not name or not all(each.isalnum() or each in "_-." for each in name):
            raise ConfigError(f"capture: found the name {name!r}, expected letters, digits, '_', '-' and '.'")
        parsed = parse_log(address, "capture")
        if not parsed.embedded:
            raise ConfigError(f"capture: found {address!r}, expected sqlite:PATH")
        self._file = File(Path(parsed.place))
        self._names, self._allow, self._rows, self._poll = (
            names_of(tables),
            frozenset(allow),
            rows,
            poll.total_seconds(),
        )
        self._registry = Registry(str(self._file.path), name, self._allow)
        self._claim = Claim(self._file.path, name.lower())
        self._layouts: dict[int, Layout] = {}
        self._checked: tuple[int, int] | None = None
        self._known: tuple[int, int] | None = None
        self._acknowledged: At | None = None
        self._forgotten = 0.0

    def tables(self) -> tuple[Table, ...]:
        """The captured tables as they are now."""
        with self._file.read() as db:
            return tuple(read_shape(db, name, self._allow).table for name in self._names)

    def prepare(self, after: Position | None) -> None:
        """Make the triggers, or see that they are there and were since the position. From the beginning everything is made anew."""
        at = read_position(after) if after is not None else None
        self._claim.take()
        with self._file.write() as db:
            if at is None:
                self._registry.install(db)
            else:
                self._registry.check_reaches(db, at)
            live = self._registry.live(db)
            self._registry.check_tables(db, [name for name in self._names if name.lower() in live])
            kept = set()
            wanted = {name.lower() for name in self._names}
            for name, known in live.items():
                if name in wanted and read_shape(db, name, self._allow) == known.shape:
                    kept.add(name)
                else:  # no longer named; or what made its triggers read each row again is gone
                    self._registry.unwatch(db, known)
            for name in self._names:
                if name.lower() not in kept:
                    self._registry.watch(db, name)

    def snapshot(self, tables: Sequence[Table]) -> SqliteSnapshot:
        """Begin to read what is there now."""
        return SqliteSnapshot(self._file, self._registry, tables, self._rows)

    def changes(self, after: Position) -> Iterator[Transaction | None]:
        """What was committed after a position, without end: whole transactions, as many as there are when is looked, told as one."""
        at = read_position(after)
        seen: tuple[int, int] | None = None
        told = 0.0
        while True:
            self._file.check_place()
            try:
                now = self._file.version()
                end = self._end(at) if now != seen else at
            except Busy:  # without a write-ahead log, while a large transaction is written
                yield None
                continue
            seen = now
            if end.seq > at.seq:
                changes = Drain(self._file, self._registry, self._read_layouts, at, end)
                yield Transaction(end.said(), end.time, f"{end.capture}:{end.seq}", changes)
                at, told = end, 0.0
            elif time.monotonic() - told >= _TELL:
                told = time.monotonic()
                self._forget()
                yield None
            else:
                time.sleep(self._poll)

    def acknowledge(self, position: Position) -> None:
        """Changes up to there may be forgotten; that is done once a second, and when the source is closed."""
        self._acknowledged = read_position(position)
        self._forget()

    def alter(self, statement: str) -> None:
        """Run a statement that changes the schema, so that captures of this name go on over it without a new snapshot.

        Nobody can write meanwhile. Rows that have something in a column that came, or that has another name, are told again.
        """
        with self._file.write() as db:
            self._registry.state(db)
            alter(db, self._registry, statement)

    def remove(self) -> None:
        """Take triggers and tables of this capture out of the file; who still reads it finds a gap."""
        with self._file.write() as db:
            self._registry.remove(db)
        self._acknowledged = None
        self._claim.forget()

    def close(self) -> None:
        """Forget what was acknowledged, and let go of the file."""
        try:
            self._forgotten = 0.0
            self._forget()
        finally:
            self._file.let_go()
            self._claim.leave()

    def _end(self, at: At) -> At:
        """The last change that is committed; an error if what lies between is not all that was changed."""
        with self._file.read(SHORT) as db:
            self._registry.check_reaches(db, at)
            schema = self._file.opened, db.pragma("schema_version")
            if schema != self._checked:
                self._registry.check_tables(db, self._names)
                self._checked = schema
            return self._registry.end(db)

    def _read_layouts(self, db: Db) -> Mapping[int, Layout]:
        """How rows of our tables are read, by the numbers under which they were registered."""
        schema = self._file.opened, db.pragma("schema_version")
        if schema != self._known:
            wanted = {name.lower() for name in self._names}
            found = self._registry.registered(db)
            self._layouts = {each.number: layout_of(each.shape) for each in found if each.shape.name.lower() in wanted}
            self._known = schema
        return self._layouts

    def _forget(self) -> None:
        """Delete what was acknowledged, in short transactions; not now if somebody is writing for long."""
        upto = self._acknowledged
        if upto is None or time.monotonic() - self._forgotten < _FORGET:
            return
        with suppress(Busy):
            while self._acknowledged is not None:
                with self._file.write() as db:
                    if self._registry.forget(db, upto, _FORGET_ROWS):
                        self._acknowledged = None
        self._forgotten = time.monotonic()
