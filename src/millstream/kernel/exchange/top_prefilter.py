"""What cannot be among the first rows is not sent to where those are chosen.

Of the rows that are sent together some have enough better ones among them. Nothing is ever taken back of these, so they would be
dropped wherever they came. Only the first column of the order is looked at, and whatever ties by it stays: how ties are broken is
left to :mod:`millstream.kernel.operators.top`.
"""

from __future__ import annotations

import polars as pl

from millstream.plan.spec import Top


def promising(rows: pl.DataFrame, spec: Top) -> pl.DataFrame:
    """The rows without those that have as many better ones in their group as may be shown; some of these may stay."""
    order, keys = spec.order[0], list(spec.keys)
    kind = rows.schema[order.column]
    sorts = kind.is_integer() or kind.is_float() or kind.is_temporal() or kind == pl.String
    if not sorts or any(rows.schema[name].is_nested() for name in keys):
        return rows
    value = pl.col(order.column)
    if kind.is_float() and rows[order.column].is_nan().any():
        return rows
    if spec.count == 1:
        keep = value == _of_each(value.max() if order.descending else value.min(), keys)
    else:
        if keys and 2 * rows.select((pl.len().over(keys) > spec.count).sum()).item() < rows.height:
            return rows  # hardly a group has enough of them for a rank to be worth its while
        rank = value.rank("dense" if spec.ties == "dense_rank" else "min", descending=order.descending)
        keep = _of_each(rank, keys) <= spec.count
    return rows.filter(keep.fill_null(True))


def _of_each(value: pl.Expr, keys: list[str]) -> pl.Expr:
    return value.over(keys) if keys else value
