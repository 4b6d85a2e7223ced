"""Columns that conditions may use: what values of each are compared as, in a condition and in an event.

A value is compared by its *key*: text by itself, anything else by a whole number that is larger where the value is: the days of a date,
the microseconds of a time, a decimal without its point. The key of a double goes by its bits, so that NaN equals NaN and is larger
than any number, and the two zeros are one, as in Spark.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_FLOOR, Context, Decimal
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.errors import PlanError
from millstream.kernel.percolation.language import Kind, Mistake, Value
from millstream.printable import printable
from millstream.scalar.types import declared_decimal

Key: TypeAlias = int | str
Family: TypeAlias = Literal["text", "number", "double", "boolean", "date", "timestamp"]

_FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint"), "number"),
    **dict.fromkeys(("float", "real", "double"), "double"),
    **dict.fromkeys(("timestamp", "timestamp_ltz", "timestamp_ntz"), "timestamp"),
    "string": "text", "boolean": "boolean", "date": "date",
}  # fmt: skip
LEAST, MOST = -(1 << 63), (1 << 63) - 1
"""The keys that there are, of anything but text."""

_DIGITS = 18
"""A decimal of more digits has no key of 64 bits."""

_SHOWN = 60
_WORD = r"[\p{L}\p{M}\p{N}]+"
_ASCII_WORD = re.compile("[a-z0-9]+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT = Context(prec=1_000)
_TAKES: dict[Family, tuple[Kind, ...]] = {
    "text": ("text",),
    "number": ("number",),
    "double": ("number",),
    "boolean": ("boolean",),
    "date": ("date", "text"),
    "timestamp": ("timestamp", "date", "text"),
}
"""The literals that a column is compared with."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A literal as the key of a column: ``key`` is the largest that is not above it, ``exact`` says whether it is equal."""

    key: Key
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Column:
    """A column that conditions may use; ``scale`` is how many digits of a number stand behind the point."""

    name: str
    family: Family
    type: str
    scale: int = 0

    def bound(self, value: Value) -> Bound:
        """The key of a literal; Mistake where it is not of the column's type."""
        if value.kind not in _TAKES[self.family]:
            raise self._misfit(value)
        given = value.value
        if isinstance(given, bool):
            return Bound(int(given))
        if isinstance(given, Decimal):
            return self._of_double(value) if self.family == "double" else _of_number(given.scaleb(self.scale, _EXACT))
        return Bound(given if self.family == "text" else self._moment(value))

    def keys(self, values: pl.Series) -> pl.Series:
        """The keys of an event's values; null of null."""
        kind = values.dtype
        if self.family == "text":
            return values
        if self.family == "double":
            keys = _double_keys(values.cast(pl.Float64).fill_null(0.0).to_numpy())
            return pl.select(pl.when(values.is_not_null()).then(pl.lit(pl.Series(keys)))).to_series()
        if isinstance(kind, pl.Datetime):
            return values.dt.epoch("us")
        physical = values.to_physical() if isinstance(kind, pl.Decimal | pl.Date) else values
        return physical.cast(pl.Int64)

    def check(self, kind: pl.DataType) -> None:
        """Refuse a column that has another type than conditions are told."""
        fits = {
            "text": kind == pl.String,
            "number": kind.is_integer() or (isinstance(kind, pl.Decimal) and kind.scale == self.scale),
            "double": kind.is_float(),
            "boolean": kind == pl.Boolean,
            "date": kind == pl.Date,
            "timestamp": isinstance(kind, pl.Datetime),
        }
        if not fits[self.family]:
            raise PlanError(
                f"percolate: conditions are told that {self.name} is {self.type}; it is {kind}",
                hint=f'name what conditions may use, with its type: columns="{self.name} …"',
            )

    def _of_double(self, value: Value) -> Bound:
        double = float(value.value)
        if math.isinf(double):
            raise self._misfit(value)
        bits: int = struct.unpack(">q", struct.pack(">d", double + 0.0))[0]
        return Bound(bits ^ MOST if bits < 0 else bits)

    def _moment(self, value: Value) -> int:
        text = str(value.value).strip()
        try:
            if self.family == "date":
                return date.fromisoformat(text).toordinal() - _EPOCH.toordinal()
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise self._misfit(value) from error
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        span = moment - _EPOCH
        return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds

    def _misfit(self, value: Value) -> Mistake:
        return Mistake(f"{self.name} is {self.type}; found {printable(value.written[:_SHOWN])}")


def column_of(name: str, declared: str) -> Column | None:
    """A column of a declared type; None if conditions cannot use it.

    >>> column_of("price", "decimal(9, 2)")
    Column(name='price', family='number', type='decimal(9, 2)', scale=2)
    """
    text = declared.strip().lower()
    if text in _FAMILIES:
        return Column(name, _FAMILIES[text], declared)
    found = declared_decimal(text)
    if found is not None and (found.precision or 0) <= _DIGITS:
        return Column(name, "number", declared, found.scale)
    return None


def words_in(text: str) -> list[str]:
    """The words of one text, as those of many are.

    >>> words_in("Red SHOES, size 42!")
    ['red', 'shoes', 'size', '42']
    """
    if text.isascii():  # without a frame for each of many conditions
        return _ASCII_WORD.findall(text.lower())
    return list(words_of(pl.Series([text])).item(0))


def words_of(texts: pl.Series) -> pl.Series:
    """The words of each text, in lower case: runs of letters, marks and digits."""
    return texts.str.to_lowercase().str.extract_all(_WORD)


def _of_number(scaled: Decimal) -> Bound:
    """The key of a number, in units of the column's last digit."""
    below = scaled.to_integral_value(ROUND_FLOOR, _EXACT)
    key = LEAST - 1 if below < LEAST else MOST if below > MOST else int(below)
    return Bound(key, below == scaled and key == below)


def _double_keys(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    values = values + 0.0  # one zero
    values[np.isnan(values)] = np.nan
    bits = values.view(np.int64)
    return np.where(bits < 0, bits ^ np.int64(MOST), bits)
