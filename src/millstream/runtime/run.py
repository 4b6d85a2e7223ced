"""Run a pipeline: claim it, start its chain on Spark, deliver every batch, stop in good order.

The fence is taken before Spark opens the checkpoint, and every commit checks it: a process that was stopped while
another took the pipeline over can still compute, but no longer write.
"""

from __future__ import annotations

import math
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext
from pyspark.errors import StreamingQueryException

from millstream.errors import ConfigError, LogUnavailable, MillstreamError, TakenOver
from millstream.failpoint import failpoint
from millstream.kernel.host import Host
from millstream.kernel.state.store import FOREVER
from millstream.log import open_log
from millstream.log.archive import archive_of, whole_bounds
from millstream.log.contract import Bounds
from millstream.log.embedded.engine import SqliteLog
from millstream.log.embedded.scan import Part, records_within
from millstream.pipeline import Pipeline
from millstream.relation.schema import parse_duration
from millstream.runtime.analysis_errors import analysed
from millstream.runtime.checkpoint import (
    began_at,
    folder_for,
    folder_of,
    fresh_folder,
    identity_of,
    is_early,
    newest_entry,
    open_checkpoint,
    refuse_lost_views,
    watermarks_of,
    write_watermarks,
)
from millstream.runtime.delivery import Delivered, Delivery, Position, to_time
from millstream.runtime.failure import explain, room_told
from millstream.runtime.heartbeats import Heartbeats, finished_offsets
from millstream.runtime.offset_log import check_progress, drop_unplanned, secure
from millstream.runtime.ownership import before_of, claimed, clear_sinks, finish_exchange, first_rows, open_sinks
from millstream.runtime.progress_report import guarded
from millstream.runtime.relocate import settle
from millstream.runtime.replan import unplan
from millstream.runtime.retention_check import check_history
from millstream.runtime.setup import as_it_runs, chain_of, our_settings, session_for, targets_of
from millstream.runtime.sink_dispatch import Patience, Sender, epoch_after
from millstream.runtime.topic_identity import check_ends, check_same, check_start, ids_of
from millstream.sink import Sink
from millstream.spark import fast_path, spill
from millstream.spark.distribute_code import check_shared
from millstream.spark.lowering import decode, feed_types, staged
from millstream.spark.records import stream_records, warm_up
from millstream.spark.session import is_local, is_one_process, jvm_told
from millstream.store.versioned import NEXT

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

RATE_LIMIT = 4_000_000
"""Records of a batch, at most, unless said: what they change passes through the driver's memory."""
BYTE_LIMIT = 1 << 30
"""Bytes of a batch of the embedded log, about, unless said: records of up to 268 bytes are bounded by their number alone."""

_TICK, _MOMENT, _LOOK = 0.2, 0.01, 1.0
_PATIENCE = 60.0
"""Seconds that a batch gets to end after someone asked to stop, and that a run with an end waits for a sink, or for the log."""
_LOG = "log: "
"""What is said of the log while it is away begins like this."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to run. ``once`` stops when everything that was there at the start is done; ``close`` then ends all time.

    ``rate_limit`` bounds the records of a batch, ``byte_limit`` their bytes; an append is never cut in two. ``rebuild`` forgets
    views and checkpoint first, and is refused where the log has lost what they were made from, unless ``forget_history``; it adds
    all rows of views without a key to their sinks again only with ``send_again``. ``takeover`` takes the pipeline from whoever
    runs it. ``beside`` builds a version beside the one that is stored, for
    :mod:`millstream.runtime.rebuild`: under names of its own, and nothing is sent to sinks. Without ``heartbeats`` nothing is
    appended to the log, so that windows close only by what comes.
    """

    once: bool = False
    close: bool = False
    interval: timedelta = timedelta(0)
    rate_limit: int = RATE_LIMIT
    takeover: bool = False
    rebuild: bool = False
    beside: bool = False
    heartbeats: bool = True
    byte_limit: int = BYTE_LIMIT
    send_again: bool = False
    forget_history: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """How a run is doing. ``records`` and what follows count since its start; ``lag`` is records not yet in the views.

    ``seconds`` is what the last batch took, ``write_seconds`` the part of it in the sinks. ``waiting`` says for which sink,
    or for the log, the run waits, and why.
    """

    pipeline: str
    batch: int | None = None
    records: int = 0
    admitted: int = 0
    late: int = 0
    duplicate: int = 0
    future: int = 0
    malformed: int = 0
    rate: float = 0.0
    lag: int = 0
    watermark: datetime | None = None
    state_rows: int = 0
    state_bytes: int = 0
    seconds: float = 0.0
    write_seconds: float = 0.0
    waiting: str = ""


