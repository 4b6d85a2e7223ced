"""A database to capture: statements run in it, what a source says of them, and what both come to."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from millstream.capture.contract import Change, Position, Table, Transaction
from millstream.capture.postgres.source import PostgresSource
from millstream.testing import PostgresServer

_NUMBERS = itertools.count()
Rows = dict[str, dict[tuple[Any, ...], dict[str, Any]]]
Pg = psycopg.Connection[tuple[Any, ...]]


class World:
    """A database of its own on a server, with a table ``marker`` that tells how far a source has read."""

    def __init__(self, server: PostgresServer) -> None:
        self.server, self.name = server, f"w{next(_NUMBERS)}"
        self._marks = itertools.count(1)
        self._sources: list[PostgresSource] = []
        self.run(f"DROP DATABASE IF EXISTS {self.name}", f"CREATE DATABASE {self.name}", database="postgres")
        self.run("CREATE TABLE marker (id int PRIMARY KEY)")

    @property
    def address(self) -> str:
        return self.server.address.replace("/postgres", f"/{self.name}")

    @property
    def slot(self) -> str:
        return f"millstream_{self.name}"

    def connect(self, database: str | None = None) -> Pg:
        return psycopg.connect(
            host="127.0.0.1",
            port=self.server.port,
            user="millstream",
            dbname=database or self.name,
            autocommit=True,
            prepare_threshold=None,
        )

    def run(self, *statements: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run statements in one session, and give the rows of the last."""
        with self.connect(database) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return list(cursor.fetchall()) if cursor.description else []

    def source(self, *tables: str, **options: Any) -> PostgresSource:
        options = {"name": self.name, "address": self.address, "streaming": True, **options}
        found = PostgresSource(tables=[*tables, "marker"], **options)
        self._sources.append(found)
        return found

    def close(self) -> None:
        """Take the database away with its slots."""
        for source in self._sources:
            source.close()
        self.run(
            "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE active_pid IS NOT NULL"
            f" AND database = '{self.name}'",
            f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '{self.name}'",
            f"DROP DATABASE {self.name} WITH (FORCE)",
            database="postgres",
        )

    def mark(self) -> int:
        """Write a mark, behind everything that was committed."""
        number = next(self._marks)
        self.run(f"INSERT INTO marker VALUES ({number})")
        return number

    def here(self, source: PostgresSource) -> Position:
        """Where a capture would begin now."""
        with source.snapshot([]) as snapshot:
            return snapshot.position

    def collect(self, source: PostgresSource, after: Position) -> list[tuple[Transaction, list[Change]]]:
        """The transactions of ours after a position, up to now, each with its changes."""
        return list(read_until(source, after, self.mark()))

    def changes(self, source: PostgresSource, after: Position) -> list[Change]:
        return [change for _, changes in self.collect(source, after) for change in changes]

    @contextmanager
    def opened(self, *tables: str, **options: Any) -> Iterator[tuple[PostgresSource, Position]]:
        """A source, and the position before what is done next."""
        source = self.source(*tables, **options)
        source.prepare(None)
        yield source, self.here(source)
        source.close()


def read_until(source: PostgresSource, after: Position, mark: int) -> Iterator[tuple[Transaction, list[Change]]]:
    """Transactions with changes of ours, up to the one that writes a mark."""
    reading = source.changes(after)
    try:
        for transaction in reading:
            if transaction is None:
                continue
            changes = list(transaction.changes)
            marks = [each.after["id"] for each in changes if each.table.name == "marker" and each.after]
            if mark in marks:
                return
            if changes and not marks:
                yield transaction, changes
    finally:
        reading.close()  # type: ignore[attr-defined]


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
        if change.op == "u" and change.before is None:
            assert change.after is not None
            assert there.pop(key_of(table, change.after), None) is not None, f"{name}: a row to change is missing"
        if change.before is not None:
            known = there.pop(key_of(table, change.before))
            assert {each: known.get(each) for each in change.before} == dict(change.before)
        if change.after is not None:
            key = key_of(table, change.after)
            assert key not in there, f"{name} {key} is there already"
            there[key] = dict(change.after)
    return rows


def rows_of(source: PostgresSource, name: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """What is in a table, as a snapshot gives it."""
    (table,) = (each for each in source.tables() if each.name == name)
    with source.snapshot([table]) as snapshot:
        return {key_of(table, row): dict(row) for piece in snapshot.rows(table) for row in piece}


def as_now(rows: dict[tuple[Any, ...], dict[str, Any]], table: Table) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows with the columns that the table has now: one that was added is null."""
    return {key: {column.name: row.get(column.name) for column in table.columns} for key, row in rows.items()}


def attempt(do: Callable[[], Any]) -> None:
    """Do what the database may refuse."""
    with suppress(psycopg.Error):
        do()
