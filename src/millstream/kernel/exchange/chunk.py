"""Chunks: what travels between stages. Rows cross Spark packed, many in one binary value.

A chunk says where it is going (stage, number of the kernel or view, bucket, and who leads the step there), of what kind it is, and
carries bytes. Rows are an Arrow stream with its schema, so a chunk can be read without knowing the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.errors import ExpressionFailed, PlanError
from millstream.kernel.arrow import to_arrow, to_bytes
from millstream.kernel.exchange.bucket_labels import labels
from millstream.kernel.exchange.projection import compiled
from millstream.kernel.state.hash import hash_columns
from millstream.kernel.zset import WEIGHT
from millstream.log.heartbeat import Beat
from millstream.plan.build import ADMIT, DRIVER, Port
from millstream.plan.chain import Computed
from millstream.relation.functions import Function
from millstream.scalar.function import with_calls

PIECE = 16 << 20
"""About how many bytes of rows go into one chunk: more are cut into several, so that they are never all packed at once."""


class Kind(IntEnum):
    """What a chunk carries."""

    CHANGES = 0
    MARK = 1
    REJECT = 2
    COUNT = 3
    STATE = 4
    CHANGES_RIGHT = 5
    """Changes for the second input of a kernel."""
    SUMS = 6
    """Partial sums of changes; see :mod:`millstream.kernel.aggregates.preaggregate`."""
    STEPS = 7
    """How a mark went on while records were appended; see :mod:`millstream.kernel.watermarks`."""
    BEATS = 8
    """Heartbeats of a partition, for its admission."""


SIDES = (Kind.CHANGES, Kind.CHANGES_RIGHT)
"""The kind of the changes for each input."""


class Steps(NamedTuple):
    """After which append times (µs, rising) the watermark of a partition was how high."""

    appended: npt.NDArray[np.int64]
    marks: npt.NDArray[np.int64]


class Chunk(NamedTuple):
    """One row of the chain."""

    stage: int
    target: int
    bucket: int
    kind: int
    data: bytes | memoryview
    leader: int
    """Whose bucket it is: chunks of one leader and bucket come together."""

    @classmethod
    def own(cls, stage: int, target: int, bucket: int, kind: int, data: bytes) -> Chunk:
        """A chunk for who leads its own step, or has none."""
        return cls(stage, target, bucket, kind, data, target)


def cut(rows: pl.DataFrame, port: Port, kind: Kind, bucket: int = 0) -> Iterator[Chunk]:
    """Pack rows for whoever takes them, cut by bucket. What goes to the driver stays in the sender's ``bucket``."""
    named = labels(port.leader, port.buckets, port.tasks)
    for piece in pieces(rows):
        if port.stage == DRIVER:
            yield Chunk.own(port.stage, port.target, bucket, kind, to_bytes(piece))
            continue
        if port.broadcast:
            data = to_bytes(piece)
            yield from (Chunk(port.stage, port.target, label, kind, data, port.leader) for label in named)
            continue
        if port.buckets == 1 or not port.spread:
            yield Chunk(port.stage, port.target, named[0], kind, to_bytes(piece), port.leader)
            continue
        buckets = (hash_columns([piece[name] for name in port.spread]) % port.buckets).astype(np.uint16)
        order = np.argsort(buckets, kind="stable")
        whole = to_arrow(piece[order]).combine_chunks().to_batches()[0]
        ends = np.cumsum(np.bincount(buckets, minlength=port.buckets))
        low = 0
        for number, high in enumerate(ends):
            if high > low:
                data = to_bytes(whole.slice(low, int(high) - low))
                yield Chunk(port.stage, port.target, named[number], kind, data, port.leader)
            low = int(high)


