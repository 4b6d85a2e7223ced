"""Arrow values as plain ones that can be compared, and times, dates and nested values as text.

Invariant: two values are equal exactly if what :func:`comparable` makes of them is, but for ``-0.0`` and ``0.0``. Every engine begins
with these columns, so that one batch means the same rows wherever it is kept.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as t

from millstream.errors import PipelineError

_YEAR_0, _YEAR_10000 = -62_167_219_200_000_000, 253_402_300_800_000_000
_DAY = 86_400_000_000


def comparable(table: Any, schema: Any, what: str) -> pl.DataFrame:
    """The columns of ``schema`` as plain ones in which equal is equal: times as integers, nested values as JSON."""
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise PipelineError(f"{what}: no column {', '.join(missing)}; found {', '.join(table.column_names)}")
    columns = {}
    for each in schema:
        try:
            column = _cast(table.column(each.name), each.type)
        except pa.ArrowException as error:
            found = table.schema.field(each.name).type
            raise PipelineError(f"{what}, column {each.name}: found {found}, expected {each.type}") from error
        columns[each.name] = pl.Series(each.name, pl.from_arrow(_plain(column, each.type)))
    return pl.DataFrame(columns)


def as_text(series: pl.Series, type_: Any) -> list[Any]:
    """The values of one column of :func:`comparable`, with times, dates and decimals as text."""
    if t.is_timestamp(type_):
        return _time_texts(series)
    if t.is_date(type_):
        return _date_texts(series)
    return series.cast(pl.String).to_list() if t.is_decimal(type_) else series.to_list()


def nested_array(texts: Sequence[Any], type_: Any) -> Any:
    """The Arrow array of nested values that are stored as JSON."""
    read = _from_json(type_)
    plain = pa.array([None if text is None else read(json.loads(text)) for text in texts], _plain_type(type_))
    return _cast(_cast(plain, _in_micros(type_)), type_)


def time_text(micros: int) -> str:
    """A time as text; the fraction only if there is one.

    >>> time_text(1_500_000), time_text(-1)
    ('1970-01-01 00:00:01.500000', '1969-12-31 23:59:59.999999')
    """
    text = str(np.datetime64(micros, "us")).replace("T", " ").removesuffix(".000000")
    return f"+{text}" if micros >= _YEAR_10000 else text


def time_micros(text: str) -> int:
    """The inverse of :func:`time_text`; a date is its midnight.

    >>> time_micros("1970-01-01 00:00:01.5")
    1500000
    """
    return int(np.datetime64(text.removeprefix("+").replace(" ", "T"), "us").astype(np.int64))


def date_text(days: int) -> str:
    """A date as text.

    >>> date_text(0)
    '1970-01-01'
    """
    text = str(np.datetime64(days, "D"))
    return f"+{text}" if days * _DAY >= _YEAR_10000 else text


def date_days(text: str) -> int:
    """The inverse of :func:`date_text`."""
    return int(np.datetime64(text.removeprefix("+"), "D").astype(np.int64))


def children_of(type_: Any) -> list[Any]:
    """The fields of a nested type."""
    return [type_.key_field, type_.item_field] if t.is_map(type_) else [type_.field(i) for i in range(type_.num_fields)]


def as_micros(type_: Any) -> Any:
    """A type of time, in microseconds."""
    return pa.timestamp("us", type_.tz)


def _rebuild(type_: Any, leaf: Callable[[Any], Any]) -> Any:
    """The type with ``leaf`` applied to every type in it that holds no others."""
    if t.is_map(type_):
        return pa.map_(_rebuild(type_.key_type, leaf), _rebuild(type_.item_type, leaf))
    if t.is_struct(type_):
        return pa.struct([each.with_type(_rebuild(each.type, leaf)) for each in children_of(type_)])
    if t.is_nested(type_):
        return pa.list_(type_.value_field.with_type(_rebuild(type_.value_type, leaf)))
    return leaf(type_)


def _in_micros(type_: Any) -> Any:
    """The same type with times and durations in microseconds, which is what stored integers mean."""

    def leaf(each: Any) -> Any:
        if t.is_timestamp(each):
            return as_micros(each)
        if t.is_date(each):
            return pa.date32()
        return pa.duration("us") if t.is_duration(each) else each

    return _rebuild(type_, leaf)


def _plain_type(type_: Any) -> Any:
    """The type of what :func:`comparable` works with, before nested values become JSON."""

    def leaf(each: Any) -> Any:
        if t.is_timestamp(each) or t.is_duration(each) or t.is_integer(each) or t.is_boolean(each):
            return pa.bool_() if t.is_boolean(each) else pa.int64()
        if t.is_date(each):
            return pa.int32()
        if t.is_floating(each):
            return pa.float64()
        return each

    return _rebuild(type_, leaf)


def _cast(column: Any, type_: Any) -> Any:
    """Cast, if there is anything to cast: Arrow's own way from a list of nulls to the same gives a broken list."""
    return column if column.type == type_ else column.cast(type_)


