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

from millstream.kernel.kernel import State
from millstream.kernel.operators.keyed_rows import ONE, Keyed, with_key
from millstream.kernel.zset import WEIGHT, weighed
from millstream.plan.spec import Order, Top

Numbers = npt.NDArray[np.int64]
_WAS = "_was"  # how often a row was there before the batch
_AT, _GROUP, _PEERS = "_at", "_group", "_peers"  # numbers: of a row, of its group, of the rows that share its order


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
        weight = pl.col(WEIGHT) if WEIGHT in came.columns else pl.lit(1, pl.Int64).alias(WEIGHT)
        came = came.select(*self.columns, weight, pl.lit(0, pl.Int64).alias(_WAS))
        came = self._promising(came) if self.spec.insert_only else came
        keyed = Keyed(state, self.keys, came.drop(_WAS).clear())
        old = keyed.open(came)
        old = old.with_columns(pl.col(WEIGHT).alias(_WAS)).select(came.columns)
        both = pl.concat([old, came]) if old.height else came
        line = self._line(both)
        ranks = Ranks(line, [_GROUP], [_PEERS], self.spec)
        weights = line[WEIGHT].to_numpy()
        before, after = ranks.shown(line[_WAS].to_numpy()), ranks.shown(weights)

        def some(columns: Sequence[str], weights: Numbers) -> pl.DataFrame:
            """Those rows that have a weight, by it: only now are they looked up."""
            there = np.flatnonzero(weights)
            return both.select(columns)[line[_AT].to_numpy()[there]].with_columns(pl.Series(WEIGHT, weights[there]))

        kept, horizon = some(self.columns, after if self.spec.insert_only else weights), self.spec.horizon
        if self.spec.emit == "final" and horizon is not None:
            keyed.close_until(kept, horizon, self.spec.lateness)
            ends = both[horizon.time].dt.epoch("us").to_numpy()[line[_AT].to_numpy()]
            closes = ends + (horizon.span - self.spec.lateness)
            before, after = np.where(closes <= state.before, before, 0), np.where(closes <= state.after, after, 0)
        else:
            keyed.close_until(kept, horizon)
        made = some(self.spec.columns, after - before)
        return made if self.told else weighed(made, list(self.spec.columns))

    def _line(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows as they stand in line: the number of each, of its group and of its peers, and its weights; equal rows as one.

        Rows of a group that differ in their order are different, and most do. So only those that do not are looked at as a whole.
        """
        names = list(dict.fromkeys((*self.keys, *(each.column for each in self.spec.order))))
        slim = in_order(rows.select(*names, WEIGHT, _WAS).with_row_index(_AT), self.spec.order, [], self.keys)
        ranks = Ranks(slim, self.keys, [each.column for each in self.spec.order], self.spec)
        group, peers = np.cumsum(ranks.group), np.cumsum(ranks.peers)
        line = slim.select(pl.Series(_GROUP, group), pl.Series(_PEERS, peers), _AT, WEIGHT, _WAS)
        tied = in_company(ranks.peers)
        if not tied.any():
            return line
        ties = line.filter(tied)
        other = [name for name in self.columns if name not in self.keys]
        ties = pl.concat([ties, rows.select(self.columns)[ties[_AT].to_numpy()]], how="horizontal")
        ties = ties.group_by(_PEERS, *other).agg(pl.col(_GROUP, _AT).first(), pl.col(WEIGHT, _WAS).sum())
        order = [each for each in self.spec.order if each.column in other]
        ties = _sorted(ties, [Order(_PEERS), *order, *(Order(name) for name in other)], [])
        return pl.concat([line.filter(~tied), ties.select(line.columns)]).sort(_PEERS, maintain_order=True)

    def _promising(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows of a batch without those that have enough better ones in it; told by the order alone, so those that tie stay."""
        order = [each.column for each in self.spec.order]
        slim = rows.select(*dict.fromkeys((*self.keys, *order)), WEIGHT).with_row_index(_AT)
        slim = in_order(slim, self.spec.order, [], self.keys)
        ranks = Ranks(slim, self.keys, order, self.spec)
        ahead = ranks.ahead(slim[WEIGHT].to_numpy(), self.spec.ties or "rank")
        return rows[np.sort(slim[_AT].to_numpy()[ahead < self.spec.count])]


class Ranks:
    """Rows that are sorted, group after group: where their groups begin, and within them rows of equal order."""

    def __init__(self, rows: pl.DataFrame, keys: Sequence[str], order: Sequence[str], spec: Top) -> None:
        self.spec = spec
        self.group = _starts(rows, keys, np.arange(rows.height) == 0)
        self.peers = _starts(rows, order, self.group)

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
    """Sort by keys and an order, then by everything else, so that it does not matter who came first.

    Most rows differ in their order, so the rest is looked at only where they do not.
    """
    first = [*map(Order, keys), *order]
    names = list(dict.fromkeys(each.column for each in first))
    rest = [Order(name) for name in columns if name not in names]
    if not first or not rest:
        return _sorted(rows, [*first, *rest], keys)
    slim = _sorted(rows.select(names).with_row_index(_AT), first, keys)
    at = slim[_AT].to_numpy().copy()
    starts = _starts(slim, names, np.arange(rows.height) == 0)
    tied = in_company(starts)
    if tied.any():
        ties = pl.DataFrame({_PEERS: np.cumsum(starts)[tied], _AT: at[tied]})
        ties = pl.concat([ties, rows.select(names + [each.column for each in rest])[at[tied]]], how="horizontal")
        # By the order too: it has 0.0 and -0.0 for equal, and a sort has not.
        at[tied] = _sorted(ties, [Order(_PEERS), *first, *rest], keys)[_AT].to_numpy()
    return rows[at]


def in_company(starts: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which rows are not alone in their run."""
    alone: npt.NDArray[np.bool_] = starts & np.append(starts[1:], True)
    return ~alone


def _sorted(rows: pl.DataFrame, by: Sequence[Order], keys: Sequence[str]) -> pl.DataFrame:
    descending = [each.descending for each in by]
    # 0.0 and -0.0 are one key, and a sort tells them apart.
    floats = {name for name in keys if rows.schema[name].is_float()}
    texts = [pl.col(each.column) + 0.0 if each.column in floats else pl.col(each.column) for each in by]
    return rows.sort(texts, descending=descending, nulls_last=descending)
