"""What triggers tell of transactions, and what they do not see by themselves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from millstream.capture.sqlite import suspects
from tests.capture.sqlite.world import Refused, Rows, Session, World, changes_of, collect, fold, rows_of, settle


@pytest.fixture
def two(world: World) -> World:
    world.run("CREATE TABLE a (id INTEGER PRIMARY KEY, v int UNIQUE)", "CREATE TABLE b (id INTEGER PRIMARY KEY, v int)")
    return world


def said(world: World, *statements: str, tables: tuple[str, ...] = ("a", "b")) -> list[tuple[object, ...]]:
    """What is captured of statements: the table, what happened, and the values before and after."""
    with world.opened(*tables) as (source, position):
        world.run(*statements)
        return [
            (each.table.name, each.op, *(tuple(row.values()) if row else None for row in (each.before, each.after)))
            for each in changes_of(source, position)
        ]


def test_a_drain_is_one_transaction_whose_changes_come_in_their_order(two: World) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=2)
    with two.opened("a", "b") as (source, position):
        two.run("BEGIN", "INSERT INTO b VALUES (1, 1)", "INSERT INTO a VALUES (1, 1), (2, 2)", "UPDATE b SET v = 2", "DELETE FROM a WHERE id = 1", "COMMIT")  # fmt: skip
        ((transaction, changes),) = collect(source, position)
        assert [(each.table.name, each.op, each.before, each.after) for each in changes] == [
            ("b", "c", None, {"id": 1, "v": 1}),
            ("a", "c", None, {"id": 1, "v": 1}),
            ("a", "c", None, {"id": 2, "v": 2}),
            ("b", "u", {"id": 1, "v": 1}, {"id": 1, "v": 2}),
            ("a", "d", {"id": 1, "v": 1}, None),
        ]
        assert transaction.time is not None
        assert before <= transaction.time <= datetime.now(UTC) + timedelta(milliseconds=2)
        assert collect(source, transaction.position) == []


def test_what_is_open_is_not_told_and_its_end_is_where_the_next_begins(two: World) -> None:
    with two.opened("a", "b") as (source, position):
        two.run("INSERT INTO a VALUES (1, 1)", "BEGIN", "INSERT INTO a VALUES (2, 2)")
        ((first, changes),) = collect(source, position)
        assert [each.after for each in changes] == [{"id": 1, "v": 1}]
        two.run("INSERT INTO a VALUES (3, 3)", "COMMIT")
        ((_, changes),) = collect(source, first.position)
        assert [each.after for each in changes] == [{"id": 2, "v": 2}, {"id": 3, "v": 3}]


def test_what_is_rolled_back_is_not_told(two: World) -> None:
    statements = ("BEGIN", "INSERT INTO a VALUES (1, 1)", "ROLLBACK", "BEGIN", "INSERT INTO a VALUES (2, 2)", "SAVEPOINT s", "DELETE FROM a", "ROLLBACK TO s", "COMMIT")  # fmt: skip
    assert said(two, *statements) == [("a", "c", None, (2, 2))]


@pytest.mark.parametrize("recursive", ["on", "off"])
@pytest.mark.parametrize(
    ("statement", "wanted"),
    [
        ("INSERT OR REPLACE INTO a VALUES (3, 20)", [("a", "d", (2, 20), None), ("a", "c", None, (3, 20))]),
        (
            "REPLACE INTO a VALUES (1, 20)",
            [("a", "d", (1, 10), None), ("a", "d", (2, 20), None), ("a", "c", None, (1, 20))],
        ),
        ("UPDATE OR REPLACE a SET id = 2 WHERE id = 1", [("a", "d", (2, 20), None), ("a", "u", (1, 10), (2, 10))]),
        ("UPDATE OR REPLACE a SET v = 20 WHERE id = 1", [("a", "d", (2, 20), None), ("a", "u", (1, 10), (1, 20))]),
        ("UPDATE OR REPLACE a SET rowid = 2 WHERE id = 1", [("a", "d", (2, 20), None), ("a", "u", (1, 10), (2, 10))]),
        ("INSERT OR IGNORE INTO a VALUES (1, 20)", []),
        ("INSERT INTO a VALUES (1, 7) ON CONFLICT (id) DO UPDATE SET v = excluded.v", [("a", "u", (1, 10), (1, 7))]),
        ("INSERT INTO a VALUES (3, 20) ON CONFLICT DO NOTHING", []),
    ],
)
def test_rows_that_are_replaced_are_told_as_deleted_once(two: World, recursive: str, statement: str, wanted: list[tuple[object, ...]]) -> None:  # fmt: skip
    two.run(f"PRAGMA recursive_triggers = {recursive}", "INSERT INTO a VALUES (1, 10), (2, 20)")
    found = said(two, statement)
    if statement == "REPLACE INTO a VALUES (1, 20)":  # which of the two goes first is SQLite's affair
        found[:2] = sorted(found[:2], key=repr)
    assert found == wanted


def test_a_refused_statement_leaves_no_trace(two: World) -> None:
    two.run("INSERT INTO a VALUES (1, 10)")
    with two.opened("a") as (source, position):
        with pytest.raises(Refused, match="UNIQUE constraint failed"):
            two.run("INSERT INTO a VALUES (2, 10)")
        assert changes_of(source, position) == []


def test_many_suspects_are_resolved_by_what_comes_behind_them(two: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "MANY", 10)
    number = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)"
    two.run(f"{number} INSERT INTO a SELECT i, i FROM n")
    with two.opened("a") as (source, position):
        with source.snapshot(source.tables()) as snapshot:
            rows = {"a": {(row["id"],): dict(row) for piece in snapshot.rows(source.tables()[0]) for row in piece}}
        two.run(
            "BEGIN",
            f"{number} INSERT OR IGNORE INTO a SELECT i, i FROM n",
            f"{number} INSERT OR REPLACE INTO a SELECT i + 10000, i FROM n WHERE i % 3 = 0",
            "INSERT INTO a VALUES (3, -3), (6, -6)",
            "DELETE FROM a WHERE id IN (3, 5, 10009)",
            "COMMIT",
        )
        fold(changes_of(source, position), rows)
        assert rows["a"] == rows_of(source, "a")


def test_cascades_are_told(two: World) -> None:
    two.run("CREATE TABLE child (id INTEGER PRIMARY KEY, p int REFERENCES a (id) ON DELETE CASCADE ON UPDATE CASCADE)", "INSERT INTO a VALUES (1, 1), (2, 2)", "INSERT INTO child VALUES (1, 1), (2, 2)")  # fmt: skip
    assert said(two, "UPDATE a SET id = 3 WHERE id = 1", "DELETE FROM a WHERE id = 2", tables=("a", "child")) == [
        ("child", "u", (1, 1), (1, 3)),
        ("a", "u", (1, 1), (3, 1)),
        ("child", "d", (2, 2), None),
        ("a", "d", (2, 2), None),
    ]


TRIGGERS = {
    "stamped": "AFTER UPDATE ON a BEGIN UPDATE a SET v = v + 100 WHERE id = NEW.id; END",
    "completed": "AFTER INSERT ON a BEGIN UPDATE a SET v = 100 + NEW.id WHERE id = NEW.id; END",
    "refused after all": "AFTER INSERT ON a WHEN NEW.v > 3 BEGIN DELETE FROM a WHERE id = NEW.id; END",
    "kept": "AFTER DELETE ON a WHEN OLD.v < 1000 BEGIN INSERT INTO a VALUES (OLD.id, OLD.v + 1000); END",
    "moved": "AFTER UPDATE ON a WHEN NEW.id < 50 BEGIN UPDATE a SET id = id + 50 WHERE id = NEW.id; END",
    "before": "BEFORE INSERT ON a BEGIN DELETE FROM a WHERE id = NEW.id - 1; END",
}
STATEMENTS = (
    "INSERT INTO a VALUES (1, 1), (2, 2), (3, 3)", "UPDATE a SET v = v + 5", "UPDATE a SET id = id + 7 WHERE id = 1", "INSERT OR REPLACE INTO a VALUES (9, 7)",
    "INSERT INTO a VALUES (4, 4)", "DELETE FROM a WHERE id IN (2, 3)", "UPDATE OR REPLACE a SET id = 3 WHERE id = 4", "INSERT INTO a VALUES (5, 5) ON CONFLICT DO NOTHING",
)  # fmt: skip


@pytest.mark.parametrize("recursive", ["on", "off"])
@pytest.mark.parametrize("trigger", TRIGGERS)
@pytest.mark.parametrize("when", ["before ours", "behind ours"])
def test_triggers_of_the_application_change_rows_once_more(two: World, trigger: str, when: str, recursive: str) -> None:
    two.run("CREATE TRIGGER first AFTER INSERT ON a BEGIN SELECT 1; END")
    if when == "before ours":
        two.run(f"CREATE TRIGGER theirs {TRIGGERS[trigger]}")
    with two.opened("a") as (source, position):
        if when == "behind ours":
            two.run(f"CREATE TRIGGER theirs {TRIGGERS[trigger]}")
        two.run(f"PRAGMA recursive_triggers = {recursive}")
        rows: Rows = {}
        for statement in STATEMENTS:
            two.attempt(statement)
            for transaction, changes in collect(source, position):
                position = transaction.position
                settle(changes, rows)
            assert rows.get("a", {}) == rows_of(source, "a"), statement


def test_a_row_that_refers_to_itself_is_changed_by_its_own_cascade(world: World) -> None:
    world.run("CREATE TABLE tree (id INTEGER PRIMARY KEY, up int REFERENCES tree (id) ON UPDATE CASCADE ON DELETE CASCADE)", "INSERT INTO tree VALUES (1, 1), (2, 1), (3, 2)")  # fmt: skip
    with world.opened("tree") as (source, position):
        rows = {"tree": rows_of(source, "tree")}
        world.run("UPDATE tree SET id = 9 WHERE id = 1", "UPDATE tree SET id = 8 WHERE id = 2")
        settle(changes_of(source, position), rows)
        assert (
            rows["tree"]
            == rows_of(source, "tree")
            == {(9,): {"id": 9, "up": 9}, (8,): {"id": 8, "up": 9}, (3,): {"id": 3, "up": 8}}
        )
        position = world.here(source)
        world.run("DELETE FROM tree WHERE id = 9")
        settle(changes_of(source, position), rows)
        assert rows["tree"] == rows_of(source, "tree") == {}


def test_a_cascade_fires_a_trigger_that_writes_back(world: World) -> None:
    world.run(
        "CREATE TABLE parent (id INTEGER PRIMARY KEY, n int)", "CREATE TABLE child (id INTEGER PRIMARY KEY, p int REFERENCES parent (id) ON UPDATE CASCADE)",
        "CREATE TRIGGER counts AFTER UPDATE ON child BEGIN UPDATE parent SET n = n + 1 WHERE id = NEW.p; END", "INSERT INTO parent VALUES (1, 0)", "INSERT INTO child VALUES (1, 1)",
    )  # fmt: skip
    with world.opened("parent") as (source, position):
        rows = {"parent": rows_of(source, "parent")}
        world.run("UPDATE parent SET id = 2")
        settle(changes_of(source, position), rows)
        assert rows["parent"] == rows_of(source, "parent") == {(2,): {"id": 2, "n": 1}}


def test_two_captures_of_one_file_each_have_all_changes_and_forget_their_own(two: World) -> None:
    with two.opened("a", name="one") as (one, first), two.opened("a", "b", name="one.two") as (other, second):
        two.run("INSERT INTO a VALUES (1, 1)", "INSERT INTO b VALUES (1, 1)")
        ((transaction, changes),) = collect(one, first)
        assert len(changes) == 1
        one.acknowledge(transaction.position)
        one.close()
        one.remove()
        assert [each.table.name for each in changes_of(other, second)] == ["a", "b"]
        names = {name for (name,) in two.run("SELECT name FROM sqlite_master WHERE name LIKE '%millstream%'")}
        assert names
        assert all(each.startswith("_millstream:one.two:") for each in names)
        other.remove()
        assert two.run("SELECT name FROM sqlite_master WHERE name LIKE '%millstream%'") == []
        assert [each.name for each in two.path.parent.iterdir() if "millstream" in each.name] == []
        two.run("INSERT INTO a VALUES (2, 2)")


def test_what_was_acknowledged_is_forgotten_and_nothing_else(two: World) -> None:
    with two.opened("a") as (source, position):
        two.run("INSERT INTO a VALUES (1, 1)", "INSERT INTO a VALUES (2, 2)")
        ((first, _),) = collect(source, position)
        two.run("INSERT INTO a VALUES (3, 3)")
        source.acknowledge(first.position)
        source.close()
        assert two.run('SELECT seq FROM "_millstream:shop:changes"') == [(first.position["seq"] + 1,)]
        again = two.source("a")
        again.prepare(first.position)
        assert [each.after for each in changes_of(again, first.position)] == [{"id": 3, "v": 3}]
        again.acknowledge(position)  # an older one takes nothing back
        again.close()
        assert two.run('SELECT count(*) FROM "_millstream:shop:changes"') == [(1,)]


def test_a_table_that_comes_later_is_captured_from_there_on_and_one_that_goes_is_not(two: World) -> None:
    with two.opened("a") as (_, position):
        two.run("INSERT INTO a VALUES (1, 1)", "INSERT INTO b VALUES (1, 1)")
    more = two.source("b")
    more.prepare(position)
    two.run("INSERT INTO a VALUES (2, 2)", "INSERT INTO b VALUES (2, 2)")
    assert [(each.table.name, each.after) for each in changes_of(more, position)] == [("b", {"id": 2, "v": 2})]
    more.close()


def test_writes_over_an_attached_file_are_captured(two: World) -> None:
    with two.opened("a") as (source, position):
        other = Session(two.path.with_name("other.db"))
        other.run(f"ATTACH '{two.path}' AS shop", "CREATE TABLE a (id int)", "INSERT INTO shop.a VALUES (1, 1)")
        other.close()
        assert [each.after for each in changes_of(source, position)] == [{"id": 1, "v": 1}]
