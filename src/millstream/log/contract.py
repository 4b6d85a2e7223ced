"""What a log is, whichever engine keeps it.

A log holds topics; a topic is a fixed number of partitions; a partition is a sequence of records under offsets that
only grow. Five promises, which ``tests/contracts/log.py`` checks on every engine:

* acknowledged means on disk, and a batch is in a partition whole or not at all;
* one append to several topics is in all of them or in none;
* one key, one partition, the same on every engine; order holds within a partition;
* a repeat of (producer, sequence) adds nothing;
* a commit by someone who no longer owns the partition is refused.

Three ways to read: a :class:`Reader` goes where it is told; a :class:`Consumer` shares a topic with the members of its
group, by partition; a :class:`Worker` shares it record by record, with acknowledgements.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, TypeAlias

from millstream.closing import Closing
from millstream.errors import ConfigError
from millstream.event import Event, Record, TopicPartition
from millstream.log.ack import Ack as Ack
from millstream.log.capabilities import Capabilities
from millstream.log.conditional import Conditional
from millstream.log.queue_settings import QueueSettings as QueueSettings

Cleanup: TypeAlias = Literal["delete", "compact", "compact,delete"]
Start: TypeAlias = Literal["earliest", "latest"] | int | datetime | Mapping[int, int]
"""Where to begin: an end of the log, one offset in every partition, a time, or an offset per partition."""

TIME_HEADER = "millstream.time"
"""The header under which Kafka keeps an event's time: milliseconds since the epoch, as text. See ``kafka.py``."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """How long a topic keeps what.

    ``retention`` and ``retention_bytes`` (per partition) bound a ``delete`` topic; None keeps everything. A ``compact``
    topic keeps at least the latest value of each key; records younger than ``compaction_lag`` are left alone, and a
    tombstone stays for ``tombstone_retention`` so that readers can see it.

    :param cleanup: ``"delete"``, ``"compact"`` or ``"compact,delete"``
    :param retention: how long records stay
    :param retention_bytes: how many bytes of a partition stay
    :param tombstone_retention: how long tombstones stay
    :param compaction_lag: how long records are left alone
    :param max_record_bytes: how large a record may be
    :param archive: the folder for what expires
    :param indexed: whether the records of one key are found at once (embedded log)
    :raises ConfigError: if one of them cannot be

    >>> TopicSettings(cleanup="compact").compacts
    True
    """

    cleanup: Cleanup = "delete"
    retention: timedelta | None = None
    retention_bytes: int | None = None
    tombstone_retention: timedelta = timedelta(days=1)
    compaction_lag: timedelta = timedelta(0)
    max_record_bytes: int = 1_000_000
    archive: str | None = None
    """A folder that takes what expires, as Parquet, before it is deleted (embedded log; beside the log if relative)."""
    indexed: bool = False
    """Whether the records of one key are found at once (embedded log); without it, each search for a key reads its partition."""

    def __post_init__(self) -> None:
        if self.cleanup not in ("delete", "compact", "compact,delete"):
            raise ConfigError(f"cleanup: found {self.cleanup!r}, expected delete, compact or compact,delete")
        for name in ("retention", "tombstone_retention", "compaction_lag"):
            span: timedelta | None = getattr(self, name)
            if span is not None and span < timedelta(0):
                raise ConfigError(f"{name}: found {span}, expected no less than zero")
        for name in ("retention_bytes", "max_record_bytes"):
            size: int | None = getattr(self, name)
            if size is not None and size < 1:
                raise ConfigError(f"{name}: found {size}, expected at least 1")

    @property
    def compacts(self) -> bool:
        """Whether old values of a key may go, which also means that every record needs a key."""
        return "compact" in self.cleanup

    @property
    def expires(self) -> bool:
        """Whether records go because of their age or the topic's size."""
        return "delete" in self.cleanup and (self.retention is not None or self.retention_bytes is not None)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the log describes it."""

    name: str
    partitions: int
    settings: TopicSettings = field(default_factory=TopicSettings)


class Bounds(NamedTuple):
    """What a partition holds: offsets from ``start`` up to, and without, ``end``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group: who reads, and how far it has committed (the next offset to read)."""

    name: str
    members: tuple[str, ...]
    offsets: Mapping[TopicPartition, int]
    kind: Literal["consumer", "queue"] = "consumer"
    generation: int = 0


class Maintenance(NamedTuple):
    """What one round of retention and compaction removed."""

    expired: int = 0
    compacted: int = 0


class Delivery(NamedTuple):
    """A record handed to one worker for a while; ``attempt`` counts from 1."""

    record: Record
    attempt: int


class Reader(Closing):
    """Reads partitions of a topic from given offsets on, in order, alone."""

    @abstractmethod
    def poll(self, limit: int = 1000, timeout: float = 0.0) -> list[Record]:
        """Give up to ``limit`` next records, waiting up to ``timeout`` seconds for the first; none means nothing came.

        Within a partition records come in order and each once. Raises OffsetOutOfRange when retention has overtaken
        the reader.
        """

    @property
    @abstractmethod
    def positions(self) -> dict[int, int]:
        """The next offset of each partition."""


class Consumer(Closing):
    """One member of a consumer group. Partitions are shared out among the members that live.

    Commit after the work for at-least-once, before it for at-most-once. A member that neither polls nor commits for
    ``lease`` is taken for dead, and its partitions pass on.
    """

    group: str
    member: str

    @abstractmethod
    def poll(self, limit: int = 500, timeout: float = 1.0) -> list[Record]:
        """Give up to ``limit`` next records of the partitions this member owns, and renew its lease; wait up to ``timeout`` seconds."""

    @abstractmethod
    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Store how far the group has come: the next ``offsets`` to read, by default past everything polled.

        Raises GenerationFenced, and stores nothing, when this member has lost one of the partitions.
        """

    @abstractmethod
    def take_over(self, place: TopicPartition, topics: Sequence[str]) -> None:
        """Before the first :meth:`append` for the partition ``place`` into ``topics``: see that what an earlier owner began is there, or never will be."""

    @abstractmethod
    def append(
        self,
        place: TopicPartition,
        offset: int,
        batches: Mapping[str, Sequence[Event]],
        *,
        ends: Mapping[TopicPartition, int],
    ) -> dict[str, Ack]:
        """Append the ``batches`` that follow from the records of an owned partition, ``place``, and commit the next ``offset`` to read of it, in one transaction.

        GenerationFenced, with nothing of it there, when this member has lost the partition, or when a partition of ``ends``
        ends elsewhere by now; Kafka looks at the owner alone, who is the only writer.
        """

    @property
    @abstractmethod
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions this member owns, as of its last poll."""


class Worker(Closing):
    """Takes single records off a topic, for work where one slow record must not hold up the rest.

    A record that is neither done nor given back within the visibility timeout goes to another worker. After
    ``max_deliveries`` attempts it moves to the dead-letter topic, with headers that say where from and why.
    """

    group: str
    worker: str

    @abstractmethod
    def take(self, limit: int = 10, timeout: float = 1.0) -> list[Delivery]:
        """Hand out up to ``limit`` records that nobody else holds, waiting up to ``timeout`` seconds for the first."""

    @abstractmethod
    def done(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge ``deliveries``: they never come again. Raises DeliveryFenced if one had timed out and passed on."""

    @abstractmethod
    def retry(self, deliveries: Iterable[Delivery]) -> None:
        """Give ``deliveries`` back at once, for another attempt."""

    @abstractmethod
    def reject(self, deliveries: Iterable[Delivery], reason: str) -> None:
        """Move ``deliveries`` to the dead-letter topic now, with the ``reason`` in their headers."""


