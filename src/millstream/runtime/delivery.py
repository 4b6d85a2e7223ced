"""Delivery: what Spark's micro-batch computed becomes one transaction in each store.

Called by ``foreachBatch``. The whole frame is collected by exactly one action, also when the batch is there already: Spark
commits state only from tasks that ran. Scalar expressions above the last kernel are Spark SQL and run over what was collected;
without a session (:mod:`millstream.testing`) those that Polars computes alike.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import polars as pl
import pyarrow as pa

from millstream.kernel.exchange.chunk import Chunk
from millstream.kernel.exchange.collect import Arrived, unpack
from millstream.kernel.exchange.projection import finish_alone
from millstream.kernel.zset import WEIGHT
from millstream.log.heartbeat import Beat
from millstream.plan.build import ORIGIN, Chain, Output
from millstream.runtime.analysis_errors import failed_above
from millstream.runtime.sink_dispatch import (
    IMPATIENT,
    Patience,
    Sender,
    change_set_of,
    letters,
    net_and_change_set,
)
from millstream.spark.spill import taken_up
from millstream.store import Batch, StoreWriter, Target, judge_at
from millstream.store.contract import COUNTED, COUNTS, REJECTS, Refusal, refused_by
from millstream.store.ledger import PLANNED
from millstream.store.rejects import sort_out
from millstream.view import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Planned: TypeAlias = Mapping[str, Mapping[str, int]]
"""The offsets at which a batch was planned to end: topic → partition, as text → the next offset to read."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class Position:
    """How far a pipeline is, kept in its ledger's entries: offsets, watermarks, appends (µs) and what kernels hold."""

    start: dict[str, dict[int, int]]
    offsets: dict[str, dict[int, int]]
    watermarks: dict[str, dict[int, int]] = field(default_factory=dict)
    appended: dict[str, dict[int, int]] = field(default_factory=dict)
    held: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Kernel:bucket → rows, bytes, segments."""
    topics: dict[str, str] = field(default_factory=dict)
    """The id of each topic that it is a position in, where that is known."""

    @classmethod
    def restore(
        cls, start: dict[str, dict[int, int]], offsets: Mapping[str, Mapping[int, int]], state: Mapping[str, Any]
    ) -> Position:
        """Read one out of the ledger; it knows better than ``start`` where partitions began that came later."""
        numbered = {
            name: {topic: {int(p): value for p, value in found.items()} for topic, found in state.get(name, {}).items()}
            for name in ("start", "watermarks", "appended")
        }
        begun = numbered.pop("start")
        start = {topic: {**start.get(topic, {}), **begun.get(topic, {})} for topic in (*start, *begun)}
        held = {place: (rows, size, count) for place, (rows, size, count) in state.get("held", {}).items()}
        topics = dict(state.get("topics", {}))
        return cls(
            start, {topic: dict(found) for topic, found in offsets.items()}, held=held, topics=topics, **numbered
        )

    def only(self, topics: Collection[str]) -> Position:
        """Where it is in some topics, with what there was to read of them."""
        start, offsets = (
            {topic: at for topic, at in found.items() if topic in topics} for found in (self.start, self.offsets)
        )
        return replace(self, start=start, offsets=offsets)

    def to_state(self) -> dict[str, Any]:
        """As the ledger keeps it, offsets aside."""
        numbered = {
            name: {topic: {str(p): value for p, value in found.items()} for topic, found in getattr(self, name).items()}
            for name in ("start", "watermarks", "appended")
        }
        held = {place: list(facts) for place, facts in self.held.items()}
        return {**numbered, "held": held, "topics": dict(self.topics)}

    def advance(self, arrived: Arrived) -> None:
        """Take in what a batch says; saying it twice changes nothing."""
        for count in arrived.counts:
            offsets = self.offsets.setdefault(count.topic, {})
            offsets[count.partition] = max(count.next, offsets.get(count.partition, 0))
            for known, value in ((self.watermarks, count.watermark), (self.appended, count.appended)):
                if value is not None:
                    found = known.setdefault(count.topic, {})
                    found[count.partition] = max(value, found.get(count.partition, value))
        for held in arrived.held:
            self.held[f"{held.kernel}:{held.bucket}"] = (held.rows, held.bytes, held.segments)


@dataclass(frozen=True, slots=True)
class Delivered:
    """What one batch brought: for the progress that people see."""

    batch: int
    counts: Mapping[str, int]
    seconds: float
    write_seconds: float


class Delivery:
    """Writes batches of one pipeline, in order, to its stores, and before that to its sinks."""

    def __init__(
        self,
        chain: Chain,
        targets: Mapping[str, Target],
        checkpoint: str,
        writers: Mapping[str, tuple[StoreWriter, int]],
        position: Position,
        spark: SparkSession | None,
        patience: Patience = IMPATIENT,
        senders: Sequence[Sender] = (),
        views: Mapping[str, View] | None = None,
    ) -> None:
        self.chain, self.targets, self.checkpoint = chain, targets, checkpoint
        # Not the session of a batch's frame: making a frame in it would make the query's copy everyone's active session.
        self.writers, self.position, self.spark = writers, position, spark
        self.patience, self.senders, self.views = patience, senders, views or {}

    def deliver(self, frame: DataFrame, batch: int, planned: Planned, beats: Sequence[Beat] = ()) -> Delivered:
        """Collect a batch and commit it."""
        began = time.monotonic()
        return self.commit(chunks_of(frame), batch, planned, began, beats)

    def commit(
        self, chunks: Iterable[Chunk], batch: int, planned: Planned, began: float, beats: Sequence[Beat] = ()
    ) -> Delivered:
        """Commit what reached the driver; the batch began at that time of the monotonic clock, and was planned to end there.

        ``beats`` are the heartbeats that it had.
        """
        arrived = unpack(self.chain, chunks)
        self.position.advance(arrived)
        tables = {
            name: finish(self.spark, output, arrived.changes[name], self.targets[name].schema, self.views.get(name))
            for name, output in ((each.name, each) for each in self.chain.outputs)
            if name in arrived.changes
        }
        counts = counts_table(arrived)
        writing = time.monotonic()
        tables, refused = accepted(self.chain, self.targets, tables)
        changes, unsent = self._send(batch, tables)
        del tables
        rejects = pa.concat_tables([rejects_table(arrived), letters(batch, [*refused, *unsent])])
        for address, (writer, fence) in self.writers.items():
            views = {output.name for output in self.chain.outputs if output.to == address and output.kept}
            here = {name: made for name, made in changes.items() if name in views}
            state = {**self.position.to_state(), PLANNED: planned}
            told = settled(self.chain, beats, planned, self.position)
            whole = Batch(self.checkpoint, batch, fence, self.position.offsets, here, rejects, counts, state, told)
            self.patience.call("views", partial(writer.commit, whole))
        summed = {name: sum(getattr(count, name) for count in arrived.counts) for name in COUNTED}
        now = time.monotonic()
        return Delivered(batch, summed, now - began, now - writing)

    def _send(self, batch: int, tables: Mapping[str, pa.Table]) -> tuple[dict[str, Any], list[tuple[str, Refusal]]]:
        """Send a batch to all sinks; gives what the stores are to take, with net changes that are known by now, and what sinks refused."""
        changes, refused = dict[str, Any](tables), []
        kept = {output.name for output in self.chain.outputs if output.kept}
        for view in dict.fromkeys(sender.wanted.view for sender in self.senders if sender.wanted.view in tables):
            target, table = self.targets[view], tables[view]
            if view in kept:
                changes[view], change_set = net_and_change_set(target, table)
            else:
                change_set = change_set_of(target, table)
            for sender in self.senders:
                if sender.wanted.view == view:
                    found = sender.send(batch, table, change_set)
                    refused += [(f"sink {sender.wanted.name}", each) for each in found]
        return changes, refused


def settled(chain: Chain, beats: Iterable[Beat], planned: Planned, position: Position) -> list[Beat]:
    """The heartbeats of a batch as the ledger keeps them: those that had not come yet came after all that it read.

    When that was matters only to as-of joins.
    """
    clocks = {feed.source.topic for feed in chain.feeds if feed.clocks}
    newest = max((at for found in position.appended.values() for at in found.values()), default=0)
    return [
        beat._replace(
            appended=(newest if beat.topic in clocks else 0) if beat.appended is None else beat.appended,
            ends=planned if beat.appended is None else beat.ends,
            topic_id=beat.topic_id or position.topics.get(beat.topic, ""),
        )
        for beat in beats
    ]


def chunks_of(frame: DataFrame) -> list[Chunk]:
    """Collect chunks: one action over the whole frame."""
    table = frame.toArrow()
    columns = [table.column(name).to_pylist() for name in Chunk._fields]
    return [taken_up(Chunk(*row)) for row in zip(*columns, strict=True)]


def finish(
    spark: SparkSession | None, output: Output, rows: pl.DataFrame, schema: pa.Schema, view: View | None = None
) -> pa.Table:
    """Turn a view's raw changes into its columns, by itself where only names change, by Spark where there is more to do.

    ``view`` is the definition, whose place an error names.
    """
    made = _finished(spark, output, rows.to_arrow(), view)
    return made.cast(schema.append(pa.field(WEIGHT, pa.int64())))


def target_of(spark: SparkSession | None, output: Output, raw: pl.Schema) -> Target:
    """The table of a view, with the types that its expressions have."""
    empty = pl.DataFrame(schema={**raw, WEIGHT: pl.Int64()})
    schema = _finished(spark, output, empty.to_arrow()).schema
    schema = schema.remove(schema.get_field_index(WEIGHT)).remove_metadata()
    return Target(output.name, schema, output.key, append=output.append)


def accepted(
    chain: Chain, targets: Mapping[str, Target], tables: Mapping[str, pa.Table], *, anew: bool = False
) -> tuple[dict[str, pa.Table], list[tuple[str, Refusal]]]:
    """What the stores of views take of their changes, and what they refuse where that does not stop the pipeline.

    Sinks get the former too, and ``verify`` compares with it: a view is what its store can hold of it. ``anew`` says that the
    changes begin with nothing.
    """
    taken, refused = dict(tables), []
    for output in chain.outputs:
        judge = judge_at(output.to) if output.kept and output.refused == "dead_letter" else None
        if judge is not None and output.name in taken:
            taken[output.name], found = sort_out(targets[output.name], taken[output.name], judge, anew=anew)
            refused += [(refused_by(output.name), each) for each in found]
    return taken, refused


def _finished(spark: SparkSession | None, output: Output, rows: pa.Table, view: View | None = None) -> pa.Table:
    extra = ORIGIN if output.append else ()
    if output.plain:
        names = [*(each.expression for each in output.select), *extra, WEIGHT]
        return rows.select(names).rename_columns([*(each.name for each in output.select), *extra, WEIGHT])
    if spark is None:  # and without a session there is no other zone
        return finish_alone(output, pl.DataFrame(rows), utc=True).to_arrow()
    return _finished_by_spark(spark, output, rows, view)


def _finished_by_spark(spark: SparkSession, output: Output, rows: pa.Table, view: View | None) -> pa.Table:
    from pyspark.errors import AnalysisException, PySparkException

    from millstream.spark.internals.python_functions import finder
    from millstream.spark.udf import guarded

    own, find = output.functions, finder(spark)
    try:
        frame = spark.createDataFrame(rows)
        for condition in output.where:
            frame = frame.where(guarded(spark, find, "true", "true", condition, own) if own else condition)
        made = [
            guarded(spark, find, each.expression, "true", functions=own) if own else each.expression
            for each in output.select
        ]
        named = [f"({sql}) AS `{each.name}`" for sql, each in zip(made, output.select, strict=True)]
        return frame.selectExpr(*named, WEIGHT).toArrow()
    except AnalysisException:
        raise
    except PySparkException as error:
        raise failed_above(error, output, view) from error


def rejects_table(arrived: Arrived) -> pa.Table:
    """The rejects of a batch, as a store takes them."""
    if not arrived.rejects:
        return REJECTS.empty_table()
    return pl.concat(arrived.rejects).to_arrow().cast(REJECTS)


def counts_table(arrived: Arrived) -> pa.Table:
    """The counts of a batch, as a store takes them."""
    rows = [
        {
            "topic": count.topic,
            "partition": count.partition,
            **{name: getattr(count, name) for name in COUNTED},
            "watermark": to_time(count.watermark),
        }
        for count in arrived.counts
    ]
    return pa.Table.from_pylist(rows, COUNTS)


def to_time(micros: int | None) -> datetime | None:
    """A watermark as a time; one beyond the calendar (a closed stream) as its last moment."""
    if micros is None:
        return None
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
