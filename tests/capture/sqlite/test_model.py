"""Whatever is done to tables, what is captured comes to the same rows; each change fits on those before it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.capture.sqlite.source import SqliteSource
from tests.capture.sqlite.world import Rows, World, as_now, changes_of, fold, rows_of

EXAMPLES = int(os.environ.get("MILLSTREAM_STATEMENTS", "25"))
IDS = st.integers(1, 5)
TABLES = st.sampled_from(["plain", "wide", "child"])
MAKE = (
    "CREATE TABLE plain (id INTEGER PRIMARY KEY, other int UNIQUE, word text COLLATE NOCASE)",
    "CREATE UNIQUE INDEX words ON plain (word) WHERE other > 2",
    'CREATE TABLE wide (word text COLLATE NOCASE NOT NULL DEFAULT "id", other int NOT NULL DEFAULT 3 UNIQUE, id int, PRIMARY KEY (word, id)) WITHOUT ROWID',
    "CREATE TABLE child (id text PRIMARY KEY NOT NULL, other int UNIQUE REFERENCES plain (other) ON UPDATE CASCADE ON DELETE CASCADE, word blob,"
    " up int REFERENCES plain (id) ON DELETE SET NULL)",
)


@st.composite
def statement(draw: st.DrawFn) -> str:
    table, one, other = draw(TABLES), draw(IDS), draw(IDS)
    word = draw(st.sampled_from(["'a'", "'A'", "'b'", "'''\"ü💧'", "x'00ff'", "NULL", "1.5"]))
    clause = draw(st.sampled_from(["", "OR REPLACE", "OR REPLACE", "OR IGNORE", "OR FAIL", "OR ROLLBACK"]))
    row = f"INSERT {clause} INTO {table} (id, other, word) VALUES ({one}, {other}, {word})"
    return draw(
        st.sampled_from(
            [
                row, row, row,
                f"{row}, ({other}, {one}, {word})",
                f"INSERT INTO {table} (id, other, word) VALUES ({one}, {other}, {word}) ON CONFLICT DO UPDATE SET word = {word}, id = id + 10",
                f"INSERT INTO {table} (id, other, word) VALUES ({one}, {other}, {word}) ON CONFLICT DO NOTHING",
                f"REPLACE INTO wide (id) VALUES ({one})",
                f"INSERT OR REPLACE INTO wide (id, other) VALUES ({one}, NULL)",
                f"UPDATE {clause} {table} SET word = {word} WHERE id >= {one}",
                f"UPDATE {clause} {table} SET id = {other} WHERE id = {one}",
                f"UPDATE {clause} {table} SET other = {other} WHERE other <= {one}",
                f"UPDATE {clause} {table} SET id = id + 1, other = other - 1",
                f"UPDATE {clause} plain SET rowid = {other} WHERE id = {one}",
                f"INSERT {clause} INTO child (rowid, id, other) VALUES ({one}, {other} + 20, NULL)",
                f"UPDATE {clause} child SET rowid = {one} WHERE id = {other}",
                f"DELETE FROM {table} WHERE id = {one}",
                f"DELETE FROM {table}",
                f"INSERT {clause} INTO {table} (id, other) SELECT id + {one}, other + 20 FROM plain",
                "BEGIN", "COMMIT", "COMMIT", "ROLLBACK", "SAVEPOINT a", "SAVEPOINT b", "ROLLBACK TO a", "ROLLBACK TO b", "RELEASE a",
                "PRAGMA recursive_triggers = on", "PRAGMA recursive_triggers = off",
                f"SWAP {table} {one} {other}",
                f"ALTER {table} ADD COLUMN more{one}{other} int",
                f"ALTER {table} ADD COLUMN more{one}{other} text NOT NULL DEFAULT 'x'",
                f"ALTER {table} RENAME COLUMN more{one}{other} TO other{one}{other}",
                f"ALTER {table} DROP COLUMN other{one}{other}",
                "READ",
            ]
        )
    )  # fmt: skip


def _run(world: World, source: SqliteSource, said: str) -> None:
    verb, _, rest = said.partition(" ")
    if verb == "SWAP":
        table, one, other = rest.split()
        for old, new in ((one, "-1"), (other, one), ("-1", other)):
            world.attempt(f"UPDATE {table} SET id = {new} WHERE id = {old}")
    elif verb == "ALTER":
        world.attempt("COMMIT")  # it waits for writers
        try:
            source.alter(f"ALTER TABLE {rest}")
        except Exception as error:
            assert "column" in str(error), error  # noqa: PT017
    else:
        world.attempt(said)


@pytest.mark.parametrize("wal", [True, False], ids=["wal", "journal"])
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(said=st.lists(statement(), min_size=1, max_size=30))
def test_any_statements_captured_and_applied_give_the_same_rows(wal: bool, said: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder) / "shop.db", wal=wal)
        world.run(*MAKE)
        with world.opened("plain", "wide", "child") as (source, position):
            rows: Rows = {}
            for each in [*said, "COMMIT", "READ"]:
                if each == "READ":
                    world.attempt("COMMIT")
                    fold(changes_of(source, position), rows)
                    position = world.here(source)
                    for table in source.tables():
                        assert as_now(rows.get(table.name, {}), table) == rows_of(source, table.name)
                else:
                    _run(world, source, each)
        world.close()
