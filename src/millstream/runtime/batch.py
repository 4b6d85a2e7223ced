"""The same definition as a batch: every view computed over a range of the log, by one plain Spark job from no state.

The records go the way of the stream: the same expressions, admission and kernels. What comes out replaces what the target
holds and never mixes with a stream: views that a stream keeps are left alone. Nothing is appended to the log.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import polars as pl
import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from millstream.errors import ConfigError, PipelineError, ViewStoreUnavailable
from millstream.kernel.exchange.collect import Arrived, unpack
from millstream.kernel.host import Host
from millstream.kernel.state.store import FOREVER
from millstream.kernel.zset import WEIGHT
from millstream.log import Log, open_log
from millstream.log.archive import whole_bounds, whole_offsets
from millstream.log.heartbeat import Beat
from millstream.pipeline import Pipeline
from millstream.plan.build import Chain
from millstream.plan.prune_columns import reads_headers
from millstream.runtime.analysis_errors import analysed
from millstream.runtime.checkpoint import BATCH, began_at, folder_of, identity_of, versions
from millstream.runtime.delivery import Position, accepted, chunks_of, counts_table, finish, rejects_table
from millstream.runtime.failure import explain, tells_room
from millstream.runtime.heartbeats import known_beats
from millstream.runtime.ownership import claim_stores
from millstream.runtime.parquet_export import check_folder, write_files
from millstream.runtime.progress_report import logs
from millstream.runtime.setup import chain_of, our_settings, session_for, targets_of
from millstream.runtime.sink_dispatch import letters
from millstream.runtime.topic_identity import check_start, ids_of
from millstream.spark import fast_path
from millstream.spark.lowering import decode, feed_types, staged
from millstream.spark.records import batch_records
from millstream.spark.session import jvm_told
from millstream.store import Batch, StoreWriter, Target, open_reader, open_writer
from millstream.store.contract import COUNTED, Refusal
from millstream.store.net_changes import net_by_key, net_by_row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Offsets: TypeAlias = dict[str, dict[int, int]]
Bound: TypeAlias = datetime | Mapping[str, Mapping[int, int]] | None
"""Where a range begins or ends: a time, offsets (topic → partition → offset), or None for all there is."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What a batch made: the range that it read, what became of its records, and every view as an Arrow table.

    :param pipeline: its name
    :param start: the first offsets, topic → partition → offset
    :param end: the offsets behind the last ones
    :param counts: what became of the records: ``admitted``, ``late``, …
    :param seconds: how long it took
    :param views: the rows of each view

    >>> BatchResult("shop", {}, {}, {"admitted": 3}, 0.5, {}).counts["admitted"]
    3
    """

    pipeline: str
    start: Offsets
    end: Offsets
    counts: Mapping[str, int]
    seconds: float
    views: Mapping[str, pa.Table] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Computed:
    """A range as it reaches the driver: each view's changes with their weights, and all that came with them."""

    arrived: Arrived
    changes: Mapping[str, pa.Table]
    targets: Mapping[str, Target]