@jvm_told()
def run(
    pipeline: Pipeline,
    *,
    spark: SparkSession | None = None,
    once: bool = False,
    close: bool = False,
    interval: str | timedelta = timedelta(0),
    rate_limit: int | None = None,
    byte_limit: int | None = None,
    takeover: bool = False,
    rebuild: bool = False,
    send_again: bool = False,
    beside: bool = False,
    heartbeats: bool = True,
    forget_history: bool = False,
    progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
) -> Progress:
    """Run a pipeline until ``stop`` is set, or with ``once`` until it has caught up; give the last progress.

    A session that is passed in is used and never stopped. ``progress`` is called after every batch, from another thread; what it
    raises is logged and does not end the run.
    """
    if close and not heartbeats:
        raise ConfigError("close ends time by heartbeats; found heartbeats off", hint="leave one of the two away")
    limit = RATE_LIMIT if rate_limit is None else rate_limit
    most = BYTE_LIMIT if byte_limit is None else byte_limit
    options = Options(
        once or close,
        close,
        parse_duration(interval),
        limit,
        takeover,
        rebuild,
        beside,
        heartbeats,
        most,
        send_again,
        forget_history,
    )
    for name, given in (("rate_limit", limit), ("byte_limit", most)):
        if given < 1:
            raise ConfigError(f"{name}: found {given}, expected at least 1")
    with room_told(pipeline):
        return _Run(pipeline, options, guarded(progress), stop or threading.Event()).run(spark)


