"""Whatever Arrow holds comes back from PostgreSQL as it was, or is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from millstream.errors import PipelineError, ViewError
from millstream.store.comparable import comparable
from millstream.store.postgres.tables import copy_in, copy_out
from millstream.store.postgres.values import FIRST_TIME, LAST_TIME, encode, selected, sql_type, to_csv
from millstream.testing import PostgresServer
from tests.store.test_values import LEAVES, NESTS, Typed, arrow, same

DAY = 86_400_000_000
LAST_DAY = 2_145_031_948


@pytest.fixture(scope="module")
def db(postgres: PostgresServer) -> Iterator[Any]:
    with psycopg.connect(postgres.address) as opened:
        opened.execute("SET TIME ZONE 'UTC'")
        yield opened


def through_postgres(db: Any, array: Any) -> Any:
    schema = pa.schema([("v", array.type)])
    csv = to_csv(encode(comparable(pa.table([array], schema=schema), schema, "test"), schema, "test"))
    try:
        copy_in(db, "t", f"v {sql_type(array.type, 'v')}, i bigint GENERATED ALWAYS AS IDENTITY", b"")
        if csv:
            with db.cursor().copy("COPY t (v) FROM STDIN (FORMAT csv)") as copy:
                copy.write(csv)
        return copy_out(db, f"SELECT {selected(schema)} FROM t ORDER BY i", schema).column("v").combine_chunks()
    finally:
        db.rollback()


def fits(type_: Any, value: Any) -> bool:
    """Whether PostgreSQL has a place for it."""
    if isinstance(value, str):
        return "\0" not in value
    if isinstance(value, int) and pa.types.is_timestamp(type_):
        return value * {"us": 1, "ms": 1000, "s": 1_000_000}[type_.unit] in range(FIRST_TIME, LAST_TIME + 1)
    if isinstance(value, int) and pa.types.is_date32(type_):
        return FIRST_TIME // DAY <= value <= LAST_DAY
    return True


@pytest.mark.parametrize(("type_", "values"), LEAVES, ids=[str(leaf[0]) for leaf in LEAVES])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_value_comes_back_as_it_was_or_is_refused(db: Any, type_: Any, values: Any, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(st.none() | values, max_size=6))
    array = arrow(type_, drawn)
    if all(fits(type_, value) for value in drawn):
        assert same(through_postgres(db, array), array)
    else:
        with pytest.raises(PipelineError, match=r"test, column 'v': found .*(NUL|calendar)"):
            through_postgres(db, array)


@pytest.mark.parametrize("nest", NESTS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_nested_value_comes_back_as_it_was(db: Any, nest: Callable[[Typed], Typed], data: st.DataObject) -> None:
    leaf = data.draw(st.sampled_from(LEAVES))
    if pa.types.is_date(leaf[0]) or pa.types.is_timestamp(leaf[0]) or pa.types.is_duration(leaf[0]):
        leaf = (leaf[0], st.integers(-60_000, 60_000))  # what Python can compare
    type_, values = nest(leaf)
    drawn = data.draw(st.lists(st.none() | values, max_size=4))
    if "\\x00" in repr([value for value in drawn if not isinstance(value, bytes)]):
        assume(pa.types.is_nested(type_) and not pa.types.is_binary(leaf[0]) and leaf[0] != pa.binary(3))
        with pytest.raises(PipelineError, match="NUL"):
            through_postgres(db, pa.array(drawn, type_))
    else:
        array = pa.array(drawn, type_)
        assert same(through_postgres(db, array), array)


@given(st.integers(FIRST_TIME, LAST_TIME))
@example(FIRST_TIME)
@example(LAST_TIME)
@example(-62_135_596_800_000_001)
@example(253_402_300_800_000_000)
@settings(max_examples=60, deadline=None)
def test_every_time_of_its_calendar_comes_back(db: Any, micros: int) -> None:
    for type_ in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
        array = pa.array([micros], type_)
        assert same(through_postgres(db, array), array)
    days = pa.array([min(micros // DAY, LAST_DAY), LAST_DAY, FIRST_TIME // DAY], pa.date32())
    assert same(through_postgres(db, days), days)


@pytest.mark.parametrize("wrong", [FIRST_TIME - 1, -(2**63) + 1, LAST_TIME + 1])
def test_a_time_beyond_its_calendar_is_refused(db: Any, wrong: int) -> None:
    with pytest.raises(PipelineError, match="calendar"):
        through_postgres(db, pa.array([0, wrong], pa.timestamp("us")))


@pytest.mark.parametrize("text", ["\\u0000", "\\\\u0000", "\\", "a\\\\\\u0000"])
def test_text_that_only_looks_like_an_escaped_nul_is_kept(db: Any, text: str) -> None:
    array = pa.array([[text]], pa.list_(pa.string()))
    assert same(through_postgres(db, array), array)


@pytest.mark.parametrize("text", ["\0", "x\0", "\\\0", "\\\\\0", "\0\0"])
def test_a_nul_inside_a_nested_value_is_refused(db: Any, text: str) -> None:
    with pytest.raises(PipelineError, match="NUL"):
        through_postgres(db, pa.array([[text]], pa.list_(pa.string())))


@pytest.mark.parametrize(
    ("type_", "wanted"),
    [
        (pa.int8(), "smallint"), (pa.uint32(), "bigint"), (pa.float32(), "real"), (pa.decimal128(10, 2), "numeric(10, 2)"),
        (pa.timestamp("us", "Europe/Berlin"), "timestamptz"), (pa.timestamp("ms"), "timestamp"), (pa.binary(3), "bytea"),
        (pa.list_(pa.int64()), "jsonb"), (pa.struct([("a", pa.list_(pa.map_(pa.string(), pa.int64())))]), "json"),
    ],
)  # fmt: skip
def test_columns_have_types_that_people_expect(type_: Any, wanted: str) -> None:
    assert sql_type(type_, "x") == wanted


@pytest.mark.parametrize("type_", [pa.uint64(), pa.timestamp("ns"), pa.time64("us"), pa.decimal256(50, 2)])
def test_a_type_that_cannot_be_kept_is_named(type_: Any) -> None:
    for each in (type_, pa.list_(type_), pa.struct([("a", pa.map_(pa.string(), type_))])):
        with pytest.raises(ViewError, match="view 'v', column 'c': values of type"):
            sql_type(each, "view 'v', column 'c'")
