"""MariaDB is captured as every database is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from millstream.capture.mysql.source import MysqlSource
from millstream.testing import MariaDbServer
from tests.capture.mysql.world import World
from tests.contracts.capture import CaptureContract, Database


class MariaDb(Database):
    """A database of a server."""

    def __init__(self, server: MariaDbServer) -> None:
        self._world, self._sources = World(server), list[MysqlSource]()

    @contextmanager
    def session(self) -> Iterator[Callable[[str], Any]]:
        connection = self._world.connect()
        try:
            with connection.cursor() as cursor:
                yield cursor.execute
        finally:
            connection.close()

    def source(self, *tables: str) -> MysqlSource:
        for each in self._sources:
            each.close()
        self._sources.append(MysqlSource(self._world.address, tables, self._world.name))
        return self._sources[-1]

    def objects(self) -> object:
        return self._world.run("SHOW TABLES"), self._world.run("SHOW TRIGGERS"), self._world.run("SELECT COUNT(*) FROM mysql.global_priv")  # fmt: skip

    def close(self) -> None:
        for each in self._sources:
            each.close()
        self._world.run(f"DROP DATABASE {self._world.name}")


@pytest.fixture
def database(mariadb: MariaDbServer) -> Iterator[MariaDb]:
    found = MariaDb(mariadb)
    yield found
    found.close()


class TestMariaDb(CaptureContract):
    pass
