"""Arrow values as PostgreSQL keeps them, and back: CSV in both directions, made and read by Polars and Arrow.

Invariant: what is stored reads back as the same value of the declared type. What PostgreSQL has no place for (a NUL in text, a
time before 4713 BC) is refused by name before anything is sent. Text sorts by its code points, as in Spark and whatever the
server's locale; NaN is greater than every number, and equal to itself.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.types as t

from millstream.errors import PipelineError, ViewError
from millstream.store.comparable import comparable, date_text, nested_array, time_text
from millstream.store.contract import Target
from millstream.store.identifier import quote

_YEAR_1, _YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000
_DAY = 86_400_000_000
FIRST_TIME = -210_866_803_200_000_000  # 4713-11-24 BC, Gregorian: PostgreSQL's first moment
LAST_TIME = 2**63 - 2  # it would take the very last one, and give it back a little earlier
_FIRST_DAY, _LAST_DAY = FIRST_TIME // _DAY, 2_145_031_948
_NUL_IN_JSON = r"(?:^|[^\\])(?:\\\\)*\\u0000"
_NUL = "text with a NUL, which PostgreSQL cannot hold"
_INDEX_ROW = 2_704
"""Bytes of a row in an index, all in all, with a header of up to 16. PostgreSQL may fit more in, if it can be compressed."""
_JSONB = 6
"""How many bytes of jsonb a byte of JSON may need: ``1,`` becomes twelve."""


def sql_type(type_: Any, what: str) -> str:
    """The type of a PostgreSQL column for an Arrow type; ViewError, naming ``what``, if there is none."""
    for is_type, name in (
        (t.is_boolean, "boolean"), (t.is_int8, "smallint"), (t.is_int16, "smallint"), (t.is_int32, "integer"), (t.is_int64, "bigint"),
        (t.is_uint8, "smallint"), (t.is_uint16, "integer"), (t.is_uint32, "bigint"), (t.is_float16, "real"), (t.is_float32, "real"),
        (t.is_float64, "double precision"), (t.is_date, "date"), (t.is_duration, "interval"), (_is_binary, "bytea"),
        (t.is_string, 'text COLLATE "C"'), (t.is_large_string, 'text COLLATE "C"'), (t.is_null, "text"),
    ):  # fmt: skip
        if is_type(type_):
            return name
    if t.is_timestamp(type_) and type_.unit != "ns":
        return "timestamptz" if type_.tz else "timestamp"
    if t.is_decimal128(type_) and type_.scale >= 0:
        return f"numeric({type_.precision}, {type_.scale})"
    if t.is_nested(type_) and not t.is_union(type_):
        children = (
            [type_.key_field, type_.item_field]
            if t.is_map(type_)
            else [type_.field(i) for i in range(type_.num_fields)]
        )
        kinds = {sql_type(each.type, what) for each in children}
        # jsonb would put the keys of a map into another order
        return "json" if t.is_map(type_) or "json" in kinds else "jsonb"
    raise ViewError(
        f"{what}: values of type {type_} cannot be kept in PostgreSQL",
        hint="cast the column, for example to string or to timestamp",
    )


def encode(frame: pl.DataFrame, schema: Any, what: str) -> pl.DataFrame:
    """Columns of :func:`comparable` as COPY takes them; PipelineError for a value that PostgreSQL cannot hold."""
    return frame.with_columns(
        _encoded(series, schema.field(series.name).type, f"{what}, column {series.name!r}")
        for series in frame
        if series.name in schema.names
    )


def refused(target: Target, rows: Any, *, key: bool = False) -> pl.Series | None:
    """Why PostgreSQL cannot hold each row, null for those that it can; None if it can hold all. See :class:`Judge`.

    Keys count without compression, because what that gives depends on the server.
    """
    found = []
    for name in target.identity if key else target.schema.names:
        field = target.schema.field(name)
        if t.is_nested(field.type) and not _nul_inside(rows.column(name)):
            continue  # JSON is made row by row, so only where there is something to find
        unfit = _unfit(comparable(rows, pa.schema([field]), target.name)[name], field.type)
        if unfit is not None:
            found.append(pl.when(unfit[0]).then(pl.lit(f"column {name!r}: {unfit[1]}")))
    if target.key and not key:
        long = _key_bytes(target, rows) > _INDEX_ROW
        if long.any():
            found.append(pl.when(long).then(pl.lit(f"its key has more bytes than an index takes, {_INDEX_ROW:,}")))
    return pl.select(pl.coalesce(found).alias("why")).to_series() if found else None


def to_csv(frame: pl.DataFrame) -> bytes:
    """Encoded rows for ``COPY … (FORMAT csv)``: null is nothing, an empty text is two quotes."""
    out = io.BytesIO()
    frame.write_csv(out, include_header=False, quote_style="non_numeric")
    return out.getvalue()


def selected(schema: Any) -> str:
    """What to select so that :func:`from_csv` can read it."""
    return ", ".join(_selected(quote(field.name), field.type) for field in schema)


def from_csv(data: bytes, schema: Any) -> Any:
    """The Arrow table that was selected."""
    if not data:
        return schema.empty_table()
    texts = pa.csv.read_csv(
        io.BytesIO(data),
        pa.csv.ReadOptions(column_names=[str(i) for i in range(len(schema))], block_size=min(len(data) + 1, 1 << 30)),
        pa.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        pa.csv.ConvertOptions(
            column_types={str(i): pa.string() for i in range(len(schema))},
            null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False,
        ),
    )  # fmt: skip
    columns = [_decoded(texts.column(i), field.type) for i, field in enumerate(schema)]
    return pa.table(columns, schema=schema)


def _is_binary(type_: Any) -> bool:
    return bool(t.is_binary(type_) or t.is_large_binary(type_) or t.is_fixed_size_binary(type_))


def _encoded(series: pl.Series, type_: Any, what: str) -> pl.Series:
    unfit = _unfit(series, type_)
    if unfit is not None:
        text = time_text if t.is_timestamp(type_) else date_text if t.is_date(type_) else repr
        raise PipelineError(
            f"{what}: found {unfit[1]}: {text(series.filter(unfit[0])[0]):.200}; nothing of the batch was written",
            hint="keep it out of the view: where(…), or replace(column, '\\0', '') for text;"
            ' or define the view with refused="dead_letter"',
        )
    if t.is_timestamp(type_):
        return _times(series)
    if t.is_date(type_):
        return _dates(series)
    if t.is_duration(type_):
        return series.cast(pl.String) + " microseconds"
    if t.is_decimal(type_):
        return series.cast(pl.String)
    if _is_binary(type_):
        return ("\\x" + series.bin.encode("hex")).alias(series.name)
    return series


def _unfit(series: pl.Series, type_: Any) -> tuple[pl.Series, str] | None:
    """Which values of a comparable column PostgreSQL has no place for, and what they are; None if there are none."""
    if t.is_timestamp(type_) or t.is_date(type_):
        first, last = (FIRST_TIME, LAST_TIME) if t.is_timestamp(type_) else (_FIRST_DAY, _LAST_DAY)
        mask, why = (series < first) | (series > last), "a time beyond PostgreSQL's calendar"
    elif t.is_nested(type_):
        mask, why = series.str.contains(_NUL_IN_JSON), _NUL
    elif t.is_string(type_) or t.is_large_string(type_):
        mask, why = series.str.contains("\0", literal=True), _NUL
    else:
        return None
    return (mask.fill_null(value=False), why) if mask.any() else None


def _key_bytes(target: Target, rows: Any) -> pl.Series:
    """How many bytes the row of a key has in its index, at most."""
    frame = comparable(rows, pa.schema([target.schema.field(name) for name in target.key]), target.name)
    sizes = [pl.lit(16)]
    for name, kind in frame.schema.items():
        if kind == pl.String:
            sizes.append(
                7 + pl.col(name).str.len_bytes() * (_JSONB if t.is_nested(target.schema.field(name).type) else 1)
            )
        else:
            sizes.append(7 + pl.col(name).bin.size() if kind == pl.Binary else pl.lit(32))
    return frame.select(pl.sum_horizontal(sizes)).to_series()


def _nul_inside(column: Any) -> bool:
    """Whether any text within a nested column has a NUL, or may have."""
    return any(pc.any(pc.match_substring(texts, "\0")).as_py() for chunk in column.chunks for texts in _texts(chunk))


def _texts(array: Any) -> Iterator[Any]:
    """The arrays of text within an array."""
    if t.is_string(array.type) or t.is_large_string(array.type):
        yield array
    elif t.is_map(array.type):
        yield from (*_texts(array.keys), *_texts(array.items))
    elif t.is_struct(array.type):
        yield from (texts for i in range(array.type.num_fields) for texts in _texts(array.field(i)))
    elif t.is_nested(array.type):
        yield from _texts(array.values)


def _times(micros: pl.Series) -> pl.Series:
    if ((micros < _YEAR_1) | (micros >= _YEAR_10000)).any():
        return pl.Series(
            micros.name, [None if value is None else _christian(time_text(value)) for value in micros], pl.String
        )
    return micros.cast(pl.Datetime("us")).dt.strftime("%Y-%m-%d %H:%M:%S%.6f")


def _dates(days: pl.Series) -> pl.Series:
    if ((days < _YEAR_1 // _DAY) | (days >= _YEAR_10000 // _DAY)).any():
        return pl.Series(
            days.name, [None if value is None else _christian(date_text(value)) for value in days], pl.String
        )
    return days.cast(pl.Date).dt.strftime("%Y-%m-%d")


def _christian(text: str) -> str:
    """A date of numpy's, which knows a year 0, as people count.

    >>> _christian("0000-03-01"), _christian("-0001-03-01"), _christian("+12026-01-01")
    ('0001-03-01 BC', '0002-03-01 BC', '12026-01-01')
    """
    text = text.removeprefix("+")
    year, _, rest = text.removeprefix("-").partition("-")
    number = int(year) if not text.startswith("-") else -int(year)
    return text if number > 0 else f"{1 - number:04d}-{rest} BC"


def _selected(name: str, type_: Any) -> str:
    if t.is_boolean(type_):
        return f"{name}::integer"
    if t.is_timestamp(type_) or t.is_duration(type_):
        return f"(extract(epoch FROM {name}) * 1000000)::bigint"
    if t.is_date(type_):
        return f"{name} - date '1970-01-01'"
    return f"encode({name}, 'hex')" if _is_binary(type_) else name


def _decoded(texts: Any, type_: Any) -> Any:
    if t.is_null(type_):
        return pa.nulls(len(texts))
    if t.is_timestamp(type_):
        return texts.cast(pa.int64()).cast(pa.timestamp("us", type_.tz)).cast(type_)
    if t.is_duration(type_):
        return texts.cast(pa.int64()).cast(pa.duration("us")).cast(type_)
    if t.is_date(type_):
        return texts.cast(pa.int32()).cast(pa.date32()).cast(type_)
    if t.is_boolean(type_):
        return texts.cast(pa.int8()).cast(type_)
    if t.is_floating(type_):
        return texts.cast(pa.float64()).cast(type_, safe=False)
    if _is_binary(type_):
        return pl.Series(texts.to_pylist(), dtype=pl.String).str.decode("hex").to_arrow().cast(pa.binary()).cast(type_)
    return nested_array(texts.to_pylist(), type_) if t.is_nested(type_) else texts.cast(type_)
