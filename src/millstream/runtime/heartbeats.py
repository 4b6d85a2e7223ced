"""Heartbeats: what raises the watermark of a partition that has nothing to say.

A heartbeat is planned into a batch by the source (:mod:`millstream.spark.source`), is in Spark's log of offsets like the offsets are, and
is kept in the ledger with the batch that had it: so it is a fact, at an offset of its partition, and every replay meets it there.
"""

from __future__ import annotations

import json
import threading
import time as clock_of
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from millstream.kernel.state.store import FOREVER, NEVER
from millstream.log import Log
from millstream.log.heartbeat import Beat, Ends
from millstream.plan.build import Chain, micros
from millstream.relation.nodes import EventTime
from millstream.runtime.delivery import Position
from millstream.store.contract import Told

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True)
class Quiet:
    """What is known of a partition: its watermark (None before the first), the last append (µs, None if never).

    ``unread`` says that the log holds more of it than we have read, so that it is we who are slow.
    """

    watermark: int | None
    appended: int | None
    unread: bool = False


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


def known_beats(told: Iterable[Told], topics: Mapping[str, str], ends: Ends, checkpoint: str = "") -> list[Beat]:
    """The heartbeats of a ledger that another checkpoint had, in topics that are still the same, up to where they end.

    ``topics`` are their ids, where they are known.
    """
    found = {
        beat[:4]: beat  # each store has them all
        for other, _, beat in told
        if other != checkpoint and len({topics.get(beat.topic, ""), beat.topic_id} - {""}) < 2 and beat.reached(ends)
    }
    return list(found.values())


class Heartbeats:
    """The heartbeats of one run: for partitions that are new, that are silent, and for the end of all time.

    They wait here until a batch has had them; ``publish`` is told those that wait whenever they change. Some are ``known`` from
    earlier, from the ledger of a version that read the log before. Where they are not ``wanted``, none are made.
    """

    def __init__(
        self,
        log: Log,
        chain: Chain,
        position: Position,
        known: Iterable[Beat] = (),
        *,
        wanted: bool = True,
        publish: Callable[[Sequence[Beat]], None] | None = None,
    ) -> None:
        self.log, self.chain, self.position = log, chain, position
        self._wanted, self._publish = wanted, publish
        self._beaten: dict[str, float] = {}
        self._made: dict[tuple[str, int], Beat] = {}
        self._known = list(known)
        self._lock = threading.Lock()

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
                        self.make(topic, partition, min(marks.values()))
            self.position.offsets[topic] = known

    def beat(self, query: StreamingQuery, now: int | None) -> bool:
        """Make the heartbeats that are due; say whether there was any."""
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
                any_due |= self.make(topic, partition, moment)
        return any_due

    def make(self, topic: str, partition: int, moment: int, ends: Ends | None = None) -> bool:
        """Let a partition have no time before a moment (µs), from its end on; False where that is said already, or not wanted.

        It comes at the end of the first batch that reaches the partition's end, and ``ends`` if there are some.
        """
        made = self._made.get((topic, partition))
        if not self._wanted or (made is not None and made.time >= moment):
            return False
        beat = Beat(topic, partition, self.log.bounds(topic)[partition].end, moment, ends=ends)
        with self._lock:
            self._made[topic, partition] = beat
        self.settle()
        return True

    def waiting(self) -> list[Beat]:
        """Those that no batch has had and that still raise something."""
        with self._lock:
            return [beat for beat in (*self._known, *self._made.values()) if self._raises(beat)]

    def settle(self) -> None:
        """Forget those that a batch has had, and publish the others."""
        with self._lock:
            self._known = [beat for beat in self._known if self._raises(beat)]
            self._made = {place: beat for place, beat in self._made.items() if self._raises(beat)}
            if self._publish is not None:
                self._publish([*self._known, *self._made.values()])

    def _raises(self, beat: Beat) -> bool:
        return beat.time > self.position.watermarks.get(beat.topic, {}).get(beat.partition, NEVER)

    def _unread(self, query: StreamingQuery, topic: str) -> set[int]:
        """The partitions of which the log holds more than Spark has finished; all, until it says.

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
        """End all time: nothing is expected any more, by this pipeline, behind what the log holds now."""
        topics = {feed.source.topic for feed in self.chain.feeds}
        ends = {topic: {str(p): bound.end for p, bound in self.log.bounds(topic).items()} for topic in sorted(topics)}
        for feed in self.chain.feeds:
            if feed.source.time is not None:
                for partition in self.position.offsets[feed.source.topic]:
                    self.make(feed.source.topic, partition, FOREVER, ends)


def finished_offsets(query: StreamingQuery) -> dict[str, dict[int, int]] | None:
    """How far Spark says that it is, topic by topic; None before its first batch."""
    from millstream.spark.options import places_of

    done = query.lastProgress
    if done is None:
        return None
    read: dict[str, dict[str, int]] = {}
    for source in done["sources"]:
        end = source["endOffset"]
        read |= json.loads(end) if isinstance(end, str) else end or {}
    return {topic: {int(p): end for p, end in found.items()} for topic, found in places_of(read).items()}
