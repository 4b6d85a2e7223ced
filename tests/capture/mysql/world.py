"""A database to capture: statements run in it, what a source says of them, and what both come to."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pymysql

from millstream.capture.contract import Change, Position, Table, Transaction
from millstream.capture.mysql.source import MysqlSource
from millstream.testing import MariaDbServer

_NUMBERS = itertools.count()
Rows = dict[str, dict[tuple[Any, ...], dict[str, Any]]]


class World:
    """A database of its own on a server, with a table ``marker`` that tells how far a source has read."""

    def __init__(self, server: MariaDbServer) -> None:
        self.server, self.name = server, f"w{next(_NUMBERS)}"
        self._marks = itertools.count(1)
        connection = self.connect("shop")
        self._do(connection, f"DROP DATABASE IF EXISTS {self.name}", f"CREATE DATABASE {self.name}")
        connection.close()
        self.run("CREATE TABLE marker (id int PRIMARY KEY)")

    @property
    def address(self) -> str:
        return self.server.address.replace("/shop", f"/{self.name}")

    def connect(self, database: str | None = None) -> pymysql.Connection[Any]:
        return pymysql.connect(
            host="127.0.0.1", port=self.server.port, user="millstream", database=database or self.name, autocommit=True
        )

    def _do(self, connection: pymysql.Connection[Any], *statements: str) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements in one session, and give the rows of the last."""
        connection = self.connect()
        try:
            return self._do(connection, *statements)
        finally:
            with suppress(pymysql.MySQLError):
                connection.close()

    def source(self, *tables: str, **options: Any) -> MysqlSource:
        return MysqlSource(self.address, [*tables, "marker"], self.name, **options)

    def mark(self) -> int:
        """Write a mark, behind everything that was committed."""
        number = next(self._marks)
        self.run(f"REPLACE INTO marker VALUES ({number})")
        return number

    def here(self, source: MysqlSource) -> Position:
        """Where a capture would begin now."""
        with source.snapshot([]) as snapshot:
            return snapshot.position

    def collect(self, source: MysqlSource, after: Position) -> list[tuple[Transaction, list[Change]]]:
        """The transactions of ours after a position, up to now, each with its changes."""
        return list(read_until(source, after, self.mark()))

    def changes(self, source: MysqlSource, after: Position) -> list[Change]:
        return [change for _, changes in self.collect(source, after) for change in changes]

    @contextmanager
    def opened(self, *tables: str, **options: Any) -> Iterator[tuple[MysqlSource, Position]]:
        """A source, and the position before what is done next."""
        source = self.source(*tables, **options)
        source.prepare(None)
        yield source, self.here(source)
        source.close()


def read_until(source: MysqlSource, after: Position, mark: int) -> Iterator[tuple[Transaction, list[Change]]]:
    """Transactions with changes of ours, up to the one that writes a mark."""
    reading = source.changes(after)
    for transaction in reading:
        if transaction is None:
            continue
        changes = list(transaction.changes)
        marks = [each.after["id"] for each in changes if each.table.name == "marker" and each.after]
        if mark in marks:
            reading.close()  # type: ignore[attr-defined]
            return
        if marks:
            continue
        if changes:
            yield transaction, changes


def key_of(table: Table, row: Any) -> tuple[Any, ...]:
    return tuple(row[name] for name in table.key)


def fold(changes: Sequence[Change], rows: Rows) -> Rows:
    """Apply changes, and hold them to what is there: one that is missing or comes twice does not fit."""
    for change in changes:
        table, name = change.table, change.table.name
        there = rows.setdefault(name, {})
        if change.op == "t":
            there.clear()
            continue
        if change.before is not None:
            known = there.pop(key_of(table, change.before))
            assert {each: known.get(each) for each in change.before} == dict(change.before)
        if change.after is not None:
            key = key_of(table, change.after)
            assert key not in there, f"{name} {key} is there already"
            there[key] = dict(change.after)
    return rows


def rows_of(source: MysqlSource, name: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """What is in a table, as a snapshot gives it."""
    (table,) = (each for each in source.tables() if each.name == name)
    with source.snapshot([table]) as snapshot:
        return {key_of(table, row): dict(row) for piece in snapshot.rows(table) for row in piece}


def as_now(rows: dict[tuple[Any, ...], dict[str, Any]], table: Table) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows with the columns that the table has now: one that was added is null."""
    return {key: {column.name: row.get(column.name) for column in table.columns} for key, row in rows.items()}


def attempt(do: Callable[[], Any]) -> None:
    """Do what the database may refuse."""
    with suppress(pymysql.MySQLError):
        do()
