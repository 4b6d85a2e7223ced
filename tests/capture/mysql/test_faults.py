"""A server that is restarted or killed, connections that are cut, a reader that is killed: nothing is missing and nothing comes twice."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pymysql

from millstream.errors import CaptureUnavailable
from millstream.testing import MariaDbServer
from tests.capture.mysql.reader import changes_of, written
from tests.capture.mysql.world import World, fold, rows_of
from tests.proxy import proxied
from tests.waiting import until

KILLS = int(os.environ.get("MILLSTREAM_KILLS", "5"))


@contextmanager
def writing(world: World, seed: int) -> Iterator[list[int]]:
    """Two writers at once, who come back when the server was away; gives how many transactions each has tried."""
    done, stop = [0, 0], threading.Event()

    def write(who: int) -> None:
        chance = random.Random(seed + who)
        while not stop.is_set():
            with suppress(pymysql.MySQLError, OSError):
                connection = world.connect()
                with connection.cursor() as cursor:
                    while not stop.is_set():
                        cursor.execute("BEGIN")
                        for _ in range(chance.randrange(1, 6)):
                            one = chance.randrange(1000) * 2 + who
                            cursor.execute(
                                chance.choice(
                                    [
                                        f"REPLACE INTO a VALUES ({one}, {chance.random()}, '{'x' * chance.randrange(300)}')",
                                        f"UPDATE a SET v = v + 1 WHERE id = {one}",
                                        f"DELETE FROM a WHERE id = {one}",
                                        f"UPDATE IGNORE a SET id = {chance.randrange(1000) * 2 + who} WHERE id = {one}",
                                        f"REPLACE INTO b SELECT * FROM a WHERE id = {one}",
                                        "SAVEPOINT s",
                                    ]
                                )
                            )
                        cursor.execute(chance.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"]))
                        done[who] += 1

    threads = [threading.Thread(target=write, args=(who,)) for who in (0, 1)]
    for each in threads:
        each.start()
    try:
        yield done
    finally:
        stop.set()
        for each in threads:
            each.join(60)


def tables(world: World) -> None:
    world.run(
        "CREATE TABLE a (id int PRIMARY KEY, v double, t text)",
        "CREATE TABLE b (id int PRIMARY KEY, v double, t text)",
        "INSERT INTO a VALUES (5000, 1, 'first')",
    )


def test_a_killed_reader_goes_on_where_its_file_ends_though_the_server_is_killed_and_restarted(
    own_mariadb: MariaDbServer, tmp_path: Path
) -> None:
    server = own_mariadb
    world, chance, path = World(server), random.Random(1), tmp_path / "changes"
    tables(world)
    source = world.source("a", "b")
    with source.snapshot([]) as snapshot:
        path.write_text(json.dumps({"position": snapshot.position, "changes": []}) + "\n")
    rows = {"a": {(5000,): {"id": 5000, "v": 1.0, "t": "first"}}}
    command = [
        sys.executable,
        "-m",
        "tests.capture.mysql.reader",
        world.address,
        world.name,
        str(path),
        "a",
        "b",
        "marker",
    ]
    with writing(world, 7) as done:
        for turn in range(KILLS):
            if turn == 1:
                server.restart()
            elif turn == 2:
                server.kill()
                server.start()
            elif turn == 3:
                world.run("FLUSH BINARY LOGS")
            count, wanted = len(written(path)), chance.randrange(3, 60)
            with subprocess.Popen(command) as process:
                until(lambda: len(written(path)) > count + wanted or process.poll() is not None, timeout=120)  # noqa: B023
                assert process.poll() is None
                process.kill()
        assert min(done) > 0
    mark = world.mark()
    with subprocess.Popen(command) as process:
        until(lambda: any(each.after and each.table.name == "marker" and each.after["id"] == mark for each in changes_of(written(path)[-3:])), timeout=120)  # fmt: skip
        process.kill()
    lines = written(path)
    found = fold([each for each in changes_of(lines) if each.table.name != "marker"], rows)
    places = [(line["position"]["file"], line["position"]["byte"]) for line in lines]
    assert places == sorted(set(places))
    assert found["a"] == rows_of(source, "a")
    assert found.get("b", {}) == rows_of(source, "b")
    assert len({file for file, _ in places}) >= 4


def test_a_reader_that_lives_goes_on_when_the_server_is_restarted_and_connections_are_cut(
    own_mariadb: MariaDbServer,
) -> None:
    with proxied(own_mariadb.port) as proxy:
        server = own_mariadb
        world = World(server)
        tables(world)
        source = world.source("a", "b")
        source._server.address = type(source._server.address)("127.0.0.1", proxy.port, "millstream", world.name, {})
        source.prepare(None)
        rows = {"a": {(5000,): {"id": 5000, "v": 1.0, "t": "first"}}}
        position = world.here(source)
        places = []

        def kill_and_start() -> None:
            server.kill()
            server.start()

        def cut() -> None:
            # The server ends the stream; and the connection that then asks for the rest is lost when it has been answered.
            proxy.cut(1, answered=True, said=b"binlog.0")
            found = [row[0] for row in world.run("SHOW PROCESSLIST") if row[4] == "Binlog Dump"]
            for number in found:
                world.run(f"KILL {number}")

        reading = source.changes(position)
        with writing(world, 11):
            for fault in (server.restart, kill_and_start, cut, cut):
                fault()
                mark = world.mark()
                while True:
                    transaction = next(reading)
                    if transaction is None:
                        continue
                    changes = list(transaction.changes)
                    places.append((transaction.position["file"], transaction.position["byte"]))
                    fold([each for each in changes if each.table.name != "marker"], rows)
                    if any(each.after and each.table.name == "marker" and each.after["id"] == mark for each in changes):
                        break
            assert proxy.cuts == 2
        assert transaction is not None
        for ended, changes in world.collect(source, transaction.position):
            places.append((ended.position["file"], ended.position["byte"]))
            fold(changes, rows)
        reading.close()  # type: ignore[attr-defined]
        assert places == sorted(set(places))
        assert rows["a"] == rows_of(source, "a")
        assert rows.get("b", {}) == rows_of(source, "b")


def test_a_server_that_stays_away_is_an_error_after_a_while(own_mariadb: MariaDbServer) -> None:
    server = own_mariadb
    world = World(server)
    source = world.source(patience=timedelta(seconds=1))
    reading = source.changes(world.here(source))
    next(reading)
    server.stop()
    found = None
    with suppress(StopIteration):
        try:
            while True:
                next(reading)
        except CaptureUnavailable as error:
            found = error
    assert found is not None
    assert "server runs" in found.hint or "server running" in found.hint
