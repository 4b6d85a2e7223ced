"""A snapshot and the changes after it make the table, whatever is written meanwhile."""

from __future__ import annotations

from typing import Any

import pymysql
import pytest

from millstream.capture.mysql import snapshot as snapshot_module
from millstream.errors import CaptureError
from millstream.testing import MariaDbServer
from tests.capture.mysql.test_faults import tables, writing
from tests.capture.mysql.world import Rows, World, fold, key_of, rows_of
from tests.waiting import until


@pytest.mark.parametrize("locked", [False, True], ids=["its place told", "under a lock, as on MySQL"])
def test_changes_after_a_snapshot_fit_on_its_rows(
    mariadb: MariaDbServer, monkeypatch: pytest.MonkeyPatch, locked: bool
) -> None:
    world = World(mariadb)
    tables(world)
    if locked:
        server = world.source("a")._server
        monkeypatch.setattr(snapshot_module, "_begin_mariadb", lambda db: snapshot_module.begin_locked(server, db))
    with writing(world, 3) as done:
        until(lambda: min(done) >= 20, timeout=120)
        source = world.source("a", "b", rows=50)
        found: Rows = {}
        captured = source.tables()
        with source.snapshot(captured) as snapshot:
            for table in captured[:2]:
                pieces = list(snapshot.rows(table))
                assert all(len(piece) <= 50 for piece in pieces)
                found[table.name] = {key_of(table, row): dict(row) for piece in pieces for row in piece}
                assert snapshot.count(table) is not None
        wanted = min(done) + 20
        until(lambda: min(done) >= wanted, timeout=120)
    fold(world.changes(source, snapshot.position), found)
    assert found["a"] == rows_of(source, "a")
    assert found["b"] == rows_of(source, "b")


def test_a_table_that_is_altered_before_it_is_read_is_an_error(mariadb: MariaDbServer) -> None:
    world = World(mariadb)
    tables(world)
    source = world.source("a", "b")
    before = source.tables()
    world.run("ALTER TABLE a ADD COLUMN more int")
    with source.snapshot(before) as snapshot, pytest.raises(CaptureError, match="not as it was") as found:
        list(snapshot.rows(before[0]))
    assert found.value.hint == "begin the snapshot again"
    with source.snapshot(source.tables()) as snapshot:
        world.run("ALTER TABLE b DROP COLUMN t", "TRUNCATE a")
        for table in source.tables()[:2]:
            with pytest.raises(CaptureError):
                list(snapshot.rows(table))


def test_a_snapshot_that_is_left_half_read_keeps_nothing_open(mariadb: MariaDbServer) -> None:
    world = World(mariadb)
    tables(world)
    source = world.source("a", rows=1)
    world.run("INSERT INTO a SELECT seq, 1, REPEAT('x', 1000) FROM seq_1_to_4000")
    (table, _) = source.tables()
    with source.snapshot([table]) as snapshot:
        next(iter(snapshot.rows(table)))
    source.close()
    connection: pymysql.Connection[Any] = world.connect()
    with connection.cursor() as cursor:
        cursor.execute("SET lock_wait_timeout = 30")
        cursor.execute("ALTER TABLE a ADD COLUMN more int")
    connection.close()


def test_there_is_nothing_to_acknowledge_or_to_take_out(mariadb: MariaDbServer) -> None:
    world = World(mariadb)
    with world.opened() as (source, position):
        before = world.run("SHOW TABLES"), world.run("SELECT COUNT(*) FROM mysql.global_priv")
        source.acknowledge(position)
        source.remove()
        assert (world.run("SHOW TABLES"), world.run("SELECT COUNT(*) FROM mysql.global_priv")) == before
        assert source.connector == "mariadb"
