"""Types: what triggers wrote is what a snapshot gives, and every value that SQLite can store can be told from every other."""

from __future__ import annotations

import json
import math
import struct
import subprocess
from base64 import b64decode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.capture.sqlite.values import Kind, Unreadable, Values
from tests.capture.sqlite.world import World, changes_of, fold, rows_of

EVERY = (
    "CREATE TABLE every (id INTEGER PRIMARY KEY, i bigint, r double precision, t varchar(9), b blob, n decimal(9,2), d datetime, a, bin binary(16),"
    " stored int AS (i + 1) STORED, virtual int AS (i + 2) VIRTUAL)"
)
ROWS = (
    "(1, 9223372036854775807, 0.1, 'ü💧', x'00ff', 1.50, '2024-02-29 12:00:00', 'a', x'61')",
    "(2, -9223372036854775808, 1e300, '', x'', 12345678901234567, 5, 7, NULL)",
    "(3, 'no number', 'no number', x'61', 'text', x'61', 0.1, 1.5, 'text')",
    "(4, 1.5, 9223372036854775807, 12, 12, 'text', 9e999, x'61', 9e999)",
    "(5, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    "(6, x'61', -9e999, '{\"blob\":\"YQ==\"}', 1.5, -0.0, '{}', '{\"text\":1}', x'62')",
    "(7, 1e20, x'61', CAST(x'ff41' AS text), CAST(x'ff41' AS text), CAST(x'ff41' AS text), 'a' || char(0) || 'b', 'x', 3)",
)
VALUES = {
    1: {"i": 9223372036854775807, "r": 0.1, "t": "ü💧", "b": "AP8=", "n": "1.5", "d": "2024-02-29 12:00:00", "a": "a", "bin": "YQ=="},
    2: {"i": -9223372036854775808, "r": 1e300, "t": "", "b": "", "n": "12345678901234567", "d": "5", "a": 7, "bin": None},
    3: {"i": "no number", "r": "no number", "t": '{"blob":"YQ=="}', "b": '{"text":"text"}', "n": '{"blob":"YQ=="}', "d": "0.1", "a": 1.5},
    4: {"i": 1.5, "r": 9.223372036854775807e18, "t": "12", "b": 12, "n": "text", "d": '{"real":"Infinity"}', "a": '{"blob":"YQ=="}'},
    5: dict.fromkeys(("i", "r", "t", "b", "n", "d", "a", "bin", "stored")),
    6: {"i": '{"blob":"YQ=="}', "r": '{"real":"-Infinity"}', "t": '{"text":"{\\"blob\\":\\"YQ==\\"}"}', "b": 1.5, "d": "{}", "a": '{"text":"{\\"text\\":1}"}'},
    7: {"i": 1e20, "r": '{"blob":"YQ=="}', "t": '{"bytes":"/0E="}', "b": '{"bytes":"/0E="}', "n": '{"bytes":"/0E="}', "d": "a\0b", "bin": 3},
}  # fmt: skip


def exact(row: Any) -> list[tuple[str, type, str]]:
    return [(name, type(value), repr(value)) for name, value in row.items()]


@pytest.mark.parametrize("wal", [True, False], ids=["wal", "journal"])
def test_every_value_reads_the_same_from_the_changes_and_in_a_snapshot(world: World, wal: bool) -> None:
    world.run(f"PRAGMA journal_mode = {'wal' if wal else 'delete'}", EVERY)
    with world.opened("every", rows=2) as (source, position):
        for row in ROWS:
            world.run(f"INSERT INTO every VALUES {row}")
        world.run("UPDATE every SET id = id + 100", "UPDATE every SET id = id - 100")
        rows, there = fold(changes_of(source, position), {})["every"], rows_of(source, "every")
    assert rows.keys() == there.keys() == {(each,) for each in VALUES}
    for (number,), found in there.items():
        assert exact(rows[number,]) == exact(found)
        wanted = VALUES[number]
        assert exact({name: found[name] for name in wanted}) == exact(wanted)
        assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_columns_are_declared_with_types_of_spark_and_virtual_ones_are_left_out(world: World) -> None:
    world.run(EVERY)
    (table,) = world.source("EVERY").tables()
    assert (table.full_name, table.key) == ("every", ("id",))
    assert [(each.name, each.native, each.type) for each in table.columns] == [
        ("id", "integer", "bigint"), ("i", "bigint", "bigint"), ("r", "double precision", "double"), ("t", "varchar(9)", "string"),
        ("b", "blob", "binary"), ("n", "decimal(9,2)", "string"), ("d", "datetime", "string"), ("a", "any", "string"),
        ("bin", "binary(16)", "binary"), ("stored", "int", "bigint"),
    ]  # fmt: skip


