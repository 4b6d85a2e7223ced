"""Offsets as the brokers tell them: of partitions, for readers of committed records, and of groups.

Asked again while the brokers are still finding out who is to answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.errors import LogUnavailable
from millstream.event import TopicPartition
from millstream.log.kafka.client import GONE, MOVING, TIMEOUT, ck, silent

if TYPE_CHECKING:
    from millstream.log.kafka.engine import KafkaLog

T = TypeVar("T")


def of_partitions(
    log: KafkaLog, places: Sequence[TopicPartition], spec: Any, *, committed: bool = True
) -> dict[TopicPartition, Any]:
    """One kind of offset of partitions of several topics, as readers of committed records see it, with its time where that was asked for.

    Without ``committed`` as those see it who also read open transactions.

    The client goes on asking the leaders that it knows, and gives no offset at all for one that is away (librdkafka 2.16): it is told
    to look who leads now, and asked again, with more time from try to try.
    """
    wanted = {ck.TopicPartition(place.topic, place.partition): spec for place in places}
    topics = ", ".join(sorted({place.topic for place in places}))
    deadline, patience = time.monotonic() + TIMEOUT, 1.0
    with log.errors(topics):
        while True:
            isolation = ck.IsolationLevel.READ_COMMITTED if committed else ck.IsolationLevel.READ_UNCOMMITTED
            futures = log.admin.list_offsets(wanted, isolation_level=isolation, request_timeout=min(patience, TIMEOUT))
            try:
                found = {TopicPartition(at.topic, at.partition): future.result() for at, future in futures.items()}
            except ck.KafkaException as error:
                if error.args[0].name() not in MOVING | {"_TIMED_OUT"} or time.monotonic() > deadline:
                    raise
            else:
                if all(answer.offset != ck.OFFSET_INVALID for answer in found.values()):
                    return found
                if time.monotonic() > deadline:
                    break
            with suppress(ck.KafkaException):
                log.admin.list_topics(timeout=patience)
            patience *= 2
            time.sleep(0.02)
    raise LogUnavailable(
        f"{log.url}: topic {topics}: no broker knows its offsets: one that leads is away or just back",
        hint="try again; `millstream doctor` looks whether all brokers are up",
    )


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


def _patiently(log: KafkaLog, ask: Callable[[], T]) -> T:
    """Ask again while the brokers are still finding out who is to answer."""
    deadline = time.monotonic() + TIMEOUT
    with log.errors():
        while True:
            try:
                return ask()
            except ck.KafkaException as error:
                if error.args[0].name() not in MOVING or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
