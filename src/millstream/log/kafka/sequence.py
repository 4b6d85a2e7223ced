"""A named producer's sequence on Kafka: the committed offset of a group of its own, for partition 0 of the topic.

It is committed by the transaction that appends. A broker that is killed while it writes the end of a transaction may never write
it for some partitions: when the coordinator comes back before their leaders are elected, it takes them for deleted and counts the
transaction as complete (seen with 4.3.1 and one broker). What the transaction wrote there then waits for ever. So an append is
acknowledged only when its sequence has become readable, which takes less than a millisecond; and whoever reads the sequence of a
transaction without an end gets an error that says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millstream.errors import LogUnavailable
from millstream.event import TopicPartition
from millstream.log.kafka.client import TIMEOUT, ck, silent
from millstream.log.kafka.offsets import of_group

if TYPE_CHECKING:
    from millstream.log.kafka.engine import KafkaLog

SEQUENCES = "__millstream.producer."
"""The groups that hold producers' sequences begin like this."""


class ProducerSequence:
    """The sequences of one producer, read by a consumer that never joins; ``group`` is what transactions want of it."""

    def __init__(self, log: KafkaLog, producer: str) -> None:
        self._log, self._producer, self._group = log, producer, SEQUENCES + producer
        settings = {"group.id": self._group, "isolation.level": "read_committed", "retry.backoff.ms": "5"}
        self._consumer = ck.Consumer(log.client | settings, logger=silent)
        self.group: Any = self._consumer.consumer_group_metadata()

    def read(self, topic: str) -> int | None:
        """The sequence in a topic; waits while a transaction is open, and says so if that has no end although the brokers answer."""
        try:
            return self._read(topic)
        except LogUnavailable:
            self._read(topic, stable=False)  # an error, too, if it was the broker that did not answer
        try:
            self.await_readable([topic])
        except LogUnavailable as error:
            raise LogUnavailable(
                f"{self._log.url}: topic {topic}: a transaction of producer {self._producer} has no end: a broker went down"
                " while it wrote the end, and does not know of it any more",
                hint="`kafka-transactions.sh find-hanging` shows it, in __consumer_offsets and perhaps in the topic, and its `abort` ends it;"
                " then see whether the topic has the last append, which is repeated otherwise",
            ) from error
        return self._read(topic)

    def await_readable(self, topics: Sequence[str]) -> None:
        """Wait until the sequence of the transaction that was committed last is readable in each of its topics."""
        try:
            for found in self._consumer.committed([ck.TopicPartition(topic, 0) for topic in topics], timeout=TIMEOUT):
                if found.error is not None:
                    raise ck.KafkaException(found.error)
        except ck.KafkaException as error:
            raise LogUnavailable(
                f"{self._log.url}: topic {', '.join(topics)}: {error.args[0].str()}; the batch was committed, but its sequence cannot be read"
                " yet",
                hint="append again, with the same producer and sequence",
            ) from error

    def close(self) -> None:
        """Let go of the consumer."""
        self._consumer.close()

    def _read(self, topic: str, *, stable: bool = True) -> int | None:
        place = TopicPartition(topic, 0)
        return of_group(self._log, self._group, [place], stable=stable).get(place)
