"""Consumer groups of the embedded log: members with leases, generations, and commits fenced by them.

A member is a row with a lease. Whenever the set of members changes (one joins, leaves, or lets its lease run out and is
put out by another) the group's generation grows by one. Who owns which partition is a pure function of the members, so
nobody has to be told: each member sees the new generation and works out its share. A commit names its generation; with
an older one it is refused, so a member that was thought dead cannot turn the group back.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from millstream.database import Db
from millstream.errors import ConfigError, GenerationFenced, UnknownTopic
from millstream.event import Event, Record, TopicPartition
from millstream.log.checks import check_offset
from millstream.log.contract import Ack, Bounds, Consumer, Group
from millstream.log.embedded.clock import LONGEST
from millstream.log.embedded.file import MOST_BYTES, partition_bounds

if TYPE_CHECKING:
    from millstream.log.embedded.engine import SqliteLog

Kind = Literal["consumer", "queue"]


def share(members: Mapping[str, Iterable[str]], partitions: Mapping[str, int]) -> dict[str, set[TopicPartition]]:
    """Share out all partitions among the members that want their topic, as evenly as can be.

    >>> {m: sorted(p) for m, p in share({"a": ["t"], "b": ["t"]}, {"t": 3}).items()}  # doctest: +NORMALIZE_WHITESPACE
    {'a': [TopicPartition(topic='t', partition=0), TopicPartition(topic='t', partition=2)],
     'b': [TopicPartition(topic='t', partition=1)]}
    """
    shares: dict[str, set[TopicPartition]] = {member: set() for member in sorted(members)}
    wanted = {member: set(topics) for member, topics in members.items()}
    for topic in sorted(partitions):
        takers = [member for member in shares if topic in wanted[member]]
        for partition in range(partitions[topic] if takers else 0):
            least = min(takers, key=lambda member: (len(shares[member]), member))
            shares[least].add(TopicPartition(topic, partition))
    return shares


class SqliteConsumer(Consumer):
    """A member. Its lease is renewed by polls and commits, at most three times per lease."""

    def __init__(
        self,
        log: SqliteLog,
        topics: Sequence[str],
        group: str,
        start: Literal["earliest", "latest"],
        lease: timedelta,
    ) -> None:
        if start not in ("earliest", "latest"):
            raise ConfigError(f"start: found {start!r}, expected earliest or latest")
        if lease < timedelta(milliseconds=100):
            raise ConfigError(f"lease: found {lease}, expected at least 0.1 s")
        if lease > timedelta(milliseconds=LONGEST):
            raise ConfigError(f"lease: found {lease}, expected at most {timedelta(milliseconds=LONGEST)}")
        self.group, self.member = group, f"{os.getpid()}-{secrets.token_hex(4)}"
        self._log, self._topics, self._start = log, tuple(topics), start
        self._lease = lease // timedelta(milliseconds=1)
        self._renew_at = 0
        self._generation = -1
        self._positions: dict[TopicPartition, int] = {}
        self._turn = 0
        self._closed = False
        with log.store.read() as db:
            for topic in topics:
                log.row(topic, db)
        self._renew()

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions of this member."""
        return frozenset(self._positions)

    @property
    def generation(self) -> int:
        """The generation this member last saw."""
        return self._generation

    def poll(self, limit: int = 500, timeout: float = 1.0) -> list[Record]:
        """Renew, take up changes of the group, then read."""
        deadline = time.monotonic() + timeout
        while True:
            if self._closed:
                raise GenerationFenced(f"this member of group {self.group} has left", hint="join with a new consumer")
            if self._is_due(self._log.clock()):
                self._renew()
            version = self._log.store.version()
            records = self._take(limit)
            left = deadline - time.monotonic()
            if records or left <= 0:
                return records
            until_renewal = max(0.0, (self._renew_at - self._log.clock()) / 1000)
            self._log.store.wait(version, min(left, until_renewal))

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Store offsets in one transaction that first looks whether we may."""
        with self._log.store.write() as db:
            self._store(db, self._positions if offsets is None else offsets)

    def take_over(self, place: TopicPartition, topics: Sequence[str]) -> None:
        """Nothing to do: a transaction is over when its process is."""

    def append(
        self,
        place: TopicPartition,
        offset: int,
        batches: Mapping[str, Sequence[Event]],
        *,
        ends: Mapping[TopicPartition, int],
    ) -> dict[str, Ack]:
        """The transaction of an append, which first looks whether we may."""

        def within(db: Db) -> None:
            for each, end in ends.items():
                found = _bounds(self._log, db, each.topic)[each.partition].end
                if found != end:
                    raise GenerationFenced(
                        f"{each} ends at {found}, expected {end}: somebody else has appended; nothing was stored"
                    )
            self._store(db, {place: offset})

        return self._log.append_with(batches, within)

    def _store(self, db: Db, offsets: Mapping[TopicPartition, int]) -> None:
        """Store offsets if this member still owns their partitions, and renew its lease if that is due."""
        generation = db.execute("SELECT generation FROM consumer_group WHERE name = ?", (self.group,)).get
        alive = db.execute(
            "SELECT 1 FROM member WHERE consumer_group = ? AND member = ?", (self.group, self.member)
        ).get
        if generation != self._generation or not alive:
            raise GenerationFenced(
                f"member {self.member} of group {self.group} commits as generation {self._generation},"
                f" the group is at {generation}; nothing was stored",
                hint="poll again: it takes up the new assignment, and the records come again to whoever owns them now",
            )
        for place, offset in offsets.items():
            if place not in self._positions:
                raise GenerationFenced(
                    f"member {self.member} of group {self.group} does not own {place}; nothing was stored"
                )
            store_offset(db, self.group, self._log.row(place.topic, db).id, place.partition, offset)
        now = self._log.clock()
        if self._is_due(now):
            db.execute(
                "UPDATE member SET lease_until = ? WHERE consumer_group = ? AND member = ?",
                (now + self._lease, self.group, self.member),
            )
            self._renew_at = now + self._lease // 3

    def close(self) -> None:
        """Leave, so that the others need not wait for the lease to run out."""
        if self._closed:
            return
        self._closed = True
        self._positions = {}
        with self._log.store.write() as db:
            db.execute("DELETE FROM member WHERE consumer_group = ? AND member = ?", (self.group, self.member))
            if db.changes():
                _next_generation(db, self.group)

    def _is_due(self, now: int) -> bool:
        """Whether to renew the lease: its time has come, or the clock was set back."""
        return now >= self._renew_at or self._renew_at > now + self._lease

    def _renew(self) -> None:
        """Extend the lease, put out members whose lease has run out, join if we were put out ourselves."""
        now = self._log.clock()
        with self._log.store.write() as db:
            ensure(db, self.group, "consumer")
            db.execute(
                "DELETE FROM member WHERE consumer_group = ? AND (lease_until < ? OR lease_until > ?) AND member != ?",
                (self.group, now, now + LONGEST, self.member),
            )
            changed = db.changes() > 0
            db.execute(
                "UPDATE member SET lease_until = ? WHERE consumer_group = ? AND member = ?",
                (now + self._lease, self.group, self.member),
            )
            if not db.changes():
                db.execute(
                    "INSERT INTO member VALUES (?, ?, ?, ?)",
                    (self.group, self.member, json.dumps(self._topics), now + self._lease),
                )
                changed = True
                self._generation, self._positions = -1, {}  # whatever we had may be someone else's since
            if changed:
                _next_generation(db, self.group)
        self._renew_at = now + self._lease // 3

    def _take(self, limit: int) -> list[Record]:
        log, records, room = self._log, list[Record](), MOST_BYTES
        with log.store.read() as db:
            generation = db.execute("SELECT generation FROM consumer_group WHERE name = ?", (self.group,)).get
            bounds = {topic: _bounds(log, db, topic) for topic in self._topics}
            if generation != self._generation or self._grown(bounds):
                self._take_up(db, generation, bounds)
            order = sorted(self._positions)
            self._turn += 1
            for i in range(len(order)):
                place = order[(i + self._turn) % len(order)]
                offset, bound = self._positions[place], bounds[place.topic][place.partition]
                if offset == bound.end or len(records) >= limit or room <= 0:
                    continue
                check_offset(place, offset, bound)
                row = log.row(place.topic, db)
                found, self._positions[place], room = log.fetch_within(
                    db, row, place.partition, offset, bound.end, limit - len(records), room
                )
                records += found
        return records

    def _grown(self, bounds: Mapping[str, Mapping[int, Bounds]]) -> bool:
        return {topic: len(partitions) for topic, partitions in bounds.items()} != self._counts

    def _take_up(self, db: Db, generation: int | None, bounds: Mapping[str, Mapping[int, Bounds]]) -> None:
        """Work out our share in this generation and where to go on in it."""
        rows = db.execute("SELECT member, topics FROM member WHERE consumer_group = ?", (self.group,)).fetchall()
        members = {member: json.loads(topics) for member, topics in rows}
        self._counts = {topic: len(partitions) for topic, partitions in bounds.items()}
        mine = share(members, self._counts).get(self.member, set())
        committed = {place: offset for group, place, offset in _offsets(db) if group == self.group}
        # What we kept without a gap in between we go on reading; after a generation we did not see,
        # someone else may have been further.
        kept = self._positions if generation == self._generation + 1 or generation == self._generation else {}
        self._positions = {}
        for place in mine:
            bound = bounds[place.topic][place.partition]
            fresh = bound.start if self._start == "earliest" else bound.end
            self._positions[place] = kept.get(place, committed.get(place, fresh))
        self._generation = -1 if generation is None else generation

    _counts: Mapping[str, int] = {}


def ensure(db: Db, group: str, kind: Kind) -> None:
    """Make the group if it is new; a group is of one kind for life."""
    found = db.execute("SELECT kind FROM consumer_group WHERE name = ?", (group,)).get
    if found is None:
        db.execute("INSERT INTO consumer_group (name, kind) VALUES (?, ?)", (group, kind))
    elif found != kind:
        raise ConfigError(
            f"group {group} is a {found} group, not a {kind} group",
            hint="use another name, or delete the group",
        )


def put_out(db: Db, group: str) -> None:
    """Make strangers of members whose lease has run out: should they live, they begin from what is committed."""
    db.execute("DELETE FROM member WHERE consumer_group = ?", (group,))
    if db.changes():
        _next_generation(db, group)


def topic_changed(db: Db, topic: str) -> None:
    """Begin a new generation of the groups that read a topic: who owns what depends on how many partitions it has."""
    db.execute(
        "UPDATE consumer_group SET generation = generation + 1 WHERE name IN"
        " (SELECT m.consumer_group FROM member m, json_each(m.topics) t WHERE t.value = ?)",
        (topic,),
    )


def store_offset(db: Db, group: str, topic: int, partition: int, offset: int) -> None:
    """Set how far a group has come in one partition."""
    if offset < 0:
        raise ConfigError(f"group {group}: offset {offset} of partition {partition}; expected no less than 0")
    db.execute("INSERT OR REPLACE INTO group_offset VALUES (?, ?, ?, ?)", (group, topic, partition, offset))


def live_members(db: Db, group: str, now: int) -> list[str]:
    """Members whose lease has not run out."""
    rows = db.execute(
        "SELECT member FROM member WHERE consumer_group = ? AND lease_until BETWEEN ? AND ? ORDER BY member",
        (group, now, now + LONGEST),
    )
    return [member for (member,) in rows]


def describe(db: Db, now: int) -> list[Group]:
    """All groups by name."""
    offsets: dict[str, dict[TopicPartition, int]] = {}
    for name, place, offset in _offsets(db):
        offsets.setdefault(name, {})[place] = offset
    rows = db.execute("SELECT name, kind, generation FROM consumer_group ORDER BY name").fetchall()
    return [
        Group(name, tuple(live_members(db, name, now)), offsets.get(name, {}), kind, generation)
        for name, kind, generation in rows
    ]


def _offsets(db: Db) -> list[tuple[str, TopicPartition, int]]:
    rows = db.execute(
        "SELECT o.consumer_group, t.name, o.partition, o.next FROM group_offset o JOIN topic t ON t.id = o.topic"
        " ORDER BY 1, 2, 3"
    )
    return [(group, TopicPartition(topic, partition), offset) for group, topic, partition, offset in rows]


def _bounds(log: SqliteLog, db: Db, topic: str) -> dict[int, Bounds]:
    try:
        return partition_bounds(db, log.row(topic, db).id)
    except UnknownTopic:
        return {}  # deleted under us: nothing to read until it is back


def _next_generation(db: Db, group: str) -> None:
    db.execute("UPDATE consumer_group SET generation = generation + 1 WHERE name = ?", (group,))
