"""Start: Spark computes the chain batch by batch, and each batch is delivered before Spark plans the next.

A plan is on disk for sure before anything of its batch leaves (:func:`~millstream.runtime.offset_log.secure`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from millstream.errors import LogUnavailable, MillstreamError
from millstream.failpoint import failpoint
from millstream.kernel.host import Host
from millstream.kernel.state.store import FOREVER
from millstream.runtime.checkpoint import write_watermarks
from millstream.runtime.delivery import Delivered, to_time
from millstream.runtime.offset_log import secure
from millstream.runtime.phases.claim import Claimed
from millstream.runtime.phases.course import Course, Progress
from millstream.runtime.phases.prepare import Prepared
from millstream.runtime.phases.recover import Recovered
from millstream.runtime.setup import our_settings
from millstream.runtime.topic_identity import check_same, ids_of
from millstream.spark import spill
from millstream.spark.lowering import staged

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def start(course: Course, claimed: Claimed, recovered: Recovered, prepared: Prepared) -> StreamingQuery:
    """Start the query; its batches are delivered in a thread of Spark's."""
    host = prepared.host

    def deliver(frame: Any, batch: int) -> None:
        _deliver(course, claimed, recovered, prepared, frame, batch)

    with our_settings(recovered.spark, recovered.checkpoint.tasks):
        write_watermarks(recovered.folder, recovered.position.watermarks)
        prepared.heartbeats.settle()
        seconds = course.options.interval.total_seconds()
        return (
            staged(prepared.decoded, Host(host.chain, host.partitions, prepared.types, host.aside))
            .writeStream.queryName(course.pipeline.name)
            .option("checkpointLocation", str(recovered.folder))
            .trigger(processingTime=f"{seconds} seconds")
            .foreachBatch(deliver)
            .start()
        )


def _deliver(
    course: Course, claimed: Claimed, recovered: Recovered, prepared: Prepared, frame: Any, batch: int
) -> None:
    position = recovered.position
    try:
        failpoint("run.before_delivery")
        plan = secure(recovered.folder, batch)
        topics = course.patience.call("log", partial(ids_of, claimed.log, sorted(claimed.bounds)))
        check_same(course.pipeline.name, position.topics, topics)
        delivered = prepared.delivery.deliver(frame, batch, *plan)
        if recovered.aside is not None:
            spill.clear(recovered.aside)
        failpoint("run.after_delivery")
        write_watermarks(recovered.folder, position.watermarks)
        prepared.heartbeats.settle()
        progress = _progress(course.progress, claimed, recovered, delivered)
        course.advance(progress, {topic: dict(found) for topic, found in position.offsets.items()})
    except BaseException as error:
        # What the end cuts off is no failure: it runs again.
        if not course.ending or isinstance(error, MillstreamError):
            course.fail(error)
        if isinstance(error, Exception):
            raise
        # Anything else, like a panic of Polars, would end the thread that Spark waits for, and Spark would wait for ever.
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _progress(old: Progress, claimed: Claimed, recovered: Recovered, delivered: Delivered) -> Progress:
    """The progress after a batch."""
    position = recovered.position
    marks = [
        min(
            position.watermarks.get(feed.source.topic, {}).get(p, -FOREVER) for p in position.offsets[feed.source.topic]
        )
        for feed in recovered.chain.feeds
        if feed.source.time is not None
    ]
    mark = min(marks, default=-FOREVER)
    counts = {
        name: getattr(old, name) + delivered.counts[name]
        for name in ("records", "admitted", "late", "duplicate", "future", "malformed", "erased")
    }
    held = list(position.held.values())
    return Progress(
        old.pipeline,
        delivered.batch,
        rate=delivered.counts["records"] / max(delivered.seconds, 1e-6),
        lag=_lag(old.lag, claimed, recovered),
        watermark=to_time(mark) if mark > -FOREVER else None,
        state_rows=sum(rows for rows, _, _ in held),
        state_bytes=sum(size for _, size, _ in held),
        seconds=delivered.seconds,
        write_seconds=delivered.write_seconds,
        **counts,
    )


def _lag(before: int, claimed: Claimed, recovered: Recovered) -> int:
    """How much is left to read; as much as before, where the log is away."""
    try:
        bounds = {topic: claimed.log.bounds(topic) for topic in sorted(claimed.bounds)}
    except LogUnavailable:
        return before
    offsets = recovered.position.offsets
    return sum(
        max(0, bound.end - max(bound.start, offsets.get(topic, {}).get(partition, bound.start)))
        for topic, found in bounds.items()
        for partition, bound in found.items()
    )
