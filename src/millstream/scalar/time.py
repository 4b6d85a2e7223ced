"""Functions of times and days, as Spark has them.

What looks at days or hours depends on the session's time zone and is refused unless that is UTC. A row is unsure where a
calendar of Spark's and Polars' need not agree: times before the year 1 or after 9999 that are truncated, and texts before 1583.
"""

from __future__ import annotations

from datetime import date, datetime
from itertools import groupby

import polars as pl

from millstream.scalar.term import Term, any_of, arithmetic, literal, widen
from millstream.scalar.types import BOUNDS, DATE, INTEGERS, LONG, TEXT, TIMESTAMP, Refused, Span, need

INTERVAL = pl.Duration("us")
"""The type of a span of time, of which there are literals only."""

_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
STEPS = {
    "microsecond": 1, "millisecond": 1_000, "second": _SECOND, "minute": 60 * _SECOND, "hour": 3_600 * _SECOND,
    "day": _DAY, "week": 7 * _DAY,
}  # fmt: skip
"""How many microseconds the units have that are always as long."""

_UNITS = {"micros": 1, "millis": 1_000, "seconds": _SECOND}
_CYCLES = {"hour": _DAY, "minute": STEPS["hour"], "second": STEPS["minute"]}
_SAME = {"dd": "day", "mon": "month", "mm": "month", "yyyy": "year", "yy": "year"}
_CALENDAR = {"month": "1mo", "quarter": "1q", "year": "1y"}
_CYCLE = 146_097
"""The days of 400 years."""
_YEARS = (-5_877_641, 5_881_580)
"""Those of the days that fit an int."""
_MONDAY = 3 * _DAY  # 1970 began that long after one
_PARTS = frozenset(("year", "quarter", "month", "weekofyear", "day", "dayofmonth", "dayofyear", "dayofweek", "weekday"))
_EXTRACTED = {
    field: name
    for name, fields in {
        "year": "year y years yr yrs", "quarter": "quarter qtr", "month": "month mon mons months", "weekofyear": "week w weeks",
        "day": "day d days", "dayofweek": "dayofweek dow", "dayofyear": "doy", "hour": "hour h hours hr hrs",
        "minute": "minute m min mins minutes",
    }.items()
    for field in fields.split()
}  # fmt: skip
_FIRST = date(1970, 1, 1).toordinal()
# What a run of one letter means in a pattern.
_FIELDS = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S", "SSS": "%3f"}
_BETWEEN = frozenset(" -/:.,_")


def from_epoch(name: str, number: Term) -> Term:
    """Compute ``timestamp_micros`` and the like."""
    need(number.dtype in INTEGERS)
    unit, number = _UNITS[name.removeprefix("timestamp_")], widen(number, LONG)
    return _time(arithmetic("*", number, literal(unit, LONG)) if unit > 1 else number)


def interval(span: Span) -> Term:
    """Give a literal span of time."""
    return Term(pl.lit(span.micros).cast(INTERVAL), INTERVAL, constant=span)


