"""The functions of Spark SQL that Polars computes the same way, and the casts.

Every name and every number of arguments in :func:`call` is one that Spark has; the answer is Spark's, or the row is
unsure, or the call is refused. ``utc`` says that the session's time zone is UTC.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date

import polars as pl

from millstream.scalar.decimals import of_decimals, rounded, to_decimal, to_integer, to_text
from millstream.scalar.term import (
    Term,
    absolute,
    alike,
    any_of,
    arithmetic,
    choose,
    coalesce,
    is_state,
    literal,
    modulo,
    negation,
    widen,
)
from millstream.scalar.term import (
    compare as compare_alike,
)
from millstream.scalar.text import element, of_text
from millstream.scalar.time import INTERVAL, add_days, day, from_epoch, of_time, shift
from millstream.scalar.types import (
    BOOLEAN,
    BOUNDS,
    DATE,
    DOUBLE,
    INTEGERS,
    LONG,
    NULL,
    TEXT,
    TIMESTAMP,
    Refused,
    is_decimal,
    is_number,
    is_ordered,
    need,
)

TYPES: dict[str, pl.DataType] = {
    "boolean": BOOLEAN, "tinyint": pl.Int8(), "byte": pl.Int8(), "smallint": pl.Int16(), "short": pl.Int16(),
    "int": pl.Int32(), "integer": pl.Int32(), "bigint": LONG, "long": LONG, "double": DOUBLE, "string": TEXT,
    "date": DATE,
}  # fmt: skip
"""What can stand in a cast."""


def cast(term: Term, dtype: pl.DataType, *, utc: bool = False, exact: bool = False) -> Term:
    """Convert as ``CAST`` does; unsure where a number does not fit."""
    source, term = term.dtype, replace(term, written=False)
    if source in (dtype, NULL):
        return widen(term, dtype)
    if isinstance(dtype, pl.Decimal):
        return to_decimal(term, dtype, exact=exact)
    if dtype == DOUBLE:
        need(is_number(source))
        return widen(term, DOUBLE)
    if is_decimal(source) and dtype in (TEXT, *INTEGERS):
        return to_text(term) if dtype == TEXT else to_integer(term, dtype)
    if dtype == TEXT:
        need(source in INTEGERS or source == BOOLEAN)
        return Term(term.value.cast(TEXT), TEXT, term.unsure)
    if dtype == DATE:
        return _day(term) if source == TEXT else day(term, utc=utc)
    need(dtype in INTEGERS)
    if source == BOOLEAN:
        return Term(term.value.cast(dtype), dtype, term.unsure, (0, 1))
    if source == DOUBLE:
        return _whole(term.value, dtype, term.unsure)
    need(source in INTEGERS)
    low, high = BOUNDS[dtype]
    if low <= term.low and term.high <= high:
        return widen(term, dtype)
    clipped = term.clip(low, high)
    return Term(term.value.cast(dtype, strict=False), dtype, clipped.unsure, clipped.bounds)


def call(name: str, given: list[Term], *, utc: bool, exact: bool = False) -> Term:
    """Compute a function of the subset."""
    match name, given:
        case "timestamp_micros" | "timestamp_millis" | "timestamp_seconds", [number]:
            return from_epoch(name, number)
        case "pmod" | "mod", [left, right]:
            return modulo(left, right, positive=name == "pmod")
        case "abs", [number]:
            return absolute(number)
        case "floor" | "ceil" | "ceiling", [number]:
            need(number.dtype == DOUBLE)
            return _whole(number.value.floor() if name == "floor" else number.value.ceil(), LONG, number.unsure)
        case "round", [Term(dtype=pl.Float64()) as number]:
            value = number.value.round(0, mode="half_away_from_zero")
            return Term(pl.when(value == 0).then(0.0).otherwise(value), DOUBLE, number.unsure)  # 0.0, and never -0.0
        case "round", [number]:
            return rounded(number, 0)
        case "round", [number, Term(dtype=pl.Int32(), constant=int(places))]:
            return rounded(number, places, exact=exact)
        case "if", [condition, then, otherwise]:
            return choose(condition, then, otherwise)
        case ("coalesce", [_, *_]) | ("nvl" | "ifnull", [_, _]):
            return coalesce(given)
        case "nullif", [term, other]:
            need(is_ordered(term.dtype))
            equal = compare("=", term, other)
            return Term(pl.when(equal.value).then(None).otherwise(term.value), term.dtype, equal.unsure, term.bounds)
        case "isnull" | "isnotnull", [term]:
            found = is_state(term, "null")
            return found if name == "isnull" else negation(found)
        case "concat", [_, *_]:
            return concat(given)
        case "greatest" | "least", [_, _, *_]:
            return _extreme(name, given)
        case "element_at", [array, index]:
            return element(array, index, first=1)
        case "get", [array, index]:
            return element(array, index, first=0, null=True)
    about_time = any(term.dtype in (TIMESTAMP, DATE) for term in given)
    return of_time(name, given, utc=utc) if about_time else of_text(name, given, exact=exact)


def operate(symbol: str, left: Term, right: Term, *, utc: bool, exact: bool = False) -> Term:
    """Add, subtract or multiply; what is added to a time is a span."""
    if INTERVAL in (left.dtype, right.dtype):
        return shift(symbol, left, right, utc=utc, exact=exact)
    if DATE in (left.dtype, right.dtype):
        if symbol == "+" and right.dtype == DATE:
            left, right = right, left
        need(right.dtype != LONG)
        return add_days(symbol, left, right)
    kinds = (left.dtype, right.dtype)
    if DOUBLE not in kinds and any(map(is_decimal, kinds)):
        return of_decimals(symbol, left, right)
    return arithmetic(symbol, left, right, exact=exact)


def concat(terms: list[Term]) -> Term:
    """Join texts, and whole numbers and booleans as text; null if one is null."""
    terms = [cast(term, TEXT) for term in terms]
    return Term(pl.concat_str([term.value for term in terms]), TEXT, any_of(*(term.unsure for term in terms)))


def compare(symbol: str, left: Term, right: Term) -> Term:
    """Compare two values; text beside a day is one."""
    if DATE in (left.dtype, right.dtype):
        left, right = (_day(side) if side.dtype == TEXT else side for side in (left, right))
    return compare_alike(symbol, left, right)


def _extreme(name: str, given: list[Term]) -> Term:
    """The greatest or the least of some values that are not null."""
    first, *others = alike(*given)
    need(first.dtype != BOOLEAN)
    unsure = any_of(*(term.unsure for term in (first, *others)))
    if first.dtype != DOUBLE:
        choose_of = pl.max_horizontal if name == "greatest" else pl.min_horizontal
        return Term(choose_of(first.value, *(term.value for term in others)), first.dtype, unsure)
    need(len(others) == 1)
    one, other = first.value, others[0].value
    better = (
        other > one if name == "greatest" else other < one
    )  # NaN is the greatest of all, and of two zeros the first counts
    return Term(pl.when(one.is_null() | better).then(other).otherwise(one), DOUBLE, unsure)


def _whole(value: pl.Expr, dtype: pl.DataType, unsure: pl.Expr | None) -> Term:
    """Cut off the fraction of a double; unsure where it is NaN or does not fit."""
    low, high = BOUNDS[dtype]
    fits = (value >= float(low)) & (value < float(high + 1))
    return Term(value.cast(dtype, strict=False), dtype, any_of(unsure, ~fits))


def _day(term: Term) -> Term:
    if not isinstance(term.constant, str) or not re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", term.constant):
        raise Refused
    try:
        return literal(date.fromisoformat(term.constant), DATE)
    except ValueError as error:
        raise Refused from error
