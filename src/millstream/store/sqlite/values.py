"""Arrow values as SQLite keeps them, and back.

Invariants: what is stored reads back as the same value of the declared type, and two values are equal exactly if what is
stored of them is, but for ``-0.0`` and ``0.0``. SQLite turns NaN into NULL, so NaN is kept as the text ``NaN``, in a
column of type ANY; it sorts after every number, as in Spark. Times are text in UTC that SQLite's own functions understand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.types as t

from millstream.errors import ViewError
from millstream.store.comparable import as_micros, as_text, children_of, date_days, nested_array, time_micros

NAN = "NaN"


def sql_type(type_: Any, what: str) -> str:
    """The type of a SQLite column for an Arrow type; ViewError, naming ``what``, if there is none."""
    if t.is_boolean(type_) or t.is_duration(type_) or (t.is_integer(type_) and not t.is_uint64(type_)):
        return "INTEGER"
    if t.is_floating(type_) or t.is_null(type_):
        return "ANY"
    if t.is_binary(type_) or t.is_large_binary(type_) or t.is_fixed_size_binary(type_):
        return "BLOB"
    if t.is_string(type_) or t.is_large_string(type_) or t.is_date(type_):
        return "TEXT"
    if (t.is_timestamp(type_) and type_.unit != "ns") or (t.is_decimal128(type_) and type_.scale >= 0):
        return "TEXT"
    if t.is_nested(type_) and not t.is_union(type_):
        for each in children_of(type_):
            sql_type(each.type, what)
        return "TEXT"
    raise ViewError(
        f"{what}: values of type {type_} cannot be kept in SQLite",
        hint="cast the column, for example to string or to timestamp",
    )


def encode(series: pl.Series, type_: Any) -> list[Any]:
    """What SQLite stores for one column of :func:`comparable`."""
    values = as_text(series, type_)
    if t.is_floating(type_) and series.is_nan().any():
        return [NAN if value is not None and math.isnan(value) else value for value in values]
    return values


def decode(values: Sequence[Any], type_: Any) -> Any:
    """The Arrow array of stored values."""
    if t.is_timestamp(type_):
        return pa.array(_times(values), pa.int64()).cast(as_micros(type_)).cast(type_)
    if t.is_date(type_):
        days = [None if value is None else date_days(value) for value in values]
        return pa.array(days, pa.int32()).cast(pa.date32()).cast(type_)
    if t.is_floating(type_):
        if NAN in values:
            values = [math.nan if value == NAN else value for value in values]
        return pa.array(values, pa.float64()).cast(type_, safe=False)  # a narrower type gets back what it gave
    if t.is_boolean(type_) or t.is_duration(type_):
        return pa.array(values, pa.int64()).cast(pa.duration("us") if t.is_duration(type_) else type_).cast(type_)
    if t.is_decimal(type_):
        return pa.array(values, pa.string()).cast(type_)
    return nested_array(values, type_) if t.is_nested(type_) else pa.array(values, type_)


def _times(texts: Sequence[Any]) -> list[int | None]:
    """Microseconds of stored times, all at once if none is out of the ordinary."""
    series = pl.Series(texts, dtype=pl.String)
    if series.str.contains(r"^\d{4}-").all():
        return series.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us").cast(pl.Int64).to_list()
    return [None if text is None else time_micros(text) for text in texts]
