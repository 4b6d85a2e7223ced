"""Rows by key, and when each key wants to be looked at again.

For kernels whose rows cannot be placed by the second in which they expire, because it moves: a session's end, say. A batch reads
the rows of the keys that it touches, and of those whose *timer* the mark has passed; no others. A key has one timer at a
time. It may ring too early, never too late, and ringing changes nothing by itself: whoever is woken looks at the mark.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from millstream.errors import PipelineError
from millstream.kernel.kernel import State
from millstream.kernel.state.segments import PLACE, Places, ordered_place, place
from millstream.kernel.state.store import NEVER
from millstream.kernel.zset import matched
from millstream.plan.spec import Horizon

MOST = 1_000_000
"""Rows that one key may keep. They are read and written together, so a key with more would make every batch slow."""

WAKE = "_wake"
"""When a key wants to be looked at again, in microseconds."""

ONE = "_g"
"""The key where there is none."""

_DUE = "_due"
_NO_PLACES = np.zeros(0, np.uint64)


class Keyed:
    """The rows of some keys during one batch: :meth:`open` gives them, :meth:`close` takes what they have become."""

    def __init__(self, state: State, keys: list[str], empty: pl.DataFrame) -> None:
        self._state, self._keys = state, keys
        self._empty = empty.with_columns(pl.lit(NEVER, pl.Int64).alias(_DUE))
        self._rest = self._empty.with_columns(pl.lit(0, pl.UInt64).alias(PLACE))
        self._pending = empty.select(keys).with_columns(pl.lit(NEVER, pl.Int64).alias(_DUE))
        self.keys = empty.select(keys)
        """The keys that are looked at: those touched, and those that were due."""

    def open(self, touched: pl.DataFrame) -> pl.DataFrame:
        """The rows kept for the keys in these rows, and for those that are due."""
        self.keys = pl.concat([touched.select(self._keys), self._due()]).unique()
        loaded = self._state.table("rows").load(self.places)
        if loaded is None:
            return self._empty.drop(_DUE)
        ours = matched(loaded, self.keys, self._keys, "semi")
        self._rest = matched(loaded, self.keys, self._keys, "anti")
        pending = ours.group_by(self._keys).agg(pl.col(_DUE).max())
        self._pending = pending.filter(pl.col(_DUE) > self._state.after)
        return ours.drop(PLACE, _DUE)

    def close(self, rows: pl.DataFrame, wake: pl.DataFrame | None = None) -> None:
        """Keep these rows for the keys that were looked at; ``wake`` says when each wants to be looked at again."""
        check_size(rows, self._keys)
        if wake is None:
            rows = rows.with_columns(pl.lit(NEVER, pl.Int64).alias(_DUE))
        else:
            due = rows.select(self._keys).unique()
            due = matched(due, wake.select(*self._keys, WAKE), self._keys, "left")
            due = matched(due, self._pending, self._keys, "left")
            sooner = pl.col(WAKE).is_not_null() & (pl.col(_DUE).is_null() | (pl.col(WAKE) < pl.col(_DUE)))
            self._set(due.filter(sooner).select(*self._keys, pl.col(WAKE).alias(_DUE)))
            due = due.with_columns(pl.when(sooner).then(WAKE).otherwise(_DUE).fill_null(NEVER).alias(_DUE)).drop(WAKE)
            rows = matched(rows, due, self._keys, "left")
        rows = rows.with_columns(pl.Series(PLACE, self.place(rows)))
        self._state.table("rows").save(pl.concat([self._rest, rows.select(self._rest.columns)]))

    def close_until(self, rows: pl.DataFrame, horizon: Horizon | None, early: int | None = None) -> None:
        """Keep these rows as long as they can change: those of a group are forgotten together, at its horizon.

        With ``early`` they want to be looked at so long before that, too.
        """
        if horizon is None:
            self.close(rows)
            return
        end = pl.col(horizon.time).dt.epoch("us") + horizon.span
        stays = rows.filter((end >= self._state.after).fill_null(True))
        wake = end + 1
        if early is not None:
            wake = pl.when(end - early > self._state.after).then(end - early).otherwise(wake)
        self.close(stays, stays.group_by(self._keys).agg(wake.min().alias(WAKE)))

    @property
    def places(self) -> Places:
        """Where the keys lie that are looked at, for tables beside this one."""
        return self.place(self.keys)

    def place(self, rows: pl.DataFrame) -> Places:
        """Where rows of some keys lie."""
        return (ordered_place if self._state.meta.ordered else place)(rows, self._keys)

    def _due(self) -> pl.DataFrame:
        """The keys whose timer has rung; it is taken away."""
        none = self._empty.select(self._keys)
        if self._state.after <= self._state.before or "timers" not in self._state.meta.tables:
            return none
        timers = self._state.table("timers")
        loaded = timers.load(_NO_PLACES, (self._state.before, self._state.after))
        if loaded is None:
            return none
        timers.save(loaded.filter(pl.col(_DUE) > self._state.after))
        return loaded.filter(pl.col(_DUE) <= self._state.after).select(self._keys)

    def _set(self, new: pl.DataFrame) -> None:
        timers = self._state.table("timers")
        new = new.with_columns(pl.Series(PLACE, place(new, self._keys, _DUE)))
        loaded = timers.load(new[PLACE].to_numpy())
        timers.save(new if loaded is None else pl.concat([loaded, new.select(loaded.columns)]))


def check_size(rows: pl.DataFrame, keys: list[str]) -> None:
    """Refuse to keep more for one key than :data:`MOST`."""
    if rows.height <= MOST:
        return
    most = rows.group_by(keys).len().sort("len").tail(1)
    if most.item(0, "len") > MOST:
        shown = ", ".join(f"{name} = {most.item(0, name)!r}" for name in keys if name != ONE) or "all rows"
        raise PipelineError(
            f"{shown}: more than {MOST:,} rows to be kept for one key",
            hint="group by more columns, or use a shorter window",
        )


def with_key(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """The rows with a key of ours, if they are to have it."""
    return rows.with_columns(pl.lit(0, pl.Int8).alias(ONE)) if keys == [ONE] else rows
