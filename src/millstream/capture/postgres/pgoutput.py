"""Messages of ``pgoutput``, the output plugin of PostgreSQL's logical replication, from their bytes; protocol versions 1 and 2.

Nothing is known here of tables or types: a row is texts, one for each column, None for null, and :data:`UNCHANGED` for a value that lies
out of line and was not touched. Whoever reads rows in bulk takes :func:`row_head` and reads the rest when it is needed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from millstream.errors import CaptureError


class _Unchanged:
    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = _Unchanged()
Value: TypeAlias = "bytes | _Unchanged | None"
Values: TypeAlias = "tuple[Value, ...]"
ROWS = frozenset(b"IUD")
"""First bytes of messages that hold rows."""
EPOCH = 946_684_800_000_000
"""Microseconds from 1970 to 2000, from which the server counts."""

_H, _I, _BIGINT = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">q")
_BEGIN, _COMMIT = struct.Struct(">QqI"), struct.Struct(">BQQq")


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction follows, as a whole; ``commit`` is where its commit record begins, ``time`` in microseconds since 1970."""

    commit: int
    time: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """It ends; ``end`` is the end of the commit record. ``xid`` is that of a streamed transaction, else 0."""

    commit: int
    end: int
    time: int
    xid: int = 0


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Changes of a transaction follow that is not committed yet."""

    xid: int
    first: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    """They end for now."""


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """A streamed transaction was rolled back; if ``sub`` is another number, only what that subtransaction did."""

    xid: int
    sub: int


class Attribute(NamedTuple):
    """A column: whether it tells rows apart, its name, and the number and modifier of its type."""

    key: bool
    name: str
    type: int
    modifier: int


@dataclass(frozen=True, slots=True)
class Relation:
    """What rows of this number are from here on; ``identity`` is ``d``, ``n``, ``f`` or ``i`` as in ``pg_class.relreplident``."""

    number: int
    schema: str
    name: str
    identity: str
    columns: tuple[Attribute, ...]
    xid: int = 0


@dataclass(frozen=True, slots=True)
class TypeName:
    """The name of a type that is not built in."""

    number: int
    schema: str
    name: str
    xid: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """A row that came, changed or went. ``before`` says whether it was given: only its key (``K``), or as a whole (``O``)."""

    op: Literal["I", "U", "D"]
    relation: int
    before: Literal["", "K", "O"]
    old: Values
    new: Values
    xid: int = 0


@dataclass(frozen=True, slots=True)
class Truncate:
    """All rows of tables went."""

    relations: tuple[int, ...]
    cascade: bool
    restart: bool
    xid: int = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """The transaction came from another server."""

    commit: int
    name: str


@dataclass(frozen=True, slots=True)
class Note:
    """What somebody wrote by ``pg_logical_emit_message``."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes
    xid: int = 0


Message: TypeAlias = (
    Begin | Commit | StreamStart | StreamStop | StreamAbort | Relation | TypeName | Row | Truncate | Origin | Note
)


def decode(body: bytes, streamed: bool = False) -> Message:
    """Read one message; within a block that is ``streamed``, changes say which subtransaction made them. CaptureError for one that is none."""
    try:
        message, end = _decode(body, streamed)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise CaptureError(f"found a message of pgoutput that cannot be read ({error}): {body[:40]!r}") from error
    if end != len(body):
        raise CaptureError(
            f"found a message of pgoutput of {len(body)} bytes, of which {end} could be read: {body[:40]!r}"
        )
    return message


def row_head(body: bytes, streamed: bool) -> tuple[int, int]:
    """Of a message with rows: the subtransaction, and the number of the relation; the rows begin behind them, at 9 or at 5."""
    if streamed:
        return int.from_bytes(body[1:5], "big"), int.from_bytes(body[5:9], "big")
    return 0, int.from_bytes(body[1:5], "big")