class Log(Closing):
    """A durable, partitioned, replayable event log.

    :raises LogError: by its methods, one of its kinds: UnknownTopic, LogUnavailable, OffsetOutOfRange, …

    >>> from tempfile import TemporaryDirectory
    >>> from millstream import Event, open_log
    >>> with TemporaryDirectory() as folder, open_log(f"sqlite:{folder}/shop.db") as log:
    ...     topic = log.create_topic("clicks", partitions=2)
    ...     ack = log.append("clicks", [Event(b"{}", key=b"ann")])
    ...     log.topic("clicks").partitions, sum(bounds.end for bounds in log.bounds("clicks").values())
    (2, 1)
    """

    url: str
    capabilities: ClassVar[Capabilities]

    @abstractmethod
    def create_topic(self, name: str, partitions: int = 1, settings: TopicSettings | None = None) -> Topic:
        """Make a topic of that ``name`` with so many ``partitions`` and these ``settings``; TopicExists if it is there."""

    @abstractmethod
    def alter_topic(self, name: str, *, partitions: int | None = None, settings: TopicSettings | None = None) -> Topic:
        """Change the ``settings`` of the topic called ``name``, or add ``partitions``. More partitions move keys: order per key holds only from then on."""

    @abstractmethod
    def delete_topic(self, name: str) -> None:
        """Delete the topic called ``name``, its records and the offsets that groups had in it."""

    @abstractmethod
    def topics(self) -> list[Topic]:
        """All topics by name, without the engine's own."""

    @abstractmethod
    def topic(self, name: str) -> Topic:
        """The topic called ``name``; UnknownTopic if there is none."""

    @abstractmethod
    def topic_id(self, name: str) -> str:
        """What tells a topic from every other that has or had its name; empty if the engine cannot say."""

    @abstractmethod
    def append(
        self,
        topic: str,
        events: Sequence[Event],
        *,
        producer: str | None = None,
        sequence: int | None = None,
        own: bool = False,
    ) -> Ack:
        """Append a batch; when this returns, it is on disk.

        Each partition takes its share whole or not at all, and so does a topic on both engines of today. With
        ``producer`` and ``sequence`` a repeat adds nothing; a producer's numbers in a topic must grow, gaps allowed. Keys
        that begin like those of heartbeats are refused, unless the events are this package's ``own``.
        """

    @abstractmethod
    def append_all(
        self,
        batches: Mapping[str, Sequence[Event]],
        *,
        producer: str | None = None,
        sequence: int | None = None,
        own: bool = False,
    ) -> dict[str, Ack]:
        """Append ``batches``, the events of each topic, in one transaction: all of it is there, or nothing.

        ``producer``, ``sequence`` and ``own`` are as in :meth:`append`.
        A sequence is remembered in every topic that is named, also in one that gets no event. If all have it, this is a
        repeat; if only some have it, BadEvent. On the embedded log all of it has one append time, so a batch of a pipeline
        has all of it or nothing. On Kafka a producer that appends to several topics at once does so in one process: the
        next one that asks for its :meth:`last_sequence` in any topic, or renumbers it, fences the others.
        """

    @abstractmethod
    def append_if(self, units: Sequence[Conditional]) -> list[dict[str, Ack] | None]:
        """Append in one transaction those of ``units`` whose conditions hold when it begins, and give None for each other one.

        No condition sees what another unit appends. NotSupported on Kafka.
        """

    @abstractmethod
    def of_key(
        self, topic: str, key: bytes, *, after: int = -1, limit: int | None = None, newest_first: bool = False
    ) -> list[Record]:
        """Give up to ``limit`` records of a ``key`` of ``topic`` with offsets ``after`` that one, in order or ``newest_first``; NotSupported on Kafka."""

    @abstractmethod
    def last_sequence(self, topic: str, producer: str) -> int | None:
        """The highest sequence that ``producer`` has appended to ``topic``, for one that starts again; None for a new one."""

    @abstractmethod
    def renumber(self, topic: str, producer: str, sequence: int, *, after: int | None) -> bool:
        """Let ``sequence`` be the highest that ``producer`` has appended to ``topic``, with nothing appended; only if ``after`` is that now.

        What another process of that name sends under a lower number, or one that is the same, is refused from here on. On
        Kafka the number lives on from now, even if it stays the same.
        """

    @abstractmethod
    def bounds(self, topic: str) -> dict[int, Bounds]:
        """First and next offset of every partition of ``topic``, taken at one moment."""

    @abstractmethod
    def offsets_at(self, topic: str, time: datetime) -> dict[int, int]:
        """Per partition of ``topic`` the first offset whose record's time is at or after ``time``; the end if there is none."""

    @abstractmethod
    def reader(self, topic: str, start: Start = "earliest", *, partitions: Iterable[int] | None = None) -> Reader:
        """Read ``topic`` from ``start`` on: all partitions, also later ones, or only these ``partitions``."""

    @abstractmethod
    def consumer(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        start: Literal["earliest", "latest"] = "earliest",
        lease: timedelta = timedelta(seconds=10),
    ) -> Consumer:
        """Join a ``group`` that reads ``topics``. ``start`` is for partitions where the group has committed nothing; a member
        that neither polls nor commits for ``lease`` loses its partitions."""

    @abstractmethod
    def worker(self, topic: str, group: str, settings: QueueSettings | None = None) -> Worker:
        """Join the work queue of a ``group``, which reads ``topic`` from its earliest record on; ``settings`` say how often and for how long."""

    @abstractmethod
    def groups(self) -> list[Group]:
        """All groups by name."""

    @abstractmethod
    def commit_group(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set a group's offsets from outside; refused while it has live members."""

    @abstractmethod
    def delete_group(self, group: str) -> None:
        """Forget a group; refused while it has live members."""

    @abstractmethod
    def maintain(self, topic: str) -> Maintenance:
        """Apply the retention and compaction of ``topic`` now; Kafka's brokers do it themselves."""

    def archive_path(self, archive: str) -> Path:
        """Where a topic's archive lies."""
        return Path(archive)

    def read(self, topic: str, partition: int, offset: int, limit: int = 1000) -> list[Record]:
        """Give up to ``limit`` records of one ``partition`` of ``topic`` from ``offset`` on; fewer only at the end of the partition."""
        end = self.bounds(topic)[partition].end
        records: list[Record] = []
        with self.reader(topic, {partition: offset}) as reader:
            while len(records) < limit and reader.positions[partition] < end:
                records += reader.poll(limit - len(records), timeout=1.0)
        return records
