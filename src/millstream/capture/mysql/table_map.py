"""The event that says, before rows, of which table they are: with ``binlog_row_metadata=FULL`` also the names and types of its columns.

So rows are read as the table was when they were written, whatever it is now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from millstream.capture.contract import Column, Table
from millstream.capture.mysql.charsets import BINARY, Charsets, decoder
from millstream.capture.mysql.types import Type, check_kind
from millstream.capture.mysql.values import Read, Zeros, reader
from millstream.errors import CaptureError

_SIGNEDNESS, _CHARSET, _CHARSETS, _NAMES, _SETS, _ENUMS, _KEY, _KEY_PREFIXES, _ENUM_CHARSET, _ENUM_CHARSETS = (
    1,
    2,
    3,
    4,
    5,
    6,
    8,
    9,
    10,
    11,
)
_VARCHAR, _BIT, _DECIMAL, _ENUM, _SET, _BLOB, _VAR_STRING, _STRING, _GEOMETRY = (
    15,
    16,
    246,
    247,
    248,
    252,
    253,
    254,
    255,
)
_NUMBERS = {
    1: "tinyint",
    2: "smallint",
    3: "int",
    4: "float",
    5: "double",
    8: "bigint",
    9: "mediumint",
    _DECIMAL: "decimal",
}
_TIMES = {10: "date", 14: "date", 13: "year", 17: "timestamp", 18: "datetime", 19: "time"}
_OTHER = {7: "timestamp of before 5.6", 11: "time of before 5.6", 12: "datetime of before 5.6", 140: "compressed text", 141: "compressed varchar", 242: "vector", 245: "json of MySQL"}  # fmt: skip
_ONE_BYTE = {4, 5, 17, 18, 19, 140, _BLOB, 242, 245, _GEOMETRY}
_TWO_BYTES = {_VARCHAR, 141, _BIT, _DECIMAL, _VAR_STRING, _STRING, _ENUM, _SET}
_TEXTS = {_VARCHAR, _VAR_STRING, _STRING, _BLOB}
_BLOB_SIZES = {1: "tiny", 2: "", 3: "medium", 4: "long"}


@dataclass(frozen=True, slots=True)
class Mapped:
    """A table as the binary log has it, and how its values are read."""

    table: Table
    columns: tuple[tuple[str, Read], ...]
    width: int
    null_bytes: int


def number(body: bytes, at: int) -> tuple[int, int]:
    """A number that says itself how long it is, and where the next thing begins."""
    first = body[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(body[at + 1 : at + 1 + size], "little"), at + 1 + size


def name_of(body: bytes) -> tuple[str, str]:
    """Database and table, at the beginning of what follows the table's number and flags."""
    end = 1 + body[0]
    return body[1:end].decode(), body[end + 2 : end + 2 + body[end + 1]].decode()


