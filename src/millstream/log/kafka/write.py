"""Appending to Kafka: one transactional client for each producer in each topic.

A batch and, for a named producer, its sequence go into one transaction; the sequence is the committed offset of a group
of the producer's own. A client is thrown away after any error, never used again, and the next one of that name first
settles what was left open (librdkafka lacks the second part of KIP-890).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from millstream.errors import LogUnavailable
from millstream.log.contract import TIME_HEADER, Ack, Topic
from millstream.log.embedded.batch import Batch
from millstream.log.kafka.client import OVERHEAD, TIMEOUT, ck, ck_admin, silent, translate
from millstream.log.kafka.sequence import ProducerSequence

if TYPE_CHECKING:
    from millstream.log.kafka.engine import KafkaLog

LEAST, MOST = 15.0, 900.0
"""Seconds of a transaction: nobody reads past that of a killed producer until the brokers end it, so not longer than it needs."""
_SLOWEST = 10_000
"""Records a second that even a slow broker takes."""


def seconds_for(records: int) -> float:
    """How long the transaction of so many records may last."""
    return min(MOST, LEAST + records / _SLOWEST)


class TopicProducer:
    """The transactional client of one producer in one topic; a lock, since a client has one transaction at a time."""

    def __init__(self, log: KafkaLog, topic: Topic, producer: str | None, seconds: float) -> None:
        self._log, self._topic, self.seconds = log, topic.name, seconds
        self._partitions = topic.partitions
        self._lock = threading.Lock()
        settings = (
            log.client
            | {
                "transactional.id": f"millstream.{topic.name}.{producer or log.anonymous}",
                "acks": "all",
                "linger.ms": "5",
                "retry.backoff.ms": "5",  # a broker refuses a transaction right after another for a moment; the default would wait 100 ms
                "compression.type": "lz4",
                "queue.buffering.max.messages": "1000000",
                "message.max.bytes": str(max(1_000_000, topic.settings.max_record_bytes + OVERHEAD)),
                "batch.size": str(min(1_000_000, topic.settings.max_record_bytes)),
            }
        )
        with log.errors(topic.name):
            self._client = self._begun(settings, seconds)
        self._sequence = ProducerSequence(log, topic.name, producer) if producer is not None else None
        self._last: int | None = self.stored()

    def _begun(self, settings: Mapping[str, Any], seconds: float) -> Any:
        """A client that has settled what an earlier one of its name left open, with as much time as the brokers allow."""
        while True:
            client = ck.Producer({**settings, "transaction.timeout.ms": str(int(seconds * 1000))}, logger=silent)
            try:
                self._bounded(client.init_transactions, TIMEOUT)
                return client
            except ck.KafkaException as error:
                if error.args[0].code() != ck.KafkaError.INVALID_TRANSACTION_TIMEOUT or seconds <= LEAST:
                    raise
                seconds = max(LEAST, seconds / 2)

    def stored(self) -> int | None:
        """The sequence that the brokers hold for this producer; None for one without a name."""
        if self._sequence is None:
            return None
        with self._lock, self._log.errors(self._topic):
            return self._sequence.read()

    def append(self, batch: Batch, sequence: int | None) -> Ack:
        """Send a batch and its sequence in one transaction, unless it is there already."""
        with self._lock, self._log.errors(self._topic):
            if sequence is not None and self._last is not None and sequence <= self._last:
                return Ack(batch.places, [-1] * len(batch.places), duplicate=True)
            offsets: dict[int, list[int]] = {partition: [] for partition in set(batch.places)}
            failed: list[Any] = []

            def delivered(error: Any, message: Any) -> None:
                if error is not None:
                    failed.append(error)
                else:
                    offsets[message.partition()].append(message.offset())

            client = self._client
            if max(batch.places) >= self._partitions:  # the topic has grown, and the client does not know it yet
                self._partitions = len(client.list_topics(self._topic, timeout=TIMEOUT).topics[self._topic].partitions)
            client.begin_transaction()
            times = batch.millis or [None] * len(batch.events)
            for partition, event, millis in zip(batch.places, batch.events, times, strict=True):
                headers: list[tuple[str, bytes]] = list(event.headers)
                if millis is not None:
                    headers.append((TIME_HEADER, b"%d" % millis))
                while True:
                    try:
                        client.produce(
                            self._topic,
                            event.value,
                            event.key,
                            partition=partition,
                            headers=headers,
                            on_delivery=delivered,
                        )
                        break
                    except BufferError:
                        client.poll(0.1)
            if client.flush(max(TIMEOUT, self.seconds)) > 0 and not failed:
                raise LogUnavailable(
                    f"{self._log.url}: no answer within {TIMEOUT:.0f} s; nothing was appended", hint="append again"
                )
            if failed:
                if failed[0].name() == "_PURGE_QUEUE":  # the transaction failed before; this says why
                    self._bounded(client.commit_transaction, TIMEOUT)
                raise translate(failed[0], self._log.url, self._topic)
            self._commit(sequence)
            with suppress(LogUnavailable):  # it is committed: a broker that dies now must not make it look lost
                self._await_visible({partition: found[-1] for partition, found in offsets.items()})
            if self._sequence is not None:
                self._sequence.await_readable()
            queues = {partition: iter(found) for partition, found in offsets.items()}
            return Ack(batch.places, [next(queues[partition]) for partition in batch.places])

    def renumber(self, sequence: int) -> bool:
        """Commit the number alone; an error if another has begun under our name since this one did."""
        with self._lock, self._log.errors(self._topic):
            self._client.begin_transaction()
            self._commit(sequence)
            if self._sequence is not None:
                self._sequence.await_readable()
        return True

    def _commit(self, sequence: int | None) -> None:
        if sequence is not None and self._sequence is not None:
            mark = ck.TopicPartition(self._topic, 0, sequence)
            self._bounded(self._client.send_offsets_to_transaction, [mark], self._sequence.group, TIMEOUT)
        self._bounded(self._client.commit_transaction, TIMEOUT)
        self._last = sequence

    def _bounded(self, call: Callable[..., None], *arguments: Any) -> None:
        """Give up on a call that forgets its own timeout, as the client's do when a broker dies under them (seen)."""
        failed: list[BaseException] = []

        def run() -> None:
            try:
                call(*arguments)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(TIMEOUT + 2.0)
        if failed:
            raise failed[0]
        if thread.is_alive():
            raise LogUnavailable(
                f"{self._log.url}: no answer within {TIMEOUT:.0f} s; whether the batch was kept is unknown",
                hint="append again, with the same producer and sequence",
            )

    def _await_visible(self, lasts: Mapping[int, int]) -> None:
        """Wait until readers see what was committed: Kafka acknowledges first and marks the partitions after.

        Not for long: it is safe anyhow, and another producer's open transaction may be in front of it.
        """
        deadline = time.monotonic() + 1.0
        spec = ck_admin.OffsetSpec.latest()
        while time.monotonic() < deadline:
            ends = self._log.list_offsets(self._topic, lasts, spec)
            if all(ends[partition] > last for partition, last in lasts.items()):
                return
            time.sleep(0.001)

    def close(self) -> None:
        """End an open transaction if the broker answers; forget the rest."""
        with suppress(ck.KafkaException, SystemError):  # see kafkas_own
            self._client.purge()
            self._client.abort_transaction(1.0)
        if self._sequence is not None:
            self._sequence.close()