def read_values(body: bytes, at: int) -> tuple[Values, int]:
    """The values of a row, and where they end."""
    (count,) = _H.unpack_from(body, at)
    at += 2
    values: list[Value] = []
    for _ in range(count):
        kind = body[at]
        at += 1
        if kind == 116:  # t
            (size,) = _I.unpack_from(body, at)
            at += 4
            if at + size > len(body):
                raise ValueError(f"a value of {size} bytes at {at}")
            values.append(body[at : at + size])
            at += size
        elif kind == 110:  # n
            values.append(None)
        elif kind == 117:  # u
            values.append(UNCHANGED)
        else:
            raise ValueError(f"a value of the kind {kind}")
    return tuple(values), at


def _decode(body: bytes, streamed: bool) -> tuple[Message, int]:
    kind, at, xid = body[:1], 1, 0
    if streamed and kind in b"IUDRYTM" and kind:
        (xid,) = _I.unpack_from(body, 1)
        at = 5
    match kind:
        case b"I" | b"U" | b"D":
            return _row(body, xid, at)
        case b"B":
            commit, time, xid = _BEGIN.unpack_from(body, 1)
            return Begin(commit, time + EPOCH, xid), 21
        case b"C":
            _, commit, end, time = _COMMIT.unpack_from(body, 1)
            return Commit(commit, end, time + EPOCH), 26
        case b"R":
            return _relation(body, xid, at)
        case b"Y":
            (number,) = _I.unpack_from(body, at)
            schema, at = _text(body, at + 4)
            name, at = _text(body, at)
            return TypeName(number, schema, name, xid), at
        case b"T":
            count, flags = struct.unpack_from(">IB", body, at)
            numbers = struct.unpack_from(f">{count}I", body, at + 5)
            return Truncate(numbers, bool(flags & 1), bool(flags & 2), xid), at + 5 + 4 * count
        case b"O":
            (commit,) = struct.unpack_from(">Q", body, 1)
            name, at = _text(body, 9)
            return Origin(commit, name), at
        case b"M":
            flags, lsn = struct.unpack_from(">BQ", body, at)
            prefix, at = _text(body, at + 9)
            (size,) = _I.unpack_from(body, at)
            return Note(bool(flags & 1), lsn, prefix, body[at + 4 : at + 4 + size], xid), at + 4 + size
        case b"S":
            xid, first = struct.unpack_from(">IB", body, 1)
            return StreamStart(xid, bool(first)), 6
        case b"E":
            return StreamStop(), 1
        case b"c":
            (xid,) = _I.unpack_from(body, 1)
            _, commit, end, time = _COMMIT.unpack_from(body, 5)
            return Commit(commit, end, time + EPOCH, xid), 30
        case b"A":
            xid, sub = struct.unpack_from(">II", body, 1)
            return StreamAbort(xid, sub), 9
        case _:
            raise ValueError(f"a message of the kind {kind!r}")


def _row(body: bytes, xid: int, at: int) -> tuple[Row, int]:
    (relation,) = _I.unpack_from(body, at)
    at += 4
    op, before = chr(body[0]), ""
    old: Values = ()
    new: Values = ()
    if op != "I" and body[at] in b"KO":
        before = chr(body[at])
        old, at = read_values(body, at + 1)
    if op != "D":
        if body[at] != 78:  # N
            raise ValueError(f"a row of the kind {body[at]}")
        new, at = read_values(body, at + 1)
    elif not before:
        raise ValueError("a deleted row without what tells it apart")
    return Row(op, relation, before, old, new, xid), at  # type: ignore[arg-type]


def _relation(body: bytes, xid: int, at: int) -> tuple[Relation, int]:
    (number,) = _I.unpack_from(body, at)
    schema, at = _text(body, at + 4)
    name, at = _text(body, at)
    identity = chr(body[at])
    (count,) = _H.unpack_from(body, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = body[at]
        column, at = _text(body, at + 1)
        kind, modifier = struct.unpack_from(">Ii", body, at)
        at += 8
        columns.append(Attribute(bool(flags & 1), column, kind, modifier))
    return Relation(number, schema or "pg_catalog", name, identity, tuple(columns), xid), at


def _text(body: bytes, at: int) -> tuple[str, int]:
    end = body.index(b"\0", at)
    return body[at:end].decode(), end + 1
