"""The rows of a snapshot on their way into the log, while the stream of changes goes on.

Invariants: rows go in when the stream has come to the snapshot's position, never before; a row whose key the stream has touched since is passed
over; at the end of a table every key that the topic held and the snapshot does not have is deleted. So what a snapshot that was broken off
has left behind, and what went meanwhile, is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import NamedTuple

from millstream.capture.appender import Unit
from millstream.capture.contract import Change, Position, Source, Table
from millstream.capture.envelope import Origin
from millstream.capture.order import order_of
from millstream.capture.writing import Writer

_SWEPT_AT_ONCE = 2000


class Piece(NamedTuple):
    """A piece of a table; ``rows`` have been read so far, of about ``total``. The last one of a table has what was swept."""

    table: Table
    unit: Unit
    rows: int
    total: int | None
    last: bool


class Rows:
    """The rows of tables at one position. ``live`` says which keys a topic holds, with all that was put before.

    Rows hold from ``since`` on; those of tables that are read ``again`` from now on, behind the changes that the topic has.
    """

    def __init__(
        self,
        source: Source,
        name: str,
        tables: Sequence[Table],
        writer: Writer,
        live: Callable[[str], dict[bytes, None]],
        since: datetime,
        again: Collection[str],
    ) -> None:
        self.tables = {table.full_name: table for table in tables}
        self._writer, self._live = writer, live
        self._touched: dict[str, set[bytes]] = {each: set() for each in self.tables}
        self._emptied: set[str] = set()
        self._open = ExitStack()
        self._snapshot = self._open.enter_context(source.snapshot(tables))
        self.position: Position = self._snapshot.position
        now = datetime.now(UTC)
        origins = [
            Origin(source.connector, name, self.position, "", at, read=True, committed=now) for at in (since, now)
        ]
        self._origins = {each: origins[each in again] for each in self.tables}
        self._swept = Origin(source.connector, name, self.position, "", None, committed=now)

    def is_ahead_of(self, position: Position) -> bool:
        """Whether the stream has still to come to where these rows are."""
        return order_of(position) < order_of(self.position)

    def touch(self, table: Table, keys: Sequence[bytes]) -> None:
        """The stream, beyond our position, has changed rows with these keys."""
        if table.full_name in self._touched:
            self._touched[table.full_name].update(keys)

    def empty(self, table: Table) -> None:
        """The stream, beyond our position, has taken all rows."""
        self._emptied.add(table.full_name)

    def pieces(self) -> Iterator[Piece]:
        """Everything, table by table."""
        for table in self.tables.values():
            yield from self._table(table)

    def _table(self, table: Table) -> Iterator[Piece]:
        stale, touched = self._stale(table), self._touched[table.full_name]
        count, total, origin = 0, self._snapshot.count(table), self._origins[table.full_name]
        for piece in self._snapshot.rows(table):
            unit = Unit()
            for row in piece:
                if table.full_name in self._emptied:
                    break
                change = Unit()
                keys = self._writer.add(change, Change(table, "r", None, row), origin)
                for key in keys:
                    stale.pop(key, None)
                if not touched.intersection(keys):
                    unit.take(change)
            count += len(piece)
            yield Piece(table, unit, count, total, last=False)
        unit = Unit()
        for key in stale:
            if key not in touched and table.full_name not in self._emptied:
                self._writer.delete(unit, table, key, self._swept)
            if unit.changes >= _SWEPT_AT_ONCE:
                yield Piece(table, unit, count, total, last=False)
                unit = Unit()
        yield Piece(table, unit, count, total, last=True)

    def _stale(self, table: Table) -> dict[bytes, None]:
        """What the topic holds before any row of ours."""
        return self._live(self._writer.target(table).topic)

    def close(self) -> None:
        """Let go of the snapshot."""
        self._open.close()
