"""Rows that pass through: from several inputs as one, or once for each element of an array or each window. Nothing is kept."""

from __future__ import annotations

import polars as pl

from millstream.kernel.aggregates.time_windows import in_windows
from millstream.kernel.kernel import State
from millstream.kernel.zset import WEIGHT
from millstream.plan.spec import Pass
from millstream.relation.nodes import WINDOW_COLUMNS


class PassKernel:
    """The kernel of :class:`~millstream.plan.spec.Pass`."""

    def __init__(self, spec: Pass) -> None:
        self.spec = spec

    def step(self, _state: State, rows: pl.DataFrame | None) -> pl.DataFrame | None:
        """Pass the rows on, if there are any."""
        return None if rows is None else self.through(rows)

    def through(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Pass the rows on, with their weights."""
        weight = pl.col(WEIGHT) if WEIGHT in rows.columns else pl.lit(1, pl.Int64).alias(WEIGHT)
        spec = self.spec
        if spec.size:
            return _in_windows(rows.select(*spec.columns, weight), spec)
        if spec.explode is None:
            return rows.select(*spec.columns, weight)
        there = rows.filter(pl.col(spec.explode).list.len() > 0)
        others = [name for name in spec.columns if name != spec.explode or name == spec.element]
        there = there.select(*spec.columns, pl.col(spec.explode).alias("_element"), weight).explode("_element")
        return there.select(*others, pl.col("_element").alias(spec.element), WEIGHT)


def _in_windows(rows: pl.DataFrame, spec: Pass) -> pl.DataFrame:
    start, end = WINDOW_COLUMNS
    rows = in_windows(rows.with_columns(pl.col(spec.time).alias(start)), spec.size, spec.every)
    return rows.with_columns((pl.col(start) + pl.duration(microseconds=spec.size)).alias(end))
