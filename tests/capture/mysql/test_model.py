"""Whatever is done to tables, what is captured comes to the same rows; each change fits on those before it."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.testing import MariaDbServer
from tests.capture.mysql.world import Rows, World, as_now, attempt, fold, rows_of

EXAMPLES = int(os.environ.get("MILLSTREAM_STATEMENTS", "12"))
IDS = st.integers(1, 5)
TABLES = st.sampled_from(["plain", "wide", "old"])
WORDS = st.text(alphabet="aBü'\\💧 \0", max_size=5)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''").replace("\0", "\\0") + "'"


@st.composite
def statement(draw: st.DrawFn) -> str:
    table, one, other, word = draw(TABLES), draw(IDS), draw(IDS), _quoted(draw(WORDS))
    return draw(
        st.sampled_from(
            [
                f"INSERT INTO {table} (id, other, word) VALUES ({one}, {other}, {word})",
                f"INSERT IGNORE INTO {table} (id, other, word) VALUES ({one}, {other}, {word}), ({other}, {one}, {word})",
                f"INSERT INTO {table} (id, other, word) VALUES ({one}, {other}, {word}) ON DUPLICATE KEY UPDATE word = {word}, id = id + 10",
                f"REPLACE INTO {table} (id, other, word) VALUES ({one}, {other}, {word})",
                f"UPDATE {table} SET word = {word} WHERE id >= {one}",
                f"UPDATE {table} SET id = id + 100 ORDER BY id DESC",
                f"UPDATE {table} SET id = {other} WHERE id = {one}",
                f"UPDATE {table} SET other = other + 1 WHERE id = {one}",
                f"DELETE FROM {table} WHERE id = {one}",
                f"DELETE FROM {table}",
                f"INSERT INTO {table} (id, other) SELECT id + 20, other + 20 FROM plain",
                "BEGIN", "COMMIT", "COMMIT", "ROLLBACK", "SAVEPOINT a", "SAVEPOINT b", "ROLLBACK TO a", "ROLLBACK TO b", "RELEASE SAVEPOINT a",
                f"TRUNCATE {table}", f"TRUNCATE TABLE `{table}` -- all of it",
                f"ALTER TABLE {table} ADD COLUMN more{one}{other} int",
                f"ALTER TABLE {table} ENGINE = InnoDB",
                f"CREATE OR REPLACE TABLE {table} (id int PRIMARY KEY, other int, word varchar(9)) SELECT 7 AS id, {one} AS other",
                "FLUSH BINARY LOGS",
                f"SWAP {table} {one} {other}",
            ]
        )
    )  # fmt: skip


def _run(cursor: Any, said: str) -> None:
    if not said.startswith("SWAP"):
        attempt(lambda: cursor.execute(said))
        return
    _, table, one, other = said.split()
    for old, new in ((one, "-1"), (other, one), ("-1", other)):
        attempt(lambda old=old, new=new: cursor.execute(f"UPDATE {table} SET id = {new} WHERE id = {old}"))  # type: ignore[misc]


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(said=st.lists(statement(), min_size=1, max_size=25))
def test_any_statements_captured_and_applied_give_the_same_rows(mariadb: MariaDbServer, said: list[str]) -> None:
    world = World(mariadb)
    world.run(
        "CREATE TABLE plain (id int PRIMARY KEY, other int UNIQUE, word varchar(9))",
        "CREATE TABLE wide (id bigint unsigned, other int, word text, PRIMARY KEY (id), UNIQUE (other))",
        "CREATE TABLE old (id int PRIMARY KEY, other int UNIQUE, word varchar(9)) ENGINE = MyISAM",
    )
    with world.opened("plain", "wide", "old") as (source, position):
        connection = world.connect()
        with connection.cursor() as cursor:
            for each in said:
                _run(cursor, each)
        connection.close()  # what is open is rolled back
        rows: Rows = fold(world.changes(source, position), {})
        for table in source.tables()[:-1]:
            assert as_now(rows.get(table.name, {}), table) == rows_of(source, table.name)
    world.run(f"DROP DATABASE {world.name}")
