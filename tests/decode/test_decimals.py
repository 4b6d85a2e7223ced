"""Decimals in JSON: rounded half up like Spark's, or left to it (that Spark agrees is proved in tests/spark)."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.decode.decimals import json_type, read_decimals


def read(text: str, precision: int, scale: int) -> Decimal | Any | None:
    """The decimal in a JSON document; ``...`` where it is left to Spark."""
    dtype = pl.Decimal(precision, scale)
    try:
        value = msgspec.json.decode(text.encode(), type=json_type(dtype) | None)
    except msgspec.ValidationError:
        return ...
    made = read_decimals([value], dtype)
    assert made.dtype == dtype
    return ... if made[0] is None and value is not None else made[0]


def exactly(text: str, precision: int, scale: int) -> Decimal | None:
    """What Spark makes of it; None where it does not fit."""
    with localcontext(prec=500):
        made = Decimal(text).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
        return made if abs(made) < Decimal(10) ** (precision - scale) else None


TYPES = st.sampled_from([(10, 2), (15, 2), (15, 15), (5, 5), (9, 0), (18, 6), (38, 0), (38, 6), (1, 0), (16, 1)])
DIGITS = st.text("0123456789", min_size=1, max_size=20)
PLAIN = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "-"]),
    st.integers(0, 10**18).map(str) | st.integers(0, 999).map(str),
    st.just("")
    | DIGITS.map(".{}".format)
    | st.sampled_from([".5", ".05", ".005", ".0049999999999999999999", ".0000005"]),
)


@given(TYPES, PLAIN, st.sampled_from(["", "", "e1", "E-2", "e+3"]), st.booleans())
@example((10, 2), "1.005", "", False)
@example((10, 2), "1.00499999999999999999", "", False)
@example((15, 2), "9999999999999.99", "", False)
@example((15, 2), "9999999999999.994", "", False)
@example((16, 1), "999999999999999.94", "", False)
@example((38, 6), "99999999999999999999999999999999.999999", "", True)
def test_a_number_is_rounded_half_up_or_left(size: tuple[int, int], number: str, exponent: str, quoted: bool) -> None:
    text = f'"{number}"' if quoted else number + exponent
    found = read(text, *size)
    assert found in (..., exactly(text.strip('"'), *size))


@given(TYPES, st.data())
def test_what_the_column_holds_is_taken(size: tuple[int, int], data: st.DataObject) -> None:
    precision, scale = size
    units = data.draw(st.integers(0, min(10**precision, 10**15) - 1))
    value = Decimal(units).scaleb(-scale)
    for each in (value, -value):
        assert read(f"{each:f}", *size) == each
        assert read(f'"{each:f}"', *size) == each
    with localcontext(prec=60):
        assert read(f"{value + Decimal(3).scaleb(-scale - 1):f}", *size) in (value, ...)
    assert read(str(float(value)), *size) == value


@pytest.mark.parametrize(
    "text",
    [
        "1.005",
        "-0.125",
        "100000000",
        "true",
        '""',
        '".5"',
        '"1.5\\n"',
        '"1.005"',
        '"NaN"',
        '" 1"',
        "[1]",
        '"+1"',
        "1e99",
    ],
)
def test_an_odd_one_is_left(text: str) -> None:
    assert read(text, 10, 2) is ...


def test_numbers_and_texts_may_stand_together() -> None:
    found = read_decimals([1.5, "2.25", None, 1.005, "-7"], pl.Decimal(10, 2))
    assert found.to_list() == [Decimal("1.50"), Decimal("2.25"), None, None, Decimal("-7.00")]


def test_a_wide_column_with_a_long_fraction_is_left_as_a_whole() -> None:
    assert json_type(pl.Decimal(38, 18)) is None
    assert json_type(pl.Decimal(16, 7)) is None
    assert json_type(pl.Decimal(15, 7)) is not None
