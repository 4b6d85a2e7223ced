"""What the binary log says of transactions, and what becomes of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from millstream.capture import held
from millstream.capture.contract import Change, Table
from millstream.capture.held import Held
from millstream.errors import CaptureError, TableChanged
from millstream.testing import MariaDbServer
from tests.capture.mysql.world import World, fold, rows_of


@pytest.fixture
def world(mariadb: MariaDbServer) -> World:
    found = World(mariadb)
    found.run("CREATE TABLE a (id int PRIMARY KEY, v int)", "CREATE TABLE b (id int PRIMARY KEY, v int)")
    return found


def said(world: World, *statements: str, tables: tuple[str, ...] = ("a", "b")) -> list[list[tuple[object, ...]]]:
    """What is captured of statements: for each transaction the table, what happened, and the values before and after."""
    with world.opened(*tables) as (source, position):
        world.run(*statements)
        return [
            [(each.table.name, each.op, *(tuple(row.values()) if row else None for row in (each.before, each.after))) for each in changes]
            for _, changes in world.collect(source, position)
        ]  # fmt: skip


def test_a_transaction_comes_as_one_in_the_order_of_its_statements(world: World) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    with world.opened("a", "b") as (source, position):
        world.run("BEGIN", "INSERT INTO b VALUES (1, 1)", "INSERT INTO a VALUES (1, 1), (2, 2)", "UPDATE b SET v = 2", "DELETE FROM a WHERE id = 1", "COMMIT")  # fmt: skip
        ((transaction, changes),) = world.collect(source, position)
    assert [(each.table.name, each.op, each.before, each.after) for each in changes] == [
        ("b", "c", None, {"id": 1, "v": 1}),
        ("a", "c", None, {"id": 1, "v": 1}),
        ("a", "c", None, {"id": 2, "v": 2}),
        ("b", "u", {"id": 1, "v": 1}, {"id": 1, "v": 2}),
        ("a", "d", {"id": 1, "v": 1}, None),
    ]
    assert transaction.time is not None
    assert before <= transaction.time <= datetime.now(UTC)
    assert transaction.id == transaction.position["gtid"]


def test_transactions_come_in_the_order_of_their_commits(world: World) -> None:
    with world.opened("a") as (source, position):
        first, second = world.connect(), world.connect()
        with first.cursor() as one, second.cursor() as two:
            one.execute("BEGIN")
            one.execute("INSERT INTO a VALUES (1, 1)")
            two.execute("INSERT INTO a VALUES (2, 2)")
            one.execute("COMMIT")
        first.close()
        second.close()
        assert [each.after["id"] for each in world.changes(source, position) if each.after] == [2, 1]


def test_what_is_rolled_back_is_not_told(world: World) -> None:
    assert said(world, "BEGIN", "INSERT INTO a VALUES (1, 1)", "ROLLBACK", "INSERT INTO a VALUES (2, 2)") == [
        [("a", "c", None, (2, 2))]
    ]


def test_a_savepoint_takes_back_what_came_behind_it_though_a_table_without_transactions_was_written(
    world: World,
) -> None:
    world.run("CREATE TABLE old (id int PRIMARY KEY, v int) ENGINE = MyISAM")
    statements = (
        "BEGIN", "INSERT INTO a VALUES (1, 1)", "SAVEPOINT s", "INSERT INTO a VALUES (2, 2)", "INSERT INTO old VALUES (1, 1)",
        "ROLLBACK TO s", "INSERT INTO a VALUES (3, 3)", "COMMIT",
    )  # fmt: skip
    assert said(world, *statements, tables=("a", "old")) == [
        [("old", "c", None, (1, 1))],
        [("a", "c", None, (1, 1)), ("a", "c", None, (3, 3))],
    ]


def test_an_xa_transaction_is_told_when_it_is_committed_and_survives_a_new_beginning(world: World) -> None:
    with world.opened("a") as (source, position):
        world.run("XA START 'one'", "INSERT INTO a VALUES (1, 1)", "XA END 'one'", "XA PREPARE 'one'")
        world.run("XA START 'two', 'b'", "INSERT INTO a VALUES (2, 2)", "XA END 'two', 'b'", "XA PREPARE 'two', 'b'")
        world.run("INSERT INTO a VALUES (3, 3)")
        ((transaction, changes),) = world.collect(source, position)
        assert [each.after for each in changes] == [{"id": 3, "v": 3}]
        assert "since" in transaction.position
        world.run("XA ROLLBACK 'two', 'b'", "XA COMMIT 'one'", "INSERT INTO a VALUES (4, 4)")
        rest = world.collect(source, transaction.position)
        assert [[each.after for each in changes] for _, changes in rest] == [[{"id": 1, "v": 1}], [{"id": 4, "v": 4}]]
        assert "since" not in rest[-1][0].position


def test_an_xa_transaction_that_was_prepared_before_the_snapshot_is_an_error(world: World) -> None:
    world.run("XA START 'early'", "INSERT INTO a VALUES (1, 1)", "XA END 'early'", "XA PREPARE 'early'")
    with world.opened("a") as (source, position):
        world.run("XA COMMIT 'early'")
        with pytest.raises(CaptureError, match="prepared before this capture began"):
            world.collect(source, position)


def test_a_truncated_table_is_empty_whoever_says_it_how(world: World) -> None:
    statements = (
        "TRUNCATE a", "TRUNCATE TABLE `b`", f"/* app */ truncate /*!40000 table */ {world.name} . a -- all", "USE shop", f"TRUNCATE {world.name}.b",
        f"USE {world.name}", "SET sql_mode = 'ANSI_QUOTES'", 'TRUNCATE "a"', "TRUNCATE marker2",
    )  # fmt: skip
    world.run("CREATE TABLE marker2 (id int PRIMARY KEY)")
    assert [each[0][:2] for each in said(world, *statements)] == [
        ("a", "t"),
        ("b", "t"),
        ("a", "t"),
        ("b", "t"),
        ("a", "t"),
    ]


def test_columns_come_by_their_names_as_they_were(world: World) -> None:
    with world.opened("a") as (source, position):
        world.run(
            "INSERT INTO a VALUES (1, 1)",
            "ALTER TABLE a ADD COLUMN first varchar(3) FIRST",
            "INSERT INTO a VALUES ('x', 2, 2)",
            "ALTER TABLE a DROP COLUMN v",
            "INSERT INTO a VALUES ('y', 3)",
        )
        changes = world.changes(source, position)
    assert [each.after for each in changes] == [
        {"id": 1, "v": 1},
        {"first": "x", "id": 2, "v": 2},
        {"first": "y", "id": 3},
    ]
    assert [[(column.name, column.native, column.type) for column in each.table.columns] for each in changes][2] == [
        ("first", "varchar(3)", "string"),
        ("id", "int", "int"),
    ]


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("RENAME TABLE a TO c, b TO a", "a table was renamed"),
        ("ALTER TABLE a RENAME TO c", "a table was renamed"),
        ("ALTER TABLE a ADD COLUMN w int DEFAULT 5", "rows were changed by a statement"),
        ("ALTER TABLE a ADD COLUMN (w int, x int NOT NULL)", "rows were changed by a statement"),
    ],
)
def test_a_statement_that_changes_rows_without_saying_which_stops(world: World, statement: str, words: str) -> None:
    with world.opened("a") as (source, position):
        world.run(statement)
        with pytest.raises(TableChanged, match=words) as found:
            world.collect(source, position)
        assert "new snapshot" in found.value.hint
    allowed = world.source("b", "a", allow=["rewrites"])
    assert world.collect(allowed, position) == []


def test_rows_that_a_session_wrote_as_statements_stop(world: World) -> None:
    with world.opened("a") as (source, position):
        world.run("SET SESSION binlog_format = STATEMENT", "INSERT INTO a VALUES (1, 1)")
        with pytest.raises(CaptureError, match="a statement in place of the rows") as found:
            world.collect(source, position)
    assert "binlog_format = ROW" in found.value.hint


def test_rows_without_some_columns_stop(world: World) -> None:
    world.run("INSERT INTO a VALUES (1, 1)")
    with world.opened("a") as (source, position):
        world.run("SET SESSION binlog_row_image = MINIMAL", "UPDATE a SET v = 2")
        with pytest.raises(CaptureError, match="without some of their columns"):
            world.collect(source, position)


def test_a_table_that_is_dropped_and_made_again_begins_empty(world: World) -> None:
    world.run("INSERT INTO a VALUES (1, 1)")
    statements = ("DROP TABLE IF EXISTS nothing, a", "CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    assert said(world, *statements) == [[("a", "t", None, None)], [("a", "c", None, (1,))]]


def test_what_is_not_ours_moves_the_position(world: World) -> None:
    world.run("CREATE TABLE other (id int PRIMARY KEY)")
    with world.opened("a") as (source, position):
        world.run("INSERT INTO other VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO other VALUES (2)")
        reading = source.changes(position)
        while (found := next(reading)) is None or found.position["file"] == position["file"]:
            pass
        assert list(found.changes) == []
        assert found.position["byte"] > 4
        assert found.position["made"] >= position["made"]


def test_none_comes_while_nothing_happens(world: World) -> None:
    with world.opened("a") as (source, position):
        reading, waited = source.changes(position), time.monotonic()
        while next(reading) is not None:
            pass
        assert next(reading) is None
        assert time.monotonic() - waited < 30


@pytest.fixture
def packed(mariadb: MariaDbServer) -> Iterator[None]:
    World(mariadb).run("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10")
    yield
    World(mariadb).run("SET GLOBAL log_bin_compress = OFF")


def test_a_compressed_binary_log_reads_the_same(world: World, packed: None) -> None:
    world.run("CREATE TABLE wide (id int PRIMARY KEY, t longtext)")
    with world.opened("wide") as (source, position):
        world.run("INSERT INTO wide VALUES (1, REPEAT('x', 5000)), (2, REPEAT('y', 70000))")  # fmt: skip
        world.run(
            "UPDATE wide SET t = CONCAT(t, 'z')", "DELETE FROM wide WHERE id = 2", f"TRUNCATE TABLE {world.name}.marker"
        )
        changes = world.changes(source, position)
        assert [each.op for each in changes] == ["c", "c", "u", "u", "d", "t"]
        assert fold(changes, {})["wide"] == rows_of(source, "wide")


def test_a_transaction_larger_than_memory_is_held_in_a_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "BOUND", 10_000)
    world.run("CREATE TABLE wide (id int PRIMARY KEY, t longtext)")
    connection = world.connect()
    with world.opened("wide") as (source, position), connection.cursor() as cursor:
        cursor.execute("BEGIN")
        for number in range(100):
            cursor.execute(f"INSERT INTO wide VALUES ({number}, REPEAT('x', 900))")
        cursor.execute("COMMIT")
        ((_, changes),) = world.collect(source, position)
        assert [each.after["id"] for each in changes if each.after] == list(range(100))
        assert fold(changes, {})["wide"] == rows_of(source, "wide")
    connection.close()


def test_what_is_held_in_a_file_is_cut_at_a_savepoint() -> None:
    def read(kind: int, body: bytes, table: Table) -> Iterator[Change]:
        yield Change(table, "c", None, {"kind": kind, "body": body})

    events = Held(read, bound=0)  # each event goes to the file
    tables = [Table("", name, (), ()) for name in "abcdef"]
    for table in tables[:3]:
        events.add(1, table, b"x" * 50)
    events.savepoint("s")
    for table in tables[3:5]:
        events.add(2, table, b"y" * 30)
    events.back("s")
    events.add(3, tables[5], b"z")
    found = [(each.table.name, each.after) for each in events.changes()]
    assert found == [*((name, {"kind": 1, "body": b"x" * 50}) for name in "abc"), ("f", {"kind": 3, "body": b"z"})]
    assert len(events) == 0


def test_writers_at_once_lose_nothing(world: World) -> None:
    def write(first: int) -> None:
        connection = world.connect()
        with connection.cursor() as cursor:
            for number in range(first, first + 200):
                cursor.execute("BEGIN")
                cursor.execute(f"INSERT INTO a VALUES ({number}, 1)")
                cursor.execute(f"INSERT INTO b VALUES ({number}, 1)")
                cursor.execute("ROLLBACK" if number % 7 == 0 else "COMMIT")
        connection.close()

    with world.opened("a", "b") as (source, position):
        threads = [threading.Thread(target=write, args=(first,)) for first in (1000, 2000, 3000)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        found = world.collect(source, position)
        assert all([each.table.name for each in changes] == ["a", "b"] for _, changes in found)
        rows = fold([each for _, changes in found for each in changes], {})
        assert rows["a"] == rows_of(source, "a")
        assert rows["a"].keys() == rows["b"].keys()