def shift(symbol: str, left: Term, right: Term, *, utc: bool, exact: bool = False) -> Term:
    """Add a span to a time or a day, or take it away; unsure where that overflows."""
    if left.dtype == INTERVAL and symbol == "+":
        left, right = right, left
    by = right.constant
    need(right.dtype == INTERVAL, symbol in ("+", "-"))
    if not isinstance(by, Span):
        raise Refused
    sign = -1 if symbol == "-" else 1
    if by.months:
        return add_months(left, sign * by.months, utc=utc)
    if left.dtype == DATE:
        need(by.of_days)
        return add_days("+", left, literal(sign * by.micros // _DAY, LONG))
    need(utc or abs(by.micros) < _DAY)  # in a zone, days are not all of one length
    return _time(arithmetic(symbol, _micros(left), literal(by.micros, LONG), exact=exact))


def add_days(symbol: str, term: Term, number: Term) -> Term:
    """Add days to a day, or take them away; unsure where there is none."""
    need(term.dtype == DATE, number.dtype in INTEGERS, symbol in ("+", "-"))
    if isinstance(term.constant, date) and isinstance(number.constant, int):
        return _day_of(term.constant.toordinal() + (number.constant if symbol == "+" else -number.constant))
    days = arithmetic(symbol, _days(term), widen(number, LONG)).clip(*BOUNDS[pl.Int32()])
    return Term(days.value.cast(pl.Int32, strict=False).cast(DATE), DATE, days.unsure)


def add_months(term: Term, months: int, *, utc: bool) -> Term:
    """Add months to a time or a day; one that its month does not have becomes the last of it."""
    need(term.dtype == DATE or (term.dtype == TIMESTAMP and utc), abs(months) <= 12_000)
    if isinstance(term.constant, date):
        return _day_of(pl.select(pl.lit(term.constant).dt.offset_by(f"{months}mo").to_physical()).item() + _FIRST)
    if term.dtype == DATE:
        value, unsure = _known(term, date.min, date.max)
    else:
        value, unsure = _known(term, datetime.min, datetime.max)
    moved = value.dt.offset_by(f"{months}mo")
    return Term(moved.dt.replace_time_zone("UTC") if term.dtype == TIMESTAMP else moved, term.dtype, unsure)


def _days(term: Term) -> Term:
    return Term(term.value.to_physical().cast(LONG), LONG, term.unsure, BOUNDS[pl.Int32()])


def _day_of(ordinal: int) -> Term:
    need(1 <= ordinal <= date.max.toordinal())
    return literal(date.fromordinal(ordinal), DATE)


def day(term: Term, *, utc: bool) -> Term:
    """Give the day of a time."""
    if term.dtype == DATE:
        return term
    need(term.dtype == TIMESTAMP, utc)
    return Term((term.value.to_physical() // _DAY).cast(pl.Int32).cast(DATE), DATE, term.unsure)


def of_time(name: str, given: list[Term], *, utc: bool) -> Term:
    """Compute a function that has a time or a day among its arguments."""
    match name, given:
        case "unix_micros" | "unix_millis" | "unix_seconds", [Term(dtype=pl.Datetime()) as time]:
            unit, micros, (low, high) = _UNITS[name.removeprefix("unix_")], _micros(time), BOUNDS[LONG]
            value = micros.value // unit if unit > 1 else micros.value
            return Term(value, LONG, time.unsure, (low // unit, high // unit))
        case "hour" | "minute" | "second", [Term(dtype=pl.Datetime()) as time]:
            need(utc)
            value = _micros(time).value % _CYCLES[name] // STEPS[name]  # never negative in Polars
            return Term(value.cast(pl.Int32), pl.Int32(), time.unsure, (0, 59))
        case "to_date" | "date", [term]:
            return day(term, utc=utc)
        case _, [term] if name in _PARTS:
            return _part(name, day(term, utc=utc))
        case "date_part" | "datepart", [Term(dtype=pl.String(), constant=str(field)), term]:
            return of_time(function_of(field), [term], utc=utc)
        case "date_add" | "date_sub", [term, number]:
            need(number.dtype != LONG)
            return add_days("+" if name == "date_add" else "-", day(term, utc=utc), number)
        case "datediff" | "date_diff", [one, other]:
            days = arithmetic("-", _days(day(one, utc=utc)), _days(day(other, utc=utc))).clip(*BOUNDS[pl.Int32()])
            return Term(days.value.cast(pl.Int32, strict=False), pl.Int32(), days.unsure, days.bounds)
        case "add_months", [term, Term(dtype=pl.Int32(), constant=int(months))]:
            return add_months(day(term, utc=utc), months, utc=utc)
        case "date_trunc", [Term(dtype=pl.String(), constant=str(unit)), Term(dtype=pl.Datetime()) as time]:
            return _truncated(_SAME.get(unit.lower(), unit.lower()), time, utc=utc)
        case "date_format", [Term(dtype=pl.Datetime()) as time, Term(dtype=pl.String(), constant=str(pattern))]:
            need(utc)
            return _formatted(time, pattern)
    raise Refused


def function_of(field: str) -> str:
    """The function that ``extract`` is for a field."""
    need(field.lower() in _EXTRACTED)
    return _EXTRACTED[field.lower()]


def _part(name: str, term: Term) -> Term:
    """A part of any date: the calendar repeats itself every 400 years, which are whole weeks, and Polars knows those after 1970."""
    days = term.value.to_physical()
    known = (days % _CYCLE).cast(DATE).dt
    match name:
        case "year":
            value = known.year() + days // _CYCLE * 400
        case "month":
            value = known.month()
        case "quarter":
            value = known.quarter()
        case "weekofyear":
            value = known.week()
        case "dayofyear":
            value = known.ordinal_day()
        case "dayofweek":  # from 1, which is Sunday
            value = known.weekday() % 7 + 1
        case "weekday":  # from 0, which is Monday
            value = known.weekday() - 1
        case _:
            value = known.day()
    return Term(value.cast(pl.Int32), pl.Int32(), term.unsure, _YEARS if name == "year" else (0, 366))


def _truncated(unit: str, time: Term, *, utc: bool) -> Term:
    need(unit in STEPS or unit in _CALENDAR, utc or STEPS.get(unit, _DAY) <= _SECOND)
    if unit in _CALENDAR:
        need(time.dtype == TIMESTAMP)
        value, unsure = _known(time, datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999))
        return Term(value.dt.truncate(_CALENDAR[unit]).dt.replace_time_zone("UTC"), TIMESTAMP, unsure)
    step, (low, high) = STEPS[unit], BOUNDS[LONG]
    micros = _micros(time).clip(low + step, high - step)
    past = micros.value + _MONDAY if unit == "week" else micros.value
    return Term((micros.value - past % step).cast(TIMESTAMP), TIMESTAMP, micros.unsure)


def _formatted(time: Term, pattern: str) -> Term:
    need(time.dtype == TIMESTAMP)
    parts = ["".join(run) for _, run in groupby(pattern)]
    need(bool(parts), len(pattern) < 100, all(part in _FIELDS or set(part) <= _BETWEEN for part in parts))
    # Before 1583 a setting of Spark's decides between two calendars; a year of five digits has a sign.
    value, unsure = _known(time, datetime(1583, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999))
    return Term(value.dt.strftime("".join(_FIELDS.get(part, part) for part in parts)), TEXT, unsure)


def _known(term: Term, first: date, last: date) -> tuple[pl.Expr, pl.Expr | None]:
    """The value, without a zone, where it is between two; where it is not, null and unsure."""
    value = term.value.dt.replace_time_zone(None) if term.dtype == TIMESTAMP else term.value
    known = value.is_between(pl.lit(first), pl.lit(last))
    return pl.when(known).then(value), any_of(term.unsure, ~known)


def _micros(time: Term) -> Term:
    need(time.dtype == TIMESTAMP)
    return Term(time.value.to_physical(), LONG, time.unsure)


def _time(micros: Term) -> Term:
    return Term(micros.value.cast(TIMESTAMP), TIMESTAMP, micros.unsure)