def read_table_map(body: bytes, charsets: Charsets, zeros: Zeros, mariadb: bool) -> Mapped:
    """Read the event, from the database's name on."""
    schema, name = name_of(body)
    what = f"{schema}.{name}"
    at = len(schema.encode()) + len(name.encode()) + 4
    width, at = number(body, at)
    codes, at = body[at : at + width], at + width
    size, at = number(body, at)
    kinds, metas = _meta(codes, body[at : at + size])
    fields = dict(_fields(body[at + size + (width + 7) // 8 :]))
    if _NAMES not in fields:
        raise CaptureError(
            f"table {what}: the binary log has rows without the names of their columns",
            hint="SET GLOBAL binlog_row_metadata = FULL; and a new snapshot",
        )
    names = [each.decode() for each in _strings(fields[_NAMES])]
    texts = _TEXTS | {_GEOMETRY} if mariadb else _TEXTS
    of_text = _collations(kinds, texts, fields, _CHARSET, _CHARSETS)
    of_enums = _collations(kinds, {_ENUM, _SET}, fields, _ENUM_CHARSET, _ENUM_CHARSETS)
    members = {_ENUM: _lists(fields.get(_ENUMS, b"")), _SET: _lists(fields.get(_SETS, b""))}
    signs = _signs(kinds, fields.get(_SIGNEDNESS, b""))
    types = []
    for place, (kind, meta) in enumerate(zip(kinds, metas, strict=True)):
        if kind in members:
            codec = charsets.of(of_enums[place]).name
            types.append(_enumerated(kind, next(members[kind]), codec, f"table {what}, column {names[place]}"))
        else:
            types.append(_type(kind, meta, signs[place], of_text.get(place, BINARY), charsets))
        check_kind(types[-1].kind, what, names[place])
    key = list(_numbers(fields[_KEY])) if _KEY in fields else list(_numbers(fields.get(_KEY_PREFIXES, b"")))[::2]
    if not key:
        raise CaptureError(
            f"table {what}: the binary log has rows without a primary key",
            hint=f"ALTER TABLE {what} ADD PRIMARY KEY (…); and a new snapshot",
        )
    columns = tuple(Column(each, str(kind), kind.spark) for each, kind in zip(names, types, strict=True))
    readers = tuple((each, reader(kind, zeros, f"{what}.{each}")) for each, kind in zip(names, types, strict=True))
    table = Table(schema, name, columns, tuple(names[place] for place in key))
    return Mapped(table, readers, width, (width + 7) // 8)


def _meta(codes: bytes, meta: bytes) -> tuple[list[int], list[tuple[int, int]]]:
    """The types, those inside of CHAR told apart, and what is said of each."""
    kinds, metas, at = [], [], 0
    for code in codes:
        size = 1 if code in _ONE_BYTE else 2 if code in _TWO_BYTES else 0
        first, second = (*meta[at : at + size], 0, 0)[:2]
        at += size
        if code == _STRING and first in (_ENUM, _SET):
            code = first
        elif code == _STRING:  # the two high bits of the length hide, inverted, in the type
            first, second = second, (first >> 4 & 3) ^ 3
        kinds.append(code)
        metas.append((first, second))
    return kinds, metas


def _type(kind: int, meta: tuple[int, int], unsigned: bool, collation: int, charsets: Charsets) -> Type:
    first, second = meta
    if kind == _DECIMAL:
        return Type("decimal", unsigned, first, second)
    if kind in _NUMBERS:
        return Type(_NUMBERS[kind], unsigned)
    if kind in _TIMES:
        return Type(_TIMES[kind], size=first)
    if kind == _BIT:
        return Type("bit", size=second * 8 + first)
    if kind == _GEOMETRY:
        return Type("geometry")
    if kind == _BLOB:
        size = _BLOB_SIZES[first]
        return Type(f"{size}blob") if collation == BINARY else Type(f"{size}text", charset=charsets.of(collation).name)
    if kind in _TEXTS:
        name, length = "char" if kind == _STRING else "varchar", first | second << 8
        if collation == BINARY:
            return Type("binary" if kind == _STRING else "varbinary", size=length, scale=length)
        charset = charsets.of(collation)
        return Type(name, size=length // charset.bytes, scale=length, charset=charset.name)
    return Type(_OTHER.get(kind, f"number {kind}"))


def _enumerated(kind: int, members: Sequence[bytes], charset: str, what: str) -> Type:
    decode: Callable[[bytes], str] = decoder("latin1" if charset == "binary" else charset, what)
    return Type("enum" if kind == _ENUM else "set", members=tuple(decode(each) for each in members))


def _fields(body: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(body):
        kind = body[at]
        size, at = number(body, at + 1)
        yield kind, body[at : at + size]
        at += size


def _signs(kinds: Sequence[int], bits: bytes) -> list[bool]:
    """Whether each column is without sign: a bit for each number, the first the highest; YEAR counts as a number."""
    signs, place = [], 0
    for kind in kinds:
        counts = kind in _NUMBERS or kind == 13
        signs.append(counts and place // 8 < len(bits) and bool(bits[place // 8] & 0x80 >> place % 8))
        place += counts
    return signs


def _collations(kinds: Sequence[int], of: set[int], fields: dict[int, bytes], one: int, each: int) -> dict[int, int]:
    """The collation of each column of these types: said for each, or one for all with exceptions."""
    places = [place for place, kind in enumerate(kinds) if kind in of]
    if each in fields:
        return dict(zip(places, _numbers(fields[each]), strict=True))
    if one not in fields:
        return {}
    default, *pairs = _numbers(fields[one])
    others = dict(zip(pairs[::2], pairs[1::2], strict=True))
    return {place: others.get(count, default) for count, place in enumerate(places)}


def _numbers(body: bytes) -> Iterator[int]:
    at = 0
    while at < len(body):
        found, at = number(body, at)
        yield found


def _strings(body: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(body):
        size, at = number(body, at)
        yield body[at : at + size]
        at += size


def _lists(body: bytes) -> Iterator[list[bytes]]:
    at = 0
    while at < len(body):
        count, at = number(body, at)
        found = []
        for _ in range(count):
            size, at = number(body, at)
            found.append(body[at : at + size])
            at += size
        yield found