@logs("a batch")
@jvm_told()
@tells_room
def run_batch(
    pipeline: Pipeline,
    *,
    spark: SparkSession | None = None,
    start: Bound = None,
    until: Bound = None,
    close: bool = False,
    to: str | None = None,
    out: str | Path | None = None,
    forget_history: bool = False,
) -> BatchResult:
    """Compute every view over a range of the log, by default all of it, and replace what the target holds.

    The target is where the pipeline keeps its views; ``to`` names another store, and ``out`` a folder for Parquet files. Views that
    are kept nowhere are left out, unless there is one of these.
    ``start`` and ``until`` are times or offsets; at a time, streams are cut, but tables are read from their beginning, because
    their rows then are what came before. ``close`` ends all time after the last record: every window closes.

    Raises PipelineError if a stream keeps the views, AlreadyRunning if one is running; OffsetOutOfRange if the batch whose views it
    replaces had records that the log has lost, unless a ``start`` is named or ``forget_history``.

    :param pipeline: the pipeline
    :param spark: the session to compute in; one is started if there is none
    :param start: a time or offsets at which to begin
    :param until: a time or offsets at which to end
    :param close: whether every window closes
    :param to: another store
    :param out: a folder for Parquet files
    :param forget_history: whether views may lack what the log has lost
    """
    if to is not None and out is not None:
        raise ConfigError("found both to and out, expected one of them", hint="a store of views, or a folder of files")
    if out is not None:
        check_folder(Path(out))
    began = time.monotonic()
    wanted = _kept(pipeline) if to is None and out is None else pipeline
    chain = chain_of(wanted)
    if to is not None:
        chain = replace(chain, outputs=tuple(replace(output, to=to, kept=True) for output in chain.outputs))
    with ExitStack() as stack:
        log = stack.enter_context(open_log(pipeline.log, create=False, kafka=pipeline.kafka))
        first, last = range_of(log, chain, start, until)
        writers = {} if out is not None else _claim(stack, pipeline, chain, own=to is None)
        if start is None and not forget_history:
            bounds = {topic: whole_bounds(log, topic) for topic in first}
            for writer, _ in writers.values():
                check_start(pipeline.name, began_at(Path(), writer.last(pipeline.name)), bounds)
        session = session_for(pipeline, chain, spark)
        position = Position(first, {}, topics=ids_of(log, first))
        beats = _beats(pipeline, position, last)  # none from before the range, as no record from there counts
        computed = compute(session, wanted, first, last, beats=beats, close=close, shortened=True)
        whole = replace(_whole(chain, computed, position, last, closed=close, refuses=out is None), beats=beats)
        views = {name: rows_made(computed.targets[name], changes) for name, changes in whole.changes.items()}
        if out is not None:
            facts = {"pipeline": pipeline.name, "fingerprint": pipeline.fingerprint(), "closed": close}
            tables = {**views, "millstream_admission": whole.counts, "millstream_dead_letters": whole.rejects}
            write_files(Path(out), tables, {**facts, "start": first, "end": last})
        _replace(pipeline, chain, writers, computed.targets, whole)
    summed = {name: sum(getattr(count, name) for count in computed.arrived.counts) for name in COUNTED}
    return BatchResult(pipeline.name, first, last, summed, time.monotonic() - began, views)


def _beats(pipeline: Pipeline, position: Position, last: Offsets) -> list[Beat]:
    """The heartbeats in a range that a stream of the pipeline has had, if there was one."""
    with suppress(ViewStoreUnavailable):
        with open_reader(pipeline.to):  # opening a sink would make one
            pass
        with open_writer(pipeline.to) as writer:
            ends = {topic: {str(p): offset for p, offset in found.items()} for topic, found in last.items()}
            known = known_beats(writer.heartbeats(pipeline.name), position.topics, ends)
            return [beat for beat in known if beat.offset >= position.start[beat.topic][beat.partition]]
    return []


def _whole(chain: Chain, computed: Computed, position: Position, end: Offsets, *, closed: bool, refuses: bool) -> Batch:
    """All that was computed as one batch of a store; ``refuses`` says that a store may refuse rows; files have a place for every row."""
    made, refused = computed.changes, list[tuple[str, Refusal]]()
    if refuses:
        made, refused = accepted(chain, computed.targets, made, anew=True)
    position.advance(computed.arrived)
    rejects = pa.concat_tables([rejects_table(computed.arrived), letters(0, refused)])
    state = {**position.to_state(), "closed": closed}
    return Batch(f"{BATCH}{uuid.uuid4().hex}", 0, 0, end, made, rejects, counts_table(computed.arrived), state)


def _replace(
    pipeline: Pipeline,
    chain: Chain,
    writers: Mapping[str, tuple[StoreWriter, int]],
    targets: Mapping[str, Target],
    whole: Batch,
) -> None:
    """Let what was made take the place of what each store holds."""
    for address, (writer, fence) in writers.items():
        names = [output.name for output in chain.outputs if output.to == address]
        writer.forget(pipeline.name)
        writer.prepare(pipeline.name, pipeline.fingerprint(), [targets[name] for name in names])
        writer.commit(replace(whole, fence=fence, changes={name: whole.changes[name] for name in names}))


def _kept(pipeline: Pipeline) -> Pipeline:
    """A pipeline without the views that are kept nowhere."""
    wanted = copy(pipeline)
    wanted.views = {name: view for name, view in pipeline.views.items() if view.kept}
    if pipeline.views and not wanted.views:
        raise ConfigError(
            f"pipeline {pipeline.name}: all its views are kept nowhere", hint="name a store (--to) or a folder (--out)"
        )
    return wanted


