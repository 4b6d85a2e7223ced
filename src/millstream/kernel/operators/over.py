"""Over: each row with what its neighbours make of it (see :mod:`millstream.kernel.aggregates.window_functions`).

All rows of a group are kept, unless its key tells when it can change no more, or the order is that of time and every call looks at
neighbours of a known distance: then a row that no change can reach any more is forgotten when it is no longer a neighbour of one
that can change.
"""

from __future__ import annotations

import polars as pl

from millstream.kernel.aggregates.window_functions import Layout, called
from millstream.kernel.kernel import State
from millstream.kernel.operators.keyed_rows import ONE, WAKE, Keyed, with_key
from millstream.kernel.operators.top import in_order
from millstream.kernel.zset import difference, repeated, weighed
from millstream.plan.spec import Over
from millstream.relation.nodes import WINDOW_COLUMNS, Frame


class OverKernel:
    """The kernel of :class:`~millstream.plan.spec.Over`."""

    def __init__(self, spec: Over) -> None:
        self.spec = spec
        self.keys = list(spec.keys) or [ONE]
        used = [name for call in spec.looks for name in call.arguments]
        self.columns = list(dict.fromkeys((*self.keys, *spec.columns, *(each.column for each in spec.order), *used)))
        self.reach = reach(spec) if spec.horizon else None

    def step(self, state: State, rows: pl.DataFrame | None) -> pl.DataFrame | None:
        """Give the rows that came their neighbours, and their neighbours them."""
        if rows is None and state.after <= state.before:
            return None
        came = with_key(pl.DataFrame(schema=state.schema) if rows is None else rows, self.keys)
        came = weighed(came, self.columns)
        keyed = Keyed(state, self.keys, came.clear())
        old = keyed.open(came)
        new = weighed(pl.concat([old, came.select(old.columns)]), self.columns) if old.height else came
        before, after = self._made(old, state.before), self._made(new, state.after)
        if self.spec.until is not None:
            keyed.close_until(new, self.spec.until)
        else:
            kept = self._kept(new, state.after)
            keyed.close(kept, self._wake(kept, state.after))
        return difference(before, after)

    def _made(self, rows: pl.DataFrame, mark: int) -> pl.DataFrame:
        """What these rows are worth, as far as it is to be seen at this mark."""
        layout = Layout.of(
            in_order(repeated(rows), self.spec.order, self.columns, self.keys), self.keys, self.spec.order
        )
        made = called(layout, self.spec.looks)
        if self.spec.emit == "final":
            made = made.filter(self._time() < mark)
        shown = [pl.col(name) for name in self.spec.columns]
        if self.spec.window is not None and self.spec.horizon is not None:
            end = pl.col(self.spec.horizon.time)
            shown += [
                (end - pl.duration(microseconds=self.spec.window)).alias(WINDOW_COLUMNS[0]),
                end.alias(WINDOW_COLUMNS[1]),
            ]
        return made.select(*shown, *(call.name for call in self.spec.looks))

    def _time(self) -> pl.Expr:
        assert self.spec.horizon is not None  # noqa: S101
        return pl.col(self.spec.horizon.time).dt.epoch("us")

    def _kept(self, rows: pl.DataFrame, mark: int) -> pl.DataFrame:
        """The rows that can change, and those that they look at."""
        if self.reach is None or self.spec.horizon is None:
            return rows
        rows_before, rows_after, before, after = self.reach
        limit = mark - self.spec.horizon.span
        rows = in_order(rows, self.spec.order, self.columns).with_columns(self._time().alias("_time"))
        rows = rows if self.spec.order[0].descending else rows.reverse()  # the latest first
        # The earliest row that can change: within the distance ahead of what comes, or so many rows before it.
        earliest = pl.lit(limit - after)
        if rows_after:
            last = pl.col("_time").filter(pl.col("_time") < limit).head(rows_after).min().over(self.keys)
            earliest = pl.min_horizontal(earliest, last)
        rows = rows.with_columns(earliest.alias("_earliest"))
        below = (pl.col("_time") < pl.col("_earliest")).cast(pl.Int64).cum_sum().over(self.keys)
        neighbour = (pl.col("_time") >= pl.col("_earliest") - before) | (below <= rows_before)
        return rows.filter(neighbour | pl.col("_time").is_null()).drop("_time", "_earliest")

    def _wake(self, rows: pl.DataFrame, mark: int) -> pl.DataFrame | None:
        horizon = self.spec.horizon
        if horizon is None:
            return None
        times = []
        if self.spec.emit == "final":
            times.append((self._time() + 1).filter(self._time() >= mark).min())
        if self.reach is not None and self.reach[:2] == (0, 0):
            times.append(self._time().max() + horizon.span + self.reach[2] + self.reach[3] + 1)
        return rows.group_by(self.keys).agg(pl.min_horizontal(times).alias(WAKE)) if times else None


def reach(spec: Over) -> tuple[int, int, int, int] | None:
    """How far calls look: rows before and after, and distances before and after, in the order of time. None for any far."""
    far = [0, 0, 0, 0]
    for call in spec.looks:
        match call.function:
            case "lag":
                frame = Frame("rows", call.offset, 0)
            case "lead":
                frame = Frame("rows", 0, call.offset)
            case _ if call.frame is not None:
                frame = call.frame
            case _:
                return None
        sides = (frame.after, frame.before) if spec.order[0].descending else (frame.before, frame.after)
        for index, side in enumerate(sides, 0 if frame.kind == "rows" else 2):
            if side is None:
                return None
            far[index] = max(far[index], side)
    return far[0], far[1], far[2], far[3]
