"""Sums of integers and decimals that never wrap, against Python's integers."""

from __future__ import annotations

import random
from decimal import Context, Decimal

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from millstream.kernel.aggregates import sum_integer

# A busy machine is not a failure.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

INT64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-100, 100)
WEIGHTS = st.integers(-3, 3) | st.integers(-sum_integer.MAX_WEIGHT + 1, sum_integer.MAX_WEIGHT - 1)
KINDS: dict[str, tuple[pl.DataType, st.SearchStrategy[int], int, int]] = {
    "int64": (pl.Int64(), INT64, -(2**63), 2**63 - 1),
    "narrow": (pl.Decimal(18, 2), st.integers(1 - 10**18, 10**18 - 1), 1 - 10**18, 10**18 - 1),
    "wide": (pl.Decimal(38, 4), st.integers(1 - 10**38, 10**38 - 1) | INT64, 1 - 10**38, 10**38 - 1),
}
EXACT = Context(prec=60)


def series(values: list[int | None], dtype: pl.DataType) -> pl.Series:
    if isinstance(dtype, pl.Decimal):
        return pl.Series([None if v is None else Decimal(v).scaleb(-dtype.scale, EXACT) for v in values], dtype=dtype)
    return pl.Series(values, dtype=dtype)


def unscaled(value: object, dtype: pl.DataType) -> int | None:
    if isinstance(value, Decimal):
        assert isinstance(dtype, pl.Decimal)
        return int(value.scaleb(dtype.scale, EXACT))
    assert value is None or isinstance(value, int)
    return value


def split(rows: list[tuple[int, int]], dtype: pl.DataType) -> pl.DataFrame:
    weights = pl.Series([weight for _, weight in rows], dtype=pl.Int64)
    return sum_integer.split(series([value for value, _ in rows], dtype), weights)


@pytest.mark.parametrize("kind", KINDS)
@unhurried
@given(data=st.data())
def test_a_sum_is_exact_or_said_not_to_fit(kind: str, data: st.DataObject) -> None:
    dtype, values, least, most = KINDS[kind]
    rows: list[tuple[int, int]] = data.draw(st.lists(st.tuples(values, WEIGHTS), max_size=10))
    if bool(rows) and data.draw(st.booleans()):
        rows += [(value, -weight) for value, weight in rows[1:]]
    sums, overflow = sum_integer.render(sum_integer.normalise(split(rows, dtype).sum()), dtype)
    expected = sum(value * weight for value, weight in rows)
    fits = least <= expected <= most
    assert overflow.to_list() == [not fits]
    assert unscaled(sums.item(), dtype) == (expected if fits else None)
    assert sums.dtype == dtype


@pytest.mark.parametrize("kind", KINDS)
@unhurried
@given(data=st.data())
def test_order_and_chunks_do_not_change_the_columns(kind: str, data: st.DataObject) -> None:
    dtype, values, _, _ = KINDS[kind]
    rows = data.draw(st.lists(st.tuples(values, WEIGHTS), min_size=1, max_size=10))
    straight = sum_integer.normalise(split(rows, dtype).sum())
    mixed = data.draw(st.permutations(rows))
    cut = data.draw(st.integers(0, len(rows)))
    parts = [sum_integer.normalise(split(part, dtype).sum()) for part in (mixed[:cut], mixed[cut:])]
    assert sum_integer.normalise(pl.concat(parts).sum()).rows() == straight.rows()
    back = split([(value, -weight) for value, weight in rows], dtype)
    assert not any(sum_integer.normalise(pl.concat([straight, back]).sum()).row(0))


@pytest.mark.parametrize("kind", KINDS)
def test_the_bounds_of_a_type_fit_and_one_more_does_not(kind: str) -> None:
    dtype, _, least, most = KINDS[kind]
    for bound, step in ((least, -1), (most, 1)):
        one = split([(step, 1)], dtype)
        at = split([(bound, 1)], dtype)
        assert not sum_integer.render(sum_integer.normalise(at), dtype)[1].item()
        beyond = sum_integer.normalise(pl.concat([at, one]).sum())
        assert sum_integer.render(beyond, dtype)[1].item()
        back = sum_integer.normalise(pl.concat([beyond, split([(step, -1)], dtype)]).sum())
        assert unscaled(sum_integer.render(back, dtype)[0].item(), dtype) == bound


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weight", [1, sum_integer.MAX_WEIGHT - 1, 1 - sum_integer.MAX_WEIGHT])
def test_as_many_rows_as_promised_may_be_summed_at_once(kind: str, weight: int) -> None:
    dtype, _, least, most = KINDS[kind]
    for bound in (least, most):
        frame = sum_integer.normalise(split([(bound, weight)], dtype) * sum_integer.MAX_ROWS)
        number = sum(limb << 42 * i for i, limb in enumerate(frame.row(0)))
        assert number == bound * weight * sum_integer.MAX_ROWS


