"""What every database must do that is captured. Its tests inherit this class and give the fixture ``database``."""

from __future__ import annotations

import itertools
import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import pytest

from millstream.capture.contract import Change, Position, Source, Table, Transaction
from millstream.errors import CaptureError
from tests.waiting import until

Rows = dict[str, dict[tuple[Any, ...], dict[str, Any]]]
Read = list[tuple[Transaction, list[Change]]]
FOREIGN: dict[str, Position] = {
    "mariadb": {"server": "mariadb 1", "file": "binlog.000001", "byte": 4, "made": 1, "gtid": ""},
    "postgresql": {"system": "7", "timeline": 1, "lsn": "0/1", "publication": 1, "tables": {}},
    "sqlite": {"capture": "0", "seq": 1, "made": 1},
    "none": {},
}
"""A position of each kind of database, and one that is none."""
TABLES = (
    "CREATE TABLE a (id int PRIMARY KEY, v int, t varchar(300))",
    "CREATE TABLE b (id int PRIMARY KEY, v int)",
    "CREATE TABLE mark (id int PRIMARY KEY)",
)


class Database(ABC):
    """A database of its own for one test, which an application writes, and sources that capture it under one name."""

    @abstractmethod
    def session(self) -> AbstractContextManager[Callable[[str], Any]]:
        """A session of the application: a function that runs a statement, which is committed unless BEGIN was said."""

    @abstractmethod
    def source(self, *tables: str) -> Source:
        """A source that nobody else has; those before it are closed."""

    @abstractmethod
    def objects(self) -> object:
        """What there is in the database besides rows, as its catalog says it."""

    def run(self, *statements: str) -> None:
        """Run statements in one session."""
        with self.session() as do:
            for each in statements:
                do(each)


def key_of(table: Table, row: Any) -> tuple[Any, ...]:
    """The key of a row, or of what is known of it."""
    return tuple(row[name] for name in table.key)


def fold(changes: Sequence[Change], rows: Rows) -> Rows:
    """Apply changes, and hold them to what is there: one that is missing or comes twice does not fit."""
    for change in changes:
        table, name = change.table, change.table.name
        there = rows.setdefault(name, {})
        if change.op == "t":
            there.clear()
            continue
        key = key_of(table, change.after) if change.after is not None else None
        if change.op != "c":  # where the key is the same the database need not say what was before
            old = key_of(table, change.before) if change.before is not None else key
            known = there.pop(old)  # type: ignore[arg-type]
            assert {each: known.get(each) for each in change.before or ()} == dict(change.before or {})
        if key is not None:
            assert key not in there, f"{name} {key} is there already"
            assert change.after is not None
            there[key] = dict(change.after)
    return rows


def rows_in(source: Source) -> tuple[Position, Rows]:
    """A snapshot of all tables."""
    tables, rows = source.tables(), Rows()
    with source.snapshot(tables) as snapshot:
        for table in tables:
            rows[table.name] = {key_of(table, row): dict(row) for piece in snapshot.rows(table) for row in piece}
        return snapshot.position, {name: found for name, found in rows.items() if name != "mark"}


