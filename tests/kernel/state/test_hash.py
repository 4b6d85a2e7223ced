"""The frozen hash: its golden vectors, what must not matter to it, and how evenly it spreads."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from hashlib import blake2b
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.errors import PlanError
from millstream.kernel.state.hash import hash_columns

# A busy machine is not a failure.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

EPOCH = datetime(1970, 1, 1)
MOMENT = datetime(2024, 2, 29, 12, 34, 56)


def one(array: Any) -> int:
    return int(hash_columns([array])[0])


def mix(x: int) -> int:
    m = 0xFFFFFFFFFFFFFFFF
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & m
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & m
    return x ^ x >> 31


def word_of(value: object) -> int:
    """The definition once more, in plain Python, one value at a time."""
    m = 0xFFFFFFFFFFFFFFFF
    if value is None:
        return 0xD1B54A32D192ED03
    if isinstance(value, int):
        return value & m
    assert isinstance(value, bytes)
    if len(value) > 128:
        return int.from_bytes(blake2b(value, digest_size=8).digest(), "little")
    h = mix((len(value) * 0x9FB21C651E98DF25 + 0xA24BAED4963EE407) & m)
    for i in range(0, len(value), 8):
        h = mix(h ^ int.from_bytes(value[i : i + 8], "little"))
    return h


def row_of(*values: object) -> int:
    h = 0x8C5F1A3B7D92E64F
    for value in values:
        h = mix((h + word_of(value)) & 0xFFFFFFFFFFFFFFFF)
    return (h ^ h >> 32) & 0xFFFFFFFF


# Unscaled it is 2^64 + 10: the low 64 bits end in a decimal zero, the number does not.
LOOKS_DIVISIBLE = "184467440737095516.26"

EXAMPLES: dict[str, pa.Array] = {
    "integer": pa.array([0, 1, -1, 2**63 - 1, -(2**63), None]),
    "uint64": pa.array([2**64 - 1], pa.uint64()),
    "boolean": pa.array([False, True, None]),
    "double": pa.array([0.0, 1.0, -1.5, 1e300, float("inf"), float("-inf"), float("nan"), 5e-324, None]),
    "decimal": pa.array(
        [
            Decimal(x)
            for x in ("0.00", "1.50", "-1.50", "100.00", "9" * 36 + ".99", "-" + "9" * 36 + ".99", LOOKS_DIVISIBLE)
        ],
        pa.decimal128(38, 2),
    ),
    "date": pa.array([date(1970, 1, 1), date(2024, 2, 29), date(1969, 12, 31)]),
    "timestamp": pa.array([EPOCH, MOMENT, EPOCH - timedelta(microseconds=1)], pa.timestamp("us")),
    "duration": pa.array([timedelta(seconds=1), timedelta(days=-1)], pa.duration("us")),
    "time": pa.array([0, 86_399_999_999], pa.time64("us")),
    "string": pa.array(["", "a", "user-123", "user-1234", "grüße, 世界", "x" * 128, "x" * 129, None]),
    "binary": pa.array([b"\x00", b"\x00\x00", b"\xff" * 9]),
    "list": pa.array([[], [1], [1, 2], [2, 1], [None], None, list(range(40))], pa.list_(pa.int64())),
    "struct": pa.array([{"a": 1, "b": "x"}, {"a": None, "b": None}, None]),
    "map": pa.array([[], [("a", 1)], [("a", 1), ("b", 2)], None], pa.map_(pa.string(), pa.int64())),
    "null": pa.nulls(1),
}

# State on disk is placed by these: a number changed here loses the state of every pipeline that exists.
GOLDEN: dict[str, list[int]] = {
    "integer": [790327028, 680501114, 3958119255, 2638187803, 2385018581, 1968811906],
    "uint64": [3958119255],
    "boolean": [790327028, 680501114, 1968811906],
    "double": [790327028, 2598066439, 2057557803, 3062530596, 1977144862, 472848734, 268280296, 680501114, 1968811906],
    "decimal": [1668838952, 3011056628, 43924358, 1070153416, 768071742, 4125439135, 4238644607],
    "date": [790327028, 3005926204, 3958119255],
    "timestamp": [790327028, 395213634, 3958119255],
    "duration": [3266268587, 1176027471],
    "time": [790327028, 978661146],
    "string": [176168322, 393395552, 547590840, 3133958096, 3750014637, 159616572, 340745111, 1968811906],
    "binary": [571342371, 294844254, 2565867782],
    "list": [176168322, 2569259001, 1775360684, 2742005866, 3041201240, 1968811906, 3769423480],
    "struct": [2363176072, 1373043140, 1968811906],
    "map": [116166940, 3559745691, 311244815, 1968811906],
    "null": [1968811906],
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_the_hash_of_every_type_is_frozen(kind: str) -> None:
    assert hash_columns([EXAMPLES[kind]]).tolist() == GOLDEN[kind]


def test_the_hash_of_several_columns_is_frozen_and_depends_on_their_order() -> None:
    a, b = pa.array([1, None]), pa.array(["user-123", ""])
    assert hash_columns([a, b]).tolist() == [row_of(1, b"user-123"), row_of(None, b"")] == [1054390388, 4162388693]
    assert hash_columns([b, a]).tolist() == [row_of(b"user-123", 1), row_of(b"", None)]
    assert not set(hash_columns([a, b]).tolist()) & set(hash_columns([b, a]).tolist())


VALUES: dict[str, tuple[st.SearchStrategy[Any], pa.DataType]] = {
    "integers": (st.integers(-(2**63), 2**63 - 1), pa.int64()),
    "bytes": (st.binary(max_size=40) | st.binary(min_size=120, max_size=140), pa.binary()),
}


@pytest.mark.parametrize("kind", VALUES)
@unhurried
@given(data=st.data())
def test_many_values_at_once_hash_as_the_definition_says_one_by_one(kind: str, data: st.DataObject) -> None:
    strategy, arrow = VALUES[kind]
    values = data.draw(st.lists(st.none() | strategy, max_size=20))
    assert hash_columns([pa.array(values, arrow)]).tolist() == [row_of(value) for value in values]


@pytest.mark.parametrize("kind", EXAMPLES)
def test_slices_chunks_and_dictionaries_do_not_matter(kind: str) -> None:
    array = EXAMPLES[kind]
    whole = hash_columns([array]).tolist()
    for i in range(len(array)):
        assert hash_columns([array.slice(i)]).tolist() == whole[i:]
        assert hash_columns([array.slice(i, 1)]).tolist() == whole[i : i + 1]
        assert hash_columns([pa.chunked_array([array[:i], array[i:]])]).tolist() == whole
        assert hash_columns([pa.concat_arrays([array.slice(i), array.slice(0, i)])]).tolist() == whole[i:] + whole[:i]
    if kind not in ("list", "struct", "map", "null"):
        assert hash_columns([array.dictionary_encode()]).tolist() == whole
        assert hash_columns([array.dictionary_encode().slice(1)]).tolist() == whole[1:]
        assert hash_columns([pa.array(pc.run_end_encode(array))]).tolist() == whole


@pytest.mark.parametrize("kind", [kind for kind in EXAMPLES if kind != "map"])
def test_a_polars_series_hashes_as_the_arrow_array_it_came_from(kind: str) -> None:
    series = pl.Series(EXAMPLES[kind])
    assert hash_columns([series]).tolist() == GOLDEN[kind]
    assert hash_columns([pl.concat([series, series], rechunk=False)]).tolist() == GOLDEN[kind] * 2


@pytest.mark.parametrize("width", [8, 16, 32, 64])
@pytest.mark.parametrize("sign", ["int", "uint"])
def test_the_width_of_an_integer_does_not_matter(width: int, sign: str) -> None:
    values = [0, 1, 100, None] + ([-1, -100] if sign == "int" else [])
    narrow = pa.array(values, getattr(pa, f"{sign}{width}")())
    assert hash_columns([narrow]).tolist() == hash_columns([pa.array(values, pa.int64())]).tolist()


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_the_unit_of_a_time_does_not_matter(unit: str, zone: str | None) -> None:
    moment = MOMENT.replace(tzinfo=UTC)
    micros = pa.array([int(moment.timestamp()) * 1_000_000])
    assert one(pa.array([moment], pa.timestamp(unit, zone))) == one(micros)
    assert one(pa.array([timedelta(hours=-3)], pa.duration(unit))) == one(pa.array([-3 * 3_600_000_000]))


def test_a_nanosecond_before_the_epoch_belongs_to_the_microsecond_before_it() -> None:
    assert one(pa.array([-1], pa.timestamp("ns"))) == one(pa.array([-1]))


def test_the_unit_of_a_date_does_not_matter() -> None:
    for day in (date(1969, 12, 31), date(2024, 2, 29)):
        assert one(pa.array([day], pa.date64())) == one(pa.array([day], pa.date32()))


def test_there_is_one_zero_and_one_nan() -> None:
    nans = np.array([0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001], np.uint64).view(np.float64)
    assert len(set(hash_columns([pa.array(nans)]).tolist())) == 1
    assert one(pa.array([-0.0])) == one(pa.array([0.0]))
    assert one(pa.array([1.5], pa.float32())) == one(pa.array([1.5]))


UNSCALED = st.integers(-(10**30) + 1, 10**30 - 1) | st.integers(-(10**5), 10**5)


@unhurried
@given(unscaled=UNSCALED, scale=st.integers(0, 8), more=st.integers(0, 8))
def test_the_scale_of_a_decimal_does_not_matter(unscaled: int, scale: int, more: int) -> None:
    text = f"{unscaled}E-{scale}"
    narrow = pa.array([Decimal(text)], pa.decimal128(30, scale))
    wide = pa.array([Decimal(f"{unscaled}{'0' * more}E-{scale + more}")], pa.decimal128(38, scale + more))
    assert one(narrow) == one(wide) == one(narrow.cast(pa.decimal256(50, scale)))
    assert one(pl.Series(narrow)) == one(wide)
    assert one(narrow) != one(pa.array([Decimal(f"{unscaled + 1}E-{scale}")], pa.decimal128(38, scale)))


def test_decimals_that_differ_only_in_high_bits_hash_differently() -> None:
    values = [Decimal(2**64 * i + 7) for i in range(200)]
    assert len(set(hash_columns([pa.array(values, pa.decimal128(38, 0))]).tolist())) == 200


@pytest.mark.parametrize("carrier", [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()])
def test_what_carries_a_string_does_not_matter(carrier: pa.DataType) -> None:
    array = EXAMPLES["string"].cast(carrier)
    assert hash_columns([array]).tolist() == GOLDEN["string"]
    assert hash_columns([array.slice(2)]).tolist() == GOLDEN["string"][2:]


def test_fixed_size_binary_and_categories_are_their_bytes() -> None:
    assert one(pa.array([b"abc"], pa.binary(3))) == one(pa.array(["abc"]))
    assert one(pl.Series(["abc"], dtype=pl.Categorical)) == one(pl.Series(["abc"], dtype=pl.Enum(["x", "abc"])))
    assert one(pl.Series(["abc"], dtype=pl.Categorical)) == one(pa.array(["abc"]))


@unhurried
@given(st.lists(st.binary(max_size=20), min_size=1, max_size=8))
def test_a_row_hashes_alike_whatever_its_neighbours_are(values: list[bytes]) -> None:
    assert hash_columns([pa.array(values)]).tolist() == [one(pa.array([value])) for value in values]


def test_a_string_is_not_its_prefix_padded_with_zero_bytes() -> None:
    values = [b"ab" + b"\0" * n for n in range(20)]
    assert len(set(hash_columns([pa.array(values)]).tolist())) == 20


def test_what_carries_a_list_does_not_matter() -> None:
    values = [[1, 2], [3, None], None]
    arrays = [
        pa.array(values, pa.list_(pa.int64())),
        pa.array(values, pa.large_list(pa.int8())),
        pa.array(values, pa.list_(pa.int32(), 2)),
        pa.array(values, pa.list_view(pa.int64())),
    ]
    expected = hash_columns(arrays[:1]).tolist()
    for array in arrays:
        assert hash_columns([array]).tolist() == expected
        assert hash_columns([array.slice(1)]).tolist() == expected[1:]


def test_the_order_of_a_maps_entries_does_not_matter_and_that_of_a_list_does() -> None:
    kind = pa.map_(pa.string(), pa.int64())
    there, back = pa.array([[("a", 1), ("b", 2)]], kind), pa.array([[("b", 2), ("a", 1)]], kind)
    assert one(there) == one(back)
    assert one(there) != one(pa.array([[("a", 2), ("b", 1)]], kind))
    assert one(pa.array([[1, 2]])) != one(pa.array([[2, 1]]))


def test_values_hidden_under_a_null_do_not_matter() -> None:
    hidden = pa.Array.from_buffers(pa.int64(), 1, [pa.py_buffer(b"\0"), pa.py_buffer(b"\7" * 8)])
    assert one(hidden) == one(pa.nulls(1))
    parent = pa.StructArray.from_arrays([pa.array([5])], ["a"], mask=pa.array([True]))
    assert one(parent) == one(pa.nulls(1))


def test_no_columns_hash_to_zeros_and_no_rows_to_nothing() -> None:
    assert hash_columns([], rows=3).tolist() == [0, 0, 0]
    assert hash_columns([pa.array([], kind.type) for kind in EXAMPLES.values()]).tolist() == []
    assert hash_columns([pa.chunked_array([], pa.int64())]).tolist() == []


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[1, 2\]"):
        hash_columns([pa.array([1]), pa.array([1, 2])])
    with pytest.raises(ValueError, match="one length"):
        hash_columns([])


@pytest.mark.parametrize("column", [pl.Series([1], dtype=pl.Int128), pa.nulls(0, pa.month_day_nano_interval())])
def test_a_type_that_cannot_be_a_key_is_refused_even_when_empty(column: Any) -> None:
    with pytest.raises(PlanError, match="cannot be a key") as refused:
        hash_columns([column])
    assert refused.value.hint


def chi_square(places: np.ndarray[Any, Any], count: int) -> float:
    """How far the counts of places are from even, in standard deviations of what chance gives."""
    expected = len(places) / count
    statistic = ((np.bincount(places, minlength=count) - expected) ** 2 / expected).sum()
    return abs(float(statistic) - (count - 1)) / float(np.sqrt(2 * (count - 1)))


SPREAD = {
    "sequential": pl.Series(np.arange(200_000)),
    "even": pl.Series(np.arange(200_000) * 2),
    "pages": pl.Series(np.arange(200_000) * 4096),
    "high bits": pl.Series(np.arange(200_000) << 40),
    "doubles": pl.Series(np.arange(200_000.0)),
    "users": pl.Series([f"user-{i}" for i in range(200_000)]),
    "long names": pl.Series([f"customer/{i:08d}/orders" for i in range(200_000)]),
    "decimals": pl.Series(np.arange(200_000)).cast(pl.Decimal(18, 2)),
    "days": pl.Series(np.arange(200_000, dtype=np.int32)).cast(pl.Date),
}


@pytest.mark.parametrize("keys", SPREAD)
def test_keys_spread_evenly_over_any_bits_of_the_hash(keys: str) -> None:
    hashed = hash_columns([SPREAD[keys]])
    low, high = (hashed & 0xFF).astype(np.int64), (hashed >> 16).astype(np.int64)
    assert chi_square(low, 256) < 5
    assert chi_square(high >> 8, 256) < 5
    assert chi_square(hashed % 7, 7) < 5
    # Independent: within one bucket by the low bits, the high bits are still even.
    assert chi_square(low << 8 | high & 0xFF, 1 << 16) < 5
    # As many distinct hashes as chance gives: 200,000 keys in 2^32 places collide about five times.
    assert len(np.unique(hashed)) > 200_000 - 25


def test_pairs_of_small_integers_spread_evenly_too() -> None:
    a, b = np.divmod(np.arange(200_000), 500)
    hashed = hash_columns([pl.Series(a), pl.Series(b)])
    assert chi_square((hashed & 0xFF).astype(np.int64), 256) < 5
    assert len(np.unique(hashed)) > 200_000 - 25


def test_one_very_long_string_costs_no_more_than_its_length() -> None:
    values = ["a"] * 999 + ["x" * 20_000_000]
    assert hash_columns([pl.Series(values)]).tolist() == [row_of(b"a")] * 999 + [row_of(values[-1].encode())]
