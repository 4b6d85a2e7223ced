"""What sinks get of a batch: the same rows in the same order, however they came."""

from __future__ import annotations

import random

import polars as pl
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from millstream.runtime.sink_dispatch import change_set_of, in_line
from millstream.store.contract import ORIGIN, WEIGHT, Target
from millstream.store.net_changes import net_by_row

SCHEMA = {"n": pl.Int64, "x": pl.Float64, **dict(zip(ORIGIN, (pl.String, pl.Int32, pl.Int64), strict=True))}
TARGET = Target("v", pa.schema([("n", pa.int64()), ("x", pa.float64())]), (), append=True)
rows = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from([0.0, -0.0, 1.5, None]),
        st.sampled_from(["a", "b"]),
        st.integers(0, 2),
        st.integers(0, 20),
    ),
    unique_by=lambda row: row[2:],
    max_size=30,
)


def changes(found: list[tuple[int, float | None, str, int, int]]) -> pl.DataFrame:
    frame = pl.DataFrame(found, schema=SCHEMA, orient="row")
    return frame.with_columns(pl.lit(1, pl.Int64).alias(WEIGHT))


@given(rows, st.randoms(use_true_random=False), st.booleans())
def test_rows_that_only_come_are_sent_in_the_order_of_the_log(
    found: list[tuple[int, float | None, str, int, int]], chance: random.Random, one_topic: bool
) -> None:
    if one_topic:
        found = [row for row in found if row[2] == "a"]
    frame = changes(found)
    expected = net_by_row(frame).drop(WEIGHT).sort(ORIGIN)
    ordered = sorted(found, key=lambda row: row[2:])
    dealt = chance.sample(found, len(found))
    for way in (ordered, dealt):
        change_set = change_set_of(TARGET, changes(way).to_arrow())
        assert_frame_equal(change_set.rows, expected)
        assert [str(x) for x in change_set.rows["x"]] == [str(x) for x in expected["x"]]  # 0.0 and -0.0 are equal
        assert change_set.gone.is_empty()
    assert in_line(changes(ordered), ORIGIN) == (len({row[2] for row in found}) == 1)
    assert not in_line(changes(ordered[::-1]), ORIGIN) or len(found) == 1


def test_what_is_there_twice_is_not_in_line() -> None:
    frame = changes([(1, None, "a", 0, 7), (1, None, "a", 0, 7)])
    assert not in_line(frame, ORIGIN)
    assert change_set_of(TARGET, frame.to_arrow()).rows.height == 1
