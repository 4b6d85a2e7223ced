"""Writers and readers that are killed, several writers at once: nothing is missing, nothing comes twice, no transaction comes in parts."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream.capture.contract import Change
from tests.capture.sqlite.busy import ACCOUNTS, TABLES
from tests.capture.sqlite.reader import count, said_of, written
from tests.capture.sqlite.world import Rows, World, collect, fold, key_of, rows_of
from tests.waiting import until

KILLS = int(os.environ.get("MILLSTREAM_KILLS", "5"))
CAPTURED = ("a", "b", "notes")


@contextmanager
def started(module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-m", f"tests.capture.sqlite.{module}", *arguments]) as process:
        try:
            yield process
        finally:
            process.kill()


def fold_whole(changes: list[Change], rows: Rows) -> None:
    """Apply a transaction: transfers are in it with both sides, so the sum is what it was."""
    fold(changes, rows)
    assert sum(row["v"] for table in "ab" for row in rows[table].values()) == 200 * ACCOUNTS


def begin(world: World) -> Rows:
    world.run("PRAGMA wal_autocheckpoint = 100", *TABLES)
    return {table: {(number,): {"id": number, "v": 100} for number in range(ACCOUNTS)} for table in "ab"}


@pytest.mark.parametrize("wal", [True, False], ids=["wal", "journal"])
def test_writers_of_several_processes_and_a_reader_are_killed_and_nothing_is_missing(tmp_path: Path, wal: bool) -> None:
    world, chance, path = World(tmp_path / "shop.db", wal=wal), random.Random(1), tmp_path / "changes"
    rows = begin(world)
    with world.opened(*CAPTURED) as (_, position):
        path.write_text(json.dumps({"position": position, "changes": []}) + "\n")
    for turn in range(KILLS):
        seed = turn * 10
        with (
            started("busy", str(world.path), f"{seed + 1}") as one,
            started("busy", str(world.path), f"{seed + 2}") as other,
        ):
            with started("reader", world.address, str(path), *CAPTURED) as reader:
                before, wanted = count(path), chance.randrange(3, 30)
                until(lambda: count(path) > before + wanted or reader.poll() is not None, timeout=120)  # noqa: B023
                assert reader.poll() is None
                chance.choice([one, other]).kill()
                until(lambda: count(path) > before + wanted + 3, timeout=120)  # noqa: B023
                reader.kill()
            assert other.poll() is None or one.poll() is None
    lines = written(path)
    for line in lines:
        if line["changes"]:
            fold_whole(said_of([line]), rows)
    source = world.source(*CAPTURED)
    source.prepare(lines[-1]["position"])
    places = [line["position"]["seq"] for line in lines]
    for transaction, changes in collect(source, lines[-1]["position"]):
        places.append(transaction.position["seq"])
        fold_whole(changes, rows)
    assert places == sorted(set(places))
    assert len(places) > KILLS * 3
    for table in CAPTURED:
        assert rows.get(table, {}) == rows_of(source, table)
    source.close()
    world.close()


def test_changes_after_a_snapshot_fit_on_its_rows(world: World) -> None:
    begin(world)
    for table in CAPTURED[:2]:
        world.run(f"INSERT INTO {table} SELECT id + 1000, 0 FROM {table}")
    with (
        world.opened(*CAPTURED, rows=7) as (source, _),
        started("busy", str(world.path), "1"),
        started("busy", str(world.path), "2"),
    ):
        before = world.here(source)["seq"]
        until(lambda: world.here(source)["seq"] > before + 500, timeout=120)
        found: Rows = {}
        with source.snapshot(source.tables()) as snapshot:
            at = snapshot.position["seq"]
            until(lambda: world.here(source)["seq"] > at + 500, timeout=120)
            for each in source.tables():
                pieces = list(snapshot.rows(each))
                assert all(len(piece) <= 7 for piece in pieces)
                found[each.name] = {key_of(each, row): dict(row) for piece in pieces for row in piece}
                assert snapshot.count(each) == len(found[each.name])
        until(lambda: world.here(source)["seq"] > at + 1000, timeout=120)
    source.prepare(snapshot.position)
    for _, changes in collect(source, snapshot.position):
        fold_whole(changes, found)
    for name in CAPTURED:
        assert found[name] == rows_of(source, name)
    source.close()


def test_a_drain_that_is_larger_than_memory_should_hold_is_read_in_pieces_while_others_write(tmp_path: Path) -> None:
    world = World(tmp_path / "shop.db", wal=False)
    world.run("CREATE TABLE t (id INTEGER PRIMARY KEY, v text)")
    with world.opened("t") as (source, position):
        world.run(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) INSERT INTO t SELECT i, 'v' FROM n"
        )
        reading = source.changes(position)
        transaction = next(reading)
        assert transaction is not None
        changes = iter(transaction.changes)
        next(changes)
        world.run("PRAGMA busy_timeout = 0", "UPDATE t SET v = 'w'")  # no lock is held between two pieces
        assert sum(1 for _ in changes) == 19_999
        transaction = next(reading)
        assert transaction is not None
        assert sum(1 for _ in transaction.changes) == 20_000
    world.close()


def test_without_a_write_ahead_log_writers_do_not_wait_for_who_reads_a_snapshot(tmp_path: Path) -> None:
    world = World(tmp_path / "shop.db", wal=False)
    world.run("CREATE TABLE t (id INTEGER PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, CAST(x'ff' AS text))", "PRAGMA busy_timeout = 0")  # fmt: skip
    with world.opened("t", rows=1) as (source, _), source.snapshot(source.tables()) as snapshot:
        pieces = snapshot.rows(source.tables()[0])
        first = next(pieces)
        world.run("DELETE FROM t")
        assert [*first, *(row for piece in pieces for row in piece)] == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 3, "v": '{"bytes":"/w=="}'}]  # fmt: skip
    world.close()


def test_while_a_writer_keeps_everybody_out_there_is_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "shop.db", wal=False)
    world.run("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    with world.opened("t") as (source, position):
        world.run("BEGIN EXCLUSIVE", "INSERT INTO t VALUES (1)")
        reading = source.changes(position)
        for _ in range(2):
            began = time.monotonic()
            assert next(reading) is None
            assert time.monotonic() - began < 5  # not the 15 seconds that a writer is waited for
        world.run("COMMIT")
        found = until(lambda: next(reading))
        assert found is not None
        assert [each.after for each in found.changes] == [{"id": 1}]
    world.close()


def test_a_quiet_file_costs_nothing_and_says_so_at_least_once_a_second(world: World) -> None:
    world.run("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    with world.opened("t") as (source, position):
        reading = source.changes(position)
        assert next(reading) is None
        size, cpu, began = world.path.stat().st_size, resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        for _ in range(6):
            last = time.monotonic()
            assert next(reading) is None
            assert time.monotonic() - last < 5  # a second, and what others take of the machine
        spent = resource.getrusage(resource.RUSAGE_SELF)
        share = (spent.ru_utime + spent.ru_stime - cpu.ru_utime - cpu.ru_stime) / (time.monotonic() - began)
        assert share < 0.05
        assert world.path.stat().st_size == size


def test_what_is_committed_is_told_at_once(world: World) -> None:
    world.run("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    with world.opened("t") as (source, position):
        reading = source.changes(position)
        for number in range(5):
            assert next(reading) is None
            world.run(f"INSERT INTO t VALUES ({number})")
            transaction = next(reading)
            assert transaction is not None  # before the next time that there is nothing
            assert [each.after for each in transaction.changes] == [{"id": number}]


def test_a_fork_closes_what_is_open_and_reading_goes_on(world: World) -> None:
    world.run("CREATE TABLE t (id INTEGER PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    with world.opened("t", rows=1) as (source, position):
        reading = source.changes(position)
        assert next(reading) is None
        opened = source._file.opened
        child = os.fork()
        if not child:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        world.run("INSERT INTO t VALUES (3)")
        found = [each for each in (next(reading), next(reading)) if each]
        assert [change.after for each in found for change in each.changes] == [{"id": 3}]
        assert source._file.opened == opened + 1
