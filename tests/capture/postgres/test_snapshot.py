"""A snapshot and the changes after it make the table, whatever is written meanwhile."""

from __future__ import annotations

import psycopg
import pytest

from millstream.capture.postgres import server
from millstream.capture.postgres.position import lsn_of
from millstream.errors import CaptureError, CaptureGap, CaptureUnavailable, TableChanged
from tests.capture.postgres.test_faults import tables, writing
from tests.capture.postgres.world import Rows, World, fold, key_of, rows_of
from tests.waiting import until


@pytest.mark.parametrize("before", [False, True], ids=["the first", "a later one"])
def test_changes_after_a_snapshot_fit_on_its_rows(world: World, before: bool) -> None:
    tables(world)
    with writing(world, 3) as done:
        until(lambda: min(done) >= 20, timeout=120)
        source = world.source("a", "b", rows=50)
        source.prepare(None)
        if before:
            reading = source.changes(world.here(source))
            until(lambda: next(reading), timeout=60)
            reading.close()  # type: ignore[attr-defined]
        found: Rows = {}
        captured = source.tables()
        with source.snapshot(captured) as snapshot:
            for table in captured[:2]:
                pieces = list(snapshot.rows(table))
                assert all(len(piece) <= 50 for piece in pieces)
                found[table.name] = {key_of(table, row): dict(row) for piece in pieces for row in piece}
        wanted = min(done) + 20
        until(lambda: min(done) >= wanted, timeout=120)
    fold(world.changes(source, snapshot.position), found)
    assert found["a"] == rows_of(source, "a")
    assert found["b"] == rows_of(source, "b")


def test_a_table_that_is_added_to_a_running_capture_begins_with_its_snapshot(world: World) -> None:
    tables(world)
    with world.opened("a") as (_, position):
        world.run("INSERT INTO a VALUES (1, 1, 'a')", "INSERT INTO b VALUES (1, 1, 'before')")
        more = world.source("a", "b")
        more.prepare(position)
        world.run("INSERT INTO b VALUES (2, 2, 'in both')")
        b = more.tables()[1]
        with more.snapshot([b]) as snapshot:
            rows = {key_of(b, row): dict(row) for piece in snapshot.rows(b) for row in piece}
        world.run("UPDATE b SET t = 'after'")
        assert rows.keys() == {(1,), (2,)}
        assert [
            each.after["id"] for each in world.changes(more, position) if each.table.name == "a" and each.after
        ] == [1]
        after = [each for each in world.changes(more, snapshot.position) if each.table.name == "b"]
        assert fold(after, {"b": rows})["b"] == rows_of(more, "b")


def test_a_table_that_is_not_as_it_was_is_an_error(world: World) -> None:
    tables(world)
    source = world.source("a", "b")
    source.prepare(None)
    before = source.tables()
    world.run("ALTER TABLE a ADD COLUMN more int")
    with source.snapshot(before) as snapshot, pytest.raises(TableChanged, match="not as it was") as found:
        list(snapshot.rows(before[0]))
    assert found.value.hint == "begin the snapshot again"
    world.run("DROP TABLE b")
    with pytest.raises(CaptureError, match=r"there is none|not as it was"):
        source.snapshot(before)


