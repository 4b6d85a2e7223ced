"""Rows of the stream become changes: values by column, as a table was when they were written.

Invariant: a row is whole. A value that lies out of line and was not touched is not in the stream; it comes from the row before, where the table
has REPLICA IDENTITY FULL, or from what is remembered of the row. Where it is in neither, that is an error, never a null.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from millstream.capture.contract import Change, Remembered, Table
from millstream.capture.postgres.pgoutput import UNCHANGED
from millstream.capture.postgres.server import quoted
from millstream.capture.postgres.values import Convert
from millstream.errors import CaptureError

_H, _I = struct.Struct(">H").unpack_from, struct.Struct(">I").unpack_from


@dataclass(frozen=True, slots=True, eq=False)
class Mapped:
    """A table as a message has described it, and what reads the values of its columns, in their order."""

    table: Table
    columns: tuple[tuple[str, Convert | None], ...]


def read_change(body: bytes, at: int, mapped: Mapped, remembered: Remembered | None = None) -> Change:
    """The change of a message with a row or of one that emptied tables; the row begins at ``at``."""
    op, table = body[0], mapped.table
    if op == 84:  # T
        return Change(table, "t", None, None)
    try:
        return _change(op, body, at, mapped, remembered)
    except (ValueError, IndexError, struct.error) as error:
        raise CaptureError(
            f"table {table.full_name}: found a row that cannot be read: {error}",
            hint="a database in SQL_ASCII may hold text that is no UTF-8; else please report it",
        ) from error


def _change(op: int, body: bytes, at: int, mapped: Mapped, remembered: Remembered | None) -> Change:
    table, columns = mapped.table, mapped.columns
    old: dict[str, Any] | None = None
    before, kind = None, body[at]
    if op != 73 and kind in b"KO":  # not I
        old, at, _ = _values(body, at + 1, columns)
        before = old if kind == 79 else {name: old[name] for name in table.key}
    if op == 68:  # D
        return Change(table, "d", before, None)
    new, at, whole = _values(body, at + 1, columns)
    if not whole:
        _fill(table, new, before, remembered)
    return Change(table, "c" if op == 73 else "u", before, new)


def _values(body: bytes, at: int, columns: Collection[tuple[str, Convert | None]]) -> tuple[dict[str, Any], int, bool]:
    """A row, where it ends, and whether every value is there."""
    (count,) = _H(body, at)
    if count != len(columns):
        raise ValueError(f"{count} values, expected {len(columns)}")
    at += 2
    row: dict[str, Any] = {}
    whole = True
    for name, convert in columns:
        kind = body[at]
        if kind == 116:  # t
            end = at + 5 + _I(body, at + 1)[0]
            text = body[at + 5 : end].decode()
            row[name] = text if convert is None else convert(text)
            at = end
        elif kind == 110:  # n
            row[name] = None
            at += 1
        else:
            row[name] = UNCHANGED
            whole = False
            at += 1
    return row, at, whole


def _fill(table: Table, row: dict[str, Any], before: dict[str, Any] | None, remembered: Remembered | None) -> None:
    """Put in what was not touched. The key first: it is in the row before, if it lies out of line."""
    missing = [name for name, value in row.items() if value is UNCHANGED]
    for name in missing:
        if before is not None and name in before:
            row[name] = before[name]
    was = {name: (before or row)[name] for name in table.key}
    for name in missing:
        if row[name] is UNCHANGED and remembered is not None:
            with suppress(KeyError):
                row[name] = remembered(table, was, name)
        if row[name] is UNCHANGED:
            key = ", ".join(f"{each} = {value!r}" for each, value in was.items())
            full = quoted(table.schema, table.name)
            raise CaptureError(
                f"table {table.full_name}: an update of the row {key} left {name} as it was, and PostgreSQL does not say what that is:"
                " it is stored out of line, and no row before tells it",
                hint=f"ALTER TABLE {full} REPLICA IDENTITY FULL; then `millstream capture remove` and `millstream capture start`, which reads all rows",
            )
