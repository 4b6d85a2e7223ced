"""Arrow values as PostgreSQL keeps them, and back: CSV in both directions, made and read by Polars and Arrow.

Invariant: what is stored reads back as the same value of the declared type. What PostgreSQL has no place for (a NUL in text, a
time before 4713 BC) is refused by name before anything is sent. Text sorts by its code points, as in Spark and whatever the
server's locale; NaN is greater than every number, and equal to itself.
"""

from __future__ import annotations

import io
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.types as t

from millstream.errors import PipelineError, ViewError
from millstream.sink.file import quote
from millstream.sink.values import comparable, date_text, nested_array, time_text

_YEAR_1, _YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000
_DAY = 86_400_000_000
FIRST_TIME = -210_866_803_200_000_000  # 4713-11-24 BC, Gregorian: PostgreSQL's first moment
LAST_TIME = 2**63 - 2  # it would take the very last one, and give it back a little earlier
_FIRST_DAY, _LAST_DAY = FIRST_TIME // _DAY, 2_145_031_948
_NUL_IN_JSON = r"(?:^|[^\\])(?:\\\\)*\\u0000"


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


def to_csv(frame: pl.DataFrame) -> bytes:
    """Encoded rows for ``COPY … (FORMAT csv)``: null is nothing, an empty text is two quotes."""
    out = io.BytesIO()
    frame.write_csv(out, include_header=False, quote_style="non_numeric")
    return out.getvalue()


def table_csv(table: Any, schema: Any, what: str) -> bytes:
    """An Arrow table for COPY."""
    return to_csv(encode(comparable(table, schema, what), schema, what))


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
    if t.is_timestamp(type_):
        _check(series, FIRST_TIME, LAST_TIME, what, time_text)
        return _times(series)
    if t.is_date(type_):
        _check(series, _FIRST_DAY, _LAST_DAY, what, date_text)
        return _dates(series)
    if t.is_duration(type_):
        return series.cast(pl.String) + " microseconds"
    if t.is_decimal(type_):
        return series.cast(pl.String)
    if _is_binary(type_):
        return ("\\x" + series.bin.encode("hex")).alias(series.name)
    if t.is_nested(type_) or t.is_string(type_) or t.is_large_string(type_):
        nul = series.str.contains(_NUL_IN_JSON) if t.is_nested(type_) else series.str.contains("\0", literal=True)
        if nul.any():
            raise PipelineError(
                f"{what}: found text with a NUL, which PostgreSQL cannot hold: {series.filter(nul)[0]!r};"
                " nothing of the batch was written",
                hint="take it out before it is stored: replace(column, '\\0', '')",
            )
    return series


def _check(series: pl.Series, first: int, last: int, what: str, text: Any) -> None:
    outside = series.filter((series < first) | (series > last))
    if len(outside):
        raise PipelineError(
            f"{what}: found {text(outside[0])}, which is beyond PostgreSQL's calendar; nothing of the batch was written",
            hint="keep such records out with where(…)",
        )


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
