"""What the stream says of transactions, and what becomes of it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest

from millstream.capture import held
from millstream.capture.postgres import source as source_module
from millstream.errors import CaptureError, TableChanged
from tests.capture.postgres.world import World, fold, rows_of
from tests.waiting import until


@pytest.fixture
def world(world: World) -> World:
    world.run("CREATE TABLE a (id int PRIMARY KEY, v int)", "CREATE TABLE b (id int PRIMARY KEY, v int)")
    return world


def said(world: World, *statements: str, tables: tuple[str, ...] = ("a", "b")) -> list[list[tuple[object, ...]]]:
    """What is captured of statements: for each transaction the table, what happened, and the values before and after."""
    with world.opened(*tables) as (source, position):
        world.run(*statements)
        return [
            [(each.table.name, each.op, *(tuple(row.values()) if row else None for row in (each.before, each.after))) for each in changes]
            for _, changes in world.collect(source, position)
        ]  # fmt: skip


def test_a_transaction_comes_as_one_in_the_order_of_its_statements(world: World) -> None:
    world.run("ALTER TABLE b REPLICA IDENTITY FULL")
    before = datetime.now(UTC).replace(microsecond=0)
    with world.opened("a", "b") as (source, position):
        world.run("BEGIN", "INSERT INTO b VALUES (1, 1)", "INSERT INTO a VALUES (1, 1), (2, 2)", "UPDATE b SET v = 2", "UPDATE a SET v = 3 WHERE id = 2", "UPDATE a SET id = 4 WHERE id = 2", "DELETE FROM a WHERE id = 1", "COMMIT")  # fmt: skip
        ((transaction, changes),) = world.collect(source, position)
    assert [(each.table.name, each.op, each.before, each.after) for each in changes] == [
        ("b", "c", None, {"id": 1, "v": 1}),
        ("a", "c", None, {"id": 1, "v": 1}),
        ("a", "c", None, {"id": 2, "v": 2}),
        ("b", "u", {"id": 1, "v": 1}, {"id": 1, "v": 2}),
        ("a", "u", None, {"id": 2, "v": 3}),
        ("a", "u", {"id": 2}, {"id": 4, "v": 3}),
        ("a", "d", {"id": 1}, None),
    ]
    assert transaction.time is not None
    assert before <= transaction.time <= datetime.now(UTC)
    assert int(transaction.id) > 0


def test_transactions_come_in_the_order_of_their_commits(world: World) -> None:
    with world.opened("a") as (source, position):
        with world.connect() as first:
            first.execute("BEGIN")
            first.execute("INSERT INTO a VALUES (1, 1)")
            world.run("INSERT INTO a VALUES (2, 2)")
            first.execute("COMMIT")
        found = world.collect(source, position)
        assert [each.after["id"] for _, changes in found for each in changes if each.after] == [2, 1]
        again = world.collect(source, found[0][0].position)
        assert [each.after["id"] for _, changes in again for each in changes if each.after] == [1]


def test_what_is_rolled_back_is_not_told_nor_what_is_behind_a_savepoint(world: World) -> None:
    statements = (
        "BEGIN", "INSERT INTO a VALUES (1, 1)", "ROLLBACK",
        "BEGIN", "INSERT INTO a VALUES (2, 2)", "SAVEPOINT s", "INSERT INTO a VALUES (3, 3)", "SAVEPOINT t", "INSERT INTO a VALUES (4, 4)",
        "ROLLBACK TO s", "INSERT INTO a VALUES (5, 5)", "COMMIT",
    )  # fmt: skip
    assert said(world, *statements) == [[("a", "c", None, (2, 2)), ("a", "c", None, (5, 5))]]


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("alters", [True, False])
def test_a_large_transaction_forgets_what_went_back_to_a_savepoint(world: World, streaming: bool, alters: bool) -> None:
    def rows(first: int) -> str:
        return f"INSERT INTO a SELECT i, i FROM generate_series({first}, {first + 3999}) i"

    alter = "ALTER TABLE a ADD COLUMN w int" if alters else "SELECT 1"
    with world.opened("a", "b", streaming=streaming) as (source, position):
        with world.connect() as other:
            other.execute("BEGIN")
            other.execute("INSERT INTO b SELECT i, i FROM generate_series(1, 4000) i")
            world.run(
                "BEGIN", rows(10_000), "SAVEPOINT s", rows(20_000), alter, "SAVEPOINT t", rows(30_000), "ROLLBACK TO s",
                rows(40_000), "ALTER TABLE a ADD COLUMN x int", "UPDATE a SET v = 0, x = 1 WHERE id < 10100", "COMMIT",
            )  # fmt: skip
            world.run("BEGIN", rows(50_000), "ROLLBACK")
            other.execute("INSERT INTO b SELECT i, i FROM generate_series(5001, 9000) i")
            other.execute("COMMIT")
        found = world.collect(source, position)
        assert [len(changes) for _, changes in found] == [8100, 8000]
        rows_now = fold([each for _, changes in found for each in changes], {})
        assert {key: {"x": None, **row} for key, row in rows_now["a"].items()} == rows_of(source, "a")
        assert rows_now["b"] == rows_of(source, "b")
    streamed = world.run(f"SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = '{world.slot}'")
    assert (streamed[0][0] > 0) == streaming


def test_a_prepared_transaction_is_told_when_it_is_committed_though_reading_began_anew(world: World) -> None:
    with world.opened("a") as (source, position):
        world.run("BEGIN", "INSERT INTO a VALUES (1, 1)", "PREPARE TRANSACTION 'one'")
        world.run("BEGIN", "INSERT INTO a VALUES (2, 2)", "PREPARE TRANSACTION 'two'", "INSERT INTO a VALUES (3, 3)")
        ((transaction, changes),) = world.collect(source, position)
        assert [each.after for each in changes] == [{"id": 3, "v": 3}]
        world.run("ROLLBACK PREPARED 'two'", "COMMIT PREPARED 'one'", "INSERT INTO a VALUES (4, 4)")
        rest = world.collect(source, transaction.position)
        assert [[each.after for each in changes] for _, changes in rest] == [[{"id": 1, "v": 1}], [{"id": 4, "v": 4}]]


def test_truncated_tables_are_empty_those_of_a_cascade_too(world: World) -> None:
    world.run("CREATE TABLE child (id int PRIMARY KEY REFERENCES a)", "CREATE TABLE elsewhere (id int REFERENCES a)")
    statements = ("INSERT INTO a VALUES (1, 1)", "INSERT INTO child VALUES (1)", "TRUNCATE a CASCADE", "TRUNCATE b")
    found = said(world, *statements, tables=("a", "b", "child"))
    assert [sorted(each[:2] for each in changes) for changes in found[2:]] == [
        [("a", "t"), ("child", "t")],
        [("b", "t")],
    ]


def test_a_foreign_key_that_cascades_is_told(world: World) -> None:
    world.run("CREATE TABLE child (id int PRIMARY KEY, p int REFERENCES a ON DELETE CASCADE)")
    found = said(
        world, "INSERT INTO a VALUES (1, 1)", "INSERT INTO child VALUES (5, 1)", "DELETE FROM a", tables=("a", "child")
    )
    assert sorted(found[2], key=str) == [("a", "d", (1,), None), ("child", "d", (5,), None)]


def test_keys_that_swap_places(world: World) -> None:
    world.run("ALTER TABLE a DROP CONSTRAINT a_pkey", "CREATE UNIQUE INDEX a_index ON a (id)", "ALTER TABLE a ALTER id SET NOT NULL", "ALTER TABLE a REPLICA IDENTITY USING INDEX a_index")  # fmt: skip
    found = said(world, "INSERT INTO a VALUES (1, 10), (2, 20)", "BEGIN", "UPDATE a SET id = -1 WHERE id = 1", "UPDATE a SET id = 1 WHERE id = 2", "UPDATE a SET id = 2 WHERE id = -1", "COMMIT")  # fmt: skip
    assert found[1] == [("a", "u", (1,), (-1, 10)), ("a", "u", (2,), (1, 20)), ("a", "u", (-1,), (2, 10))]


def test_rows_of_partitions_are_those_of_their_table(world: World) -> None:
    world.run(
        "CREATE TABLE parts (id int, day date, v int, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
        "CREATE TABLE parts_2 (v int, day date NOT NULL, id int NOT NULL)",
        "ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')",
    )
    with world.opened("parts") as (source, position):
        world.run("INSERT INTO parts VALUES (1, '2026-01-05', 1), (2, '2026-02-05', 2)")
        world.run("CREATE TABLE parts_3 PARTITION OF parts FOR VALUES FROM ('2026-03-01') TO ('2026-04-01')")
        world.run("UPDATE parts SET day = '2026-03-05' WHERE id = 2", "UPDATE parts SET v = 9", "DELETE FROM parts WHERE id = 1")  # fmt: skip
        changes = world.changes(source, position)
        assert {each.table.full_name for each in changes} == {"public.parts"}
        assert fold(changes, {})["parts"] == rows_of(source, "parts")
        world.run("TRUNCATE parts")
        assert [each.op for each in world.changes(source, position)][-1] == "t"


def test_a_table_that_others_inherit_from_has_its_own_rows_alone(world: World) -> None:
    world.run("CREATE TABLE heir (more int, PRIMARY KEY (id)) INHERITS (a)")
    with world.opened("a") as (source, position):
        world.run("INSERT INTO heir VALUES (5, 5, 5)", "INSERT INTO a VALUES (1, 1)")
        assert [each.after for each in world.changes(source, position)] == [{"id": 1, "v": 1}]
        assert rows_of(source, "a").keys() == {(1,)}


def test_a_value_out_of_line_comes_from_the_row_before_or_is_an_error(world: World) -> None:
    world.run(
        "CREATE TABLE wide (id int PRIMARY KEY, v int, t text, big text)",
        "ALTER TABLE wide ALTER t SET STORAGE EXTERNAL",
    )
    world.run("INSERT INTO wide VALUES (1, 1, repeat('x', 100000), NULL)")
    with world.opened("wide") as (source, position):
        world.run("UPDATE wide SET v = 2")
        with pytest.raises(
            CaptureError, match=r"table public\.wide: an update of the row id = 1 left t as it was"
        ) as found:
            world.collect(source, position)
        assert 'ALTER TABLE "public"."wide" REPLICA IDENTITY FULL;' in found.value.hint
        world.run("ALTER TABLE wide REPLICA IDENTITY FULL")
        position = world.here(source)
        world.run("UPDATE wide SET v = 3", "UPDATE wide SET id = 2", "UPDATE wide SET t = 'short'", "DELETE FROM wide")
        changes = world.changes(source, position)
        whole = {"id": 1, "v": 2, "t": "x" * 100_000, "big": None}
        assert (changes[0].before, changes[0].after) == (whole, whole | {"v": 3})
        assert (changes[1].after or {})["t"] == "x" * 100_000
        assert fold(changes, {"wide": {(1,): whole}})["wide"] == {}


def test_columns_come_by_their_names_as_they_were(world: World) -> None:
    with world.opened("a") as (source, position):
        world.run(
            "INSERT INTO a VALUES (1, 1)", "ALTER TABLE a ADD COLUMN w varchar(3)", "INSERT INTO a VALUES (2, 2, 'x')",
            "ALTER TABLE a DROP COLUMN v", "INSERT INTO a VALUES (3, 'y')",
        )  # fmt: skip
        changes = world.changes(source, position)
    assert [each.after for each in changes] == [{"id": 1, "v": 1}, {"id": 2, "v": 2, "w": "x"}, {"id": 3, "w": "y"}]  # fmt: skip
    assert [(each.name, each.native, each.type) for each in changes[2].table.columns] == [
        ("id", "integer", "int"),
        ("w", "character varying(3)", "string"),
    ]


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("ALTER TABLE a ADD COLUMN w int DEFAULT 5", "the column w was added with a value"),
        ("ALTER TABLE a ADD COLUMN w int NOT NULL DEFAULT random() * 10", "the column w was added with a value"),
        ("ALTER TABLE a ALTER v TYPE text USING 'x' || v", "the column v is text now, it was integer"),
    ],
)
def test_a_statement_that_changes_rows_without_saying_which_stops(world: World, statement: str, words: str) -> None:
    with world.opened("a") as (source, position):
        world.run("INSERT INTO a VALUES (1, 1)", statement, "INSERT INTO a VALUES (2)")
        with pytest.raises(TableChanged, match=words) as found:
            world.collect(source, position)
        assert "new snapshot" in found.value.hint
    allowed = world.source("a", allow=["rewrites"])
    assert [each.after["id"] for each in world.changes(allowed, position) if each.after] == [1, 2]


def test_a_table_with_another_key_or_another_name_stops(world: World) -> None:
    with world.opened("a", "b") as (source, position):
        world.run(
            "INSERT INTO a VALUES (1, 1)",
            "ALTER TABLE a DROP CONSTRAINT a_pkey, ADD PRIMARY KEY (v)",
            "INSERT INTO a VALUES (2, 2)",
        )
        with pytest.raises(TableChanged, match=r"told apart by \['"):
            world.collect(source, position)
        world.run("ALTER TABLE b RENAME TO c")
        with pytest.raises(CaptureError, match=r"table public\.b: there is none"):
            world.collect(source, position)
        world.run("CREATE TABLE b (id int PRIMARY KEY, v int)")
        with pytest.raises(TableChanged, match=r"public\.b is not in the publication .* any more, or is another table"):
            world.collect(source, position)
        with pytest.raises(TableChanged, match=r"public\.b is not in the publication .* any more, or is another table"):
            source.prepare(position)


def test_a_table_that_is_renamed_while_it_is_read_stops(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_LOOK", 0.5)
    with world.opened("a", "b") as (source, position):
        reading = source.changes(position)
        until(lambda: next(reading) is None)
        world.run("ALTER TABLE a RENAME TO c")
        with pytest.raises(CaptureError, match=r"table public\.a: there is none"):
            until(lambda: next(reading) and False)
        reading = source.changes(position)
        world.run("ALTER TABLE c RENAME TO a")
        until(lambda: next(reading) is None)
        world.run("ALTER TABLE a RENAME TO c", "INSERT INTO c VALUES (1, 1)")
        with pytest.raises(CaptureError, match=r"it is called public\.c now|there is none"):
            until(lambda: next(reading) and False)


def test_a_transaction_larger_than_memory_is_held_in_a_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "BOUND", 10_000)
    with world.opened("a") as (source, position):
        world.run("INSERT INTO a SELECT i, i FROM generate_series(1, 5000) i", "UPDATE a SET v = 0 WHERE id < 50")
        found = world.collect(source, position)
        assert [len(changes) for _, changes in found] == [5000, 49]
        assert fold([each for _, changes in found for each in changes], {})["a"] == rows_of(source, "a")


def test_writers_at_once_lose_nothing(world: World) -> None:
    def write(first: int) -> None:
        with world.connect() as connection:
            for number in range(first, first + 200):
                connection.execute("BEGIN")
                connection.execute(f"INSERT INTO a VALUES ({number}, 1)")
                connection.execute(f"INSERT INTO b VALUES ({number}, 1)")
                connection.execute("ROLLBACK" if number % 7 == 0 else "COMMIT")

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


def test_a_transaction_that_touches_other_tables_only_moves_the_position(world: World) -> None:
    with world.opened("a") as (source, position):
        reading = source.changes(position)
        until(lambda: next(reading) is None)
        world.run("INSERT INTO b VALUES (1, 1)")
        found = until(lambda: next(reading), timeout=60)
        assert found is not None
        assert list(found.changes) == []
        assert found.position["lsn"] != position["lsn"]
        source.prepare(found.position)
