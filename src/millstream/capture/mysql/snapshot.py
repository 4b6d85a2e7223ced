"""The rows of tables at one place of the binary log.

One transaction sees all tables as they were at its beginning (those of InnoDB; of others each as it is when it is read, which the changes
after the position put right). MariaDB says at which place that was; on MySQL a lock that lasts for two statements makes sure of it. A table
whose definition changes before it is read is an error: the snapshot begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import pymysql

from millstream.capture.contract import Position, Row, Snapshot, Table
from millstream.capture.mysql.server import Ask, Server, quoted
from millstream.capture.mysql.settings import binlog_end
from millstream.capture.mysql.types import Type
from millstream.capture.mysql.values import Zeros, converter, selected
from millstream.errors import CaptureError, TableChanged

_BEGIN = (
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT",
)
_CHANGED = (1051, 1054, 1146, 1412)


class MysqlSnapshot(Snapshot):
    """Rows in pieces, one table after the other; ``place_of`` makes a position of a file and a byte, ``types`` are those of the tables that can be read."""

    def __init__(
        self,
        server: Server,
        counts: Mapping[Table, int | None],
        place_of: Callable[[str, int], Position],
        zeros: Zeros,
        *,
        mariadb: bool,
        rows: int,
    ) -> None:
        self._server, self._counts, self._zeros, self._rows = server, counts, zeros, rows
        self.types: Mapping[Table, tuple[Type, ...]] = {}
        self._connection = server.connect(patience=3600, stream=True)
        try:
            with server.words():
                file, byte = _begin_mariadb(self._connection) if mariadb else begin_locked(server, self._connection)
            self.position = place_of(file, byte)
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it, whatever is half read."""
        self._connection._force_close()

    def count(self, table: Table) -> int | None:
        """About how many rows there are: what the server believes."""
        return self._counts.get(table)

    def rows(self, table: Table) -> Iterator[Sequence[Row]]:
        """All rows, in the order of the key."""
        types = self.types.get(table)
        if types is None:
            raise TableChanged(
                f"table {table.full_name} is not as it was when this snapshot began", hint="begin the snapshot again"
            )
        names = [column.name for column in table.columns]
        asked = ", ".join(selected(of, quoted(name)) for of, name in zip(types, names, strict=True))
        columns = [(name, converter(of, self._zeros)) for of, name in zip(types, names, strict=True)]
        with self._server.words(), self._connection.cursor() as cursor:
            try:
                cursor.execute(f"SELECT {asked} FROM {quoted(table.schema, table.name)}")
                while found := cursor.fetchmany(self._rows):
                    yield [
                        {
                            name: None if value is None else convert(value)
                            for (name, convert), value in zip(columns, row, strict=True)
                        }
                        for row in found
                    ]
            except pymysql.MySQLError as error:
                if error.args and error.args[0] in _CHANGED:
                    raise TableChanged(
                        f"table {table.full_name}: its definition changed while a snapshot was taken ({error.args[-1]})",
                        hint="begin the snapshot again",
                    ) from error
                raise


def _begin_mariadb(connection: pymysql.Connection[Any]) -> tuple[str, int]:
    ask = Ask(connection)
    for statement in _BEGIN:
        ask(statement)
    said = dict(ask("SHOW STATUS LIKE 'binlog_snapshot_%'"))
    file, byte = (said.get(f"Binlog_snapshot_{what}") for what in ("file", "position"))
    if not file:
        raise CaptureError(
            "the server does not say at which place of its binary log a snapshot is", hint="MariaDB 10.5 or later"
        )
    return str(file), int(byte or 0)


def begin_locked(server: Server, connection: pymysql.Connection[Any]) -> tuple[str, int]:
    """Begin while nobody can commit: how MySQL does it, that has no place of a snapshot to say."""
    other = server.connect()
    try:
        lock = Ask(other)
        lock("SET lock_wait_timeout = 30")
        lock("FLUSH TABLES WITH READ LOCK")
        ask = Ask(connection)
        for statement in _BEGIN:
            ask(statement)
        file, byte, _, _ = binlog_end(lock)
        lock("UNLOCK TABLES")
    finally:
        other.close()
    return file, byte
