"""Exact sums of doubles: one canonical form, rounded once, against fractions and ``math.fsum``."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Sequence
from fractions import Fraction

import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from millstream.kernel.aggregates import sum_double

# A busy machine is not a failure.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

EMPTY = (0,) * sum_double.LIMBS + (None,)

# Hypothesis' own floats are mostly round or extreme; these have all their bits and any exponent.
BITS = st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0]).filter(math.isfinite)
NEAR = st.builds(math.ldexp, st.floats(-1, 1, allow_nan=False), st.integers(-80, 90))
EDGES = st.sampled_from(
    [0.0, -0.0, 5e-324, -5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, -1.7976931348623157e308]
    + [sign * 2.0**power for sign in (1, -1) for power in (-129, -128, -127, -75, -76, 94, 95, 96, 104, 105, 106)]
    + [math.nextafter(2.0**power, towards) for power in (-76, -75, 94, 95) for towards in (0, math.inf)]
)
FINITE = BITS | NEAR | EDGES | st.floats(allow_nan=False, allow_infinity=False)
WEIGHTS = st.integers(-3, 3) | st.integers(-sum_double.MAX_WEIGHT + 1, sum_double.MAX_WEIGHT - 1)
ROWS = st.lists(st.tuples(FINITE, WEIGHTS), max_size=12)


def split(rows: Sequence[tuple[float | None, int]]) -> pl.DataFrame:
    values = pl.Series([value for value, _ in rows], dtype=pl.Float64)
    return sum_double.split(values, pl.Series([weight for _, weight in rows], dtype=pl.Int64))


def total(frame: pl.DataFrame) -> pl.DataFrame:
    """Add up and normalise the whole frame as one group."""
    return sum_double.normalise(frame.group_by(pl.lit(0)).agg(sum_double.adding()).drop("literal"))


def rounded(number: Fraction) -> float:
    try:
        return number.numerator / number.denominator
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def same(a: float, b: float) -> bool:
    return struct.pack("<d", a) == struct.pack("<d", b) or (math.isnan(a) and math.isnan(b))


@unhurried
@given(ROWS.filter(bool))
@example([(1.0, 1), (2.0**-53, 1)])  # a tie, to even: down
@example([(1.0, 1), (2.0**-53, 1), (2.0**-120, 1)])  # no longer a tie, by one bit far below
@example([(1.0, 1), (2.0**-53, 1), (2.0**-63, 1)])  # by the last of the leading 64 bits
@example([(1.0, 1), (2.0**-53, 1), (2.0**-64, 1)])  # by the first one after them, in the same digit
@example([(1.0, 1), (2.0**-52, 1), (2.0**-53, 1)])  # a tie, to even: up
@example([(1.0, 1), (2.0**-53, 1), (2.0**-120, -1)])
@example([(2.0**94, 1), (2.0**-128, 1)])  # the first and the last limb
@example([(-(2.0**-128), 1)])  # borrows through all limbs
@example([(2.0**95, 1), (2.0**94, 1 << 19)])  # out of the limbs by its weight
@example([(1.7976931348623157e308, 2)])  # too large
@example([(5e-324, 1), (5e-324, 1), (1.0, 1), (1.0, -1)])
def test_a_sum_is_the_nearest_double_of_the_exact_sum(rows: list[tuple[float, int]]) -> None:
    number = sum((Fraction(value) * weight for value, weight in rows), start=Fraction(0))
    assert same(sum_double.render(total(split(rows))).item(), rounded(number))


@unhurried
@given(st.lists(FINITE, min_size=1, max_size=12))
def test_a_sum_without_weights_is_what_fsum_gives(values: list[float]) -> None:
    try:
        expected = math.fsum(values)
    except OverflowError:
        return  # fsum gives up where a partial sum overflows; the test above covers it
    assert sum_double.render(total(split([(value, 1) for value in values]))).item() == expected


@unhurried
@given(rows=ROWS.filter(bool), seed=st.integers(), parts=st.integers(1, 5))
def test_order_and_chunks_do_not_change_a_bit(rows: list[tuple[float, int]], seed: int, parts: int) -> None:
    straight = total(split(rows))
    shuffled = random.Random(seed).sample(rows, len(rows))
    chunks = [total(split(shuffled[i::parts])) for i in range(parts) if shuffled[i::parts]]
    assert total(pl.concat(chunks)).rows() == straight.rows()
    running = chunks[0]
    for chunk in chunks[1:]:
        running = total(pl.concat([running, chunk]))
    assert running.rows() == straight.rows()


SPECIAL = FINITE | st.sampled_from([math.nan, math.inf, -math.inf])


@unhurried
@given(kept=st.lists(SPECIAL, max_size=5), gone=st.lists(st.tuples(SPECIAL, WEIGHTS), min_size=1, max_size=8))
def test_what_is_added_and_taken_back_leaves_no_trace(kept: list[float], gone: list[tuple[float, int]]) -> None:
    ones = [(value, 1) for value in kept]
    back = [(value, -weight) for value, weight in gone]
    expected = total(split(ones)).rows() if ones else [EMPTY]
    assert total(split(ones + gone + back)).rows() == expected
    assert total(pl.concat([total(split(ones + gone)), split(back)])).rows() == expected
    assert total(pl.concat([total(split(back)), split(gone + ones)])).rows() == expected


@unhurried
@given(a=ROWS.filter(bool), b=ROWS.filter(bool))
def test_sums_are_equal_columns_exactly_when_they_are_equal(
    a: list[tuple[float, int]], b: list[tuple[float, int]]
) -> None:
    numbers = [sum((Fraction(v) * w for v, w in rows), start=Fraction(0)) for rows in (a, b)]
    assert (total(split(a)).rows() == total(split(b)).rows()) == (numbers[0] == numbers[1])


@unhurried
@given(ROWS.filter(bool))
@example([(2.0**94, 1 << 11)])  # one more than the limbs hold
@example([(-(2.0**94), 1 << 11)])  # the least they hold
def test_the_canonical_form_is_in_its_range_and_stays(rows: list[tuple[float, int]]) -> None:
    frame = total(split(rows))
    *limbs, rest = frame.row(0)
    assert all(0 <= limb < 2**32 for limb in limbs[:-1])
    assert -(2**41) <= limbs[-1] < 2**41
    assert rest is None or not any(limbs)
    assert sum_double.normalise(frame).rows() == frame.rows()
    assert frame.schema == pl.Schema({**{f"l{i}": pl.Int64 for i in range(7)}, "rest": pl.Binary})


def test_the_form_on_disk_is_frozen() -> None:
    frame = sum_double.normalise(split([(-1.5, 1), (0.1, 3), (1e300, 1), (-5e-324, 1), (math.nan, 2), (-math.inf, 1)]))
    assert frame.rows()[:2] == [
        (0, 0, 0, 2147483648, 4294967294, 4294967295, -1, None),
        (0, 0, 3435974144, 1288490188, 0, 0, 0, None),
    ]
    rests = frame["rest"].to_list()[2:]
    steps = int(1e300) << 1074
    assert rests == [
        bytes(24) + steps.to_bytes(steps.bit_length() // 8 + 1, "little", signed=True),
        bytes(24) + b"\xff",
        struct.pack("<qqq", 2, 0, 0),
        struct.pack("<qqq", 0, 0, 1),
    ]


def test_a_sum_moves_out_of_the_limbs_and_back() -> None:
    inside = total(split([(2.0**94, 1 << 10)]))
    assert inside["rest"].to_list() == [None]
    outside = total(pl.concat([inside] * 200))
    assert outside["rest"].null_count() == 0
    assert not any(outside.row(0)[:-1])
    assert sum_double.render(outside).item() == 2.0**104 * 200
    assert total(pl.concat([outside, split([(-(2.0**94), 1 << 10)] * 199)])).rows() == inside.rows()


def test_numbers_of_the_rest_that_add_up_to_one_that_fits_come_back() -> None:
    halves = total(split([(2.0**-129, 1), (2.0**-129, 1)]))
    assert halves.rows() == [(1, 0, 0, 0, 0, 0, 0, None)]
    assert halves.rows() == total(split([(2.0**-128, 1)])).rows()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([math.nan, 1.0], math.nan),
        ([math.inf, 1.0, -1e308], math.inf),
        ([-math.inf, 1.0, 1e308], -math.inf),
        ([math.inf, -math.inf], math.nan),
        ([math.inf, math.inf], math.inf),
        ([-0.0], 0.0),
        ([None], 0.0),
        ([None, 2.5], 2.5),
    ],
)
def test_what_is_not_a_number_is_summed_as_spark_does(values: list[float | None], expected: float) -> None:
    assert same(sum_double.render(total(split([(value, 1) for value in values]))).item(), expected)


def test_a_finite_sum_is_not_lost_under_an_infinity() -> None:
    frame = total(split([(math.inf, 1), (0.1, 1), (1e-300, 1)]))
    assert sum_double.render(frame).item() == math.inf
    assert total(pl.concat([frame, split([(math.inf, -1)])])).rows() == total(split([(0.1, 1), (1e-300, 1)])).rows()


@pytest.mark.parametrize("weight", [1 << 10, -(1 << 10), (1 << 10) + 1, 1 << 11, 1 << 12, sum_double.MAX_WEIGHT - 1])
@pytest.mark.parametrize("value", [math.nextafter(2.0**95, 0), 0.1, -1.7976931348623157e308 / 2**1000])
def test_as_many_rows_as_promised_may_be_summed_at_once(value: float, weight: int) -> None:
    frame = split([(value, weight)])
    summed = frame.select(pl.col(name) * sum_double.MAX_ROWS for name in sum_double.columns_of()[:-1])
    rest = frame["rest"].item()
    for _ in range(20):
        rest = sum_double.merge_rest([rest, rest])
    frame = sum_double.normalise(summed.with_columns(pl.Series("rest", [rest], pl.Binary)))
    assert sum_double.render(frame).item() == rounded(Fraction(value) * weight * sum_double.MAX_ROWS)


def test_many_canonical_sums_at_their_bounds_may_be_summed_at_once() -> None:
    frame = pl.DataFrame({**{f"l{i}": [2**32 - 1] for i in range(6)}, "l6": [-(2**41)]})
    summed = sum_double.normalise((frame * sum_double.MAX_ROWS).with_columns(rest=pl.lit(None, pl.Binary)))
    number = sum((Fraction(limb) * Fraction(2) ** (32 * i - 128) for i, limb in enumerate(frame.row(0))), Fraction(0))
    assert sum_double.render(summed).item() == rounded(number * sum_double.MAX_ROWS)


@pytest.mark.parametrize("prefix", ["", "price_"])
def test_many_groups_are_summed_side_by_side(prefix: str) -> None:
    rng = random.Random(7)
    rows = [(rng.randrange(50), rng.gauss(0, 1) * 10.0 ** rng.randrange(-40, 40)) for _ in range(2_000)]
    keys = pl.Series("key", [key for key, _ in rows])
    parts = sum_double.split(pl.Series([value for _, value in rows]), pl.repeat(1, len(rows), eager=True), prefix)
    assert parts.columns == sum_double.columns_of(prefix)
    frame = sum_double.normalise(parts.with_columns(keys).group_by("key").agg(sum_double.adding(prefix)), prefix)
    sums = dict(zip(frame["key"], sum_double.render(frame, prefix), strict=True))
    assert sums == {key: math.fsum(value for k, value in rows if k == key) for key in range(50)}


def test_rests_merge_to_nothing_when_they_cancel() -> None:
    assert sum_double.merge_rest(split([(1e300, 1), (math.nan, 1), (1.0, 1)])["rest"]) is not None
    assert sum_double.merge_rest(split([(1e300, 1), (1e300, -1)])["rest"]) is None
    assert sum_double.merge_rest([None, None]) is None


def test_no_rows_are_a_frame_of_the_same_columns() -> None:
    empty = split([])
    assert empty.schema == split([(1.0, 1)]).schema == sum_double.normalise(empty).schema
    assert sum_double.render(empty).to_list() == []


def test_a_weight_that_is_null_or_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="null"):
        sum_double.split(pl.Series([1.0]), pl.Series([None], dtype=pl.Int64))
    for weight in (sum_double.MAX_WEIGHT, -sum_double.MAX_WEIGHT):
        with pytest.raises(ValueError, match=str(weight)):
            split([(1.0, 1), (1.0, weight)])


def test_float32_is_summed_by_its_exact_value() -> None:
    values = pl.Series([0.1, 0.2], dtype=pl.Float32)
    frame = total(sum_double.split(values, pl.Series([1, 1])))
    assert sum_double.render(frame).item() == math.fsum(values.cast(pl.Float64))
