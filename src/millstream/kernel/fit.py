"""Which types aggregates take, and what types are called in Spark."""

from __future__ import annotations

import polars as pl

NUMERIC = ("sum", "avg", "percentile", "approx_percentile")
"""Aggregates that compute with their argument."""


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


def say(kind: pl.DataType) -> str:
    """A type as Spark calls it.

    >>> say(pl.Int64()), say(pl.List(pl.Decimal(9, 2)))
    ('bigint', 'array<decimal(9, 2)>')
    """
    match kind:
        case pl.Decimal():
            return f"decimal({kind.precision}, {kind.scale})"
        case pl.List():
            return f"array<{say(kind.inner)}>"  # type: ignore[arg-type]
        case pl.Struct():
            return f"struct<{', '.join(f'{each.name}: {say(each.dtype)}' for each in kind.fields)}>"  # type: ignore[arg-type]
        case pl.Datetime():
            return "timestamp" if kind.time_zone else "timestamp_ntz"
        case _:
            return _NAMES.get(kind, str(kind).lower())


_NAMES = {
    pl.Int8(): "tinyint", pl.Int16(): "smallint", pl.Int32(): "int", pl.Int64(): "bigint", pl.Float32(): "float",
    pl.Float64(): "double", pl.String(): "string", pl.Boolean(): "boolean", pl.Date(): "date", pl.Binary(): "binary",
}  # fmt: skip
