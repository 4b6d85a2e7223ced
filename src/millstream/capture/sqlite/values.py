"""Values: how what SQLite stores becomes what JSON has, by the column's declared type and by the value's own storage class.

A value that fits its column is plain: an integer a number, a real a number, text text, a blob base64; in a column of numeric affinity
numbers are text with all their digits. SQLite also stores what does not fit. Integers, reals and text then are plain all the same where
nothing else can be meant; what could be taken for something else is a text that is JSON of one entry, as ``{"blob":"YQ=="}``, and so is
text that looks like that. So every value can be told from every other, and nothing is rounded.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from math import isinf
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["integer", "real", "text", "blob", "numeric", "any"]
SPARK: dict[Kind, str] = {
    "integer": "bigint",
    "real": "double",
    "text": "string",
    "blob": "binary",
    "numeric": "string",
    "any": "string",
}
"""The Spark type to declare a column with."""
_MARKS = ('{"blob":', '{"text":', '{"real":', '{"bytes":')


def kind_of(declared: str) -> Kind:
    """What a column of this declared type stores, by SQLite's own rules; BINARY is taken for what it says.

    >>> [kind_of(each) for each in ("BIGINT", "varchar(9)", "BLOB", "DOUBLE", "decimal(9,2)", "", "VARBINARY(9)")]
    ['integer', 'text', 'blob', 'real', 'numeric', 'any', 'blob']
    """
    said = declared.upper()
    if "INT" in said:
        return "integer"
    if any(word in said for word in ("CHAR", "CLOB", "TEXT")):
        return "text"
    if "BLOB" in said or "BINARY" in said:
        return "blob"
    if any(word in said for word in ("REAL", "FLOA", "DOUB")):
        return "real"
    return "numeric" if said not in ("", "ANY") else "any"


class Unreadable(bytes):
    """Text that is not UTF-8, as its bytes."""


class Values:
    """Converts rows of columns of these kinds; the plan for each mixture of storage classes is made once."""

    def __init__(self, names: Sequence[str], kinds: Sequence[Kind]) -> None:
        self._names, self._kinds = tuple(names), tuple(kinds)
        self._plans: dict[tuple[type, ...], list[tuple[str, Callable[[Any], Any]]]] = {}

    def row(self, values: Sequence[Any]) -> dict[str, Any]:
        """Values by column."""
        row = dict(zip(self._names, values, strict=True))
        classes = tuple(map(type, values))
        plan = self._plans.get(classes)
        if plan is None:
            plan = self._plans[classes] = self._plan(classes)
        for name, convert in plan:
            row[name] = convert(row[name])
        return row

    def _plan(self, classes: Sequence[type]) -> list[tuple[str, Callable[[Any], Any]]]:
        found = []
        for name, kind, stored in zip(self._names, self._kinds, classes, strict=True):
            convert = _converter(kind, stored)
            if convert is not None:
                found.append((name, convert))
        return found


def _converter(kind: Kind, stored: type) -> Callable[[Any], Any] | None:
    """How a stored value becomes a plain one; None where it is one already."""
    if stored is int:
        return str if kind == "numeric" else None
    if stored is float:
        return _real_text if kind == "numeric" else _real
    if stored is str:
        return (lambda text: _marked("text", text)) if kind == "blob" else _text
    if stored is bytes:
        return _base64 if kind == "blob" else lambda found: _marked("blob", _base64(found))
    if stored is Unreadable:
        return lambda found: _marked("bytes", _base64(found))
    return None


def _base64(found: bytes) -> str:
    return b64encode(found).decode()


def _text(text: str) -> str:
    return _marked("text", text) if text.startswith(_MARKS) else text


def _real(number: float) -> float | str:
    return _marked("real", "Infinity" if number > 0 else "-Infinity") if isinf(number) else number


def _real_text(number: float) -> str:
    return str(_real(number))


def _marked(what: str, value: str) -> str:
    return json.dumps({what: value}, separators=(",", ":"), ensure_ascii=False)
