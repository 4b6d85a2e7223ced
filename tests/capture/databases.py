"""Databases to capture, each with two tables ``a`` and ``b`` of (id, v, t), and writers that never rest."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from millstream.capture.contract import Source
from millstream.capture.opening import open_source
from millstream.testing import MariaDbServer, PostgresServer
from tests.capture.mysql.world import World

TABLE = "CREATE TABLE {} (id integer NOT NULL PRIMARY KEY, v integer, t varchar(400))"


class Database(ABC):
    """One database of a real server."""

    address: str
    empty_a = "TRUNCATE TABLE a"

    @abstractmethod
    def full(self, table: str) -> str:
        """The name of a table with its schema."""

    @abstractmethod
    def run(self, *statements: str) -> None:
        """Run statements, each committed at once."""

    @abstractmethod
    @contextmanager
    def session(self) -> Iterator[Callable[[str], Any]]:
        """A session that begins and commits as it is told."""

    def source(self, *tables: str, name: str = "shop") -> Source:
        return open_source(self.address, tables, name)

    def alter(self, statement: str) -> None:
        """Change the schema, as this database wants it."""
        self.run(statement)

    def close(self) -> None:  # noqa: B027  most have nothing to let go of
        """Let go of it."""

    def topic(self, table: str) -> str:
        return f"shop.{self.full(table)}"

    def made(self, rows: int = 0) -> None:
        """The two tables, with so many rows in the first."""
        self.run(TABLE.format("a"), TABLE.format("b"))
        for first in range(0, rows, 1000):
            values = ", ".join(f"({one}, {one}, 'row {one}')" for one in range(first, min(rows, first + 1000)))
            self.run(f"INSERT INTO a VALUES {values}")


class MariaDb(Database):
    def __init__(self, server: MariaDbServer) -> None:
        self.world = World(server)
        self.address = self.world.address

    def full(self, table: str) -> str:
        return f"{self.world.name}.{table}"

    def run(self, *statements: str) -> None:
        self.world.run(*statements)

    @contextmanager
    def session(self) -> Iterator[Callable[[str], Any]]:
        connection = self.world.connect()
        try:
            yield connection.cursor().execute
        finally:
            connection.close()


class Postgres(Database):
    _numbers = itertools.count()

    def __init__(self, server: PostgresServer) -> None:
        self._server, self._name = server, f"loop{next(self._numbers)}"
        with self._connect("postgres") as db:
            db.execute(f"CREATE DATABASE {self._name}".encode())
        self.address = f"postgresql://millstream@127.0.0.1:{server.port}/{self._name}"

    def _connect(self, database: str) -> psycopg.Connection[Any]:
        return psycopg.connect(
            f"host=127.0.0.1 port={self._server.port} user=millstream dbname={database}", autocommit=True
        )

    def full(self, table: str) -> str:
        return f"public.{table}"

    def run(self, *statements: str) -> None:
        with self._connect(self._name) as db:
            for each in statements:
                db.execute(each.encode())

    @contextmanager
    def session(self) -> Iterator[Callable[[str], Any]]:
        with self._connect(self._name) as db:
            yield lambda sql: db.execute(sql.encode())

    def close(self) -> None:
        with self._connect("postgres") as db:
            slots = f"FROM pg_replication_slots WHERE database = '{self._name}'"
            db.execute(f"SELECT pg_terminate_backend(active_pid, 10000) {slots} AND active".encode())
            db.execute(f"SELECT pg_drop_replication_slot(slot_name) {slots}".encode())


_APPLICATION = """
import json, sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
db.execute("PRAGMA journal_mode = wal")
for line in sys.stdin:
    try:
        db.execute(json.loads(line))
        print("done", flush=True)
    except sqlite3.Error as error:
        print(str(error), flush=True)
"""


class Sqlite(Database):
    """A file that an application in another process writes: two SQLite libraries in one process would lose each other's locks."""

    empty_a = "DELETE FROM a"

    def __init__(self, path: Path) -> None:
        self._path = path
        self.address = f"sqlite:{path}"
        self.run("CREATE TABLE first (id integer)")

    def full(self, table: str) -> str:
        return table

    def run(self, *statements: str) -> None:
        with self.session() as do:
            for each in statements:
                do(each)

    def alter(self, statement: str) -> None:
        source: Any = self.source("a", "b")
        source.alter(statement)
        source.close()

    @contextmanager
    def session(self) -> Iterator[Callable[[str], Any]]:
        command = [sys.executable, "-c", _APPLICATION, str(self._path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

            def do(sql: str) -> None:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(json.dumps("BEGIN IMMEDIATE" if sql == "BEGIN" else sql) + "\n")
                process.stdin.flush()
                answer = process.stdout.readline().strip()
                if answer != "done":
                    raise RuntimeError(answer)

            yield do


@contextmanager
def writing(database: Database, seed: int, writers: int = 2) -> Iterator[list[int]]:
    """Writers at once, in transactions over both tables, some of which are rolled back; gives how many each has ended."""
    done, stop = [0] * writers, threading.Event()

    def write(who: int) -> None:
        chance = random.Random(seed + who)
        while not stop.is_set():
            with (
                suppress(Exception),
                database.session() as do,
            ):  # a deadlock, a key that is there: the transaction is gone
                while not stop.is_set():
                    do("BEGIN")
                    for _ in range(chance.randrange(1, 6)):
                        do(_statement(chance, who, writers))
                    do(chance.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"]))
                    done[who] += 1
                    stop.wait(0.002)

    threads = [threading.Thread(target=write, args=(who,)) for who in range(writers)]
    for each in threads:
        each.start()
    try:
        yield done
    finally:
        stop.set()
        for each in threads:
            each.join(60)


def _statement(chance: random.Random, who: int, writers: int) -> str:
    one, other = (chance.randrange(300) * writers + who for _ in range(2))
    text = "x" * chance.randrange(300)
    return chance.choice(
        [
            f"INSERT INTO a SELECT {one}, {chance.randrange(100)}, '{text}' WHERE NOT EXISTS (SELECT 1 FROM a WHERE id = {one})",
            f"UPDATE a SET v = v + 1, t = '{text}' WHERE id = {one}",
            f"DELETE FROM a WHERE id = {one}",
            f"UPDATE a SET id = {other + 10_000 * writers} WHERE id = {one} AND v = {chance.randrange(30)}",
            f"DELETE FROM b WHERE id = {one}",
            f"INSERT INTO b SELECT id, v, t FROM a WHERE id = {one} AND id NOT IN (SELECT id FROM b)",
        ]
    )
