"""Sessions: rows of a key of which each is at most one gap after the one before, as one row each.

What is kept of a key is *atoms*: its moments, each with the columns that add up. A row that is taken back takes its moment
along, and a session falls apart where that leaves a gap. As long as nothing is ever taken back, a whole session is one
atom, however many rows it has. Output is f(after) − f(before) over the atoms of the keys that were touched or are due.

A session ends one gap after its last row. A row at that very end still belongs to it, so it is final when the mark is
beyond the end, and forgotten when the mark is beyond the end by the allowed lateness.
"""

from __future__ import annotations

import polars as pl

from millstream.kernel.aggregates.accumulators import (
    ROWS,
    Bag,
    Linear,
    bags,
    best,
    look,
    rendered,
    sets_for_distinct,
    sizes,
)
from millstream.kernel.aggregates.sketches import SKETCH, merged, sketched
from millstream.kernel.kernel import State
from millstream.kernel.operators.keyed_rows import ONE, WAKE, Keyed, check_size, with_key
from millstream.kernel.state.segments import PLACE
from millstream.kernel.zset import difference, matched, weigh
from millstream.plan.spec import Reduce, Session
from millstream.relation.nodes import WINDOW_COLUMNS

_FROM, _TO = "_from", "_to"  # the first and last moment of an atom
_START, _LAST = "_start", "_last"  # those of the session it is in


