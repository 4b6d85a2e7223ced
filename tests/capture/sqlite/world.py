"""A file to capture: an application of another process writes it, and what a source says of it, and what both come to."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from millstream.capture.contract import Change, Position, Table, Transaction
from millstream.capture.sqlite.source import SqliteSource

Rows = dict[str, dict[tuple[Any, ...], dict[str, Any]]]


class Refused(Exception):
    """What SQLite said to the application."""


class Session:
    """One connection of an application, in a process of its own."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-m", "tests.capture.sqlite.writer", str(path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, *statements: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run statements, and give the rows of the last."""
        rows: list[tuple[Any, ...]] = []
        for sql in statements:
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self.process.stdin.write(json.dumps({"sql": sql, "values": list(values)}) + "\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline())
            if "error" in answer:
                raise Refused(answer["error"])
            rows = [tuple(row) for row in answer["rows"]]
        return rows

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()

    def kill(self) -> None:
        self.process.kill()
        self.close()


class World:
    """A file, and an application that has it open."""

    def __init__(self, path: Path, *, wal: bool = True) -> None:
        self.path = path
        self.session = Session(path)
        self.run(f"PRAGMA journal_mode = {'wal' if wal else 'delete'}", "PRAGMA foreign_keys = on")

    @property
    def address(self) -> str:
        return f"sqlite:{self.path}"

    def run(self, *statements: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self.session.run(*statements, values=values)

    def attempt(self, statement: str) -> None:
        """Run what SQLite may refuse."""
        try:
            self.run(statement)
        except Refused:
            return

    def source(self, *tables: str, name: str = "shop", **options: Any) -> SqliteSource:
        return SqliteSource(self.address, tables, name, **options)

    def here(self, source: SqliteSource) -> Position:
        """Where a capture would begin now."""
        with source.snapshot([]) as snapshot:
            return snapshot.position

    @contextmanager
    def opened(self, *tables: str, **options: Any) -> Iterator[tuple[SqliteSource, Position]]:
        """A source, and the position before what is done next."""
        source = self.source(*tables, **options)
        source.prepare(None)
        try:
            yield source, self.here(source)
        finally:
            source.close()

    def close(self) -> None:
        self.session.close()


def collect(source: SqliteSource, after: Position) -> list[tuple[Transaction, list[Change]]]:
    """The transactions after a position, up to now, each with its changes."""
    found, reading = [], source.changes(after)
    for transaction in reading:
        if transaction is None:
            break
        found.append((transaction, list(transaction.changes)))
    reading.close()  # type: ignore[attr-defined]
    return found


def changes_of(source: SqliteSource, after: Position) -> list[Change]:
    return [change for _, changes in collect(source, after) for change in changes]


def key_of(table: Table, row: Any) -> tuple[Any, ...]:
    return tuple(row[name] for name in table.key)


def fold(changes: Sequence[Change], rows: Rows) -> Rows:
    """Apply changes, and hold them to what is there: one that is missing or comes twice does not fit."""
    for change in changes:
        table, name = change.table, change.table.name
        there = rows.setdefault(name, {})
        if change.before is not None:
            known = there.pop(key_of(table, change.before))
            assert {each: known.get(each) for each in change.before} == dict(change.before)
        if change.after is not None:
            key = key_of(table, change.after)
            assert key not in there, f"{name} {key} is there already"
            there[key] = dict(change.after)
    return rows


def settle(changes: Sequence[Change], rows: Rows) -> Rows:
    """Apply changes as a table by key does, whatever was there."""
    for change in changes:
        there = rows.setdefault(change.table.name, {})
        if change.before is not None:
            there.pop(key_of(change.table, change.before), None)
        if change.after is not None:
            there[key_of(change.table, change.after)] = dict(change.after)
    return rows


def rows_of(source: SqliteSource, name: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """What is in a table, as a snapshot gives it."""
    (table,) = (each for each in source.tables() if each.name == name)
    with source.snapshot([table]) as snapshot:
        return {key_of(table, row): dict(row) for piece in snapshot.rows(table) for row in piece}


def as_now(rows: dict[tuple[Any, ...], dict[str, Any]], table: Table) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows with the columns that the table has now: one that was added is null."""
    return {key: {column.name: row.get(column.name) for column in table.columns} for key, row in rows.items()}
