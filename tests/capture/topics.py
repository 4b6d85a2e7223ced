"""What a capture has put into topics, held to what a database can have done: each record must fit to what was there before it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from millstream.capture.contract import Source, Table
from millstream.capture.envelope import key_of
from millstream.capture.following import topic_of
from millstream.capture.reading import records_of
from millstream.event import Record
from millstream.log.contract import Log

Rows = dict[bytes, dict[str, Any]]


def envelopes(log: Log, topic: str) -> list[tuple[bytes, dict[str, Any] | None]]:
    """Keys and values, as they are said."""
    return [(r.key or b"", None if r.value is None else json.loads(r.value)) for r in records_of(log, topic)]


def fold(log: Log, topic: str) -> Rows:
    """The rows of a topic. A change that is missing, comes twice or out of order does not fit to the row that is there."""
    rows: Rows = {}
    gone: dict[int, bytes] = {}
    for record in records_of(log, topic):
        key = record.key or b""
        if record.value is None:
            assert gone.pop(record.partition) == key, f"a tombstone of {key!r} without its delete"
            continue
        assert record.partition not in gone, f"{gone} has no tombstone"
        said = json.loads(record.value)
        match said["op"]:
            case "c":
                assert key not in rows, f"{key!r} is there already: {record}"
            case "u":
                _fits(rows.get(key), said["before"], record)
            case "d":
                if said["source"]["txId"] is not None:  # what was swept may be as an earlier snapshot left it
                    _fits(rows.get(key), said["before"], record)
                rows.pop(key, None)
                gone[record.partition] = key
        if said["after"] is not None:
            rows[key] = said["after"]
    assert not gone
    return rows


def _fits(there: Mapping[str, Any] | None, before: Mapping[str, Any] | None, record: Record) -> None:
    assert there is not None, f"there is no row for {record}"
    for name, value in (before or {}).items():
        assert there.get(name) == value, f"{name} was {there.get(name)!r} before {record}"


def rows_now(source: Source, table: Table) -> Rows:
    """What a database has, under the keys that a topic would have."""
    with source.snapshot([table]) as snapshot:
        return {key_of(table, row): dict(row) for piece in snapshot.rows(table) for row in piece}


def assert_same(log: Log, source: Source, name: str, tables: Iterable[str]) -> int:
    """The topics of tables say what the database has; how many rows that is."""
    wanted, found = set(tables), 0
    for table in source.tables():
        if table.name in wanted:
            there = rows_now(source, table)
            assert {k.decode(): v for k, v in fold(log, topic_of(name, table)).items()} == _plain(there)
            found += len(there)
    return found


def _plain(rows: Rows) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps({key.decode(): row for key, row in rows.items()}))
    return plain
