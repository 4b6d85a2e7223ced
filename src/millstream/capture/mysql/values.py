"""Values: how the bytes of the binary log, and the texts of a query, become what JSON has. Both ways give the same value.

Numbers that JSON would round are text (``decimal``, ``bigint unsigned``), and so are times; bytes are base64. A date that is none, as
``0000-00-00``, is null, and is counted: the database has it, and nothing else could.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from calendar import monthrange
from collections.abc import Callable
from datetime import date, timedelta
from functools import lru_cache
from typing import Any, TypeAlias

from millstream.capture.mysql.charsets import decoder
from millstream.capture.mysql.types import Type

Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
"""Bytes, and where in them → the value, and where the next begins."""
Convert: TypeAlias = Callable[[Any], Any]
"""The text or bytes of a query → the value."""

_WIDTHS = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_BLOBS = {"tiny": 1, "medium": 3, "long": 4}
_EPOCH = date(1970, 1, 1)


class Zeros:
    """How many dates were none."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


def reader(kind: Type, zeros: Zeros, what: str) -> Read:
    """How a value of this type is read from the binary log; ``what`` is the column, for errors."""
    name = kind.kind
    if name in _WIDTHS:
        return _integer(_WIDTHS[name], not kind.unsigned, as_text=kind.unsigned and name == "bigint")
    if name in ("float", "double"):
        return _real("<f" if name == "float" else "<d")
    if name == "decimal":
        return _decimal(kind.size, kind.scale)
    if name == "bit":
        return _bit(kind.size)
    if name == "year":
        return lambda body, at: (body[at] + 1900 if body[at] else 0, at + 1)
    if name in ("date", "time", "datetime", "timestamp"):
        return _time(name, kind.size, zeros)
    if name in ("enum", "set"):
        return _members(name, kind.members)
    if name in ("binary", "varbinary") or name.endswith("blob") or name == "geometry":
        pad = kind.size if name == "binary" else 0
        # The log has BINARY without the zeros at its end.
        return _prefixed(_prefix(kind), lambda found: b64encode(found.ljust(pad, b"\0")).decode())
    return _prefixed(_prefix(kind), decoder(kind.charset, what))


def converter(kind: Type, zeros: Zeros) -> Convert:
    """How what a query gives for a column of this type, see :func:`selected`, becomes the value."""
    name = kind.kind
    if name in _WIDTHS or name == "year":
        return str if kind.unsigned and name == "bigint" else int
    if name in ("float", "double"):
        return float
    if name == "bit":
        return (lambda found: int(found) == 1) if kind.size == 1 else int if kind.size < 64 else str
    if name == "decimal":
        return _plain
    if name in ("date", "datetime", "timestamp"):
        return _date_text(name, zeros)
    if name in ("binary", "varbinary", "geometry") or name.endswith("blob"):
        return lambda found: b64encode(found).decode()
    return lambda found: found


def selected(kind: Type, column: str) -> str:
    """What to ask for in a query, so that nothing is lost on the way. A float is printed with six digits, a double with all."""
    if kind.kind == "float":
        return f"CAST({column} AS DOUBLE)"
    if kind.kind == "bit":
        return f"CAST({column} AS UNSIGNED)"
    return f"CAST({column} AS CHAR)" if kind.unsigned and kind.kind == "bigint" else column


def _integer(width: int, signed: bool, as_text: bool) -> Read:
    if width == 1 and not signed:
        return lambda body, at: (body[at], at + 1)
    codes = {1: "b", 2: "h", 4: "i", 8: "q"}
    if width in codes:
        unpack = struct.Struct("<" + (codes[width] if signed else codes[width].upper())).unpack_from
        if as_text:
            return lambda body, at: (str(unpack(body, at)[0]), at + width)
        return lambda body, at: (unpack(body, at)[0], at + width)
    return lambda body, at: (int.from_bytes(body[at : at + width], "little", signed=signed), at + width)


def _real(code: str) -> Read:
    unpack, width = struct.Struct(code).unpack_from, struct.calcsize(code)
    return lambda body, at: (unpack(body, at)[0], at + width)


