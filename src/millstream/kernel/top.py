"""Top: the first rows of each group, in an order that no two different rows share; or those of the first ranks, however many tie.

Over input from which nothing is ever taken back, only those rows are kept: f(f(A) ∪ B) = f(A ∪ B). Of a batch only those are then
looked at that are among the first of the batch. Otherwise the next best must be at hand when one of them goes, so all rows of
the group are. With ``emit="final"`` the rows of a group appear when the window that it is of is over.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.kernel.chunk import WEIGHT
from millstream.kernel.kernel import State
from millstream.kernel.keyed import ONE, Keyed, weighed, with_key
from millstream.plan.spec import Order, Top

Numbers = npt.NDArray[np.int64]
_WAS = "_was"  # how often a row was there before the batch


class TopKernel:
    """The kernel of :class:`~millstream.plan.spec.Top`."""

    def __init__(self, spec: Top) -> None:
        self.spec = spec
        self.keys = list(spec.keys) or [ONE]
        self.columns = list(dict.fromkeys((*self.keys, *spec.columns, *(each.column for each in spec.order))))
        self.told = set(self.columns) - {ONE} == set(spec.columns)
        """Whether rows that differ at all differ in what is shown of them."""

    def step(self, state: State, rows: pl.DataFrame | None) -> pl.DataFrame | None:
        """Let the rows take their places."""
        if rows is None and state.after <= state.before:
            return None
        came = with_key(pl.DataFrame(schema=state.schema) if rows is None else rows, self.keys)
        came = weighed(self._promising(came) if self.spec.insert_only else came, self.columns)
        keyed = Keyed(state, self.keys, came.clear())
        old = keyed.open(came)
        fresh = came.select(*old.columns, pl.lit(0, pl.Int64).alias(_WAS))
        both = pl.concat([old.with_columns(pl.col(WEIGHT).alias(_WAS)), fresh])
        both = both.group_by(self.columns).agg(pl.col(_WAS, WEIGHT).sum())
        both = in_order(both, self.spec.order, self.columns, self.keys)
        ranks = Ranks(both, self.keys, self.spec)
        weights = both[WEIGHT].to_numpy()
        before, after = ranks.shown(both[_WAS].to_numpy()), ranks.shown(weights)
        keep = after if self.spec.insert_only else weights
        kept = both.select(*self.columns, pl.Series(WEIGHT, keep)).filter(pl.col(WEIGHT) != 0)
        if self.spec.emit == "final" and self.spec.horizon is not None:
            keyed.close_until(kept, self.spec.horizon, self.spec.lateness)
            closes = (
                both[self.spec.horizon.time].dt.epoch("us").to_numpy() + self.spec.horizon.span - self.spec.lateness
            )
            before, after = np.where(closes <= state.before, before, 0), np.where(closes <= state.after, after, 0)
        else:
            keyed.close_until(kept, self.spec.horizon)
        made = both.select(*self.spec.columns, pl.Series(WEIGHT, after - before)).filter(pl.col(WEIGHT) != 0)
        return made if self.told else weighed(made, list(self.spec.columns))

    def _promising(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows of a batch without those that have enough better ones in it; told by the order alone, so those that tie stay."""
        names = list(dict.fromkeys((*self.keys, *(each.column for each in self.spec.order))))
        slim = rows.select(*names, pl.col(WEIGHT) if WEIGHT in rows.columns else pl.lit(1, pl.Int64).alias(WEIGHT))
        slim = in_order(slim.with_row_index("_i"), self.spec.order, [], self.keys)
        ahead = Ranks(slim, self.keys, self.spec).ahead(slim[WEIGHT].to_numpy(), self.spec.ties or "rank")
        return rows[np.sort(slim["_i"].to_numpy()[ahead < self.spec.count])]


class Ranks:
    """Rows that are sorted, group after group: where their groups begin, and within them rows of equal order."""

    def __init__(self, rows: pl.DataFrame, keys: Sequence[str], spec: Top) -> None:
        self.spec = spec
        self.group = _starts(rows, keys, np.arange(rows.height) == 0)
        self.peers = _starts(rows, [each.column for each in spec.order], self.group)

    def shown(self, weights: Numbers) -> Numbers:
        """How often each of these rows is to be seen, of those there are; of one that is there often as many as have room."""
        weights = np.maximum(weights, 0)
        room = self.spec.count - self.ahead(weights, self.spec.ties)
        return np.where(room > 0, weights if self.spec.ties else np.minimum(weights, room), 0)

    def ahead(self, weights: Numbers, ties: str | None) -> Numbers:
        """How many rows of its group are before each row, before it and its peers, or how many orders are before its own."""
        if not len(weights):
            return weights
        if ties == "dense_rank":
            there = np.logical_or.reduceat(weights > 0, np.flatnonzero(self.peers))
            before = (np.cumsum(there) - there)[np.cumsum(self.peers) - 1]
        else:
            before = np.cumsum(weights) - weights
            before = before if ties is None else _first(before, self.peers)
        ahead: Numbers = before - _first(before, self.group)
        return ahead


def _starts(rows: pl.DataFrame, names: Sequence[str], known: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Where rows begin that are equal in these columns, besides where they are known to."""
    made = known.copy()
    for name in names:
        made[1:] |= rows[name].ne_missing(rows[name].shift(1)).to_numpy()[1:]
    return made


def _first(values: Numbers, starts: npt.NDArray[np.bool_]) -> Numbers:
    """For each row the value where its run begins."""
    found: Numbers = values[np.flatnonzero(starts)][np.cumsum(starts) - 1]
    return found


def in_order(
    rows: pl.DataFrame, order: tuple[Order, ...], columns: Sequence[str], keys: Sequence[str] = ()
) -> pl.DataFrame:
    """Sort by keys and an order, then by everything else, so that it does not matter who came first."""
    known = {*keys, *(each.column for each in order)}
    by = [*map(Order, keys), *order, *(Order(name) for name in columns if name not in known)]
    descending = [each.descending for each in by]
    # 0.0 and -0.0 are one key, and a sort tells them apart.
    floats = {name for name in keys if rows.schema[name].is_float()}
    texts = [pl.col(each.column) + 0.0 if each.column in floats else pl.col(each.column) for each in by]
    return rows.sort(texts, descending=descending, nulls_last=descending)
