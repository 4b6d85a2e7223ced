"""Kafka read in bulk: ranges of partitions.

A range ends at an offset that need not be a record's: markers of transactions, aborted records and compacted ones take offsets
too. So it is read when a record behind it has come, or the end of the partition.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.errors import LogUnavailable, UnknownTopic
from millstream.event import TopicPartition
from millstream.log.archive import columns_to_arrow
from millstream.log.checks import check_offset
from millstream.log.contract import Bounds
from millstream.log.embedded.file import MOST_BYTES
from millstream.log.kafka.client import GONE, TIMEOUT, ck, silent
from millstream.log.kafka.read import COMMON, split_headers

if TYPE_CHECKING:
    from millstream.log.embedded.scan import Part

_SETTINGS = {
    **COMMON,
    "group.id": "__millstream.scan",  # the client wants a name; it never joins
    "reconnect.backoff.max.ms": "1000",
    "fetch.wait.max.ms": "1",  # the broker answers that there is no more after so many milliseconds
}
_TICK = 1.0  # seconds
_kept: dict[tuple[int, tuple[tuple[str, str], ...]], Any] = {}
"""A consumer for each process and settings: connecting takes longer than reading a little."""


def scan(
    client: Mapping[str, str], part: Part, limit: int, patience: float, most: int = MOST_BYTES
) -> Iterator[list[Any]]:
    """The committed messages of a range, ``limit`` or ``most`` bytes of values at a time, but at least one.

    A broker that says nothing is waited for, ``patience`` seconds. Raises OffsetOutOfRange where the range is not there any more,
    and UnknownTopic where the topic is not.
    """
    consumer = _consumer(client)
    consumer.assign([ck.TopicPartition(part.topic, part.partition, part.start)])
    position, heard, waiting, size = part.start, time.monotonic(), list[Any](), 0
    while position < part.end:
        first = consumer.poll(_TICK)
        found = [] if first is None else [first, *consumer.consume(limit, 0)]
        if found:
            heard = time.monotonic()
        elif not _is_there(consumer, part.topic):
            raise UnknownTopic(f"no topic {part.topic} at kafka://{client['bootstrap.servers']}")
        else:
            _check(consumer, part, part.end)
        if time.monotonic() - heard > patience:
            raise LogUnavailable(
                f"kafka://{client['bootstrap.servers']}: no answer for {patience:.0f} s, reading topic {part.topic}"
                f" partition {part.partition} from offset {position}",
                hint="is the broker up and the address right? `millstream doctor` looks",
            )
        for odd in [message for message in found if message.error() is not None]:
            position = max(position, _reached(consumer, part, odd, position))
        records = [message for message in found if message.error() is None]
        if records:
            position = max(position, records[-1].offset() + 1)
            if position > part.end:
                records = records[: bisect_left(records, part.end, key=ck.Message.offset)]
            waiting += records
            size += sum(map(len, records))
        while len(waiting) >= limit or size > most:
            count = max(1, min(limit, bisect_right(list(accumulate(map(len, waiting))), most)))
            yield waiting[:count]
            waiting = waiting[count:]
            size = sum(map(len, waiting))
    consumer.unassign()
    if waiting:
        yield waiting


def _is_there(consumer: Any, topic: str) -> bool:
    """Whether there is a topic, or nobody who could tell; the client waits for one that it does not find."""
    try:
        error = consumer.list_topics(topic, timeout=_TICK).topics[topic].error
    except ck.KafkaException:
        return True
    return error is None or error.name() not in GONE


def _reached(consumer: Any, part: Part, message: Any, position: int) -> int:
    """How far we are after a message that is no record."""
    name = message.error().name()
    if name == "_PARTITION_EOF":
        return int(message.offset())  # behind the markers of transactions
    if name in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
        _check(consumer, part, position)
        consumer.assign([ck.TopicPartition(part.topic, part.partition, position)])
    return position  # the client keeps trying


def _check(consumer: Any, part: Part, offset: int) -> None:
    """Raise OffsetOutOfRange if the log does not reach an offset, or not any more: nothing will come then."""
    with suppress(ck.KafkaException):  # it is away: the next answer is the same
        place = ck.TopicPartition(part.topic, part.partition)
        bounds = Bounds(*consumer.get_watermark_offsets(place, timeout=TIMEOUT))
        if bounds.end >= 0:  # a broker that is just back may not know its end yet
            check_offset(TopicPartition(part.topic, part.partition), offset, bounds)


def to_batch(part: Part, messages: Sequence[Any], *, headers: bool = True) -> pa.RecordBatch:
    """Messages of one partition in the archive's columns; without their headers an event's own time is not seen."""
    message = ck.Message
    appended = [stamp for _, stamp in map(message.timestamp, messages)]
    times, others = appended, [None] * len(messages)
    if headers and any(found := list(map(message.headers, messages))):
        pairs = [split_headers(each, stamp) for each, stamp in zip(found, appended, strict=True)]
        times, others = [stamp for stamp, _ in pairs], [rest for _, rest in pairs]  # type: ignore[misc]
    return columns_to_arrow(
        part.topic,
        part.partition,
        list(map(message.offset, messages)),
        times,
        appended,
        list(map(message.key, messages)),
        list(map(message.value, messages)),
        others,
    )


def _consumer(client: Mapping[str, str]) -> Any:
    key = os.getpid(), tuple(sorted(client.items()))
    if key not in _kept:
        _kept[key] = ck.Consumer({**client, **_SETTINGS}, logger=silent)
    return _kept[key]
