"""What cannot be captured, or not without a gap, is refused with the line that mends it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.capture.contract import Position
from millstream.capture.sqlite import file as file_module
from millstream.capture.sqlite.source import SqliteSource
from millstream.errors import CaptureError, CaptureGap, CaptureUnavailable, ConfigError, TableChanged
from tests.capture.sqlite.world import Session, World, changes_of, collect


@pytest.mark.parametrize(
    ("create", "words", "hint"),
    [
        (None, "there is none in the file", "check the name"),
        ("CREATE TABLE t (v int UNIQUE)", "no primary key", "INTEGER PRIMARY KEY"),
        ("CREATE VIEW t AS SELECT 1 AS id", "is a view", "tables that it is made of"),
        ("CREATE VIRTUAL TABLE t USING fts5 (words)", "is a virtual table", "tables that it is made of"),
        ("CREATE TABLE t (id INTEGER PRIMARY KEY, v text); CREATE UNIQUE INDEX low ON t (lower(v))", "unique key low is an expression", "allow 'replaces'"),
        (f"CREATE TABLE t (id INTEGER PRIMARY KEY, {', '.join(f'c{number}' for number in range(1000))})", "has 1001 columns", "split this one"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_captured_is_refused(world: World, create: str | None, words: str, hint: str) -> None:
    for each in create.split("; ") if create else ():
        world.run(each)
    source = world.source("t")
    for ask in (source.tables, lambda: source.prepare(None)):
        with pytest.raises(CaptureError, match=words) as found:
            ask()
        assert hint in found.value.hint
    source.close()
    assert world.run("SELECT name FROM sqlite_master WHERE name LIKE '%millstream%'") == []


def test_a_unique_expression_is_captured_if_that_is_allowed(world: World) -> None:
    world.run("CREATE TABLE t (id INTEGER PRIMARY KEY, v text)", "CREATE UNIQUE INDEX low ON t (lower(v))")
    with world.opened("t", allow=["replaces"]) as (source, position):
        world.run("INSERT INTO t VALUES (1, 'A')")
        assert [each.after for each in changes_of(source, position)] == [{"id": 1, "v": "A"}]


def test_a_row_whose_key_is_null_stops(world: World) -> None:
    world.run("CREATE TABLE t (id text PRIMARY KEY, v int)")
    with world.opened("t") as (source, position):
        world.run("INSERT INTO t VALUES (NULL, 1)")
        asks: tuple[Callable[[], object], ...] = (lambda: changes_of(source, position), lambda: _read(source))
        for ask in asks:
            with pytest.raises(CaptureError, match="a null in its key") as found:
                ask()
            assert "DELETE FROM t WHERE id IS NULL" in found.value.hint


def _read(source: SqliteSource) -> None:
    with source.snapshot(source.tables()) as snapshot:
        list(snapshot.rows(source.tables()[0]))


CHANGES = {
    "ALTER TABLE t ADD COLUMN more int": "was altered: found",
    "ALTER TABLE t RENAME COLUMN v TO w": "was altered: found",
    "ALTER TABLE t RENAME TO u": "was dropped or renamed",
    "DROP TABLE t": "was dropped or renamed",
    "CREATE UNIQUE INDEX more ON t (id, v)": "unique keys are others",
    "DROP INDEX one": "unique keys are others",
    "CREATE TRIGGER more AFTER INSERT ON t BEGIN UPDATE t SET v = 1 WHERE id = NEW.id; END": "triggers or foreign keys of the application",
    'DROP TRIGGER "_millstream:shop:1:ad"': "were dropped or changed",
    "DROP TABLE t; CREATE TABLE t (id INTEGER PRIMARY KEY, v int); CREATE UNIQUE INDEX one ON t (v)": "were dropped or changed",
    "DROP TABLE t; CREATE TABLE t (id int, v INTEGER PRIMARY KEY)": "was altered: found",
}


@pytest.mark.parametrize("statement", CHANGES)
def test_a_table_that_was_altered_by_hand_stops_until_there_is_a_new_snapshot(world: World, statement: str) -> None:
    world.run("CREATE TABLE t (id INTEGER PRIMARY KEY, v int)", "CREATE UNIQUE INDEX one ON t (v)")
    with world.opened("t") as (source, position):
        assert collect(source, position) == []
        world.run("DELETE FROM t", *([statement] if "TRIGGER" in statement else statement.split("; ")))
        tries: tuple[Callable[[], object], ...] = (
            lambda: changes_of(source, position),
            lambda: source.prepare(position),
        )
        for ask in tries:
            with pytest.raises(TableChanged, match=CHANGES[statement]) as found:
                ask()
            assert "new snapshot" in found.value.hint
            assert "millstream capture alter" in found.value.hint
        if world.run("SELECT 1 FROM sqlite_master WHERE name = 't'"):
            source.prepare(None)
            position = world.here(source)
            world.run("INSERT INTO t (id) VALUES (2)")
            assert changes_of(source, position)[0].op == "c"


def test_what_changes_nothing_for_a_capture_may_be_done_by_hand(world: World) -> None:
    world.run(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, v int)", "CREATE TRIGGER theirs AFTER INSERT ON t BEGIN SELECT 1; END"
    )
    with world.opened("t") as (source, position):
        world.run(
            "CREATE INDEX plain ON t (v)", "DROP TRIGGER theirs", "ANALYZE", "CREATE TABLE u (id int)", "CREATE TRIGGER theirs AFTER INSERT ON u BEGIN SELECT 1; END",
            "INSERT INTO t VALUES (1, 1), (2, 1)", "VACUUM", "INSERT INTO t VALUES (3, 3)",
        )  # fmt: skip
        ((transaction, changes),) = collect(source, position)
        assert len(changes) == 3
        before = world.run("SELECT sql FROM sqlite_master WHERE type = 'trigger' AND name LIKE '%:au'")
        source.prepare(transaction.position)
        assert world.run("SELECT sql FROM sqlite_master WHERE type = 'trigger' AND name LIKE '%:au'") != before
        world.run("REPLACE INTO t VALUES (1, 3)")
        assert [each.op for each in changes_of(source, transaction.position)] == ["d", "c"]


def backup(world: World, to: Path) -> None:
    world.run(f"VACUUM INTO '{to}'")


def restore(world: World, of: Path) -> None:
    """Put a backup in the place of the file, as one does: the application is down."""
    world.close()
    for each in world.path.parent.glob(f"{world.path.name}-*"):
        if "millstream" not in each.name:
            each.unlink()
    shutil.copyfile(of, of.with_suffix(".new"))
    os.replace(of.with_suffix(".new"), world.path)
    world.session = Session(world.path)


@pytest.mark.parametrize("written", [0, 1, 2, 50], ids="{} written since".format)
def test_a_file_that_was_restored_from_a_backup_is_a_gap(world: World, tmp_path: Path, written: int) -> None:
    world.run("CREATE TABLE t (id INTEGER PRIMARY KEY)", "INSERT INTO t VALUES (1000)")
    with world.opened("t") as (source, position):
        world.run("INSERT INTO t VALUES (1001)")
        backup(world, tmp_path / "backup")
        world.run("INSERT INTO t VALUES (1002)", "INSERT INTO t VALUES (1003)")
        reading = source.changes(position)
        transaction = next(reading)
        assert transaction is not None
        assert len(list(transaction.changes)) == 3
        assert next(reading) is None
        restore(world, tmp_path / "backup")
        for number in range(written):
            world.run(f"INSERT INTO t VALUES ({number})")
        tries: list[Callable[[], object]] = [
            lambda: [next(reading) for _ in range(3)],
            lambda: source.prepare(transaction.position),
            lambda: collect(source, transaction.position),
        ]
        for ask in tries:
            with pytest.raises(CaptureGap, match="restored from a backup") as found:
                ask()
            assert "new snapshot" in found.value.hint
        collect(source, position)  # from before the backup everything is there


def test_a_backup_from_before_what_was_acknowledged_and_one_from_before_the_capture_are_gaps(world: World, tmp_path: Path) -> None:  # fmt: skip
    world.run("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    backup(world, tmp_path / "first")
    with world.opened("t") as (source, position):
        world.run("INSERT INTO t VALUES (1)")
        backup(world, tmp_path / "second")
        world.run("INSERT INTO t VALUES (2)")
        ((transaction, _),) = collect(source, position)
        source.acknowledge(transaction.position)
        source.close()
        for name, words in (("second", "restored from a backup"), ("first", "has nothing of the capture 'shop'")):
            restore(world, tmp_path / name)
            again = world.source("t")
            with pytest.raises(CaptureGap, match=words):
                again.prepare(transaction.position)
            again.close()


def test_changes_that_were_forgotten_and_a_capture_that_began_anew_are_gaps(world: World) -> None:
    world.run("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    with world.opened("t") as (source, position):
        world.run("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
        ((transaction, _),) = collect(source, position)
        source.acknowledge(transaction.position)
        source.close()
        with pytest.raises(CaptureGap, match="were acknowledged and are forgotten"):
            source.prepare(position)
        source.prepare(None)
        for at in (position, transaction.position):
            with pytest.raises(CaptureGap, match="began anew"):
                source.prepare(at)
        source.remove()
        with pytest.raises(CaptureGap, match="was removed"):
            source.prepare(position)


def test_a_capture_is_read_by_one_process(world: World) -> None:
    world.run("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    with world.opened("t") as (_, position):
        second = world.source("t", name="SHOP")
        with pytest.raises(CaptureUnavailable, match="another process reads the capture") as found:
            second.prepare(position)
        assert "another name" in found.value.hint
    second.prepare(position)
    reading = second.changes(position)
    assert next(reading) is None
    world.source("t").remove()  # who says so may
    with pytest.raises(CaptureGap, match="was removed"):
        next(reading)
    second.close()


def test_positions_options_and_addresses_are_checked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.run("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    others: tuple[Position, ...] = (
        {"lsn": "0/1"},
        {"server": "mariadb 1", "file": "binlog.1", "byte": 4, "made": 1, "gtid": ""},
    )
    for other in others:
        with pytest.raises(CaptureError, match="which is none in a SQLite file"):
            world.source("t").prepare(other)
    with pytest.raises(ConfigError, match="expected 'replaces'"):
        world.source("t", allow=["everything"])
    with pytest.raises(ConfigError, match="named twice"):
        world.source("t", "main.T")
    with pytest.raises(ConfigError, match="no table"):
        world.source()
    for name in ("", "a:b", "a/b"):
        with pytest.raises(ConfigError, match="expected letters, digits"):
            world.source("t", name=name)
    with pytest.raises(ConfigError, match="expected sqlite:PATH"):
        SqliteSource("kafka://localhost:9092", ["t"], "n")
    with pytest.raises(CaptureUnavailable, match="No such file"):
        SqliteSource(f"sqlite:{world.path}.none", ["t"], "n").tables()
    assert not Path(f"{world.path}.none").exists()
    no_database = world.path.with_name("text")
    no_database.write_text("this is text, and long enough to be taken for the header of a file" * 9)
    with pytest.raises(CaptureError, match="file is not a database"):
        SqliteSource(f"sqlite:{no_database}", ["t"], "n").tables()
    monkeypatch.setattr(file_module, "BUSY_TIMEOUT", 50)
    world.run("BEGIN IMMEDIATE")
    source = world.source("t")
    with pytest.raises(CaptureUnavailable, match="database is locked") as found:
        source.prepare(None)
    assert "transaction of the application is open" in found.value.hint
    source.close()
