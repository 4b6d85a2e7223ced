"""The log on Kafka, by Kafka's own parts: its topics, groups, transactions and share groups.

Every append is one transaction, so that a batch is there whole or not at all; readers read committed. What writes is in
``append.py`` and ``write.py``, what reads in ``read.py``, work queues are in ``share.py``.

A Kafka record has one timestamp. Topics made here give it to the append (the broker's clock), because retention and
compaction go by it: an old event that arrives today must not be deleted today. The event's own time travels in a header.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Literal

from millstream.errors import ConfigError, GenerationFenced, NotSupported, UnknownTopic
from millstream.event import Event, Record, TopicPartition, to_millis
from millstream.log.capabilities import KAFKA
from millstream.log.checks import check_name, check_topic_name, start_offsets
from millstream.log.conditional import Conditional
from millstream.log.contract import (
    Ack,
    Bounds,
    Consumer,
    Group,
    Log,
    Maintenance,
    QueueSettings,
    Reader,
    Start,
    Topic,
    TopicSettings,
    Worker,
)
from millstream.log.kafka.append import Appender
from millstream.log.kafka.client import MOVING, TIMEOUT, Errors, Hidden, ck, ck_admin, to_configs
from millstream.log.kafka.connection import AdminConnection
from millstream.log.kafka.names import client_settings
from millstream.log.kafka.offsets import first_since, of_group, of_partitions
from millstream.log.kafka.sequence import SEQUENCES

_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
_METADATA_LAG = 1.0  # seconds in which all brokers have heard of a topic that is new
_AHEAD = 3_600_000  # milliseconds by which clocks of producers may be ahead of the broker's


class KafkaLog(Log):
    """The log in a Kafka cluster; ``servers`` is what Kafka calls bootstrap servers.

    ``client`` is what :func:`millstream.log.kafka.names.client_settings` made, where that was done before.
    """

    capabilities = KAFKA

    def __init__(
        self, servers: str, settings: Mapping[str, str] | None = None, *, client: Mapping[str, str] | None = None
    ) -> None:
        self.url = f"kafka://{servers}"
        self.client = dict(client or client_settings(servers, settings or {}))
        self.connection = AdminConnection(self.client, self.url)
        self._topics: dict[str, tuple[float, Topic]] = {}
        self._hidden = Hidden(self.url)
        self._appender = Appender(self)
        self._brokers = 1
        self.connection.reach()  # an address where nothing listens is an error now, not at the first append

    # topics

    def create_topic(self, name: str, partitions: int = 1, settings: TopicSettings | None = None) -> Topic:
        """Make a topic with as many replicas as the cluster's default says."""
        topic = Topic(check_topic_name(name), partitions, settings or TopicSettings())
        if partitions < 1:
            raise ConfigError(f"partitions: found {partitions}, expected 1 or more")
        self._settle(
            self.admin.create_topics([ck_admin.NewTopic(name, partitions, config=to_configs(topic.settings))]), name
        )
        self._await(lambda: len(self._metadata().get(name, ())) == partitions)
        self._topics[name] = (time.monotonic(), topic)  # the next broker that is asked may not have heard of it yet
        return topic

    def alter_topic(self, name: str, *, partitions: int | None = None, settings: TopicSettings | None = None) -> Topic:
        """Change configurations; add partitions."""
        current = self.described(name, fresh=True)
        if settings is not None:
            self._hidden.check(name)
        if partitions is not None and partitions < current.partitions:
            raise ConfigError(
                f"topic {name} has {current.partitions} partitions; found {partitions}, expected no fewer"
            )
        if partitions is not None and partitions > current.partitions:
            self._settle(self.admin.create_partitions([ck_admin.NewPartitions(name, partitions)]), name)
            self._await(lambda: len(self._metadata().get(name, ())) == partitions)
        if settings is not None:
            entries = [
                ck_admin.ConfigEntry(key, value, incremental_operation=ck_admin.AlterConfigOpType.SET)
                for key, value in to_configs(settings).items()
            ]
            resource = ck_admin.ConfigResource(ck_admin.ResourceType.TOPIC, name, incremental_configs=entries)
            self._settle(self.admin.incremental_alter_configs([resource]), name)
        wanted = settings or current.settings
        self._await(lambda: self.described(name, fresh=True).settings == wanted)
        return self.described(name)

    def delete_topic(self, name: str) -> None:
        """Delete it, and wait until it is gone."""
        self.described(name, fresh=True)
        self._appender.delete(name)
        self._settle(self.admin.delete_topics([name]), name)
        self._topics.pop(name, None)
        self._await(lambda: name not in self._metadata())

    def topics(self) -> list[Topic]:
        """All but Kafka's own."""
        return self._describe(sorted(name for name in self._metadata() if not name.startswith("__")))

    def topic(self, name: str) -> Topic:
        """As Kafka describes it now."""
        return self.described(name, fresh=True)

    def topic_id(self, name: str) -> str:
        """The id that Kafka gave the topic; brokers before 2.8 have none."""
        self.described(name)
        with self.errors(name):
            asked = self.admin.describe_topics(ck.TopicCollection([name]), request_timeout=TIMEOUT)
            found = str(asked[name].result(TIMEOUT).topic_id)
        return "" if found == _NO_ID else found

    def described(self, name: str, *, fresh: bool = False) -> Topic:
        """A topic, from a cache of five seconds unless it must be fresh."""
        seen, topic = self._topics.get(check_topic_name(name), (0.0, None))
        if topic is None or fresh or time.monotonic() - seen > 5.0:
            if not (found := self._described(name)):
                self._topics.pop(name, None)
                raise UnknownTopic(
                    f"no topic {name} at {self.url}",
                    hint=f"`millstream topics create {name}`, or `millstream topics list`",
                )
            self._topics[name] = (time.monotonic(), topic := found[0])
        return topic

    def _described(self, name: str) -> list[Topic]:
        """One, if it is there; of brokers that were asked one may not have heard of it yet."""
        started = time.monotonic()
        while True:
            if found := self._describe([name]):
                return found
            if time.monotonic() - started > (_METADATA_LAG if self._brokers > 1 else 0.0):
                return []
            time.sleep(0.02)

    def _describe(self, names: Sequence[str]) -> list[Topic]:
        partitions = self._metadata() if names else {}  # of any broker: one may not have heard of a topic yet
        known = [name for name in names if name in partitions]
        resources = {name: ck_admin.ConfigResource(ck_admin.ResourceType.TOPIC, name) for name in known}
        if not known:
            return []
        futures = self.admin.describe_configs(list(resources.values()), request_timeout=TIMEOUT)
        found = []
        for resource, future in futures.items():
            with suppress(UnknownTopic):  # deleted while we looked
                found.append(
                    Topic(
                        resource.name,
                        len(partitions[resource.name]),
                        self._hidden.settings(resource.name, future, self.errors),
                    )
                )
        return found

    def _metadata(self) -> dict[str, list[int]]:
        """Partitions by topic."""
        with self.errors():
            found = self.admin.list_topics(timeout=TIMEOUT)
        self._brokers, listed = len(found.brokers), found.topics
        return {
            name: sorted(topic.partitions)
            for name, topic in listed.items()
            if topic.error is None or topic.error.name() in MOVING
        }

    # appending

    def append(
        self,
        topic: str,
        events: Sequence[Event],
        *,
        producer: str | None = None,
        sequence: int | None = None,
        own: bool = False,
    ) -> Ack:
        """One transaction."""
        one = self._appender.append({topic: events}, producer=producer, sequence=sequence, own=own, several=False)
        return one[topic]

    def append_all(
        self,
        batches: Mapping[str, Sequence[Event]],
        *,
        producer: str | None = None,
        sequence: int | None = None,
        own: bool = False,
    ) -> dict[str, Ack]:
        """One transaction over several topics."""
        return self._appender.append(batches, producer=producer, sequence=sequence, own=own, several=True)

    def append_if(self, units: Sequence[Conditional]) -> list[dict[str, Ack] | None]:
        """Brokers know no conditions."""
        raise NotSupported(
            f"{self.url} cannot append {len(units)} units on conditions; the embedded log can",
            hint="let the owner of the partition decide: a CommandLoop, docs/sourcing.md",
        )

    def of_key(
        self, topic: str, key: bytes, *, after: int = -1, limit: int | None = None, newest_first: bool = False
    ) -> list[Record]:
        """Brokers find records by their offset alone."""
        del after, limit, newest_first
        raise NotSupported(
            f"{self.url} cannot find the records of key {key!r:.60} in topic {topic}; the embedded log can",
            hint="read the topic, and keep what you need of each key",
        )

    def last_sequence(self, topic: str, producer: str) -> int | None:
        """The committed offset of the producer's own group.

        Asking begins a new producer of that name: a transaction that a killed one left open is ended first, and one
        that still lives is fenced.
        """
        return self._appender.last_sequence(topic, producer)

    def renumber(self, topic: str, producer: str, sequence: int, *, after: int | None) -> bool:
        """A transaction with nothing in it but the number."""
        return self._appender.renumber(topic, producer, sequence, after=after)

    def stored_sequence(self, topic: str, producer: str) -> int | None:
        """The committed offset of the producer's group, read without a new producer; waits while that has a transaction open."""
        place = TopicPartition(topic, 0)
        return of_group(self, SEQUENCES + producer, [place]).get(place)

    # reading

    def starts(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offsets of partitions of several topics."""
        return {place: at.offset for place, at in of_partitions(self, places, ck_admin.OffsetSpec.earliest()).items()}

    def ends(self, places: Sequence[TopicPartition], *, committed: bool = True) -> dict[TopicPartition, int]:
        """The last stable offsets of partitions of several topics; without ``committed``, where they end with what is open."""
        found = of_partitions(self, places, ck_admin.OffsetSpec.latest(), committed=committed)
        return {place: at.offset for place, at in found.items()}

    def bounds(self, topic: str) -> dict[int, Bounds]:
        """Start and last stable offset of every partition."""
        partitions = range(self.described(topic).partitions)
        starts = self.list_offsets(topic, partitions, ck_admin.OffsetSpec.earliest())
        ends = self.list_offsets(topic, partitions, ck_admin.OffsetSpec.latest())
        return {partition: Bounds(starts[partition], ends[partition]) for partition in partitions}

    def offsets_at(self, topic: str, time: datetime) -> dict[int, int]:
        """Kafka's index of append times, from an hour before, and then the records themselves.

        An event that says it happened more than an hour after it was appended is not looked for.
        """
        partitions = range(self.described(topic).partitions)
        millis = to_millis(time)
        found = self.list_offsets(topic, partitions, ck_admin.OffsetSpec.for_timestamp(max(0, millis - _AHEAD)))
        ends = self.list_offsets(topic, partitions, ck_admin.OffsetSpec.latest())
        return {
            partition: ends[partition]
            if offset < 0
            else first_since(self, topic, partition, offset, ends[partition], millis)
            for partition, offset in found.items()
        }

    def list_offsets(self, topic: str, partitions: Iterable[int], spec: Any) -> dict[int, int]:
        """One kind of offset of some partitions, as readers of committed records see it."""
        found = of_partitions(self, [TopicPartition(topic, partition) for partition in partitions], spec)
        return {place.partition: answer.offset for place, answer in found.items()}

    def reader(self, topic: str, start: Start = "earliest", *, partitions: Iterable[int] | None = None) -> Reader:
        """Read alone, by assignment."""
        from millstream.log.kafka.read import KafkaReader

        offsets = start_offsets(self, topic, start)
        if partitions is not None:
            chosen = set(partitions)
            offsets = {partition: offset for partition, offset in offsets.items() if partition in chosen}
        return KafkaReader(self, topic, offsets)

    # groups and queues

    def consumer(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        start: Literal["earliest", "latest"] = "earliest",
        lease: timedelta = timedelta(seconds=10),
    ) -> Consumer:
        """Join one of Kafka's consumer groups."""
        from millstream.log.kafka.read import KafkaConsumer

        names = [topics] if isinstance(topics, str) else list(topics)
        for name in names:
            self.described(name)
        return KafkaConsumer(self, names, check_name("group", group), start, lease)

    def worker(self, topic: str, group: str, settings: QueueSettings | None = None) -> Worker:
        """Join one of Kafka's share groups."""
        from millstream.log.kafka.share import KafkaWorker

        self.described(topic)
        return KafkaWorker(self, topic, check_name("group", group), settings or QueueSettings())

    def groups(self) -> list[Group]:
        """Consumer groups and share groups, without those that hold producers' sequences."""
        from millstream.log.kafka import share

        with self.errors():
            listed = self.admin.list_consumer_groups(request_timeout=TIMEOUT).result().valid
        names = {group.group_id: group for group in listed if not group.group_id.startswith("__")}
        shares = {name for name, group in names.items() if share.is_share_group(group)}
        found = [share.describe(name) for name in sorted(shares)]
        consumers = sorted(names.keys() - shares)
        futures = self.admin.describe_consumer_groups(consumers, request_timeout=TIMEOUT) if consumers else {}
        metadata = self._metadata() if consumers else {}
        places = [TopicPartition(name, p) for name in sorted(metadata) for p in metadata[name]]
        for name, future in futures.items():
            with self.errors():
                members = tuple(sorted(member.member_id for member in future.result().members))
            found.append(Group(name, members, of_group(self, name, places)))
        return sorted(found, key=lambda group: group.name)

    def commit_group(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Alter a group's offsets, which Kafka refuses while the group is not empty."""
        places = [ck.TopicPartition(place.topic, place.partition, offset) for place, offset in offsets.items()]
        for place in offsets:
            if place.partition >= self.described(place.topic).partitions:
                raise ConfigError(f"topic {place.topic} has no partition {place.partition}")
        request = ck.ConsumerGroupTopicPartitions(check_name("group", group), places)
        try:
            with self.errors():
                result = self.admin.alter_consumer_group_offsets([request], request_timeout=TIMEOUT)[group].result()
            failed = next((p.error for p in result.topic_partitions if p.error is not None), None)
            if failed is not None:
                raise ck.KafkaException(failed)
        except (GenerationFenced, ck.KafkaException) as error:
            raise GenerationFenced(f"group {group} has live members: {error}", hint="stop them first") from error

    def delete_group(self, group: str) -> None:
        """Forget an empty group."""
        with self.errors():
            self.admin.delete_consumer_groups([check_name("group", group)], request_timeout=TIMEOUT)[group].result()

    def maintain(self, topic: str) -> Maintenance:
        """Nothing to do: the brokers clean in their own time."""
        self.described(topic)
        return Maintenance()

    def close(self) -> None:
        """Close the producers."""
        self._appender.close()

    # shared by this package's Kafka modules

    @property
    def admin(self) -> Any:
        """The client of administration, which changes when a broker was away."""
        return self.connection.admin

    def renew_admin(self) -> None:
        """Begin with a new client: one that was waiting for a coordinator when its broker died waits for ever."""
        self.connection = AdminConnection(self.client, self.url)

    def errors(self, topic: str = "") -> Errors:
        """Turn Kafka's errors into ours."""
        return Errors(self, topic)

    def _settle(self, futures: Mapping[str, Any], name: str) -> None:
        with self.errors(name):
            for future in futures.values():
                future.result(TIMEOUT)
        self._topics.pop(name, None)

    def _await(self, condition: Any) -> None:
        """Wait for the other brokers: they learn of a change after we have our answer."""
        deadline = time.monotonic() + TIMEOUT
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.02)
