"""The rows of tables at one place of the write-ahead log.

A temporary slot says the place and exports the snapshot that belongs to it: what was committed before is in the rows, what is committed after
comes from the slot of the capture, which was there before. So a first snapshot, a second one and one of an added table are the same, and none
has a gap. The tables are locked as a reader locks them: one that was rewritten or emptied since would look empty to an older snapshot.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from types import TracebackType
from typing import Any

import psycopg

from millstream.capture.contract import Position, Row, Snapshot, Table
from millstream.capture.postgres.position import lsn_of
from millstream.capture.postgres.publication import PLUGIN
from millstream.capture.postgres.server import Ask, Server, literal, quoted
from millstream.capture.postgres.tables import Described
from millstream.capture.postgres.values import Convert
from millstream.errors import TableChanged

_SAME = (
    "SELECT bool_and(c.relfilenode = coalesce(pg_relation_filenode(c.oid), 0)) FROM pg_class c"
    " WHERE c.oid = %s OR c.oid IN (SELECT relid FROM pg_partition_tree(%s::int8::oid::regclass))"
)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class PostgresSnapshot(Snapshot):
    """Rows in pieces of ``rows``, one table after the other; ``position_at`` makes a position of an LSN.

    Nothing is read before :meth:`check` has been told what the tables are, which are locked by then.
    """

    def __init__(
        self, server: Server, tables: Sequence[Table], position_at: Callable[[int], Position], *, rows: int
    ) -> None:
        self._server, self._rows = server, rows
        self._described: dict[Table, Described] = {}
        self._db = server.connect()
        try:
            with server.words(), server.asking(replication=True) as slot:
                name = f"millstream_snapshot_{os.getpid()}_{secrets.token_hex(4)}"
                _, lsn, exported, _ = slot.patiently(
                    f"CREATE_REPLICATION_SLOT {name} TEMPORARY LOGICAL {PLUGIN} (SNAPSHOT 'export')"
                )[0]
                ask = Ask(self._db)
                ask("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                ask(f"SET TRANSACTION SNAPSHOT {literal(exported)}")
            self.position = position_at(lsn_of(lsn))
            with server.words():
                for each in tables:
                    _lock(ask, each)
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it, whatever is half read."""
        self._db.close()

    def check(self, tables: Sequence[Described]) -> None:
        """These are the tables now; TableChanged for one that was rewritten or emptied since."""
        with self._server.words():
            for each in tables:
                if Ask(self._db)(_SAME, each.number, each.number) != [(True,)]:
                    raise _changed(each.table)
                self._described[each.table] = each

    def count(self, table: Table) -> int | None:
        """About how many rows there are: what the server believes."""
        found = self._described.get(table)
        return found.rows if found else None

    def rows(self, table: Table) -> Iterator[Sequence[Row]]:
        """All rows, as they lie."""
        described = self._described.get(table)
        if described is None:
            raise _changed(table)
        names = [column.name for column in table.columns]
        converts = [each.convert for each in described.types]
        asked = ", ".join(map(quoted, names))
        only = "" if described.partitioned else "ONLY "
        query = f"COPY (SELECT {asked} FROM {only}{quoted(table.schema, table.name)}) TO STDOUT"
        with self._server.words():
            cursor = self._db.cursor()
            with cursor.copy(query.encode()) as copy:
                lines: list[bytes] = []
                for line in copy:
                    lines.append(bytes(line))
                    if len(lines) >= self._rows:
                        yield read_lines(b"".join(lines), names, converts)
                        lines = []
                if lines:
                    yield read_lines(b"".join(lines), names, converts)


def read_lines(text: bytes, names: Sequence[str], converts: Sequence[Convert | None]) -> list[Row]:
    r"""Rows of COPY's text form.

    >>> read_lines(b"1\ta\\tb\n2\t\\N\n", ["id", "word"], [int, None])
    [{'id': 1, 'word': 'a\tb'}, {'id': 2, 'word': None}]
    """
    lines = text.decode().split("\n")
    lines.pop()
    if not names:
        return [{} for _ in lines]
    escaped = b"\\" in text
    columns: list[Any] = list(zip(*(line.split("\t") for line in lines), strict=True))
    for place, convert in enumerate(converts):
        values = columns[place]
        if not escaped:
            if convert is not None:
                columns[place] = map(convert, values)
        elif convert is None:
            columns[place] = [_unescaped(value) if "\\" in value else value for value in values]
        else:
            columns[place] = [
                None if value == "\\N" else convert(_unescaped(value) or "" if "\\" in value else value)
                for value in values
            ]
    return list(map(dict, map(zip, repeat(names), zip(*columns, strict=True))))


def _unescaped(value: str) -> str | None:
    if value == "\\N":
        return None
    first, *rest = value.split("\\")
    parts, pending = [first], False
    for each in rest:
        if pending:  # the second of two
            parts.append("\\" + each)
            pending = False
        elif not each:
            pending = True
        else:
            parts.append(_ESCAPES.get(each[0], each[0]) + each[1:])
    return "".join(parts)


def _lock(ask: Ask, table: Table) -> None:
    try:
        ask(f"LOCK TABLE {quoted(table.schema, table.name)} IN ACCESS SHARE MODE")
    except psycopg.errors.UndefinedTable as error:
        raise _changed(table) from error


def _changed(table: Table) -> TableChanged:
    return TableChanged(
        f"table {table.full_name} is not as it was when this snapshot began", hint="begin the snapshot again"
    )
