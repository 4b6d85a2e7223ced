"""Whatever Arrow holds comes back from SQLite as it was."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.errors import ViewError
from millstream.store.comparable import comparable, date_days, date_text, time_micros, time_text
from millstream.store.sqlite.values import decode, encode, sql_type

INT64 = st.integers(-(2**63), 2**63 - 1)
MICROS = INT64.filter(lambda n: n != -(2**63))  # that one is numpy's "not a time"
ORDINARY = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
TIMES = st.one_of(ORDINARY, ORDINARY.map(lambda n: n // 1_000_000 * 1_000_000), MICROS)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def single(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def arrow(type_: Any, values: list[Any]) -> Any:
    """Times and dates are given as integers, which Arrow takes as they are."""
    if pa.types.is_date64(type_):
        return pa.array(values, pa.int32()).cast(pa.date32()).cast(type_)
    return pa.array(values, type_)


LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.uint32(), st.integers(0, 2**32 - 1)),
    (pa.int64(), INT64),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.string(), TEXT),
    (pa.large_string(), TEXT),
    (pa.binary(), st.binary(max_size=8)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.timestamp("us", "UTC"), TIMES),
    (pa.timestamp("us", "America/New_York"), TIMES),
    (pa.timestamp("us"), TIMES),
    (pa.timestamp("ms"), st.integers(-(2**52), 2**52)),
    (pa.timestamp("s", "UTC"), st.integers(-(2**42), 2**42)),
    (pa.date32(), st.integers(-(2**31), 2**31 - 1) | st.integers(-719_000, 2_900_000)),
    (pa.duration("us"), INT64),
    (pa.duration("s"), st.integers(-(10**9), 10**9)),
    (pa.decimal128(38, 10), st.decimals(-(10**27), 10**27, places=10)),
    (pa.decimal128(5, 0), st.decimals(-99999, 99999, places=0)),
    (pa.decimal128(38, 38), st.decimals(0, Decimal("0.9"), places=38)),
    (pa.null(), st.none()),
]
Typed = tuple[Any, st.SearchStrategy[Any]]


def a_list(inner: Typed) -> Typed:
    return pa.list_(inner[0]), st.lists(st.none() | inner[1], max_size=3)


def a_struct(inner: Typed) -> Typed:
    type_ = pa.struct([("x", inner[0]), ("y z", pa.string())])
    return type_, st.fixed_dictionaries({"x": st.none() | inner[1], "y z": st.none() | TEXT})


def a_map(inner: Typed) -> Typed:
    pairs = st.dictionaries(TEXT, st.none() | inner[1], max_size=3)
    return pa.map_(pa.string(), inner[0]), pairs.map(lambda each: list(each.items()))


def a_map_by_number(inner: Typed) -> Typed:
    pairs = st.dictionaries(st.integers(-9, 9), st.none() | inner[1], max_size=3)
    return pa.map_(pa.int32(), inner[0]), pairs.map(lambda each: list(each.items()))


NESTS: list[Callable[[Typed], Typed]] = [a_list, a_struct, a_map, a_map_by_number, lambda x: a_list(a_struct(a_map(x)))]


@pytest.fixture(scope="module")
def db() -> Any:
    return apsw.Connection(":memory:")


def through_sqlite(db: Any, array: Any) -> Any:
    schema = pa.schema([("v", array.type)])
    stored = encode(comparable(pa.table([array], schema=schema), schema, "test")["v"], array.type)
    db.execute(f"CREATE TEMP TABLE t (i INTEGER PRIMARY KEY, v {sql_type(array.type, 'v')}) STRICT")
    try:
        db.executemany("INSERT INTO t (v) VALUES (?)", [(value,) for value in stored])
        return decode([value for (value,) in db.execute("SELECT v FROM t ORDER BY i")], array.type)
    finally:
        db.execute("DROP TABLE t")


def same(left: Any, right: Any) -> bool:
    """Equal, bit by bit: a NaN is a NaN, and −0.0 is not 0.0."""
    return bool(left.type == right.type and repr(plain(left)) == repr(plain(right)))


def plain(array: Any) -> Any:
    """Python values; times as integers, because Python's own do not reach as far."""
    type_ = array.type
    if pa.types.is_timestamp(type_) or pa.types.is_duration(type_):
        return array.cast(pa.int64()).to_pylist()
    if pa.types.is_date32(type_):
        return array.cast(pa.int32()).to_pylist()
    return array.to_pylist()


