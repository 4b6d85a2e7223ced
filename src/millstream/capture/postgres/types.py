"""Types of PostgreSQL: how they are called, the Spark type that a pipeline declares a column with, and how a value's text is read.

A type is the same whether a snapshot or the stream has it. What is not built in is asked of the catalog, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from millstream.capture.postgres.server import Ask
from millstream.capture.postgres.values import Convert, array_of, base64_of, boolean, day_clock, real

_SIMPLE: dict[str, tuple[str, Convert | None]] = {
    "bool": ("boolean", boolean),
    "int2": ("smallint", int),
    "int4": ("int", int),
    "int8": ("bigint", int),
    "oid": ("bigint", int),
    "float4": ("float", real),
    "float8": ("double", real),
    "date": ("date", None),
    "timestamp": ("timestamp_ntz", day_clock),
    "timestamptz": ("timestamp", day_clock),
    "bytea": ("binary", base64_of),
}
"""By name: what to declare, and what reads it; the others are text."""
_DIGITS = 38
_TYPE = (
    "SELECT format_type(t.oid, %s), n.nspname, t.typname, t.typtype::text, t.typcategory::text, t.typbasetype::int8, t.typtypmod,"
    " t.typelem::int8, t.typdelim::text FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.oid = %s"
)
_VECTORS = ("int2vector", "oidvector")


@dataclass(frozen=True, slots=True)
class Type:
    """A column's type; ``convert`` makes what JSON has of a value's text, None where that is the text."""

    native: str
    spark: str
    convert: Convert | None


Lookup: TypeAlias = Callable[[int, int], Type]


class Types:
    """Types by their numbers and modifiers, as far as they were asked for."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], Type] = {}

    def of(self, ask: Ask, number: int, modifier: int) -> Type:
        """The type; text for one that is no longer there."""
        found = self._known.get((number, modifier))
        if found is None:
            found = self._known[number, modifier] = self._asked(ask, number, modifier)
        return found

    def _asked(self, ask: Ask, number: int, modifier: int) -> Type:
        rows = ask(_TYPE, modifier, number)
        if not rows:
            return Type(f"type {number}", "string", None)
        native, schema, name, kind, category, base, base_modifier, element, delimiter = rows[0]
        if kind == "d":
            under = self.of(ask, int(base), int(base_modifier))
            return Type(native, under.spark, under.convert)
        if category == "A" and element and name not in _VECTORS:
            of = self.of(ask, int(element), modifier)
            return Type(native, f"array<{of.spark}>", array_of(of.convert, delimiter))
        if schema == "pg_catalog" and name == "numeric":
            return Type(native, _decimal(modifier), None)
        spark, convert = _SIMPLE.get(name, ("string", None)) if schema == "pg_catalog" else ("string", None)
        return Type(native, spark, convert)


def _decimal(modifier: int) -> str:
    """Digits and scale are in the modifier; a scale may be negative, or larger than the digits."""
    if modifier < 4:
        return "string"
    digits, scale = modifier - 4 >> 16 & 0xFFFF, ((modifier - 4 & 0x7FF) ^ 1024) - 1024
    return f"decimal({digits},{scale})" if digits <= _DIGITS and 0 <= scale <= digits else "string"