class SessionKernel:
    """The kernel of :class:`~millstream.plan.spec.Session`."""

    def __init__(self, spec: Session) -> None:
        self.spec = spec
        self.keys = list(spec.keys) or [ONE]
        self.group = [*self.keys, _START]
        self.reduce = Reduce(spec.keys, sets_for_distinct(spec.measures), insert_only=spec.insert_only)
        self.bags = bags(self.reduce)

    def step(self, state: State, rows: pl.DataFrame | None) -> pl.DataFrame | None:
        """Put the rows into their sessions, then close what the mark has passed."""
        if rows is None and state.after <= state.before:
            return None
        rows = with_key(pl.DataFrame(schema=state.schema) if rows is None else rows, self.keys)
        rows = rows.with_columns(pl.col(self.spec.time).dt.epoch("us").alias(_FROM))
        linear = Linear(self.reduce, state.schema)
        came = linear.delta(rows, [*self.keys, _FROM]).with_columns(pl.col(_FROM).alias(_TO))
        keyed = Keyed(state, self.keys, came.clear())
        old = keyed.open(came)
        atoms = linear.total(pl.concat([old, came.select(old.columns)]), [*self.keys, _FROM, _TO])
        was, now = self._in_sessions(old), self._in_sessions(atoms.filter(pl.col(ROWS) != 0))
        kept = self._kept(state, linear, now)
        seen = {bag.name: self._bag(state, keyed, bag, rows, was, now, kept) for bag in self.bags}
        before = self._made(state, state.before, linear, was, {name: looked for name, (looked, _) in seen.items()})
        after = self._made(state, state.after, linear, now, {name: looked for name, (_, looked) in seen.items()})
        keyed.close(kept.select(old.columns), self._wake(state, kept))
        return difference(before, after)

    def _in_sessions(self, atoms: pl.DataFrame) -> pl.DataFrame:
        """Say of each atom in which session it is."""
        atoms = atoms.sort(_FROM)
        # The furthest of those before, not the last: an atom that is a whole session may reach over the next ones.
        reach = pl.col(_TO).cum_max().shift(1).over(self.keys)
        number = (reach.is_null() | (pl.col(_FROM) > reach + self.spec.gap)).cum_sum().over(self.keys)
        atoms = atoms.with_columns(number.alias("_number"))
        session = [*self.keys, "_number"]
        return atoms.with_columns(
            pl.col(_FROM).min().over(session).alias(_START), pl.col(_TO).max().over(session).alias(_LAST)
        ).drop("_number")

    def _kept(self, state: State, linear: Linear, atoms: pl.DataFrame) -> pl.DataFrame:
        """What later rows may still change, in as few atoms as possible."""
        end = pl.col(_LAST) + self.spec.gap + self.spec.lateness
        kept = atoms.filter(end >= state.after)
        if not self.spec.insert_only:
            return kept
        whole = linear.total(kept, [*self.group, _LAST])
        return whole.with_columns(pl.col(_START).alias(_FROM), pl.col(_LAST).alias(_TO))

    def _wake(self, state: State, atoms: pl.DataFrame) -> pl.DataFrame:
        closed = pl.col(_LAST) + self.spec.gap + 1
        gone = closed + self.spec.lateness
        if self.spec.emit == "final":
            gone = pl.when(closed > state.after).then(closed).otherwise(gone)
        return atoms.group_by(self.keys).agg(gone.min().alias(WAKE))

    def _made(
        self, state: State, mark: int, linear: Linear, atoms: pl.DataFrame, looked: dict[str, pl.DataFrame]
    ) -> pl.DataFrame:
        """The rows that these sessions are, as far as they are to be seen at this mark."""
        ends = atoms.group_by(self.group).agg(pl.col(_LAST).first() + self.spec.gap)
        made = linear.total(atoms, self.group).filter(pl.col(ROWS) > 0)
        made = matched(rendered(linear, made, looked, self.group), ends, self.group, "left")
        if self.spec.emit == "final":
            made = made.filter(pl.col(_LAST) < mark)
        dtype = state.schema[self.spec.time]
        return sizes(made, self.spec.measures).select(
            *self.spec.keys,
            pl.col(_START).cast(dtype).alias(WINDOW_COLUMNS[0]),
            pl.col(_LAST).cast(dtype).alias(WINDOW_COLUMNS[1]),
            *(each.name for each in self.spec.measures),
        )

    def _bag(
        self,
        state: State,
        keyed: Keyed,
        bag: Bag,
        rows: pl.DataFrame,
        was: pl.DataFrame,
        now: pl.DataFrame,
        kept: pl.DataFrame,
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Put the values that came into a bag; give what its aggregate was and is, by session."""
        if bag.sketched:
            return self._sketch(state, keyed, bag, rows, was, now, kept)
        values = [name for name in dict.fromkeys(bag.columns) if name not in self.keys]
        columns = [*self.keys, _FROM, *values]
        came = weigh(rows.drop_nulls(bag.columns[-1]), columns, ROWS)
        came = came.with_columns(pl.Series(PLACE, keyed.place(came)))
        table = state.table(bag.name)
        loaded = table.load(keyed.places)
        if loaded is None:
            loaded = came.clear()
        old = matched(loaded, keyed.keys, self.keys, "semi")
        rest = matched(loaded, keyed.keys, self.keys, "anti")
        new = (
            pl.concat([old, came.select(old.columns)]).group_by(columns).agg(pl.col(ROWS).sum(), pl.col(PLACE).first())
        )
        old = self._labelled(old, was)
        new = self._labelled(new.filter(pl.col(ROWS) != 0), now)
        stay = matched(new, kept.select(self.group).unique(), self.group, "semi")
        if self.spec.insert_only:  # the session is one atom now, under its start
            stay = best(bag, stay, self.group) if bag.best_only else stay
            stay = stay.with_columns(pl.col(_START).alias(_FROM)).group_by([*columns, PLACE]).agg(pl.col(ROWS).sum())
        check_size(stay, self.keys)
        table.save(pl.concat([rest, stay.select(rest.columns)]))
        # A value may be in several atoms of one session.
        of_session = [*self.group, *values]
        was_there, is_there = (each.group_by(of_session).agg(pl.col(ROWS).sum()) for each in (old, new))
        return look(bag, was_there, self.group), look(bag, is_there, self.group)

    def _sketch(
        self,
        state: State,
        keyed: Keyed,
        bag: Bag,
        rows: pl.DataFrame,
        was: pl.DataFrame,
        now: pl.DataFrame,
        kept: pl.DataFrame,
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Merge the values that came into each session's sketch, which lies under its start."""
        at = [*self.keys, _FROM]
        came = sketched(bag.function, self._labelled(rows, now), bag.columns[0], self.group)
        stored = pl.DataFrame(schema={**rows.select(at).schema, SKETCH: pl.Binary, PLACE: pl.UInt64})
        table = state.table(bag.name)
        loaded = table.load(keyed.places)
        if loaded is None:
            loaded = stored
        mine = matched(loaded, keyed.keys, self.keys, "semi")
        rest = matched(loaded, keyed.keys, self.keys, "anti")
        old = self._labelled(mine, was)
        parts = [each.select(*self.group, SKETCH) for each in (self._labelled(mine, now).sort(_FROM), came)]
        new = merged(bag.function, pl.concat(parts), self.group)
        stay = matched(new, kept.select(self.group).unique(), self.group, "semi").rename({_START: _FROM})
        stay = stay.with_columns(pl.Series(PLACE, keyed.place(stay)))
        table.save(pl.concat([rest, stay.select(rest.columns)]))
        return look(bag, old, self.group), look(bag, new, self.group)

    def _labelled(self, values: pl.DataFrame, atoms: pl.DataFrame) -> pl.DataFrame:
        """Values with the start of the session that their atom is in."""
        at = [*self.keys, _FROM]
        return matched(values, atoms.select(*at, _START).unique(), at, "inner")
