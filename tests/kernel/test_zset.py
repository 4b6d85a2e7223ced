"""The laws of weighted rows, and what is equal to what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import PipelineError
from millstream.kernel import zset
from millstream.kernel.zset import WEIGHT, difference, differing, group_numbers, matched, repeated, signed, weighed
from millstream.plan import chain
from millstream.store import contract
from tests.kernel.local import hashable

TYPES = {"k": pl.Float64, "s": pl.String}
ROWS = st.lists(
    st.tuples(st.sampled_from([None, 0.0, 1.5, float("nan")]), st.sampled_from([None, "a", "b"])), max_size=8
)


def rows_of(values: Sequence[tuple[float | None, str | None]]) -> pl.DataFrame:
    return pl.DataFrame(values, schema=TYPES, orient="row")


def bag(rows: pl.DataFrame) -> Counter[object]:
    """How often each row is there, those that cancel out left away."""
    found: Counter[object] = Counter()
    weights = rows[WEIGHT].to_list() if WEIGHT in rows.columns else [1] * rows.height
    for row, weight in zip(rows.select(list(TYPES)).rows(), weights, strict=True):
        found[hashable(row)] += weight
    return Counter({row: weight for row, weight in found.items() if weight})


@given(ROWS, ROWS)
def test_what_was_and_its_difference_are_what_is(
    before: list[tuple[float, str]], after: list[tuple[float, str]]
) -> None:
    one, other = rows_of(before), rows_of(after)
    changes = difference(one, other)
    weighted = one.with_columns(pl.lit(1, pl.Int64).alias(WEIGHT))
    assert bag(pl.concat([weighted, changes.select(weighted.columns)])) == bag(other)


@given(ROWS)
def test_rows_that_stay_are_no_difference(values: list[tuple[float, str]]) -> None:
    assert not difference(rows_of(values), rows_of(values)[::-1]).height


@given(ROWS, ROWS)
def test_equal_rows_become_one_whatever_their_order(
    gone: list[tuple[float, str]], come: list[tuple[float, str]]
) -> None:
    changes = signed(rows_of(gone), rows_of(come))
    net = weighed(changes, list(TYPES))
    assert bag(net) == bag(changes) == bag(weighed(changes[::-1], list(TYPES)))
    assert len(bag(net)) == net.height


@given(ROWS)
def test_rows_apart_are_those_that_were_weighed(values: list[tuple[float, str]]) -> None:
    rows = rows_of(values)
    assert bag(repeated(weighed(rows, list(TYPES)))) == bag(rows)


def test_more_copies_than_can_be_looked_at_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zset, "MOST_COPIES", 5)
    with pytest.raises(PipelineError, match="6 copies of rows"):
        repeated(rows_of([(1.5, "a")]).with_columns(pl.lit(6, pl.Int64).alias(WEIGHT)))


@pytest.mark.parametrize("keys", [["k"], ["k", "s"]])
@pytest.mark.parametrize("key", [None, float("nan"), 0.0])
def test_null_is_null_and_nan_is_nan(key: float | None, keys: list[str]) -> None:
    one, other = rows_of([(key, None)]), rows_of([(key, None)])
    assert matched(one, other, keys, "semi").height == 1
    assert not differing(one.join(other, how="cross", suffix="_b"), list(TYPES)).any()
    assert group_numbers(pl.concat([one, other]), keys).tolist() == [0, 0]


def test_stores_call_what_comes_with_rows_as_kernels_do() -> None:
    assert (contract.WEIGHT, contract.ORIGIN) == (WEIGHT, chain.ORIGIN)
