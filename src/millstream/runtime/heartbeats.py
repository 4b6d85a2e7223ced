"""Heartbeats: records that raise the watermark of a partition that has nothing to say.

A heartbeat stands in the partition it is for, so it is a fact of the log like any other record and a replay meets it at
the same place. It counts for the pipeline that wrote it (:mod:`millstream.log.heartbeat`).
"""

from __future__ import annotations

import json
import logging
import time as clock_of
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from millstream.errors import NotAllowed
from millstream.kernel.state.store import FOREVER
from millstream.log import Log
from millstream.log.heartbeat import write_heartbeat
from millstream.plan.build import Chain, micros
from millstream.relation.nodes import EventTime
from millstream.runtime.delivery import Position

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("millstream")


@dataclass(frozen=True, slots=True)
class Quiet:
    """What is known of a partition: its watermark (None before the first), the last append (µs, None if never).

    ``unread`` says that the log holds more of it than we have read, so that it is we who are slow.
    """

    watermark: int | None
    appended: int | None
    unread: bool = False


def append_heartbeat(log: Log, topic: str, partition: int, time: int | None, pipeline: str) -> None:
    """Append one: from here on the pipeline expects nothing before ``time``; None means nothing at all."""
    log.append(topic, [write_heartbeat(time, pipeline, partition, len(log.bounds(topic)))], own=True)


def due(time: EventTime, partitions: Mapping[int, Quiet], now: int | None) -> dict[int, int]:
    """Which partitions of a stream are idle and hold the others back, and what to raise them to.

    ``now`` is the append clock, or None to go by the newest append alone. A partition is idle when nothing was appended to
    it for the stream's ``idle`` and all of it is read. Others go on: it gets the least of their watermarks. All are idle: it follows the
    clock, if the stream's events do.

    >>> from datetime import timedelta
    >>> time = EventTime("at", idle=timedelta(seconds=1))
    >>> due(time, {0: Quiet(50_000_000, 60_000_000), 1: Quiet(None, None)}, None)
    {1: 50000000}
    """
    if time.idle is None:
        return {}
    appends = [each.appended for each in partitions.values() if each.appended is not None]
    if not appends:
        return {}
    clock = max(appends) if now is None else now
    idle = {
        number
        for number, each in partitions.items()
        if not each.unread and (each.appended is None or clock - each.appended >= micros(time.idle))
    }
    active = [each.watermark for number, each in partitions.items() if number not in idle]
    if any(watermark is None for watermark in active):
        return {}  # a partition that has just begun says where time is with its next batch
    known = [watermark for watermark in active if watermark is not None]
    if not known and not _goes_by_the_clock(time, partitions.values()):
        return {}
    target = min(known) if known else clock - micros(time.delay) - micros(time.idle)
    return {
        number: target
        for number in sorted(idle)
        if (partitions[number].watermark is None or (partitions[number].watermark or 0) < target) and target < FOREVER
    }


def _goes_by_the_clock(time: EventTime, partitions: Iterable[Quiet]) -> bool:
    """Whether events are about as old as their append: one that came now, as old as the last, would not be late by the clock.

    It is not so where history is filled in: there the clock says nothing about what is still to come.
    """
    bound = 2 * micros(time.delay) + micros(
        time.idle or timedelta(0)
    )  # the watermark is a delay behind the newest event
    known = [each for each in partitions if each.watermark is not None]
    return bool(known) and all(
        each.appended is None or each.appended - (each.watermark or 0) <= bound for each in known
    )


class Heartbeats:
    """The heartbeats of one run: for partitions that are new, that are silent, and for the end of all time.

    Where they are not ``wanted``, or the log does not let us write, there are none.
    """

    def __init__(self, log: Log, chain: Chain, position: Position, pipeline: str, *, wanted: bool = True) -> None:
        self.log, self.chain, self.position, self.pipeline = log, chain, position, pipeline
        self._wanted = wanted
        self._beaten: dict[str, float] = {}

    def introduce(self, partitions: Mapping[str, int]) -> None:
        """Give partitions that are new since the last run the watermark that their stream has reached."""
        for feed in self.chain.feeds:
            topic = feed.source.topic
            known = self.position.offsets.get(topic, {})
            marks = self.position.watermarks.get(topic, {})
            for partition in range(partitions[topic]):
                if partition not in known:
                    known[partition] = 0
                    self.position.start.setdefault(topic, {})[partition] = 0
                    if feed.source.time is not None and marks:
                        self._append(topic, partition, min(marks.values()))
            self.position.offsets[topic] = known

    def beat(self, query: StreamingQuery, now: int | None) -> bool:
        """Append the heartbeats that are due; say whether there was any."""
        any_due = False
        for feed in self.chain.feeds:
            time_of = feed.source.time
            if time_of is None or not any(port.marks for port in feed.ports):
                continue
            topic = feed.source.topic
            known = {
                partition: Quiet(
                    self.position.watermarks.get(topic, {}).get(partition),
                    self.position.appended.get(topic, {}).get(partition),
                )
                for partition in self.position.offsets[topic]
            }
            found = due(time_of, known, now)
            if found and now is not None:  # ask the log only now, as this is done all the time
                unread = self._unread(query, topic)
                found = due(time_of, {p: replace(each, unread=p in unread) for p, each in known.items()}, now)
            if now is not None and len(found) == len(known) and not self._clock_may_speak(topic, time_of.idle):
                continue
            for partition, moment in found.items():
                any_due |= self._append(topic, partition, moment)
        return any_due

    def _append(self, topic: str, partition: int, moment: int) -> bool:
        if self._wanted:
            try:
                append_heartbeat(self.log, topic, partition, moment, self.pipeline)
            except NotAllowed as error:
                self._wanted = False
                _log.warning(
                    "pipeline %s appends no heartbeats, a silent partition holds its windows open: %s",
                    self.pipeline,
                    error.message,
                )
        return self._wanted

    def _unread(self, query: StreamingQuery, topic: str) -> set[int]:
        """The partitions of which the log holds more than Spark has finished, be it a heartbeat; all, until it says.

        Our own position will not do: on Kafka the end lies behind markers, which are no records.
        """
        read = finished_offsets(query)
        if read is None:
            return set(self.position.offsets[topic])
        return {p for p, bound in self.log.bounds(topic).items() if read.get(topic, {}).get(p, 0) < bound.end}

    def _clock_may_speak(self, topic: str, idle: timedelta | None) -> bool:
        """When all partitions are quiet, time goes on by the clock: only while something waits for it, and not all the time."""
        waiting = any(rows for rows, _, _ in self.position.held.values())
        moment = clock_of.monotonic()
        if not waiting or moment - self._beaten.get(topic, -1e9) < micros(idle or timedelta(0)) / 1e6:
            return False
        self._beaten[topic] = moment
        return True

    def close(self) -> None:
        """End all time: nothing is expected any more, by this pipeline."""
        for feed in self.chain.feeds:
            if feed.source.time is not None:
                for partition in self.position.offsets[feed.source.topic]:
                    append_heartbeat(self.log, feed.source.topic, partition, None, self.pipeline)


def finished_offsets(query: StreamingQuery) -> dict[str, dict[int, int]] | None:
    """How far Spark says that it is, topic by topic; None before its first batch."""
    from millstream.spark.source import places_of

    done = query.lastProgress
    if done is None:
        return None
    read: dict[str, dict[str, int]] = {}
    for source in done["sources"]:
        end = source["endOffset"]
        read |= json.loads(end) if isinstance(end, str) else end or {}
    return {topic: {int(p): end for p, end in found.items()} for topic, found in places_of(read).items()}
