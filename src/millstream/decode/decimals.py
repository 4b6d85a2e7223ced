"""Decimals in JSON, as numbers or as text in quotes: exactly what Spark makes of them, null for what only Spark can tell.

Spark reads all digits and rounds half up to the scale of the column. Here a number is read as a double, which is quick, and that
is enough: below 10¹⁵ units of the last digit no two decimals of a column are the same double, so a double that is one of them
tells which. Any other number is rounded, unless it lies so near the middle of two that its own digits decide. That, and
whatever is larger, goes to Spark. Text in quotes must fit the column without rounding, and then may have all of its digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import polars as pl

_EXACT = 10**15
_MOST = 6
"""The scale up to which a wide column is read here; with more, too few numbers are below 10¹⁵ units."""


def json_type(dtype: pl.Decimal) -> Any:
    """What msgspec reads for a column of this type and refuses the rest, also where a field comes twice; None: it is Spark's."""
    precision, scale = dtype.precision or 38, dtype.scale
    if 10**precision > _EXACT and scale > _MOST:
        return None
    limit = (min(10**precision, _EXACT) - 1) / 10**scale
    whole = f"0*[0-9]{{1,{precision - scale}}}" if precision > scale else "0+"
    fraction = rf"(\.[0-9]{{1,{scale}}})?" if scale else ""
    number = Annotated[float, msgspec.Meta(ge=-limit, le=limit)]
    return number | Annotated[str, msgspec.Meta(pattern=rf"\A-?{whole}{fraction}\Z")]


def read_decimals(values: Sequence[float | str | None], dtype: pl.Decimal) -> pl.Series:
    """The decimals; null also for what lies too near the middle of two."""
    try:
        return _rounded(pl.Series(values, dtype=pl.Float64), dtype)
    except TypeError:  # some of them are text
        texts = pl.Series([value if isinstance(value, str) else None for value in values], dtype=pl.String)
        numbers = pl.Series([value if isinstance(value, float) else None for value in values], dtype=pl.Float64)
        return texts.cast(dtype).zip_with(texts.is_not_null(), _rounded(numbers, dtype))


def _rounded(numbers: pl.Series, dtype: pl.Decimal) -> pl.Series:
    made, size, unit = numbers.cast(dtype), np.abs(numbers.to_numpy()), 10.0**dtype.scale
    units = size * unit  # NaN for null
    between = np.rint(units) / unit != size
    # The text is within half a unit in the last place of the double, and so is the product: together that is less than this.
    doubtful = between & (np.abs(units - np.floor(units) - 0.5) <= units * 2.0**-51)
    return made.set(pl.Series(doubtful), None) if doubtful.any() else made
