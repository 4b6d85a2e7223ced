"""SQLite is captured as every database is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from millstream.capture.sqlite.source import SqliteSource
from tests.capture.sqlite.world import Session
from tests.contracts.capture import CaptureContract, Database


class SqliteFile(Database):
    """A file; each session is a process."""

    def __init__(self, path: Path, mode: str) -> None:
        self._path, self._sources = path, list[SqliteSource]()
        self._session = Session(path)
        self._session.run(f"PRAGMA journal_mode = {mode}")

    @contextmanager
    def session(self) -> Iterator[Callable[[str], Any]]:
        session = Session(self._path)
        try:  # a transaction that begins with a read could not become one that writes
            yield lambda sql: session.run("BEGIN IMMEDIATE" if sql == "BEGIN" else sql)
        finally:
            session.close()

    def run(self, *statements: str) -> None:
        self._session.run(*("BEGIN IMMEDIATE" if sql == "BEGIN" else sql for sql in statements))

    def source(self, *tables: str) -> SqliteSource:
        for each in self._sources:
            each.close()
        self._sources.append(SqliteSource(f"sqlite:{self._path}", tables, "shop"))
        return self._sources[-1]

    def objects(self) -> object:
        names = self._session.run(
            "SELECT type, name, sql FROM sqlite_master WHERE name <> 'sqlite_sequence' ORDER BY 1, 2"
        )
        return names, {each.name for each in self._path.parent.iterdir()}

    def close(self) -> None:
        for each in self._sources:
            each.close()
        self._session.close()


@pytest.fixture(params=["wal", "delete"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqliteFile]:
    found = SqliteFile(tmp_path / "shop.db", request.param)
    yield found
    found.close()


class TestSqlite(CaptureContract):
    pass
