"""Consumer groups of the embedded log: who owns what, and that nobody commits what is not theirs."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import ConfigError, GenerationFenced, UnknownTopic
from millstream.event import Event, TopicPartition
from millstream.log.embedded.engine import SqliteLog
from millstream.log.embedded.group import SqliteConsumer, share
from tests.contracts.log import committed, values

LEASE = timedelta(seconds=10)


class Clock:
    """Milliseconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now

    def pass_lease(self) -> None:
        self.now += 10_001


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(tmp_path: Path, clock: Clock) -> Iterator[SqliteLog]:
    with SqliteLog(tmp_path / "log.db", clock=clock) as opened:
        yield opened


def join(log: SqliteLog, *topics: str, group: str = "g") -> SqliteConsumer:
    consumer = log.consumer(topics or "t", group, lease=LEASE)
    assert isinstance(consumer, SqliteConsumer)
    return consumer


def filled(log: SqliteLog, count: int = 10, partitions: int = 1, topic: str = "t") -> str:
    log.create_topic(topic, partitions)
    log.append(topic, [Event(b"%d" % i) for i in range(count)])
    return topic


def poll(consumer: SqliteConsumer, limit: int = 500) -> list[str]:
    return values(consumer.poll(limit, 0))


# sharing

topics = st.sampled_from(["t", "u", "v"])
counts = st.dictionaries(topics, st.integers(0, 8), max_size=3)


@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.sets(topics), max_size=6), counts)
def test_every_partition_that_someone_wants_has_exactly_one_owner(
    members: dict[str, set[str]], partitions: dict[str, int]
) -> None:
    shares = share(members, partitions)
    assert shares.keys() == members.keys()
    owned = [place for places in shares.values() for place in places]
    assert len(owned) == len(set(owned))
    wanted = set().union(*members.values())
    assert set(owned) == {TopicPartition(t, p) for t, n in partitions.items() if t in wanted for p in range(n)}
    assert all(place.topic in members[member] for member, places in shares.items() for place in places)


@given(st.sets(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=6), counts)
def test_members_that_want_the_same_get_the_same_number(members: set[str], partitions: dict[str, int]) -> None:
    sizes = [len(places) for places in share({member: list(partitions) for member in members}, partitions).values()]
    assert max(sizes) - min(sizes) <= 1


@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.lists(topics), max_size=6), counts, st.randoms())
def test_everyone_works_out_the_same_shares(
    members: dict[str, list[str]], partitions: dict[str, int], chance: random.Random
) -> None:
    def shuffled(mapping: dict) -> dict:  # type: ignore[type-arg]
        items = list(mapping.items())
        chance.shuffle(items)
        return dict(items)

    assert share(shuffled(members), shuffled(partitions)) == share(members, partitions)


# positions


def test_a_member_goes_on_reading_through_a_change_that_it_saw(log: SqliteLog) -> None:
    filled(log, 10, partitions=2)
    one = join(log)
    assert len(poll(one)) == 10
    two = join(log)
    assert poll(one) == []  # nothing comes again in what it kept
    assert len(poll(two)) == 5  # uncommitted, so these come to their new owner
    assert not one.assignment & two.assignment


def test_a_member_that_was_put_out_begins_from_what_is_committed(log: SqliteLog, clock: Clock) -> None:
    filled(log)
    one = join(log)
    assert len(poll(one)) == 10
    clock.pass_lease()
    two = join(log)
    assert len(poll(two, 5)) == 5
    two.commit()
    two.close()
    with pytest.raises(GenerationFenced, match="nothing was stored"):
        one.commit()
    assert poll(one) == [str(i) for i in range(5, 10)]
    one.commit()
    assert committed(log, "g") == {TopicPartition("t", 0): 10}


def test_after_the_clock_was_set_back_a_dead_member_holds_nothing_and_a_live_one_goes_on(
    log: SqliteLog, clock: Clock
) -> None:
    filled(log)
    dead, alive = join(log), join(log)
    clock.now -= 3_600_000
    poll(alive)
    assert alive.assignment == {TopicPartition("t", 0)}
    assert [group.members for group in log.groups()] == [(alive.member,)]
    other = join(log)  # nor is a live one put out: it has renewed its lease under the new clock
    assert {alive.member, other.member} == set(log.groups()[0].members)
    assert dead.member not in log.groups()[0].members


def test_a_member_that_missed_a_generation_does_not_reuse_its_positions(log: SqliteLog) -> None:
    filled(log, 20, partitions=2)
    one = join(log)
    assert len(poll(one)) == 20
    others = [join(log) for _ in range(3)]  # generations that `one` does not see
    for other in others:
        other.close()
    assert len(poll(one)) == 20  # nothing was committed, so all of it again


