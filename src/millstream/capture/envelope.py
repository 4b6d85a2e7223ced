"""Changes as events: Debezium's envelope as JSON, keyed as tables of pipelines read keys.

Invariants: what a change does to a row can be told from the key and the value alone; a row that went is a ``d`` and a tombstone, and a row
whose key changed goes under the old key and comes under the new one. ``source`` names the transaction and its place in the database.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from millstream.capture.contract import Change, Position, Row, Table
from millstream.errors import CaptureError
from millstream.event import Event, to_millis
from millstream.version import __version__

_encode = msgspec.json.Encoder(decimal_format="string").encode
_decode = msgspec.json.Decoder().decode
_RESERVED = "millstream."
_TEXTS = ("string", "binary", "date", "time", "decimal", "varchar", "char")
"""How the Spark types begin whose values are text in JSON."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What the changes of one transaction, or of one snapshot, have in common."""

    connector: str
    name: str
    position: Position
    id: str
    time: datetime | None
    """That of the records: when it was committed, or since when the rows of a snapshot hold."""
    read: bool = False
    """Whether it is a snapshot."""
    committed: datetime | None = None
    _sources: dict[int, tuple[Table, msgspec.Raw]] = field(default_factory=dict)

    def source(self, table: Table) -> msgspec.Raw:
        """What ``source`` says of changes of a table."""
        found = self._sources.get(id(table))
        if found is None:
            found = self._sources[id(table)] = (table, msgspec.Raw(_encode(self._said(table))))
        return found[1]

    def _said(self, table: Table) -> dict[str, Any]:
        place = {name: value for name, value in self.position.items() if isinstance(value, str | int)}
        moment = self.committed or self.time
        return {
            "version": __version__,
            "connector": self.connector,
            "name": self.name,
            "ts_ms": None if moment is None else to_millis(moment),
            "snapshot": "true" if self.read else "false",
            "db": table.schema,
            "schema": table.schema,
            "table": table.name,
            "txId": self.id or None,
            **place,
        }


def key_of(table: Table, row: Row) -> bytes:
    """The key of a row's record: plain text for one column, a JSON object for several.

    Text that could be taken for JSON, or for a key of ours, is a JSON object too.

    >>> key_of(Table("", "users", (), ("id",)), {"id": 7}), key_of(Table("", "users", (), ("id",)), {"id": "ann"})
    (b'7', b'ann')
    >>> key_of(Table("", "users", (), ("id",)), {"id": '"ann"'})
    b'{"id":"\\\\"ann\\\\""}'
    """
    names = table.key
    try:
        if len(names) == 1:
            value = row[names[0]]
            if not isinstance(value, str):
                return _encode(value)
            if value[:1] not in ("", "{", '"') and not value.startswith(_RESERVED):
                return value.encode()
        return _encode({name: row[name] for name in names})
    except KeyError as error:
        raise CaptureError(
            f"table {table.full_name}: a change came without its key {error.args[0]!r}",
            hint="take a new snapshot: `millstream capture snapshot NAME --table TABLE`",
        ) from error


def row_of_key(table: Table, key: bytes) -> Row:
    """The key columns that a key was made of.

    >>> from millstream.capture.contract import Column
    >>> row_of_key(Table("", "users", (Column("id", "int", "int"),), ("id",)), b"7")
    {'id': 7}
    """
    if len(table.key) > 1 or key[:1] == b"{":
        found: Row = _decode(key)
        return found
    (name,) = table.key
    types = {column.name: column.type for column in table.columns}
    return {name: key.decode() if types.get(name, "string").startswith(_TEXTS) else _decode(key)}


def events_of(change: Change, origin: Origin, order: int | None = None) -> list[Event]:
    """The events of a change that is none of all rows; ``order`` is its place in a transaction that is cut."""
    table, before, after, op = change.table, change.before, change.after, change.op
    if after is None:
        return _gone(table, before or {}, origin, order)
    if op == "u" and before is not None and any(before.get(name, after[name]) != after[name] for name in table.key):
        arrived = _event(table, "c", None, after, origin, order)
        return [*_gone(table, before, origin, order), arrived]
    return [_event(table, op, before, after, origin, order)]


def gone(table: Table, key: bytes, origin: Origin, order: int | None = None) -> list[Event]:
    """The events of a row that went, of which only the key is known."""
    return _gone(table, row_of_key(table, key), origin, order)


def _gone(table: Table, before: Row, origin: Origin, order: int | None) -> list[Event]:
    deleted = _event(table, "d", before, None, origin, order)
    return [deleted, Event(None, deleted.key, origin.time)]


def _event(table: Table, op: str, before: Row | None, after: Row | None, origin: Origin, order: int | None) -> Event:
    said: dict[str, Any] = {
        "before": before,
        "after": after,
        "source": origin.source(table),
        "op": op,
        "ts_ms": time.time_ns() // 1_000_000,
    }
    if order is not None:
        said["transaction"] = {"id": origin.id, "total_order": order}
    row = after if after is not None else before
    return Event(_encode(said), key_of(table, row or {}), origin.time)


def after_of(value: bytes) -> Mapping[str, Any] | None:
    """The row that a record of ours says there is; None if it says that it went."""
    found: Mapping[str, Any] | None = _after.decode(value).after
    return found


class _After(msgspec.Struct):
    after: dict[str, Any] | None


_after = msgspec.json.Decoder(_After)


def canonical(row: Row, columns: Sequence[str]) -> bytes:
    """A row as bytes that are equal for equal rows."""
    return _encode([row.get(name) for name in columns])
