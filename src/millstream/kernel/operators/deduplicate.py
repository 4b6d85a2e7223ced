"""Deduplicate: of the rows with one id the first by event time, and the next one only when enough time has passed.

Which rows count is decided in the order of event time, ties by the whole row. So a row that comes late and is earlier takes
the place of the one that counted, whatever the batches. Rows that can change no more are kept only if they count, and as
long as they make others repeats.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from millstream.kernel.kernel import State
from millstream.kernel.operators.keyed_rows import WAKE, Keyed
from millstream.kernel.operators.top import in_order
from millstream.kernel.zset import difference, group_numbers, weighed
from millstream.plan.spec import Deduplicate, Order

_COUNTS = "_counts"


class DeduplicateKernel:
    """The kernel of :class:`~millstream.plan.spec.Deduplicate`."""

    def __init__(self, spec: Deduplicate) -> None:
        self.spec = spec
        self.keys = list(spec.keys)
        self.time = pl.col(spec.horizon.time).dt.epoch("us")
        self.columns = list(dict.fromkeys((*spec.keys, *spec.columns, spec.horizon.time)))

    def step(self, state: State, rows: pl.DataFrame | None) -> pl.DataFrame | None:
        """Let the first rows through."""
        if rows is None and state.after <= state.before:
            return None
        came = weighed(pl.DataFrame(schema=state.schema) if rows is None else rows, self.columns)
        keyed = Keyed(state, self.keys, came.clear())
        old = keyed.open(came)
        new = self._judged(weighed(pl.concat([old, came.select(old.columns)]), self.columns))
        kept = self._kept(new, state.after)
        keyed.close(kept.drop(_COUNTS), self._wake(kept, state.after))
        return difference(self._seen(self._judged(old), state.before), self._seen(new, state.after))

    def _judged(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Say of each row whether it counts."""
        rows = in_order(rows, (Order(self.spec.horizon.time),), self.columns)
        numbers = group_numbers(rows, self.keys).tolist()
        counts = np.zeros(rows.height, np.bool_)
        until: dict[int, float] = {}
        within = float("inf") if self.spec.within is None else self.spec.within
        for row, (key, time) in enumerate(zip(numbers, rows.select(self.time).to_series(), strict=True)):
            if key not in until or time > until[key]:
                counts[row] = True
                until[key] = time + within
        return rows.with_columns(pl.Series(_COUNTS, counts))

    def _seen(self, rows: pl.DataFrame, mark: int) -> pl.DataFrame:
        rows = rows.filter(_COUNTS)
        if self.spec.emit == "final":
            rows = rows.filter(self.time < mark)
        return rows.select(self.spec.columns)

    def _kept(self, rows: pl.DataFrame, mark: int) -> pl.DataFrame:
        limit = mark - self.spec.horizon.span
        lasting = pl.lit(True) if self.spec.within is None else self.time + self.spec.within >= limit
        return rows.filter((self.time >= limit) | (pl.col(_COUNTS) & lasting))

    def _wake(self, rows: pl.DataFrame, mark: int) -> pl.DataFrame | None:
        times = []
        if self.spec.emit == "final":
            times.append((self.time + 1).filter(self.time >= mark).min())
        if self.spec.within is not None:
            times.append(self.time.max() + self.spec.within + self.spec.horizon.span + 1)
        return rows.group_by(self.keys).agg(pl.min_horizontal(times).alias(WAKE)) if times else None
