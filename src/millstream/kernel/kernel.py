"""What a kernel is: a pure function of its state, the changes that came, and the mark.

The law: over the rows of a key, the output change is f(after) − f(before). A kernel reads no clock and no random source,
so running a batch again from the same state gives the same changes. It applies all rows of a batch before its mark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol

import polars as pl

from millstream.kernel.exchange.chunk import WEIGHT
from millstream.kernel.state.segments import Table
from millstream.kernel.state.store import Meta, Store
from millstream.kernel.watermarks import Clock

if TYPE_CHECKING:
    from polars._typing import JoinStrategy

_SECOND = "_second"


@dataclass(frozen=True, slots=True)
class Side:
    """One input of a kernel with several: the mark it was left with, the one it has now, its columns and types."""

    before: int
    after: int
    schema: pl.Schema


@dataclass
class State:
    """One bucket's state during one batch. ``before`` and ``after`` are the mark it was left with and the one it has now.

    Of a kernel with several inputs they are the least of those that tell time; ``sides`` has each.
    """

    store: Store
    meta: Meta
    before: int
    after: int
    schema: pl.Schema
    """Columns and types of the input, known even when a batch brings no rows."""
    tables: dict[str, Table] = field(default_factory=dict)
    sides: tuple[Side, ...] = ()
    clock: Clock = field(default_factory=lambda: Clock(()))
    """Of an as-of join, the mark as it went on."""

    def table(self, name: str) -> Table:
        """A table of this bucket; kernels ask for theirs in the same order each time."""
        if name not in self.tables:
            names = list(self.meta.tables)
            index = names.index(name) if name in names else len(names)
            self.tables[name] = Table(self.store, self.meta, name, index)
        return self.tables[name]


class Kernel(Protocol):
    """A kernel; see :mod:`millstream.kernel.host` for who calls it."""

    @property
    def step(self) -> Callable[..., pl.DataFrame | None]:
        """Take the state and the rows of a batch, and give the changes of the output, with weights.

        Rows are one frame for each side, None if there are only marks: ``step(state, rows)``, ``step(state, left, right)``.
        """
        ...


def differing(both: pl.DataFrame, names: list[str], suffix: str = "_b") -> pl.Series:
    """Whether any of these columns differs from its namesake with the suffix; nulls are equal to nulls, NaN to NaN."""
    compared = [both[name].ne_missing(both[f"{name}{suffix}"]) for name in names]
    return reduce(lambda one, other: one | other, compared, pl.repeat(False, both.height, eager=True))


def signed(minus: pl.DataFrame, plus: pl.DataFrame) -> pl.DataFrame:
    """Rows that disappear and rows that appear, as one set of changes."""
    return pl.concat(
        [
            minus.with_columns(pl.lit(-1, pl.Int64).alias(WEIGHT)),
            plus.with_columns(pl.lit(1, pl.Int64).alias(WEIGHT)),
        ]
    )


def matched(
    left: pl.DataFrame, right: pl.DataFrame, on: Sequence[str], how: JoinStrategy, **options: Any
) -> pl.DataFrame:
    """Join frames by equal keys, where null equals null and NaN equals NaN.

    Polars finds no NaN by one column of doubles if there is but one row on each side; by two columns it does.
    """
    if len(on) == 1 and left.schema[on[0]].is_float():
        left, right = (frame.with_columns(pl.lit(0, pl.Int8).alias(_SECOND)) for frame in (left, right))
        return left.join(right, on=[*on, _SECOND], how=how, nulls_equal=True, **options).drop(_SECOND)
    return left.join(right, on=list(on), how=how, nulls_equal=True, **options)
