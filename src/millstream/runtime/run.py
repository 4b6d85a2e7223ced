"""Run a pipeline: claim it, recover its place, prepare and start its chain on Spark, watch it, stop in good order.

The fence is taken before Spark opens the checkpoint, and every commit checks it: a process that was stopped while
another took the pipeline over can still compute, but no longer write.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING

from millstream.errors import ConfigError, DiskFull, MillstreamError
from millstream.pipeline import Pipeline
from millstream.relation.schema import parse_duration
from millstream.runtime.failure import room_told
from millstream.runtime.phases.claim import Claimed, claim, look_again
from millstream.runtime.phases.course import Course, Progress
from millstream.runtime.phases.options import BYTE_LIMIT, RATE_LIMIT, Options
from millstream.runtime.phases.prepare import prepare
from millstream.runtime.phases.recover import recover
from millstream.runtime.phases.start import start
from millstream.runtime.phases.watch import attend
from millstream.runtime.progress_report import guarded, logged, run_logged
from millstream.runtime.sink_dispatch import FAILED, UNAVAILABLE
from millstream.spark.session import jvm_told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BYTE_LIMIT", "RATE_LIMIT", "Progress", "run"]

_FIRST, _LONGEST = 1.0, 30.0
"""Seconds between two tries on a disk that is full."""


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
    raises is logged and does not end the run. What is away, a disk that is full too, is waited for: without ``once`` as long as it takes.

    :param pipeline: the pipeline
    :param spark: the session to compute in; one is started if there is none
    :param once: whether it ends when it has caught up
    :param close: whether all time ends then, so that every window closes; implies ``once``
    :param interval: how far apart batches start
    :param rate_limit: how many records a batch has at most
    :param byte_limit: about how many bytes a batch has at most
    :param takeover: whether another run of the pipeline is ended
    :param rebuild: whether views are computed anew from the beginning
    :param send_again: with ``rebuild``, whether rows of views without a key go to their sinks once more
    :param beside: for :func:`rebuild` alone: whether the views are made beside the stored ones
    :param heartbeats: whether time goes on in partitions that are silent
    :param forget_history: with ``rebuild``, whether views may lack what the log has lost
    :param progress: called with a :class:`Progress` after every batch
    :param stop: ends it when set
    :raises AlreadyRunning: if another process runs the pipeline
    :raises CheckpointMismatch: if the checkpoint is of another definition
    :raises ConfigError: if options do not go together
    :raises DiskFull: if a disk is full when the run starts, or with ``once``
    """
    if close and not heartbeats:
        raise ConfigError("close ends time by heartbeats; found heartbeats off", hint="leave one of the two away")
    options = Options(
        once=once or close,
        close=close,
        interval=parse_duration(interval),
        rate_limit=RATE_LIMIT if rate_limit is None else rate_limit,
        takeover=takeover,
        rebuild=rebuild,
        beside=beside,
        heartbeats=heartbeats,
        byte_limit=BYTE_LIMIT if byte_limit is None else byte_limit,
        send_again=send_again,
        forget_history=forget_history,
    )
    with run_logged(pipeline.name, "a rebuild" if beside else "a run"), room_told(pipeline):
        return _in_phases(Course(pipeline, options, logged(guarded(progress)), stop or threading.Event()), spark)


def _in_phases(course: Course, spark: SparkSession | None) -> Progress:
    """Go from phase to phase; what one has opened is closed when the last has ended."""
    with ExitStack() as stack:
        claimed = claim(stack, course)
        pause = _FIRST
        while (full := _query(course, claimed, spark)) is not None:
            if course.delivered.is_set():
                pause = _FIRST
            claimed = _wait(course, claimed, full, pause)
            pause = min(_LONGEST, pause * 2)
        return course.progress


def _query(course: Course, claimed: Claimed, spark: SparkSession | None) -> MillstreamError | None:
    """Run a query to its end; gives the error if it ended because a disk was full and the run is to wait for it.

    Spark's query ends where its checkpoint cannot be written. A run that waits already may find stores and the log on that disk, too.
    """
    waits = bool(course.progress.waiting)
    try:
        with ExitStack() as stack, room_told(course.pipeline):
            recovered = recover(stack, course, claimed, spark)
            prepared = prepare(course, claimed, recovered)
            query = start(course, claimed, recovered, prepared)
            course.begun = True
            attend(course, claimed, recovered, prepared, query)
    except (DiskFull, *UNAVAILABLE) as error:
        still = waits and not course.delivered.is_set() and not isinstance(error, FAILED)
        is_room = still or isinstance(error, DiskFull)
        if not is_room or not course.begun or course.options.once or course.stop.is_set():
            raise
        return error
    return None


def _wait(course: Course, claimed: Claimed, full: MillstreamError, pause: float) -> Claimed:
    """Say what is waited for, and wait; gives what is claimed as it is then."""
    course.begin_again()
    course.wait(f"{full.message}; next try in {pause:.0f} s")
    if course.stop.wait(pause):
        raise course.failure or full
    return look_again(course, claimed)