def test_a_deleted_group_starts_anew_even_for_a_member_that_slept_through_it(log: SqliteLog, clock: Clock) -> None:
    filled(log)
    one = join(log)
    poll(one)
    one.commit()
    clock.pass_lease()
    log.delete_group("g")
    with pytest.raises(GenerationFenced):
        one.commit()
    assert len(poll(one)) == 10


def test_a_reset_holds_against_a_member_that_slept_through_it(log: SqliteLog, clock: Clock) -> None:
    filled(log)
    one = join(log)
    poll(one)
    one.commit()
    clock.pass_lease()
    log.commit_group("g", {TopicPartition("t", 0): 3})
    with pytest.raises(GenerationFenced):
        one.commit()
    assert committed(log, "g") == {TopicPartition("t", 0): 3}
    assert poll(one) == [str(i) for i in range(3, 10)]


# leases


@pytest.mark.parametrize("sign", ["poll", "commit"])
def test_a_poll_or_a_commit_is_a_sign_of_life(log: SqliteLog, clock: Clock, sign: str) -> None:
    filled(log, 2, partitions=2)
    one = join(log)
    poll(one)
    for _ in range(5):
        clock.now += 6000
        one.poll(10, 0) if sign == "poll" else one.commit()
    two = join(log)
    poll(two)
    assert len(two.assignment) == 1  # the other half is still taken
    assert len(log.groups()[0].members) == 2


def test_a_silent_member_loses_everything_to_the_next_that_looks(log: SqliteLog, clock: Clock) -> None:
    filled(log, 2, partitions=2)
    one, two = join(log), join(log)
    poll(one), poll(two)
    for _ in range(3):
        clock.now += 4000
        poll(two)
    assert len(two.assignment) == 2
    assert log.groups()[0].members == (two.member,)


def test_a_lone_member_whose_lease_ran_out_unnoticed_may_still_commit(log: SqliteLog, clock: Clock) -> None:
    filled(log)
    one = join(log)
    poll(one)
    clock.pass_lease()
    one.commit()
    assert committed(log, "g") == {TopicPartition("t", 0): 10}


def test_a_member_that_left_is_gone(log: SqliteLog) -> None:
    filled(log)
    one = join(log)
    one.close()
    one.close()
    with pytest.raises(GenerationFenced, match="has left"):
        one.poll(1, 0)
    assert log.groups()[0].members == ()


# topics that change


def test_new_partitions_are_a_new_generation_so_nobody_owns_what_another_owns(log: SqliteLog) -> None:
    filled(log, 4, partitions=2, topic="t")
    filled(log, 4, partitions=3, topic="u")
    one, two = join(log, "t", "u"), join(log, "t", "u")
    poll(one), poll(two)
    log.alter_topic("t", partitions=3)  # shifts who gets which partition of u
    poll(two)
    with pytest.raises(GenerationFenced):  # has not polled since, and holds what is now another's
        one.commit()
    two.commit()
    poll(one)
    assert not one.assignment & two.assignment
    assert len(one.assignment | two.assignment) == 6
    one.commit()


def test_a_topic_made_anew_is_read_from_its_beginning(log: SqliteLog) -> None:
    filled(log, 10)
    one = join(log)
    assert len(poll(one)) == 10
    log.delete_topic("t")
    filled(log, 15)
    with pytest.raises(GenerationFenced):
        one.commit()
    assert len(poll(one)) == 15


def test_a_topic_that_is_deleted_gives_nothing_until_it_is_back(log: SqliteLog) -> None:
    filled(log, 3)
    one = join(log)
    poll(one)
    log.delete_topic("t")
    assert poll(one) == []
    assert one.assignment == frozenset()
    filled(log, 2)
    assert poll(one) == ["0", "1"]


def test_changes_of_other_topics_do_not_disturb_a_group(log: SqliteLog) -> None:
    filled(log)
    one = join(log)
    poll(one)
    generation = log.groups()[0].generation
    log.create_topic("other")
    log.alter_topic("other", partitions=2)
    log.delete_topic("other")
    assert log.groups()[0].generation == generation
    one.commit()


# what makes no sense


def test_what_makes_no_sense_is_refused(log: SqliteLog) -> None:
    filled(log)
    with pytest.raises(ConfigError, match="start"):
        log.consumer("t", "g", start="middle")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="lease"):
        log.consumer("t", "g", lease=timedelta(milliseconds=1))
    with pytest.raises(ConfigError, match="at most 0:30:00"):
        log.consumer("t", "g", lease=timedelta(hours=1))
    with pytest.raises(UnknownTopic):
        log.consumer(["t", "nowhere"], "g")
    log.worker("t", "queue")
    with pytest.raises(ConfigError, match="is a queue group"):
        log.consumer("t", "queue")
    with pytest.raises(ConfigError, match="is a queue group"):
        log.commit_group("queue", {TopicPartition("t", 0): 0})
    one = join(log)
    poll(one)
    with pytest.raises(ConfigError, match="no less than 0"):
        one.commit({TopicPartition("t", 0): -1})


