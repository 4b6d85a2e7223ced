"""The functions of Spark SQL that Polars computes the same way, and the casts.

Every name and every number of arguments in :func:`call` is one that Spark has; the answer is Spark's, or the row is
unsure, or the call is refused. Functions that depend on the session's time zone are not here.
"""

from __future__ import annotations

import re
from datetime import date

import polars as pl

from millstream.kernel.term import (
    BOOLEAN,
    BOUNDS,
    DATE,
    DECIMAL,
    DOUBLE,
    INTEGERS,
    LONG,
    NULL,
    ORDERED,
    TEXT,
    TIMESTAMP,
    Refused,
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
    need,
    negation,
    widen,
)

TYPES: dict[str, pl.DataType] = {
    "boolean": BOOLEAN, "tinyint": pl.Int8(), "byte": pl.Int8(), "smallint": pl.Int16(), "short": pl.Int16(),
    "int": pl.Int32(), "integer": pl.Int32(), "bigint": LONG, "long": LONG, "double": DOUBLE, "string": TEXT,
    "date": DATE,
}  # fmt: skip
"""What can stand in a cast."""

_UNITS = {"micros": 1, "millis": 1_000, "seconds": 1_000_000}


def cast(term: Term, dtype: pl.DataType) -> Term:
    """Convert as ``CAST`` does; unsure where a number does not fit."""
    source = term.dtype
    if source in (dtype, NULL):
        return widen(term, dtype)
    if dtype == DOUBLE:
        need(source in INTEGERS or source == DECIMAL)
        return widen(term, DOUBLE)
    if dtype == TEXT:
        need(source in INTEGERS or source == BOOLEAN)
        return Term(term.value.cast(TEXT), TEXT, term.unsure)
    if dtype == DATE:
        return _day(term)
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


def call(name: str, given: list[Term]) -> Term:
    """Compute a function of the subset."""
    match name, given:
        case "unix_micros" | "unix_millis" | "unix_seconds", [time]:
            need(time.dtype == TIMESTAMP)
            unit = _UNITS[name.removeprefix("unix_")]
            micros, (low, high) = time.value.to_physical(), BOUNDS[LONG]
            return Term(micros // unit if unit > 1 else micros, LONG, time.unsure, (low // unit, high // unit))
        case "timestamp_micros" | "timestamp_millis" | "timestamp_seconds", [number]:
            need(number.dtype in INTEGERS)
            unit = _UNITS[name.removeprefix("timestamp_")]
            number = widen(number, LONG)
            number = arithmetic("*", number, literal(unit, LONG)) if unit > 1 else number
            return Term(number.value.cast(TIMESTAMP), TIMESTAMP, number.unsure)
        case "pmod" | "mod", [left, right]:
            return modulo(left, right, positive=name == "pmod")
        case "abs", [number]:
            return absolute(number)
        case "floor" | "ceil" | "ceiling", [number]:
            need(number.dtype == DOUBLE)
            return _whole(number.value.floor() if name == "floor" else number.value.ceil(), LONG, number.unsure)
        case "if", [condition, then, otherwise]:
            return choose(condition, then, otherwise)
        case ("coalesce", [_, *_]) | ("nvl" | "ifnull", [_, _]):
            return coalesce(given)
        case "nullif", [term, other]:
            need(term.dtype in ORDERED)
            equal = compare("=", term, other)
            return Term(pl.when(equal.value).then(None).otherwise(term.value), term.dtype, equal.unsure, term.bounds)
        case "isnull" | "isnotnull", [term]:
            found = is_state(term, "null")
            return found if name == "isnull" else negation(found)
        case "concat", [_, *_]:
            return concat(given)
    return _of_text(name, given)


def _of_text(name: str, given: list[Term]) -> Term:
    need(bool(given), given[0].dtype == TEXT)
    text, *rest = given
    unsure, methods = text.unsure, text.value.str
    match name, rest:
        case "length" | "len" | "char_length" | "character_length", []:
            return Term(methods.len_chars().cast(pl.Int32), pl.Int32(), unsure, (0, BOUNDS[pl.Int32()][1]))
        case "lower" | "lcase", []:
            return Term(methods.to_lowercase(), TEXT, any_of(unsure, _beyond_ascii(text)))
        case "upper" | "ucase", []:
            return Term(methods.to_uppercase(), TEXT, any_of(unsure, _beyond_ascii(text)))
        case "trim", []:
            return Term(methods.strip_chars(" "), TEXT, unsure)
        case "ltrim", []:
            return Term(methods.strip_chars_start(" "), TEXT, unsure)
        case "rtrim", []:
            return Term(methods.strip_chars_end(" "), TEXT, unsure)
        case "substring" | "substr", [Term(dtype=pl.Int32(), constant=int(first))]:
            return Term(methods.slice(first - (first > 0)), TEXT, unsure)
        case "substring" | "substr", [
            Term(dtype=pl.Int32(), constant=int(first)),
            Term(dtype=pl.Int32(), constant=int(count)),
        ]:
            return Term(methods.slice(first - (first > 0), max(0, count)), TEXT, unsure)
        case "left", [Term(dtype=pl.Int32(), constant=int(count))]:
            return Term(methods.head(max(0, count)), TEXT, unsure)
        case "right", [Term(dtype=pl.Int32(), constant=int(count))]:
            return Term(methods.tail(max(0, count)), TEXT, unsure)
        case "startswith" | "endswith" | "contains", [Term(dtype=pl.String()) as part]:
            need(text.has_columns or not part.has_columns)  # one text in many: Polars may give one row
            if name == "contains":
                found = methods.contains(part.value, literal=True)
            else:
                found = methods.starts_with(part.value) if name == "startswith" else methods.ends_with(part.value)
            return Term(found, BOOLEAN, any_of(unsure, part.unsure))
    raise Refused


def concat(terms: list[Term]) -> Term:
    """Join texts, and whole numbers and booleans as text; null if one is null."""
    terms = [cast(term, TEXT) for term in terms]
    return Term(pl.concat_str([term.value for term in terms]), TEXT, any_of(*(term.unsure for term in terms)))


def like(term: Term, pattern: Term) -> Term:
    """Match a text with a literal pattern; there is no escape in it, because no backslash comes here."""
    need(term.dtype == TEXT)
    if not isinstance(pattern.constant, str) or len(pattern.constant) > 200:  # there is a limit to what Polars compiles
        raise Refused
    marks = {"%": ".*", "_": "."}
    regex = "".join(marks.get(each) or pl.escape_regex(each) for each in re.split("([%_])", pattern.constant))
    return Term(term.value.str.contains(rf"(?s)\A{regex}\z"), BOOLEAN, term.unsure)


def _beyond_ascii(text: Term) -> pl.Expr:
    return text.value.str.len_bytes() != text.value.str.len_chars()


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