def _decimal(digits: int, scale: int) -> Read:
    """Nine digits in four bytes, big-endian, the rest in as few as hold it; negative ones inverted, the first bit turned over."""
    whole = digits - scale
    few = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
    head, tail = whole % 9, scale % 9
    groups = [(few[head], head)] if head else []
    groups += [(4, 9)] * (whole // 9)
    before = len(groups)
    groups += [(4, 9)] * (scale // 9) + ([(few[tail], tail)] if tail else [])
    width = sum(size for size, _ in groups)

    def read(body: bytes, at: int) -> tuple[str, int]:
        found = bytearray(body[at : at + width])
        negative = not found[0] & 0x80
        found[0] ^= 0x80
        if negative:
            found = bytearray(byte ^ 0xFF for byte in found)
        place, parts = 0, []
        for size, count in groups:
            parts.append(str(int.from_bytes(found[place : place + size], "big")).zfill(count))
            place += size
        text = "".join(parts[:before]).lstrip("0") or "0"
        if scale:
            text += "." + "".join(parts[before:])
        return ("-" + text if negative else text), at + width

    return read


def _plain(text: str) -> str:
    """A decimal without the zeros that ZEROFILL puts before it."""
    if text.startswith("0") and len(text) > 1:
        text = text.lstrip("0")
        return "0" + text if not text or text[0] == "." else text
    return text


def _bit(bits: int) -> Read:
    width = (bits + 7) // 8
    if bits == 1:
        return lambda body, at: (body[at] == 1, at + 1)
    if bits == 64:
        return lambda body, at: (str(int.from_bytes(body[at : at + 8], "big")), at + 8)
    return lambda body, at: (int.from_bytes(body[at : at + width], "big"), at + width)


def _members(kind: str, members: tuple[str, ...]) -> Read:
    if kind == "enum":
        width = 1 if len(members) < 256 else 2
        names = ("", *members)
        return lambda body, at: (names[int.from_bytes(body[at : at + width], "little")], at + width)
    width = (len(members) + 7) // 8
    width = width if width <= 4 else 8

    def read(body: bytes, at: int) -> tuple[str, int]:
        bits = int.from_bytes(body[at : at + width], "little")
        return ",".join(each for place, each in enumerate(members) if bits >> place & 1), at + width

    return read


def _prefix(kind: Type) -> int:
    """How many bytes say how long a value is."""
    name = kind.kind
    if name in ("char", "varchar", "binary", "varbinary"):
        return 1 if kind.scale < 256 else 2  # the scale of text is its length in bytes
    if name == "geometry":
        return 4
    return next((size for word, size in _BLOBS.items() if name.startswith(word)), 2)


def _prefixed(prefix: int, decode: Callable[[bytes], str]) -> Read:
    if prefix == 1:

        def short(body: bytes, at: int) -> tuple[str, int]:
            end = at + 1 + body[at]
            return decode(body[at + 1 : end]), end

        return short

    def read(body: bytes, at: int) -> tuple[str, int]:
        at += prefix
        end = at + int.from_bytes(body[at - prefix : at], "little")
        return decode(body[at:end]), end

    return read


def _time(kind: str, digits: int, zeros: Zeros) -> Read:
    if kind == "date":

        def read_date(body: bytes, at: int) -> tuple[str | None, int]:
            packed = body[at] | body[at + 1] << 8 | body[at + 2] << 16
            return _day(packed >> 9, packed >> 5 & 15, packed & 31, zeros), at + 3

        return read_date
    more = (digits + 1) // 2

    def fraction(number: int) -> str:
        """The digits of a second, as many as the column has; stored are an even number of them."""
        return f".{number:0{2 * more}d}"[: digits + 1] if digits else ""

    def read_timestamp(body: bytes, at: int) -> tuple[str | None, int]:
        seconds = int.from_bytes(body[at : at + 4], "big")
        at += 4 + more
        part = int.from_bytes(body[at - more : at], "big")
        if not seconds and not part:
            zeros.count += 1
            return None, at
        days, rest = divmod(seconds, 86400)
        minutes, second = divmod(rest, 60)
        return f"{_day_text(days)}T{minutes // 60:02}:{minutes % 60:02}:{second:02}{fraction(part)}Z", at

    def read_datetime(body: bytes, at: int) -> tuple[str | None, int]:
        packed = int.from_bytes(body[at : at + 5], "big") - 0x8000000000
        months, day = packed >> 22, packed >> 17 & 31
        at += 5 + more
        text = _day(months // 13, months % 13, day, zeros)
        part = fraction(int.from_bytes(body[at - more : at], "big"))
        clock = f"T{packed >> 12 & 31:02}:{packed >> 6 & 63:02}:{packed & 63:02}{part}"
        return (None if text is None else text + clock), at

    def read_time(body: bytes, at: int) -> tuple[str, int]:
        # One number with its sign, of which the fraction is the low part: 24 bits, and those of the fraction.
        packed = int.from_bytes(body[at : at + 3 + more], "big") - (0x800000 << 8 * more)
        sign, packed = ("-", -packed) if packed < 0 else ("", packed)
        whole, part = packed >> 8 * more, packed & (1 << 8 * more) - 1
        return f"{sign}{whole >> 12:02}:{whole >> 6 & 63:02}:{whole & 63:02}{fraction(part)}", at + 3 + more

    return {"timestamp": read_timestamp, "datetime": read_datetime, "time": read_time}[kind]


def _date_text(kind: str, zeros: Zeros) -> Convert:
    end = "Z" if kind == "timestamp" else ""

    def convert(text: str) -> str | None:
        day, _, clock = text.partition(" ")
        year, month, number = day.split("-")
        found = _day(int(year), int(month), int(number), zeros)
        return None if found is None else f"{found}T{clock}{end}" if clock else found

    return convert


def _day(year: int, month: int, day: int, zeros: Zeros) -> str | None:
    if not year or not month or not day or month > 12 or (day > 28 and day > monthrange(year, month)[1]):
        zeros.count += 1
        return None
    return f"{year:04}-{month:02}-{day:02}"


@lru_cache(maxsize=1024)
def _day_text(days: int) -> str:
    return (_EPOCH + timedelta(days=days)).isoformat()