def test_a_file_in_utf_16_and_names_that_need_quotes(world: World) -> None:
    world.run("PRAGMA encoding = 'UTF-16'", 'CREATE TABLE "a ""b\'c" ("k 1" text, "sel""ect" text, PRIMARY KEY ("k 1" DESC) ON CONFLICT REPLACE)')  # fmt: skip
    with world.opened("a \"b'c") as (source, position):
        world.run("""INSERT INTO "a ""b'c" VALUES ('ü', '💧'), ('ü', '💧💧')""")
        assert [(each.op, each.before, each.after) for each in changes_of(source, position)] == [
            ("c", None, {"k 1": "ü", 'sel"ect': "💧"}),
            ("d", {"k 1": "ü", 'sel"ect': "💧"}, None),
            ("c", None, {"k 1": "ü", 'sel"ect': "💧💧"}),
        ]


KINDS: list[Kind] = ["integer", "real", "text", "blob", "any"]
STORED = st.one_of(
    st.none(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.text(max_size=4),
    st.sampled_from(['{"blob":"', '{"text":"a"}', '{"real":"Infinity"}', '{"bytes":', "Infinity", "YQ=="]),
    st.binary(max_size=4),
    st.binary(max_size=4).map(Unreadable),
)


def stored_of(value: Any, kind: Kind) -> tuple[type, Any]:
    """What was stored, read back from what is in JSON."""
    if isinstance(value, str) and value.startswith('{"'):
        found = json.loads(value)
        if isinstance(found, dict) and len(found) == 1:
            ((what, text),) = found.items()
            if what in ("blob", "bytes"):
                return (bytes if what == "blob" else Unreadable), b64decode(text)
            if what in ("text", "real"):
                return (str, text) if what == "text" else (float, math.copysign(math.inf, -1 if text[0] == "-" else 1))
    if isinstance(value, str) and kind == "blob":
        return bytes, b64decode(value)
    return type(value), struct.pack("d", value) if isinstance(value, float) else value


@pytest.mark.parametrize("kind", KINDS)
@given(value=STORED)
def test_whatever_is_stored_can_be_told_from_its_json(kind: Kind, value: Any) -> None:
    said = json.loads(json.dumps(Values(["c"], [kind]).row([value]), allow_nan=False))["c"]
    wanted = struct.pack("d", value) if isinstance(value, float) and not math.isinf(value) else value
    assert stored_of(said, kind) == (type(value), wanted)


def test_the_command_line_of_an_older_release_writes_through_the_triggers(world: World) -> None:
    world.run("CREATE TABLE a (id INTEGER PRIMARY KEY, v real)")
    with world.opened("a") as (source, position):
        done = subprocess.run(["sqlite3", str(world.path), "INSERT INTO a VALUES (1, 0.1), (2, 9e999); REPLACE INTO a VALUES (1, 1e-300); SELECT changes()"], capture_output=True, text=True, check=True)  # fmt: skip
        assert done.stdout == "1\n"
        rows = fold(changes_of(source, position), {})
        assert (
            rows["a"]
            == rows_of(source, "a")
            == {(1,): {"id": 1, "v": 1e-300}, (2,): {"id": 2, "v": '{"real":"Infinity"}'}}
        )
