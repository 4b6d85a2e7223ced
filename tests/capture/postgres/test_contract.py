"""PostgreSQL is captured as every database is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from millstream.capture.postgres.source import PostgresSource
from tests.capture.postgres.world import World
from tests.contracts.capture import CaptureContract, Database


class Postgres(Database):
    """A database of a server."""

    def __init__(self, world: World, streaming: bool) -> None:
        self._world, self._streaming, self._sources = world, streaming, list[PostgresSource]()

    @contextmanager
    def session(self) -> Iterator[Callable[[str], Any]]:
        with self._world.connect() as connection:
            yield lambda sql: connection.execute(sql.encode())

    def source(self, *tables: str) -> PostgresSource:
        for each in self._sources:
            each.close()
        found = PostgresSource(self._world.address, tables, self._world.name, streaming=self._streaming)
        self._sources.append(found)
        return found

    def objects(self) -> object:
        slots = f"SELECT slot_name FROM pg_replication_slots WHERE database = '{self._world.name}'"
        catalogs = ("pg_class", "pg_proc", "pg_trigger", "pg_publication", "pg_namespace", "pg_event_trigger")
        return [self._world.run(slots), *(self._world.run(f"SELECT oid FROM {each} ORDER BY 1") for each in catalogs)]

    def close(self) -> None:
        for each in self._sources:
            each.close()


@pytest.fixture(params=[False, True], ids=["whole", "streaming"])
def database(request: pytest.FixtureRequest, world: World) -> Iterator[Postgres]:
    found = Postgres(world, request.param)
    yield found
    found.close()


class TestPostgres(CaptureContract):
    pass
