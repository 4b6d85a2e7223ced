"""One transactional client: what is appended to Kafka at once, and, for a named producer, its sequence, is one transaction.

The sequence is the committed offset of a group of the producer's own, in each topic that is appended to. A client is thrown
away after any error, never used again, and the next one of that name first settles what was left open (librdkafka lacks the
second part of KIP-890).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.errors import LogUnavailable
from millstream.event import TopicPartition
from millstream.failpoint import failpoint
from millstream.log.checks import check_repeated
from millstream.log.contract import TIME_HEADER, Ack, Topic
from millstream.log.embedded.batch import Batch
from millstream.log.kafka.client import OVERHEAD, TIMEOUT, ck, silent, translate
from millstream.log.kafka.sequence import ProducerSequence

if TYPE_CHECKING:
    from millstream.log.kafka.engine import KafkaLog

LEAST, MOST = 15.0, 900.0
"""Seconds of a transaction: nobody reads past that of a killed producer until the brokers end it, so not longer than it needs."""
OTHERS = 2 * LEAST
"""Seconds to wait for transactions that are open where a named producer begins: those of a killed one have ended by then."""
_MOMENT = 1.0
"""Seconds behind which one that is open is taken for one of the producer's own."""
_SLOWEST = 10_000
"""Records a second that even a slow broker takes."""
_LARGE = 50_000
"""Records of a transaction for which the least time may not be enough."""
_BATCH_BYTES = 1_000_000


class Limits(NamedTuple):
    """What a client must be able to send: for how many seconds, records how large, and batches how small."""

    seconds: float = LEAST
    record_bytes: int = _BATCH_BYTES
    batch_bytes: int = _BATCH_BYTES

    def __or__(self, other: Limits) -> Limits:
        """What is enough for both."""
        return Limits(
            max(self.seconds, other.seconds),
            max(self.record_bytes, other.record_bytes),
            min(self.batch_bytes, other.batch_bytes),
        )


def limits_of(topics: Sequence[Topic], records: int = 0) -> Limits:
    """What so many records into these topics need; the least time, unless they are very many."""
    sizes = [topic.settings.max_record_bytes for topic in topics]
    seconds = min(MOST, LEAST + records / _SLOWEST) if records > _LARGE else LEAST
    return Limits(seconds, max(_BATCH_BYTES, *sizes) + OVERHEAD, min(_BATCH_BYTES, *sizes))


