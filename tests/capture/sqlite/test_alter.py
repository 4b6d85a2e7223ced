"""A capture goes on over a change of the schema that it makes itself, and tells again what has other values then."""

from __future__ import annotations

import threading

import pytest

from millstream.errors import CaptureError, ConfigError, TableChanged
from tests.capture.sqlite.world import Rows, Session, World, changes_of, collect, fold, rows_of


@pytest.fixture
def shop(world: World) -> World:
    world.run(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, v int, w text)", "INSERT INTO t VALUES (1, 1, 'a'), (2, NULL, 'b')"
    )
    return world


def test_columns_come_by_their_names_as_they_were(shop: World) -> None:
    with shop.opened("t") as (source, position):
        rows: Rows = {"t": rows_of(source, "t")}
        shop.run("INSERT INTO t VALUES (3, 3, 'c')")
        source.alter("ALTER TABLE t ADD COLUMN more int")
        shop.run("SELECT * FROM t", "INSERT INTO t VALUES (4, 4, 'd', 4)")  # to see that the schema is another one
        source.alter("ALTER TABLE t ADD COLUMN said text NOT NULL DEFAULT 'x'")
        source.alter("ALTER TABLE t RENAME COLUMN v TO value")
        source.alter("ALTER TABLE t DROP COLUMN w")
        shop.run("DELETE FROM t WHERE id = 3")
        ((transaction, changes),) = collect(source, position)
        assert [(each.op, each.after) for each in changes[:2]] == [
            ("c", {"id": 3, "v": 3, "w": "c"}),
            ("c", {"id": 4, "v": 4, "w": "d", "more": 4}),
        ]
        assert [(each.op, each.after) for each in changes[2:6]] == [
            ("u", {"id": number, "v": v, "w": w, "more": more, "said": "x"})
            for number, v, w, more in ((1, 1, "a", None), (2, None, "b", None), (3, 3, "c", None), (4, 4, "d", 4))
        ]
        assert [(each.op, each.after) for each in changes[6:9]] == [
            ("u", {"id": number, "value": number, "w": w, "more": more, "said": "x"})
            for number, w, more in ((1, "a", None), (3, "c", None), (4, "d", 4))
        ]
        assert [(each.op, each.before) for each in changes[9:]] == [
            ("d", {"id": 3, "value": 3, "more": None, "said": "x"})
        ]
        fold(changes, rows)
        source.prepare(transaction.position)
        shop.run("SELECT * FROM t", "REPLACE INTO t VALUES (1, 7, 7, 'y')")
        assert [each.op for each in changes_of(source, transaction.position)] == ["d", "c"]


def test_another_process_alters_while_a_capture_reads_and_others_write(shop: World) -> None:
    with shop.opened("t") as (source, position):
        reading = source.changes(position)
        assert next(reading) is None
        stop, number = threading.Event(), [100]
        writer = Session(shop.path)

        def write() -> None:
            while not stop.is_set():
                number[0] += 1
                writer.run(f"INSERT INTO t (id, v) VALUES ({number[0]}, {number[0]})")

        rows: Rows = {"t": rows_of(source, "t")}
        thread = threading.Thread(target=write)
        thread.start()
        other = shop.source("t")
        try:
            for name in "abc":
                wanted = number[0] + 5
                while number[0] < wanted:
                    if (transaction := next(reading)) is not None:
                        fold(list(transaction.changes), rows)
                other.alter(f"ALTER TABLE t ADD COLUMN {name} text DEFAULT '{name}'")
        finally:
            stop.set()
            thread.join()
            writer.close()
        while (transaction := next(reading)) is not None:
            fold(list(transaction.changes), rows)
        reading.close()  # type: ignore[attr-defined]
        assert rows["t"] == rows_of(source, "t")
        other.close()


@pytest.mark.parametrize(
    ("statement", "error", "words"),
    [
        ("UPDATE t SET v = 1", ConfigError, "expected ALTER TABLE"),
        ("ALTER TABLE t ADD COLUMN x int; DELETE FROM t", ConfigError, "expected one"),
        ("ALTER TABLE t ADD COLUMN x int; COMMIT", ConfigError, "expected one"),
        ("ALTER TABLE t RENAME TO u", CaptureError, "would drop or rename it"),
        ("ALTER TABLE t RENAME COLUMN id TO number", CaptureError, r"its key would be \(number\), expected \(id\)"),
        ("CREATE UNIQUE INDEX low ON t (lower(w))", CaptureError, "of it what cannot be captured"),
        ("ALTER TABLE t ADD COLUMN v int", CaptureError, "duplicate column name"),
    ],
)
def test_what_a_capture_could_not_go_on_over_is_refused_and_not_done(shop: World, statement: str, error: type[Exception], words: str) -> None:  # fmt: skip
    with shop.opened("t") as (source, position):
        before = shop.run("SELECT type, name, sql FROM sqlite_master ORDER BY 1, 2"), shop.run("SELECT * FROM t")
        with pytest.raises(error, match=words):
            source.alter(statement)
        assert (
            shop.run("SELECT type, name, sql FROM sqlite_master ORDER BY 1, 2"),
            shop.run("SELECT * FROM t"),
        ) == before
        shop.run("INSERT INTO t (id) VALUES (3)")
        assert len(changes_of(source, position)) == 1


def test_a_table_that_is_altered_before_a_snapshot_is_read_begins_it_again(shop: World) -> None:
    with shop.opened("t") as (source, _):
        before = source.tables()
        source.alter("ALTER TABLE t ADD COLUMN more int")
        with source.snapshot(before) as snapshot, pytest.raises(TableChanged, match="not as it was") as found:
            list(snapshot.rows(before[0]))
        assert found.value.hint == "begin the snapshot again"
        (table,) = source.tables()
        with source.snapshot([table]) as snapshot:  # one that has begun sees the table as it was
            source.alter("ALTER TABLE t DROP COLUMN w")
            assert [row["w"] for piece in snapshot.rows(table) for row in piece] == ["a", "b"]


def test_a_table_that_was_altered_by_hand_before_stops_the_verb_too(shop: World) -> None:
    with shop.opened("t") as (source, _):
        shop.run("ALTER TABLE t ADD COLUMN more int")
        with pytest.raises(TableChanged, match="was altered"):
            source.alter("ALTER TABLE t ADD COLUMN others int")


def test_keys_and_triggers_may_be_made_and_dropped(shop: World) -> None:
    with shop.opened("t") as (source, position):
        rows: Rows = {"t": rows_of(source, "t")}
        for statement in (
            "CREATE UNIQUE INDEX words ON t (w COLLATE NOCASE)",
            "CREATE TRIGGER theirs AFTER INSERT ON t BEGIN UPDATE t SET v = NEW.id WHERE id = NEW.id; END",
            "DROP INDEX words",
            "DROP TRIGGER theirs",
        ):
            source.alter(statement)
            shop.run(
                "INSERT OR REPLACE INTO t SELECT max(id) + 1, 5, 'A' FROM t",
                "INSERT INTO t SELECT max(id) + 1, 5, '' || max(id) FROM t",
            )
        fold(changes_of(source, position), rows)
        assert rows["t"] == rows_of(source, "t")
