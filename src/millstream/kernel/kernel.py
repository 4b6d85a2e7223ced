"""What a kernel is: a pure function of its state, the changes that came, and the mark.

The law: over the rows of a key, the output change is f(after) − f(before). A kernel reads no clock and no random source,
so running a batch again from the same state gives the same changes. It applies all rows of a batch before its mark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import polars as pl

from millstream.kernel.state.segments import Table
from millstream.kernel.state.store import Meta, Store
from millstream.kernel.watermarks import Clock


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


@runtime_checkable
class PassingKernel(Protocol):
    """A kernel that keeps nothing, so that it runs wherever its rows are made."""

    @property
    def through(self) -> Callable[[pl.DataFrame], pl.DataFrame]:
        """Take rows, and give what becomes of them, with weights."""
        ...


class Kernel(Protocol):
    """A kernel; its caller is :mod:`millstream.kernel.host`."""

    @property
    def step(self) -> Callable[..., pl.DataFrame | None]:
        """Take the state and the rows of a batch, and give the changes of the output, with weights.

        Rows are one frame for each side, None if there are only marks: ``step(state, rows)``, ``step(state, left, right)``.
        """
        ...
