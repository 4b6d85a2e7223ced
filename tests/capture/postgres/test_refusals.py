"""What cannot be captured, or not without a gap, is refused with what mends it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from millstream.capture.postgres import source as source_module
from millstream.capture.postgres.source import PostgresSource
from millstream.errors import CaptureError, CaptureGap, CaptureUnavailable, ConfigError, TableChanged
from millstream.testing import PostgresServer
from tests.capture.postgres.world import World
from tests.waiting import until


@pytest.mark.parametrize(
    ("create", "words", "hint"),
    [
        ("SELECT 1", "there is none", "check the name"),
        ("CREATE TABLE t (id int)", "no primary key", "ADD PRIMARY KEY"),
        ("CREATE TABLE t (id int UNIQUE NOT NULL)", "no primary key", "USING INDEX"),
        ("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE)", "no primary key that is checked at once", "ADD PRIMARY KEY"),
        ("CREATE TABLE t (id int); ALTER TABLE t REPLICA IDENTITY FULL", "no primary key", "ADD PRIMARY KEY"),
        ("CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY NOTHING", "no replica identity", "REPLICA IDENTITY DEFAULT"),
        ("CREATE VIEW t AS SELECT 1 AS id", "is a view", "tables that it is made of"),
        ("CREATE MATERIALIZED VIEW t AS SELECT 1 AS id", "is a materialized view", "tables that it is made of"),
        ("CREATE UNLOGGED TABLE t (id int PRIMARY KEY)", "is an unlogged table", "SET LOGGED"),
        (
            "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE t1 PARTITION OF t DEFAULT; ALTER TABLE t REPLICA IDENTITY FULL",
            r"its partition public\.t1 has another replica identity", 'ALTER TABLE "public"."t1" REPLICA IDENTITY FULL',
        ),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_followed_is_refused(world: World, create: str, words: str, hint: str) -> None:
    world.run(create)
    source = world.source("t")
    with pytest.raises(CaptureError, match=words) as found:
        source.tables()
    assert hint in found.value.hint
    with pytest.raises(CaptureError, match=words):
        source.prepare(None)
    assert world.run("SELECT count(*) FROM pg_publication") == [(0,)]


def test_a_server_without_logical_decoding_is_refused(postgres: PostgresServer) -> None:
    world = World(postgres)
    with pytest.raises(CaptureError, match="wal_level = replica, expected logical") as found:
        world.source().prepare(None)
    assert "ALTER SYSTEM SET wal_level = logical" in found.value.hint
    world.close()


def test_the_rights_that_suffice_and_the_ones_that_are_missing(world: World) -> None:
    role = f"reader_{world.name}"
    world.run(f"DROP ROLE IF EXISTS {role}", f"CREATE ROLE {role} LOGIN")
    source = world.source(address=world.address.replace("millstream@", f"{role}@"))
    for words, mend in (
        ("may not read the write-ahead log", f"ALTER ROLE {role} REPLICATION"),
        ("the user may not read it", f"GRANT SELECT ON marker TO {role}"),
        ("the publication is missing", f"CREATE PUBLICATION {world.slot} FOR TABLE marker WITH (publish_via_partition_root = true)"),
    ):  # fmt: skip
        with pytest.raises(CaptureError, match=words) as found:
            source.prepare(None)
        assert mend.split()[0] in found.value.hint
        world.run(mend)
    source.prepare(None)
    position = world.here(source)
    world.run("INSERT INTO marker VALUES (77)")
    assert world.collect(source, position) == []
    source.close()
    world.run("ALTER TABLE marker ENABLE ROW LEVEL SECURITY")
    with pytest.raises(CaptureError, match="a policy hides rows") as found:
        source.prepare(position)
    assert "BYPASSRLS" in found.value.hint
    world.run(f"DROP OWNED BY {role}")


@pytest.mark.parametrize(
    ("publication", "words", "hint"),
    [
        ("FOR TABLE marker WITH (publish = 'insert')", "leaves out kinds of changes", "SET (publish = "),
        ("FOR TABLE marker WHERE (id > 5)", r"has only some rows of table public\.marker", "DROP TABLE"),
        ("FOR TABLE marker (id)", r"has only some columns of table public\.marker", "ADD TABLE"),
    ],
)
def test_a_publication_that_leaves_something_out_is_refused(
    world: World, publication: str, words: str, hint: str
) -> None:
    world.run(f"CREATE PUBLICATION {world.slot} {publication}")
    with pytest.raises(CaptureError, match=words) as found:
        world.source().prepare(None)
    assert hint in found.value.hint


@pytest.mark.parametrize("which", ["ALL TABLES", "TABLES IN SCHEMA public"])
def test_a_publication_of_everything_that_an_administrator_made_will_do(world: World, which: str) -> None:
    world.run("CREATE TABLE other (id int PRIMARY KEY)")
    world.run(f"CREATE PUBLICATION {world.slot} FOR {which}")
    with world.opened() as (source, position):
        world.run("INSERT INTO other VALUES (1)", "INSERT INTO marker VALUES (77)")
        assert world.collect(source, position) == []
        source.prepare(position)


def _begun(world: World) -> tuple[PostgresSource, dict[str, object]]:
    world.run("CREATE TABLE a (id int PRIMARY KEY)")
    source = world.source("a")
    source.prepare(None)
    world.run("INSERT INTO a VALUES (1)")
    return source, dict(world.here(source))


def _both(source: PostgresSource, position: dict[str, object]) -> tuple[Callable[[], object], ...]:
    return (lambda: source.prepare(position), lambda: next(source.changes(position)))


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (["SELECT pg_drop_replication_slot('{slot}')"], "there is no replication slot"),
        (["INSERT INTO a VALUES (2)", "SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())"], "was advanced, or dropped"),
        (
            ["SELECT pg_drop_replication_slot('{slot}')", "INSERT INTO a VALUES (2)", "SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"],
            "was advanced, or dropped",
        ),
        (["DROP PUBLICATION {slot}"], "there is no publication"),
        (["DROP PUBLICATION {slot}", "CREATE PUBLICATION {slot} FOR TABLE a, marker"], "the publication was dropped and made again"),
    ],
)  # fmt: skip
def test_what_was_lost_or_made_again_is_a_gap(world: World, statements: list[str], words: str) -> None:
    source, position = _begun(world)
    world.run(*(each.format(slot=world.slot) for each in statements))
    for ask in _both(source, position):
        with pytest.raises(CaptureGap, match=words) as found:
            ask()
        assert "take a new snapshot" in found.value.hint


@pytest.mark.parametrize(
    "statements",
    [
        ["ALTER PUBLICATION {slot} DROP TABLE a", "INSERT INTO a VALUES (2)", "ALTER PUBLICATION {slot} ADD TABLE a"],
        ["DROP TABLE a", "CREATE TABLE a (id int PRIMARY KEY)", "ALTER PUBLICATION {slot} ADD TABLE a"],
    ],
)
def test_a_table_that_was_out_of_the_publication_or_is_another_needs_a_snapshot(
    world: World, statements: list[str]
) -> None:
    source, position = _begun(world)
    world.run(*(each.format(slot=world.slot) for each in statements))
    for ask in _both(source, position):
        with pytest.raises(TableChanged, match=r"public\.a is another table") as found:
            ask()
        assert "new snapshot" in found.value.hint


def test_a_slot_of_another_plugin_or_database_is_refused(world: World) -> None:
    source = world.source()
    world.run(f"SELECT pg_create_logical_replication_slot('{world.slot}', 'test_decoding')")
    with pytest.raises(CaptureError, match="has the plugin test_decoding") as found:
        source.prepare(None)
    assert "pg_drop_replication_slot" in found.value.hint
    world.run(f"SELECT pg_drop_replication_slot('{world.slot}')")
    world.run(f"SELECT pg_create_logical_replication_slot('{world.slot}', 'pgoutput')", database="postgres")
    with pytest.raises(CaptureError, match="is of the database postgres"):
        source.prepare(None)
    world.run(f"SELECT pg_drop_replication_slot('{world.slot}')", database="postgres")


def test_a_slot_that_another_capture_reads_from_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_LINGERS", 0.5)
    source, position = _begun(world)
    reading = source.changes(position)
    until(lambda: next(reading) is None)
    second = world.source("a", patience=timedelta(seconds=1))
    with pytest.raises(CaptureUnavailable, match="in use by the server's process") as found:
        second.prepare(None)
    assert "another name" in found.value.hint
    third = second.changes(position)
    with pytest.raises(CaptureUnavailable, match="is active for PID") as found:
        until(lambda: next(third) and False)
    assert "another name" in found.value.hint


def test_what_a_slot_kept_and_the_server_threw_away_is_a_gap(own_logical: PostgresServer) -> None:
    world = World(own_logical)
    source, position = _begun(world)
    world.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")

    def lost() -> bool:
        world.run("SELECT pg_switch_wal()", "INSERT INTO a SELECT max(id) + 1 FROM a", "CHECKPOINT")
        return world.run("SELECT wal_status FROM pg_replication_slots") == [("lost",)]

    until(lost, timeout=60)
    for ask in _both(source, position):
        with pytest.raises(CaptureGap, match="has thrown away") as found:
            ask()
        assert "max_slot_wal_keep_size" in found.value.hint
    source.prepare(None)  # with nothing to go on from, a slot that is lost is made anew
    assert world.collect(source, world.here(source)) == []


def test_another_server_and_one_that_was_promoted_are_told_apart(own_logical: PostgresServer) -> None:
    server = own_logical
    world = World(server)
    source, position = _begun(world)
    for what, value, words in (("system", "7", "the position is of the system 7"), ("timeline", 3, "on timeline 1, and the position on 3")):  # fmt: skip
        for ask in _both(source, position | {what: value}):
            with pytest.raises(CaptureGap, match=words) as found:
                ask()
            assert "new snapshot" in found.value.hint
    server.stop()
    (server._data / "standby.signal").touch()
    shutil.chown(server._data / "standby.signal", server._data.owner(), server._data.group())
    starting = threading.Thread(target=server.start)  # is through when it has been promoted
    starting.start()

    def refused() -> str:
        try:
            source.prepare(position)
        except CaptureUnavailable:
            return ""
        except CaptureError as error:
            return error.message
        return "taken"

    assert "is a standby" in until(refused, timeout=60)
    world.run("SELECT pg_promote()")
    starting.join(60)
    with pytest.raises(CaptureGap, match=r"on timeline 2, and the position on 1: a standby was promoted"):
        source.prepare(position)


def test_remove_takes_out_what_prepare_made(world: World) -> None:
    source, position = _begun(world)
    reading = source.changes(position)
    until(lambda: next(reading) is None)
    source.remove()
    assert world.run(f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{world.slot}'") == [(0,)]
    assert world.run("SELECT count(*) FROM pg_publication") == [(0,)]
    source.remove()
    assert source.connector == "postgresql"


def test_a_position_of_another_source_is_refused(world: World) -> None:
    with pytest.raises(CaptureError, match="which is none in PostgreSQL's log"):
        world.source().prepare({"file": "binlog.1", "byte": 4})


def test_options_and_addresses_are_checked_before_anything_is_asked() -> None:
    good = "postgresql://me@localhost/shop"
    with pytest.raises(ConfigError, match="expected 'rewrites'"):
        PostgresSource(good, ["a"], "n", allow=["everything"])
    with pytest.raises(ConfigError, match="named twice"):
        PostgresSource(good, ["a", "public.a"], "n")
    with pytest.raises(ConfigError, match="no table"):
        PostgresSource(good, [], "n")
    for address in ("postgresql://me:hush@localhost/shop", "postgresql://me@localhost/shop?password=hush", "mysql://me:hush@localhost/shop"):  # fmt: skip
        with pytest.raises(ConfigError, match="capture") as found:
            PostgresSource(address, ["a"], "n")
        assert "hush" not in str(found.value)
    with pytest.raises(CaptureUnavailable):
        PostgresSource("postgresql://me@127.0.0.1:1/shop", ["a"], "n").tables()
