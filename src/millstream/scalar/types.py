"""The types of Spark's values, as Polars has them, and the types that decimals have when they meet.

decimal(p, s) has p digits, s of them behind the point. Where Spark would begin to round, because 38 digits are not enough, the
answer here is :class:`Refused`.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import NamedTuple

import polars as pl

LONG, DOUBLE, TEXT, BOOLEAN, DATE = pl.Int64(), pl.Float64(), pl.String(), pl.Boolean(), pl.Date()
TIMESTAMP = pl.Datetime("us", "UTC")
NULL = pl.Null()

BOUNDS: dict[pl.DataType, tuple[int, int]] = {
    dtype: (-(1 << bits), (1 << bits) - 1)
    for dtype, bits in ((pl.Int8(), 7), (pl.Int16(), 15), (pl.Int32(), 31), (LONG, 63))
}
INTEGERS = tuple(BOUNDS)  # from narrow to wide

_ORDERED = (*INTEGERS, DOUBLE, TEXT, BOOLEAN, DATE, TIMESTAMP, pl.Datetime("us"))
_DIGITS = dict(zip(INTEGERS, (3, 5, 10, 20), strict=True))
_MOST = 38
DECIMALS = ("decimal", "dec", "numeric")
"""How Spark calls decimals."""
_DECLARED = re.compile(r"(?:decimal|dec|numeric)(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?", re.IGNORECASE)


class Span(NamedTuple):
    """A span of time as it is written: months, or microseconds."""

    months: int
    micros: int
    of_days: bool
    """Whether it is written in days and weeks only: a day that is moved by it stays a day."""


class Refused(Exception):
    """The expression is not in the subset."""


def need(*given: bool) -> None:
    """Refuse unless all are true."""
    if not all(given):
        raise Refused


def is_decimal(dtype: pl.DataType) -> bool:
    """Whether it is a decimal of any size."""
    return isinstance(dtype, pl.Decimal)


def is_number(dtype: pl.DataType) -> bool:
    """Whether Spark computes with it, and we do."""
    return dtype in INTEGERS or dtype == DOUBLE or is_decimal(dtype)


def is_ordered(dtype: pl.DataType) -> bool:
    """Whether values of it can be compared."""
    return dtype in _ORDERED or is_decimal(dtype)


def declared_decimal(text: str) -> pl.Decimal | None:
    """The decimal that a declared type is; None for any other type, and for a size that Spark does not have.

    >>> declared_decimal("decimal(10, 2)"), declared_decimal("NUMERIC"), declared_decimal("decimal(39)"), declared_decimal("date")
    (Decimal(precision=10, scale=2), Decimal(precision=10, scale=0), None, None)
    """
    found = _DECLARED.fullmatch(text.strip())
    precision, scale = (int(found[1] or 10), int(found[2] or 0)) if found else (0, 0)
    return pl.Decimal(precision, scale) if scale <= precision and 0 < precision <= _MOST else None


def of_literal(value: Decimal) -> pl.DataType:
    """The type of a number as it is written: 0.908 is a decimal(3, 3)."""
    _, digits, exponent = value.as_tuple()
    scale = -int(exponent)
    return _decimal(max(len(digits) - scale, 0), scale)


def of_arithmetic(symbol: str, left: pl.Decimal, right: pl.Decimal) -> pl.Decimal:
    """The type of a sum, a difference or a product; where it needs more than 38 digits, one that keeps all behind the point."""
    (above, below), (over, under) = _digits(left), _digits(right)
    if symbol == "*":
        whole, scale = above + over + 1, below + under
    else:
        whole, scale = max(above, over) + 1, max(below, under)
    # Up to 6 digits behind the point Spark keeps, whatever its setting of allowPrecisionLoss.
    need(whole + scale <= _MOST or scale <= 6)
    return pl.Decimal(min(whole + scale, _MOST), scale)


def of_rounding(dtype: pl.DataType, places: int) -> pl.Decimal:
    """The type of a decimal that is rounded to some places behind the point: it may have one digit more before it."""
    need(is_decimal(dtype), places >= 0)
    above, below = _digits(dtype)
    scale = min(below, places)
    need(above + 1 + scale <= _MOST)
    return pl.Decimal(above + 1 + scale, scale)


def wider(left: pl.DataType, right: pl.DataType) -> pl.DataType:
    """The decimal that holds the values of both."""
    (above, below), (over, under) = _digits(left), _digits(right)
    return _decimal(max(above, over), max(below, under))


def digits_of(dtype: pl.DataType) -> int:
    """How many digits the decimal has that holds any integer of a type."""
    need(dtype in _DIGITS)
    return _DIGITS[dtype]


def _digits(dtype: pl.DataType) -> tuple[int, int]:
    """How many digits stand before the point and how many behind it."""
    if isinstance(dtype, pl.Decimal):
        return (dtype.precision or _MOST) - dtype.scale, dtype.scale
    return digits_of(dtype), 0


def _decimal(above: int, below: int) -> pl.DataType:
    need(above + below <= _MOST)
    return pl.Decimal(above + below, below)