# the storm


class Storm:
    """Members that join, leave, fall asleep, read and commit in any order, with a judge beside them."""

    def __init__(self, log: SqliteLog, clock: Clock, seed: int) -> None:
        self.log, self.clock, self.chance = log, clock, random.Random(seed)
        self.members: list[SqliteConsumer] = []
        self.processed: set[tuple[TopicPartition, int]] = set()
        self.committed: dict[TopicPartition, int] = {}
        self.refused = self.stored = 0

    def owners(self) -> dict[str, set[TopicPartition]]:
        """Who owns what by the members in the file, worked out apart from any member's memory."""
        with self.log.store.read() as db:
            rows = db.execute("SELECT member, topics FROM member WHERE consumer_group = 'g'").fetchall()
        return share(
            {member: json.loads(topics) for member, topics in rows},
            {topic.name: topic.partitions for topic in self.log.topics()},
        )

    def read(self, member: SqliteConsumer) -> None:
        for record in member.poll(self.chance.randrange(1, 12), 0):
            self.processed.add((TopicPartition(record.topic, record.partition), record.offset))
        assert member.assignment == self.owners()[member.member]

    def commit(self, member: SqliteConsumer) -> None:
        own = set(member.assignment)
        try:
            member.commit()
        except GenerationFenced:
            self.refused += 1
            assert committed(self.log, "g") == self.committed
            return
        self.stored += 1
        assert own <= self.owners().get(member.member, set())
        now = committed(self.log, "g")
        for place, offset in now.items():
            before = self.committed.get(place, 0)
            assert offset >= before  # nobody turns the group back
            assert all((place, o) in self.processed for o in range(before, offset))
            assert offset == before or place in own
        self.committed = now

    def step(self) -> None:
        chance = self.chance.random()
        member = self.chance.choice(self.members) if self.members else None
        if member is None or (chance < 0.08 and len(self.members) < 6):
            self.members.append(join(self.log, "t", "u"))
        elif chance < 0.13:
            self.members.remove(member)
            member.close()
        elif chance < 0.18:
            self.clock.now += self.chance.choice([1000, 5000, 9000, 12_000])
        elif chance < 0.30:
            topic = self.chance.choice("tu")
            self.log.append(topic, [Event(b"x") for _ in range(self.chance.randrange(1, 15))])
        elif chance < 0.31:
            name = self.chance.choice("tu")
            if (count := self.log.topic(name).partitions) < 6:
                self.log.alter_topic(name, partitions=count + 1)
        elif chance < 0.70:
            self.read(member)
        else:
            self.commit(member)


@pytest.mark.parametrize("seed", range(6))
def test_in_a_storm_of_members_nothing_is_committed_unowned_or_unread(log: SqliteLog, clock: Clock, seed: int) -> None:
    log.create_topic("t", 3)
    log.create_topic("u", 2)
    storm = Storm(log, clock, seed)
    for _ in range(250):
        storm.step()
    assert storm.refused > 3
    assert storm.stored > 10
    for member in storm.members[1:]:
        member.close()
    clock.pass_lease()
    last = join(log, "t", "u")
    ends = {TopicPartition(t, p): b.end for t in "tu" for p, b in log.bounds(t).items()}
    while True:
        records = last.poll(100, 0)
        storm.processed |= {(TopicPartition(r.topic, r.partition), r.offset) for r in records}
        if not records:
            break
    last.commit()
    assert committed(log, "g") == ends
    assert storm.processed == {(place, offset) for place, end in ends.items() for offset in range(end)}


def test_nothing_follows_where_somebody_else_has_appended_meanwhile(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        log.create_topic("in", 1)
        log.create_topic("out", 1)
        log.append("in", [Event(b"a")])
        place, out = TopicPartition("in", 0), TopicPartition("out", 0)
        with log.consumer("in", "g") as consumer:
            consumer.poll()
            consumer.append(place, 1, {"out": [Event(b"A")]}, ends={out: 0})
            log.append("out", [Event(b"other")])
            with pytest.raises(GenerationFenced, match="out/0 ends at 2, expected 1"):
                consumer.append(place, 1, {"out": [Event(b"B")]}, ends={out: 1})
            consumer.append(place, 1, {"out": [Event(b"B")]}, ends={out: 2})
        assert [record.value for record in log.read("out", 0, 0)] == [b"A", b"other", b"B"]