@pytest.mark.parametrize("statement", ["TRUNCATE a", "ALTER TABLE a ALTER v TYPE real"])
def test_a_table_that_was_rewritten_since_the_snapshot_would_look_empty_and_is_an_error(
    world: World, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    from millstream.capture.postgres import snapshot as module

    tables(world)
    source = world.source("a", "b")
    source.prepare(None)
    captured = source.tables()
    lock = module._lock

    def late(ask: server.Ask, table: object) -> None:
        if not done:
            done.append(world.run(statement))
        lock(ask, table)  # type: ignore[arg-type]

    done: list[object] = []
    monkeypatch.setattr(module, "_lock", late)
    with pytest.raises(TableChanged, match="not as it was"), source.snapshot(captured) as snapshot:
        list(snapshot.rows(captured[0]))
    assert done


def test_a_snapshot_that_is_left_half_read_keeps_nothing_open(world: World) -> None:
    tables(world)
    source = world.source("a", rows=1)
    source.prepare(None)
    world.run("INSERT INTO a SELECT i, 1, REPEAT('x', 1000) FROM generate_series(1, 4000) i", "ANALYZE a")
    (table, _) = source.tables()
    with source.snapshot([table]) as snapshot:
        reading = iter(snapshot.rows(table))
        next(reading)
        assert snapshot.count(table) == 4001
        with world.connect() as other:
            other.execute("SET lock_timeout = 100")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                other.execute("ALTER TABLE a ADD COLUMN more int")
    world.run("SET lock_timeout = 30000", "ALTER TABLE a ADD COLUMN more int")
    assert world.run("SELECT count(*) FROM pg_replication_slots WHERE temporary") == [(0,)]


def test_a_slot_that_waits_for_a_transaction_of_others_gives_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import timedelta

    monkeypatch.setattr(server, "WAITS", timedelta(seconds=1))
    with world.connect() as other:
        other.execute("BEGIN")
        other.execute("INSERT INTO marker VALUES (-1)")
        source = world.source()
        with pytest.raises(CaptureUnavailable, match="waits since 1 s for transactions") as found:
            source.prepare(None)
        assert "pg_stat_activity" in found.value.hint
        other.execute("COMMIT")
    source.prepare(None)


def test_odd_names_are_read_as_they_are(world: World) -> None:
    world.run('CREATE SCHEMA "Sch""ema"', 'CREATE TABLE "Sch""ema"."T %s" ("I d" int PRIMARY KEY, "ü\'" text)')
    source = world.source('Sch"ema.T %s')
    source.prepare(None)
    position = world.here(source)
    world.run("""INSERT INTO "Sch""ema"."T %s" VALUES (1, 'x'), (2, NULL)""")
    rows = fold(world.changes(source, position), {})["T %s"]
    assert rows == rows_of(source, "T %s") == {(1,): {"I d": 1, "ü'": "x"}, (2,): {"I d": 2, "ü'": None}}


def test_the_end_has_every_commit_that_others_see_and_waits_for_no_open_transaction(world: World) -> None:
    tables(world)
    with world.opened("a") as (source, _), world.connect() as open_one, world.connect() as hasty:
        open_one.execute("BEGIN; INSERT INTO a VALUES (1000, 0, 'open')")
        hasty.execute("SET synchronous_commit = off")
        for number in range(6):
            hasty.execute(b"INSERT INTO a VALUES (%d, 0, 'x')" % number)
            end = source.end()
            ((flushed,),) = world.run("SELECT pg_current_wal_flush_lsn()::text")
            assert lsn_of(end["lsn"]) <= lsn_of(flushed)
            assert [each.after["id"] for each in world.changes(source, end) if each.after] == []
        open_one.execute("COMMIT")
        assert [each.after["id"] for each in world.changes(source, end) if each.after] == [1000]


def test_who_reads_up_to_the_end_is_told_of_it_at_once_though_nothing_of_ours_is_there(world: World) -> None:
    tables(world)
    with world.opened("a") as (source, position):
        reading = source.changes(position)
        until(lambda: next(reading) is None)
        world.run("INSERT INTO b VALUES (1, 1, 'of others')")
        end, quiet = lsn_of(source.end()["lsn"]), 0
        for found in reading:
            quiet += found is None
            if found is not None and lsn_of(found.position["lsn"]) >= end:
                break
        reading.close()  # type: ignore[attr-defined]
        assert quiet < 3  # of twenty in the ten seconds after which a position without changes is told else


def test_the_end_of_a_server_at_rest_is_where_it_was(world: World) -> None:
    tables(world)
    with world.opened("a") as (source, _):
        source.end()
        until(lambda: source.end() == source.end())


def test_a_capture_that_is_gone_has_no_end(world: World) -> None:
    tables(world)
    with world.opened("a") as (source, _):
        source.remove()
        with pytest.raises(CaptureGap, match="no replication slot"):
            source.end()
