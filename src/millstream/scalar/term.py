"""Values of an expression with Spark's types, before any row is seen, and Spark's operators on them.

A :class:`Term` says how Polars computes a value, of which type it is in Spark, and for which rows only Spark can
answer. Every function here gives exactly what Spark gives, with ANSI on or off, or marks the row as unsure, or raises
:class:`Refused`. Where Spark computes a side only if it needs it, only then can that side make a row unsure:
``b <> 0 AND a / b > 1`` is sure where b is 0.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from functools import reduce
from typing import Any

import numpy as np
import polars as pl

from millstream.scalar.types import (
    BOOLEAN,
    BOUNDS,
    DOUBLE,
    INTEGERS,
    LONG,
    NULL,
    Refused,
    Span,
    is_decimal,
    is_number,
    is_ordered,
    need,
    of_literal,
    wider,
)

Constant = int | float | str | date | Decimal | Span

# Sums of longs are watched at what goes in, not at what comes out: one comparison serves a whole chain of sums, where
# one for each sum would repeat all that came before it. Beside a number up to the first of these a long is sure if that
# much room is left above or below it; two that may be anything are sure up to the second, 36,000 years of microseconds.
_SMALL, _LARGE = 1 << 48, 1 << 60
_DIGITS = 1 << 53  # integers up to this are doubles

ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_UFUNCS = {"+": np.add, "-": np.subtract}
# Polars agrees with Spark on doubles: NaN equals NaN and is greater than all else, -0.0 equals 0.0.
COMPARISONS: dict[str, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    "=": pl.Expr.eq, "==": pl.Expr.eq, "<>": pl.Expr.ne, "!=": pl.Expr.ne, "<=>": pl.Expr.eq_missing,
    "<": pl.Expr.lt, "<=": pl.Expr.le, ">": pl.Expr.gt, ">=": pl.Expr.ge,
}  # fmt: skip
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True, slots=True)
class Term:
    """A part of an expression."""

    value: pl.Expr
    dtype: pl.DataType
    unsure: pl.Expr | None = None
    """True where only Spark can answer; null or false: sure. None: always sure."""
    bounds: tuple[int, int] | None = None
    """Between which integers the value lies where it is sure, if that is known better than by the type."""
    constant: Constant | None = None
    """The value of a literal, and of what is computed of literals only."""
    written: bool = False
    """Whether it is an integer as it stands in the text: beside a decimal it has as many digits as are written."""

    @property
    def low(self) -> int:
        """The least integer that it can be."""
        return (self.bounds or BOUNDS[self.dtype])[0]

    @property
    def high(self) -> int:
        """The greatest integer that it can be."""
        return (self.bounds or BOUNDS[self.dtype])[1]

    @property
    def has_columns(self) -> bool:
        """Whether the value can differ from row to row."""
        return bool(self.value.meta.root_names())

    def clip(self, low: int, high: int) -> Term:
        """Call the rows unsure where an integer lies outside; for the others the bounds are then known."""
        beyond = None
        if self.low < low:
            beyond = ~self.value.is_between(low, high) if self.high > high else self.value < low
        elif self.high > high:
            beyond = self.value > high
        return replace(self, unsure=any_of(self.unsure, beyond), bounds=(max(self.low, low), min(self.high, high)))


def literal(value: Constant | None, dtype: pl.DataType) -> Term:
    """Give a constant of a type."""
    bounds = (value, value) if dtype in INTEGERS and isinstance(value, int) else None
    return Term(pl.lit(value, dtype=dtype), dtype, None, bounds, value)


def decimal(text: str) -> Term:
    """Give a number with a point in it, which is a decimal to Spark."""
    value = Decimal(text)
    value = value.copy_abs() if value == 0 else value  # a decimal has no -0.0
    return literal(value, of_literal(value))


def any_of(*unsure: pl.Expr | None) -> pl.Expr | None:
    """Say where at least one is true."""
    given = [each for each in unsure if each is not None]
    return reduce(operator.or_, given) if given else None


def _where(computed: pl.Expr, unsure: pl.Expr | None) -> pl.Expr | None:
    return None if unsure is None else computed & unsure


def common(terms: Sequence[Term]) -> pl.DataType:
    """Give the type to which Spark brings values that meet; it is the same with ANSI on and off."""
    found: pl.DataType = NULL
    for term in terms:
        if term.dtype in (found, NULL):
            continue
        if found == NULL:
            found = term.dtype
        elif found in INTEGERS and term.dtype in INTEGERS:
            found = max(found, term.dtype, key=INTEGERS.index)
        elif DOUBLE in (found, term.dtype):
            need(is_number(found), is_number(term.dtype))
            found = DOUBLE
        else:
            found = wider(found, term.dtype)
    need(is_ordered(found))
    return found


def widen(term: Term, dtype: pl.DataType) -> Term:
    """Bring a value to a type that :func:`common` found for it."""
    if term.dtype == dtype:
        return term
    if term.dtype == NULL:
        return Term(pl.lit(None, dtype=dtype), dtype)
    if isinstance(term.constant, int | float | Decimal):
        number = float(term.constant) if dtype == DOUBLE else term.constant
        return literal(Decimal(number) if is_decimal(dtype) else number, dtype)
    if isinstance(term.dtype, pl.Decimal) and dtype == DOUBLE:
        return _double(term, term.dtype)
    bounds = (term.low, term.high) if dtype in INTEGERS else None
    return replace(term, value=term.value.cast(dtype), dtype=dtype, bounds=bounds)


def _double(term: Term, dtype: pl.Decimal) -> Term:
    """The double that is nearest to a decimal."""
    unit = 10.0**dtype.scale
    need(dtype.scale <= 22)  # powers of ten up to this are doubles

    def rows(numbers: pl.Series) -> pl.Series:
        units = numbers.to_physical()
        made = pl.Series(units.cast(DOUBLE).to_numpy() / unit, dtype=DOUBLE)
        long = (units.abs() > _DIGITS).fill_null(False)
        if long.any():  # their digits are no double themselves
            made = made.scatter(long.arg_true(), [float(number) for number in numbers.filter(long)])
        return made.set(numbers.is_null(), None) if numbers.null_count() else made

    need(term.has_columns)
    return Term(term.value.map_batches(rows, DOUBLE, is_elementwise=True), DOUBLE, term.unsure)


def alike(*terms: Term) -> list[Term]:
    """Bring values to their common type."""
    dtype = common(terms)
    return [widen(term, dtype) for term in terms]


def arithmetic(symbol: str, left: Term, right: Term, *, exact: bool = False) -> Term:
    """Add, subtract or multiply in the wider of the two types; unsure where that overflows, and unless ``exact`` where it might."""
    need(is_number(left.dtype), is_number(right.dtype))
    left, right = alike(left, right)
    dtype, compute = left.dtype, ARITHMETIC[symbol]
    if dtype == DOUBLE:
        value = left.value * right.value if symbol == "*" else _exactly(_UFUNCS[symbol], left, right)
        return Term(value, dtype, any_of(left.unsure, right.unsure))
    left, right = widen(left, LONG), widen(right, LONG)
    value, (low, high) = compute(left.value, right.value), BOUNDS[dtype]
    if dtype != LONG:
        whole = Term(value, LONG, any_of(left.unsure, right.unsure), _reach(symbol, left, right)).clip(low, high)
        return Term(value.cast(dtype, strict=False), dtype, whole.unsure, whole.bounds)
    if symbol == "*":
        return _product(left, right, value)
    least, most = _reach(symbol, left, right)
    if exact and (least < low or most > high):
        wide = compute(left.value.cast(pl.Int128), right.value.cast(pl.Int128))
        return Term(value, LONG, any_of(left.unsure, right.unsure, ~wide.is_between(low, high)))
    if max(-right.low, right.high) <= _SMALL:
        left = left.clip(low + _SMALL + 1 if least < low else low, high - _SMALL if most > high else high)
    elif max(-left.low, left.high) <= _SMALL:
        right = right.clip(low + _SMALL + 1, high - _SMALL)
    elif least < low or most > high:
        left, right = left.clip(-_LARGE, _LARGE), right.clip(-_LARGE, _LARGE)
    return Term(value, LONG, any_of(left.unsure, right.unsure), _reach(symbol, left, right))


def _product(left: Term, right: Term, value: pl.Expr) -> Term:
    low, high = BOUNDS[LONG]
    if right.constant is None:
        left, right = right, left
    if isinstance(right.constant, int) and right.constant:
        times = abs(right.constant)
        left = left.clip(-(high // times), high // times)
    unsure, (least, most) = any_of(left.unsure, right.unsure), _reach("*", left, right)
    if low <= least and most <= high:
        return Term(value, LONG, unsure, (least, most))
    exact = left.value.cast(pl.Int128) * right.value.cast(pl.Int128)
    return Term(value, LONG, any_of(unsure, ~exact.is_between(low, high)))


def _reach(symbol: str, left: Term, right: Term) -> tuple[int, int]:
    """Between what the result lies, if nothing overflows."""
    ends = [ARITHMETIC[symbol](a, b) for a in (left.low, left.high) for b in (right.low, right.high)]
    return min(ends), max(ends)


def divide(left: Term, right: Term) -> Term:
    """Divide as doubles, integers too; unsure by zero."""
    need(is_number(left.dtype), is_number(right.dtype))
    need(DOUBLE in (left.dtype, right.dtype) or not (is_decimal(left.dtype) or is_decimal(right.dtype)))
    left, right = widen(left, DOUBLE), widen(right, DOUBLE)
    zero = None if right.constant else right.value == 0
    return Term(_exactly(np.divide, left, right), DOUBLE, any_of(left.unsure, right.unsure, zero))


def _exactly(compute: np.ufunc, left: Term, right: Term) -> pl.Expr:
    """Compute with doubles by the rules of IEEE 754, as Java does.

    Polars takes short cuts where one side is a single value, be it a literal, a constant column or a batch of one row:
    ``x / c`` is ``x * (1 / c)``, which differs in the last digit, and ``0.0 - 0.0`` is ``-0.0``.
    """

    def rows(sides: Sequence[pl.Series]) -> pl.Series:
        with np.errstate(all="ignore"):
            result = pl.Series(compute(*(side.to_numpy() for side in sides)), dtype=DOUBLE)
        missing = sides[0].is_null() | sides[1].is_null()
        return result.set(missing, None) if missing.any() else result

    if left.has_columns or right.has_columns:
        return pl.map_batches([left.value, right.value], rows, DOUBLE, is_elementwise=True)
    return pl.lit(rows([pl.select(side.value).to_series() for side in (left, right)])[0], dtype=DOUBLE)


def modulo(left: Term, right: Term, *, positive: bool) -> Term:
    """Give the remainder by a literal above zero: with the sign of the dividend, or never negative (``pmod``)."""
    by = right.constant
    need(left.dtype in INTEGERS, right.dtype in INTEGERS)
    if not isinstance(by, int) or by <= 0:
        raise Refused
    left, right = alike(left, right)
    if positive or left.low >= 0:
        return Term(left.value % right.value, left.dtype, left.unsure, (0, by - 1))  # never negative in Polars
    floored = left.value % right.value
    value = pl.when((left.value < 0) & (floored > 0)).then(floored - right.value).otherwise(floored)
    return Term(value, left.dtype, left.unsure, (1 - by, by - 1))


def negative(term: Term, *, exact: bool = False) -> Term:
    """Change the sign."""
    need(is_number(term.dtype), _is_short(term))
    if isinstance(term.constant, Decimal):
        return literal(term.constant.copy_negate() if term.constant else term.constant, term.dtype)
    if term.dtype not in INTEGERS:
        return Term(-term.value, term.dtype, term.unsure)  # 0 - x would lose -0.0
    return arithmetic("-", literal(0, term.dtype), term, exact=exact)


def _is_short(term: Term) -> bool:
    """Whether Spark keeps all digits when it changes a sign: it rounds decimals to 34 then."""
    return not isinstance(term.dtype, pl.Decimal) or (term.dtype.precision or 38) <= 34


def absolute(term: Term) -> Term:
    """Take the sign away."""
    need(is_number(term.dtype), _is_short(term))
    if term.dtype not in INTEGERS:
        return Term(term.value.abs(), term.dtype, term.unsure)
    low, high = BOUNDS[term.dtype]
    return Term(term.value.abs(), term.dtype, term.clip(low + 1, high).unsure, (0, high))


def compare(symbol: str, left: Term, right: Term) -> Term:
    """Compare two values of a common type."""
    for one, other in ((left, right), (right, left)):  # what no long reaches is true to Spark for a null too
        need(
            other.dtype not in INTEGERS or not isinstance(one.constant, Decimal) or abs(one.constant) < BOUNDS[LONG][1]
        )
    left, right = alike(left, right)
    # One value compared with a constant column gives a single row in Polars, but not the other way round.
    if not left.has_columns:
        symbol, left, right = _MIRRORED.get(symbol, symbol), right, left
    return Term(COMPARISONS[symbol](left.value, right.value), BOOLEAN, any_of(left.unsure, right.unsure))


def among(term: Term, choices: list[Term]) -> Term:
    """Say whether a value is one of some literals; with a null among them the answer is never false."""
    need(all(each.constant is not None or each.dtype == NULL for each in choices))
    term, *choices = alike(term, *choices)
    values = [each.constant for each in choices if each.constant is not None]
    # A long list of doubles is a hash set to Spark, and there -0.0 and 0.0 differ.
    need(bool(values), term.dtype != DOUBLE or 0 not in values)
    if is_decimal(term.dtype):
        value = reduce(operator.or_, (term.value == pl.lit(each, dtype=term.dtype) for each in values))
    else:
        value = term.value.is_in(values)
    if len(values) < len(choices):
        value = pl.when(value).then(True).otherwise(None)
    return Term(value, BOOLEAN, term.unsure)


def _condition(term: Term) -> Term:
    need(term.dtype in (BOOLEAN, NULL))
    return widen(term, BOOLEAN)


def negation(term: Term) -> Term:
    """NOT; the opposite of null is null."""
    term = _condition(term)
    return Term(~term.value, BOOLEAN, term.unsure)


def conjunction(left: Term, right: Term) -> Term:
    """AND; Spark computes the right side unless the left is false."""
    left, right = _condition(left), _condition(right)
    unsure = any_of(left.unsure, _where(left.value.fill_null(True), right.unsure))
    return Term(left.value & right.value, BOOLEAN, unsure)


def disjunction(left: Term, right: Term) -> Term:
    """OR; Spark computes the right side unless the left is true."""
    left, right = _condition(left), _condition(right)
    unsure = any_of(left.unsure, _where(~left.value.fill_null(False), right.unsure))
    return Term(left.value | right.value, BOOLEAN, unsure)


def is_state(term: Term, state: str) -> Term:
    """IS NULL, IS TRUE, IS FALSE; never null itself."""
    if state == "null":
        return Term(term.value.is_null(), BOOLEAN, term.unsure)
    term = _condition(term)
    wanted = term.value if state == "true" else ~term.value
    return Term(wanted.fill_null(False), BOOLEAN, term.unsure)


def choose(condition: Term, then: Term, otherwise: Term) -> Term:
    """IF; Spark computes the condition and the branch that it chooses."""
    condition, (then, otherwise) = _condition(condition), alike(then, otherwise)
    chosen = condition.value.fill_null(False)
    unsure = any_of(condition.unsure, _where(chosen, then.unsure), _where(~chosen, otherwise.unsure))
    value = pl.when(condition.value).then(then.value).otherwise(otherwise.value)
    return Term(value, then.dtype, unsure, _around(then, otherwise))


def coalesce(terms: list[Term]) -> Term:
    """Take the first that is not null; Spark computes none after it."""
    *terms, last = alike(*terms)
    for term in reversed(terms):
        unsure = any_of(term.unsure, _where(term.value.is_null(), last.unsure))
        last = Term(pl.coalesce(term.value, last.value), last.dtype, unsure, _around(term, last))
    return last


def _around(left: Term, right: Term) -> tuple[int, int] | None:
    return (min(left.low, right.low), max(left.high, right.high)) if left.dtype in INTEGERS else None
