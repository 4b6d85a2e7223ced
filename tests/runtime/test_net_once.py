"""The net change of a batch, worked out once for a view's store and its sinks, is what each would work out by itself."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from millstream.runtime.sink_dispatch import change_set_of, net_and_change_set
from millstream.store.contract import ORIGIN, WEIGHT, Target
from millstream.store.net_changes import PLACE, net_of

TYPES = [("k", pa.float64()), ("n", pa.int32()), ("at", pa.timestamp("us", "UTC")), ("tags", pa.list_(pa.string()))]
SCHEMA = pa.schema(TYPES)
KEYED = Target("v", SCHEMA, ("k",))
BAG = Target("v", SCHEMA)
LOG = Target("v", pa.schema([*TYPES, *zip(ORIGIN, (pa.string(), pa.int32(), pa.int64()), strict=True)]), append=True)

values = st.tuples(
    st.sampled_from([0.0, -0.0, 1.5, float("nan"), None]),
    st.none() | st.integers(0, 2),
    st.none() | st.datetimes().map(lambda at: at.replace(microsecond=0)),
    st.none() | st.lists(st.sampled_from(["a", "b"]), max_size=2),
)


def table(target: Target, found: list[tuple[object, ...]]) -> pa.Table:
    columns = zip(*found, strict=True) if found else [[]] * (len(target.schema) + 1)
    schema = target.schema.append(pa.field(WEIGHT, pa.int64()))
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def check(target: Target, found: list[tuple[object, ...]]) -> None:
    changes = table(target, found)
    net, change_set = net_and_change_set(target, changes)
    for mine, alone in (
        *zip(net, net_of(target, changes), strict=True),
        *zip(change_set, change_set_of(target, changes), strict=True),
    ):
        assert PLACE not in mine.columns
        if target.identity:
            assert_frame_equal(mine, alone)
        else:
            assert_frame_equal(mine, alone, check_row_order=False)
    assert net_of(target, net) is net


@given(st.data())
def test_a_view_with_a_key(data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.sampled_from([0.0, 1.5, float("nan"), None]), unique_by=str))
    found: list[tuple[object, ...]] = []
    for key in keys:
        old, new = (data.draw(st.none() | values) for _ in range(2))
        same = data.draw(st.just(key) if key != 0 else st.sampled_from([0.0, -0.0]))
        found += [(same, *old[1:], -1)] if old else []
        found += [(key, *new[1:], 1)] if new else []
    check(KEYED, data.draw(st.permutations(found)))


@given(st.lists(st.tuples(values, st.sampled_from([1, -1, 2]))))
def test_a_view_without_a_key(found: list[tuple[tuple[object, ...], int]]) -> None:
    check(BAG, [(*row, weight) for row, weight in found])


@given(
    st.lists(st.tuples(values, st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 20)), unique_by=lambda r: r[1:])
)
def test_a_view_that_only_grows(found: list[tuple[tuple[object, ...], str, int, int]]) -> None:
    check(LOG, [(*row, *origin, 1) for row, *origin in found])


def test_a_view_of_no_rows() -> None:
    for target in (KEYED, BAG, LOG):
        check(target, [])
    assert isinstance(net_of(BAG, table(BAG, [])).store, pl.DataFrame)
