"""Whatever is done to tables, what is captured comes to the same rows; each change fits on those before it."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.testing import PostgresServer
from tests.capture.postgres.world import Pg, Rows, World, as_now, attempt, fold, rows_of

EXAMPLES = int(os.environ.get("MILLSTREAM_STATEMENTS", "12"))
IDS = st.integers(1, 5)
TABLES = st.sampled_from(["plain", "full_", "parts"])
WORDS = st.text(alphabet="aBü'\\💧 \t\n", max_size=5)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@st.composite
def statement(draw: st.DrawFn) -> str:
    table, one, other, word = draw(TABLES), draw(IDS), draw(IDS), _quoted(draw(WORDS))
    return draw(
        st.sampled_from(
            [
                f"INSERT INTO {table} (id, other, word) VALUES ({one}, {other}, {word})",
                f"INSERT INTO {table} (id, other, word) VALUES ({one}, {other}, {word}), ({other}, {one}, {word}) ON CONFLICT DO NOTHING",
                f"INSERT INTO {table} (id, other, word) VALUES ({one}, {other}, {word}) ON CONFLICT (id) DO UPDATE SET word = {word}, other = 9",
                f"INSERT INTO full_ (id, other, word) VALUES ({one}, {other}, repeat({word}, 2000)) ON CONFLICT DO NOTHING",
                f"INSERT INTO {table} (id, other) SELECT i, i FROM generate_series(1000, 2500) i",
                f"UPDATE {table} SET word = {word} WHERE id >= {one}",
                f"UPDATE {table} SET id = id + 100",
                f"UPDATE {table} SET id = {other} WHERE id = {one}",
                f"UPDATE {table} SET other = other + 1 WHERE id = {one}",
                f"DELETE FROM {table} WHERE id = {one}",
                f"DELETE FROM {table}",
                f"INSERT INTO {table} (id, other) SELECT id + 20, other + 20 FROM plain",
                "BEGIN", "COMMIT", "COMMIT", "ROLLBACK", "SAVEPOINT a", "SAVEPOINT b", "ROLLBACK TO a", "ROLLBACK TO b", "RELEASE SAVEPOINT a",
                f"TRUNCATE {table}", "TRUNCATE plain, full_",
                f"ALTER TABLE {table} ADD COLUMN more{one}{other} int",
                f"ALTER TABLE {table} DROP COLUMN more{one}{other}",
                f"VACUUM FULL {table}",
                f"SWAP {table} {one} {other}",
            ]
        )
    )  # fmt: skip


def _run(connection: Pg, said: str) -> None:
    if not said.startswith("SWAP"):
        attempt(lambda: connection.execute(said.encode()))
        return
    _, table, one, other = said.split()
    for old, new in ((one, "-1"), (other, one), ("-1", other)):
        attempt(lambda old=old, new=new: connection.execute(f"UPDATE {table} SET id = {new} WHERE id = {old}".encode()))  # type: ignore[misc]


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(said=st.lists(statement(), min_size=1, max_size=25))
def test_any_statements_captured_and_applied_give_the_same_rows(logical: PostgresServer, said: list[str]) -> None:
    world = World(logical)
    world.run(
        "CREATE TABLE plain (id int PRIMARY KEY, other int, word text)",
        "CREATE TABLE full_ (id int PRIMARY KEY, other int, word text)",
        "ALTER TABLE full_ REPLICA IDENTITY FULL, ALTER word SET STORAGE EXTERNAL",
        "CREATE TABLE parts (id int PRIMARY KEY, other int, word text) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (MINVALUE) TO (4)",
        "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (4) TO (MAXVALUE)",
    )
    try:
        with world.opened("plain", "full_", "parts") as (source, position):
            with world.connect() as connection:
                for each in said:
                    _run(connection, each)
                attempt(lambda: connection.execute("ROLLBACK"))
            rows: Rows = fold(world.changes(source, position), {})
            for table in source.tables()[:-1]:
                assert as_now(rows.get(table.name, {}), table) == rows_of(source, table.name)
    finally:
        world.close()
