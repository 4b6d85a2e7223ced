"""Everything that can happen at once: writers of all kinds, a capture that is killed again and again, a server that goes, connections that are cut."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from millstream.capture.control import read_known
from millstream.capture.diff import compare
from millstream.log import open_log
from millstream.log.contract import Log
from millstream.testing import MariaDbServer, PostgresServer
from tests.capture.databases import Database, MariaDb, Postgres
from tests.capture.process import once, started
from tests.capture.topics import fold, rows_now
from tests.proxy import Proxy, proxied
from tests.waiting import until

KILLS = int(os.environ.get("MILLSTREAM_KILLS", "3"))
"""At random, beside those at each failpoint."""
PLACES = ("capture.append", "log.append.in_transaction", "capture.appended", "capture.acknowledge")
TABLES = ("a", "b", "wide")
ROWS, WRITERS = 4500, 2


@dataclass
class World:
    """A database on a server of its own, and what captures it through a proxy."""

    database: Database
    server: MariaDbServer | PostgresServer
    proxy: Proxy
    log: Log
    chance: random.Random = field(default_factory=lambda: random.Random(23))
    altered: threading.Event = field(default_factory=threading.Event)

    def arguments(self) -> list[str]:
        """Those of ``capture start``."""
        there = self.database.address.replace(f":{self.server.port}/", f":{self.proxy.port}/")
        named = [part for table in TABLES for part in ("--table", table)]
        return [there, "--log", self.log.url, "--name", "shop", *named]

    def changes(self) -> int:
        """How many are in the log."""
        known = read_known(self.log).get("shop")
        return known.progress.changes if known and known.progress else 0

    @contextmanager
    def captured(self, until_changes: int = 0) -> Iterator[None]:
        """A capture for as long as the block lasts, and until so many more changes are in; then it is killed."""
        before = self.changes()
        with started(*self.arguments()) as process:
            try:
                until(lambda: process.poll() is not None or self.changes() > before, timeout=120)
                yield
                wanted = self.changes() + until_changes
                until(lambda: process.poll() is not None or self.changes() >= wanted, timeout=120)
                assert process.poll() is None, process.stderr and process.stderr.read()
            finally:
                process.kill()

    def killed_at(self, place: str, times: int) -> None:
        """A capture that dies there."""
        with started(*self.arguments(), failpoint=f"{place}:kill@{times}") as process:
            until(lambda: process.poll() is not None, timeout=120)
            assert process.returncode == -9, process.stderr and process.stderr.read()


@pytest.fixture(params=["mariadb", "postgres"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    server = request.getfixturevalue("own_mariadb" if request.param == "mariadb" else "own_logical")
    database: Database = MariaDb(server) if isinstance(server, MariaDbServer) else Postgres(server)
    database.made(ROWS)
    if isinstance(
        database, Postgres
    ):  # `a` says what was before; `wide` has values out of line, and does not say them again
        database.run("ALTER TABLE a REPLICA IDENTITY FULL", "CREATE TABLE wide (id int PRIMARY KEY, v int, t text)", "ALTER TABLE wide ALTER t SET STORAGE EXTERNAL")  # fmt: skip
    else:
        database.run("CREATE TABLE wide (id int PRIMARY KEY, v int, t mediumtext)")
    with open_log(f"sqlite:{tmp_path}/log.db") as log, proxied(server.port) as proxy:
        yield World(database, server, proxy, log)


def said(chance: random.Random, who: int, altered: bool) -> list[str]:
    """A part of a transaction. Each writer has keys of its own, so few transactions end in a deadlock."""
    one, other = (chance.randrange(150) * WRITERS + who for _ in range(2))
    text, hidden = f"repeat('{chance.choice('pqrs')}', {chance.choice([2, 90, 300])})", -1 - who
    large = f"repeat('{chance.choice('pqrs')}', {chance.choice([9, 5000])})"
    kinds = [
        [f"INSERT INTO a (id, v, t) SELECT {one}, 1, {text} WHERE NOT EXISTS (SELECT 1 FROM a WHERE id = {one})"],
        [f"UPDATE a SET v = v + 1, t = {text} WHERE id = {one}"],
        [f"DELETE FROM a WHERE id = {one}"],
        [f"UPDATE a SET id = {new} WHERE id = {old}" for old, new in ((one, hidden), (other, one), (hidden, other))],
        [f"DELETE FROM b WHERE id = {one}", f"INSERT INTO b (id, v, t) SELECT id, v, t FROM a WHERE id = {one}"],
        [f"UPDATE b SET v = v - 1 WHERE id = {one}", f"UPDATE a SET v = v + 1 WHERE id = {one}"],
        [f"INSERT INTO wide (id, v, t) SELECT {one}, 0, {large} WHERE NOT EXISTS (SELECT 1 FROM wide WHERE id = {one})"],
        [f"UPDATE wide SET v = v + 1 WHERE id = {one}"],
        [f"UPDATE wide SET v = v + 1 WHERE id = {one}", f"UPDATE wide SET t = {large} WHERE id = {one}"],
        [f"DELETE FROM wide WHERE id = {one}"],
        ["SAVEPOINT s", f"DELETE FROM a WHERE id = {one}", f"UPDATE wide SET v = -1, t = {large} WHERE id = {other}", "ROLLBACK TO SAVEPOINT s"],
    ]  # fmt: skip
    if altered:
        kinds.append([f"UPDATE a SET more = v WHERE id = {one}"])
    if chance.random() < 0.01:  # more than the server holds in memory
        return [f"UPDATE a SET v = v + 1 WHERE id >= 300 AND id % {WRITERS} = {who}"]
    return chance.choice(kinds)


@contextmanager
def writing(world: World) -> Iterator[list[int]]:
    """Writers at once, who come back when the server was away; gives how many transactions each has ended."""
    done, stop = [0] * WRITERS, threading.Event()

    def write(who: int) -> None:
        chance = random.Random(100 + who)
        while not stop.wait(0.05):
            with suppress(Exception), world.database.session() as do:  # a deadlock, a server that is away: it is gone
                while not stop.wait(0.005):
                    do("BEGIN")
                    for _ in range(chance.randrange(1, 5)):
                        for each in said(chance, who, world.altered.is_set()):
                            do(each)
                    do(chance.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"]))
                    done[who] += 1

    threads = [threading.Thread(target=write, args=(who,)) for who in range(WRITERS)]
    for each in threads:
        each.start()
    try:
        yield done
    finally:
        stop.set()
        for each in threads:
            each.join(120)


def faults(world: World) -> None:
    """Each of them, in an order that goes by chance where it may."""
    chance, database, server = world.chance, world.database, world.server
    world.killed_at("capture.snapshot", 1)
    database.run("DELETE FROM a WHERE id % 7 = 3")  # nothing of them may stay of the snapshot that was broken off
    world.killed_at("capture.snapshot", chance.randrange(2, 4))
    world.killed_at("capture.handover", 1)

    def restart() -> None:
        server.restart()

    def kill_and_start() -> None:
        server.kill()
        server.start()

    def alter() -> None:
        database.run("ALTER TABLE a ADD COLUMN more integer")
        world.altered.set()

    def cut() -> None:
        assert world.proxy.cut_all() > 0

    happening: list[Any] = [restart, kill_and_start, cut, cut, alter, lambda: database.run("TRUNCATE TABLE b")]
    happening += PLACES + (None,) * KILLS
    chance.shuffle(happening)
    for each in happening:
        if isinstance(each, str):
            world.killed_at(each, chance.randrange(2, 9))
        else:
            with world.captured(chance.randrange(1, 200)):
                if each is not None:
                    each()


@pytest.mark.campaign
def test_nothing_is_lost_repeated_or_out_of_order_whatever_happens(world: World) -> None:
    log, database = world.log, world.database
    with writing(world) as done:
        faults(world)
        with world.captured(50):
            source = database.source(*TABLES)
            assert [each.equal for each in compare(log, source, "shop")] == [True] * 3  # while all of it moves
            source.close()
        assert min(done) > 30
    once(log, database, *TABLES)
    source = database.source(*TABLES)
    compared = list(compare(log, source, "shop"))
    assert [(each.equal, each.moving) for each in compared] == [(True, 0)] * 3, compared
    for table in (each for each in source.tables() if each.name in TABLES):
        found = fold(log, database.topic(table.name))  # each record fits to the row that was there
        assert {key: there(row) for key, row in found.items()} == {
            key: there(row) for key, row in rows_now(source, table).items()
        }
        assert found or table.name == "b"
    source.close()


def there(row: dict[str, Any]) -> dict[str, Any]:
    """What a row says; a column that came later is null in rows that are older."""
    return {name: value for name, value in row.items() if value is not None}
