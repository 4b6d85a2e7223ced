"""Decimals in Polars without Spark: exact or unsure (that Spark agrees is proved in tests/spark)."""

from __future__ import annotations

import math
import operator
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.scalar.compile import compile_scalar

_WIDE = Context(prec=200)


def compute(sql: str, **columns: tuple[str, list[Any]]) -> list[Any]:
    """The value in every row, and ``...`` where only Spark knows; columns are decimals "precision,scale" or "double"."""
    frame = pl.DataFrame(
        {
            name: pl.Series(values, dtype=pl.Float64 if kind == "double" else pl.Decimal(*map(int, kind.split(","))))
            for name, (kind, values) in columns.items()
        }
    )
    scalar = compile_scalar(sql, frame.schema)
    assert scalar is not None, f"{sql} is not in the subset"
    unsure = pl.lit(False) if scalar.unsure is None else scalar.unsure.fill_null(False)
    found = frame.with_columns(value=scalar.value, unsure=unsure)
    assert found["value"].dtype == scalar.dtype
    return [... if hidden else value for value, hidden in found.select("value", "unsure").iter_rows()]


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.one_of(st.integers(-most, most), st.sampled_from([most, -most, 0, 1, -1])).map(
        lambda units: Decimal(units).scaleb(-scale, _WIDE)
    )


ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul}
SIZES = st.sampled_from(
    [(10, 2, 15, 2), (38, 4, 15, 2), (38, 2, 38, 2), (32, 4, 16, 2), (38, 0, 38, 6), (5, 5, 38, 1), (20, 6, 30, 0)]
)


@given(st.data(), SIZES, st.sampled_from(sorted(ARITHMETIC)))
def test_sums_and_products_are_exact_or_unsure(
    data: st.DataObject, size: tuple[int, int, int, int], symbol: str
) -> None:
    left, right = data.draw(decimals(*size[:2])), data.draw(decimals(*size[2:]))
    (found,) = compute(f"a {symbol} b", a=(f"{size[0]},{size[1]}", [left]), b=(f"{size[2]},{size[3]}", [right]))
    with localcontext(prec=200):
        exact = ARITHMETIC[symbol](left, right)
        scale = size[1] + size[3] if symbol == "*" else max(size[1], size[3])
        fits = abs(exact) < Decimal(10) ** (38 - scale)
        assert found == exact or (
            found is ... and (not fits or abs(exact) > Decimal(10) ** (36 - scale) or abs(left) > 10**30)
        )


@given(st.data(), st.sampled_from([(10, 2), (38, 4), (38, 10), (15, 2)]), st.integers(0, 6))
def test_rounding_is_half_up_away_from_zero(data: st.DataObject, size: tuple[int, int], places: int) -> None:
    value, scale = data.draw(decimals(*size)), min(places, size[1])
    if size[0] - size[1] + 1 + scale > 38:
        return
    (found,) = compute(f"round(a, {places})", a=(f"{size[0]},{size[1]}", [value]))
    with localcontext(prec=200):
        assert found in (..., value.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP))
        assert found is not ... or abs(value) > Decimal(10) ** (size[0] - size[1] - 1)


@given(st.one_of(st.floats(), st.integers(-(10**9), 10**9).map(lambda each: each / 1000)), st.integers(0, 6))
@example(1.005, 2)
@example(2.675, 2)
@example(0.285, 2)
@example(-0.0, 1)
@example(-0.001, 2)
def test_a_double_is_rounded_by_the_digits_that_are_shown_of_it(x: float, places: int) -> None:
    (found,) = compute(f"round(x, {places})", x=("double", [x]))
    if places and abs(x) * 10**places < 1e13:
        with localcontext(prec=400):
            shown = Decimal(repr(x)).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
        assert repr(found) == repr(float(shown) + 0.0)
        (cast,) = compute(f"cast(x AS decimal(38, {places}))", x=("double", [x]))
        assert cast == shown
    else:
        assert found is ... or places == 0 or math.isnan(x) or found == x


def test_what_does_not_fit_is_left_to_spark() -> None:
    price = ("10,2", [Decimal("99999999.99"), Decimal("1.25"), None])
    assert compute("cast(p AS decimal(3, 1))", p=price) == [..., Decimal("1.3"), None]
    assert compute("cast(p AS tinyint)", p=price) == [..., 1, None]
    assert compute("cast(x AS decimal(3, 1))", x=("double", [99.94, 99.95, math.nan, None])) == [
        Decimal("99.9"),
        ...,
        ...,
        None,
    ]
    nines = ("38,0", [Decimal("9" * 38), Decimal(2)])
    assert compute("n * 2", n=nines) == [..., 4]
    assert compute("n + n", n=nines) == [..., 4]
    assert compute("n * 1.5", n=nines) == [..., 3]
    assert compute("cast(n AS double)", n=nines) == [1e38, 2.0]
    assert compute("n * 0", n=nines) == [..., 0], "what is computed on the way would not fit"


def test_decimals_meet_other_numbers() -> None:
    price = ("10,2", [Decimal("1.25"), Decimal("-0.05"), None])
    x = ("double", [1.25, 0.1, 2.0])
    assert compute("p >= x", p=price, x=x) == [True, False, None]
    assert compute("p * x", p=price, x=x) == [1.25 * 1.25, -0.05 * 0.1, None]
    assert compute("p IN (1.25, 7)", p=price) == [True, False, None]
    assert compute("CASE WHEN p > 0 THEN p * (1 - p) ELSE 0 END", p=price) == [Decimal("-0.3125"), 0, 0]
    assert compute("p BETWEEN 0.06 - 0.11 AND 0.06 + 0.01", p=price) == [False, True, None]
    assert compute("concat('at ', p)", p=price) == ["at 1.25", "at -0.05", None]
    assert compute("-p + abs(p)", p=price) == [Decimal("0.00"), Decimal("0.10"), None]


@pytest.mark.parametrize("sql", ["p + CAST(1 AS bigint)", "1 - p", "p * 100", "greatest(p, 2)", "coalesce(p, 0)"])
def test_one_row_is_computed_as_many(sql: str) -> None:
    values = [Decimal("1.25"), Decimal("-0.05"), None, Decimal(0)]
    assert compute(sql, p=("10,2", values)) == [compute(sql, p=("10,2", [value]))[0] for value in values]


@given(st.floats(1e9, 1e16), st.integers(0, 6))
@example(999999999999.995, 2)
@example(9007199254740991.0, 1)
def test_where_it_must_be_exact_a_large_double_is_rounded_too(x: float, places: int) -> None:
    frame = pl.DataFrame({"x": [x, -x, None]})
    with localcontext(prec=400):
        shown = Decimal(repr(x)).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    for sql, wanted in ((f"cast(x AS decimal(38, {places}))", shown), (f"round(x, {places + 1})", None)):
        scalar = compile_scalar(sql, frame.schema, exact=True)
        assert scalar is not None
        found = frame.select(pl.lit(False) if scalar.unsure is None else scalar.unsure, value=scalar.value).rows()
        assert not any(unsure for unsure, _ in found)
        if wanted is not None:
            assert [value for _, value in found] == [wanted, -wanted, None]


@given(st.integers(-(10**38) + 1, 10**38 - 1), st.integers(0, 22))
def test_a_decimal_becomes_the_nearest_double(units: int, scale: int) -> None:
    value = Decimal(units).scaleb(-scale, _WIDE)
    assert compute("cast(a AS double)", a=(f"38,{scale}", [value, None, Decimal(1)])) == [float(value), None, 1.0]
