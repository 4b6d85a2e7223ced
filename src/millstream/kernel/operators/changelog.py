"""Changelog: upserts and tombstones of a table become changes: −the old row, +the new one.

Order is offset order within the partition that a key belongs to; of several upserts of one key in a batch only the last
one counts. State is the latest row of each key.
"""

from __future__ import annotations

import polars as pl

from millstream.kernel.kernel import State
from millstream.kernel.state.segments import PLACE, place
from millstream.kernel.zset import differing, matched, signed
from millstream.plan.spec import Changelog


class ChangelogKernel:
    """The kernel of :class:`~millstream.plan.spec.Changelog`; rows come with ``_offset`` and ``_deleted``."""

    def __init__(self, spec: Changelog) -> None:
        self.spec = spec

    def step(self, state: State, rows: pl.DataFrame | None) -> pl.DataFrame | None:
        """Replace the rows of the keys that came."""
        if rows is None:
            return None
        keys, values = list(self.spec.keys), list(self.spec.values)
        latest = rows.sort("_offset").unique(keys, keep="last", maintain_order=False)
        latest = latest.select(*keys, *values, "_deleted", pl.Series(PLACE, place(latest, keys)))
        table = state.table("rows")
        old = table.load(latest[PLACE].to_numpy())
        if old is None:
            old = latest.clear().select(*keys, *values, PLACE)
        new = latest.filter(~pl.col("_deleted")).drop("_deleted")
        table.save(pl.concat([matched(old, latest, keys, "anti"), new]))
        before = matched(old, latest.select(keys), keys, "semi")
        both = matched(latest, before.with_columns(_had=True), keys, "left", suffix="_b")
        had = both["_had"].fill_null(False)
        exists = ~both["_deleted"]
        changed = ~(had & exists) | differing(both, values)
        gone = had & changed if self.spec.retract else had & ~exists
        was = both.filter(gone).select(*keys, *(pl.col(f"{name}_b").alias(name) for name in values))
        now = both.filter(exists & changed).select(*keys, *values)
        return signed(was, now)
