"""Joins of a stream with a table: the table as it was at each event's time, or as it is when the event is processed.

As of a time: a row of the table holds from the timestamp of its record until the next record of its key takes over, in the order
of offsets; a record that claims to be older than the one before it takes over where that one did. One that was appended when the
stream's mark was beyond its timestamp holds from that mark on, less the lateness: for events that could still be admitted
then, and no others. So what an event sees does not depend on where batches end.

An event is answered at once, and kept as long as an event of its time may still be admitted; a record of the table that arrives in
the meantime corrects the answer. Of the history of a key only what such events can see is kept: the last row before them, and what
came after.

Latest: state is the table alone, and what was answered is never corrected.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from millstream.kernel.kernel import State
from millstream.kernel.operators.join import by_key, change, changes, key_names, key_types, outcome, pairs
from millstream.kernel.state.segments import PLACE, Places, place
from millstream.kernel.zset import WEIGHT, weighed
from millstream.plan.spec import AsOfJoin, LatestJoin

_TIME, _VALID, _OFFSET, _GONE, _APPENDED = "_t", "_v", "_offset", "_gone", "_a"
_KEY = "_key"  # the number of a key during a batch
_HASH = "_h"
_WAS, _CAME = "_was", "_came"
_EXPIRES = "_x"
_SECOND = 1_000_000
_LOW = (1 << 32) - 1  # the half of a place that is the hash
_STEPS = 8
"""Into how many steps of expiry the time is cut for which events are kept."""

_MANY = 4 * _STEPS
"""Steps beyond which events are read whatever their key: a partition is far behind, and little of what is kept would be left out."""


class AsOfJoinKernel:
    """The kernel of :class:`~millstream.plan.spec.AsOfJoin`; rows of the table come with ``_offset``, ``_a`` and ``_deleted``."""

    def __init__(self, spec: AsOfJoin) -> None:
        self.spec = spec
        self.keys = key_names(spec.keys)
        self.on = [*self.keys, _HASH]
        self.step_size = max(_SECOND, (spec.delay + spec.lateness) // _STEPS)

    def step(self, state: State, left: pl.DataFrame | None, right: pl.DataFrame | None) -> pl.DataFrame | None:
        """Take in what the table says, then answer what comes and correct what was answered."""
        if left is None and right is None:
            self._expire(state)
            return None
        types = key_types(state.sides, self.keys)
        came = changes(left, state.sides[0], types, (*self.spec.left, _TIME))
        came = came.with_columns(pl.Series(_HASH, place(came, self.keys)))
        said = self._said(state, right, types)
        known = came.drop_nulls(self.keys)
        numbered = pl.concat([known.select(self.on), said.select(self.on)]).unique().with_row_index(_KEY)
        old, new, since = self._history(state, said, numbered)
        events = self._events(state, known, since, numbered)
        touched = events.filter((pl.col(_CAME) != 0) | (pl.col(_TIME) >= pl.col(_VALID))).drop(_VALID)
        before = self._answered(touched.with_columns((-pl.col(_WAS)).alias(WEIGHT)), old)
        after = self._answered(touched.with_columns((pl.col(_WAS) + pl.col(_CAME)).alias(WEIGHT)), new)
        both = pl.concat([before, after])
        made = [weighed(both, [name for name in both.columns if name != WEIGHT])]
        if self.spec.how == "left":
            made.append(came.filter(pl.any_horizontal(pl.col(self.keys).is_null())))
        self._expire(state)
        return outcome(made, state.sides, types, self.spec.left, self.spec.right)

    def _said(self, state: State, rows: pl.DataFrame | None, types: dict[str, pl.DataType]) -> pl.DataFrame:
        """What the table says, as rows that hold from a time on; one that is deleted or does not count is gone from then."""
        side = state.sides[1]
        values = {**types, **{name: side.schema[name] for name in self.spec.right}}
        if rows is None:
            rows = pl.DataFrame(schema=side.schema)
        gone = pl.col("_deleted") | ~pl.col("_keep").fill_null(False)
        cast = [pl.col(name).cast(dtype) for name, dtype in values.items()]
        open_since = state.clock.at(rows[_APPENDED], state.before) - self.spec.lateness
        said = rows.select(*cast, pl.max_horizontal(_VALID, open_since), _OFFSET, gone.alias(_GONE))
        return said.with_columns(pl.Series(_HASH, place(said, self.keys)))

    def _history(
        self, state: State, said: pl.DataFrame, numbered: pl.DataFrame
    ) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        """Put what the table says into its history; give that of the touched keys before and after, and since when it differs."""
        table = state.table("history")
        loaded = table.load(numbered[_HASH].to_numpy())
        loaded = said.clear() if loaded is None else loaded.rename({PLACE: _HASH})
        old = loaded.join(numbered, on=self.on, how="inner")
        fresh = said.join(numbered, on=self.on, how="inner")
        whole = pl.concat([old, fresh.select(old.columns)]).sort(_KEY, _OFFSET)
        whole = whole.with_columns(pl.col(_VALID).cum_max().over(_KEY))
        since = whole.join(fresh.select(_KEY, _OFFSET), on=[_KEY, _OFFSET], how="semi")
        since = since.group_by(_KEY).agg(pl.col(_VALID).min())
        new = whole.unique([_KEY, _VALID], keep="last", maintain_order=True)
        if fresh.height:
            rest = loaded.join(numbered, on=self.on, how="anti")
            # No event before this will come or be corrected: of what holds from before it, only the last can be seen.
            seen = state.after - self.spec.lateness
            following = pl.col(_VALID).shift(-1).over(_KEY)
            hidden = (following <= seen).fill_null(False) | (pl.col(_GONE) & (pl.col(_VALID) <= seen))
            kept = pl.concat([rest, new.filter(~hidden).select(rest.columns)])
            table.save(kept.rename({_HASH: PLACE}))
        return old, new, since

    def _events(self, state: State, came: pl.DataFrame, since: pl.DataFrame, numbered: pl.DataFrame) -> pl.DataFrame:
        """The events that come, and those kept of the keys of which the table says something new; keep them all that may change."""
        fresh = self._placed(came)
        changed = since.join(numbered, on=_KEY, how="inner")
        places, span = self._where(state, changed)
        table = state.table("events")
        loaded = table.load(np.concatenate([fresh[PLACE].to_numpy(), places]), span)
        fresh = fresh.rename({WEIGHT: _CAME}).with_columns(pl.lit(0, pl.Int64).alias(_WAS))
        events = fresh
        if loaded is not None:
            loaded = loaded.rename({WEIGHT: _WAS}).with_columns(
                pl.lit(0, pl.Int64).alias(_CAME),
                self._expiry(pl.col(_TIME)).alias(_EXPIRES),
                (pl.col(PLACE) & _LOW).alias(_HASH),
            )
            same = [name for name in fresh.columns if name not in (_WAS, _CAME)]
            events = pl.concat([loaded, fresh.select(loaded.columns)])
            events = events.group_by(same).agg(pl.col(_WAS).sum(), pl.col(_CAME).sum())
        weight = (pl.col(_WAS) + pl.col(_CAME)).alias(WEIGHT)
        kept = events.filter((weight != 0) & (pl.col(_EXPIRES) > state.after)).with_columns(weight)
        table.save(kept.drop(_WAS, _CAME, _EXPIRES, _HASH))
        # What is over may still lie there. No record holds from so early that it would see it (`_said`).
        seen = events.join(numbered, on=self.on, how="inner").join(since, on=_KEY, how="left")
        return seen.drop(PLACE, _EXPIRES, _HASH)

    def _where(self, state: State, changed: pl.DataFrame) -> tuple[Places, tuple[int, int] | None]:
        """Where the events lie that see what the table says anew: of these keys, from that time on."""
        newest = (state.meta.tables["events"].newest >> 32) * _SECOND if "events" in state.meta.tables else 0
        first = pl.max_horizontal(self._expiry(pl.col(_VALID)), pl.lit(max(state.before, 0)))
        changed = changed.filter(first <= newest + self.step_size)
        low = changed.select((first // self.step_size * self.step_size).alias(_EXPIRES))
        if not low.height or not newest:
            return np.zeros(0, np.uint64), None
        least = int(low[_EXPIRES].min())  # type: ignore[arg-type]
        steps = (newest - least) // self.step_size + 2
        if steps > _MANY:
            return np.zeros(0, np.uint64), (least, newest)
        made = [place(low + number * self.step_size, [], _EXPIRES) for number in range(max(steps, 0))]
        return np.concatenate([np.zeros(0, np.uint64), *(each | changed[_HASH].to_numpy() for each in made)]), None

    def _expiry(self, times: pl.Expr) -> pl.Expr:
        return ((times + self.spec.lateness) // self.step_size + 1) * self.step_size

    def _placed(self, rows: pl.DataFrame) -> pl.DataFrame:
        rows = rows.with_columns(self._expiry(pl.col(_TIME)).alias(_EXPIRES))
        return rows.with_columns(pl.Series(PLACE, place(rows, [], _EXPIRES) | rows[_HASH].to_numpy()))

    def _answered(self, events: pl.DataFrame, history: pl.DataFrame) -> pl.DataFrame:
        """Each event with the row of the table that held at its time."""
        events = events.filter(pl.col(WEIGHT) != 0).drop(_WAS, _CAME).sort(_TIME)
        rows = history.select(_KEY, _VALID, _GONE, *self.spec.right).sort(_VALID)
        found = events.join_asof(
            rows, left_on=_TIME, right_on=_VALID, by=_KEY, strategy="backward", check_sortedness=False
        )
        there = ~pl.col(_GONE).fill_null(True)
        found = found.with_columns(pl.when(there).then(pl.col(name)).alias(name) for name in self.spec.right)
        found = found if self.spec.how == "left" else found.filter(there)
        return found.select(*self.keys, *self.spec.left, *self.spec.right, WEIGHT)

    def _expire(self, state: State) -> None:
        if state.after > state.before and "events" in state.meta.tables:
            state.table("events").expire(state.after)


class LatestJoinKernel:
    """The kernel of :class:`~millstream.plan.spec.LatestJoin`."""

    def __init__(self, spec: LatestJoin) -> None:
        self.spec = spec
        self.keys = key_names(spec.keys)
        self.on = [*self.keys, PLACE]

    def step(self, state: State, left: pl.DataFrame | None, right: pl.DataFrame | None) -> pl.DataFrame | None:
        """Change the table, then answer what comes."""
        if left is None and right is None:
            return None
        types = key_types(state.sides, self.keys)
        came = by_key(changes(left, state.sides[0], types, self.spec.left), self.keys)
        said = by_key(changes(right, state.sides[1], types, self.spec.right), self.keys).drop_nulls(self.keys)
        touched = pl.concat([came.select(self.on), said.select(self.on)]).drop_nulls().unique()
        _, rows = change(state.table("rows"), said, touched)
        made = [pairs(came, rows, self.on)]
        if self.spec.how == "left":
            made.append(came.join(rows, on=self.on, how="anti"))
        return outcome(made, state.sides, types, self.spec.left, self.spec.right)
