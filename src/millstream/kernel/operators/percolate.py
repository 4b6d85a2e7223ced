"""Events with the stored queries that they meet, as these were at the event's time.

A query holds from the timestamp of its record until the next record of its key takes over, as a row of a table does in a join as of
a time (:mod:`millstream.kernel.operators.asof_join`): in the order of offsets, and for one that was appended when the stream's mark
was beyond its timestamp, from that mark on, less the lateness. So what an event meets does not depend on where batches end.

Every bucket has all queries, and the events that go there. An event is answered at once, against all queries, by an index
(:mod:`millstream.kernel.percolation.index`); it is kept as long as one of its time may still be admitted, and looked at again when a
record of a query arrives that holds at its time: against the queries of which there are records, and no others. Nothing here
can fail by what a query says: one that cannot be read is a dead letter before it comes here.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from millstream.errors import KeyTooLarge, PlanError
from millstream.kernel.kernel import State
from millstream.kernel.percolation.arrays import Ints
from millstream.kernel.percolation.columns import Column, column_of
from millstream.kernel.percolation.index import index_of
from millstream.kernel.state.segments import PLACE, Table, place
from millstream.kernel.zset import WEIGHT, matched, weighed
from millstream.plan.operators.percolate import CONDITION
from millstream.plan.spec import Percolate

_TIME, _VALID, _OFFSET, _GONE, _APPENDED = "_t", "_v", "_offset", "_gone", "_a"
_UNTIL = "_until"
_SECOND = 1_000_000
_HASH_BITS = 12
_EVER = (1 << 63) - 1
MOST = 5_000_000
"""Pairs that one bucket may make in one batch."""


class PercolateKernel:
    """The kernel of :class:`~millstream.plan.spec.Percolate`; queries come with ``_offset``, ``_a`` and ``_deleted``."""

    def __init__(self, spec: Percolate) -> None:
        self.spec = spec
        self.columns = columns_of(spec)
        self.keys = list(spec.keys)
        self.event = list(dict.fromkeys((*spec.events, _TIME)))

    def step(self, state: State, left: pl.DataFrame | None, right: pl.DataFrame | None) -> pl.DataFrame | None:
        """Take in what is said of queries, then answer what comes and correct what was answered."""
        if left is None and right is None:
            self._expire(state)
            return None
        came, said = self._came(state, left), self._said(state, right)
        old, new, rest = self._queries(state, said)
        made = [self._met(came, pl.concat([rest, new]))]
        since = said.select(pl.col(_VALID).min()).item() if said.height else None
        kept = self._kept(state, came, since)
        if kept is not None:
            made += [self._met(kept.with_columns(-pl.col(WEIGHT)), old), self._met(kept, new)]
        self._expire(state)
        both = pl.concat(made)
        return weighed(both, [name for name in both.columns if name != WEIGHT]).select(both.columns)

    def _came(self, state: State, rows: pl.DataFrame | None) -> pl.DataFrame:
        """The events that come, equal ones as one, with their weight."""
        schema = state.sides[0].schema
        for column in self.columns:
            column.check(schema[column.name])
        if rows is None:
            rows = pl.DataFrame(schema={**{name: schema[name] for name in self.event}, WEIGHT: pl.Int64()})
        return weighed(rows, self.event)

    def _said(self, state: State, rows: pl.DataFrame | None) -> pl.DataFrame:
        """What is said of queries, as rows that hold from a time on; one that is deleted or does not count is gone from then."""
        schema = state.sides[1].schema
        if schema[CONDITION] != pl.String:
            raise PlanError(
                f"percolate: expected conditions as text; found {schema[CONDITION]}",
                hint="declare the column as string",
            )
        if rows is None:
            rows = pl.DataFrame(schema=schema)
        gone = pl.col("_deleted") | ~pl.col("_keep").fill_null(False) | pl.col(CONDITION).is_null()
        open_since = state.clock.at(rows[_APPENDED], state.before) - self.spec.lateness
        return rows.select(
            *dict.fromkeys((*self.keys, *self.spec.shown, CONDITION)),
            pl.max_horizontal(_VALID, open_since),
            _OFFSET,
            gone.alias(_GONE),
        )

    def _queries(self, state: State, said: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        """Put what is said into the history of queries; give those of the touched keys before and after, and all others.

        Each is a row that holds from a time until another.
        """
        table = state.table("queries")
        loaded = _all(table)
        loaded = said.clear() if loaded is None else loaded.drop(PLACE)
        old = matched(loaded, said, self.keys, "semi")
        rest = matched(loaded, said, self.keys, "anti")
        whole = pl.concat([old, said.select(old.columns)]).sort(_OFFSET)
        whole = whole.with_columns(pl.col(_VALID).cum_max().over(self.keys))
        new = whole.unique([*self.keys, _VALID], keep="last", maintain_order=True)
        if said.height:
            # No event before this will come or be corrected: of what holds from before it, only the last can be seen.
            seen = state.after - self.spec.lateness
            following = pl.col(_VALID).shift(-1).over(self.keys)
            hidden = (following <= seen).fill_null(False) | (pl.col(_GONE) & (pl.col(_VALID) <= seen))
            kept = pl.concat([rest, new.filter(~hidden)])
            table.save(kept.with_columns(pl.Series(PLACE, place(kept, self.keys))))
        return self._spans(old), self._spans(new), self._spans(rest)

    def _spans(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows with the time until which each holds, without those that say that a query is gone."""
        rows = rows.sort(_OFFSET)
        following = pl.col(_VALID).shift(-1).over(self.keys) if rows.height else pl.col(_VALID)
        return rows.with_columns(following.fill_null(_EVER).alias(_UNTIL)).filter(~pl.col(_GONE))

    def _met(self, events: pl.DataFrame, queries: pl.DataFrame) -> pl.DataFrame:
        """Each event with the queries that it meets and that hold at its time."""
        queries = queries.sort(*self.keys, _VALID)  # the same queries in the next batch have the same index
        row = query = np.zeros(0, np.int64)
        if events.height and queries.height:
            row, query = index_of(tuple(queries[CONDITION].to_list()), self.columns).matches(events)
            self._check_size(queries, query)
        times, since, until = events[_TIME].to_numpy(), queries[_VALID].to_numpy(), queries[_UNTIL].to_numpy()
        holds = (times[row] >= since[query]) & (times[row] < until[query])
        return pl.concat(
            [
                events.select(*self.spec.events, WEIGHT)[row[holds]],
                queries.select(self.spec.shown)[query[holds]],
            ],
            how="horizontal",
        ).select(*self.spec.events, *self.spec.shown, WEIGHT)

    def _check_size(self, queries: pl.DataFrame, query: Ints) -> None:
        """Refuse to make more pairs than memory has room for, naming the query that has most of them."""
        if len(query) > MOST:
            counts = np.bincount(query)
            worst = queries.row(int(counts.argmax()), named=True)
            key = ", ".join(f"{name} = {worst[name]!r}" for name in self.keys)
            raise KeyTooLarge(
                f"percolate would make {len(query):,} pairs of an event and a query in one batch of one bucket; at most {MOST:,} are"
                f" allowed. The query {key} meets {counts.max():,} events, most of all",
                hint="delete queries that nearly every event meets, or read fewer records in a batch (--rate-limit)",
            )

    def _kept(self, state: State, came: pl.DataFrame, since: int | None) -> pl.DataFrame | None:
        """Keep the events that come; give those that were kept before, from that time on, if there are any."""
        fresh = came.with_columns(self._place(came))
        table = state.table("events")
        newest = (state.meta.tables["events"].newest >> 32) * _SECOND
        first = None if since is None else max(since + self.spec.lateness, state.before)
        span = (first, newest) if first is not None and first <= newest + _SECOND else None
        if not fresh.height and span is None:
            return None
        loaded = table.load(fresh[PLACE].to_numpy(), span)
        rows = fresh if loaded is None else pl.concat([loaded, fresh.select(loaded.columns)])
        if fresh.height:
            columns = [name for name in rows.columns if name != WEIGHT]
            over = pl.col(_TIME) + self.spec.lateness < state.after
            table.save(weighed(rows, columns).filter(~over))
        if loaded is None or since is None:
            return None
        return loaded.filter(pl.col(_TIME) >= since).select(*self.event, WEIGHT)

    def _place(self, rows: pl.DataFrame) -> pl.Series:
        """Where events lie: in the order of their times, so that those of a batch lie side by side."""
        expires = rows[_TIME].to_numpy() + self.spec.lateness
        seconds = np.clip(expires // _SECOND, 0, (1 << 32) - 1).astype(np.uint64) << np.uint64(32)
        within = (expires % _SECOND).astype(np.uint64) << np.uint64(_HASH_BITS)
        hashed = place(rows, list(self.spec.events)) >> np.uint64(32 - _HASH_BITS)
        return pl.Series(PLACE, seconds | within | hashed)

    def _expire(self, state: State) -> None:
        if state.after > state.before and "events" in state.meta.tables:
            state.table("events").expire(state.after)


def columns_of(spec: Percolate) -> tuple[Column, ...]:
    """The columns that conditions may use."""
    found = {name: column_of(name, declared) for name, declared in spec.columns}
    wrong = [f"{name} {declared}" for name, declared in spec.columns if found[name] is None]
    if wrong:
        raise PlanError(
            f"percolate: conditions cannot use {', '.join(wrong)}; only numbers, text, truth values, dates and times",
            hint='name what they may use: columns="price double, title string"',
        )
    return tuple(column for column in found.values() if column is not None)


def _all(table: Table) -> pl.DataFrame | None:
    """All rows of a table of which nothing expires."""
    return table.load(np.zeros(0, np.uint64), (0, 0))
