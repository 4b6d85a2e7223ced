"""Rows as the binary log has them: images of a table's columns, whole ones before and after."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Literal

from millstream.capture.contract import Change
from millstream.capture.mysql.table_map import Mapped, number
from millstream.errors import CaptureError

_KINDS: dict[int, tuple[Literal["c", "u", "d"], int, bool]] = {
    23: ("c", 1, False), 24: ("u", 1, False), 25: ("d", 1, False),
    30: ("c", 2, False), 31: ("u", 2, False), 32: ("d", 2, False),
    166: ("c", 1, True), 167: ("u", 1, True), 168: ("d", 1, True),
    169: ("c", 2, True), 170: ("u", 2, True), 171: ("d", 2, True),
}  # fmt: skip
"""What happened to the rows, the version of the event, and whether it is compressed."""
ROWS = frozenset(_KINDS)
PARTIAL = 39
"""An event with parts of values, which a setting of MySQL allows."""


def read_rows(kind: int, body: bytes, mapped: Mapped) -> Iterator[Change]:
    """The changes of an event, whose body begins with the table's number and flags."""
    op, version, packed = _KINDS[kind]
    at = 8 if version == 1 else 8 + int.from_bytes(body[8:10], "little")
    width, at = number(body, at)
    if width != mapped.width:
        raise CaptureError(
            f"table {mapped.table.full_name}: the binary log has rows of {width} columns, expected {mapped.width}"
        )
    for _ in range(2 if op == "u" else 1):
        present = int.from_bytes(body[at : at + mapped.null_bytes], "little")
        at += mapped.null_bytes
        if present & (1 << width) - 1 != (1 << width) - 1:
            raise CaptureError(
                f"table {mapped.table.full_name}: the binary log has rows without some of their columns",
                hint="SET GLOBAL binlog_row_image = FULL; no session may set another; and a new snapshot",
            )
    if packed:
        body, at = unpacked(body, at), 0
    table, end = mapped.table, len(body)
    while at < end:
        row, at = _image(body, at, mapped)
        if op == "c":
            yield Change(table, op, None, row)
        elif op == "d":
            yield Change(table, op, row, None)
        else:
            after, at = _image(body, at, mapped)
            yield Change(table, op, row, after)


def _image(body: bytes, at: int, mapped: Mapped) -> tuple[dict[str, Any], int]:
    nulls = int.from_bytes(body[at : at + mapped.null_bytes], "little")
    at += mapped.null_bytes
    row: dict[str, Any] = {}
    if not nulls:
        for name, read in mapped.columns:
            row[name], at = read(body, at)
        return row, at
    for name, read in mapped.columns:
        if nulls & 1:
            row[name] = None
        else:
            row[name], at = read(body, at)
        nulls >>= 1
    return row, at


def unpacked(body: bytes, at: int) -> bytes:
    """What MariaDB packs with ``log_bin_compress``: a byte that says how, how long it was, and the bytes."""
    head = body[at]
    if head & 0x70:
        raise CaptureError(
            "the binary log is compressed in a way that cannot be read", hint="SET GLOBAL log_bin_compress = OFF"
        )
    return zlib.decompress(body[at + 1 + (head & 7) :])