def test_a_narrow_decimal_may_be_rendered_wider() -> None:
    frame = sum_integer.normalise((split([(-(10**18) + 1, 1000)], pl.Decimal(18, 2)) * 7).sum())
    for precision in (28, 38):
        sums, overflow = sum_integer.render(frame, pl.Decimal(precision, 2))
        assert unscaled(sums.item(), pl.Decimal(precision, 2)) == 7_000 * (1 - 10**18)
        assert not overflow.item()
    assert sum_integer.render(frame, pl.Decimal(18, 2))[1].item()


@unhurried
@given(st.lists(st.tuples(st.integers(0, 5), INT64), max_size=40))
@example([(0, 2**63 - 1), (0, 1), (1, 1)])
def test_groups_are_summed_with_plain_polars(rows: list[tuple[int, int]]) -> None:
    frame = sum_integer.split(
        pl.Series([v for _, v in rows], dtype=pl.Int64), pl.repeat(1, len(rows), eager=True), "n_"
    )
    keys = pl.Series("key", [k for k, _ in rows], dtype=pl.Int64)
    grouped = frame.with_columns(keys).group_by("key").agg(pl.col(sum_integer.limb_names(2, "n_")).sum())
    sums, overflow = sum_integer.render(sum_integer.normalise(grouped, "n_"), pl.Int64(), "n_")
    for key, value, outside in zip(grouped["key"], sums, overflow, strict=True):
        expected = sum(v for k, v in rows if k == key)
        assert outside == (not -(2**63) <= expected < 2**63)
        assert value == (None if outside else expected)


@pytest.mark.parametrize("dtype", [pl.Int8(), pl.UInt32(), pl.Int64(), pl.Decimal(9, 1), pl.Decimal(30, 0)])
def test_nulls_count_nothing_and_slices_do_not_matter(dtype: pl.DataType) -> None:
    values = series([1, None, 3, 4], dtype)
    weights = pl.Series([1, 5, -2, 1])
    whole = sum_integer.split(values, weights)
    assert not any(whole.row(1))
    assert whole.width == sum_integer.limb_count(dtype)
    assert sum_integer.split(values[2:], weights[2:]).rows() == whole.rows()[2:]
    assert sum_integer.split(values[:0], weights[:0]).rows() == []


def test_what_lies_under_a_null_does_not_count() -> None:
    garbage = pa.Array.from_buffers(pa.decimal128(30, 2), 1, [pa.py_buffer(b"\0"), pa.py_buffer(b"\7" * 16)])
    assert not any(sum_integer.split(pl.Series(garbage), pl.Series([1])).row(0))


def test_polars_own_grouped_sum_of_decimals_wraps_which_is_why_it_is_not_used() -> None:
    nines = Decimal("9" * 38)
    frame = pl.DataFrame({"key": [1, 1], "d": pl.Series([nines, nines], dtype=pl.Decimal(38, 0))})
    wrapped = frame.group_by("key").agg(pl.col("d").sum())["d"].item()
    assert wrapped < 0
    limbs = sum_integer.split(frame["d"], pl.Series([1, 1]))
    assert sum_integer.render(sum_integer.normalise(limbs.sum()), pl.Decimal(38, 0))[1].item()


def test_a_long_run_of_changes_ends_where_python_ends() -> None:
    rng = random.Random(3)
    state, number = split([(0, 1)], pl.Int64()), 0
    for _ in range(200):
        rows = [(rng.randrange(-(2**63), 2**63), rng.choice([-1, 1, 1])) for _ in range(20)]
        state = sum_integer.normalise(pl.concat([state, split(rows, pl.Int64())]).sum())
        number += sum(value * weight for value, weight in rows)
    assert state.row(0)[0] + (state.row(0)[1] << 42) == number
