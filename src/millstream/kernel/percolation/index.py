"""The index of stored queries: by the shapes of their alternatives. Made of the texts, and remembered for the next batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import polars as pl

from millstream.kernel.percolation.arrays import Ints
from millstream.kernel.percolation.columns import Column
from millstream.kernel.percolation.conditions import Alternative, Demand, alternatives
from millstream.kernel.percolation.language import Mistake
from millstream.kernel.percolation.shape import Events, Rows, Shape, rows_of, shape_of
from millstream.kernel.percolation.values import Literals, Vocabulary


@dataclass(frozen=True)
class Index:
    """Stored queries, by shape; a query is its number among the texts that it was made of."""

    count: int
    shapes: tuple[Rows, ...]
    literals: Mapping[str, Literals]
    vocabularies: Mapping[str, Vocabulary]

    def matches(self, events: pl.DataFrame) -> tuple[Ints, Ints]:
        """Each event with each query that it meets: the number of its row, and that of the query."""
        seen = Events(
            events.height,
            {name: each.codes(events[name]) for name, each in self.literals.items()},
            {name: each.words(events[name]) for name, each in self.vocabularies.items() if each.numbers},
        )
        found = [np.zeros(0, np.int64)]
        for rows in self.shapes:
            found += [places * self.count + queries for places, queries in rows.matches(seen)]
        pairs = np.unique(np.concatenate(found))
        return pairs // max(self.count, 1), pairs % max(self.count, 1)


@lru_cache(maxsize=8)  # of the last batch, for each operator of this process; nobody changes an index
def index_of(texts: tuple[str, ...], columns: tuple[Column, ...]) -> Index:
    """The index of conditions over these columns. One that cannot be read is met by nothing."""
    by_shape: dict[Shape, list[tuple[int, Alternative]]] = {}
    demands: dict[str, list[Demand]] = {}
    for query, text in enumerate(texts):
        for each in _read(text, columns):
            by_shape.setdefault(shape_of(each), []).append((query, each))
            for name, demand in each.items():
                demands.setdefault(name, []).append(demand)
    literals = {each.name: Literals(each, _keys(demands[each.name])) for each in columns if each.name in demands}
    vocabularies = {name: Vocabulary.of(found) for name, found in demands.items()}
    shapes = tuple(rows_of(shape, made, literals, vocabularies) for shape, made in by_shape.items())
    return Index(len(texts), shapes, literals, vocabularies)


def _read(text: str, columns: tuple[Column, ...]) -> Sequence[Alternative]:
    try:
        return alternatives(text, columns)
    except Mistake:  # a dead letter said so
        return ()


def _keys(demands: Sequence[Demand]) -> set[int | str]:
    ends = {end[0] for each in demands for end in (each.low, each.high) if end is not None}
    return ends.union(*((*(each.values or ()), *each.others) for each in demands))
