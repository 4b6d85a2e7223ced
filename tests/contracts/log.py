"""What every log must do. An engine's tests inherit this class and give the fixtures ``log`` and ``again``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from millstream.errors import (
    BadEvent,
    BadName,
    ConfigError,
    DeliveryFenced,
    GenerationFenced,
    LogError,
    OffsetOutOfRange,
    TopicExists,
    UnknownTopic,
)
from millstream.event import Event, Record, TopicPartition, from_millis
from millstream.log.archive import Archive
from millstream.log.contract import Log, QueueSettings, TopicSettings, Worker
from millstream.log.embedded.file import MOST_BYTES
from millstream.log.lag import group_lag, plan_reset, reset
from millstream.log.producer import Buffer, Producer
from tests.waiting import until

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def name(kind: str = "topic") -> str:
    return f"{kind}-{uuid.uuid4().hex[:8]}"


def events(*values: str, key: str | None = None) -> list[Event]:
    return [Event(value.encode(), key.encode() if key else None) for value in values]


def read_all(log: Log, topic: str) -> list[Record]:
    """Everything up to the end as it is now."""
    ends = {partition: bounds.end for partition, bounds in log.bounds(topic).items()}
    records: list[Record] = []
    with log.reader(topic) as reader:
        until(
            lambda: records.extend(reader.poll(1000, 0.2)) or all(reader.positions[p] >= end for p, end in ends.items())
        )
    return records


def values(records: list[Record]) -> list[str]:
    return [record.value.decode() for record in records if record.value is not None]


class LogContract:
    """Inherit, and provide the fixtures."""

    @pytest.fixture
    def topic(self, log: Log) -> str:
        return log.create_topic(name(), 1).name

    @pytest.fixture
    def wide(self, log: Log) -> str:
        return log.create_topic(name(), 4).name

    # topics

    def test_a_topic_is_described_as_it_was_made(self, log: Log) -> None:
        settings = TopicSettings(retention=timedelta(days=2), retention_bytes=1_000_000, max_record_bytes=5000)
        made = log.create_topic(name(), 3, settings)
        assert log.topic(made.name) == made
        assert made in log.topics()
        assert log.topic(made.name).partitions == 3
        assert log.topic(made.name).settings == settings

    def test_a_topic_cannot_be_made_twice(self, log: Log, topic: str) -> None:
        with pytest.raises(TopicExists, match=topic):
            log.create_topic(topic, 2)

    def test_settings_change_and_partitions_grow(self, log: Log, topic: str) -> None:
        log.append(topic, events("before"))
        log.alter_topic(
            topic, partitions=3, settings=TopicSettings(cleanup="compact", compaction_lag=timedelta(hours=1))
        )
        described = log.topic(topic)
        assert described.partitions == 3
        assert described.settings.cleanup == "compact"
        assert described.settings.compaction_lag == timedelta(hours=1)
        log.append(topic, [Event(b"after", b"%d" % i) for i in range(30)])
        assert {record.partition for record in read_all(log, topic)} == {0, 1, 2}

    def test_partitions_never_shrink(self, log: Log, wide: str) -> None:
        with pytest.raises(ConfigError, match="4 partitions"):
            log.alter_topic(wide, partitions=2)

    def test_a_deleted_topic_is_unknown_and_can_be_made_anew(self, log: Log, topic: str) -> None:
        log.append(topic, events("old"))
        log.delete_topic(topic)
        until(lambda: topic not in {t.name for t in log.topics()})
        with pytest.raises(UnknownTopic, match=topic):
            log.append(topic, events("new"))
        log.create_topic(topic, 1)
        assert read_all(log, topic) == []

    def test_a_topic_is_known_by_its_id_and_one_that_is_made_again_has_another(self, log: Log, topic: str) -> None:
        first = log.topic_id(topic)
        assert first
        log.append(topic, events("old"))
        log.alter_topic(topic, settings=TopicSettings(retention=timedelta(days=3)))
        assert log.topic_id(topic) == first
        assert log.topic_id(log.create_topic(name(), 1).name) != first
        log.delete_topic(topic)
        with pytest.raises(UnknownTopic, match=topic):
            log.topic_id(topic)
        log.create_topic(topic, 1)
        assert log.topic_id(topic) not in ("", first)

    @pytest.mark.parametrize("call", ["append", "bounds", "reader", "topic", "delete_topic"])
    def test_an_unknown_topic_is_named_in_the_error(self, log: Log, call: str) -> None:
        arguments = ([Event(b"x")],) if call == "append" else ()
        with pytest.raises(UnknownTopic, match="nowhere") as caught:
            getattr(log, call)("nowhere", *arguments)
        assert "millstream topics" in caught.value.hint

    @pytest.mark.parametrize(
        "bad", ["", ".", "..", "a b", "a/b", "ü", 'x"; DROP TABLE topic; --', "a\0b", "x" * 250, "__mine"]
    )
    def test_a_bad_topic_name_is_refused(self, log: Log, bad: str) -> None:
        with pytest.raises(BadName):
            log.create_topic(bad, 1)

    # appending and reading

    def test_what_is_appended_is_read_back_whole(self, log: Log, topic: str) -> None:
        sent = [
            Event(b"value", b"key", NOON, (("a", b"1"), ("a", b"\x00\xff"))),
            Event(b"", b"", NOON + timedelta(milliseconds=1)),
            Event(None, b"tombstone", NOON),
            Event(b"\x00\xff", None, NOON - timedelta(days=365 * 30)),
        ]
        ack = log.append(topic, sent)
        got = read_all(log, topic)
        assert [Event(r.value, r.key, r.time, r.headers) for r in got] == sent
        assert [r.offset for r in got] == ack.offsets
        assert not ack.duplicate

    def test_an_event_without_a_time_gets_the_moment_of_its_append(self, log: Log, topic: str) -> None:
        before = datetime.now(UTC)
        log.append(topic, events("x"))
        (record,) = read_all(log, topic)
        assert before - timedelta(seconds=1) < record.time <= datetime.now(UTC) + timedelta(seconds=1)

    def test_an_empty_batch_adds_nothing(self, log: Log, topic: str) -> None:
        assert log.append(topic, []).offsets == []

    def test_offsets_grow_and_order_holds_in_each_partition(self, log: Log, wide: str) -> None:
        for batch in range(5):
            log.append(wide, [Event(f"{batch}.{i:02d}".encode(), f"k{i % 7}".encode()) for i in range(20)])
        got = read_all(log, wide)
        assert len(got) == 100
        for partition in range(4):
            own = [r for r in got if r.partition == partition]
            assert [r.offset for r in own] == sorted({r.offset for r in own})
            assert values(own) == sorted(values(own))

    def test_keys_go_where_kafka_puts_them(self, log: Log, wide: str) -> None:
        # (murmur2 & 0x7fffffff) % 4, the hashes being those of Kafka's own unit test
        hashes = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
        ack = log.append(wide, [Event(b"x", key) for key in hashes])
        assert ack.partitions == [(h & 0x7FFFFFFF) % 4 for h in hashes.values()]

    def test_events_without_a_key_spread_over_all_partitions(self, log: Log, wide: str) -> None:
        assert set(log.append(wide, [Event(b"x")] * 8).partitions) == {0, 1, 2, 3}

    def test_another_handle_sees_what_was_acknowledged(self, log: Log, again: Callable[[], Log], topic: str) -> None:
        log.append(topic, events("a", "b"))
        with again() as other:
            assert values(read_all(other, topic)) == ["a", "b"]

    def test_several_processes_write_at_once(self, log: Log, wide: str) -> None:
        code = (
            "import sys; from millstream.log import open_log; from millstream.event import Event\n"
            "log = open_log(sys.argv[1])\n"
            "for i in range(20): log.append(sys.argv[2], [Event(f'{sys.argv[3]}.{i}.{j}'.encode(), b'%d' % j) for j in range(10)])"
        )
        writers = [subprocess.Popen([sys.executable, "-c", code, log.url, wide, str(n)]) for n in range(3)]
        assert [writer.wait(60) for writer in writers] == [0, 0, 0]
        got = read_all(log, wide)
        assert sorted(values(got)) == sorted(f"{n}.{i}.{j}" for n in range(3) for i in range(20) for j in range(10))

    def test_many_threads_append_at_once_and_each_gets_its_own_acknowledgement(self, log: Log, wide: str) -> None:
        acks: dict[bytes, tuple[int, int]] = {}
        refused: list[BadEvent] = []

        def write(thread: int) -> None:
            for turn in range(4):
                batch = [Event(b"%02d.%d.%02d" % (thread, turn, i), b"%d" % (i % 5)) for i in range(1 + thread % 9)]
                if thread % 8 == 7 and turn == 1:
                    with pytest.raises(BadEvent) as caught:
                        log.append(wide, [*batch, Event(b"x" * 2_000_000)])
                    refused.append(caught.value)
                    continue
                ack = log.append(wide, batch)
                assert not ack.duplicate
                places = zip(ack.partitions, ack.offsets, strict=True)
                acks.update(zip([event.value or b"" for event in batch], places, strict=True))

        threads = [threading.Thread(target=write, args=(number,)) for number in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        got = read_all(log, wide)
        assert len(refused) == 4
        assert len(got) == len(acks) == sum((1 + n % 9) * (3 if n % 8 == 7 else 4) for n in range(32))
        assert {record.value: (record.partition, record.offset) for record in got} == acks
        for number in range(32):  # what a thread wrote one after the other stands so in each partition
            for partition in range(4):
                own = [
                    value
                    for value in values([r for r in got if r.partition == partition])
                    if value[:2] == f"{number:02d}"
                ]
                assert own == sorted(own)

    def test_a_record_over_the_limit_is_refused_with_its_whole_batch(self, log: Log) -> None:
        topic = log.create_topic(name(), 1, TopicSettings(max_record_bytes=1000)).name
        with pytest.raises(BadEvent, match=r"event 1 of the batch.*up to 1000"):
            log.append(topic, [Event(b"small"), Event(b"x" * 2000)])
        assert read_all(log, topic) == []

    def test_keys_of_heartbeats_are_refused_with_their_whole_batch(self, log: Log, topic: str) -> None:
        bad = Event(b"{}", b"millstream.heartbeat.5")
        with pytest.raises(BadEvent, match="reserved for heartbeats") as raised:
            log.append(topic, [*events("fine"), bad])
        assert "another beginning" in raised.value.hint
        producer = Producer(log, topic)
        producer.send(Event(b"good", b"millstream.heartbeats-report"))
        producer.send(bad)
        with pytest.raises(BadEvent, match="reserved for heartbeats"):
            producer.close()
        assert values(read_all(log, topic)) == ["good"]

    def test_a_compacted_topic_needs_keys(self, log: Log) -> None:
        topic = log.create_topic(name(), 1, TopicSettings(cleanup="compact")).name
        with pytest.raises(BadEvent, match="no key"):
            log.append(topic, events("x"))

    @pytest.mark.parametrize(
        "wrong",
        [
            Event("text"),  # type: ignore[arg-type]
            Event(b"x", "text"),  # type: ignore[arg-type]
            Event(b"x", time=datetime(2026, 1, 1)),
            Event(b"x", headers=(("a", "b"),)),  # type: ignore[arg-type]
        ],
    )
    def test_what_is_not_bytes_or_has_no_zone_is_refused(self, log: Log, topic: str, wrong: Event) -> None:
        with pytest.raises(BadEvent):
            log.append(topic, [wrong])

    # idempotence

    def test_a_repeat_adds_nothing(self, log: Log, wide: str) -> None:
        batch = [Event(b"%d" % i, b"%d" % i if i % 2 else None) for i in range(10)]
        first = log.append(wide, batch, producer="p", sequence=7)
        again = log.append(wide, batch, producer="p", sequence=7)
        assert again.duplicate
        assert not first.duplicate
        assert len(read_all(log, wide)) == 10

    def test_a_number_is_taken_with_nothing_appended_if_it_follows_the_one_that_is_there(
        self, log: Log, again: Callable[[], Log], topic: str
    ) -> None:
        producer = name("producer")
        assert log.renumber(topic, producer, 3, after=None)
        log.append(topic, events("a"), producer=producer, sequence=4)
        assert not log.renumber(topic, producer, 9, after=3)
        assert log.renumber(topic, producer, 4, after=4)
        with again() as other:
            assert other.renumber(topic, producer, 9, after=4)
            assert other.last_sequence(topic, producer) == 9
            with suppress(LogError):  # refused or ignored
                log.append(topic, events("b"), producer=producer, sequence=5)
            other.append(topic, events("c"), producer=producer, sequence=10)
        assert [record.value for record in read_all(log, topic)] == [b"a", b"c"]

    def test_a_repeat_after_a_restart_adds_nothing(self, log: Log, again: Callable[[], Log], topic: str) -> None:
        producer = name("producer")
        assert log.last_sequence(topic, producer) is None
        log.append(topic, events("a"), producer=producer, sequence=1)
        log.append(topic, events("b"), producer=producer, sequence=5)
        with again() as other:
            assert other.last_sequence(topic, producer) == 5
            assert other.append(topic, events("b"), producer=producer, sequence=5).duplicate
            other.append(topic, events("c"), producer=producer, sequence=6)
        assert values(read_all(log, topic)) == ["a", "b", "c"]

    def test_producers_and_topics_have_sequences_of_their_own(self, log: Log, topic: str, wide: str) -> None:
        for place, producer in [(topic, "p1"), (topic, "p2"), (wide, "p1")]:
            assert not log.append(place, events("x"), producer=producer, sequence=0).duplicate

    # appending to several topics at once

    def test_one_append_to_several_topics_is_in_all_of_them(self, log: Log, topic: str, wide: str) -> None:
        log.append(topic, events("before"))
        acks = log.append_all({topic: events("a", "b"), wide: [Event(b"%d" % i, b"%d" % i) for i in range(9)]})
        assert list(acks) == [topic, wide]
        assert not acks[topic].duplicate
        for place in (topic, wide):
            got = {(r.partition, r.offset): r.value for r in read_all(log, place)}
            assert got.keys() >= set(zip(acks[place].partitions, acks[place].offsets, strict=True))
        assert values(read_all(log, topic)) == ["before", "a", "b"]
        assert len(read_all(log, wide)) == 9
        assert log.append_all({}) == {}

    def test_a_repeat_over_several_topics_adds_nothing_and_empty_batches_keep_the_number(
        self, log: Log, again: Callable[[], Log], topic: str, wide: str
    ) -> None:
        producer, batches = name("producer"), {topic: events("a"), wide: list[Event]()}
        assert log.append_all(batches, producer=producer, sequence=3)[wide].offsets == []
        assert all(ack.duplicate for ack in log.append_all(batches, producer=producer, sequence=3).values())
        with again() as other:
            assert (other.last_sequence(topic, producer), other.last_sequence(wide, producer)) == (3, 3)
            assert all(ack.duplicate for ack in other.append_all(batches, producer=producer, sequence=3).values())
            other.append_all({topic: [], wide: events("b")}, producer=producer, sequence=4)
            assert other.append_all({topic: [], wide: []}, producer=producer, sequence=7)[topic].offsets == []
            assert other.last_sequence(topic, producer) == 7
        assert (values(read_all(log, topic)), values(read_all(log, wide))) == (["a"], ["b"])

    def test_appends_to_one_topic_and_to_several_share_a_producers_numbers(
        self, log: Log, topic: str, wide: str
    ) -> None:
        producer = name("producer")
        log.append(topic, events("a"), producer=producer, sequence=1)
        log.append_all({topic: events("b"), wide: events("b")}, producer=producer, sequence=2)
        assert log.append(topic, events("b"), producer=producer, sequence=2).duplicate
        log.append(topic, events("c"), producer=producer, sequence=3)
        assert log.append_all({topic: events("c")}, producer=producer, sequence=3)[topic].duplicate
        assert log.renumber(topic, producer, 5, after=3)
        with suppress(LogError):  # refused or ignored
            log.append_all({topic: events("d")}, producer=producer, sequence=5)
        log.append_all({topic: events("e"), wide: events("e")}, producer=producer, sequence=6)
        assert values(read_all(log, topic)) == ["a", "b", "c", "e"]
        assert values(read_all(log, wide)) == ["b", "e"]

    def test_a_number_that_only_some_of_the_topics_have_is_refused_in_all(
        self, log: Log, topic: str, wide: str
    ) -> None:
        producer = name("producer")
        log.append(topic, events("a"), producer=producer, sequence=5)
        with pytest.raises(BadEvent, match=f"{topic} has it already, {wide} has not") as caught:
            log.append_all({topic: events("a"), wide: events("a")}, producer=producer, sequence=5)
        assert "last_sequence" in caught.value.hint
        assert read_all(log, wide) == []
        assert log.last_sequence(wide, producer) is None
        log.append_all({topic: events("b"), wide: events("b")}, producer=producer, sequence=6)
        assert values(read_all(log, topic)) == ["a", "b"]

    def test_what_one_of_several_topics_refuses_is_in_none(self, log: Log, topic: str) -> None:
        small = log.create_topic(name(), 1, TopicSettings(max_record_bytes=1000)).name
        with pytest.raises(BadEvent, match="up to 1000"):
            log.append_all({topic: events("a"), small: [Event(b"x" * 2000)]}, producer="p", sequence=1)
        with pytest.raises(UnknownTopic, match="nowhere"):
            log.append_all({topic: events("a"), "nowhere": events("a")}, producer="p", sequence=1)
        with pytest.raises(UnknownTopic, match="nowhere"):
            log.append_all({topic: events("a"), "nowhere": []})
        with pytest.raises(BadEvent, match="reserved"):
            log.append_all({topic: events("a"), small: [Event(b"{}", b"millstream.heartbeat.5")]})
        with pytest.raises(ConfigError, match="go together"):
            log.append_all({topic: events("a")}, sequence=1)
        assert read_all(log, topic) == read_all(log, small) == []
        log.append_all({topic: events("a"), small: [Event(b"{}", b"millstream.heartbeat.5")]}, own=True)
        assert values(read_all(log, topic)) == ["a"]

    @pytest.mark.parametrize("count", [1, 2])
    def test_a_kill_inside_an_append_to_several_topics_leaves_nothing_in_any(
        self, log: Log, topic: str, wide: str, count: int
    ) -> None:
        code = (
            "import sys; from millstream.log import open_log; from millstream.event import Event\n"
            "url, *topics = sys.argv[1:]\n"
            "open_log(url).append_all({t: [Event(b'torn', b'%d' % i) for i in range(9)] for t in topics}, producer='p', sequence=1)"
        )
        armed = {"MILLSTREAM_FAILPOINT": f"log.append.in_transaction:kill@{count}"}
        command = [sys.executable, "-c", code, log.url, topic, wide]
        assert subprocess.run(command, env=os.environ | armed, timeout=60).returncode == -signal.SIGKILL
        assert (log.last_sequence(topic, "p"), log.last_sequence(wide, "p")) == (None, None)
        assert read_all(log, topic) == read_all(log, wide) == []
        acks = log.append_all({topic: events("a"), wide: events("b")}, producer="p", sequence=1)
        assert not acks[topic].duplicate
        assert (values(read_all(log, topic)), values(read_all(log, wide))) == (["a"], ["b"])

    # places to start

    def test_reading_starts_where_it_is_told(self, log: Log, topic: str) -> None:
        offsets = log.append(topic, [Event(b"%d" % i, time=NOON + timedelta(minutes=i)) for i in range(10)]).offsets

        def first(start: object) -> str:
            with log.reader(topic, start) as reader:  # type: ignore[arg-type]
                return values(until(lambda: reader.poll(1, 1.0)))[0]

        assert first("earliest") == "0"
        assert first(offsets[4]) == "4"
        assert first({0: offsets[6]}) == "6"
        assert first(NOON + timedelta(minutes=7)) == "7"
        assert first(NOON + timedelta(minutes=6, seconds=30)) == "7"
        with log.reader(topic, "latest") as reader:
            log.append(topic, events("new"))
            assert values(until(lambda: reader.poll(10, 1.0))) == ["new"]

    def test_a_time_after_the_last_record_is_the_end(self, log: Log, topic: str) -> None:
        log.append(topic, [Event(b"x", time=NOON)])
        assert log.offsets_at(topic, NOON + timedelta(days=1)) == {0: log.bounds(topic)[0].end}

    def test_large_records_come_in_polls_of_bounded_size_each_once(self, log: Log, topic: str) -> None:
        fill(log, topic)
        group = name("group")
        with (
            log.reader(topic) as reader,
            log.consumer(topic, group) as consumer,
            log.worker(topic, name("queue")) as worker,
        ):
            in_pieces(lambda: reader.poll(1000, 1.0))
            in_pieces(lambda: consumer.poll(1000, 1.0))

            def is_done() -> bool:
                assert consumer.poll(1000, 0.1) == []
                consumer.commit()
                return committed(log, group) == {TopicPartition(topic, 0): log.bounds(topic)[0].end}

            until(is_done)

            def work() -> list[Record]:
                taken = worker.take(1000, 1.0)
                worker.done(taken)
                return [delivery.record for delivery in taken]

            in_pieces(work)

    def test_an_offset_beyond_the_end_is_an_error(self, log: Log, topic: str) -> None:
        with pytest.raises(OffsetOutOfRange, match="beyond the end"):
            log.reader(topic, 10**6)

    def test_a_reader_waits_for_the_next_record(self, log: Log, topic: str) -> None:
        log.append(topic, events("old"))
        with log.reader(topic, "latest") as reader:
            assert reader.poll(10, 0.05) == []
            timer = threading.Timer(0.2, lambda: log.append(topic, events("new")))
            timer.start()
            assert values(reader.poll(10, 30.0)) == ["new"]
            timer.join()

    # consumer groups

    def test_each_group_sees_every_record(self, log: Log, wide: str) -> None:
        log.append(wide, [Event(b"%d" % i, b"%d" % i) for i in range(50)])
        for group in (name("group"), name("group")):
            with log.consumer(wide, group) as consumer:
                assert len(poll_all(consumer, 50)) == 50

    def test_a_group_goes_on_where_it_committed(self, log: Log, topic: str) -> None:
        group = name("group")
        log.append(topic, events("a", "b", "c"))
        with log.consumer(topic, group) as consumer:
            first = poll_all(consumer, 3)
            consumer.commit({TopicPartition(topic, 0): first[1].offset})
        with log.consumer(topic, group) as consumer:
            assert values(poll_all(consumer, 2)) == ["b", "c"]  # polled before, not committed: delivered again
            consumer.commit()
        log.append(topic, events("d"))
        with log.consumer(topic, group) as consumer:
            assert values(poll_all(consumer, 1)) == ["d"]

    def test_a_new_group_may_start_at_the_end(self, log: Log, topic: str) -> None:
        log.append(topic, events("old"))
        with log.consumer(topic, name("group"), start="latest") as consumer:
            until(lambda: consumer.poll(10, 0.1) == [] and consumer.assignment)
            log.append(topic, events("new"))
            assert values(poll_all(consumer, 1)) == ["new"]

    def test_members_share_the_partitions_and_a_leaver_gives_them_back(self, log: Log, wide: str) -> None:
        group = name("group")
        with log.consumer(wide, group) as one:
            until(lambda: one.poll(10, 0.05) == [] and len(one.assignment) == 4)
            with log.consumer(wide, group) as two:
                until(
                    lambda: (one.poll(10, 0.05), two.poll(10, 0.05)) and len(one.assignment) == len(two.assignment) == 2
                )
                assert not one.assignment & two.assignment
                (described,) = [g for g in log.groups() if g.name == group]
                assert len(described.members) == 2
            until(lambda: one.poll(10, 0.05) == [] and len(one.assignment) == 4)

    def test_the_partitions_of_a_dead_member_pass_on(self, log: Log, wide: str) -> None:
        group = name("group")
        code = (
            "import sys; from datetime import timedelta; from millstream.log import open_log\n"
            "c = open_log(sys.argv[1]).consumer(sys.argv[2], sys.argv[3], lease=timedelta(seconds=1))\n"
            "while True:\n c.poll(10, 0.05)\n if c.assignment: print(len(c.assignment), flush=True)"
        )
        child = subprocess.Popen([sys.executable, "-c", code, log.url, wide, group], stdout=subprocess.PIPE)
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == b"4\n"
        finally:
            os.kill(child.pid, signal.SIGKILL)
            child.wait(30)
            child.stdout.close()
        log.append(wide, [Event(b"%d" % i, b"%d" % i) for i in range(20)])
        with log.consumer(wide, group, lease=timedelta(seconds=1)) as consumer:
            assert len(poll_all(consumer, 20, timeout=60)) == 20

    def test_a_member_that_lost_a_partition_cannot_commit_it(self, log: Log, topic: str) -> None:
        group = name("group")
        log.append(topic, events("a", "b"))
        one = log.consumer(topic, group)
        got = poll_all(one, 2)
        one.close()  # the others think it dead
        with log.consumer(topic, group) as two:
            poll_all(two, 2)
            with pytest.raises(GenerationFenced):
                one.commit({TopicPartition(topic, 0): got[-1].offset + 1})
            two.commit({TopicPartition(topic, 0): got[0].offset + 1})
        (described,) = [g for g in log.groups() if g.name == group]
        assert described.offsets == {TopicPartition(topic, 0): got[0].offset + 1}

    def test_what_follows_from_a_partition_is_there_with_its_offset(self, log: Log, topic: str) -> None:
        group, place = name("group"), TopicPartition(topic, 0)
        out, more = (log.create_topic(name(), 1).name for _ in range(2))
        offsets = log.append(topic, events("a", "b")).offsets
        with log.consumer(topic, group) as one:
            poll_all(one, 2)
            one.take_over(place, [out, more])
            acks = one.append(place, offsets[1], {out: events("A", "A2"), more: events("1")}, ends={})
            assert acks[out].offsets == [record.offset for record in read_all(log, out)]
            assert committed(log, group) == {place: offsets[1]}
            one.append(place, offsets[1] + 1, {out: []}, ends={})
        assert (values(read_all(log, out)), values(read_all(log, more))) == (["A", "A2"], ["1"])
        assert committed(log, group) == {place: offsets[1] + 1}

    def test_a_member_that_lost_a_partition_appends_nothing_that_follows_from_it(self, log: Log, topic: str) -> None:
        group, place = name("group"), TopicPartition(topic, 0)
        out = log.create_topic(name(), 1).name
        offsets = log.append(topic, events("a", "b")).offsets
        one = log.consumer(topic, group, lease=timedelta(seconds=30))
        poll_all(one, 2)
        one.take_over(place, [out])
        one.append(place, offsets[0] + 1, {out: events("A")}, ends={})
        with log.consumer(topic, group, lease=timedelta(seconds=30)) as two:
            until(lambda: (one.poll(10, 0.05), two.poll(10, 0.05)) and one.assignment | two.assignment != set())
            keeper, loser = (one, two) if one.assignment else (two, one)
            assert keeper.assignment == {place}
            if keeper is two:
                two.take_over(place, [out])
            with pytest.raises(GenerationFenced):
                loser.append(place, offsets[1] + 1, {out: events("twice")}, ends={})
            keeper.append(place, offsets[1] + 1, {out: events("B")}, ends={})
        one.close()
        assert values(read_all(log, out)) == ["A", "B"]
        assert committed(log, group) == {place: offsets[1] + 1}

    def test_a_partition_of_someone_else_cannot_be_committed(self, log: Log, wide: str) -> None:
        group = name("group")
        with log.consumer(wide, group) as one, log.consumer(wide, group) as two:
            until(lambda: (one.poll(10, 0.05), two.poll(10, 0.05)) and len(one.assignment) == len(two.assignment) == 2)
            with pytest.raises(GenerationFenced, match="does not own"):
                one.commit({next(iter(two.assignment)): 0})

    def test_at_most_once_is_a_commit_before_the_work(self, log: Log, topic: str) -> None:
        group = name("group")
        log.append(topic, events("a", "b"))
        with log.consumer(topic, group) as consumer:
            poll_all(consumer, 2)
            consumer.commit()  # then the work fails: the records are not seen again
        with log.consumer(topic, group) as consumer:
            assert consumer.poll(10, 0.5) == []

    # work queues

    @pytest.fixture
    def work(self, log: Log, topic: str) -> Callable[..., Worker]:
        group = name("queue")

        def worker(**settings: object) -> Worker:
            return log.worker(topic, group, QueueSettings(**settings))  # type: ignore[arg-type]

        return worker

    def test_a_record_that_is_done_never_comes_again(self, log: Log, topic: str, work: Callable[..., Worker]) -> None:
        log.append(topic, events("a", "b", "c"))
        with work() as worker:
            got = take_all(worker, 3)
            assert sorted(d.record.value or b"" for d in got) == [b"a", b"b", b"c"]
            assert {d.attempt for d in got} == {1}
            worker.done(got)
            assert worker.take(10, 0.3) == []
        with work() as worker:
            assert worker.take(10, 0.5) == []

    def test_a_record_given_back_comes_again_with_a_higher_count(
        self, log: Log, topic: str, work: Callable[..., Worker]
    ) -> None:
        log.append(topic, events("a"))
        with work() as worker:
            worker.retry(take_all(worker, 1))
            (second,) = take_all(worker, 1)
            assert second.attempt == 2
            worker.done([second])

    def test_one_slow_record_does_not_hold_up_the_rest(self, log: Log, topic: str, work: Callable[..., Worker]) -> None:
        log.append(topic, events("slow", *"abcdefgh"))
        with work() as one:
            got = take_all(one, 9)
            slow = [d for d in got if d.record.value == b"slow"]
            one.done([d for d in got if d.record.value != b"slow"])
            log.append(topic, events("more"))
            more = take_all(one, 1)
            assert more[0].record.value == b"more"
            one.done(more + slow)

    def test_a_rejected_record_becomes_a_dead_letter_that_says_why(
        self, log: Log, topic: str, work: Callable[..., Worker]
    ) -> None:
        log.append(topic, [Event(b"poison", b"k", NOON, (("h", b"1"),)), Event(b"fine", b"k", NOON)])
        with work() as worker:
            got = {d.record.value: d for d in take_all(worker, 2)}
            worker.reject([got[b"poison"]], "not a number")
            worker.done([got[b"fine"]])
        (dead,) = read_all(log, f"{topic}.dead")
        headers = dict(dead.headers)
        assert (dead.value, dead.key, dead.time, headers["h"]) == (b"poison", b"k", NOON, b"1")
        assert headers["dead.reason"] == b"not a number"
        assert headers["dead.topic"] == topic.encode()
        assert headers["dead.offset"] == str(got[b"poison"].record.offset).encode()

    def test_a_record_that_fails_too_often_becomes_a_dead_letter(
        self, log: Log, topic: str, work: Callable[..., Worker]
    ) -> None:
        log.append(topic, events("poison"))
        with work(max_deliveries=2) as worker:
            for attempt in (1, 2):
                (delivery,) = take_all(worker, 1)
                assert delivery.attempt == attempt
                worker.retry([delivery])
            assert worker.take(10, 1.0) == []
            assert values(read_all(log, f"{topic}.dead")) == ["poison"]

    def test_what_a_vanished_worker_held_goes_to_another(
        self, log: Log, topic: str, work: Callable[..., Worker]
    ) -> None:
        log.append(topic, events("a"))
        held = work(visibility=timedelta(seconds=1))
        (first,) = take_all(held, 1)
        with work(visibility=timedelta(seconds=1)) as other:
            (second,) = take_all(other, 1)
            assert second.record == first.record
            assert second.attempt == 2
            with pytest.raises(DeliveryFenced):
                held.done([first])
            other.done([second])
        held.close()

    # lag and resets

    def test_lag_counts_records_and_seconds(self, log: Log, topic: str) -> None:
        group = name("group")
        offsets = log.append(topic, [Event(b"%d" % i) for i in range(10)]).offsets
        log.commit_group(group, {TopicPartition(topic, 0): offsets[4]})
        (row,) = group_lag(log, groups=[group])
        assert (row.topic, row.partition, row.committed) == (topic, 0, offsets[4])
        assert row.records == log.bounds(topic)[0].end - offsets[4]
        waited = until(lambda: group_lag(log, groups=[group])[0].seconds > row.seconds)
        assert waited
        log.commit_group(group, {TopicPartition(topic, 0): log.bounds(topic)[0].end})
        (row,) = group_lag(log, groups=[group])
        assert (row.records, row.seconds, row.warning) == (0, 0.0, "")

    def test_lag_warns_before_retention_takes_what_is_unread(self, log: Log) -> None:
        topic = log.create_topic(name(), 1, TopicSettings(retention=timedelta(seconds=1000))).name
        group = name("group")
        log.append(topic, [Event(b"x", time=datetime.now(UTC))])
        log.commit_group(group, {TopicPartition(topic, 0): 0})
        assert group_lag(log, groups=[group])[0].warning == ""
        log.alter_topic(topic, settings=TopicSettings(retention=timedelta(milliseconds=500)))
        warning = until(lambda: group_lag(log, groups=[group])[0].warning)
        assert "expires in" in warning or "gone" in warning  # Kafka may be quicker than we look

    @pytest.mark.parametrize("to", ["earliest", "latest", "offset", "time"])
    def test_a_group_is_moved_as_the_preview_says(self, log: Log, topic: str, to: str) -> None:
        group = name("group")
        offsets = log.append(topic, [Event(b"%d" % i, time=NOON + timedelta(minutes=i)) for i in range(5)]).offsets
        end = log.bounds(topic)[0].end
        log.commit_group(group, {TopicPartition(topic, 0): offsets[1]})
        target = {
            "earliest": "earliest",
            "latest": "latest",
            "offset": offsets[3],
            "time": NOON + timedelta(minutes=2),
        }[to]
        expected = {"earliest": offsets[0], "latest": end, "offset": offsets[3], "time": offsets[2]}[to]
        moves = plan_reset(log, group, topic, target)  # type: ignore[arg-type]
        assert [(m.before, m.after) for m in moves] == [(offsets[1], expected)]
        assert committed(log, group) == {TopicPartition(topic, 0): offsets[1]}  # a preview moves nothing
        reset(log, group, moves)
        assert committed(log, group) == {TopicPartition(topic, 0): expected}

    def test_a_group_with_live_members_is_not_moved(self, log: Log, topic: str) -> None:
        group = name("group")
        with log.consumer(topic, group) as consumer:
            until(lambda: consumer.poll(1, 0.05) == [] and consumer.assignment)
            with pytest.raises(GenerationFenced, match="live members"):
                log.commit_group(group, {TopicPartition(topic, 0): 0})

    def test_a_deleted_group_is_forgotten(self, log: Log, topic: str) -> None:
        group = name("group")
        log.commit_group(group, {TopicPartition(topic, 0): 0})
        log.delete_group(group)
        until(lambda: group not in {g.name for g in log.groups()})

    # cleaning

    def test_expired_records_go_and_a_reader_behind_is_told_which(self, log: Log) -> None:
        topic = log.create_topic(name(), 1, TopicSettings(retention=timedelta(milliseconds=500))).name
        first = log.append(topic, [Event(b"%d" % i) for i in range(5)]).offsets[0]
        start = until(lambda: _expire(log, topic) > first and _expire(log, topic))
        with pytest.raises(OffsetOutOfRange, match=f"offsets {first} to {start - 1} are gone") as caught:
            log.reader(topic, first)
        assert caught.value.missing == (first, start)
        group = name("group")
        log.commit_group(group, {TopicPartition(topic, 0): first})
        assert "gone" in group_lag(log, groups=[group])[0].warning
        with log.consumer(topic, group) as behind, pytest.raises(OffsetOutOfRange, match="are gone"):
            until(lambda: behind.poll(10, 0.2))

    def test_compaction_keeps_the_latest_value_of_every_key(self, log: Log) -> None:
        topic = log.create_topic(name(), 1, TopicSettings(cleanup="compact", tombstone_retention=timedelta(0))).name
        for i in range(30):
            log.append(topic, [Event(b"%d.%d" % (i, k), b"%d" % k) for k in range(5)])
        log.append(topic, [Event(None, b"0"), Event(None, b"1")])
        positions = [record.offset for record in read_all(log, topic)]

        def latest(start: int) -> dict[bytes, bytes]:
            found: dict[bytes, bytes | None] = {}
            for record in log.read(topic, 0, start, 1000):
                found[record.key or b""] = record.value
            return {key: value for key, value in found.items() if value is not None and key != b"roll"}

        before = latest(positions[0])
        assert before == {b"2": b"29.2", b"3": b"29.3", b"4": b"29.4"}
        until(lambda: _compact(log, topic) <= 20, timeout=60, what="compaction")
        for start in (log.bounds(topic)[0].start, positions[3], positions[70], positions[-4]):
            assert latest(start).items() <= before.items()
        assert latest(log.bounds(topic)[0].start) == before

    def test_a_tombstone_goes_after_its_time(self, log: Log) -> None:
        topic = log.create_topic(
            name(), 1, TopicSettings(cleanup="compact", tombstone_retention=timedelta(milliseconds=1))
        ).name
        log.append(topic, [Event(b"v", b"k")])
        log.append(topic, [Event(None, b"k")])
        until(lambda: _compact(log, topic) >= 0 and b"k" not in {r.key for r in read_all(log, topic)}, timeout=60)

    # archive

    def test_an_archive_holds_what_was_taken_and_goes_on_where_it_ended(
        self, log: Log, wide: str, tmp_path: object
    ) -> None:
        archive = Archive(str(tmp_path), wide)
        log.append(wide, [Event(b"%d" % i, b"%d" % i, NOON, (("h", b"x"),) if i % 2 else ()) for i in range(40)])
        assert archive.take(log) == 40
        assert archive.take(log) == 0
        log.append(wide, [Event(None, b"%d" % i, NOON) for i in range(40)])
        assert archive.take(log) == 40
        expected = {(r.partition, r.offset): r for r in read_all(log, wide)}
        found = {}
        for partition in range(4):
            pieces = archive.pieces(partition)
            assert [p.next for p in pieces[:-1]] == [p.first for p in pieces[1:]]
            for batch in archive.read(partition, 0, 10**9):
                for row in batch.to_pylist():
                    found[partition, row["offset"]] = row
        assert found.keys() == expected.keys()
        for place, row in found.items():
            record = expected[place]
            assert (row["key"], row["value"], row["timestamp"]) == (record.key, record.value, record.time)
            assert row["append_time"] == from_millis(record.appended)
            assert tuple((h["key"], h["value"]) for h in row["headers"] or ()) == record.headers

    # the buffered producer

    def test_a_producer_delivers_everything_in_order(self, log: Log, topic: str) -> None:
        with Producer(log, topic, Buffer(capacity=50, batch=20)) as producer:
            for i in range(500):
                producer.send(Event(b"%d" % i, b"k"))
        assert values(read_all(log, topic)) == [str(i) for i in range(500)]
        assert producer.counters.sent == producer.counters.accepted == 500

    def test_a_named_producer_goes_on_with_its_sequence(self, log: Log, topic: str) -> None:
        producer = name("producer")
        for value in (b"a", b"b"):
            with Producer(log, topic, name=producer) as sender:
                sender.send(Event(value))
        assert values(read_all(log, topic)) == ["a", "b"]


def fill(log: Log, topic: str) -> None:
    """A hundred records of a megabyte."""
    for low in range(0, 100, 10):
        log.append(topic, [Event(b"%03d" % n + b"x" * 990_000) for n in range(low, low + 10)])


def in_pieces(poll: Callable[[], list[Record]]) -> None:
    """All of them come, in order, each once, and never too much at once."""
    seen: list[int] = []

    def more() -> bool:
        records = poll()
        assert sum(len(record.value or b"") for record in records) <= MOST_BYTES
        seen.extend(int((record.value or b"")[:3]) for record in records)
        return len(seen) >= 100

    until(more, timeout=60)
    assert seen == list(range(100))
    assert poll() == []


def _expire(log: Log, topic: str) -> int:
    log.maintain(topic)
    return log.bounds(topic)[0].start


def _compact(log: Log, topic: str) -> int:
    """Let the engine compact; give how many records are left. Kafka cleans only closed segments, hence the nudge."""
    log.maintain(topic)
    if log.url.startswith("kafka"):
        log.append(topic, [Event(b"x", b"roll")])
    return len(read_all(log, topic))


def committed(log: Log, group: str) -> dict[TopicPartition, int]:
    return dict(next(g.offsets for g in log.groups() if g.name == group))


def poll_all(consumer: object, count: int, timeout: float = 30.0) -> list[Record]:
    """Poll until ``count`` records came."""
    records: list[Record] = []
    until(lambda: records.extend(consumer.poll(100, 0.1)) or len(records) >= count, timeout=timeout)  # type: ignore[attr-defined]
    return records


def take_all(worker: Worker, count: int) -> list:  # type: ignore[type-arg]
    """Take until ``count`` deliveries came."""
    deliveries: list = []  # type: ignore[type-arg]
    until(lambda: deliveries.extend(worker.take(100, 0.1)) or len(deliveries) >= count)
    return deliveries
