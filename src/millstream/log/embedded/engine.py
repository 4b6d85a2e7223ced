"""The embedded log: topics, appending and reading in one SQLite file that many processes may share.

One table per partition with the offset as its primary key. Offsets are dense: they come from the partition's row,
inside the transaction that inserts, never from a clock. Groups, work queues and cleaning have files of their own.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from millstream.database import Db
from millstream.errors import (
    ConfigError,
    GenerationFenced,
    TopicExists,
    UnknownGroup,
    UnknownTopic,
)
from millstream.event import Event, Record, TopicPartition, to_millis
from millstream.log.capabilities import EMBEDDED
from millstream.log.checks import check_name, check_numbered, check_offset, check_topic_name, start_offsets
from millstream.log.conditional import Conditional
from millstream.log.contract import (
    Ack,
    Bounds,
    Consumer,
    Group,
    Log,
    Maintenance,
    QueueSettings,
    Start,
    Topic,
    TopicSettings,
    Worker,
)
from millstream.log.embedded import group as membership
from millstream.log.embedded import queue, retention
from millstream.log.embedded import sequence as sequences
from millstream.log.embedded.append import Appender
from millstream.log.embedded.batch import load_headers
from millstream.log.embedded.file import (
    MOST_BYTES,
    Store,
    identify,
    identity_of,
    partition_bounds,
    records_table,
)
from millstream.log.embedded.reader import SqliteReader, offset_at
from millstream.log.embedded.topic import (
    TopicRow,
    add_partitions,
    change,
    check_partitions,
    create,
    described,
    drop,
    stored,
)
from millstream.log.partitioner import partition_of


class SqliteLog(Log):
    """The log in one file. Safe to use from several threads and processes; ``clock`` gives milliseconds."""

    capabilities = EMBEDDED

    def __init__(self, path: str | Path, *, create: bool = True, clock: Callable[[], int] | None = None) -> None:
        self.url = f"sqlite:{path}"
        self.clock = clock or (lambda: time.time_ns() // 1_000_000)
        self.store = Store(Path(path), create=create)
        self._topics: dict[str, TopicRow] = {}
        self._appender = Appender(self)

    # topics

    def create_topic(self, name: str, partitions: int = 1, settings: TopicSettings | None = None) -> Topic:
        """Make a topic with its tables."""
        topic = Topic(check_topic_name(name), check_partitions(partitions), settings or TopicSettings())
        with self.store.write() as db:
            create(db, topic)
            membership.topic_changed(db, name)
        return topic

    def alter_topic(self, name: str, *, partitions: int | None = None, settings: TopicSettings | None = None) -> Topic:
        """Store new settings; new partitions start empty."""
        with self.store.write() as db:
            row = self.row(name, db)
            if partitions is not None:
                if partitions < row.topic.partitions:
                    raise ConfigError(
                        f"topic {name} has {row.topic.partitions} partitions; found {partitions}, expected no fewer"
                    )
                if partitions > row.topic.partitions:
                    add_partitions(db, row.id, range(row.topic.partitions, check_partitions(partitions)))
                    membership.topic_changed(db, name)
            change(db, row, partitions or row.topic.partitions, settings or row.topic.settings)
            return self.row(name, db).topic

    def delete_topic(self, name: str) -> None:
        """Drop its tables and everything that refers to it."""
        with self.store.write() as db:
            row = self.row(name, db)
            drop(db, row)
            membership.topic_changed(db, name)

    def topics(self) -> list[Topic]:
        """All of them, by name."""
        with self.store.read() as db:
            return [
                self.row(name, db).topic for (name,) in db.execute("SELECT name FROM topic ORDER BY name").fetchall()
            ]

    def topic(self, name: str) -> Topic:
        """One of them."""
        with self.store.read() as db:
            return self.row(name, db).topic

    def topic_id(self, name: str) -> str:
        """A random one, made with the topic; one that was made before topics had any gets it now."""
        with self.store.read() as db:
            found = identity_of(db, self.row(name, db).id)
        if found is None:
            with self.store.write() as db:
                found = identify(db, self.row(name, db).id)
        return found

    def ensure_topic(self, name: str) -> None:
        """Make the topic with one partition unless it is there."""
        with contextlib.suppress(TopicExists):
            self.create_topic(name)

    def archive_path(self, archive: str) -> Path:
        """A relative archive lies beside the log's file."""
        return self.store.path.parent / archive

    def row(self, name: str, db: Db) -> TopicRow:
        """The stored topic as this transaction sees it."""
        found = stored(db, check_topic_name(name))
        if found is None:
            self._topics.pop(name, None)
            raise UnknownTopic(
                f"no topic {name} in {self.url}",
                hint=f"`millstream topics create {name}`, or `millstream topics list`",
            )
        cached = self._topics.get(name)
        if cached is None or (cached.id, cached.version) != found[:2]:
            cached = self._topics[name] = described(db, name, *found)
        return cached

    def known(self, name: str) -> TopicRow:
        """The topic as it was last seen, looked up if it never was."""
        row = self._topics.get(name)
        if row is None:
            with self.store.read() as db:
                row = self.row(name, db)
        return row

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
        """Append a batch in one transaction over all its partitions."""
        check_numbered(producer, sequence)
        if not events:
            self.known(topic)
            return Ack([], [])
        batches = {topic: events}
        return self._appender.append_all(batches, producer=producer, sequence=sequence, own=own)[topic]

    def append_all(
        self,
        batches: Mapping[str, Sequence[Event]],
        *,
        producer: str | None = None,
        sequence: int | None = None,
        own: bool = False,
    ) -> dict[str, Ack]:
        """One transaction, one append time."""
        return self._appender.append_all(batches, producer=producer, sequence=sequence, own=own)

    def append_if(self, units: Sequence[Conditional]) -> list[dict[str, Ack] | None]:
        """One transaction that first looks at the last offset of each key."""
        return self._appender.append_if(units)

    def append_with(self, batches: Mapping[str, Sequence[Event]], within: Callable[[Db], None]) -> dict[str, Ack]:
        """The same, with something else in the transaction."""
        return self._appender.append_all(batches, producer=None, sequence=None, own=False, within=within)

    def append_within(self, db: Db, topic: str, events: Sequence[Event]) -> None:
        """Append records that move here as part of a transaction, however large: they were accepted once."""
        self._appender.append_within(db, topic, events)

    def last_sequence(self, topic: str, producer: str) -> int | None:
        """The highest number remembered."""
        with self.store.read() as db:
            row = self.row(topic, db)
            last: int | None = sequences.last_sequence(db, row.id, check_name("producer", producer))
            return last

    def renumber(self, topic: str, producer: str, sequence: int, *, after: int | None) -> bool:
        """An acknowledgement of no record."""
        with self.store.write() as db:
            row = self.row(topic, db)
            if sequences.last_sequence(db, row.id, check_name("producer", producer)) != after:
                return False
            if sequence != after:
                sequences.remember(db, row, Ack([], []), producer, sequence)
            return True

    # reading

    def bounds(self, topic: str) -> dict[int, Bounds]:
        """What each partition holds, in one snapshot."""
        return self.snapshot([topic])[topic]

    def snapshot(self, topics: Sequence[str]) -> dict[str, dict[int, Bounds]]:
        """The bounds of several topics at one moment."""
        with self.store.read() as db:
            return {topic: partition_bounds(db, self.row(topic, db).id) for topic in topics}

    def offsets_at(self, topic: str, time: datetime) -> dict[int, int]:
        """Find the block whose newest time is late enough, then the record in it."""
        millis = to_millis(time)
        with self.store.read() as db:
            row = self.row(topic, db)
            return {
                partition: offset_at(db, row.id, partition, bound, millis)
                for partition, bound in partition_bounds(db, row.id).items()
            }

    def reader(self, topic: str, start: Start = "earliest", *, partitions: Iterable[int] | None = None) -> SqliteReader:
        """Read alone."""
        offsets = start_offsets(self, topic, start)
        if partitions is not None:
            chosen = set(partitions)
            offsets = {partition: offset for partition, offset in offsets.items() if partition in chosen}
        return SqliteReader(self, topic, offsets, grows=partitions is None and not isinstance(start, Mapping))

    def read(self, topic: str, partition: int, offset: int, limit: int = 1000) -> list[Record]:
        """One query."""
        with self.store.read() as db:
            row = self.row(topic, db)
            bounds = partition_bounds(db, row.id)
            if partition not in bounds:
                raise ConfigError(f"topic {topic} has no partition {partition}; it has {len(bounds)}")
            check_offset(TopicPartition(topic, partition), offset, bounds[partition])
            return self.fetch(db, row, partition, offset, limit)

    def of_key(
        self, topic: str, key: bytes, *, after: int = -1, limit: int | None = None, newest_first: bool = False
    ) -> list[Record]:
        """One query, by the index if the topic has one."""
        with self.store.read() as db:
            row = self.row(topic, db)
            place = partition_of(key, row.topic.partitions)
            query = (
                f"SELECT * FROM {records_table(row.id, place)} WHERE key = ? AND offset > ?"
                f" ORDER BY offset {'DESC' if newest_first else 'ASC'} LIMIT ?"
            )
            with self.store.errors(f"topic {topic} partition {place}, reading one key"):
                return [
                    Record(topic, place, o, k, v, t, a, () if h is None else load_headers(h))
                    for o, t, a, k, v, h in db.execute(query, (key, after, -1 if limit is None else limit))
                ]

    def fetch(self, db: Db, row: TopicRow, partition: int, offset: int, limit: int) -> list[Record]:
        """Records of one partition inside a transaction."""
        name, make = row.topic.name, tuple.__new__
        with self.store.errors(f"topic {name} partition {partition}, reading from offset {offset}"):
            return [
                make(Record, (name, partition, o, k, v, t, a, () if h is None else load_headers(h)))
                for o, t, a, k, v, h in db.execute(
                    f"SELECT * FROM {records_table(row.id, partition)} WHERE offset >= ? ORDER BY offset LIMIT ?",
                    (offset, limit),
                )
            ]

    def fetch_within(
        self, db: Db, row: TopicRow, partition: int, offset: int, end: int, limit: int, room: int
    ) -> tuple[list[Record], int, int]:
        """The same, but no more bytes than there is room for; then where to go on, and what room is left.

        One record alone may be larger than all the room there is.
        """
        name, make, found, alone = row.topic.name, tuple.__new__, list[Record](), room == MOST_BYTES
        query = f"SELECT * FROM {records_table(row.id, partition)} WHERE offset >= ? ORDER BY offset LIMIT ?"
        with self.store.errors(f"topic {name} partition {partition}, reading from offset {offset}"):
            for o, t, a, k, v, h in db.execute(query, (offset, limit)):
                size = len(k or b"") + len(v or b"") + len(h or b"")
                if size > room and (found or not alone):
                    return found, o, 0
                room -= size
                found.append(make(Record, (name, partition, o, k, v, t, a, () if h is None else load_headers(h))))
        return found, end if len(found) < limit else found[-1].offset + 1, room

    # groups and queues

    def consumer(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        start: Literal["earliest", "latest"] = "earliest",
        lease: timedelta = timedelta(seconds=10),
    ) -> Consumer:
        """Join a group by a lease in the file."""
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        return membership.SqliteConsumer(self, names, check_name("group", group), start, lease)

    def worker(self, topic: str, group: str, settings: QueueSettings | None = None) -> Worker:
        """Join a work queue."""
        return queue.SqliteWorker(self, topic, check_name("group", group), settings or QueueSettings())

    def groups(self) -> list[Group]:
        """All groups, with the members whose lease is alive."""
        with self.store.read() as db:
            return membership.describe(db, self.clock())

    def commit_group(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set offsets of a group without live members."""
        with self.store.write() as db:
            if members := membership.live_members(db, check_name("group", group), self.clock()):
                raise GenerationFenced(f"group {group} has live members: {', '.join(members)}", hint="stop them first")
            membership.ensure(db, group, "consumer")
            membership.put_out(db, group)
            for place, offset in offsets.items():
                row = self.row(place.topic, db)
                bounds = partition_bounds(db, row.id)
                if place.partition not in bounds:
                    raise ConfigError(f"topic {place.topic} has no partition {place.partition}; it has {len(bounds)}")
                membership.store_offset(db, group, row.id, place.partition, offset)

    def delete_group(self, group: str) -> None:
        """Forget a group without live members."""
        with self.store.write() as db:
            if members := membership.live_members(db, check_name("group", group), self.clock()):
                raise GenerationFenced(f"group {group} has live members: {', '.join(members)}", hint="stop them first")
            if not db.execute("SELECT 1 FROM consumer_group WHERE name = ?", (group,)).get:
                raise UnknownGroup(f"no group {group} in {self.url}", hint="`millstream groups list`")
            for table in ("member", "group_offset", "delivery", "queue"):
                db.execute(f"DELETE FROM {table} WHERE consumer_group = ?", (group,))
            db.execute("DELETE FROM consumer_group WHERE name = ?", (group,))

    def maintain(self, topic: str) -> Maintenance:
        """Expire, then compact."""
        return retention.maintain(self, topic)

    def close(self) -> None:
        """Close all connections."""
        self.store.close()
