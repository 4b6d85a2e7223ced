"""Recover: the checkpoint, the ledgers and the log are found to belong together, or the run is refused; we know where to go on.

With a rebuild all that was made is forgotten first. A batch that was planned and that nobody has is planned anew.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.plan.build import Chain
from millstream.runtime.checkpoint import (
    Checkpoint,
    began_at,
    folder_for,
    folder_of,
    fresh_folder,
    identity_of,
    is_early,
    newest_entry,
    open_checkpoint,
    read_checkpoint,
)
from millstream.runtime.delivery import Position
from millstream.runtime.offset_log import check_progress, drop_unplanned
from millstream.runtime.ownership import clear_sinks
from millstream.runtime.phases.claim import Claimed
from millstream.runtime.phases.course import Course
from millstream.runtime.relocate import settle
from millstream.runtime.replan import unplan
from millstream.runtime.setup import chain_of, check_expressions, session_for
from millstream.runtime.topic_identity import check_ends, check_same, check_start, ids_of
from millstream.spark import spill
from millstream.spark.distribute_code import check_shared
from millstream.spark.internals.driver_process import active_context
from millstream.spark.records import warm_up
from millstream.spark.settings import is_local, is_one_process
from millstream.store import Entry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Recovered:
    """Where the pipeline is: its checkpoint, the newest entry of its ledgers, its position; and the session that goes on with it."""

    folder: Path
    checkpoint: Checkpoint
    last: Entry | None
    position: Position
    chain: Chain
    """Laid out as in the checkpoint."""
    spark: SparkSession
    aside: Path | None
    """Where workers lay large chunks aside, if all are on this machine."""


def recover(stack: ExitStack, course: Course, claimed: Claimed, given: SparkSession | None) -> Recovered:
    """Find where to go on; ``given`` is a session to use, if there is one."""
    pipeline = course.pipeline
    folder = folder_for(folder_of(pipeline), _any(claimed.lasts))
    if course.options.beside and not any(claimed.lasts.values()):
        folder = fresh_folder(folder)
    if course.options.rebuild and not course.options.forget_history:
        check_start(pipeline.name, began_at(folder, _any(claimed.lasts)), claimed.bounds)
    spark = _session(course, claimed, given)
    if course.options.rebuild or read_checkpoint(folder) is None:
        check_expressions(spark, pipeline, claimed.chain)
    lasts = _forget(course, claimed, folder) if course.options.rebuild else claimed.lasts
    starts = {topic: {p: bound.start for p, bound in found.items()} for topic, found in claimed.bounds.items()}
    last = newest_entry(pipeline.name, lasts)
    topics = ids_of(claimed.log, claimed.bounds)
    early = is_early(folder)
    chain = replace(claimed.chain, early=early)
    tasks = spark.sparkContext.defaultParallelism
    checkpoint = open_checkpoint(folder, pipeline, chain, starts, last, tasks, claimed.epoch, topics)
    check_progress(folder, pipeline.name, lasts)
    sinks = {name: (pipeline.sinks[name], sink) for name, sink in claimed.sinks.items()}
    if stays := unplan(folder, lasts, sinks, checkpoint.epoch, claimed.epoch, course.patience):
        course.wait(stays)
    drop_unplanned(folder)
    settle(folder)
    aside = _shut(stack, spark, folder)
    chain = chain_of(pipeline, checkpoint.tasks, early=early)
    position = _position(pipeline.name, checkpoint, last, topics, claimed)
    return Recovered(folder, checkpoint, last, position, chain, spark, aside)


def _any(lasts: Mapping[str, Entry | None]) -> Entry | None:
    return next(filter(None, lasts.values()), None)


def _forget(course: Course, claimed: Claimed, folder: Path) -> dict[str, Entry | None]:
    """Forget all that was made: first in the sinks, then in the stores, then the checkpoint."""
    pipeline, options, lasts = course.pipeline, course.options, claimed.lasts
    clear_sinks(
        claimed.sinks,
        pipeline,
        claimed.epoch,
        folder,
        course.patience,
        ran=any(lasts.values()),
        again=options.send_again,
    )
    for writer, _ in claimed.writers.values():
        writer.forget(pipeline.name)
    shutil.rmtree(folder, ignore_errors=True)
    return dict.fromkeys(lasts)


def _session(course: Course, claimed: Claimed, given: SparkSession | None) -> SparkSession:
    fresh = given is None and active_context() is None
    spark = session_for(course.pipeline, claimed.chain, given)
    if fresh:
        warm_up(spark, course.pipeline.log, claimed.bounds)
    return spark


def _shut(stack: ExitStack, spark: SparkSession, folder: Path) -> Path | None:
    """Let only those into the checkpoint who need it; give the folder for chunks, or check that a cluster sees what we see."""
    if is_local(spark.sparkContext.master):
        folder.chmod(0o700)  # its state is the rows
    if is_one_process(spark.sparkContext.master):
        return stack.enter_context(spill.folder_in(folder))
    check_shared(spark, identity_of(folder))
    return None


def _position(
    pipeline: str, checkpoint: Checkpoint, last: Entry | None, topics: dict[str, str], claimed: Claimed
) -> Position:
    """Where the views are, in topics that are still those that they were made from and reach as far."""
    position = Position(checkpoint.start, {topic: dict(found) for topic, found in checkpoint.start.items()})
    if last is not None:
        position = Position.restore(checkpoint.start, last.offsets, last.state)
    check_same(pipeline, {**checkpoint.topics, **position.topics}, topics)
    check_ends(pipeline, position.offsets, claimed.bounds)
    position.topics = topics
    return position
