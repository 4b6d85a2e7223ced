"""What the engine can do of what every source of changes must; what it cannot is said beside each test that is another one here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from millstream.capture.contract import Position, Source
from millstream.capture.opening import open_source
from millstream.engine.source import DebeziumSource
from millstream.engine.transactions import place_of
from millstream.errors import CaptureError
from millstream.testing import PostgresServer
from tests.capture.databases import Postgres as Server
from tests.contracts.capture import TABLES, CaptureContract, Database
from tests.waiting import until


class Captured(Database):
    """A database, of which every source is an engine."""

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self._server = Server(server)
        name = self._server.address.rpartition("/")[2]
        self._file, self._sources = folder / "shop.properties", list[DebeziumSource]()
        self._file.write_text(
            "connector.class=io.debezium.connector.postgresql.PostgresConnector\n"
            f"database.hostname=127.0.0.1\ndatabase.port={server.port}\ndatabase.user=millstream\n"
            f"database.dbname={name}\nslot.name={name}\n"
        )

    @contextmanager
    def session(self) -> Iterator[Callable[[str], Any]]:
        with self._server.session() as do:
            yield do

    def source(self, *tables: str) -> DebeziumSource:
        for each in self._sources:
            each.close()
        found = open_source(f"debezium:{self._file}", [f"public.{each}" for each in tables], "shop")
        assert isinstance(found, DebeziumSource)
        self._sources.append(found)
        return found

    def objects(self) -> object:
        return ()

    def close(self) -> None:
        for each in self._sources:
            each.close()
        self._server.close()


@pytest.fixture
def database(engine: Path, logical: PostgresServer, tmp_path: Path) -> Iterator[Captured]:
    found = Captured(logical, tmp_path)
    yield found
    found.close()


@pytest.mark.campaign  # the engine is large to install
class TestDebezium(CaptureContract):
    @contextmanager
    def begun(self, database: Database) -> Iterator[tuple[Source, Position]]:
        """The position is that behind the engine's own snapshot."""
        database.run(*TABLES)
        source = database.source("a", "b", "mark")
        source.prepare(None)
        with source.snapshot(()) as snapshot:
            reading = source.changes(snapshot.position)
        first = until(lambda: next(reading), timeout=60)
        assert first is not None
        position = first.position
        assert place_of(position).offset is not None
        reading.close()  # type: ignore[attr-defined]
        yield source, position
        source.close()

    def test_tables_have_a_key_and_the_columns_that_their_rows_have(self, database: Database) -> None:
        """All but the rows, which are not read again."""
        with self.begun(database) as (source, position):
            database.run("INSERT INTO a VALUES (1, 2, 'x')")
            a, b, _ = source.tables()
            assert [
                (each.name, each.key, [(column.name, column.type) for column in each.columns]) for each in (a, b)
            ] == [
                ("a", ("id",), [("id", "int"), ("v", "int"), ("t", "string")]),
                ("b", ("id",), [("id", "int"), ("v", "int")]),
            ]
            (change,) = self.changes(database, source, position)
            assert (change.table, change.op, change.before, change.after) == (a, "c", None, {"id": 1, "v": 2, "t": "x"})

    def test_changes_after_a_snapshot_fit_on_its_rows_while_others_write(self, database: Database) -> None:
        """Rows of a snapshot come as changes: the whole of it is in ``test_postgres.py``."""
        with self.begun(database) as (source, position):
            source.prepare(position)
            with pytest.raises(CaptureError, match="reads all rows once"):
                source.snapshot(source.tables())

    def test_what_is_committed_is_not_behind_the_end(self, database: Database) -> None:
        """It does not tell its end."""
        source = database.source("a")
        with pytest.raises(CaptureError, match="does not tell where the database is"):
            source.end()

    def test_rows_that_go_or_get_another_key_are_told_with_the_old_one(self, database: Database) -> None:
        """A key that changed is a row that went and one that came."""
        with self.begun(database) as (source, position):
            database.run("INSERT INTO b VALUES (1, 1), (2, 2)", "UPDATE b SET id = 3 WHERE id = 1", "DELETE FROM b WHERE id = 2")  # fmt: skip
            found = self.changes(database, source, position)
            assert [(each.op, each.before, each.after) for each in found[2:]] == [
                ("d", {"id": 1}, None),
                ("c", None, {"id": 3, "v": 1}),
                ("d", {"id": 2}, None),
            ]

    def test_a_capture_that_is_removed_leaves_nothing_and_the_application_goes_on(self, database: Database) -> None:
        """What the connector made stays, and the application goes on."""
        with self.begun(database) as (source, _):
            source.remove()
            source.close()
            database.run("INSERT INTO a VALUES (1, 1, 'x')", "UPDATE a SET v = 2", "DELETE FROM a")
