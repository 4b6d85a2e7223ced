"""Which types aggregates, keys and unions take, and what types are called in Spark."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import polars as pl

from millstream.scalar.types import DATE, DOUBLE, INTEGERS, TIMESTAMP, Refused, wider

_KEY, _VALUE, _VARIANT = "\1key", "\1value", "\1variant"
"""Fields that nobody can declare: Polars has neither maps nor variants, so here they are structs of these."""

ANY_MAP = pl.Struct({_KEY: pl.Null(), _VALUE: pl.Null()})
"""A map of which nothing else is known."""
VARIANT = pl.Struct({_VARIANT: pl.Binary()})

MAKES_MAP = frozenset((
    "map", "map_concat", "map_filter", "map_from_arrays", "map_from_entries", "map_zip_with", "str_to_map", "transform_keys",
    "transform_values",
))  # fmt: skip
"""Functions of Spark's that give a map, whatever they take."""

NUMERIC = ("sum", "avg", "percentile", "approx_percentile")
"""Aggregates that compute with their argument."""


def map_of(key: pl.DataType, value: pl.DataType) -> pl.DataType:
    """A map, as it is known here."""
    return pl.Struct({_KEY: key, _VALUE: value})


def incomparable(kind: pl.DataType) -> tuple[str, str] | None:
    """Why values of this type cannot be ordered, nor told apart, and what to do; None if they can.

    >>> incomparable(pl.List(map_of(pl.String(), pl.Int64())))[0], incomparable(pl.List(pl.Int64()))
    ('maps are neither ordered nor compared; found array<map<string, bigint>>', None)
    """
    what = _holds(kind)
    if what is None:
        return None
    hint = {_KEY: "make an array of it: array_sort(map_entries(…))", _VARIANT: "make text of it: to_json(…)"}[what]
    return f"{'maps' if what == _KEY else 'variants'} are neither ordered nor compared; found {say(kind)}", hint


def _holds(kind: pl.DataType) -> str | None:
    """What in a type cannot be compared."""
    match kind:
        case pl.List():
            return _holds(kind.inner)  # type: ignore[arg-type]
        case pl.Struct() if kind.fields and kind.fields[0].name in (_KEY, _VARIANT):
            return kind.fields[0].name
        case pl.Struct():
            return next((found for each in kind.fields if (found := _holds(each.dtype))), None)  # type: ignore[arg-type]
        case _:
            return None


def refusal(function: str, kind: pl.DataType) -> tuple[str, str] | None:
    """Why an aggregate has no answer for an argument of this type, and what to do; None if it has one.

    >>> refusal("sum", pl.Date())[0], refusal("max", pl.Date())
    ('expected a number; found date', None)
    """
    if function not in NUMERIC or kind.is_numeric() or kind == pl.Null():
        return None
    cast = {pl.String(): "double", pl.Boolean(): "int"}.get(kind)
    hint = f"say what to make of it: cast(… AS {cast})" if cast else "min, max, count and collect_list take any type"
    return f"expected a number; found {say(kind)}", hint


def widest(kinds: Sequence[pl.DataType | None]) -> pl.DataType | None:
    """The type to which Spark brings columns of a union; None if it has none for these, or would round.

    >>> widest([pl.Int32(), pl.Int64()]), widest([pl.Decimal(9, 2), pl.Int32()]), widest([pl.Date(), pl.Boolean()])
    (Int64, Decimal(precision=12, scale=2), None)
    """
    return reduce(_wider, kinds)


def _wider(one: pl.DataType | None, other: pl.DataType | None) -> pl.DataType | None:
    if one is None or other is None:
        return None
    match one, other:
        case _ if one == other:
            return one
        case pl.List(inner=inner), pl.List(inner=beside):
            within = _wider(inner, beside)  # type: ignore[arg-type]
            return None if within is None else pl.List(within)
        case _ if {one, other} == {DATE, TIMESTAMP}:
            return TIMESTAMP
        case _ if not (one.is_numeric() and other.is_numeric()):
            return None
        case _ if one.is_float() or other.is_float():
            return DOUBLE
        case _ if one in INTEGERS and other in INTEGERS:
            return max(one, other, key=INTEGERS.index)
    try:
        return wider(one, other)
    except Refused:
        return None


def say(kind: pl.DataType) -> str:
    """A type as Spark calls it.

    >>> say(pl.Int64()), say(pl.List(pl.Decimal(9, 2))), say(pl.Duration("us"))
    ('bigint', 'array<decimal(9, 2)>', 'interval day to second')
    """
    match kind:
        case pl.Decimal():
            return f"decimal({kind.precision}, {kind.scale})"
        case pl.List():
            return f"array<{say(kind.inner)}>"  # type: ignore[arg-type]
        case pl.Struct() if kind == ANY_MAP:
            return "map"
        case pl.Struct() if kind == VARIANT:
            return "variant"
        case pl.Struct() if kind.fields and kind.fields[0].name == _KEY:
            return f"map<{', '.join(say(each.dtype) for each in kind.fields)}>"  # type: ignore[arg-type]
        case pl.Struct():
            return f"struct<{', '.join(f'{each.name}: {say(each.dtype)}' for each in kind.fields)}>"  # type: ignore[arg-type]
        case pl.Datetime():
            return "timestamp" if kind.time_zone else "timestamp_ntz"
        case _:
            return _NAMES.get(kind, str(kind).lower())


_NAMES = {
    pl.Int8(): "tinyint", pl.Int16(): "smallint", pl.Int32(): "int", pl.Int64(): "bigint", pl.Float32(): "float",
    pl.Float64(): "double", pl.String(): "string", pl.Boolean(): "boolean", pl.Date(): "date", pl.Binary(): "binary",
    pl.Duration("us"): "interval day to second", pl.Null(): "void",
}  # fmt: skip