class TransactionalClient:
    """A client with a name that Kafka knows it by; a lock, since it has one transaction at a time."""

    def __init__(
        self, log: KafkaLog, name: str, producer: str | None, limits: Limits, topics: Sequence[str] = ()
    ) -> None:
        self._log, self.limits = log, limits
        self._partitions: dict[str, int] = {}
        self._lasts: dict[str, int | None] = {}
        self._ended: set[str] = set()
        self._lock = threading.Lock()
        settings = (
            log.client
            | {
                "transactional.id": name,
                "acks": "all",
                "linger.ms": "5",
                "retry.backoff.ms": "5",  # a broker refuses a transaction right after another for a moment; the default would wait 100 ms
                "compression.type": "lz4",
                "queue.buffering.max.messages": "1000000",
                "message.max.bytes": str(limits.record_bytes),
                "batch.size": str(limits.batch_bytes),
            }
        )
        with log.errors(", ".join(topics)):
            self._await_leaders(topics)
            self._client = self._begun(settings, limits.seconds)
        self._sequence = ProducerSequence(log, producer) if producer is not None else None
        self._producer = producer

    def _await_leaders(self, topics: Sequence[str]) -> None:
        """See that partitions answer before what an earlier client left open there is ended.

        A coordinator that is back before their leaders are elected takes them for deleted (:mod:`millstream.log.kafka.sequence`), and
        writes no end there.
        """
        self._log.ends(self._places(topics))

    def _await_ends(self, topics: Sequence[str]) -> None:
        """Wait until every transaction in topics has an end, before the first append of a named producer goes there.

        One of its own whose end was never written would be committed by the next one, and its records, appended again, would be there twice.
        So the next one is aborted: that ends both.
        """
        places = self._places(topics)
        written = self._log.ends(places, committed=False)
        begun, aborted = time.monotonic(), False
        deadline = begun + OTHERS
        while True:
            stable = self._log.ends(places)
            still = [place for place in places if stable[place] < written[place]]
            if not still:
                return
            if time.monotonic() > deadline:
                break
            if not aborted and time.monotonic() - begun > _MOMENT:
                self._abort_in(still)
                aborted = True
            time.sleep(0.02)
        topic, partition = still[0]
        raise LogUnavailable(
            f"{self._log.url}: topic {topic}, partition {partition}: a transaction is open from offset {stable[still[0]]} on; it may be one of"
            f" producer {self._producer} that a broker never ended, and then the next would commit it",
            hint="append again, with the same producer and sequence; if it stays so, `kafka-transactions.sh find-hanging` shows it, and its"
            " `abort` ends it",
        )

    def _abort_in(self, places: Sequence[TopicPartition]) -> None:
        """Begin a transaction in partitions and abort it: what its producer has open there ends with it, and nobody reads any of it."""
        self._client.begin_transaction()
        for place in places:
            self._client.produce(place.topic, None, b"aborted", place.partition)
        self._client.flush(TIMEOUT)
        self._bounded(self._client.abort_transaction, TIMEOUT)

    def _places(self, topics: Sequence[str]) -> list[TopicPartition]:
        return [TopicPartition(topic, p) for topic in topics for p in range(self._log.described(topic).partitions)]

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

    def stored(self, topic: str) -> int | None:
        """The sequence that the brokers hold for this producer in a topic; None for one without a name."""
        with self._lock, self._log.errors(topic):
            return self._read(topic)

    def forget(self, topic: str) -> None:
        """Read the sequence anew before the next append: somebody else of our name has appended, or the topic is gone."""
        self._lasts.pop(topic, None)

    def append(
        self,
        parts: Sequence[tuple[Topic, Batch]],
        sequence: int | None,
        commit: tuple[Sequence[Any], Any] | None = None,
    ) -> list[Ack]:
        """Send batches and their sequence in one transaction, unless they are there already; with them the offsets of a group's member."""
        names = list(dict.fromkeys(topic.name for topic, _ in parts))
        with self._lock, self._log.errors(", ".join(names)):
            if sequence is not None and self._is_repeat(names, sequence):
                return [Ack(batch.places, [-1] * len(batch.places), duplicate=True) for _, batch in parts]
            self._client.begin_transaction()
            offsets: dict[TopicPartition, list[int]] = {}
            failed: list[tuple[Any, str]] = []
            for topic, batch in parts:
                self._produce(topic, batch, offsets, failed)
                failpoint("log.append.in_transaction")
            if self._client.flush(max(TIMEOUT, self.limits.seconds)) > 0 and not failed:
                raise LogUnavailable(
                    f"{self._log.url}: no answer within {TIMEOUT:.0f} s; nothing was appended", hint="append again"
                )
            if failed:
                error, topic_name = failed[0]
                if error.name() == "_PURGE_QUEUE":  # the transaction failed before; this says why
                    self._bounded(self._client.commit_transaction, TIMEOUT)
                raise translate(error, self._log.url, topic_name)
            if commit is not None:
                self._bounded(self._client.send_offsets_to_transaction, *commit, TIMEOUT)
            self._commit(names, sequence)
            with suppress(LogUnavailable):  # it is committed: a broker that dies now must not make it look lost
                self._await_visible({place: found[-1] for place, found in offsets.items()})
            if self._sequence is not None:
                self._sequence.await_readable(names)
            queues = {place: iter(found) for place, found in offsets.items()}
            return [Ack(batch.places, _in_order(topic.name, batch, queues)) for topic, batch in parts]

    def renumber(self, topic: str, sequence: int) -> bool:
        """Commit the number alone; an error if another has begun under our name since this one did."""
        with self._lock, self._log.errors(topic):
            self._client.begin_transaction()
            self._commit([topic], sequence)
            if self._sequence is not None:
                self._sequence.await_readable([topic])
        return True

    def _read(self, topic: str) -> int | None:
        self._lasts[topic] = found = None if self._sequence is None else self._sequence.read(topic)
        return found

    def _is_repeat(self, topics: Collection[str], sequence: int) -> bool:
        if new := [topic for topic in topics if topic not in self._ended]:
            self._await_ends(new)
            self._ended.update(new)
        lasts = {topic: self._lasts[topic] if topic in self._lasts else self._read(topic) for topic in topics}
        there = {topic: last is not None and sequence <= last for topic, last in lasts.items()}
        return check_repeated(there, self._producer or "", sequence)

    def _produce(
        self,
        topic: Topic,
        batch: Batch,
        offsets: dict[TopicPartition, list[int]],
        failed: list[tuple[Any, str]],
    ) -> None:
        """Hand a batch to the client; its offsets come while the client is polled or flushed."""
        if not batch.events:
            return
        name, client = topic.name, self._client
        partitions = self._partitions.setdefault(name, topic.partitions)
        if max(batch.places) >= partitions:  # the topic has grown, and the client does not know it yet
            self._partitions[name] = len(client.list_topics(name, timeout=TIMEOUT).topics[name].partitions)
        found = {p: offsets.setdefault(TopicPartition(name, p), []) for p in set(batch.places)}
        add = {p: told.append for p, told in found.items()}

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                failed.append((error, name))
            else:
                add[message.partition()](message.offset())

        times, produce = batch.millis or repeat(None), client.produce
        for partition, (value, key, _, headers), millis in zip(batch.places, batch.events, times, strict=False):
            more: dict[str, Any] = {}  # headers cost something even where there are none
            if headers or millis is not None:
                more["headers"] = [*headers, (TIME_HEADER, b"%d" % millis)] if millis is not None else [*headers]
            while True:
                try:
                    produce(name, value, key, partition, delivered, **more)
                    break
                except BufferError:
                    client.poll(0.1)

    def _commit(self, topics: Sequence[str], sequence: int | None) -> None:
        if sequence is not None and self._sequence is not None:
            marks = [ck.TopicPartition(topic, 0, sequence) for topic in topics]
            self._bounded(self._client.send_offsets_to_transaction, marks, self._sequence.group, TIMEOUT)
        self._bounded(self._client.commit_transaction, TIMEOUT)
        if sequence is not None:
            self._lasts |= dict.fromkeys(topics, sequence)

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

    def _await_visible(self, lasts: Mapping[TopicPartition, int]) -> None:
        """Wait until readers see what was committed: Kafka acknowledges first and marks the partitions after.

        Not for long: it is safe anyhow, and another producer's open transaction may be in front of it.
        """
        deadline = time.monotonic() + 1.0
        while lasts and time.monotonic() < deadline:
            ends = self._log.ends(list(lasts))
            if all(ends[place] > last for place, last in lasts.items()):
                return
            time.sleep(0.001)

    def close(self) -> None:
        """End an open transaction if the broker answers; forget the rest."""
        with suppress(ck.KafkaException, SystemError):  # see kafkas_own
            self._client.purge()
            self._client.abort_transaction(1.0)
        if self._sequence is not None:
            self._sequence.close()


def _in_order(topic: str, batch: Batch, queues: Mapping[TopicPartition, Iterator[int]]) -> list[int]:
    """The offsets of a batch's events, one after the other, from those of each partition."""
    following = {p: queues[TopicPartition(topic, p)].__next__ for p in set(batch.places)}
    return [following[partition]() for partition in batch.places]
