"""Times and dates in text, of exactly the forms that Spark surely reads alike; null for all others.

Texts of a column mostly have one form, so they are read as a grid of characters, a column of digits at a time. Where they differ
in form, Polars reads each by itself. Both give the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

_Any = TypeVar("_Any", bound=np.generic)

STAMP = pl.Datetime("us", "UTC")

_DAY = "(19|20)[0-9]{2}-[0-9]{2}-[0-9]{2}"
_DATE = f"^{_DAY}$"
_TIME = rf"^{_DAY}[T ][0-9]{{2}}:[0-5][0-9]:[0-5][0-9](\.[0-9]{{1,6}})?(Z|\+00:00)"
_FIRST, _LAST = 1900, 2099
_NO_DAY = np.int64(-(2**62))
_SMALLEST = 64  # texts; below, Polars is as quick


def read_stamps(texts: Sequence[str | None], *, utc: bool) -> pl.Series:
    """The times; ``utc`` says that one without a zone is in UTC."""
    form = f"{_TIME}?$" if utc else f"{_TIME}$"
    if len(texts) < _SMALLEST:
        return _each(texts, form)
    there = None
    some: Sequence[str | None] = texts
    if None in texts:
        there = np.fromiter((text is not None for text in texts), bool, len(texts))
        some = [text for text in texts if text is not None]
    read = _grid(some, form) if some else None  # type: ignore[arg-type]
    if read is None:
        return _each(texts, form)
    micros, known = read
    if there is not None:
        micros, known = _spread(micros, there), _spread(known, there)
    series = pl.Series(micros)
    return (series if known.all() else series.set(~pl.Series(known), None)).cast(STAMP)


def read_dates(texts: Sequence[str | None]) -> pl.Series:
    """The dates."""
    series = pl.Series(texts, dtype=pl.String)
    return _exact(series, _DATE).str.to_date("%Y-%m-%d", strict=False)


def _each(texts: Sequence[str | None], form: str) -> pl.Series:
    exact = _exact(pl.Series(texts, dtype=pl.String), form)
    bare = exact.str.strip_suffix("Z").str.strip_suffix("+00:00").str.replace(" ", "T", literal=True)
    return bare.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", time_unit="us", strict=False).dt.replace_time_zone("UTC")


def _exact(text: pl.Series, form: str) -> pl.Series:
    return pl.select(pl.when(text.str.contains(form)).then(text)).to_series()


def _grid(texts: Sequence[str], form: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]] | None:
    """Microseconds, and which of them are right, if all texts have the form of the first; a day need not be one of the calendar."""
    first = texts[0]
    if re.fullmatch(form, first) is None:
        return None
    width = len(first) + 1
    data = "\n".join((*texts, "")).encode()
    if len(data) != len(texts) * width:
        return None
    # There are as many newlines as texts. If they all end a row of the grid, the rows are the texts.
    grid = np.frombuffer(data, np.uint8).reshape(len(texts), width)
    wanted = grid[0]
    is_digit = (wanted >= ord("0")) & (wanted <= ord("9"))
    zone = first.find("+")
    is_digit[zone if zone > 0 else width :] = False
    if (grid[:, ~is_digit] != wanted[~is_digit]).any():
        return None
    digits = np.ascontiguousarray(grid[:, is_digit].T) - np.uint8(ord("0"))  # below "0" it wraps to what is no digit
    if (digits > 9).any():
        return None
    year, month, day, hour, minute, second, fraction = (
        _number(digits[low:high]) for low, high in ((0, 4), (4, 6), (6, 8), (8, 10), (10, 12), (12, 14), (14, None))
    )
    known = (year >= _FIRST) & (year <= _LAST) & (month >= 1) & (month <= 12) & (day <= 31)
    known &= (hour < 24) & (minute < 60) & (second < 60)
    days = _calendar()[np.where(known, ((year - _FIRST) * 12 + month - 1) * 32 + day, 0)]
    known &= days != _NO_DAY
    seconds = days * 86_400 + (hour * 60 + minute) * 60 + second
    micros = seconds * 1_000_000 + fraction * 10 ** (6 - (len(digits) - 14))
    return micros, known


def _number(digits: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Rows of digits as a number for each column."""
    made = np.zeros(digits.shape[1], np.int32)
    for row in digits:
        made *= 10
        made += row
    return made.astype(np.int64)


@cache
def _calendar() -> npt.NDArray[np.int64]:
    """Days since 1970, at (months since 1900) · 32 + day of the month."""
    months = (
        np.arange(f"{_FIRST}-01", f"{_LAST + 1}-02", dtype="datetime64[M]").astype("datetime64[D]").astype(np.int64)
    )
    table = np.full((len(months) - 1, 32), _NO_DAY)
    day = np.arange(1, 32)
    inside = day <= np.diff(months)[:, None]
    table[:, 1:] = np.where(inside, months[:-1, None] + day - 1, _NO_DAY)
    return table.ravel()


def _spread(values: npt.NDArray[_Any], there: npt.NDArray[np.bool_]) -> npt.NDArray[_Any]:
    made = np.zeros(len(there), values.dtype)
    made[there] = values
    return made
