"""The functions of Spark SQL that Polars computes the same way, and the casts.

Every name and every number of arguments in :func:`call` is one that Spark has; the answer is Spark's, or the row is
unsure, or the call is refused. ``utc`` says that the session's time zone is UTC.
"""

from __future__ import annotations

import re
from datetime import date

import polars as pl

from millstream.scalar.term import (
    Term,
    absolute,
    any_of,
    arithmetic,
    choose,
    coalesce,
    compare,
    is_state,
    literal,
    modulo,
    negation,
    widen,
)
from millstream.scalar.text import element, of_text
from millstream.scalar.time import INTERVAL, day, from_epoch, of_time, shift
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


def cast(term: Term, dtype: pl.DataType, *, utc: bool = False) -> Term:
    """Convert as ``CAST`` does; unsure where a number does not fit."""
    source = term.dtype
    if source in (dtype, NULL):
        return widen(term, dtype)
    if dtype == DOUBLE:
        need(is_number(source))
        return widen(term, DOUBLE)
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
        case "round", [number]:
            need(number.dtype == DOUBLE)
            value = number.value.round(0, mode="half_away_from_zero")
            return Term(pl.when(value == 0).then(0.0).otherwise(value), DOUBLE, number.unsure)  # 0.0, and never -0.0
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
    return arithmetic(symbol, left, right, exact=exact)


def concat(terms: list[Term]) -> Term:
    """Join texts, and whole numbers and booleans as text; null if one is null."""
    terms = [cast(term, TEXT) for term in terms]
    return Term(pl.concat_str([term.value for term in terms]), TEXT, any_of(*(term.unsure for term in terms)))


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
