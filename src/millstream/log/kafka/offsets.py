"""Offsets as the brokers tell them: of partitions, for readers of committed records, and of groups.

Asked again while the brokers are still finding out who is to answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.errors import LogUnavailable
from millstream.event import TopicPartition
from millstream.log.kafka.client import GONE, MOVING, TIMEOUT, ck, silent

if TYPE_CHECKING:
    from millstream.log.kafka.engine import KafkaLog

T = TypeVar("T")


def of_partitions(log: KafkaLog, places: Sequence[TopicPartition], spec: Any) -> dict[TopicPartition, Any]:
    """One kind of offset of partitions of several topics, as readers of committed records see it, with its time where that was asked for."""
    wanted = {ck.TopicPartition(place.topic, place.partition): spec for place in places}

    def ask() -> dict[TopicPartition, Any]:
        futures = log.admin.list_offsets(
            wanted, isolation_level=ck.IsolationLevel.READ_COMMITTED, request_timeout=TIMEOUT
        )
        return {TopicPartition(place.topic, place.partition): future.result() for place, future in futures.items()}

    topics = ", ".join(sorted({place.topic for place in places}))
    found = _patiently(log, ask, topics)
    if any(answer.offset == ck.OFFSET_INVALID for answer in found.values()):
        raise LogUnavailable(f"{log.url}: topic {topics}: the broker does not know its offsets yet, as it is just back")
    return found


def first_since(log: KafkaLog, topic: str, partition: int, offset: int, end: int, millis: int) -> int:
    """The first offset from there on whose event is not before a time, or the end."""
    with log.reader(topic, {partition: offset}) as reader:
        while reader.positions[partition] < end:
            for record in reader.poll(1000, timeout=1.0):
                if record.timestamp >= millis and record.offset < end:
                    return record.offset
    return end


def of_group(
    log: KafkaLog, group: str, places: Sequence[TopicPartition], *, stable: bool = True
) -> dict[TopicPartition, int]:
    """What a group has committed; waits while a transaction of it is open, or takes what was there before it.

    Asked by a consumer that never joins. The admin client's call crashes the process when the coordinator is on the move
    (librdkafka 2.16: the answer is handled as a member's, and there is none).
    """
    wanted = [ck.TopicPartition(place.topic, place.partition) for place in places]
    isolation = "read_committed" if stable else "read_uncommitted"
    consumer = ck.Consumer(log.client | {"group.id": group, "isolation.level": isolation}, logger=silent)

    def ask() -> list[Any]:
        found: list[Any] = consumer.committed(wanted, timeout=TIMEOUT)
        for place in found:
            if place.error is not None and place.error.name() not in GONE:
                raise ck.KafkaException(place.error)
        return found

    try:
        found = _patiently(log, ask) if wanted else []
    finally:
        consumer.close()
    return {TopicPartition(p.topic, p.partition): p.offset for p in found if p.offset >= 0}


def _patiently(log: KafkaLog, ask: Callable[[], T], topic: str = "") -> T:
    """Ask again while the brokers are still finding out who is to answer."""
    deadline = time.monotonic() + TIMEOUT
    with log.errors(topic):
        while True:
            try:
                return ask()
            except ck.KafkaException as error:
                if error.args[0].name() not in MOVING or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
