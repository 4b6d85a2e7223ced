"""A database that Debezium's engine reads: its snapshot, and then each transaction, once.

The engine tells where it is with each transaction, and that is in the log with the transaction. It begins there again, whatever it has kept
itself, and the database is told that it may forget only what is in the log.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from millstream.capture.contract import Position, Remembered, Row, Snapshot, Source, Table, Transaction
from millstream.engine.child import Child
from millstream.engine.columns import table_of
from millstream.engine.settings import read_properties
from millstream.engine.transactions import Place, Transactions, place_of
from millstream.errors import CaptureError, ConfigError

_TELL = 0.5
"""Seconds after which a caller is told that there is nothing."""


class DebeziumSource(Source):
    """Tables of a database that a connector of Debezium knows.

    :param address: ``debezium:FILE.properties``, what the connector's page calls for
    :param tables: their names, with the schema, or the database where there are no schemas
    :param name: that of the capture
    :param allow: nothing
    """

    connector = "debezium"

    def __init__(self, address: str, tables: Sequence[str], name: str, *, allow: Collection[str] = ()) -> None:
        if allow:
            raise ConfigError(f"capture {name}: found {sorted(allow)} allowed, expected nothing")
        self._name, self._names = name, list(tables)
        self._properties = read_properties(Path(address.removeprefix("debezium:")), tables, name)
        self._tables: tuple[Table, ...] | None = None
        self._fresh = False
        self._child: Child | None = None
        self._session = ""
        self._remembered: Remembered | None = None

    @property
    def pid(self) -> int | None:
        """The id of the engine's process, while there is one."""
        return self._child.pid if self._child is not None else None

    def tables(self) -> tuple[Table, ...]:
        """The captured tables as they are now."""
        if self._tables is None:
            self._tables = self._described()
        return self._tables

    def _described(self) -> tuple[Table, ...]:
        with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
            properties = self._properties.resolved(Path(folder) / "offsets")
            child = Child(self._name, {"properties": properties, "tables": self._names, "url": self._properties.url})
            try:
                found = tuple(table_of(each) for each in child.tables())
            finally:
                child.close()
        for table in found:
            self._check(table)
        return found

    def _check(self, table: Table) -> None:
        if not table.columns:
            raise CaptureError(
                f"capture {self._name}: there is no table {table.full_name}",
                hint="--table SCHEMA.TABLE, as it was created",
            )
        if not table.key:
            raise CaptureError(
                f"table {table.full_name}: it has no primary key, so nothing tells its rows apart",
                hint=f"ALTER TABLE {table.full_name} ADD PRIMARY KEY (…)",
            )

    def prepare(self, after: Position | None) -> None:
        """See that a position is one of the engine; what the database needs, the engine makes."""
        self._fresh = after is None
        if after is not None:
            place_of(after)

    def snapshot(self, tables: Sequence[Table]) -> Snapshot:
        """Where the engine begins: the rows that are there come as the first changes. They are read once."""
        if tables and not self._fresh:
            names = ", ".join(each.full_name for each in tables)
            raise CaptureError(
                f"capture {self._name}: Debezium's engine reads all rows once, and not again those of {names}",
                hint="capture a table that is new under another name",
            )
        return _Beginning()

    def changes(self, after: Position) -> Iterator[Transaction | None]:
        """The rows of the snapshot, if it is not in the log, and what was committed since."""
        place = place_of(after)
        self._session = uuid.uuid4().hex
        made = Transactions(self._name, self.tables(), place, self._session, self._last, self._described)
        with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
            properties = self._properties.resolved(Path(folder) / "offsets")
            child = self._child = Child(self._name, {"properties": properties, "offset": place.offset})
            try:
                while True:
                    batch = child.batch(_TELL)
                    if batch is None:
                        yield None
                    else:
                        yield from made.take(batch)
                        yield None
            finally:
                self._child = None
                child.close()
                made.close()

    def acknowledge(self, position: Position) -> None:
        """Let the engine tell the database what is in the log."""
        session, number = position["engine"]["covered"]
        if self._child is not None and session == self._session:
            self._child.acknowledge(number)

    def remember(self, remembered: Remembered) -> None:
        """Ask this for values that were not sent."""
        self._remembered = remembered

    def end(self) -> Position:
        """Nobody knows it but the engine."""
        raise CaptureError(
            f"capture {self._name}: Debezium's engine does not tell where the database is",
            hint="without --once it goes on until it is stopped",
        )

    def remove(self) -> None:
        """Nothing: what the engine made in the database is known to its connector, and stays."""

    def close(self) -> None:
        """End the engine."""
        if self._child is not None:
            self._child.close()

    def _last(self, table: Table, key: Row, column: str) -> Any:
        if self._remembered is None:
            raise KeyError(column)
        return self._remembered(table, key, column)


class _Beginning(Snapshot):
    """Nothing has been read yet."""

    def __init__(self) -> None:
        self.position: Position = Place().position(("", 0))

    def count(self, table: Table) -> int | None:  # noqa: ARG002
        """Not known."""
        return None

    def rows(self, table: Table) -> Iterator[Sequence[Row]]:  # noqa: ARG002
        """None: they come as changes."""
        return iter(())

    def __exit__(self, *_: object) -> None:
        pass