class CaptureContract:
    """The tests. Transactions of the application may come as one, if they are whole; so what is compared are changes."""

    _marks = itertools.count(1)

    @contextmanager
    def begun(self, database: Database) -> Iterator[tuple[Source, Position]]:
        """Tables, a source of them, and the position before what is written next."""
        database.run(*TABLES)
        source = database.source("a", "b", "mark")
        source.prepare(None)
        with source.snapshot(()) as snapshot:
            position = snapshot.position
        yield source, position
        source.close()

    def read(self, database: Database, source: Source, after: Position) -> Read:
        """What was committed after a position until now: transactions with changes of ours, without the mark that says where now is."""
        mark, found = next(self._marks), Read()
        database.run(f"INSERT INTO mark VALUES ({mark})")
        reading, deadline = source.changes(after), time.monotonic() + 60
        for transaction in reading:
            assert time.monotonic() < deadline, "the mark did not come"
            changes = list(transaction.changes) if transaction is not None else []
            if transaction is not None and changes:
                found.append((transaction, [each for each in changes if each.table.name != "mark"]))
            if any(each.after == {"id": mark} for each in changes if each.table.name == "mark"):
                break
        reading.close()  # type: ignore[attr-defined]
        return found

    def changes(self, database: Database, source: Source, after: Position) -> list[Change]:
        return [change for _, changes in self.read(database, source, after) for change in changes]

    def test_tables_have_a_key_and_the_columns_that_their_rows_have(self, database: Database) -> None:
        with self.begun(database) as (source, position):
            database.run("INSERT INTO a VALUES (1, 2, 'x')")
            (a, b, _) = source.tables()
            assert [(each.name, each.key, [column.name for column in each.columns]) for each in (a, b)] == [
                ("a", ("id",), ["id", "v", "t"]),
                ("b", ("id",), ["id", "v"]),
            ]
            assert [column.type for column in a.columns][2] == "string"
            (change,) = self.changes(database, source, position)
            assert change.table == a
            assert (change.op, change.before, change.after) == ("c", None, {"id": 1, "v": 2, "t": "x"})
            assert rows_in(source)[1]["a"] == {(1,): {"id": 1, "v": 2, "t": "x"}}

    def test_a_table_that_is_not_there_is_refused(self, database: Database) -> None:
        database.run(*TABLES)
        source = database.source("a", "nowhere")
        with pytest.raises(CaptureError) as found:
            source.tables()
        assert found.value.hint

    def test_where_nothing_happens_it_is_said_at_least_once_a_second(self, database: Database) -> None:
        with self.begun(database) as (source, position):
            reading, quiet = source.changes(position), 0
            until(lambda: next(reading) is None)
            while quiet < 3:
                began = time.monotonic()
                found = next(reading)
                assert time.monotonic() - began < 5  # a second, and what other tests take of the machine
                assert found is None or list(found.changes) == []
                quiet += found is None
            reading.close()  # type: ignore[attr-defined]

    def test_changes_after_a_snapshot_fit_on_its_rows_while_others_write(self, database: Database) -> None:
        with self.begun(database) as (source, _):
            database.run(*(f"INSERT INTO {each.format(number)}" for each in ("a VALUES ({}, 0, 'x')", "b VALUES ({}, 0)") for number in range(200)))  # fmt: skip
            stop, turns = threading.Event(), [0, 0]

            def write(who: int) -> None:
                with database.session() as do:
                    while not stop.is_set():
                        number = turns[who] + 1
                        one = 2 * (number * 7 % 100) + who
                        with suppress(Exception):  # a deadlock: the transaction is gone
                            do("BEGIN")
                            do(f"UPDATE a SET v = v + 1 WHERE id = {one}")
                            do(f"DELETE FROM b WHERE id = {one}")
                            do(f"INSERT INTO b VALUES ({one}, {number})")
                            do("ROLLBACK" if number % 3 == 0 else "COMMIT")
                            turns[who] = number
                        if turns[who] < number:
                            do("ROLLBACK")
                        stop.wait(0.002)

            threads = [threading.Thread(target=write, args=(who,)) for who in (0, 1)]
            for each in threads:
                each.start()
            try:
                until(lambda: min(turns) > 20, timeout=60)
                position, rows = rows_in(source)
                wanted = min(turns) + 30
                until(lambda: min(turns) > wanted, timeout=60)
            finally:
                stop.set()
                for each in threads:
                    each.join(60)
            fold(self.changes(database, source, json.loads(json.dumps(position))), rows)
            assert rows == rows_in(source)[1]

    def test_from_any_position_comes_what_is_behind_it_once(self, database: Database) -> None:
        with self.begun(database) as (source, position):
            positions: list[tuple[Position, int]] = [(position, 0)]
            every: list[Change] = []
            for number in range(6):
                database.run(
                    "BEGIN", f"INSERT INTO a VALUES ({number}, 1, 'x')", f"UPDATE a SET v = v + 1 WHERE id <= {number}",
                    f"DELETE FROM a WHERE id = {number - 3}", f"INSERT INTO b VALUES ({number}, 1)", "COMMIT",
                )  # fmt: skip
                for transaction, changes in self.read(database, source, positions[-1][0]):
                    every += changes
                    positions.append((json.loads(json.dumps(transaction.position)), len(every)))
            source.close()
            assert len(positions) > 6
            for position, count in positions:
                again = database.source("a", "b", "mark")
                again.prepare(position)
                assert self.changes(database, again, position) == every[count:]
                again.close()

    def test_who_stops_within_a_transaction_gets_it_whole_again(self, database: Database) -> None:
        with self.begun(database) as (source, position):
            database.run("BEGIN", *(f"INSERT INTO a VALUES ({number}, 1, 'x')" for number in range(100)), "COMMIT")
            reading = source.changes(position)
            transaction = until(lambda: next(reading))
            assert transaction is not None
            for _ in zip(transaction.changes, range(50), strict=False):
                pass
            reading.close()  # type: ignore[attr-defined]
            source.close()
            again = database.source("a", "b", "mark")
            again.prepare(position)
            found = self.changes(database, again, position)
            assert [each.after["id"] for each in found if each.after] == list(range(100))
            again.close()

    def test_what_is_committed_is_not_behind_the_end(self, database: Database) -> None:
        with self.begun(database) as (source, position):
            for number in range(3):
                database.run(f"INSERT INTO b VALUES ({number}, 1)")
                end = source.end()
            database.run("INSERT INTO b VALUES (7, 7)")
            assert [each.after for each in self.changes(database, source, end)] == [{"id": 7, "v": 7}]
            assert len(self.changes(database, source, position)) == 4

    def test_changes_of_a_key_come_in_their_order(self, database: Database) -> None:
        with self.begun(database) as (source, position):
            database.run("INSERT INTO b VALUES (0, 0), (1, 0), (2, 0)")
            with database.session() as one, database.session() as other:
                for number in range(1, 40):
                    (one if number % 2 else other)(f"UPDATE b SET v = {number} WHERE id = {number % 3}")
            found = self.changes(database, source, position)
            assert [each.op for each in found] == ["c"] * 3 + ["u"] * 39
            for key in range(3):
                values = [each.after["v"] for each in found if each.after and each.after["id"] == key]
                assert values == [0, *(number for number in range(1, 40) if number % 3 == key)]

    def test_rows_that_go_or_get_another_key_are_told_with_the_old_one(self, database: Database) -> None:
        with self.begun(database) as (source, position):
            database.run("INSERT INTO b VALUES (1, 1), (2, 2)", "UPDATE b SET id = 3 WHERE id = 1", "DELETE FROM b WHERE id = 2")  # fmt: skip
            *_, moved, gone = self.changes(database, source, position)
            assert moved.before is not None
            assert gone.before is not None
            assert (moved.op, moved.before["id"], moved.after) == ("u", 1, {"id": 3, "v": 1})
            assert (gone.op, gone.before["id"], gone.after) == ("d", 2, None)

    def test_what_is_not_committed_is_not_told_and_what_is_rolled_back_never(self, database: Database) -> None:
        with self.begun(database) as (source, position):
            with database.session() as do:
                for each in ("BEGIN", "INSERT INTO a VALUES (1, 1, 'x')", "SAVEPOINT s", "INSERT INTO a VALUES (2, 2, 'x')", "ROLLBACK TO SAVEPOINT s"):  # fmt: skip
                    do(each)
                reading, quiet = source.changes(position), 0
                while quiet < 2:
                    found = next(reading)
                    assert found is None or list(found.changes) == []
                    quiet += found is None
                reading.close()  # type: ignore[attr-defined]
                do("COMMIT")
                for each in ("BEGIN", "DELETE FROM a", "INSERT INTO a VALUES (3, 3, 'x')", "ROLLBACK"):
                    do(each)
            found_changes = self.changes(database, source, position)
            assert [each.after for each in found_changes] == [{"id": 1, "v": 1, "t": "x"}]

    def test_a_transaction_over_tables_is_never_told_in_parts(self, database: Database) -> None:
        with self.begun(database) as (source, position):
            database.run("INSERT INTO a VALUES (1, 100, 'x')", "INSERT INTO b VALUES (1, 100)")
            for number in range(20):
                database.run("BEGIN", f"UPDATE a SET v = v - {number} WHERE id = 1", f"UPDATE b SET v = v + {number} WHERE id = 1", "COMMIT")  # fmt: skip
            rows, sums = Rows(), []
            for _, changes in self.read(database, source, position):
                fold(changes, rows)
                sums.append(sum(row["v"] for table in rows.values() for row in table.values()))
            assert set(sums[1:]) <= {200}
            assert sums[-1] == 200

    @pytest.mark.parametrize("kind", FOREIGN)
    def test_a_position_of_another_database_is_refused(self, database: Database, kind: str) -> None:
        with self.begun(database) as (source, _):
            source.close()
            again = database.source("a", "b", "mark")
            with pytest.raises(CaptureError) as found:
                again.prepare(FOREIGN[kind])
            assert found.value.hint
            again.close()

    def test_what_was_not_acknowledged_comes_again(self, database: Database) -> None:
        with self.begun(database) as (source, position):
            database.run("INSERT INTO b VALUES (1, 1)")
            *_, (first, _) = self.read(database, source, position)
            source.acknowledge(first.position)
            database.run("INSERT INTO b VALUES (2, 2)")
            *_, (second, _) = self.read(database, source, first.position)
            source.close()
            again = database.source("a", "b", "mark")
            again.prepare(first.position)
            assert [each.after for each in self.changes(database, again, first.position)] == [{"id": 2, "v": 2}]
            again.acknowledge(second.position)
            again.acknowledge(second.position)
            database.run("INSERT INTO b VALUES (3, 3)")
            assert [each.after for each in self.changes(database, again, second.position)] == [{"id": 3, "v": 3}]
            again.close()

    def test_a_capture_that_is_removed_leaves_nothing_and_the_application_goes_on(self, database: Database) -> None:
        database.run(*TABLES)
        before = database.objects()
        source = database.source("a", "b", "mark")
        source.prepare(None)
        database.run("INSERT INTO a VALUES (1, 1, 'x')")
        source.remove()
        source.close()
        assert database.objects() == before
        database.run("UPDATE a SET v = 2", "DELETE FROM a")
