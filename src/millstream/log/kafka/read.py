"""Reading from Kafka: alone by assignment, or as a member of one of Kafka's consumer groups."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from millstream.errors import ConfigError, GenerationFenced, OffsetOutOfRange, UnknownTopic
from millstream.event import Event, Headers, Record, TopicPartition
from millstream.log.checks import check_offset
from millstream.log.contract import TIME_HEADER, Ack, Consumer, Reader
from millstream.log.embedded.batch import Batch
from millstream.log.embedded.file import MOST_BYTES
from millstream.log.kafka.client import GONE, ck, silent, translate
from millstream.log.kafka.write import Limits, TransactionalClient

if TYPE_CHECKING:
    from millstream.log.kafka.engine import KafkaLog

COMMON = {
    "enable.auto.commit": "false",
    "auto.offset.reset": "error",  # Kafka would jump silently; we name what is missing
    "isolation.level": "read_committed",
    "enable.partition.eof": "true",
    "fetch.error.backoff.ms": "50",
    "queued.max.messages.kbytes": str(MOST_BYTES >> 10),  # what the client fetches ahead
    "fetch.queue.backoff.ms": "50",  # how long it then waits before it looks whether there is room
}
_FURTHEST = (1 << 63) // 1000 - 1  # milliseconds that are a number of microseconds, too


def to_record(message: Any) -> Record:
    """A record of ours for a message of Kafka's; the header with the event's time is ours alone and stays hidden."""
    _, appended = message.timestamp()
    timestamp, headers = split_headers(message.headers(), appended)
    return Record(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        timestamp,
        appended,
        headers,
    )


def split_headers(found: Sequence[tuple[str, bytes | None]] | None, appended: int) -> tuple[int, Headers]:
    """The time of an event, that of its append if no header of ours tells it, and the headers of others."""
    timestamp, others = appended, []
    for name, value in found or ():
        if name != TIME_HEADER:
            others.append((name, value or b""))
        elif value and value.lstrip(b"-").isdigit() and abs(int(value)) <= _FURTHEST:
            timestamp = int(value)
    return timestamp, tuple(others)


class _Client:
    """A Kafka consumer that gives batches, positions and our errors.

    What has come beyond the bytes of one poll waits for the next: the client would not give it again.
    """

    def __init__(self, log: KafkaLog, settings: dict[str, str]) -> None:
        self.log = log
        self.client = ck.Consumer(log.client | COMMON | settings, logger=silent)
        self.positions: dict[TopicPartition, int] = {}
        self.waiting: deque[Any] = deque()

    def poll(self, limit: int, timeout: float) -> list[Record]:
        """The first record that comes within ``timeout``, and what has come with it."""
        deadline = time.monotonic() + timeout
        before = dict(self.positions)
        while True:
            with self.log.errors():
                # With some waiting the client is asked all the same: it keeps a member of a group alive.
                first = self.client.poll(0.0 if self.waiting else max(0.0, deadline - time.monotonic()))
                if first is not None:
                    self.waiting.append(first)
                self._gather(limit)
            records = self._give(limit)
            if records or self.positions != before or time.monotonic() >= deadline:
                return records  # none, and yet further: the end of a partition lies behind the marker of a transaction

    def _gather(self, limit: int) -> None:
        """Let so much wait as one poll may give, or a little more: what is here already, without waiting for others."""
        size = sum(map(len, self.waiting))
        while self.waiting and len(self.waiting) < limit and size < MOST_BYTES:
            step = max(1, (MOST_BYTES - size) // max(1, *map(len, self.waiting), 0))
            more = self.client.consume(min(step, limit - len(self.waiting)), 0)
            if not more:
                return
            self.waiting += more
            size += sum(map(len, more))

    def _give(self, limit: int) -> list[Record]:
        """What one poll may give of what waits."""
        records, size = list[Record](), 0
        while self.waiting and len(records) < limit:
            message = self.waiting[0]
            size += len(message)
            if records and (size > MOST_BYTES or message.error() is not None):
                break
            self.waiting.popleft()
            if record := self._take(message):
                records.append(record)
        return records

    def _take(self, message: Any) -> Record | None:
        error = message.error()
        place = TopicPartition(message.topic(), message.partition()) if message.topic() is not None else None
        if error is None and place is not None:
            record = to_record(message)
            self.positions[place] = record.offset + 1
            return record
        if error is not None and error.name() == "_PARTITION_EOF" and place is not None:
            if place in self.positions:  # the offset of the end, past the markers of transactions
                self.positions[place] = max(self.positions[place], message.offset())
            return None
        if error is not None and error.name() in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE") and place is not None:
            self._check(place)
            return None
        if error is not None and error.name() in GONE:
            raise UnknownTopic(f"no topic {message.topic()} at {self.log.url}")
        if error is not None and not error.retriable() and error.fatal():
            raise translate(error, self.log.url)
        return None  # the client keeps trying

    def _check(self, place: TopicPartition) -> None:
        bounds = self.log.bounds(place.topic)[place.partition]
        check_offset(place, self.positions[place], bounds)


class KafkaReader(Reader):
    """Partitions of a topic from given offsets on."""

    def __init__(self, log: KafkaLog, topic: str, offsets: Mapping[int, int]) -> None:
        self._client = _Client(log, {"group.id": "__millstream.reader"})
        self._client.positions = {TopicPartition(topic, partition): offset for partition, offset in offsets.items()}
        with log.errors(topic):
            self._client.client.assign(
                [ck.TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
            )

    @property
    def positions(self) -> dict[int, int]:
        """The next offset of each partition."""
        return {place.partition: offset for place, offset in self._client.positions.items()}

    def poll(self, limit: int = 1000, timeout: float = 0.0) -> list[Record]:
        """What has come."""
        return self._client.poll(limit, timeout)

    def close(self) -> None:
        """Let go of the connection."""
        self._client.client.close()


class KafkaConsumer(Consumer):
    """A member of a consumer group."""

    def __init__(
        self, log: KafkaLog, topics: Sequence[str], group: str, start: Literal["earliest", "latest"], lease: timedelta
    ) -> None:
        if start not in ("earliest", "latest"):
            raise ConfigError(f"start: found {start!r}, expected earliest or latest")
        self.group = group
        self._log, self._start, self._closed = log, start, False
        millis = str(lease // timedelta(milliseconds=1))
        settings = {"group.id": group, "session.timeout.ms": millis, "max.poll.interval.ms": millis}
        settings["heartbeat.interval.ms"] = str(lease // timedelta(milliseconds=3))
        self._client = _Client(log, settings)
        self._lost: OffsetOutOfRange | None = None
        self._writers: dict[TopicPartition, TransactionalClient] = {}
        with log.errors():
            self._client.client.subscribe(
                list(topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
            )

    @property
    def member(self) -> str:  # type: ignore[override]
        """The id the coordinator gave us."""
        return "" if self._closed else str(self._client.client.memberid())

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions of this member."""
        return frozenset(self._client.positions)

    def poll(self, limit: int = 500, timeout: float = 1.0) -> list[Record]:
        """Kafka rebalances inside the poll."""
        if self._closed:
            raise GenerationFenced(f"this member of group {self.group} has left", hint="join with a new consumer")
        records = self._client.poll(limit, timeout)
        if self._lost is not None:
            error, self._lost = self._lost, None
            raise error
        return records

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit as a member of the current generation."""
        wanted = self._client.positions if offsets is None else offsets
        if self._closed:
            raise GenerationFenced(f"this member of group {self.group} has left; nothing was stored")
        for place in wanted:
            if place not in self._client.positions:
                raise GenerationFenced(f"this member of group {self.group} does not own {place}; nothing was stored")
        if wanted:
            with self._log.errors():
                places = [ck.TopicPartition(place.topic, place.partition, offset) for place, offset in wanted.items()]
                for stored in self._client.client.commit(offsets=places, asynchronous=False):
                    if stored.error is not None:
                        raise ck.KafkaException(stored.error)

    def take_over(self, place: TopicPartition, topics: Sequence[str]) -> None:
        """Begin a transactional client under the name of the partition: it ends what is open under that name, and fences who opened it."""
        self._drop([place])
        with self._log.errors(place.topic):
            name = f"millstream.{self.group}:{place}"
            self._writers[place] = TransactionalClient(self._log, name, None, Limits(), [place.topic, *topics])

    def append(
        self,
        place: TopicPartition,
        offset: int,
        batches: Mapping[str, Sequence[Event]],
        *,
        ends: Mapping[TopicPartition, int],
    ) -> dict[str, Ack]:
        """One transaction with our offset, fenced by the name of its client and by our generation."""
        del ends
        writer = self._writers.get(place)
        if writer is None or place not in self._client.positions:
            raise GenerationFenced(f"this member of group {self.group} has not taken over {place}; nothing was stored")
        parts = []
        for topic, events in batches.items():
            batch = Batch(self._log.described(topic), events, offset)
            batch.check_types()
            parts.append((self._log.described(topic), batch))
        at = [ck.TopicPartition(place.topic, place.partition, offset)]
        try:
            acks = writer.append(parts, None, (at, self._client.client.consumer_group_metadata()))
        except BaseException:
            self._drop([place])
            raise
        return dict(zip(batches, acks, strict=True))

    def _drop(self, places: Iterable[TopicPartition]) -> None:
        """Let go of the clients of partitions, and of what they have open."""
        for place in places:
            if (writer := self._writers.pop(place, None)) is not None:
                writer.close()

    def close(self) -> None:
        """Leave the group."""
        if not self._closed:
            self._closed = True
            self._drop(list(self._writers))
            self._client.positions = {}
            self._client.client.close()

    def _assigned(self, client: Any, places: list[Any]) -> None:
        """Begin at the committed offset, and say so when it is gone."""
        starts = []
        for place in client.committed(places, timeout=15.0):
            bounds = self._log.bounds(place.topic)[place.partition]
            if place.offset < 0:
                place.offset = bounds.start if self._start == "earliest" else bounds.end
            where = TopicPartition(place.topic, place.partition)
            try:
                check_offset(where, place.offset, bounds)
            except OffsetOutOfRange as error:
                self._lost = error
            self._client.positions[where] = place.offset
            starts.append(place)
        client.assign(starts)

    def _revoked(self, _: Any, places: list[Any]) -> None:
        gone = {TopicPartition(place.topic, place.partition) for place in places}
        for place in gone:
            self._client.positions.pop(place, None)
        self._drop(gone)
        kept = [each for each in self._client.waiting if (each.topic(), each.partition()) not in gone]
        self._client.waiting = deque(kept)  # another member reads the rest
