"""Joins of two streams by equal keys, where right time − left time lies within an interval; inner and outer.

A row is kept until no partner can come any more: the other side's mark, less its lateness, has passed the end of the row's
reach. Without a partner it is shown as soon as the mark alone has passed; an allowed late partner takes that back. So the
output is the pairs, and the rows without a partner whose time is over: both functions of what was admitted and of the marks.

Each row remembers how many partners it has had: those may be gone before it, where one side's mark is far behind the
other's. A row that came already and is taken back after it was let go is counted by its partners, which are all still there.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from millstream.kernel.kernel import State
from millstream.kernel.operators.join import changes, check_pairs, key_names, key_types, outcome
from millstream.kernel.state.segments import PLACE, Places, place
from millstream.kernel.zset import WEIGHT
from millstream.plan.spec import IntervalJoin

_TIME = "_t"
_WAS, _CAME = "_was", "_came"  # the weight of a row before the batch, and what the batch adds to it
_PARTNERS = "_m"
_ROW = ("_i", "_j")  # the number of a row of each side, while pairs are made
_SLOT = "_s"
_EXPIRES = "_x"
_TABLES = ("left", "right")
_SECOND = 1_000_000
_PER_REACH = 8
"""Into how many steps of expiry a row's reach is cut. A row that comes looks for its partners in each; the more there are, the
sooner rows go once their time is over."""


class IntervalJoinKernel:
    """The kernel of :class:`~millstream.plan.spec.IntervalJoin`."""

    def __init__(self, spec: IntervalJoin) -> None:
        self.spec = spec
        self.keys = key_names(spec.keys)
        self.columns = spec.left, spec.right
        self.reach = (spec.low, spec.high), (-spec.high, -spec.low)
        """From when to when, seen from a row of each side, its partners are."""
        self.outer = spec.how in ("left", "full"), spec.how in ("right", "full")
        self.step_size = max(_SECOND, (spec.high - spec.low) // _PER_REACH)

    def step(self, state: State, left: pl.DataFrame | None, right: pl.DataFrame | None) -> pl.DataFrame | None:
        """Pair what comes with what is there and with each other, then show and forget what the marks have passed."""
        due = [self.outer[side] and self._moved(state, side) for side in (0, 1)]
        if left is None and right is None and not any(due):
            self._expire(state)
            return None
        types = key_types(state.sides, self.keys)
        came = [
            changes(rows, state.sides[side], types, (*self.columns[side], _TIME))
            for side, rows in enumerate((left, right))
        ]
        rows = [self._load(state, side, came) for side in (0, 1)]
        pairs = self._pairs(rows)
        weight = (pl.col(_WAS) + pl.col(_CAME)) * (pl.col(f"{_WAS}_r") + pl.col(f"{_CAME}_r"))
        changed = pairs.with_columns((weight - pl.col(_WAS) * pl.col(f"{_WAS}_r")).alias(WEIGHT))
        made = [changed.filter(pl.col(WEIGHT) != 0)]
        for side in (0, 1):
            after = self._counted(rows[side], pairs, side)
            if self.outer[side]:
                made.append(self._alone(state, side, after))
            self._save(state, side, after)
        self._expire(state)
        return outcome(made, state.sides, types, *self.columns)

    def _moved(self, state: State, side: int) -> bool:
        """Whether the mark has moved that tells rows of this side that their time is over."""
        other = state.sides[1 - side]
        return other.after > other.before

    def _until(self, side: int) -> int:
        """How long after its own time a row may still get a partner, allowed lateness included."""
        return self.reach[side][1] + self.spec.lateness[1 - side]

    def _expiry(self, side: int, times: pl.Series) -> pl.Series:
        """When rows of these times are let go: the first step after that."""
        return ((times + self._until(side)) // self.step_size + 1) * self.step_size

    def _placed(self, side: int, rows: pl.DataFrame) -> pl.DataFrame:
        rows = rows.with_columns(self._expiry(side, rows[_TIME]).alias(_EXPIRES))
        return rows.with_columns(pl.Series(PLACE, place(rows, self.keys, _EXPIRES)))

    def _load(self, state: State, side: int, came: list[pl.DataFrame]) -> pl.DataFrame:
        """The rows of one side that may matter: those that come, where their like lie, and where partners of the others lie."""
        fresh = self._placed(side, came[side])
        places = [fresh[PLACE].to_numpy(), self._partners(side, came[1 - side])]
        span = None
        if self.outer[side] and self._moved(state, side):
            other, late = state.sides[1 - side], self.spec.lateness[1 - side]
            span = other.before + late, other.after + late + self.step_size
        loaded = state.table(_TABLES[side]).load(np.concatenate(places), span)
        fresh = fresh.drop(_EXPIRES).rename({WEIGHT: _CAME})
        fresh = fresh.with_columns(pl.lit(0, pl.Int64).alias(_WAS), pl.lit(None, pl.Int64).alias(_PARTNERS))
        if loaded is None:
            return fresh.with_row_index(_ROW[side])
        loaded = loaded.rename({WEIGHT: _WAS}).with_columns(pl.lit(0, pl.Int64).alias(_CAME))
        same = [name for name in fresh.columns if name not in (_WAS, _CAME, _PARTNERS)]
        both = pl.concat([loaded, fresh.select(loaded.columns)]).group_by(same)
        return both.agg(pl.col(_WAS).sum(), pl.col(_CAME).sum(), pl.col(_PARTNERS).max()).with_row_index(_ROW[side])

    def _partners(self, side: int, others: pl.DataFrame) -> Places:
        """The places on this side where the partners of these rows of the other side lie."""
        others = others.drop_nulls(self.keys)
        low, high = (self._expiry(side, others[_TIME] + bound) for bound in self.reach[1 - side])
        hashed = place(others, self.keys)
        made = []
        for number in range((self.spec.high - self.spec.low) // self.step_size + 2):
            at = (low + number * self.step_size).alias(_EXPIRES).to_frame()
            made.append((place(at, [], _EXPIRES) | hashed)[(at[_EXPIRES] <= high).to_numpy()])
        return np.concatenate(made)

    def _pairs(self, rows: list[pl.DataFrame]) -> pl.DataFrame:
        """All pairs of which one row at least comes now."""
        came = pl.col(_CAME) != 0
        left, right = (self._slotted(side, each) for side, each in enumerate(rows))
        halves = [(left.filter(came), right), (left.filter(~came), right.filter(came))]
        found = []
        for one, other in halves:
            check_pairs(one, other, [*self.keys, _SLOT])
            both = one.join(other, on=[*self.keys, _SLOT], how="inner", suffix="_r")
            apart = pl.col(f"{_TIME}_r") - pl.col(_TIME)
            found.append(both.filter(apart.is_between(self.spec.low, self.spec.high)))
        return pl.concat(found)

    def _slotted(self, side: int, rows: pl.DataFrame) -> pl.DataFrame:
        """With a number that partners share: time in steps as wide as the interval. Rows of the right are in two, seen from the left."""
        rows = rows.drop(PLACE, _PARTNERS)
        width = max(self.spec.high - self.spec.low, 1)
        if side == 0:
            return rows.with_columns((pl.col(_TIME) // width).alias(_SLOT))
        first, last = ((pl.col(_TIME) + bound) // width for bound in self.reach[1])
        twice = rows.filter(first != last).with_columns(last.alias(_SLOT))
        return pl.concat([rows.with_columns(first.alias(_SLOT)), twice])

    def _counted(self, rows: pl.DataFrame, pairs: pl.DataFrame, side: int) -> pl.DataFrame:
        """The rows of one side with how many partners each had and has."""
        if not self.outer[side]:
            return rows.with_columns(pl.lit(0, pl.Int64).alias(_PARTNERS), pl.lit(0, pl.Int64).alias(f"{_PARTNERS}_b"))
        of = ("_r", "")[side]  # the other side's weights
        sums = pairs.group_by(_ROW[side]).agg(
            pl.col(f"{_WAS}{of}").sum().alias("_had"), pl.col(f"{_CAME}{of}").sum().alias("_gained")
        )
        rows = rows.join(sums, on=_ROW[side], how="left").with_columns(pl.col("_had", "_gained").fill_null(0))
        before = pl.col(_PARTNERS).fill_null(pl.col("_had"))
        counted = rows.with_columns(before.alias(f"{_PARTNERS}_b"), (before + pl.col("_gained")).alias(_PARTNERS))
        return counted.drop("_had", "_gained")

    def _alone(self, state: State, side: int, rows: pl.DataFrame) -> pl.DataFrame:
        """What changes of the rows that are shown without a partner."""
        other, end = state.sides[1 - side], pl.col(_TIME) + self.reach[side][1]
        was = pl.when((pl.col(f"{_PARTNERS}_b") == 0) & (end < other.before)).then(pl.col(_WAS)).otherwise(0)
        now = pl.when((pl.col(_PARTNERS) == 0) & (end < other.after)).then(pl.col(_WAS) + pl.col(_CAME)).otherwise(0)
        return rows.with_columns((now - was).alias(WEIGHT)).filter(pl.col(WEIGHT) != 0)

    def _save(self, state: State, side: int, rows: pl.DataFrame) -> None:
        expires = self._expiry(side, rows[_TIME])
        rows = rows.with_columns((pl.col(_WAS) + pl.col(_CAME)).alias(WEIGHT))
        kept = rows.filter((pl.col(WEIGHT) != 0) & (expires > state.sides[1 - side].after))
        state.table(_TABLES[side]).save(kept.drop(_WAS, _CAME, f"{_PARTNERS}_b", _ROW[side]))

    def _expire(self, state: State) -> None:
        for side, name in enumerate(_TABLES):
            if self._moved(state, side) and name in state.meta.tables:
                state.table(name).expire(state.sides[1 - side].after)
