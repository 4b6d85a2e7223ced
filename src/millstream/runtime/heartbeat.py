"""Heartbeats: records that raise the watermark of a partition that has nothing to say.

A heartbeat stands in the partition it is for, so it is a fact of the log like any other record and a replay meets it at
the same place. Its key begins with ``millstream.heartbeat``; what follows only makes the key fall into that partition.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from millstream.event import Event
from millstream.kernel.state import FOREVER
from millstream.log import Log
from millstream.log.partitioner import partition_of
from millstream.plan.chain import micros
from millstream.plan.nodes import EventTime
from millstream.spark.lower import HEARTBEAT_KEY


@dataclass(frozen=True, slots=True)
class Quiet:
    """What is known of a partition: its watermark (None before the first), the last append (µs, None if never).

    ``unread`` says that the log holds more of it than we have read, so that it is we who are slow.
    """

    watermark: int | None
    appended: int | None
    unread: bool = False


def append_heartbeat(log: Log, topic: str, partition: int, time: int | None, pipeline: str | None) -> None:
    """Append one: from here on nothing before ``time`` is expected; None means nothing at all."""
    count = len(log.bounds(topic))
    key = next(
        name
        for name in (f"{HEARTBEAT_KEY}.{number}".encode() for number in itertools.count())
        if partition_of(name, count) == partition
    )
    log.append(topic, [Event(msgspec.json.encode({"time": time, "pipeline": pipeline}), key=key)])


def due(time: EventTime, partitions: Mapping[int, Quiet], now: int | None) -> dict[int, int]:
    """Which partitions of a stream are idle and hold the others back, and what to raise them to.

    ``now`` is the append clock, or None to go by the newest append alone. A partition is idle when nothing was appended to
    it for the stream's ``idle`` and all of it is read. Others go on: it gets the least of their watermarks. All are idle: it follows the clock.

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
    target = min(known) if known else clock - micros(time.delay) - micros(time.idle)
    return {
        number: target
        for number in sorted(idle)
        if (partitions[number].watermark is None or (partitions[number].watermark or 0) < target) and target < FOREVER
    }
