"""Kafka read in bulk: ranges of partitions, by consumers that a process keeps.

A range ends at an offset that need not be a record's: markers of transactions, aborted records and compacted ones take offsets
too. So it is read when a record behind it has come, or the end of the partition.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from millstream.errors import LogUnavailable, UnknownTopic
from millstream.event import TopicPartition
from millstream.log.checks import check_offset
from millstream.log.contract import Bounds
from millstream.log.embedded.file import MOST_BYTES
from millstream.log.kafka.client import GONE, TIMEOUT, ck
from millstream.log.kafka.messages import Messages, ObjectTaker, Odd, Taker, Unexpected
from millstream.log.kafka.read import COMMON

if TYPE_CHECKING:
    from millstream.log.embedded.scan import Part

T = TypeVar("T")
_SETTINGS = {
    **COMMON,
    "group.id": "__millstream.scan",  # the client wants a name; it never joins
    "reconnect.backoff.max.ms": "1000",
    "fetch.wait.max.ms": "1",  # the broker answers that there is no more after so many milliseconds
    "queued.min.messages": "20000",  # read ahead, and thrown away where a range ends
    "fetch.queue.backoff.ms": "5",
}
_TICK = 1.0  # seconds
_kept: dict[tuple[Any, ...], Any] = {}
"""What reads, for each process, kind and settings: connecting takes longer than reading a little."""
_refused = set[type[Taker]]()
"""What cannot be used here, as its first messages said."""
_log = logging.getLogger("millstream")


def scan(
    client: Mapping[str, str],
    part: Part,
    limit: int,
    patience: float,
    most: int = MOST_BYTES,
    kind: type[Taker] = ObjectTaker,
) -> Iterator[Messages]:
    """The committed messages of a range, ``limit`` or ``most`` bytes of values at a time, but at least one.

    They are there until the next are asked for. A broker that says nothing is waited for, ``patience`` seconds. Raises
    OffsetOutOfRange where the range is not there any more, and UnknownTopic where the topic is not.
    """
    waiting, given = list[Messages](), None
    count = size = 0
    try:
        for found in _taken(client, part, limit, patience, kind):
            waiting.append(found)
            count, size = count + len(found), size + int(found.lengths.sum())
            while count >= limit or size > most:
                whole = waiting[0].then(waiting[1:])
                fitting = max(1, min(limit, int(np.searchsorted(np.cumsum(whole.lengths), most, "right"))))
                given, waiting = whole[:fitting], [whole[fitting:]]
                count, size = count - fitting, size - int(given.lengths.sum())
                yield given
                given.let_go()
        if count:
            yield waiting[0].then(waiting[1:])
    finally:
        for each in [*waiting, given] if given is not None else waiting:
            each.let_go()


def _taken(client: Mapping[str, str], part: Part, limit: int, patience: float, kind: type[Taker]) -> Iterator[Messages]:
    """What comes of a range, as it comes."""
    taker: Taker = _taker(client, ObjectTaker if kind in _refused else kind)
    taker.assign(part.topic, part.partition, part.start)
    position, heard = part.start, time.monotonic()
    while position < part.end:
        try:
            found, odd = taker.take(min(limit, part.end - position), _TICK)
        except Unexpected as error:
            _log.warning("Kafka's client: %s; instead an object is made of each message", error)
            _refused.add(kind)
            taker = _taker(client, ObjectTaker)
            taker.assign(part.topic, part.partition, position)
            continue
        if len(found) or odd:
            heard = time.monotonic()
        elif not _is_there(client, part.topic):
            raise UnknownTopic(f"no topic {part.topic} at kafka://{client['bootstrap.servers']}")
        else:
            _check(client, part, part.end)
        if time.monotonic() - heard > patience:
            raise LogUnavailable(
                f"kafka://{client['bootstrap.servers']}: no answer for {patience:.0f} s, reading topic {part.topic}"
                f" partition {part.partition} from offset {position}",
                hint="is the broker up and the address right? `millstream doctor` looks",
            )
        for each in odd:
            position = max(position, _reached(taker, client, part, each, position))
        if len(found):
            offsets = found.offsets
            position = max(position, int(offsets[-1]) + 1)
            if position > part.end:
                inside = int(np.searchsorted(offsets, part.end))
                found[inside:].let_go()
                found = found[:inside]
            yield found
    taker.unassign()


def _is_there(client: Mapping[str, str], topic: str) -> bool:
    """Whether there is a topic, or nobody who could tell; the client waits for one that it does not find."""
    try:
        error = _taker(client, ObjectTaker).consumer.list_topics(topic, timeout=_TICK).topics[topic].error
    except ck.KafkaException:
        return True
    return error is None or error.name() not in GONE


def _reached(taker: Taker, client: Mapping[str, str], part: Part, odd: Odd, position: int) -> int:
    """How far we are after a message that is no record."""
    if odd.error == "_PARTITION_EOF":
        return odd.offset  # behind the markers of transactions
    if odd.error in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
        _check(client, part, position)
        taker.assign(part.topic, part.partition, position)
    return position  # the client keeps trying


def _check(client: Mapping[str, str], part: Part, offset: int) -> None:
    """Raise OffsetOutOfRange if the log does not reach an offset, or not any more: nothing will come then."""
    with suppress(ck.KafkaException):  # it is away: the next answer is the same
        place = ck.TopicPartition(part.topic, part.partition)
        bounds = Bounds(*_taker(client, ObjectTaker).consumer.get_watermark_offsets(place, timeout=TIMEOUT))
        if bounds.end >= 0:  # a broker that is just back may not know its end yet
            check_offset(TopicPartition(part.topic, part.partition), offset, bounds)


def _taker(client: Mapping[str, str], kind: Callable[[Mapping[str, str]], T]) -> T:
    key = os.getpid(), kind, tuple(sorted(client.items()))
    if key not in _kept:
        _kept[key] = kind({**client, **_SETTINGS})
    taker: T = _kept[key]
    return taker
