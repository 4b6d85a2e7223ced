"""What cannot be captured, or not without a gap, is refused with what mends it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from millstream.capture.mysql.source import MysqlSource
from millstream.errors import CaptureError, CaptureGap, CaptureUnavailable, ConfigError
from millstream.testing import MariaDbServer
from tests.capture.mysql.world import World
from tests.waiting import until


@pytest.mark.parametrize(
    ("create", "words", "hint"),
    [
        (None, "there is none", "GRANT SELECT"),
        ("CREATE TABLE t (id int)", "no primary key", "ADD PRIMARY KEY"),
        ("CREATE TABLE t (id int UNIQUE NOT NULL)", "no primary key", "ADD PRIMARY KEY"),
        ("CREATE VIEW t AS SELECT 1 AS id", "is a view", "tables that it is made of"),
        ("CREATE TABLE t (id int PRIMARY KEY) WITH SYSTEM VERSIONING", "is a system versioned", ""),
        ("CREATE TABLE t (id uuid PRIMARY KEY)", "the type uuid", "another type"),
        ("CREATE TABLE t (id int PRIMARY KEY, a inet6)", "the type inet6", "another type"),
        ("CREATE TABLE t (id int PRIMARY KEY, a text COMPRESSED)", "COMPRESSED", "another type"),
    ],
)
def test_a_table_that_cannot_be_followed_is_refused(
    mariadb: MariaDbServer, create: str | None, words: str, hint: str
) -> None:
    world = World(mariadb)
    if create:
        world.run(create)
    with pytest.raises(CaptureError, match=words) as found:
        world.source("t").tables()
    assert hint in found.value.hint


@pytest.mark.parametrize("rule", ["ON DELETE CASCADE", "ON DELETE SET NULL", "ON UPDATE CASCADE"])
def test_a_table_whose_rows_a_foreign_key_changes_is_refused_unless_allowed(mariadb: MariaDbServer, rule: str) -> None:
    world = World(mariadb)
    world.run(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE quiet (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES parent (id))",
    )
    world.source("parent", "quiet").prepare(None)
    world.run(f"CREATE TABLE child (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES parent (id) {rule})")
    with pytest.raises(CaptureError, match=rule) as found:
        world.source("child").prepare(None)
    assert "allow 'cascades'" in found.value.hint
    world.source("child", allow=["cascades"]).prepare(None)


def test_a_foreign_key_that_is_added_later_stops_the_capture(mariadb: MariaDbServer) -> None:
    world = World(mariadb)
    world.run("CREATE TABLE parent (id int PRIMARY KEY)", "CREATE TABLE child (id int PRIMARY KEY, p int)")
    with world.opened("child") as (source, position):
        world.run("ALTER TABLE child ADD FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE")
        with pytest.raises(CaptureError, match="ON DELETE CASCADE"):
            world.collect(source, position)


@pytest.mark.parametrize(
    ("setting", "value", "before"),
    [
        ("binlog_format", "MIXED", "ROW"),
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("binlog_row_metadata", "NO_LOG", "FULL"),
    ],
)
def test_a_setting_that_loses_something_is_refused_with_the_line_that_mends_it(
    mariadb: MariaDbServer, setting: str, value: str, before: str
) -> None:
    world = World(mariadb)
    world.run(f"SET GLOBAL {setting} = {value}")
    try:
        with pytest.raises(CaptureError, match=f"{setting} = {value}, expected {before}") as found:
            world.source().prepare(None)
    finally:
        world.run(f"SET GLOBAL {setting} = {before}")
    assert f"SET GLOBAL {setting} = {before};" in found.value.hint


def test_rows_without_the_names_of_columns_stop(mariadb: MariaDbServer) -> None:
    world = World(mariadb)
    with world.opened() as (source, position):
        world.run("SET GLOBAL binlog_row_metadata = NO_LOG")
        try:
            with pytest.raises(CaptureError, match="without the names") as found:
                world.collect(source, position)
        finally:
            world.run("SET GLOBAL binlog_row_metadata = FULL")
    assert "binlog_row_metadata = FULL" in found.value.hint


def test_the_rights_that_suffice_and_the_ones_that_are_missing(mariadb: MariaDbServer) -> None:
    world = World(mariadb)
    world.run("CREATE OR REPLACE USER reader@'127.0.0.1' IDENTIFIED BY 'hush'")
    world.run(f"GRANT SELECT ON {world.name}.* TO reader@'127.0.0.1'")

    def source() -> MysqlSource:
        return MysqlSource(world.address.replace("millstream@", "reader:${env:READER}@"), ["marker"], world.name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("READER", "wrong")
        with pytest.raises(CaptureError, match="Access denied") as found:
            source().prepare(None)
        assert "hush" not in str(found.value)
        patch.setenv("READER", "hush")
        with pytest.raises(CaptureError) as found:
            source().prepare(None)
        assert "REPLICATION SLAVE" in found.value.hint
        world.run("GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO reader@'127.0.0.1'")
        reading = source()
        reading.prepare(None)
        position = world.here(reading)
        world.run("INSERT INTO marker VALUES (77)")
        assert world.collect(reading, position) == []


def test_a_binary_log_that_was_purged_is_a_gap(own_mariadb: MariaDbServer) -> None:
    server = own_mariadb
    world = World(server)
    source = world.source()
    position = world.here(source)
    world.run("FLUSH BINARY LOGS")

    def purged() -> bool:  # the server keeps a file for a while that a reader has just left
        world.run("PURGE BINARY LOGS TO 'binlog.000002'")
        return bool(world.run("SHOW BINARY LOGS")[0][0] == "binlog.000002")

    until(purged)
    asks: tuple[Callable[[], object], ...] = (lambda: source.prepare(position), lambda: next(source.changes(position)))
    for ask in asks:
        with pytest.raises(CaptureGap, match=r"has no binary log binlog\.000001 any more") as found:
            ask()
        assert "new snapshot" in found.value.hint
        assert "binlog_expire_logs_seconds" in found.value.hint


def test_another_server_and_one_that_was_restored_are_told_apart(own_mariadb: MariaDbServer) -> None:
    server = own_mariadb
    world = World(server)
    world.run("CREATE TABLE a (id int PRIMARY KEY)")
    server.stop()
    backup = server.data.with_name("backup")
    shutil.copytree(server.data, backup)
    for place in (backup, *backup.rglob("*")):
        owner = server.data.stat()
        os.chown(place, owner.st_uid, owner.st_gid)
    server.start()
    world.run("INSERT INTO a VALUES (1)")
    source = world.source("a", patience=timedelta(seconds=5))
    position = world.here(source)
    with pytest.raises(CaptureError, match="the position is of the server 'mariadb 9'"):
        source.prepare({**position, "server": "mariadb 9"})
    server.stop()
    shutil.rmtree(server.data)
    backup.rename(server.data)
    until(lambda: time.time() >= position["made"] + 1)  # a file is told from another by the second in which it was made
    server.start()
    with pytest.raises(CaptureError, match=r"another file than the one|the server lost what it had written") as found:
        source.prepare(position)
    assert "restored from a backup" in found.value.message or "lost" in found.value.message
    world.run(*(f"INSERT INTO a VALUES ({number})" for number in range(10, 30)))
    with pytest.raises(CaptureGap, match="another file than the one"):
        source.prepare(position)


def test_a_position_of_another_source_is_refused(mariadb: MariaDbServer) -> None:
    with pytest.raises(CaptureError, match="which is none in the binary log"):
        World(mariadb).source().prepare({"lsn": "0/1"})


def test_options_and_addresses_are_checked_before_anything_is_asked() -> None:
    with pytest.raises(ConfigError, match="expected 'cascades' or 'rewrites'"):
        MysqlSource("mysql://me@localhost/shop", ["a"], "n", allow=["everything"])
    with pytest.raises(ConfigError, match="named twice"):
        MysqlSource("mysql://me@localhost/shop", ["a", "shop.a"], "n")
    with pytest.raises(ConfigError, match="no table"):
        MysqlSource("mysql://me@localhost/shop", [], "n")
    for address in (
        "mysql://me:hush@localhost/shop",
        "mysql://me@localhost/shop?password=hush",
        "mysql://me@localhost",
    ):
        with pytest.raises(ConfigError) as found:
            MysqlSource(address, ["a"], "n")
        assert "hush" not in str(found.value)
    with pytest.raises(CaptureUnavailable):
        MysqlSource("mysql://me@127.0.0.1:1/shop", ["a"], "n").tables()
