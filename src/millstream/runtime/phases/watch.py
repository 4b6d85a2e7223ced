"""Watch: a query until it has caught up, fails, or someone asks to stop; then it is stopped in good order.

Whoever stops it lets the batch at hand end, for a while, so that little is computed twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

from millstream.errors import LogUnavailable, MillstreamError
from millstream.log import Log
from millstream.runtime.failure import explain
from millstream.runtime.heartbeats import finished_offsets
from millstream.runtime.phases.claim import Claimed
from millstream.runtime.phases.course import Course
from millstream.runtime.phases.prepare import Prepared
from millstream.runtime.phases.recover import Recovered

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_TICK, _MOMENT, _LOOK = 0.2, 0.01, 1.0
_LOG = "log: "
"""How a message about an unavailable log begins."""


def attend(course: Course, claimed: Claimed, recovered: Recovered, prepared: Prepared, query: StreamingQuery) -> None:
    """Watch a query to its end, stop it, and raise what went wrong."""
    hurried = False
    try:
        _watch(course, claimed, recovered, prepared, query)
    except KeyboardInterrupt:
        hurried = course.stop.is_set()  # a second request to stop, which does not wait for the batch
        raise
    finally:
        if not hurried:
            _end(course, query)
    if course.failure is not None:
        if not isinstance(course.failure, MillstreamError):  # the last batch failed after someone asked to stop
            _failed(course, recovered, course.failure)
        raise course.failure


def _watch(course: Course, claimed: Claimed, recovered: Recovered, prepared: Prepared, query: StreamingQuery) -> None:
    log, topics, once = claimed.log, sorted(claimed.bounds), course.options.once
    caught_up = CaughtUp.at_the_end_of(log, topics, query) if once else None
    away: float | None = None
    looked = 0.0
    while not course.stop.is_set():
        try:
            if query.awaitTermination(_pause(course)):  # type: ignore[arg-type]
                return
        except StreamingQueryException as error:
            _failed(course, recovered, error)
            return
        try:
            looked = _look(log, topics, looked)
            if caught_up is None:
                prepared.heartbeats.beat(query, time.time_ns() // 1000)
            elif caught_up.done(course.reached) and not prepared.heartbeats.waiting():
                if prepared.heartbeats.beat(query, None):
                    caught_up = CaughtUp.at_the_end_of(log, topics, query)
                else:
                    return
        except LogUnavailable as error:
            away = away or time.monotonic()
            if once and time.monotonic() - away > course.longest:
                raise
            course.wait(f"{_LOG}{error.message}")
        else:
            away = None
            if course.progress.waiting.startswith(_LOG):
                course.wait("")


def _look(log: Log, topics: list[str], looked: float) -> float:
    """Whether a log that may be away is there, now and then; the source waits for it, but says nothing. When it was looked last."""
    if log.capabilities.local_file or time.monotonic() - looked <= _LOOK:
        return looked
    log.bounds(topics[0])
    return time.monotonic()


def _pause(course: Course) -> float:
    """Wait for a tick, or less if a batch is delivered; how long to ask Spark whether it has ended."""
    if not course.options.once:
        return _TICK
    course.delivered.wait(_TICK)
    course.delivered.clear()
    return _MOMENT


def _failed(course: Course, recovered: Recovered, error: BaseException) -> None:
    cause = course.failure or error
    failure = explain(cause, recovered.spark, course.pipeline, recovered.chain, recovered.position)
    course.failure = failure
    failure.__cause__ = cause if cause is not failure else None


def _end(course: Course, query: StreamingQuery) -> None:
    """Let the batch at hand end, then stop."""
    running = course.progress.batch
    deadline = time.monotonic() + course.longest
    while query.isActive and course.failure is None and time.monotonic() < deadline:
        status = query.status
        done = query.lastProgress
        if not status["isTriggerActive"] or (done is not None and running is not None and done["batchId"] > running):
            break
        time.sleep(_MOMENT)
    course.ending = True
    query.stop()


class CaughtUp:
    """Whether Spark has done everything that there was when this was made, however fast more comes."""

    def __init__(self, query: StreamingQuery, ends: Mapping[str, Mapping[int, int]]) -> None:
        self._query, self._ends = query, ends
        self._idle = False
        threading.Thread(target=self._wait, name="millstream-caught-up", daemon=True).start()

    @classmethod
    def at_the_end_of(cls, log: Log, topics: list[str], query: StreamingQuery) -> CaughtUp:
        """Of all that topics hold now."""
        return cls(query, {topic: {p: bound.end for p, bound in log.bounds(topic).items()} for topic in topics})

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
        with suppress(Exception):  # a query that fails is not done; the thread that watches it raises the error
            self._query.processAllAvailable()
            self._idle = True
