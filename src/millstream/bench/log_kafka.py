"""Appends to Kafka as users make them, each beside a plain producer that does the same in the same run.

The plain one is idempotent, waits for all replicas and asks what became of each event, as ours; it has no transactions, so a
batch of its may be there in part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

from millstream.bench import Result, alternate
from millstream.errors import MillstreamError
from millstream.event import Event
from millstream.log.contract import Log
from millstream.log.producer import Buffer, Producer

THREADS, SMALL, LARGE = 16, 100, 10_000
"""Threads that append, how many events each append of theirs has, and how many a large append has."""
_ROUNDS = 3


def append_kafka(batches: list[list[Event]], partitions: int) -> Iterator[Result]:
    """One thread, append by append, small and large; several threads; and the buffered producer, event by event."""
    try:
        import confluent_kafka

        from millstream.log import open_log
        from millstream.testing import KafkaBroker

        broker = KafkaBroker(ordinary=True)
        broker.start()
    except (ImportError, MillstreamError) as error:
        yield Result("append_kafka", 0.0, "records/s", against=f"not measured: {error}")
        return
    settings = {"bootstrap.servers": broker.bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 5}
    with broker, open_log(broker.url) as log, ExitStack() as closing:
        for topic in ("t", "bare"):
            log.create_topic(topic, partitions)
        plain: Any = confluent_kafka.Producer(settings | {"queue.buffering.max.messages": 1_000_000})
        producer = closing.enter_context(Producer(log, "t", Buffer(capacity=50_000)))
        events = [event for batch in batches for event in batch]
        large = [events[low : low + LARGE] for low in range(0, len(events), LARGE)]
        end = "plain Kafka producer, acks=all, idempotent, flushed at the end"
        each = "plain Kafka producer, acks=all, idempotent, flushed every {:,}"
        for name, ours, given, against in (
            ("append_kafka", _one_by_one, batches, each.format(len(batches[0]))),
            ("append_kafka_large", _one_by_one, large, each.format(LARGE)),
            ("append_kafka_threads", _by_threads, batches, end),
            ("append_kafka_producer", partial(_by_producer, producer), batches, end),
        ):
            measured, beside = _rate(ours, log, given), _rate(_plain(plain, against != end), log, given)
            measured(), beside()
            value, baseline = alternate(measured, beside, _ROUNDS)
            yield Result(name, value, "records/s", against, baseline)


def _rate(
    write: Callable[[Log, Sequence[list[Event]]], None], log: Log, batches: list[list[Event]]
) -> Callable[[], float]:
    def rate() -> float:
        begun = time.perf_counter()
        write(log, batches)
        return sum(map(len, batches)) / (time.perf_counter() - begun)

    return rate


def _one_by_one(log: Log, batches: Sequence[list[Event]]) -> None:
    for batch in batches:
        log.append("t", batch)


def _by_threads(log: Log, batches: Sequence[list[Event]]) -> None:
    small = [batch[low : low + SMALL] for batch in batches for low in range(0, len(batch), SMALL)]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda events: log.append("t", events), small))


def _by_producer(producer: Producer, _: Log, batches: Sequence[list[Event]]) -> None:
    for batch in batches:
        for event in batch:
            producer.send(event)
    producer.flush()


def _plain(producer: Any, each: bool) -> Callable[[Log, Sequence[list[Event]]], None]:
    """The same by a producer without transactions, flushed after each batch or once."""

    failed: list[Any] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    def write(_: Log, batches: Sequence[list[Event]]) -> None:
        for batch in batches:
            for event in batch:
                producer.produce("bare", event.value, event.key, on_delivery=delivered)
            if each:
                producer.flush()
        producer.flush()

    return write
