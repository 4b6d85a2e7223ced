"""Prepare: the chain is laid onto Spark, stores and sinks are ready for its batches, and nothing has been computed yet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from millstream.kernel.host import Host
from millstream.plan.prune_columns import reads_headers
from millstream.runtime.analysis_errors import analysed
from millstream.runtime.checkpoint import watermarks_of, write_beats
from millstream.runtime.delivery import Delivery
from millstream.runtime.heartbeats import Heartbeats, known_beats
from millstream.runtime.ownership import before_of, first_rows
from millstream.runtime.phases.claim import Claimed
from millstream.runtime.phases.course import Course
from millstream.runtime.phases.recover import Recovered
from millstream.runtime.setup import as_it_runs, our_settings, targets_of
from millstream.runtime.sink_dispatch import Sender
from millstream.spark import fast_path
from millstream.spark.lowering import decode, feed_types
from millstream.spark.records import stream_records
from millstream.store import Target
from millstream.store.versioned import NEXT

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a query is started with, and what its batches meet."""

    decoded: DataFrame
    types: Mapping[int, pl.Schema]
    host: Host
    """The chain as it runs, not yet told of these types."""
    heartbeats: Heartbeats
    delivery: Delivery


def prepare(course: Course, claimed: Claimed, recovered: Recovered) -> Prepared:
    """Make everything ready for a query."""
    pipeline, spark, chain, position = course.pipeline, recovered.spark, recovered.chain, recovered.position
    partitions = {topic: len(found) for topic, found in claimed.bounds.items()}
    heartbeats = _heartbeats(course, claimed, recovered)
    heartbeats.introduce(partitions)
    if course.options.close:
        heartbeats.close()
    with our_settings(spark, recovered.checkpoint.tasks), analysed(spark, pipeline.views.values()):
        host = _host(course, recovered, partitions)
        decoded = _decoded(course, recovered, host, partitions)
        types = feed_types(decoded, chain)
    targets = targets_of(spark, pipeline, chain, types)
    for address, (writer, _) in claimed.writers.items():
        kept = [output.name for output in chain.outputs if output.to == address and output.kept]
        writer.prepare(pipeline.name, pipeline.fingerprint(), [targets[name] for name in kept])
    senders = _senders(course, claimed, recovered, targets)
    writers, views = claimed.writers, pipeline.views
    delivery = Delivery(
        chain, targets, recovered.checkpoint.id, writers, position, spark, course.patience, senders, views
    )
    return Prepared(decoded, types, host, heartbeats, delivery)


def _heartbeats(course: Course, claimed: Claimed, recovered: Recovered) -> Heartbeats:
    """The heartbeats of the run; those that another version had, or the one that is rebuilt, are met where that one met them."""
    told = (each for writer, _ in claimed.writers.values() for each in writer.heartbeats(course.pipeline.name))
    ends = {topic: {str(p): bound.end for p, bound in found.items()} for topic, found in claimed.bounds.items()}
    known = known_beats(told, recovered.position.topics, ends, recovered.checkpoint.id)
    return Heartbeats(
        claimed.log,
        recovered.chain,
        recovered.position,
        known,
        wanted=course.options.heartbeats,
        publish=partial(write_beats, recovered.folder),
    )


def _host(course: Course, recovered: Recovered, partitions: Mapping[str, int]) -> Host:
    chain = as_it_runs(course.pipeline, recovered.chain, sends=not course.options.beside)
    counts = {feed.number: partitions[feed.source.topic] for feed in chain.feeds}
    return Host(chain, counts, aside=str(recovered.aside or ""))


def _decoded(course: Course, recovered: Recovered, host: Host, partitions: Mapping[str, int]) -> DataFrame:
    """The records of all topics, tables first, decoded."""
    pipeline, options, spark = course.pipeline, course.options, recovered.spark
    tables = {feed.source.topic for feed in host.chain.feeds if feed.source.kind == "table"}
    records = stream_records(
        spark,
        pipeline.log,
        dict(sorted(partitions.items(), key=lambda topic: topic[0] not in tables)),
        start=recovered.position.start,
        group=pipeline.name + (NEXT if options.beside else ""),
        limit=options.rate_limit,
        kafka=pipeline.kafka or {},
        max_bytes=options.byte_limit,
        decoder=fast_path.decoder_for(spark, host),
        watermarks=str(watermarks_of(recovered.folder)),
        patience=course.longest if options.once else math.inf,
        headers=reads_headers(host.chain.feeds),
    )
    return decode(records, recovered.chain, pipeline.name)


def _senders(course: Course, claimed: Claimed, recovered: Recovered, targets: Mapping[str, Target]) -> list[Sender]:
    """Who sends to the sinks; one that is new to this checkpoint is sent what its view holds."""
    pipeline, last = course.pipeline, recovered.last
    senders = [
        Sender(
            pipeline.sinks[name],
            targets[pipeline.sinks[name].view],
            sink,
            recovered.checkpoint.epoch,
            recovered.folder,
            course.patience,
        )
        for name, sink in claimed.sinks.items()
    ]
    for sender in senders:
        view = pipeline.views[sender.wanted.view]
        sender.begin(
            last.batch if last else None,
            partial(first_rows, sender.wanted, view),
            partial(before_of, sender.wanted, view, pipeline, claimed.writers[view.to][0]),
        )
    return senders
