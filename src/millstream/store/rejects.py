"""Rows that a store cannot hold, sorted out before anything is written.

Invariant: whether a row is refused depends on the row alone. So a view holds exactly those of its rows that are not refused,
wherever batches end; and a refused row that is taken back was never there.
"""

from __future__ import annotations

from typing import Any, Protocol

import polars as pl
import pyarrow as pa

from millstream.store.checks import plain_schema
from millstream.store.comparable import as_text, comparable
from millstream.store.contract import WEIGHT, Refusal, Target
from millstream.store.net_changes import describe, net_by_key, net_by_row

_WHY = "_why"


class Judge(Protocol):
    """What a store says of rows before it is given them."""

    def __call__(self, target: Target, rows: Any, *, key: bool = False) -> pl.Series | None:
        """Why it cannot hold each row, null for those that it can; None if it can hold all.

        With ``key``: why it cannot even look for a row of that key.
        """


def sort_out(target: Target, changes: Any, judge: Judge, *, anew: bool = False) -> tuple[Any, list[Refusal]]:
    """The changes of a view without what its store refuses, and the rows that are refused.

    A refused row still takes the place of the row that its key had: what is no longer true must not stay. ``anew`` says that
    there was nothing before.
    """
    why = judge(target, changes)
    if why is None:
        return changes, []
    frame = pl.DataFrame(changes).with_columns(why.alias(_WHY))
    if not target.identity:
        bad = net_by_row(frame.filter(pl.col(_WHY).is_not_null())).filter(pl.col(WEIGHT) > 0)
        return changes.filter(why.is_null().to_arrow()), _refusals(target, bad)
    store, remove = net_by_key(target, frame)
    bad = store.filter(pl.col(_WHY).is_not_null())
    came = store.filter(pl.col(_WHY).is_null()).drop(_WHY).with_columns(pl.lit(1, pl.Int64).alias(WEIGHT))
    gone = remove if target.append or anew else pl.concat([remove, bad.select(remove.columns)])
    gone = gone.with_columns(pl.lit(-1, pl.Int64).alias(WEIGHT))
    schema = plain_schema(target.schema).append(pa.field(WEIGHT, pa.int64()))
    taken = pl.concat([came, gone], how="diagonal").select(schema.names).to_arrow().cast(schema)
    unknown = judge(target, taken, key=True)
    return taken if unknown is None else taken.filter(unknown.is_null().to_arrow()), _refusals(target, bad)


def _refusals(target: Target, bad: pl.DataFrame) -> list[Refusal]:
    """These rows, with times as text: Python's own have no room for some of them."""
    schema = plain_schema(target.schema)
    frame = comparable(bad.select(schema.names).to_arrow().cast(schema), schema, target.name)
    columns = [as_text(series, schema.field(series.name).type) for series in frame]
    rows = (dict(zip(schema.names, row, strict=True)) for row in zip(*columns, strict=True))
    return [Refusal(describe(row), why) for row, why in zip(rows, bad[_WHY].to_list(), strict=True)]
