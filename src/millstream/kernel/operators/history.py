"""History: a table's records become rows with the span in which each held.

A row holds from the timestamp of its record until the next record of its key takes over, in the order of offsets. A record that claims to be
older than the one before it takes over where that one did, as in joins as of a time; a row that held for no time at all is not there. So
at each time a key has one row at most: the one that such a join finds, unless it came too late for it. State is the latest record of each key, a tombstone's too.
"""

from __future__ import annotations

import polars as pl

from millstream.kernel.kernel import State
from millstream.kernel.state.segments import PLACE, place
from millstream.kernel.zset import difference, matched
from millstream.plan.spec import History
from millstream.relation.operators.history import COLUMNS

_FROM, _TO = COLUMNS


class HistoryKernel:
    """The kernel of :class:`~millstream.plan.spec.History`; rows come with ``_offset`` and ``_deleted``."""

    def __init__(self, spec: History) -> None:
        self.spec = spec

    def step(self, state: State, rows: pl.DataFrame | None) -> pl.DataFrame | None:
        """End the rows of the keys that came, and begin those that came."""
        if rows is None:
            return None
        keys = list(self.spec.keys)
        kept = [*keys, *self.spec.values, _FROM, "_deleted", PLACE]
        came = rows.with_columns(pl.Series(PLACE, place(rows, keys))).sort("_offset").select(kept)
        table = state.table("rows")
        old = table.load(came[PLACE].to_numpy())
        if old is None:
            old = came.clear()
        touched = came.select(keys).unique()
        before = matched(old, touched, keys, "semi").select(kept)
        said = pl.concat([before, came]).with_columns(pl.col(_FROM).cum_max().over(keys))
        latest = said.unique(keys, keep="last", maintain_order=True)
        table.save(pl.concat([matched(old, touched, keys, "anti").select(kept), latest]))
        return difference(self._shown(before), self._shown(said))

    def _shown(self, said: pl.DataFrame) -> pl.DataFrame:
        """The rows among records in their order, with the spans in which they held."""
        spans = said.with_columns(pl.col(_FROM).shift(-1).over(list(self.spec.keys)).alias(_TO))
        held = ~pl.col("_deleted") & (pl.col(_TO).is_null() | (pl.col(_TO) > pl.col(_FROM)))
        return spans.filter(held).select(*self.spec.keys, *self.spec.values, _FROM, _TO)
