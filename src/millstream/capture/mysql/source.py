"""MariaDB and MySQL as a source of changes: tables, a snapshot, and then what the binary log says, transaction by transaction.

Nothing is made in the database and nothing kept there: where reading goes on is known by whoever reads. So the server must keep its
binary log for longer than a capture may be down; a position that it no longer has is an error, never a gap.
"""

from __future__ import annotations

import secrets
import time
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from millstream.address import parse_mysql
from millstream.capture.contract import Position, Source, Table, Transaction, closed
from millstream.capture.mysql.captured import CASCADES, REWRITES, Captured
from millstream.capture.mysql.charsets import Charsets, read_charsets
from millstream.capture.mysql.position import At, Place, read_position
from millstream.capture.mysql.server import Server
from millstream.capture.mysql.settings import binlog_end, check_reaches, check_settings, folds, server_id
from millstream.capture.mysql.snapshot import MysqlSnapshot
from millstream.capture.mysql.stream import HEARTBEATS, Stream
from millstream.capture.mysql.tables import check_cascades, count_of, names_of, read_tables
from millstream.capture.mysql.transactions import Transactions
from millstream.capture.mysql.values import Zeros
from millstream.errors import CaptureError, CaptureUnavailable, ConfigError

PATIENCE = timedelta(seconds=60)
"""How long a server that was there may be away, as in a restart."""
_TELL = 1.0
"""Seconds after which a caller is told that there is nothing, or nothing of ours."""
_QUIET = 10.0
"""Seconds for which is looked whether others alone have written."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a server is, for as long as a source is open."""

    mariadb: bool
    server: str
    folds: bool
    charsets: Charsets


