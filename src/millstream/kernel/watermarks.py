"""The mark of a stream as it went on during a batch: what it was when a record of another topic was appended.

Each partition of a source tells it in *steps*: after which append time its watermark was how high. A record meets what was appended
before its own time, so where batches end makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.kernel.exchange.chunk import Chunk, Kind, Steps, read_steps
from millstream.kernel.state.store import FOREVER, NEVER
from millstream.plan.chain import Operator

Micros = npt.NDArray[np.int64]


def steps_of(appended: Micros, met: Micros, watermark: int) -> Steps:
    """The steps at which the watermark rose, for records in the order of their offsets: the last one of each append time."""
    appended, after = np.maximum.accumulate(appended), np.append(met[1:], watermark)
    risen = np.flatnonzero(after > met)
    last = np.append(appended[risen][1:] != appended[risen][:-1], True)[: len(risen)]
    return Steps(appended[risen[last]], after[risen[last]])


@dataclass(frozen=True)
class Clock:
    """The marks of all partitions of all sources of a side: the one before the batch, its steps, and what is held back of it."""

    parts: tuple[tuple[int, Steps, int], ...]

    @classmethod
    def read(
        cls, operator: Operator, partitions: Mapping[int, int], marks: Mapping[str, int], chunks: Iterable[Chunk]
    ) -> Clock:
        """The clock of a kernel: ``marks`` are those before the batch, ``chunks`` what it brings."""
        told: dict[str, list[Steps]] = {}
        for chunk in chunks:
            if chunk.kind == Kind.STEPS:
                origin, steps = read_steps(chunk.data)
                told.setdefault(origin, []).append(steps)
        return cls(
            tuple(
                (marks.get(origin, NEVER), _one(told.get(origin, [])), hold)
                for number, hold in operator.clocks
                for origin in (f"{number}:{part}" for part in range(partitions[number]))
            )
        )

    def at(self, appended: pl.Series, least: int) -> pl.Series:
        """The mark that each of these append times met: the least of all parts, and no less than ``least``."""
        times = appended.to_numpy()
        found = np.full(len(times), FOREVER if self.parts else NEVER, np.int64)
        for before, steps, hold in self.parts:
            marks = np.concatenate([[before], steps.marks])
            marks = np.where((marks == NEVER) | (marks == FOREVER), marks, marks - hold)
            found = np.minimum(found, marks[np.searchsorted(steps.appended, times)])
        return pl.Series(np.maximum(found, least))


def _one(pieces: list[Steps]) -> Steps:
    """The steps of one partition: a watermark only rises, so it tells their order."""
    if not pieces:
        return Steps(np.zeros(0, np.int64), np.zeros(0, np.int64))
    appended, marks = (np.concatenate(each) for each in zip(*pieces, strict=True))
    order = np.argsort(marks, kind="stable")
    return Steps(np.maximum.accumulate(appended[order]), marks[order])
