"""The algebra of weighted rows: a change is a set of rows, each with how often it appears or, below zero, disappears.

A frame without :data:`WEIGHT` is of rows that appear once. Rows are equal if all their columns are, where null equals null and NaN
equals NaN. Weights of equal rows add up, and a row of weight zero is gone. So the order of changes does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.errors import PipelineError

if TYPE_CHECKING:
    from polars._typing import JoinStrategy

WEIGHT = "_weight"
"""How often a row appears (or, below zero, disappears)."""

MOST_COPIES = 20_000_000
"""Rows, copies counted one by one, that a batch may look at."""

_SECOND = "_second"


def differing(both: pl.DataFrame, names: list[str], suffix: str = "_b") -> pl.Series:
    """Whether any of these columns differs from its namesake with the suffix; nulls are equal to nulls, NaN to NaN."""
    compared = [both[name].ne_missing(both[f"{name}{suffix}"]) for name in names]
    return reduce(lambda one, other: one | other, compared, pl.repeat(False, both.height, eager=True))


def matched(
    left: pl.DataFrame, right: pl.DataFrame, on: Sequence[str], how: JoinStrategy, **options: Any
) -> pl.DataFrame:
    """Join frames by equal keys, where null equals null and NaN equals NaN.

    Polars finds no NaN by one column of doubles if there is but one row on each side; by two columns it does.
    """
    if len(on) == 1 and left.schema[on[0]].is_float():
        left, right = (frame.with_columns(pl.lit(0, pl.Int8).alias(_SECOND)) for frame in (left, right))
        return left.join(right, on=[*on, _SECOND], how=how, nulls_equal=True, **options).drop(_SECOND)
    return left.join(right, on=list(on), how=how, nulls_equal=True, **options)


def group_numbers(rows: pl.DataFrame, keys: list[str]) -> npt.NDArray[np.uint32]:
    """For each row the number of its group; groups are numbered as they come."""
    groups = rows.select(keys).unique(maintain_order=True).with_row_index("_group")
    numbered = matched(rows.select(keys), groups, keys, "left", maintain_order="left")
    return numbered["_group"].to_numpy()


def signed(minus: pl.DataFrame, plus: pl.DataFrame) -> pl.DataFrame:
    """Rows that disappear and rows that appear, as one set of changes."""
    return pl.concat(
        [
            minus.with_columns(pl.lit(-1, pl.Int64).alias(WEIGHT)),
            plus.with_columns(pl.lit(1, pl.Int64).alias(WEIGHT)),
        ]
    )


def weigh(rows: pl.DataFrame, columns: list[str], name: str = WEIGHT) -> pl.DataFrame:
    """How often each combination of these columns comes, net, those included that cancel out; told in a column of this name."""
    weight = pl.col(WEIGHT).sum() if WEIGHT in rows.columns else pl.len().cast(pl.Int64)
    return rows.group_by(columns).agg(weight.alias(name))


def weighed(rows: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    """Equal rows as one, with how often they are there, net; those that cancel out are gone."""
    return weigh(rows, columns).filter(pl.col(WEIGHT) != 0)


def repeated(rows: pl.DataFrame) -> pl.DataFrame:
    """Each row as often as it is there, without its weight."""
    weights = rows[WEIGHT].clip(0).to_numpy()
    if weights.sum() > MOST_COPIES:
        raise PipelineError(
            f"{weights.sum():,} copies of rows to be looked at one by one", hint="keep rows apart by a column"
        )
    rows = rows.drop(WEIGHT)
    return rows if (weights == 1).all() else rows[np.repeat(np.arange(rows.height), weights)]


def difference(before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    """What must change for these rows to become those; where there were none, equal ones are left apart."""
    if not before.height:
        return after.select(*before.columns, pl.lit(1, pl.Int64).alias(WEIGHT))
    return weighed(signed(before, after.select(before.columns)), before.columns)