class _Run:
    def __init__(
        self, pipeline: Pipeline, options: Options, report: Callable[[Progress], None], stop: threading.Event
    ) -> None:
        self.pipeline, self.options, self.report, self.stop = pipeline, options, report, stop
        self.chain = chain_of(pipeline)
        self.group = pipeline.name + (NEXT if options.beside else "")
        self.progress = Progress(pipeline.name)
        self.failure: BaseException | None = None
        self.reached: dict[str, dict[int, int]] = {}
        self.delivered = threading.Event()
        self.closed = self.ending = False
        self.aside: Path | None = None
        self.looked = 0.0
        self.patience = Patience(stop, self._wait, _PATIENCE if options.once else None)

    def run(self, given: SparkSession | None) -> Progress:
        with ExitStack() as stack:
            self.log = stack.enter_context(open_log(self.pipeline.log, create=False, kafka=self.pipeline.kafka))
            bounds = {feed.source.topic: whole_bounds(self.log, feed.source.topic) for feed in self.chain.feeds}
            check_history(self.pipeline.views, self.log)
            addresses = {output.to for output in self.chain.outputs}
            if not (self.options.rebuild or self.options.beside):
                refuse_lost_views(folder_of(self.pipeline), self.pipeline, addresses)
            writers = claimed(
                stack,
                self.pipeline.name,
                addresses,
                takeover=self.options.takeover,
                beside=self.options.beside,
                lost=self._lost,
                patience=self.patience,
                letters=self.pipeline.dead_letters,
            )
            sinks: dict[str, Sink] = {}
            if not self.options.beside:
                finish_exchange(self.pipeline.name, {address: writer for address, (writer, _) in writers.items()})
                sinks = open_sinks(stack, self.pipeline, self.patience)
            epoch = epoch_after(next(iter(writers.values()))[1], sinks, self.patience)
            lasts = {address: writer.last(self.pipeline.name) for address, (writer, _) in writers.items()}
            folder = folder_for(folder_of(self.pipeline), next(filter(None, lasts.values()), None))
            if self.options.beside and not any(lasts.values()):
                folder = fresh_folder(folder)
            if self.options.rebuild:
                if not self.options.forget_history:
                    check_start(self.pipeline.name, began_at(folder, next(filter(None, lasts.values()), None)), bounds)
                clear_sinks(
                    sinks,
                    self.pipeline,
                    epoch,
                    folder,
                    self.patience,
                    ran=any(lasts.values()),
                    again=self.options.send_again,
                )
                for writer, _ in writers.values():
                    writer.forget(self.pipeline.name)
                shutil.rmtree(folder, ignore_errors=True)
                lasts = dict.fromkeys(lasts)
            starts = {topic: {p: bound.start for p, bound in found.items()} for topic, found in bounds.items()}
            last = newest_entry(self.pipeline.name, lasts)
            fresh = given is None and SparkContext._active_spark_context is None
            self.spark = spark = session_for(self.pipeline, self.chain, given)
            if fresh:
                warm_up(spark, self.pipeline.log, bounds)
            topics = ids_of(self.log, bounds)
            early = is_early(folder, self.pipeline)
            self.chain = replace(self.chain, early=early)
            checkpoint = open_checkpoint(
                folder, self.pipeline, self.chain, starts, last, spark.sparkContext.defaultParallelism, epoch, topics
            )
            check_progress(folder, self.pipeline.name, lasts)
            leading = {name: (self.pipeline.sinks[name], sink) for name, sink in sinks.items()}
            if stays := unplan(folder, lasts, leading, checkpoint.epoch, epoch, self.patience):
                self._wait(stays)
            drop_unplanned(folder)
            settle(folder)
            if is_local(spark.sparkContext.master):
                folder.chmod(0o700)  # its state is the rows
            if is_one_process(spark.sparkContext.master):
                self.aside = stack.enter_context(spill.folder_in(folder))
            else:
                check_shared(spark, identity_of(folder))
            self.chain = chain_of(self.pipeline, checkpoint.tasks, early=early)
            self.position = Position(
                checkpoint.start, {topic: dict(found) for topic, found in checkpoint.start.items()}
            )
            if last is not None:
                self.position = Position.restore(checkpoint.start, last.offsets, last.state)
            known = {**checkpoint.topics, **self.position.topics}
            check_same(self.pipeline.name, known, topics)
            check_ends(self.pipeline.name, self.position.offsets, bounds)
            self.position.topics = topics
            partitions = {topic: len(found) for topic, found in bounds.items()}
            self.heartbeats = Heartbeats(
                self.log, self.chain, self.position, self.pipeline.name, wanted=self.options.heartbeats
            )
            self.heartbeats.introduce(partitions)
            with our_settings(spark, checkpoint.tasks), analysed(spark, self.pipeline.views.values()):
                decoded = self._decoded(spark, folder, partitions)
                types = feed_types(decoded, self.chain)
            targets = targets_of(spark, self.pipeline, self.chain, types)
            for address, (writer, _) in writers.items():
                kept = [output.name for output in self.chain.outputs if output.to == address and output.kept]
                writer.prepare(self.pipeline.name, self.pipeline.fingerprint(), [targets[name] for name in kept])
            senders = [
                Sender(
                    self.pipeline.sinks[name],
                    targets[self.pipeline.sinks[name].view],
                    sink,
                    checkpoint.epoch,
                    folder,
                    self.patience,
                )
                for name, sink in sinks.items()
            ]
            for sender in senders:
                view = self.pipeline.views[sender.wanted.view]
                sender.begin(
                    last.batch if last else None,
                    partial(first_rows, sender.wanted, view),
                    partial(before_of, sender.wanted, view, self.pipeline, writers[view.to][0]),
                )
            if self.options.close and self._comes_at_once(bounds):
                self.heartbeats.close()
                self.closed = True
            self.delivery = Delivery(
                self.chain, targets, checkpoint.id, writers, self.position, spark, self.patience, senders
            )
            with our_settings(spark, checkpoint.tasks):
                query = self._start(decoded, types, folder)
            hurried = False
            try:
                self._watch(query)
            except KeyboardInterrupt:
                hurried = self.stop.is_set()  # whoever asked to stop, and now does not wait for the batch
                raise
            finally:
                if not hurried:
                    self._end(query)
            if self.failure is not None:
                if not isinstance(self.failure, MillstreamError):  # the last batch failed after someone asked to stop
                    self._failed(self.failure)
                raise self.failure
            return self.progress

    def _comes_at_once(self, bounds: Mapping[str, Mapping[int, Bounds]]) -> bool:
        """Whether the first batch has all that there is, so that the end of all time may come with it."""
        if not isinstance(self.log, SqliteLog):
            return False
        parts = [
            Part(topic, p, self.position.offsets.get(topic, {}).get(p, bound.start), bound.end)
            for topic, found in bounds.items()
            for p, bound in found.items()
        ]
        waiting, heartbeats = sum(part.end - part.start for part in parts), len(parts)
        archives = {topic: archive_of(self.log, topic) for topic in bounds}
        fits = records_within(self.log, parts, self.options.byte_limit, archives) >= waiting
        return fits and 0 < waiting <= self.options.rate_limit - heartbeats

    def _wait(self, why: str) -> None:
        self.progress = replace(self.progress, waiting=why)
        self.report(self.progress)

    def _lost(self, error: TakenOver) -> None:
        self.failure = self.failure or error
        self.stop.set()

    def _decoded(self, spark: SparkSession, folder: Path, partitions: Mapping[str, int]) -> DataFrame:
        chain = as_it_runs(self.pipeline, self.chain, sends=not self.options.beside)
        counts = {feed.number: partitions[feed.source.topic] for feed in chain.feeds}
        self.host = Host(chain, counts, aside=str(self.aside or ""))
        tables = {feed.source.topic for feed in chain.feeds if feed.source.kind == "table"}
        records = stream_records(
            spark,
            self.pipeline.log,
            dict(sorted(partitions.items(), key=lambda topic: topic[0] not in tables)),
            start=self.position.start,
            group=self.group,
            limit=self.options.rate_limit,
            kafka=self.pipeline.kafka or {},
            max_bytes=self.options.byte_limit,
            decoder=fast_path.decoder_for(spark, self.host),
            watermarks=str(watermarks_of(folder)) if self.chain.early else "",
            patience=_PATIENCE if self.options.once else math.inf,
        )
        self.topics = sorted(partitions)
        return decode(records, self.chain, self.pipeline.name)

    def _start(self, decoded: DataFrame, types: Mapping[int, pl.Schema], folder: Path) -> StreamingQuery:
        self.folder = folder
        write_watermarks(folder, self.position.watermarks)
        seconds = self.options.interval.total_seconds()
        return (
            staged(decoded, Host(self.host.chain, self.host.partitions, types, self.host.aside))
            .writeStream.queryName(self.pipeline.name)
            .option("checkpointLocation", str(folder))
            .trigger(processingTime=f"{seconds} seconds")
            .foreachBatch(self._deliver)
            .start()
        )

    def _deliver(self, frame: Any, batch: int) -> None:
        try:
            failpoint("run.before_delivery")
            planned = secure(self.folder, batch)
            topics = self.patience.call("log", partial(ids_of, self.log, self.topics))
            check_same(self.pipeline.name, self.position.topics, topics)
            delivered = self.delivery.deliver(frame, batch, planned)
            if self.aside is not None:
                spill.clear(self.aside)
            failpoint("run.after_delivery")
            write_watermarks(self.folder, self.position.watermarks)
            self._advance(delivered)
        except BaseException as error:
            # What the end cuts off is no failure: it runs again.
            if not self.ending or isinstance(error, MillstreamError):
                self.failure = self.failure or error
            if isinstance(error, Exception):
                raise
            # Anything else, like a panic of Polars, would end the thread that Spark waits for, and Spark would wait for ever.
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    def _advance(self, delivered: Delivered) -> None:
        old, position = self.progress, self.position
        marks = [
            min(
                position.watermarks.get(feed.source.topic, {}).get(p, -FOREVER)
                for p in position.offsets[feed.source.topic]
            )
            for feed in self.chain.feeds
            if feed.source.time is not None
        ]
        mark = min(marks, default=-FOREVER)
        counts = {
            name: getattr(old, name) + delivered.counts[name]
            for name in ("records", "admitted", "late", "duplicate", "future", "malformed")
        }
        held = list(position.held.values())
        self.progress = Progress(
            self.pipeline.name,
            delivered.batch,
            rate=delivered.counts["records"] / max(delivered.seconds, 1e-6),
            lag=self._lag(),
            watermark=to_time(mark) if mark > -FOREVER else None,
            state_rows=sum(rows for rows, _, _ in held),
            state_bytes=sum(size for _, size, _ in held),
            seconds=delivered.seconds,
            write_seconds=delivered.write_seconds,
            **counts,
        )
        self.reached = {topic: dict(found) for topic, found in position.offsets.items()}
        self.delivered.set()
        self.report(self.progress)

    def _lag(self) -> int:
        """How much is left to read; as much as before, where the log is away."""
        try:
            bounds = {topic: self.log.bounds(topic) for topic in self.topics}
        except LogUnavailable:
            return self.progress.lag
        return sum(
            max(0, bound.end - max(bound.start, self.position.offsets.get(topic, {}).get(partition, bound.start)))
            for topic, found in bounds.items()
            for partition, bound in found.items()
        )

    # while it runs

    def _watch(self, query: StreamingQuery) -> None:
        caught_up = self._target(query) if self.options.once else None
        closed = self.closed or not self.options.close
        away: float | None = None
        while not self.stop.is_set():
            try:
                if query.awaitTermination(self._pause()):  # type: ignore[arg-type]
                    return
            except StreamingQueryException as error:
                self._failed(error)
                return
            try:
                self._look()
                if caught_up is None:
                    self.heartbeats.beat(query, time.time_ns() // 1000)
                elif caught_up.done(self.reached):
                    if self.heartbeats.beat(query, None) or not closed:
                        if not closed:
                            self.heartbeats.close()
                            closed = True
                        caught_up = self._target(query)
                    else:
                        return
            except LogUnavailable as error:
                away = away or time.monotonic()
                if self.options.once and time.monotonic() - away > _PATIENCE:
                    raise
                self._wait(f"{_LOG}{error.message}")
            else:
                away = None
                if self.progress.waiting.startswith(_LOG):
                    self._wait("")

    def _look(self) -> None:
        """Whether a log that may be away is there; the source waits for it, but says nothing."""
        if not self.log.capabilities.local_file and time.monotonic() - self.looked > _LOOK:
            self.log.bounds(self.topics[0])
            self.looked = time.monotonic()

    def _pause(self) -> float:
        """Wait for a tick, or less if a batch is delivered; how long to ask Spark whether it has ended."""
        if not self.options.once:
            return _TICK
        self.delivered.wait(_TICK)
        self.delivered.clear()
        return _MOMENT

    def _failed(self, error: BaseException) -> None:
        cause = self.failure or error
        self.failure = explain(cause, self.spark, self.pipeline, self.chain, self.position)
        self.failure.__cause__ = cause if cause is not self.failure else None

    def _target(self, query: StreamingQuery) -> _CaughtUp:
        return _CaughtUp(query, {topic: {p: b.end for p, b in self.log.bounds(topic).items()} for topic in self.topics})

    def _end(self, query: StreamingQuery) -> None:
        """Let the batch at hand end, then stop."""
        running = self.progress.batch
        deadline = time.monotonic() + _PATIENCE
        while query.isActive and self.failure is None and time.monotonic() < deadline:
            status = query.status
            done = query.lastProgress
            if not status["isTriggerActive"] or (
                done is not None and running is not None and done["batchId"] > running
            ):
                break
            time.sleep(_MOMENT)
        self.ending = True
        query.stop()


class _CaughtUp:
    """Whether Spark has done everything that there was when this was made, however fast more comes."""

    def __init__(self, query: StreamingQuery, ends: Mapping[str, Mapping[int, int]]) -> None:
        self._query, self._ends = query, ends
        self._idle = False
        threading.Thread(target=self._wait, name="millstream-caught-up", daemon=True).start()

    def done(self, reached: Mapping[str, Mapping[int, int]]) -> bool:
        """Whether the views, or Spark, have got that far, or Spark says that there is nothing left.

        Of Kafka the views never reach the end: markers lie before it, which are no records.
        """
        return self._idle or self._is_past(reached) or self._is_past(finished_offsets(self._query) or {})

    def _is_past(self, read: Mapping[str, Mapping[int, int]]) -> bool:
        return all(
            read.get(topic, {}).get(p, -1) >= end for topic, found in self._ends.items() for p, end in found.items()
        )

    def _wait(self) -> None:
        with suppress(Exception):  # a query that fails is not done; whoever watches it hears of it
            self._query.processAllAvailable()
            self._idle = True
