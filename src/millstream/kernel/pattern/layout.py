"""Sorted rows of many keys as flat arrays: where each key's rows begin and end, and the values of rows as Python has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Layout:
    """Rows in the order of a pattern, key after key. ``first`` and ``end`` are those of each key, ``group`` is the key of each row."""

    rows: pl.DataFrame
    keys: tuple[str, ...]
    first: Positions
    end: Positions
    group: Positions
    times: Positions | None
    """Of a pattern in the order of time: the time of each row in microseconds."""
    columns: dict[Any, tuple[Flags, Flags | None]] = field(default_factory=dict)
    """Conditions that were computed, for searches that share them."""
    _lists: dict[str, list[Any]] = field(default_factory=dict)
    _shifted: dict[tuple[str, int], pl.Series] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: pl.DataFrame, keys: list[str], time: str | None) -> Layout:
        """Lay out rows that are sorted by key and order."""
        begins = np.arange(rows.height) == 0
        for name in keys:
            begins[1:] |= rows[name].ne_missing(rows[name].shift(1)).to_numpy()[1:]
        first = np.flatnonzero(begins)
        end = np.append(first[1:], rows.height) if len(first) else first
        return cls(rows, tuple(keys), first, end, np.cumsum(begins) - 1, None if time is None else micros(rows[time]))

    def shifted(self, column: str, away: int) -> pl.Series:
        """For each row the value of the row so far behind it, or before; null beyond its key."""
        if not away:
            return self.rows[column]
        if (column, away) not in self._shifted:
            self._shifted[column, away] = self.value(column, np.arange(self.rows.height), away)
        return self._shifted[column, away]

    def value(self, column: str, rows: Positions, away: int = 0) -> pl.Series:
        """The values of some rows, or of those so far from them; null beyond their keys, and for a row below zero."""
        values = self.rows[column]
        if not len(values):
            return values.clear(len(rows))
        group = self.group[rows]
        other = rows + away
        inside = (rows >= 0) & (other >= self.first[group]) & (other < self.end[group])
        found = values.gather(pl.Series(np.where(inside, other, 0)).cast(pl.UInt32))
        if inside.all():
            return found
        return pl.select(pl.when(pl.Series(inside)).then(found).alias(column)).to_series()

    def listed(self, column: str) -> list[Any]:
        """The values of a column as Python has them; times as whole numbers."""
        if column not in self._lists:
            self._lists[column] = plain(self.rows[column]).to_list()
        return self._lists[column]

    def key(self, row: int) -> str:
        """The key of a row, for an error."""
        shown = [f"{name} = {self.rows[name][row]!r:.60}" for name in self.keys if not name.startswith("_g")]
        return ", ".join(shown) or "all rows"


def plain(values: pl.Series) -> pl.Series:
    """Times and days as the whole numbers that they are."""
    return values.to_physical() if values.dtype.is_temporal() else values


def micros(times: pl.Series) -> Positions:
    """Times as microseconds; one that is not known lies before all."""
    return times.dt.epoch("us").fill_null(-(1 << 62)).to_numpy()


def runs_from(counts: Positions) -> Positions:
    """The numbers from zero in each of some runs, one after the other."""
    if not len(counts):
        return np.zeros(0, np.int64)
    begins = np.cumsum(counts) - counts
    return np.arange(int(counts.sum())) - np.repeat(begins, counts)
