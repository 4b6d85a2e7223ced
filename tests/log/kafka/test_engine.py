"""The Kafka engine keeps the contract, against a real broker, and what only it promises."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from millstream.errors import ConfigError, LogUnavailable, NotSupported
from millstream.event import Event
from millstream.log import open_log
from millstream.log.conditional import Conditional
from millstream.log.contract import Log, TopicSettings
from millstream.log.kafka.sequence import SEQUENCES
from millstream.log.producer import Buffer, Producer
from millstream.testing import KafkaBroker
from tests.contracts.log import LogContract, name, read_all
from tests.history import check, load
from tests.log.test_faults import batch, start, stored
from tests.waiting import until


@pytest.fixture
def log(kafka: KafkaBroker) -> Iterator[Log]:
    with open_log(kafka.url) as opened:
        yield opened


@pytest.fixture
def again(kafka: KafkaBroker) -> Callable[[], Log]:
    return lambda: open_log(kafka.url)


class TestKafka(LogContract):
    """Every promise of the contract."""


# faults

WRITER = """
import os, sys
from millstream.log import open_log
from tests.history import Line
from tests.log.test_faults import batch
url, topic, history, producer = sys.argv[1:]
log = open_log(url)
out = os.open(history, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
sequence = log.last_sequence(topic, producer) or 0  # goes on with a repeat of the last one
while True:
    os.write(out, Line("invoke", producer, sequence, 10).dump().encode())
    ack = log.append(topic, batch(producer, sequence), producer=producer, sequence=sequence)
    if not ack.duplicate:  # Kafka does not remember the first offsets
        os.write(out, Line("ok", producer, sequence, 10, tuple(ack.partitions), tuple(ack.offsets)).dump().encode())
    sequence += 1
"""


def test_killed_writers_lose_tear_repeat_and_reorder_nothing(kafka: KafkaBroker, log: Log, tmp_path: Path) -> None:
    topic = log.create_topic(name(), 2).name
    histories: list[Path] = []
    for kill in range(5):
        history = tmp_path / f"history-{kill}"
        histories.append(history)
        child = start(WRITER, kafka.url, topic, history, "abab"[kill % 4])
        try:
            until(lambda: history.exists() and history.read_bytes().count(b"\n") >= 7 + 2 * kill)  # noqa: B023
        finally:
            child.kill()
            assert child.wait(30) == -signal.SIGKILL
    lines = [line for path in histories for line in load(path)]
    assert len({line.sequence for line in lines if line.type == "ok"}) >= 5
    for producer in "ab":  # settles what the killed ones left open
        last = log.last_sequence(topic, producer)
        assert last is not None
        assert log.append(topic, batch(producer, last), producer=producer, sequence=last).duplicate
    assert check(lines, stored(read_all(log, topic)), dense=False) == []


def test_a_broker_that_is_killed_and_comes_back_loses_and_doubles_nothing() -> None:
    with KafkaBroker() as broker, open_log(broker.url) as log:
        topic = log.create_topic(name(), 2).name
        with Producer(log, topic, Buffer(batch=10), name="p") as producer:
            for i in range(300):
                producer.send(Event(b"%d" % i, b"%d" % (i % 5)))
                if i == 100:
                    until(lambda: producer.counters.sent > 0)
                    broker.kill()
                if i == 200:
                    until(lambda: producer.counters.retried > 0, timeout=120)  # the producer has met the end of it
                    broker.start()
            producer.flush(120)
        assert producer.counters.retried > 0
        got = read_all(log, topic)
        assert sorted(int(r.value or b"") for r in got) == list(range(300))
        for key in {r.key for r in got}:
            own = [int(r.value or b"") for r in got if r.key == key]
            assert own == sorted(own)


def test_a_sequence_whose_transaction_has_no_end_is_an_error_that_says_what_to_do(
    kafka: KafkaBroker, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log.create_topic(name()).name
    log.append(topic, [Event(b"x")], producer="p", sequence=1)
    for module in ("offsets", "sequence"):
        monkeypatch.setattr(f"millstream.log.kafka.{module}.TIMEOUT", 1.0)
    asking = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": f"{SEQUENCES}p"})
    open_still = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name()})
    open_still.init_transactions(10)
    open_still.begin_transaction()
    mark = confluent_kafka.TopicPartition(topic, 0, 2)
    open_still.send_offsets_to_transaction([mark], asking.consumer_group_metadata(), 10)
    with pytest.raises(LogUnavailable, match=f"topic {topic}: a transaction of producer p has no end") as caught:
        log.last_sequence(topic, "p")
    assert "kafka-transactions.sh" in caught.value.hint
    open_still.commit_transaction(10)
    assert log.last_sequence(topic, "p") == 2
    asking.close()


def test_a_named_producer_begins_behind_no_open_transaction(
    kafka: KafkaBroker, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log.create_topic(name(), 2).name
    monkeypatch.setattr("millstream.log.kafka.write.OTHERS", 2.0)
    left = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name()})
    left.init_transactions(10)
    left.begin_transaction()
    left.produce(topic, b"left", partition=1)
    left.flush(10)
    with pytest.raises(
        LogUnavailable, match=f"topic {topic}, partition 1: a transaction is open from offset 0"
    ) as caught:
        log.append(topic, [Event(b"x")], producer="p", sequence=1)
    assert "kafka-transactions.sh" in caught.value.hint
    left.abort_transaction(10)
    assert not log.append(topic, [Event(b"x")], producer="p", sequence=1).duplicate
    assert [record.value for record in read_all(log, topic)] == [b"x"]


def test_a_broker_that_is_killed_right_after_an_acknowledgement_knows_the_sequence_when_it_is_back() -> None:
    with KafkaBroker() as broker:
        for sequence in range(4):
            with open_log(broker.url) as log:
                if sequence == 0:
                    log.create_topic("t")
                log.append("t", [Event(b"%d" % sequence)], producer="p", sequence=sequence)
                broker.kill()
            broker.start()
            with open_log(broker.url) as log:
                assert log.last_sequence("t", "p") == sequence
        with open_log(broker.url) as log:
            assert [record.value for record in read_all(log, "t")] == [b"0", b"1", b"2", b"3"]


def test_where_a_topic_ends_is_never_told_wrongly_while_its_broker_goes_and_comes_back() -> None:
    with KafkaBroker() as broker, open_log(broker.url) as log:
        log.create_topic("t", 1)
        log.append("t", [Event(b"x")] * 10)
        first = log.bounds("t")[0]
        told, over = {first}, threading.Event()

        def ask() -> None:
            while not over.is_set():
                with suppress(LogUnavailable):
                    told.add(log.bounds("t")[0])

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            for _ in range(3):
                broker.kill()
                broker.start()
                until(lambda: _answers(log))
        finally:
            over.set()
            thread.join(60)
        last = log.bounds("t")[0]  # a broker that comes back may write a marker behind the records
        assert all(each.start == 0 and first.end <= each.end <= last.end for each in told), told


def _answers(log: Log) -> bool:
    try:
        return bool(log.bounds("t"))
    except LogUnavailable:
        return False


def test_a_broker_that_is_gone_is_a_clear_error() -> None:
    broker = KafkaBroker()
    broker.start()
    with open_log(broker.url) as log:
        log.create_topic("t")
        broker.stop()
        with pytest.raises(LogUnavailable) as caught:
            log.append("t", [Event(b"x")])
        assert broker.bootstrap in str(caught.value)
        assert caught.value.hint
    broker.close()


def test_a_producer_that_another_of_its_name_has_fenced_is_told_so_and_adds_nothing(kafka: KafkaBroker) -> None:
    events = [Event(b"x", b"%d" % n) for n in range(50)]  # each has a callback
    with open_log(kafka.url) as one, open_log(kafka.url) as other:
        topic = one.create_topic(name(), 3).name
        one.append(topic, events, producer="p", sequence=1)
        other.append(topic, events, producer="p", sequence=2)
        with pytest.raises(LogUnavailable, match="fenced"):
            one.append(topic, events, producer="p", sequence=3)
        assert len(read_all(other, topic)) == 100
        # What the client raises of it now and then, when a callback comes after the error.
        fatal = confluent_kafka.KafkaException(confluent_kafka.KafkaError(confluent_kafka.KafkaError._FENCED))
        late = "<method 'append' of 'list' objects> returned a result with an exception set"
        with pytest.raises(LogUnavailable, match="fenced"), one.errors(topic):  # type: ignore[attr-defined]
            raise SystemError(late) from fatal
        with pytest.raises(SystemError, match="another"), one.errors(topic):  # type: ignore[attr-defined]
            raise SystemError("another")


@pytest.mark.parametrize("begin", ["last_sequence", "renumber", "append_all"])
def test_who_begins_under_the_name_of_a_producer_of_several_topics_fences_it(kafka: KafkaBroker, begin: str) -> None:
    with open_log(kafka.url) as one, open_log(kafka.url) as other:
        topics = [one.create_topic(name(), 2).name for _ in range(2)]
        batches = {topic: [Event(b"x", b"%d" % n) for n in range(5)] for topic in topics}
        one.append_all(batches, producer="p", sequence=1)
        if begin == "last_sequence":
            assert other.last_sequence(topics[1], "p") == 1
        elif begin == "renumber":
            assert other.renumber(topics[0], "p", 1, after=1)
        else:
            other.append_all(batches, producer="p", sequence=2)
        with pytest.raises(LogUnavailable, match="fenced"):
            one.append_all(batches, producer="p", sequence=3)
        other.append_all(batches, producer="p", sequence=4)
        assert all(len(read_all(other, topic)) == (15 if begin == "append_all" else 10) for topic in topics)


def test_an_archive_in_the_settings_is_refused_with_what_to_do_instead(log: Log) -> None:
    with pytest.raises(ConfigError, match="archive") as caught:
        log.create_topic(name(), 1, TopicSettings(archive="archive"))
    assert "millstream topics archive" in caught.value.hint


def test_the_time_of_an_event_is_a_header_that_nobody_sees_and_others_headers_cannot_break(
    log: Log, kafka: KafkaBroker
) -> None:
    topic = log.create_topic(name()).name
    log.append(topic, [Event(b"x", time=datetime(2020, 1, 1, tzinfo=UTC))])
    foreign: Any = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap})
    foreign.produce(topic, b"y", headers=[("millstream.time", b"soon"), ("empty", None)])
    foreign.flush()
    until(lambda: len(read_all(log, topic)) == 2)
    ours, theirs = read_all(log, topic)
    assert (ours.time.year, ours.headers) == (2020, ())
    assert ours.appended > ours.timestamp
    assert (theirs.timestamp, theirs.headers) == (theirs.appended, (("empty", b""),))


def test_brokers_know_no_conditions_and_no_keys_and_say_what_does(log: Log) -> None:
    topic = log.create_topic(name(), 1).name
    with pytest.raises(NotSupported, match="cannot append 1 units on conditions"):
        log.append_if([Conditional({topic: [Event(b"x", b"k")]}, {(topic, b"k"): None})])
    assert read_all(log, topic) == []
    with pytest.raises(NotSupported, match="cannot find the records of key b'k'"):
        log.of_key(topic, b"k")
    with pytest.raises(ConfigError, match="indexed: Kafka finds records by their offset alone"):
        log.create_topic(name(), 1, TopicSettings(indexed=True))
