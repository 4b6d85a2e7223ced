"""Claim: the log is opened, and the pipeline's stores and sinks are ours alone.

The fence is taken before Spark opens the checkpoint, and every commit checks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from millstream.log import Log, open_log
from millstream.log.archive import whole_bounds
from millstream.log.contract import Bounds
from millstream.plan.build import Chain
from millstream.runtime.checkpoint import folder_of, refuse_lost_views
from millstream.runtime.ownership import claim_stores, finish_exchange, open_sinks
from millstream.runtime.phases.course import Course
from millstream.runtime.retention_check import check_history
from millstream.runtime.setup import chain_of
from millstream.runtime.sink_dispatch import epoch_after
from millstream.sink import Sink
from millstream.store import Entry, StoreWriter


@dataclass(frozen=True, slots=True)
class Claimed:
    """What is ours for the run, and what was there: the bounds of topics, and the newest entry of each store's ledger."""

    chain: Chain
    log: Log
    bounds: Mapping[str, Mapping[int, Bounds]]
    writers: Mapping[str, tuple[StoreWriter, int]]
    """By the address of the store, with the fence."""
    sinks: Mapping[str, Sink]
    epoch: int
    """Above that of all that was sent to the sinks."""
    lasts: Mapping[str, Entry | None]


def claim(stack: ExitStack, course: Course) -> Claimed:
    """Claim everything, for as long as the stack lives."""
    pipeline, options = course.pipeline, course.options
    chain = chain_of(pipeline)
    log = stack.enter_context(open_log(pipeline.log, create=False, kafka=pipeline.kafka))
    bounds = {feed.source.topic: whole_bounds(log, feed.source.topic) for feed in chain.feeds}
    check_history(pipeline.views, log)
    addresses = {output.to for output in chain.outputs}
    if not (options.rebuild or options.beside):
        refuse_lost_views(folder_of(pipeline), pipeline, addresses)
    writers = claim_stores(
        stack,
        pipeline.name,
        addresses,
        takeover=options.takeover,
        beside=options.beside,
        lost=course.lose,
        patience=course.patience,
        letters=pipeline.dead_letters,
    )
    sinks: dict[str, Sink] = {}
    if not options.beside:
        finish_exchange(pipeline.name, {address: writer for address, (writer, _) in writers.items()})
        sinks = open_sinks(stack, pipeline, course.patience)
    epoch = epoch_after(next(iter(writers.values()))[1], sinks, course.patience)
    lasts = {address: writer.last(pipeline.name) for address, (writer, _) in writers.items()}
    return Claimed(chain, log, bounds, writers, sinks, epoch, lasts)


def look_again(course: Course, claimed: Claimed) -> Claimed:
    """The same claim, with what topics and ledgers hold by now: for a run that begins another query."""
    name = course.pipeline.name

    def look() -> Claimed:
        bounds = {topic: whole_bounds(claimed.log, topic) for topic in claimed.bounds}
        lasts = {address: writer.last(name) for address, (writer, _) in claimed.writers.items()}
        return replace(claimed, bounds=bounds, lasts=lasts)

    return course.patience.call("log and views", look)
