"""Hold: rows of windows wait for the end of theirs, so that whatever is made of them is made of final rows alone.

They lie in the order in which their windows end. Once the mark has reached the end of a window, what is admitted late, and what
is taken back, goes on as it comes.
"""

from __future__ import annotations

import polars as pl

from millstream.kernel.kernel import State
from millstream.kernel.state.segments import PLACE, place
from millstream.kernel.zset import WEIGHT, weighed
from millstream.plan.spec import Hold

_ENDS = "_x"


class HoldKernel:
    """The kernel of :class:`~millstream.plan.spec.Hold`."""

    def __init__(self, spec: Hold) -> None:
        self.spec = spec
        self.columns = list(spec.columns)

    def step(self, state: State, rows: pl.DataFrame | None) -> pl.DataFrame | None:
        """Let those rows go on whose window is over, and keep the others."""
        if rows is None and state.after <= state.before:
            return None
        came = self._placed(weighed(pl.DataFrame(schema=state.schema) if rows is None else rows, self.columns))
        over = came[_ENDS] <= state.after
        table = state.table("rows")
        waiting = came.filter(~over)
        old = table.load(waiting[PLACE].to_numpy(), (state.before, state.after))
        going = came.filter(over)
        if old is not None:
            old = old.select(came.columns)
            due = old[_ENDS] <= state.after
            going, waiting = pl.concat([going, old.filter(due)]), pl.concat([waiting, old.filter(~due)])
        merged = waiting.group_by([*self.columns, _ENDS, PLACE]).agg(pl.col(WEIGHT).sum())
        table.save(merged.filter(pl.col(WEIGHT) != 0).select(came.columns))
        return weighed(going, self.columns)

    def _placed(self, rows: pl.DataFrame) -> pl.DataFrame:
        rows = rows.with_columns(pl.col(self.spec.time).dt.epoch("us").alias(_ENDS))
        return rows.with_columns(pl.Series(PLACE, place(rows, list(self.spec.keys), _ENDS)))
