"""Partial sums: the rows of a batch added up by group, before they go anywhere and once more where they arrive.

A reduction that adds up, or counts different values, need not see each row. The sender gives it partial sums in their place: for each
group the columns of :class:`~millstream.kernel.aggregates.accumulators.Linear`, and the values to be counted as two lists, each value once with how
often it is there. Sums of sums are the same whatever was added up first. A time becomes the start of its *pane*, the longest
span that no window begins or ends in, and counts in windows only after all sums of a pane are one. Where sums would be no
smaller than rows, rows go.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from millstream.kernel.aggregates.accumulators import ROWS, Linear
from millstream.kernel.aggregates.time_windows import micros, windows_of
from millstream.kernel.zset import WEIGHT, matched, weigh
from millstream.plan.spec import Reduce
from millstream.relation.nodes import WINDOW_COLUMNS

AT = "_at"
"""The number of a group among those of its sums."""

ONE = "_g"
"""The key of a reduction without keys."""

SHARE = 0.25
"""Sums go in place of rows if they have at most this share of their values: to add up costs about as much as it saves later on,
and what it saves for certain is what has to be carried."""

_SOME = 4_096  # rows that tell whether sums are worth it
_START = WINDOW_COLUMNS[0]


def keys_of(spec: Reduce) -> list[str]:
    """The keys of a reduction; one that has none gets one."""
    return list(spec.keys) or [ONE]


def group_of(spec: Reduce) -> list[str]:
    """What tells groups apart: keys, and the start of a window."""
    return [*keys_of(spec), _START] if spec.size else keys_of(spec)


@dataclass(frozen=True)
class Sums:
    """Partial sums of rows: one row for each group, and of each argument whose values are counted group number, value and how often."""

    groups: pl.DataFrame
    values: Mapping[str, pl.DataFrame]


class Adder:
    """Adds up rows of these types for a reduction; its windows are panes until :meth:`in_windows`."""

    def __init__(self, spec: Reduce, schema: pl.Schema) -> None:
        self.spec, self.linear, self.group = spec, Linear(spec, schema), group_of(spec)
        self.pane = math.gcd(spec.size, spec.every or spec.size) if spec.size else 0

    def add_rows(self, rows: pl.DataFrame) -> Sums:
        """Add up rows."""
        if not self.spec.keys:
            rows = rows.with_columns(pl.lit(0, pl.Int8).alias(ONE))
        if self.pane:
            times = micros(rows[_START]).to_numpy()
            rows = rows.with_columns(pl.Series(_START, times - times % self.pane).cast(rows.schema[_START]))
        groups, values = self.linear.delta(rows, self.group), {}
        if self.linear.distinct:
            rows = rows.with_columns(self._numbers(rows, groups))
            weights = [WEIGHT] if WEIGHT in rows.columns else []
            for name in self.linear.distinct:
                values[name] = weigh(rows.select(AT, name, *weights).drop_nulls(name), [AT, name], ROWS)
        return Sums(groups, values)

    def add(self, sums: Sums) -> Sums:
        """Add up sums in which a group may be there several times."""
        groups, values = self.linear.total(sums.groups, self.group), {}
        if sums.values:
            numbers = self._numbers(sums.groups, groups)
            for name, each in sums.values.items():
                numbered = each.with_columns(numbers.gather(each[AT]))
                values[name] = numbered.group_by(AT, name).agg(pl.col(ROWS).sum())
        return Sums(groups, values)

    def in_windows(self, sums: Sums) -> Sums:
        """Let each pane count in every window that holds it."""
        size, every = self.spec.size, self.spec.every or self.spec.size
        if not size or not every or size == every:
            return sums
        which, starts = windows_of(sums.groups[_START], size, every)
        groups, values = sums.groups[which].with_columns(starts), {}
        copies = pl.DataFrame({AT: which, "_copy": np.arange(len(which))}).cast(pl.UInt32)
        for name, each in sums.values.items():
            values[name] = each.join(copies, on=AT).drop(AT).rename({"_copy": AT})
        return self.add(Sums(groups, values))

    def pack(self, sums: Sums) -> pl.DataFrame:
        """Sums as a frame that can be sent."""
        lists = []
        for name, each in sums.values.items():
            each = each.sort(AT)
            ends = np.cumsum(np.bincount(each[AT].to_numpy(), minlength=sums.groups.height))
            lists.append(_lists(f"{name}_values", each[name], ends))
            lists.append(_lists(f"{name}_weights", each[ROWS], ends))
        added = [name for name in self.linear.columns if name not in {f"{each}_d" for each in sums.values}]
        return sums.groups.select(*self.group, *added, *lists)

    def unpack(self, frame: pl.DataFrame) -> Sums:
        """Sums out of frames that came one after the other."""
        values = {}
        for name in self.linear.distinct:
            listed, weights = frame[f"{name}_values"], frame[f"{name}_weights"]
            some = listed.list.len() > 0
            at = pl.Series(AT, np.repeat(np.arange(frame.height, dtype=np.uint32), listed.list.len().to_numpy()))
            found = [each.filter(some).explode().alias(name) for each, name in ((listed, name), (weights, ROWS))]
            values[name] = pl.DataFrame([at, *found])
        zeros = (pl.lit(0, pl.Int64).alias(f"{name}_d") for name in self.linear.distinct)
        return Sums(frame.with_columns(zeros).select(*self.group, *self.linear.columns), values)

    def _numbers(self, rows: pl.DataFrame, groups: pl.DataFrame) -> pl.Series:
        """For each row the number of its group."""
        numbered = groups.select(self.group).with_row_index(AT)
        return matched(rows.select(self.group), numbered, self.group, "left", maintain_order="left")[AT]


def together(one: Sums, other: Sums) -> Sums:
    """Two sums as one, in which groups may be there twice."""
    values = {
        name: pl.concat([each, other.values[name].with_columns(pl.col(AT) + one.groups.height).select(each.columns)])
        for name, each in one.values.items()
    }
    return Sums(pl.concat([one.groups, other.groups.select(one.groups.columns)]), values)


def is_less(rows: pl.DataFrame, adder: Adder) -> bool:
    """Whether sums of these rows have few enough values, by hashes of a few: that costs next to nothing."""
    rows = rows.head(_SOME)
    group: list[pl.Expr] = [pl.col(name).hash() for name in adder.spec.keys]
    if adder.pane:
        group.append((pl.col(_START).dt.epoch("us") // adder.pane).hash())
    number = pl.sum_horizontal(*(each.mul(2 * at + 1) for at, each in enumerate(group))) if group else pl.lit(0)
    pairs = [(number + pl.col(name).hash()).filter(pl.col(name).is_not_null()) for name in adder.linear.distinct]
    counts = rows.select(number.n_unique(), *(each.n_unique().alias(f"{at}") for at, each in enumerate(pairs))).row(0)
    width = len(adder.group) + len(adder.linear.columns)
    return bool(counts[0] * width + 2 * sum(counts[1:]) <= SHARE * rows.height * rows.width)


def _lists(name: str, values: pl.Series, ends: npt.NDArray[np.int64]) -> pl.Series:
    """Values cut into lists."""
    return pl.Series(name, pa.LargeListArray.from_arrays(np.append(0, ends), values.to_arrow()))
