"""Records of stored queries: one whose condition cannot be read is malformed, and what it says is nobody's answer.

It is told where records are packed, before any kernel, so it is counted and kept with all other dead letters. The record before it
of the same query stays what it was, as with any record that cannot be used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from millstream.kernel.admission.record import lacks
from millstream.kernel.operators.percolate import columns_of
from millstream.kernel.percolation.columns import Column
from millstream.kernel.percolation.conditions import alternatives
from millstream.kernel.percolation.language import Mistake
from millstream.plan.build import Chain, Feed
from millstream.plan.operators.percolate import CONDITION
from millstream.plan.spec import Percolate


class _Reader(NamedTuple):
    """Who reads conditions: the feed's columns of them and of whether a record counts, and what a condition may use."""

    condition: str
    keep: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Conditions:
    """Who reads conditions from each feed."""

    readers: Mapping[int, tuple[_Reader, ...]]

    @classmethod
    def of(cls, chain: Chain) -> Conditions:
        """The readers of a chain."""
        specs = {each.number: each.spec for each in chain.operators if isinstance(each.spec, Percolate)}
        found: dict[int, tuple[_Reader, ...]] = {}
        for feed in chain.feeds:
            for port in feed.ports:
                spec, here = specs.get(port.target), dict(port.columns)
                if spec is not None and port.side:
                    made = _Reader(here[CONDITION], here["_keep"], columns_of(spec))
                    found[feed.number] = (*found.get(feed.number, ()), made)
        return cls(found)

    def judged(self, feed: Feed, rows: pl.DataFrame) -> pl.DataFrame:
        """The records of a feed; of one whose condition cannot be read, why it cannot be used."""
        for reader in self.readers.get(feed.number, ()):
            counts = pl.col("_bad").is_null() & pl.col("_beat").is_null() & ~pl.col("_deleted").fill_null(False)
            chosen = rows.select(counts & pl.col(reader.keep).fill_null(False)).to_series()
            if not chosen.any():
                continue
            why = [
                _mistake(text, reader.columns) if chosen else None
                for text, chosen in zip(rows[reader.condition], chosen, strict=True)
            ]
            rows = rows.with_columns(pl.coalesce("_bad", pl.Series(why, dtype=pl.String)).alias("_bad"))
        return rows


def _mistake(text: str | None, columns: tuple[Column, ...]) -> str | None:
    """What is wrong with a condition; None of one that can be read."""
    if text is None:
        return lacks("condition")
    try:
        alternatives(text, columns)
    except Mistake as mistake:
        return f"condition: {mistake}"
    return None