class MysqlSource(Source):
    """Tables of one server of MariaDB or MySQL.

    :param address: ``mysql://USER@HOST:PORT/DATABASE``, secrets by reference
    :param tables: names, with a database or in that of the address
    :param name: that of the capture: two captures of one server need different ones
    :param allow: ``cascades``, tables whose rows a foreign key changes; ``rewrites``, statements that change rows without saying which
    :param replica: the number under which we are a replica, unique among those of the server; made of the name if it is not given
    :param rows: how many rows of a snapshot come at once
    :param patience: how long a server that was there may be away
    """

    def __init__(
        self,
        address: str,
        tables: Sequence[str],
        name: str,
        *,
        allow: Collection[str] = (),
        replica: int | None = None,
        rows: int = 2000,
        patience: timedelta = PATIENCE,
    ) -> None:
        if unknown := set(allow) - {CASCADES, REWRITES}:
            raise ConfigError(f"capture: found {sorted(unknown)} allowed, expected {CASCADES!r} or {REWRITES!r}")
        parsed = parse_mysql(address)
        self._server = Server(parsed)
        self._names = names_of(tables, parsed.database)
        self._allow, self._rows, self._patience = frozenset(allow), rows, patience.total_seconds()
        self._replica = replica or 1 << 31 | zlib.crc32(f"millstream {name}".encode()) >> 1
        self._zeros = Zeros()
        self._facts: _Facts | None = None
        self._streams: list[Stream] = []

    @property
    def connector(self) -> str:  # type: ignore[override]
        """``mariadb`` or ``mysql``: what the server says that it is."""
        return "mariadb" if self._known().mariadb else "mysql"

    @property
    def zero_dates(self) -> int:
        """How many dates that are none, as ``0000-00-00``, became null since this source was opened."""
        return self._zeros.count

    def tables(self) -> tuple[Table, ...]:
        """The captured tables as they are now."""
        charsets = self._known().charsets
        with self._server.asking() as ask:
            return tuple(table for table, _ in read_tables(ask, self._names, charsets))

    def prepare(self, after: Position | None) -> None:
        """See that the server writes what is needed, and still has what came after the position; nothing is made."""
        at = read_position(after) if after is not None else None
        with self._server.asking() as ask:
            check_settings(ask, self._names)
            check_cascades(ask, self._names, self._allow)
            if at is not None:
                check_reaches(ask, at)
            start = at.start if at else Place(*binlog_end(ask)[:2], 0)
        self._place(start)

    def snapshot(self, tables: Sequence[Table]) -> MysqlSnapshot:
        """Begin to read what is there now."""
        facts = self._known()
        with self._server.asking() as ask:
            counts = {table: count_of(ask, table) for table in tables}

        def place_of(file: str, byte: int) -> Position:
            return At(facts.server, self._place(Place(file, byte, 0))).said()

        snapshot = MysqlSnapshot(self._server, counts, place_of, self._zeros, mariadb=facts.mariadb, rows=self._rows)
        try:  # after it began: a table that changes from here on is an error of the server
            with self._server.asking() as ask:
                names = [(table.schema, table.name) for table in tables]
                snapshot.types = dict(read_tables(ask, names, facts.charsets))
        except BaseException:
            snapshot.close()
            raise
        return snapshot

    def changes(self, after: Position) -> Iterator[Transaction | None]:
        """What was committed after a position, without end. A connection that breaks is made again, from the last transaction on."""
        reader = self._reader(after)
        deadline: float | None = None
        while True:
            try:
                for each in self._read(reader, self._replica):
                    deadline = None
                    yield each
            except CaptureUnavailable:
                deadline = deadline or time.monotonic() + self._patience
                if time.monotonic() > deadline:
                    raise
            reader.restarted()
            yield None
            time.sleep(0.2)

    def is_quiet(self, after: Position, until: Position) -> bool:
        """Whether the binary log has nothing of ours between them; False where that takes longer than some seconds to read.

        Other databases of a server write into the same log: so a position that is behind says nothing.
        """
        reader, end = self._reader(after), read_position(until).place.order
        deadline = time.monotonic() + _QUIET
        try:
            with closed(self._read(reader, _other_replica())) as reading:
                for each in reading:
                    if each is not None and any(True for _ in each.changes):
                        return False
                    if reader.at.place.order >= end:
                        return True
                    if time.monotonic() > deadline:
                        return False
        except (CaptureUnavailable, CaptureError):  # what stops a capture is told to it
            return False
        return False

    def acknowledge(self, position: Position) -> None:
        """Nothing: the server keeps its binary log by time or size, whoever has read it."""

    def remove(self) -> None:
        """Nothing: there is nothing of ours in the database."""

    def close(self) -> None:
        """Let go of the connections."""
        for each in self._streams:
            each.close()
        self._streams.clear()

    def _reader(self, after: Position) -> Transactions:
        facts = self._known()
        captured = Captured(self._names, facts.folds, self._allow, self._check_cascades)
        return Transactions(captured, facts.charsets, mariadb=facts.mariadb, at=read_position(after), zeros=self._zeros)

    def _read(self, reader: Transactions, replica: int) -> Iterator[Transaction | None]:
        """Read on over one connection."""
        with self._server.asking() as ask:
            check_reaches(ask, reader.at)
        stream = Stream(self._server, replica, reader.at.start)
        self._streams.append(stream)
        told, place = time.monotonic(), reader.at.place
        try:
            for event in stream.events():
                found = reader.read(event)
                idle = event.kind in HEARTBEATS
                if found is None and not idle and time.monotonic() - told < _TELL:
                    continue
                if found is None and reader.at.place != place:
                    found = reader.here()
                told, place = time.monotonic(), reader.at.place
                yield found
        finally:
            stream.close()
            if stream in self._streams:
                self._streams.remove(stream)

    def _place(self, start: Place) -> Place:
        """See that reading can begin there, by the rights and by the file; and when that was made."""
        # Under a number of its own: the server would end the connection of whoever reads under ours, which may be this capture.
        stream = Stream(self._server, _other_replica(), start)
        try:
            return stream.begin()
        finally:
            stream.close()

    def _check_cascades(self) -> None:
        with self._server.asking() as ask:
            check_cascades(ask, self._names, self._allow)

    def _known(self) -> _Facts:
        if self._facts is None:
            with self._server.asking() as ask:
                self._facts = _Facts(ask.mariadb, server_id(ask), folds(ask), read_charsets(ask, ask.mariadb))
        return self._facts


def _other_replica() -> int:
    """A number under which nobody reads."""
    return 1 << 30 | secrets.randbits(30)
