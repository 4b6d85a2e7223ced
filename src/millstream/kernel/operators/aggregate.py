"""Reduce: one row for each group of rows, and for each window if there is one; right under inserts and deletes.

A row comes with its time, and counts in every window that holds it: in one, or in several where windows overlap.
With ``emit="changes"`` a group's row changes with every batch that touches it. With ``emit="final"`` a window's rows appear
when the mark reaches its end, and change after that only for what was admitted late. State of a window goes when the mark
reaches its end plus the allowed lateness, that of a group whose key tells when it can change no more after that.
"""

from __future__ import annotations

import polars as pl

from millstream.kernel.aggregates.accumulators import ROWS, Bag, bags, best, distincts, look, rendered
from millstream.kernel.aggregates.preaggregate import AT, ONE, Adder, Sums, group_of, keys_of, together
from millstream.kernel.aggregates.sketches import merged, sketched
from millstream.kernel.aggregates.time_windows import in_windows, micros
from millstream.kernel.kernel import State
from millstream.kernel.state.hash import hash_after, hash_columns
from millstream.kernel.state.segments import PLACE, Places, placed
from millstream.kernel.zset import differing, matched, signed, weigh
from millstream.plan.spec import Reduce
from millstream.relation.nodes import WINDOW_COLUMNS


class ReduceKernel:
    """The kernel of :class:`~millstream.plan.spec.Reduce`."""

    def __init__(self, spec: Reduce) -> None:
        self.spec = spec
        self.keys, self.group = keys_of(spec), group_of(spec)
        self.bags = bags(spec)

    def step(self, state: State, rows: pl.DataFrame | None, sums: pl.DataFrame | None = None) -> pl.DataFrame | None:
        """Add rows, and partial sums of rows, to their groups; then close what the mark has passed."""
        closing = self._closing(state)
        if rows is None and sums is None and closing is None:
            self._expire(state)
            return None
        if rows is None:
            rows = pl.DataFrame(schema=state.schema)
        adder = Adder(self.spec, state.schema)
        linear, came = adder.linear, adder.add_rows(rows)
        if sums is not None:
            came = adder.add(together(came, adder.unpack(sums)))
        came = adder.in_windows(came)
        delta = self._placed(self._count_distinct(state, came))
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
        if self.bags:
            rows = self._in_windows(rows)
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
            ends = micros(touched[WINDOW_COLUMNS[0]]) + (self.spec.size or 0)
            changed = changed & (ends <= state.before)
        gone = had & changed if self.spec.retract else had & ~exists & changed
        minus, plus = before.filter(gone), after.filter(exists & changed)
        if closing is not None:
            ends = micros(now[WINDOW_COLUMNS[0]]) + (self.spec.size or 0)
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

    def _placed(self, frame: pl.DataFrame) -> pl.DataFrame:
        """With the place of each row: by key; windows in the order in which they expire."""
        hashed = hash_columns([frame[name] for name in self.keys])
        return frame.with_columns(pl.Series(PLACE, placed(hashed, self._expiry(frame))))

    def _expiry(self, groups: pl.DataFrame) -> pl.Series | None:
        """When groups go, if ever."""
        horizon = self.spec.horizon
        if self.spec.size:
            return micros(groups[WINDOW_COLUMNS[0]]) + (self.spec.size + self.spec.lateness)
        return micros(groups[horizon.time]) + (horizon.span + 1) if horizon is not None else None

    def _count_distinct(self, state: State, came: Sums) -> pl.DataFrame:
        """The groups that came, with how many values each has gained or lost.

        Values lie by key and value, so only those that came are read.
        """
        delta = came.groups
        expiry = self._expiry(delta)
        for name, values in came.values.items():
            numbers = values[AT]
            hashed = hash_after([delta[key] for key in self.keys], numbers.to_numpy(), values[name])
            places = placed(hashed, expiry.gather(numbers) if expiry is not None else None)
            table = state.table(f"values_{name}")
            old = table.load(places)
            both = values.with_columns(pl.Series(PLACE, places), pl.lit(0, pl.Int64).alias("_before"))
            stored = [*self.group, name, ROWS, PLACE]
            rest = None
            if old is not None:
                known = matched(old, delta.select(self.group).with_row_index(AT), self.group, "left")
                rest = known.join(values, on=[AT, name], how="anti").select(stored)
                known = known.select(AT, name, pl.col(ROWS).alias("_before"))
                both = both.drop("_before").join(known, on=[AT, name], how="left")
                both = both.with_columns(pl.col("_before").fill_null(0))
                both = both.with_columns((pl.col(ROWS) + pl.col("_before")).alias(ROWS))
            there = both.filter(pl.col(ROWS) != 0)
            new = pl.concat([delta.select(self.group)[there[AT]], there.select(name, ROWS, PLACE)], how="horizontal")
            table.save(new if rest is None else pl.concat([rest, new.select(rest.columns)]))
            gained = (pl.col(ROWS) > 0).cast(pl.Int64) - (pl.col("_before") > 0).cast(pl.Int64)
            gains = both.group_by(AT).agg(gained.sum().alias("_gained"))
            delta = delta.with_row_index(AT).join(gains, on=AT, how="left", maintain_order="left")
            delta = delta.with_columns(pl.col("_gained").fill_null(0).alias(f"{name}_d")).drop(AT, "_gained")
        return delta

    def _in_windows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Each row once for every window that holds its time, with the start of the window in its place."""
        if not self.spec.keys:
            rows = rows.with_columns(pl.lit(0, pl.Int8).alias(ONE))
        if not self.spec.size:
            return rows
        return in_windows(rows, self.spec.size, self.spec.every or self.spec.size)

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
        came = self._placed(weigh(rows.drop_nulls(bag.columns[-1]), columns, ROWS))
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
            changes = changes.drop(ONE)
        if not self.spec.size:
            return changes
        end = (pl.col(WINDOW_COLUMNS[0]) + pl.duration(microseconds=self.spec.size)).alias(WINDOW_COLUMNS[1])
        return changes.with_columns(end)
