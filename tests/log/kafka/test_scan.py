"""Ranges of Kafka partitions in bulk, and cuts at an append time, against a real broker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, pairwise
from typing import Any

import confluent_kafka
import pytest

from millstream.errors import LogUnavailable, OffsetOutOfRange, UnknownTopic
from millstream.event import Event
from millstream.log import open_log
from millstream.log.embedded.scan import Part
from millstream.log.kafka.append_times import AppendTimes
from millstream.log.kafka.engine import KafkaLog
from millstream.log.kafka.scan import scan, to_batch
from millstream.testing import KafkaBroker
from tests.contracts.log import name, read_all

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PATIENCE = 30.0


@pytest.fixture
def log(kafka: KafkaBroker) -> Iterator[KafkaLog]:
    with open_log(kafka.url) as opened:
        assert isinstance(opened, KafkaLog)
        yield opened


def values(log: KafkaLog, part: Part, limit: int = 1000) -> list[int]:
    found = list(scan(log.client, part, limit, PATIENCE))
    assert all(len(messages) == limit for messages in found[:-1])
    return [int(value) for messages in found for value in to_batch(part, messages).column("value").to_pylist()]


def test_every_range_has_its_committed_records_whatever_else_takes_offsets(log: KafkaLog) -> None:
    topic = log.create_topic(name()).name
    for first in range(0, 20, 5):  # each ends with a marker
        log.append(topic, [Event(b"%d" % number, b"k") for number in range(first, first + 5)])
    aborted = confluent_kafka.Producer({**log.client, "transactional.id": name()})
    aborted.init_transactions(10)
    aborted.begin_transaction()
    aborted.produce(topic, b"-1")
    aborted.flush(10)
    aborted.abort_transaction(10)
    places = {record.offset: int(record.value or b"") for record in read_all(log, topic)}
    end = log.bounds(topic)[0].end
    assert end > max(places) + 2
    for start in range(0, end, 3):
        for stop in (start + 1, start + 7, end):
            wanted = [number for offset, number in places.items() if start <= offset < stop]
            assert values(log, Part(topic, 0, start, min(stop, end))) == wanted, (start, stop)
    assert values(log, Part(topic, 0, 0, end), limit=7) == list(range(20))


def test_columns_are_those_of_the_reader_with_the_time_of_the_event(log: KafkaLog) -> None:
    topic = log.create_topic(name()).name
    log.append(topic, [Event(b"v", b"k", NOON, (("h", b"1"), ("h", b"2"))), Event(None, b"gone", NOON), Event(b"x")])
    far = confluent_kafka.Producer(log.client)
    far.produce(topic, b"y", headers={"millstream.time": b"9" * 18, "other": None})
    assert far.flush(10) == 0
    part = Part(topic, 0, 0, log.bounds(topic)[0].end)
    (messages,) = scan(log.client, part, 100, PATIENCE)
    found = to_batch(part, messages)
    expected = read_all(log, topic)
    assert found.column("key").to_pylist() == [record.key for record in expected]
    assert found.column("value").to_pylist() == [record.value for record in expected]
    assert found.column("offset").to_pylist() == [record.offset for record in expected]
    headers = [[(pair["key"], pair["value"]) for pair in pairs or ()] for pairs in found.column("headers").to_pylist()]
    assert headers == [list(record.headers) for record in expected]
    for column, stamps in (
        ("timestamp", [r.timestamp for r in expected]),
        ("append_time", [r.appended for r in expected]),
    ):
        assert [round(at.timestamp() * 1000) for at in found.column(column).to_pylist()] == stamps
    bare = to_batch(part, messages, headers=False)
    assert bare.column("timestamp") == bare.column("append_time") == found.column("append_time")


def test_what_is_gone_is_named_and_a_broker_that_says_nothing_is_waited_for_in_vain_but_not_for_ever(
    log: KafkaLog,
) -> None:
    topic = log.create_topic(name()).name
    log.append(topic, [Event(b"%d" % number) for number in range(10)])
    gone = confluent_kafka.TopicPartition(topic, 0, 4)
    for future in log.admin.delete_records([gone]).values():
        future.result(10)
    with pytest.raises(OffsetOutOfRange, match="offsets 0 to 3 are gone"):
        values(log, Part(topic, 0, 0, 10))
    assert values(log, Part(topic, 0, 4, 10)) == list(range(4, 10))
    with pytest.raises(UnknownTopic, match="no topic nowhere"):
        values(log, Part("nowhere", 0, 0, 10))
    away = {**log.client, "bootstrap.servers": "127.0.0.1:1"}
    with pytest.raises(LogUnavailable, match=f"no answer for 1 s, reading topic {topic} partition 0 from offset 4"):
        list(scan(away, Part(topic, 0, 4, 10), 100, 1.0))


def test_a_range_beyond_the_end_of_the_log_is_named_and_not_waited_for(log: KafkaLog) -> None:
    topic = log.create_topic(name()).name
    log.append(topic, [Event(b"%d" % number) for number in range(10)])
    end = log.bounds(topic)[0].end
    message = f"topic {topic} partition 0: offset 100 is beyond the end; the next one is {end}"
    with pytest.raises(OffsetOutOfRange, match=message) as caught:
        values(log, Part(topic, 0, 0, 100))
    assert caught.value.missing == (end, 100)


def test_large_records_are_read_in_pieces_of_so_many_bytes_and_one_at_the_least(log: KafkaLog) -> None:
    topic = log.create_topic(name()).name
    sizes = [10, 10, 10, 50, 200, 10, 40, 60, 10]
    log.append(topic, [Event(b"x" * size) for size in sizes])
    part = Part(topic, 0, 0, log.bounds(topic)[0].end)
    found = [[len(message) for message in messages] for messages in scan(log.client, part, 4, PATIENCE, most=100)]
    assert found == [[10, 10, 10, 50], [200], [10, 40], [60, 10]]


def cuts(log: KafkaLog, ranges: Sequence[Part], limit: int) -> list[list[int]]:
    """All cuts of ranges until their ends, as a run would make them."""
    times, made = AppendTimes(log), [[part.start for part in ranges]]
    while any(at < part.end for at, part in zip(made[-1], ranges, strict=True)):
        rest = [part._replace(start=at) for at, part in zip(made[-1], ranges, strict=True)]
        left = sum(part.end - part.start for part in rest)
        made.append(times.cut(rest, limit) if left > limit else [part.end for part in rest])
        taken = sum(after - before for after, before in zip(made[-1], made[-2], strict=True))
        assert 0 < taken <= limit, (made, limit)
    return made


@pytest.mark.parametrize("limit", [1, 7, 25, 100])
def test_topics_are_cut_at_one_append_time(log: KafkaLog, limit: int) -> None:
    first, second = log.create_topic(name(), 2).name, log.create_topic(name()).name
    for number in range(6):
        log.append(first, [Event(b"%d" % each, b"%d" % each) for each in range(8)])
        if number % 3 == 2:
            log.append(second, [Event(b"%d" % each) for each in range(12)])
    ranges = [Part(topic, p, b.start, b.end) for topic in (first, second) for p, b in log.bounds(topic).items()]
    appended = {(r.topic, r.partition, r.offset): r.appended for topic in (first, second) for r in read_all(log, topic)}
    for before, after in pairwise(cuts(log, ranges, limit)):
        taken, left = list[int](), list[int]()
        for part, low, high in zip(ranges, before, after, strict=True):
            times = [(at, offset) for (t, p, offset), at in appended.items() if (t, p) == (part.topic, part.partition)]
            taken += [at for at, offset in times if low <= offset < high]
            left += [at for at, offset in times if offset >= high]
        assert max(taken, default=0) <= min(left, default=1 << 62)


def test_times_of_producers_out_of_order_hold_nothing_up_and_lose_nothing(log: KafkaLog) -> None:
    topics = [name(), name()]
    made = [
        confluent_kafka.admin.NewTopic(topic, 1, config={"message.timestamp.type": "CreateTime"}) for topic in topics
    ]
    for future in log.admin.create_topics(made).values():
        future.result(10)
    stamps = {topics[0]: [5, 3, 900, 7, 8, 9, 6], topics[1]: [4, 6, 8, 10, 12, 14, 950]}
    base = int(NOON.timestamp() * 1000)
    for topic, times in stamps.items():
        client: Any = confluent_kafka.Producer(log.client)
        for at in times:
            client.produce(topic, b"%d" % at, timestamp=base + at)
        assert client.flush(10) == 0
    ranges = [Part(topic, 0, 0, 7) for topic in topics]
    assert cuts(log, ranges, 3) == [[0, 0], [2, 1], [2, 4], [2, 6], [5, 6], [7, 7]]
    assert list(chain(*cuts(log, ranges, 1)[-1:])) == [7, 7]
