"""Reduce: one row for each group of rows, and for each window if there is one; right under inserts and deletes.

A row comes with its time, and counts in every window that holds it: in one, or in several where windows overlap.
With ``emit="changes"`` a group's row changes with every batch that touches it. With ``emit="final"`` a window's rows appear
when the mark reaches its end, and change after that only for what was admitted late. State of a window goes when the mark
reaches its end plus the allowed lateness, that of a group whose key tells when it can change no more after that.
"""

from __future__ import annotations

import polars as pl

from millstream.kernel.kernel import State, differing, matched, signed
from millstream.kernel.measures import ROWS, Bag, Linear, bags, best, distincts, look, rendered, weigh
from millstream.kernel.segment import PLACE, Places, place
from millstream.kernel.sketches import merged, sketched
from millstream.kernel.windows import in_windows
from millstream.plan.nodes import WINDOW_COLUMNS
from millstream.plan.spec import Reduce

_EXPIRES = "_x"
_ONE = "_g"  # the key of a reduction without keys


class ReduceKernel:
    """The kernel of :class:`~millstream.plan.spec.Reduce`."""

    def __init__(self, spec: Reduce) -> None:
        self.spec = spec
        self.keys = list(spec.keys) or [_ONE]
        self.group = [*self.keys, WINDOW_COLUMNS[0]] if spec.size else self.keys
        self.bags = bags(spec)

    def step(self, state: State, rows: pl.DataFrame | None) -> pl.DataFrame | None:
        """Add the rows to their groups, then close what the mark has passed."""
        linear = Linear(self.spec, state.schema)
        closing = self._closing(state)
        if rows is None and closing is None:
            self._expire(state)
            return None
        if rows is None:
            rows = pl.DataFrame(schema=state.schema)
        if not self.spec.keys:
            rows = rows.with_columns(pl.lit(0, pl.Int8).alias(_ONE))
        if self.spec.size:
            rows = in_windows(rows, self.spec.size, self.spec.every or self.spec.size)
        delta = linear.delta(rows, self.group)
        delta = self._placed(self._count_distinct(state, rows, delta))
        groups = state.table("groups")
        places = delta[PLACE].to_numpy()
        old = groups.load(places, closing)
        if old is None:
            old = delta.clear()
        touched = linear.combine(matched(delta, old.drop(PLACE), self.group, "left", suffix="_b"))
        stored = [*self.group, *linear.columns, PLACE]
        rest = matched(old, delta, self.group, "anti")
        now = pl.concat([rest.select(stored), touched.filter(pl.col(ROWS) != 0).select(stored)])
        groups.save(now)
        seen = {bag.name: self._bag(state, bag, rows, places, closing) for bag in self.bags}

        names = [each.name for each in self.spec.measures]
        now_seen = {name: looked for name, (_, looked) in seen.items()}
        after = rendered(linear, touched, now_seen, self.group)
        before = rendered(linear, touched, {name: looked for name, (looked, _) in seen.items()}, self.group, "_b")
        # Under names of our own: an aggregate may be called what another one is with a suffix.
        both = touched.select(ROWS).with_columns(after[name].alias(f"_{i}") for i, name in enumerate(names))
        both = both.with_columns(before[name].alias(f"_{i}_b") for i, name in enumerate(names))
        had = touched[f"{ROWS}_b"].fill_null(0) > 0
        exists = touched[ROWS] > 0
        changed = ~(had & exists) | differing(both, [f"_{i}" for i in range(len(names))])
        if self.spec.emit == "final":
            ends = _micros(touched[WINDOW_COLUMNS[0]]) + (self.spec.size or 0)
            changed = changed & (ends <= state.before)
        gone = had & changed if self.spec.retract else had & ~exists & changed
        minus, plus = before.filter(gone), after.filter(exists & changed)
        if closing is not None:
            ends = _micros(now[WINDOW_COLUMNS[0]]) + (self.spec.size or 0)
            closed = now.filter((ends > state.before) & (ends <= state.after) & (now[ROWS] > 0))
            plus = pl.concat([plus, rendered(linear, closed, now_seen, self.group)])
        self._expire(state)
        return self._windowed(signed(minus, plus))

    def _closing(self, state: State) -> tuple[int, int] | None:
        """The span of expiries of the windows that close now."""
        if self.spec.emit != "final" or state.after <= state.before:
            return None
        return state.before + self.spec.lateness, state.after + self.spec.lateness

    def _expire(self, state: State) -> None:
        if (self.spec.size or self.spec.horizon) and state.after > state.before:
            for name in ("groups", *self._values(), *(bag.name for bag in self.bags)):
                if name in state.meta.tables:
                    state.table(name).expire(state.after)

    def _values(self) -> list[str]:
        return [f"values_{name}" for name in distincts(self.spec)]

    def _placed(self, frame: pl.DataFrame, extra: list[str] | None = None) -> pl.DataFrame:
        """With the place of each row: by key, or by key and value; windows in the order in which they expire."""
        columns = [*self.keys, *(extra or [])]
        horizon = self.spec.horizon
        if self.spec.size:
            time, until = WINDOW_COLUMNS[0], self.spec.size + self.spec.lateness
        elif horizon is not None:
            time, until = horizon.time, horizon.span + 1
        else:
            return frame.with_columns(pl.Series(PLACE, place(frame, columns)))
        frame = frame.with_columns((_micros(frame[time]) + until).alias(_EXPIRES))
        return frame.with_columns(pl.Series(PLACE, place(frame, columns, _EXPIRES))).drop(_EXPIRES)

    def _count_distinct(self, state: State, rows: pl.DataFrame, delta: pl.DataFrame) -> pl.DataFrame:
        """Fill in how many values each group has gained or lost. Values lie by key and value, so only those that came are read."""
        for name in distincts(self.spec):
            columns = [*self.group, name]
            came = self._placed(weigh(rows.drop_nulls(name), columns), [name])
            table = state.table(f"values_{name}")
            old = table.load(came[PLACE].to_numpy())
            if old is None:
                old = came.clear()
            both = matched(came, old.drop(PLACE), columns, "left", suffix="_b")
            both = both.with_columns(pl.col(f"{ROWS}_b").fill_null(0))
            both = both.with_columns((pl.col(ROWS) + pl.col(f"{ROWS}_b")).alias(ROWS))
            rest = matched(old, came, columns, "anti")
            table.save(pl.concat([rest, both.filter(pl.col(ROWS) != 0).select(rest.columns)]))
            gained = (pl.col(ROWS) > 0).cast(pl.Int64) - (pl.col(f"{ROWS}_b") > 0).cast(pl.Int64)
            gains = both.group_by(self.group).agg(gained.sum().alias("_gained"))
            delta = matched(delta, gains, self.group, "left")
            delta = delta.with_columns(pl.col("_gained").fill_null(0).alias(f"{name}_d")).drop("_gained")
        return delta

    def _bag(
        self, state: State, bag: Bag, rows: pl.DataFrame, places: Places, closing: tuple[int, int] | None
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Put the values that came into a bag; give what its aggregate was and is, by group.

        ``places`` are those of all groups that are touched: one that got only nulls is looked at too.
        """
        if bag.sketched:
            return self._sketch(state, bag, rows, places, closing)
        values = list(dict.fromkeys(bag.columns))
        columns = [*self.group, *(name for name in values if name not in self.group)]
        came = self._placed(weigh(rows.drop_nulls(bag.columns[-1]), columns))
        table = state.table(bag.name)
        old = table.load(places, closing)
        if old is None:
            old = came.clear()
        new = (
            pl.concat([old, came.select(old.columns)]).group_by(columns).agg(pl.col(ROWS).sum(), pl.col(PLACE).first())
        )
        new = new.filter(pl.col(ROWS) != 0)
        if bag.best_only:
            new = best(bag, new, self.group)
        table.save(new.select(old.columns))
        return look(bag, old, self.group), look(bag, new, self.group)

    def _sketch(
        self, state: State, bag: Bag, rows: pl.DataFrame, places: Places, closing: tuple[int, int] | None
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Merge the values that came into each group's sketch; give what its aggregate was and is, by group."""
        came = self._placed(sketched(bag.function, rows, bag.columns[0], self.group))
        table = state.table(bag.name)
        old = table.load(places, closing)
        if old is None:
            old = came.clear()
        new = merged(bag.function, pl.concat([old, came.select(old.columns)]), self.group)
        table.save(self._placed(new).select(old.columns))
        return look(bag, old, self.group), look(bag, new, self.group)

    def _windowed(self, changes: pl.DataFrame) -> pl.DataFrame:
        if not self.spec.keys:
            changes = changes.drop(_ONE)
        if not self.spec.size:
            return changes
        end = (pl.col(WINDOW_COLUMNS[0]) + pl.duration(microseconds=self.spec.size)).alias(WINDOW_COLUMNS[1])
        return changes.with_columns(end)


def _micros(times: pl.Series) -> pl.Series:
    return times.dt.epoch("us")