@pytest.mark.parametrize(("type_", "values"), LEAVES, ids=[str(leaf[0]) for leaf in LEAVES])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_value_comes_back_as_it_was(db: Any, type_: Any, values: Any, data: st.DataObject) -> None:
    array = arrow(type_, data.draw(st.lists(st.none() | values, max_size=6)))
    assert same(through_sqlite(db, array), array)


@pytest.mark.parametrize("nest", NESTS)
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_nested_value_comes_back_as_it_was(db: Any, nest: Callable[[Typed], Typed], data: st.DataObject) -> None:
    leaf = data.draw(st.sampled_from(LEAVES))
    if pa.types.is_date(leaf[0]) or pa.types.is_timestamp(leaf[0]) or pa.types.is_duration(leaf[0]):
        leaf = (leaf[0], st.integers(-60_000, 60_000))  # what Python can compare
    type_, values = nest(leaf)
    array = pa.array(data.draw(st.lists(st.none() | values, max_size=4)), type_)
    assert same(through_sqlite(db, array), array)


@given(TIMES)
@example(-62_167_219_200_000_000)
@example(-62_167_219_200_000_001)
@example(253_402_300_800_000_000)
@example(2**63 - 1)
def test_a_time_as_text_reads_back(micros: int) -> None:
    assert time_micros(time_text(micros)) == micros


@given(st.integers(-(2**31), 2**31 - 1))
@example(-719_529)
@example(2_932_897)
def test_a_date_as_text_reads_back(days: int) -> None:
    assert date_days(date_text(days)) == days


@given(ORDINARY, ORDINARY)
def test_times_as_text_sort_as_times(left: int, right: int) -> None:
    assert (time_text(left) < time_text(right)) == (left < right)


@given(st.lists(TIMES, min_size=1, max_size=5))
def test_many_times_at_once_are_written_as_each_alone(micros: list[int]) -> None:
    schema = pa.schema([("v", pa.timestamp("us"))])
    table = pa.table([pa.array(micros, pa.timestamp("us"))], schema=schema)
    assert encode(comparable(table, schema, "test")["v"], schema.field("v").type) == [
        time_text(each) for each in micros
    ]


def test_sqlite_itself_would_lose_a_nan(db: Any) -> None:
    assert db.execute("SELECT ?", (math.nan,)).get is None  # the reason for all this
    assert encode(
        comparable(pa.table({"v": [math.nan]}), pa.schema([("v", pa.float64())]), "t")["v"], pa.float64()
    ) == ["NaN"]


@pytest.mark.parametrize(
    "type_",
    [pa.uint64(), pa.timestamp("ns"), pa.time64("us"), pa.decimal256(50, 2), pa.dictionary(pa.int8(), pa.string())],
)
def test_a_type_that_cannot_be_kept_is_named(type_: Any) -> None:
    for each in (type_, pa.list_(type_), pa.struct([("a", pa.map_(pa.string(), type_))])):
        with pytest.raises(ViewError, match="view 'v', column 'c': values of type"):
            sql_type(each, "view 'v', column 'c'")


def test_columns_that_arrive_narrower_are_widened() -> None:
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    table = pa.table({"n": pa.array([1], pa.int8()), "s": pa.array(["x"]).dictionary_encode(), "extra": [1]})
    assert comparable(table, schema, "test").rows() == [(1, "x")]


def test_chunks_and_slices_do_not_matter(tmp_path: Path) -> None:
    schema = pa.schema([("v", pa.list_(pa.int64()))])
    whole = pa.table({"v": pa.array([[1], None, [2, 3], []], schema.field("v").type)})
    parts = pa.concat_tables([whole.slice(0, 1), whole.slice(1, 0), whole.slice(1)])
    assert (
        comparable(parts, schema, "t").rows()
        == comparable(whole, schema, "t").rows()
        == [("[1]",), (None,), ("[2,3]",), ("[]",)]
    )