def _plain(column: Any, type_: Any) -> Any:
    if t.is_boolean(type_) or t.is_null(type_):
        return column.cast(pa.int64())
    if t.is_fixed_size_binary(type_):
        return column.cast(pa.binary())
    plain = _cast(_cast(column, _in_micros(type_)), _plain_type(type_))
    if not t.is_nested(type_):
        return plain
    write = _to_json(type_)
    texts = [
        None if v is None else json.dumps(write(v), ensure_ascii=False, separators=(",", ":"))
        for v in plain.to_pylist()
    ]
    return pa.array(texts, pa.string())


def _to_json(type_: Any) -> Callable[[Any], Any]:
    """How a value of the plain type becomes one that JSON can say."""
    if t.is_map(type_):
        key, item = _maybe(_to_json(type_.key_type)), _maybe(_to_json(type_.item_type))
        if t.is_string(type_.key_type):
            return lambda pairs: {k: item(v) for k, v in pairs}
        return lambda pairs: [[key(k), item(v)] for k, v in pairs]
    if t.is_struct(type_):
        fields = [(each.name, _maybe(_to_json(each.type))) for each in children_of(type_)]
        return lambda row: {name: write(row[name]) for name, write in fields}
    if t.is_nested(type_):
        inner = _maybe(_to_json(type_.value_type))
        return lambda items: [inner(each) for each in items]
    if t.is_timestamp(type_):
        return time_text
    if t.is_date(type_):
        return date_text
    if t.is_decimal(type_):
        return lambda number: f"{number:f}"
    if t.is_floating(type_):
        # as text what JSON has no number for; in PostgreSQL's JSON that is −0.0 as well
        return lambda number: number if math.isfinite(number) and (number or str(number) == "0.0") else str(number)
    if t.is_binary(type_) or t.is_large_binary(type_) or t.is_fixed_size_binary(type_):
        return lambda data: base64.b64encode(data).decode()
    return lambda value: value


def _from_json(type_: Any) -> Callable[[Any], Any]:
    """The inverse of :func:`_to_json`."""
    if t.is_map(type_):
        key, item = _maybe(_from_json(type_.key_type)), _maybe(_from_json(type_.item_type))
        return lambda value: [(key(k), item(v)) for k, v in (value.items() if isinstance(value, dict) else value)]
    if t.is_struct(type_):
        fields = [(each.name, _maybe(_from_json(each.type))) for each in children_of(type_)]
        return lambda row: {name: read(row[name]) for name, read in fields}
    if t.is_nested(type_):
        inner = _maybe(_from_json(type_.value_type))
        return lambda items: [inner(each) for each in items]
    if t.is_timestamp(type_):
        return time_micros
    if t.is_date(type_):
        return date_days
    if t.is_decimal(type_):
        return Decimal
    if t.is_floating(type_):
        return float
    if t.is_binary(type_) or t.is_large_binary(type_) or t.is_fixed_size_binary(type_):
        return base64.b64decode
    return lambda value: value


def _maybe(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _time_texts(micros: pl.Series) -> list[Any]:
    times = micros.cast(pl.Datetime("us"))
    if ((micros < _YEAR_0) | (micros >= _YEAR_10000)).any():
        return [None if value is None else time_text(value) for value in micros.to_list()]
    texts = times.dt.strftime("%Y-%m-%d %H:%M:%S")
    if (micros % 1_000_000 != 0).any():
        exact = times.dt.strftime("%Y-%m-%d %H:%M:%S%.6f")
        texts = pl.select(pl.when(micros % 1_000_000 == 0).then(texts).otherwise(exact)).to_series()
    return texts.to_list()


def _date_texts(days: pl.Series) -> list[Any]:
    if ((days < _YEAR_0 // _DAY) | (days >= _YEAR_10000 // _DAY)).any():
        return [None if value is None else date_text(value) for value in days.to_list()]
    return days.cast(pl.Date).dt.strftime("%Y-%m-%d").to_list()