def pieces(rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """The rows in parts of about :data:`PIECE` bytes; no part if there are none."""
    if rows.height:
        yield from rows.iter_slices(max(1, rows.height * PIECE // max(int(rows.estimated_size()), 1)))


_CARRIED = ("_topic", "_partition", "_offset", "_deleted")


def shaped(rows: pl.DataFrame, port: Port) -> pl.DataFrame:
    """The rows that a port keeps, with the columns that it wants."""
    if port.keep is not None:
        name = port.keep
        if name not in rows.columns:
            rows, name = computed(rows, Computed("_keep", port.keep, port.said or port.keep), port.functions), "_keep"
        rows = rows.filter(pl.col(name))
    for each in port.computed:  # of the rows that are kept: others may not have a value
        rows = computed(rows, each, port.functions)
    extra = [name for name in (WEIGHT, *_CARRIED) if name in rows.columns]
    extra += ["_a"] if port.appended else []
    if not port.columns and not extra:  # count(*) of everything wants no column, and rows without any are no rows
        rows, extra = rows.with_columns(pl.lit(1, pl.Int64).alias(WEIGHT)), [WEIGHT]
    return rows.select(*(pl.col(here).alias(there) for there, here in port.columns), *extra)


def computed(rows: pl.DataFrame, column: Computed, functions: tuple[Function, ...] = ()) -> pl.DataFrame:
    """The rows with one more column; a row for which Spark, or a function of the pipeline, fails is an error."""
    scalar = compiled(column.expression, rows.schema, functions, label=column.name)
    if scalar is None:
        raise PlanError(
            f"`{column.written}` lies between two kernels, where not every Spark expression can be computed, and this one cannot",
            hint="compute it before the join or aggregate below, or in the last select of the view",
        )
    made = with_calls(rows, scalar.calls).with_columns(scalar.value.alias(column.name))
    if scalar.unsure is not None:
        places = made.select(scalar.unsure.fill_null(False).alias("_unsure")).to_series().arg_true()
        if places.len():
            return made.with_columns(made[column.name].scatter(places, _exactly(rows[places], column, functions)))
    return made


def _exactly(rows: pl.DataFrame, column: Computed, functions: tuple[Function, ...]) -> pl.Series:
    """The values of those few rows that the quick way is not sure of."""
    scalar = compiled(column.expression, rows.schema, functions, exact=True, label=column.name)
    assert scalar is not None  # noqa: S101
    shown, rows = rows.columns, with_calls(rows, scalar.calls)
    failed = rows.clear() if scalar.unsure is None else rows.filter(scalar.unsure.fill_null(False))
    if failed.height:
        why = failed.select(scalar.why).item(0, 0) if scalar.why is not None else None
        first = failed.select(shown).row(0, named=True)
        raise ExpressionFailed(
            f"`{column.written}` failed between two kernels, on {failed.height} rows; the first is {first}{f': {why}' if why else ''}",
            hint=ExpressionFailed.advice,
        )
    return rows.with_columns(scalar.value.alias(column.name))[column.name]


def mark(origin: str, time: int, port: Port) -> Iterator[Chunk]:
    """Tell every bucket of the port's reader that ``origin`` will send nothing before ``time`` any more."""
    data = msgspec.msgpack.encode((origin, time))
    for bucket in labels(port.leader, port.buckets, port.tasks):
        yield Chunk(port.stage, port.target, bucket, Kind.MARK, data, port.leader)


def read_mark(data: bytes | memoryview) -> tuple[str, int]:
    """The origin and the time of a mark."""
    return msgspec.msgpack.decode(data, type=tuple[str, int])


def beats_chunk(feed: int, partition: int, beats: Sequence[Beat]) -> Chunk:
    """Tell the admission of a partition its heartbeats."""
    return Chunk.own(ADMIT, feed, partition, Kind.BEATS, msgspec.msgpack.encode(beats))


def read_beats(data: bytes | memoryview) -> list[Beat]:
    """The heartbeats that were told."""
    return msgspec.msgpack.decode(data, type=list[Beat])


def tell(origin: str, steps: Steps, port: Port) -> Iterator[Chunk]:
    """Tell every bucket of an as-of join how the watermark of a partition went on."""
    data = msgspec.msgpack.encode((origin, steps.appended.tobytes(), steps.marks.tobytes()))
    for bucket in labels(port.leader, port.buckets, port.tasks):
        yield Chunk(port.stage, port.target, bucket, Kind.STEPS, data, port.leader)


def read_steps(data: bytes | memoryview) -> tuple[str, Steps]:
    """The origin and the steps that were told."""
    origin, appended, marks = msgspec.msgpack.decode(data, type=tuple[str, bytes, bytes])
    return origin, Steps(np.frombuffer(appended, np.int64), np.frombuffer(marks, np.int64))


def read_last_step(data: bytes | memoryview) -> tuple[str, int]:
    """The origin of steps that were told, and the watermark after them."""
    origin, steps = read_steps(data)
    return origin, int(steps.marks[-1])
