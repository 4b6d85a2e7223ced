"""A server that is restarted or killed, connections that are cut, a reader that is killed: nothing is missing and nothing comes twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millstream.capture.contract import Transaction
from millstream.capture.postgres import source as source_module
from millstream.capture.postgres.pgoutput import Commit
from millstream.capture.postgres.position import lsn_of
from millstream.capture.postgres.transactions import Transactions
from millstream.errors import CaptureUnavailable
from millstream.testing import PostgresServer
from tests.capture.postgres.reader import changes_of, written
from tests.capture.postgres.world import Rows, World, fold, rows_of
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
            with suppress(psycopg.Error, OSError), world.connect() as connection:
                while not stop.is_set():
                    connection.execute("BEGIN")
                    for _ in range(chance.randrange(1, 6)):
                        one = chance.randrange(1000) * 2 + who
                        other = chance.randrange(1000) * 2 + who
                        said = chance.choice(
                            [
                                f"INSERT INTO a VALUES ({one}, {chance.random()}, '{'x' * chance.randrange(300)}') ON CONFLICT (id) DO UPDATE SET v = 7",
                                f"UPDATE a SET v = v + 1 WHERE id = {one}",
                                f"DELETE FROM a WHERE id = {one}",
                                f"UPDATE a SET id = {other} WHERE id = {one} AND NOT EXISTS (SELECT FROM a WHERE id = {other})",
                                f"INSERT INTO b SELECT * FROM a WHERE id = {one} ON CONFLICT (id) DO UPDATE SET v = b.v - 1",
                                f"INSERT INTO b SELECT i * 2 + {who}, 1, 'many' FROM generate_series({one}, {one + 400}) i ON CONFLICT DO NOTHING",
                                "SAVEPOINT s; DELETE FROM a WHERE id % 7 = 0 AND id % 2 = " + f"{who}; ROLLBACK TO s",
                            ]
                        )
                        connection.execute(said.encode())
                    connection.execute(chance.choice([b"COMMIT", b"COMMIT", b"COMMIT", b"ROLLBACK"]))
                    done[who] += 1
                    stop.wait(0.01)  # the reader shares the cores with the writers, and must come to the end

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
        "CREATE TABLE a (id int PRIMARY KEY, v float8, t text)",
        "CREATE TABLE b (id int PRIMARY KEY, v float8, t text)",
        "INSERT INTO a VALUES (5000, 1, 'first')",
    )


def with_changes(reading: Iterator[Transaction | None]) -> Transaction:
    """The next transaction that is more than a position."""
    return next(each for each in reading if each is not None and each.time is not None)


def place(position: Any) -> int:
    return lsn_of(position["lsn"])


def test_a_killed_reader_goes_on_where_its_file_ends_though_the_server_is_killed_and_restarted(
    own_logical: PostgresServer, tmp_path: Path
) -> None:
    server = own_logical
    world, chance, path = World(server), random.Random(1), tmp_path / "changes"
    tables(world)
    command = [sys.executable, "-m", "tests.capture.postgres.reader", world.address, world.name, str(path), "a", "b", "marker"]  # fmt: skip
    with writing(world, 7) as done:
        for turn in range(KILLS):
            count, wanted = len(written(path)), chance.randrange(3, 40)
            with subprocess.Popen(command) as process:
                if turn == 0:  # somewhere before, in or after the snapshot
                    time.sleep(chance.uniform(0.5, 3))
                else:
                    until(lambda: len(written(path)) > count + wanted or process.poll() is not None, timeout=120)  # noqa: B023
                assert process.poll() is None
                if turn == 1:
                    server.restart()
                elif turn == 2:
                    server.kill()
                    server.start()
                process.kill()
        assert min(done) > 0
    mark = world.mark()
    with subprocess.Popen(command) as process:
        until(lambda: any(each.after and each.table.name == "marker" and each.after["id"] == mark for each in changes_of(written(path)[-3:])), timeout=120)  # fmt: skip
        process.kill()
    lines = written(path)
    found = fold([each for each in changes_of(lines) if each.table.name != "marker"], {})
    places = [place(line["position"]) for line in lines]
    assert places == sorted(places)
    told = [place(line["position"]) for line in lines if line["changes"]]
    assert told == sorted(set(told))
    source = world.source("a", "b")
    assert found["a"] == rows_of(source, "a")
    assert found.get("b", {}) == rows_of(source, "b")


def test_a_reader_that_lives_goes_on_when_the_server_is_restarted_and_connections_are_cut(
    own_logical: PostgresServer,
) -> None:
    with proxied(own_logical.port) as proxy:
        server = own_logical
        world = World(server)
        tables(world)
        source = world.source("a", "b", address=world.address.replace(str(server.port), str(proxy.port)))
        source.prepare(None)
        rows: Rows = {"a": {(5000,): {"id": 5000, "v": 1.0, "t": "first"}}}
        position = world.here(source)
        places: list[int] = []

        def kill_and_start() -> None:
            server.kill()
            server.start()

        def restart() -> None:  # waits until its readers have everything, so somebody must read meanwhile
            thread = threading.Thread(target=server.restart)
            thread.start()
            while thread.is_alive():
                take()
            thread.join()

        def cut() -> None:
            # The server ends the stream; and the connection that then asks for the rest is lost when it has been answered.
            proxy.cut(1, answered=True, said=b"START_REPLICATION")
            world.run("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL")

        def take() -> int | None:
            transaction = next(reading)
            if transaction is None:
                return None
            changes = list(transaction.changes)
            if changes:
                places.append(place(transaction.position))
            fold([each for each in changes if each.table.name != "marker"], rows)
            source.acknowledge(transaction.position)
            marks = [each.after["id"] for each in changes if each.table.name == "marker" and each.after]
            return marks[0] if marks else None

        def reach(mark: int) -> None:  # without a pause: the writers make none
            deadline = time.monotonic() + 120
            while take() != mark:
                assert time.monotonic() < deadline, f"mark {mark} did not come"

        reading = source.changes(position)
        with writing(world, 11):
            for fault in (restart, kill_and_start, cut, cut):
                fault()
                reach(world.mark())
            assert proxy.cuts == 2
        reach(world.mark())
        reading.close()  # type: ignore[attr-defined]
        assert places == sorted(set(places))
        assert rows["a"] == rows_of(source, "a")
        assert rows.get("b", {}) == rows_of(source, "b")


def test_a_server_that_stays_away_is_an_error_after_a_while(own_logical: PostgresServer) -> None:
    world = World(own_logical)
    source = world.source(patience=timedelta(seconds=1))
    source.prepare(None)
    reading = source.changes(world.here(source))
    until(lambda: next(reading) is None)
    own_logical.kill()
    with pytest.raises(CaptureUnavailable) as found:
        until(lambda: next(reading) and False, timeout=60)
    assert "server runs" in found.value.hint


def test_a_consumer_that_is_slow_keeps_its_connection(world: World) -> None:
    tables(world)
    world.run("ALTER SYSTEM SET wal_sender_timeout = '1s'", "SELECT pg_reload_conf()")
    try:
        with world.opened("a") as (source, position):
            reading = source.changes(position)
            until(lambda: next(reading) is None)
            world.run(
                "INSERT INTO a SELECT i, i, repeat('x', 500) FROM generate_series(10001, 30000) i",
                "INSERT INTO a VALUES (-1, 1, '')",
            )
            transaction = with_changes(reading)
            pid = world.run("SELECT active_pid FROM pg_replication_slots")
            assert pid != [(None,)]
            for seen, _ in enumerate(transaction.changes):
                if seen % 5000 == 0:
                    time.sleep(1)  # as a consumer who writes for longer than the server waits
            after = with_changes(reading)
            assert [each.after["id"] for each in after.changes if each.after] == [-1]
            assert world.run("SELECT active_pid FROM pg_replication_slots") == pid
    finally:
        world.run("ALTER SYSTEM RESET wal_sender_timeout", "SELECT pg_reload_conf()")


def test_a_slot_on_a_quiet_table_does_not_grow_while_another_database_is_busy(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "_FAR", 1 << 20)
    other = World(world.server)
    other.run("CREATE TABLE busy (id bigserial PRIMARY KEY, t text)")
    tables(world)

    def kept() -> int:
        rows = world.run(f"SELECT pg_current_wal_lsn() - confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{world.slot}'")  # fmt: skip
        return int(rows[0][0])

    with world.opened("a") as (source, position):
        other.run("INSERT INTO busy (t) SELECT repeat(md5(i::text), 20) FROM generate_series(1, 20000) i")
        assert kept() > 10 << 20
        reading = source.changes(position)

        def take() -> bool:
            found = next(reading)
            if found is not None:
                source.acknowledge(found.position)
                last.append(found.position)
            return kept() < 1 << 20

        last: list[Any] = []
        until(take, timeout=60)
        reading.close()  # type: ignore[attr-defined]
        source.prepare(last[-1])
        world.run("INSERT INTO a VALUES (1, 1, '')")
        assert [each.after["id"] for each in world.changes(source, last[-1]) if each.after] == [1]
    other.close()


@pytest.mark.parametrize("early", [False, True])
def test_a_position_is_the_end_of_a_commit_and_not_its_beginning(
    world: World, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables(world)
    if early:  # the mutant: from there the server tells the transaction again
        ended = Transactions._ended

        def begun(reader: Transactions, transaction: Any, commit: Commit) -> Transaction | None:
            found = ended(reader, transaction, commit)
            return found and replace(found, position=reader.at.said(commit.commit))

        monkeypatch.setattr(Transactions, "_ended", begun)
    with world.opened("a") as (source, position):
        world.run("INSERT INTO a VALUES (1, 1, '')", "INSERT INTO a VALUES (2, 1, '')")
        last = world.collect(source, position)[-1][0].position
        world.run("INSERT INTO a VALUES (3, 1, '')")
        found = [each.after["id"] for each in world.changes(source, last) if each.after]
        assert found == ([2, 3] if early else [3])


def test_nothing_is_acknowledged_that_the_caller_has_not(world: World) -> None:
    tables(world)

    def confirmed() -> int:
        return lsn_of(world.run(f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{world.slot}'")[0][0])  # fmt: skip

    with world.opened("a") as (source, position):
        begin = confirmed()
        for number in range(5):
            world.run(f"INSERT INTO a VALUES ({number}, 1, '')")
        found = world.collect(source, position)
        assert confirmed() == begin
        reading = source.changes(position)
        until(lambda: (each := next(reading)) is not None and each.position == found[2][0].position)
        world.run("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL")
        until(
            lambda: next(reading) is None
        )  # a new connection begins behind what was told, and acknowledges none of it
        until(lambda: next(reading) is None)
        reading.close()  # type: ignore[attr-defined]
        assert confirmed() == begin
        source.acknowledge(found[1][0].position)
        reading = source.changes(found[1][0].position)
        until(lambda: next(reading))
        until(lambda: confirmed() == place(found[1][0].position))
        source.acknowledge(found[3][0].position)
        source.close()  # says it as a last word
        until(lambda: confirmed() == place(found[3][0].position))
