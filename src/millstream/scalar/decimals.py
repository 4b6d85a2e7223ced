"""Decimals: arithmetic, casts and rounding, with the types that Spark gives them.

Results are exact. Polars fails for a whole batch where one of them does not fit 38 digits, so an operand that may lead there is
null for Polars, and the row unsure. Doubles are rounded as Spark does it, by the shortest decimal that is the double.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal, localcontext

import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.scalar.term import ARITHMETIC, Term, any_of, literal
from millstream.scalar.types import (
    BOUNDS,
    DOUBLE,
    INTEGERS,
    LONG,
    TEXT,
    digits_of,
    is_decimal,
    need,
    of_arithmetic,
    of_rounding,
)

_MOST = 38
_SURE = 1e14
"""Below as many units two decimals are never the same double, and the middle between any two has a double of its own."""
_WHOLE = 2.0**53


def of_decimals(symbol: str, left: Term, right: Term) -> Term:
    """Add, subtract or multiply decimals, or integers and decimals; unsure where the result may not fit."""
    kinds = [_kind(left), _kind(right)]
    dtype = of_arithmetic(symbol, *kinds)
    if isinstance(left.constant, Decimal | int) and isinstance(right.constant, Decimal | int):
        with localcontext(prec=100):
            value = Decimal(ARITHMETIC[symbol](left.constant, right.constant))
            need(abs(value) < Decimal(10) ** (_precision(dtype) - dtype.scale))
        return literal(value, dtype)
    need(left.has_columns or right.has_columns)
    one, other = (_as_decimal(side, kind) for side, kind in zip((left, right), kinds, strict=True))
    fits, wide = None, pl.Decimal(_MOST, dtype.scale)
    if _may_overflow(symbol, dtype, *kinds):
        size = one.cast(DOUBLE).abs(), other.cast(DOUBLE).abs()
        limit = 10.0 ** (_MOST - dtype.scale) * (1 - 1e-9)
        fits = (size[0] < limit) & (size[0] * size[1] < limit) if symbol == "*" else size[0] + size[1] < limit
        one = pl.when(fits).then(one)
        other = pl.when(fits).then(other)
    one = one.cast(wide)
    other = (
        other if symbol == "*" else other.cast(wide)
    )  # of a product Polars keeps as many places as the longer side has
    return Term(
        ARITHMETIC[symbol](one, other).cast(dtype),
        dtype,
        any_of(left.unsure, right.unsure, None if fits is None else ~fits),
    )


def _may_overflow(symbol: str, dtype: pl.Decimal, left: pl.Decimal, right: pl.Decimal) -> bool:
    """Whether the type of the result, or what is computed on the way, might need more than 38 digits."""
    digits = [_precision(each) - each.scale for each in (left, right)]
    return sum(digits) + dtype.scale > _MOST if symbol == "*" else max(digits) + 1 + dtype.scale > _MOST


def to_decimal(term: Term, dtype: pl.Decimal, *, exact: bool = False) -> Term:
    """Cast to a decimal, rounding half up; unsure where it does not fit, and a large double unless ``exact``."""
    if term.dtype == DOUBLE:
        return _of_double(term, dtype, exact)
    if term.dtype in INTEGERS:
        whole = 10 ** (_precision(dtype) - dtype.scale) - 1
        low, high = BOUNDS[term.dtype]
        clipped = term.clip(max(-whole, low), min(whole, high))
        return Term(term.value.cast(dtype, strict=False), dtype, clipped.unsure)
    need(isinstance(term.dtype, pl.Decimal), term.has_columns)
    shorter = _rounded(term, dtype.scale)
    made = shorter.value.cast(dtype, strict=False)
    return Term(made, dtype, any_of(shorter.unsure, made.is_null() & shorter.value.is_not_null()))


def to_integer(term: Term, dtype: pl.DataType) -> Term:
    """Cut off the fraction of a decimal; unsure where the rest does not fit."""
    made = term.value.cast(LONG, strict=False)
    whole = Term(made, LONG, any_of(term.unsure, made.is_null() & term.value.is_not_null())).clip(*BOUNDS[dtype])
    return Term(made.cast(dtype, strict=False), dtype, whole.unsure, whole.bounds)


def to_text(term: Term) -> Term:
    """Write a decimal with all digits of its scale; with more of them Spark may write it with an exponent."""
    need(isinstance(term.dtype, pl.Decimal) and term.dtype.scale <= 6)
    return Term(term.value.cast(TEXT), TEXT, term.unsure)


def rounded(term: Term, places: int, *, exact: bool = False) -> Term:
    """Round half up, away from zero; unsure where a double is large, unless ``exact``."""
    if term.dtype in INTEGERS:
        return term
    if term.dtype == DOUBLE:
        return _double_rounded(term, places, exact)
    dtype = of_rounding(term.dtype, places)
    need(term.has_columns)
    shorter = _rounded(term, dtype.scale)
    return replace(shorter, value=shorter.value.cast(dtype), dtype=dtype)


def _kind(term: Term) -> pl.Decimal:
    """The decimal that Spark makes of a side; an integer literal has as many digits as are written."""
    if isinstance(term.dtype, pl.Decimal):
        return term.dtype
    need(term.dtype in INTEGERS)
    if term.written:
        need(term.dtype != pl.Int8())
        return pl.Decimal(len(str(abs(int(term.constant)))), 0)  # type: ignore[arg-type]
    return pl.Decimal(digits_of(term.dtype), 0)


def _as_decimal(term: Term, kind: pl.Decimal) -> pl.Expr:
    if is_decimal(term.dtype):
        return term.value
    return pl.lit(Decimal(term.constant), dtype=kind) if term.written else term.value.cast(kind)  # type: ignore[arg-type]


def _precision(dtype: pl.Decimal) -> int:
    return dtype.precision or _MOST


def _rounded(term: Term, scale: int) -> Term:
    """A decimal rounded to a smaller scale, in its own type or a wider one."""
    assert isinstance(term.dtype, pl.Decimal)  # noqa: S101
    if term.dtype.scale <= scale:
        return term
    value, unsure = term.value, term.unsure
    if _precision(term.dtype) == _MOST:
        fits = value.abs() < pl.lit(Decimal(9).scaleb(_MOST - 1 - term.dtype.scale), dtype=term.dtype)
        value, unsure = pl.when(fits).then(value), any_of(unsure, ~fits)
    return replace(term, value=value.round(scale, mode="half_away_from_zero"), unsure=unsure)


def _of_double(term: Term, dtype: pl.Decimal, exact: bool) -> Term:
    need(dtype.scale <= 14)
    units = 10.0 ** _precision(dtype) - 0.5
    near = term.value.abs() < (units if exact else min(_SURE, units)) / 10.0**dtype.scale  # NaN is greater than all
    value = _by_shortest(pl.when(near).then(term.value), dtype, dtype.scale)
    return Term(value, dtype, any_of(term.unsure, ~near, near & value.is_null()))


def _double_rounded(term: Term, places: int, exact: bool) -> Term:
    need(0 <= places <= 14)
    size = term.value.abs()
    if not term.has_columns:  # to Polars, literals of the two zeros are one, and it might take either
        need(bool(pl.select((size < _SURE / 10.0**places).fill_null(True)).item()))
        return Term(_by_shortest(term.value, DOUBLE, places), DOUBLE, term.unsure)
    whole = size >= _WHOLE
    value = pl.when(whole).then(term.value).otherwise(_by_shortest(pl.when(~whole).then(term.value), DOUBLE, places))
    return Term(value, DOUBLE, any_of(term.unsure, None if exact else (size >= _SURE / 10.0**places) & ~whole))


def _by_shortest(value: pl.Expr, dtype: pl.DataType, places: int) -> pl.Expr:
    """Round doubles half up by the digits that Java shows of them, which are the fewest that tell one from its neighbours.

    The middle between two roundings has at most 15 digits. So it is shown for the double that is nearest to it, and a double is
    to be rounded up if it is no less than that. Larger ones are rounded one by one. There is no -0.0, as a decimal has none.
    """

    def rows(numbers: pl.Series) -> pl.Series:
        unit, given = 10.0**places, numbers.to_numpy()
        with np.errstate(all="ignore"):
            size = np.abs(given)
            below = np.floor(size * unit)
            found: npt.NDArray[np.float64] = (below + (size >= (below + 0.5) / unit)) / unit
        found = np.where((given < 0) & (found != 0), -found, found)
        made = pl.Series(found, dtype=DOUBLE).set(numbers.is_null(), None).cast(dtype, strict=False)
        large = np.flatnonzero(size >= _SURE / unit)
        return (
            made.scatter(large, pl.Series([_shown(x, places) for x in given[large]]).cast(dtype, strict=False))
            if large.size
            else made
        )

    if value.meta.root_names():
        return value.map_batches(rows, dtype, is_elementwise=True)
    return pl.lit(rows(pl.select(value).to_series())[0], dtype=dtype)


def _shown(x: float, places: int) -> Decimal:
    with localcontext(prec=400):
        return Decimal(repr(float(x))).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