def compute(
    spark: SparkSession,
    pipeline: Pipeline,
    start: Offsets,
    end: Offsets,
    *,
    beats: Sequence[Beat] = (),
    close: bool = False,
    shortened: bool = False,
) -> Computed:
    """Compute all views over a range, with the heartbeats in it; ``shortened`` decodes records where they are read, if that can be done."""
    tasks = spark.sparkContext.defaultParallelism
    chain = chain_of(pipeline, tasks)
    counts = {feed.number: len(end[feed.source.topic]) for feed in chain.feeds}
    decoder = fast_path.decoder_for(spark, Host(chain, counts)) if shortened else None
    kafka, headers = pipeline.kafka or {}, reads_headers(chain.feeds)
    records = batch_records(spark, pipeline.log, start, end, kafka=kafka, decoder=decoder, headers=headers)
    beats = [*beats, *(_ends(chain, end) if close else ())]
    with our_settings(spark, tasks), analysed(spark, pipeline.views.values()):
        decoded = decode(records, chain, pipeline.name)
        types = feed_types(decoded, chain)
    targets = targets_of(spark, pipeline, chain, types)
    try:
        with our_settings(spark, tasks):
            arrived = unpack(chain, chunks_of(staged(decoded, Host(chain, counts, types), beats)))
    except (PySparkException, Py4JJavaError) as error:
        raise explain(error, spark, pipeline, chain, Position(start, start)) from error
    changes = {}
    for output in chain.outputs:
        schema = targets[output.name].schema
        rows = arrived.changes.get(output.name)
        none = schema.empty_table().append_column(WEIGHT, pa.array([], pa.int64()))
        view = pipeline.views.get(output.name)
        changes[output.name] = none if rows is None else finish(spark, output, rows, schema, view)
    return Computed(arrived, changes, targets)


def range_of(log: Log, chain: Chain, start: Bound, until: Bound) -> tuple[Offsets, Offsets]:
    """The offsets of a range, for every partition of every topic; what a bound does not name is all there is."""
    topics = {feed.source.topic: feed.source.kind for feed in chain.feeds}
    for bound in (start, until):
        for topic in bound if isinstance(bound, Mapping) else ():
            if topic not in topics:
                raise ConfigError(f"the pipeline reads no topic {topic}; it reads {', '.join(sorted(topics))}")
    first, last = {}, {}
    for topic, kind in topics.items():
        bounds = whole_bounds(log, topic)
        first[topic] = {p: bound.start for p, bound in bounds.items()}
        last[topic] = {p: bound.end for p, bound in bounds.items()}
        if isinstance(start, datetime):
            first[topic] |= whole_offsets(log, topic, start) if kind == "stream" else {}
        elif start is not None:
            first[topic] |= whole_offsets(log, topic, start.get(topic, {}))
        if until is not None:
            last[topic] |= whole_offsets(log, topic, until if isinstance(until, datetime) else until.get(topic, {}))
        for p in bounds:
            if first[topic][p] > last[topic][p]:
                raise ConfigError(
                    f"topic {topic} partition {p}: the range begins at offset {first[topic][p]} and ends at {last[topic][p]}"
                )
    return first, last


def _claim(stack: ExitStack, pipeline: Pipeline, chain: Chain, *, own: bool) -> dict[str, tuple[StoreWriter, int]]:
    """Become the writer of every target, unless a stream keeps views there; ``own`` are the pipeline's own targets."""
    hint = "name another store (--to) or a folder (--out), or remove views and checkpoint first"
    if own and any(identity_of(folder).exists() for folder in versions(folder_of(pipeline))):
        raise PipelineError(
            f"pipeline {pipeline.name} runs as a stream: its checkpoint is {pipeline.checkpoint}", hint=hint
        )

    def refuse_streams(address: str, writer: StoreWriter) -> None:
        last = writer.last(pipeline.name)
        if last is not None and not last.checkpoint.startswith(BATCH):
            raise PipelineError(
                f"pipeline {pipeline.name}: a stream keeps its views in {address}, at batch {last.batch}", hint=hint
            )

    addresses = {output.to for output in chain.outputs}
    return claim_stores(
        stack, pipeline.name, addresses, takeover=False, letters=pipeline.dead_letters, check=refuse_streams
    )


def _ends(chain: Chain, end: Offsets) -> Iterator[Beat]:
    """A heartbeat after the last record of all topics, in each partition that tells time: nothing is expected any more."""
    for feed in chain.feeds:
        if feed.source.time is not None:
            for p, offset in end[feed.source.topic].items():
                yield Beat(feed.source.topic, p, offset, FOREVER)


def rows_made(target: Target, changes: pa.Table) -> pa.Table:
    """The rows that changes from nothing make; a row of several is there several times."""
    frame = pl.DataFrame(pl.from_arrow(changes))
    if target.identity:
        made = net_by_key(target, frame).store
    else:
        net = net_by_row(frame)
        made = net.select(pl.exclude(WEIGHT).repeat_by(WEIGHT).explode()) if net.height else net.drop(WEIGHT)
    return made.to_arrow().cast(target.schema)
