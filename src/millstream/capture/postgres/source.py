"""PostgreSQL as a source of changes: tables, a snapshot, and then what a replication slot gives, transaction by transaction.

The slot keeps what was not acknowledged, however long a capture is down, and nothing is acknowledged that its reader has not. What a
position says is held against the server whenever reading begins: what has a gap is an error, never a gap.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta

from millstream.address import parse_postgres
from millstream.capture.contract import Position, Remembered, Source, Table, Transaction
from millstream.capture.postgres.captured import REWRITES, Captured
from millstream.capture.postgres.position import At, lsn_of, read_position
from millstream.capture.postgres.publication import (
    check_publication,
    check_same,
    check_slot,
    drop_slot,
    make_publication,
    make_slot,
    name_of,
    peeked,
    slot_is_free,
    slot_is_lost,
)
from millstream.capture.postgres.server import Ask, Server, quoted, undecodable
from millstream.capture.postgres.settings import beat_of, check_settings, check_system, end_of, end_of_commits, identify
from millstream.capture.postgres.snapshot import PostgresSnapshot
from millstream.capture.postgres.stream import NOTHING, Stream
from millstream.capture.postgres.tables import Described, names_of, read_tables
from millstream.capture.postgres.transactions import Transactions
from millstream.capture.postgres.types import Types
from millstream.errors import CaptureError, CaptureUnavailable, ConfigError

PATIENCE = timedelta(seconds=60)
"""How long a server that was there may be away, as in a restart."""
_LINGERS = 10.0
"""Seconds for which a slot may be held by a reader that is gone."""
_TELL = 0.5
"""Seconds after which a caller is told that there is nothing, or nothing of ours."""
_LOOK = 10.0
"""Seconds after which the publication is looked at again, and a position without changes is told."""
_FAR = 16 << 20
"""Bytes of the write-ahead log after which such a position is told earlier."""
_PEEKED = 10_000
"""Messages of a slot that are looked at without taking them, at most."""


class PostgresSource(Source):
    """Tables of one database of a PostgreSQL server.

    :param address: ``postgresql://USER@HOST:PORT/DATABASE``, secrets by reference
    :param tables: names, with a schema or in that of the address
    :param name: that of the capture; its slot and publication are called ``millstream_NAME``
    :param allow: ``rewrites``: go on where a table was changed so that its rows may be others than were told
    :param streaming: let large transactions come while they are open, so that the server need not keep them in files of its own
    :param rows: how many rows of a snapshot come at once
    :param patience: how long a server that was there may be away
    """

    connector = "postgresql"

    def __init__(
        self,
        address: str,
        tables: Sequence[str],
        name: str,
        *,
        allow: Collection[str] = (),
        streaming: bool = False,
        rows: int = 2000,
        patience: timedelta = PATIENCE,
    ) -> None:
        if unknown := set(allow) - {REWRITES}:
            raise ConfigError(f"capture: found {sorted(unknown)} allowed, expected {REWRITES!r}")
        parsed = parse_postgres(address)
        self._server = Server(parsed)
        self._names = names_of(tables, parsed.schema)
        self._allow, self._rows, self._patience = frozenset(allow), rows, patience.total_seconds()
        self._slot, self._streaming = name_of(name), streaming
        self._types = Types()
        self._remembered: Remembered | None = None
        self._stream: Stream | None = None
        self._acknowledged = 0
        self._end = 0

    def tables(self) -> tuple[Table, ...]:
        """The captured tables as they are now."""
        with self._server.asking() as ask:
            return tuple(each.table for each in self._described(ask))

    def prepare(self, after: Position | None) -> None:
        """Make the publication and the slot, or see that they are there and have what came after the position."""
        at = read_position(after) if after is not None else None
        with self._server.asking() as ask:
            check_settings(ask)
            tables = self._described(ask)
            with self._server.asking(replication=True) as replication:
                if at is not None:
                    check_system(replication, at)
                    check_slot(ask, self._slot, at)
                    check_publication(ask, self._slot, [each for each in tables if each.table.full_name in at.tables])
                make_publication(ask, self._slot, tables)
                publication, numbers = check_publication(ask, self._slot, tables)
                if at is not None:
                    check_same(at, publication, numbers)
                    return
                lost = slot_is_lost(ask, self._slot)
                if lost:
                    drop_slot(ask, self._slot)
                if lost is not False:
                    make_slot(replication, self._slot)
                check_slot(ask, self._slot, None)
        self._wait()

    def snapshot(self, tables: Sequence[Table]) -> PostgresSnapshot:
        """Begin to read what is there now. The slot must be there: what it keeps reaches back to before the snapshot."""
        with self._server.asking() as ask:
            snapshot = PostgresSnapshot(self._server, tables, self._at(ask).said, rows=self._rows)
            try:
                snapshot.check(read_tables(ask, [(each.schema, each.name) for each in tables], self._types))
            except BaseException:
                snapshot.close()
                raise
        return snapshot

    def changes(self, after: Position) -> Iterator[Transaction | None]:
        """What was committed after a position, without end. A connection that breaks is made again, from the last transaction on."""
        at = read_position(after)
        asking: list[Ask] = []
        captured = Captured(self._types, self._allow, lambda: asking[-1])
        reader = Transactions(captured.mapped, at, self._remembered)
        deadline: float | None = None
        while True:
            try:
                with self._server.asking() as ask:
                    asking[:] = [ask]
                    for each in self._read(reader, captured, ask):
                        deadline = None
                        yield each
            except CaptureUnavailable:
                deadline = deadline or time.monotonic() + self._patience
                if time.monotonic() > deadline:
                    raise
            except CaptureError as error:
                if not (self._streaming and undecodable(error)):
                    raise
                self._streaming = False
            reader.restarted()
            yield None
            time.sleep(0.2)

    def acknowledge(self, position: Position) -> None:
        """Everything up to there is in the log: the server may forget it, and hears so within a second."""
        self._acknowledged = max(self._acknowledged, lsn_of(position["lsn"]))
        if self._stream is not None:
            self._stream.acknowledge(self._acknowledged)

    def remember(self, remembered: Remembered) -> None:
        """Ask this for values that lie out of line and were not touched."""
        self._remembered = remembered

    def end(self) -> Position:
        """Where the database is now; no open transaction is waited for. Who reads changes is told when it has come there."""
        with self._server.asking() as ask:
            at = self._at(ask)
            self._end = end_of_commits(ask)
        return at.said(self._end)

    def is_quiet(self, after: Position, until: Position) -> bool:
        """Whether the slot has nothing of ours between them; False while another process reads it.

        The log grows where nobody writes too, as by a checkpoint or a snapshot: so a position that is behind says nothing.
        """
        try:
            with self._server.asking() as ask:
                captured = Captured(self._types, self._allow, lambda: ask)
                captured.described(self._described(ask))
                reader = Transactions(captured.mapped, read_position(after))
                messages = peeked(ask, self._slot, lsn_of(until["lsn"]), _PEEKED)
                return len(messages) < _PEEKED and all(reader.read(each) is None for each in messages)
        except CaptureUnavailable:
            return False

    def remove(self) -> None:
        """Drop the slot, which else keeps the write-ahead log for ever, and the publication."""
        self.close()
        with self._server.asking() as ask:
            drop_slot(ask, self._slot)
            ask(f"DROP PUBLICATION IF EXISTS {quoted(self._slot)}")

    def close(self) -> None:
        """Let go of the connections, after a last word about what was acknowledged."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _wait(self) -> None:
        """A reader that was killed is let go of by the server a moment later; another capture is not."""
        deadline = time.monotonic() + _LINGERS
        while True:
            with self._server.asking() as ask:
                if slot_is_free(ask, self._slot, last=time.monotonic() > deadline):
                    return
            time.sleep(0.2)

    def _at(self, ask: Ask) -> At:
        """What a position says beside an LSN; an error if slot or publication is not there."""
        with self._server.asking(replication=True) as replication:
            system, timeline = identify(replication)
        check_slot(ask, self._slot, None)
        publication, numbers = check_publication(ask, self._slot, self._described(ask))
        return At(system, timeline, 0, publication, numbers)

    def _described(self, ask: Ask) -> tuple[Described, ...]:
        return read_tables(ask, self._names, self._types)

    def _checked(self, ask: Ask, reader: Transactions, captured: Captured) -> None:
        """See that tables and publication are there; positions name them from here on."""
        tables = self._described(ask)
        publication, numbers = check_publication(ask, self._slot, tables)
        check_same(reader.at, publication, numbers)
        reader.named(publication, numbers)
        captured.described(tables)

    def _read(self, reader: Transactions, captured: Captured, ask: Ask) -> Iterator[Transaction | None]:
        """Read on over one connection."""
        with self._server.asking(replication=True) as replication:
            check_system(replication, reader.at)
        check_slot(ask, self._slot, reader.position)
        self._checked(ask, reader, captured)
        stream = Stream(self._server, self._slot, reader.lsn, beat_of(ask), streaming=self._streaming)
        stream.acknowledge(self._acknowledged)
        self._stream = stream
        try:
            yield from self._told(reader, captured, ask, stream)
        finally:
            stream.close()
            if self._stream is stream:
                self._stream = None

    def _told(self, reader: Transactions, captured: Captured, ask: Ask, stream: Stream) -> Iterator[Transaction | None]:
        told = looked = asked = time.monotonic()
        place, target = reader.lsn, -1
        while True:
            heard = stream.read(_TELL / 4)
            for body in heard.messages:
                found = reader.read(body)
                if found is not None:
                    told, place = time.monotonic(), reader.lsn
                    yield found
            if heard.end:
                reader.looked(heard.end)
            now, tell = time.monotonic(), heard.asked or reader.lsn - place >= _FAR or place < self._end <= reader.lsn
            if now - looked >= _LOOK:
                self._checked(ask, reader, captured)
                looked, tell = now, True
            if (tell and reader.lsn > place) or now - told >= 2 * _TELL:
                told, place = now, reader.lsn
                yield reader.here()
            if heard.asked:  # as when the server stops: it waits until it hears that we have everything
                stream.say()
            if 0 <= target <= reader.lsn:
                told, target = now, -1
                yield None
            elif heard is NOTHING and (target < 0 or now - asked >= _TELL):
                target, asked = end_of(ask), now
                stream.say(ask=True)
