"""Top: the first rows of each group, in an order that no two different rows share.

Over input from which nothing is ever taken back, only those rows are kept: f(f(A) ∪ B) = f(A ∪ B). Otherwise the next best
must be at hand when one of them goes, so all rows of the group are.
"""

from __future__ import annotations

import polars as pl

from millstream.kernel.chunk import WEIGHT
from millstream.kernel.kernel import State
from millstream.kernel.keyed import ONE, Keyed, difference, repeated, weighed, with_key
from millstream.plan.spec import Order, Top


class TopKernel:
    """The kernel of :class:`~millstream.plan.spec.Top`."""

    def __init__(self, spec: Top) -> None:
        self.spec = spec
        self.keys = list(spec.keys) or [ONE]
        self.columns = list(dict.fromkeys((*self.keys, *spec.columns, *(each.column for each in spec.order))))

    def step(self, state: State, rows: pl.DataFrame | None) -> pl.DataFrame | None:
        """Let the rows take their places."""
        if rows is None and state.after <= state.before:
            return None
        came = with_key(pl.DataFrame(schema=state.schema) if rows is None else rows, self.keys)
        came = weighed(came, self.columns)
        keyed = Keyed(state, self.keys, came.clear())
        old = keyed.open(came)
        new = weighed(pl.concat([old, came.select(old.columns)]), self.columns)
        if self.spec.insert_only:
            new = self._first(new)
        keyed.close_until(new, self.spec.horizon)
        return difference(self._seen(old), self._seen(new))

    def _seen(self, rows: pl.DataFrame) -> pl.DataFrame:
        return repeated(self._first(rows)).select(self.spec.columns)

    def _first(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The first rows of each group; of one that is there several times as many as have room."""
        rows = in_order(rows, self.spec.order, self.columns)
        before = pl.col(WEIGHT).cum_sum().over(self.keys) - pl.col(WEIGHT)
        rows = rows.filter(pl.col(WEIGHT) > 0).with_columns((self.spec.count - before).alias("_room"))
        return (
            rows.filter(pl.col("_room") > 0)
            .with_columns(pl.min_horizontal(WEIGHT, "_room").alias(WEIGHT))
            .drop("_room")
        )


def in_order(rows: pl.DataFrame, order: tuple[Order, ...], columns: list[str]) -> pl.DataFrame:
    """Sort by an order, then by everything else, so that it does not matter who came first."""
    by = list(order) + [Order(name) for name in columns if name not in {each.column for each in order}]
    descending = [each.descending for each in by]
    return rows.sort([each.column for each in by], descending=descending, nulls_last=descending)
