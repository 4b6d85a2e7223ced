"""Ranges of Kafka partitions in bulk, and cuts at an append time, against a real broker."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, pairwise
from typing import Any

import confluent_kafka
import numpy as np
import pyarrow as pa
import pytest

from millstream.errors import ConfigError, LogUnavailable, OffsetOutOfRange, UnknownTopic
from millstream.event import Event
from millstream.log import open_log
from millstream.log.embedded.scan import Part
from millstream.log.kafka import bulk
from millstream.log.kafka.append_times import AppendTimes
from millstream.log.kafka.bulk import BulkTaker
from millstream.log.kafka.engine import KafkaLog
from millstream.log.kafka.messages import Messages, ObjectTaker, Taker, to_batch
from millstream.log.kafka.scan import scan
from millstream.spark.fast_path import records_of_messages
from millstream.testing import KafkaBroker
from tests.contracts.log import name, read_all
from tests.waiting import until

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PATIENCE = 30.0


@pytest.fixture
def log(kafka: KafkaBroker) -> Iterator[KafkaLog]:
    with open_log(kafka.url) as opened:
        assert isinstance(opened, KafkaLog)
        yield opened


@pytest.fixture(params=[ObjectTaker, BulkTaker])
def kind(request: pytest.FixtureRequest) -> type[Taker]:
    """Whatever takes messages."""
    taker: type[Taker] = request.param
    return taker


def seen(messages: Messages) -> pa.RecordBatch:
    """What messages are in the archive's columns; the other ways to look at them must give the same."""
    batch = to_batch("t", 0, messages)
    found = batch.column("value").to_pylist()
    assert messages.values() == found
    assert messages.lengths.tolist() == [len(value or b"") for value in found]
    assert messages.joined() == (None if None in found else b"\n".join(found))
    return batch


def values(log: KafkaLog, part: Part, kind: type[Taker], limit: int = 1000) -> list[int]:
    found = [
        seen(messages).column("value").to_pylist() for messages in scan(log.client, part, limit, PATIENCE, kind=kind)
    ]
    assert all(len(values) == limit for values in found[:-1])
    return [int(value) for values in found for value in values]


def test_every_range_has_its_committed_records_whatever_else_takes_offsets(log: KafkaLog, kind: type[Taker]) -> None:
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
            assert values(log, Part(topic, 0, start, min(stop, end)), kind) == wanted, (start, stop)
    assert values(log, Part(topic, 0, 0, end), kind, limit=7) == list(range(20))


def test_columns_are_those_of_the_reader_with_the_time_of_the_event(log: KafkaLog, kind: type[Taker]) -> None:
    topic = log.create_topic(name()).name
    log.append(topic, [Event(b"v", b"k", NOON, (("h", b"1"), ("h", b"2"))), Event(None, b"gone", NOON), Event(b"x")])
    far = confluent_kafka.Producer(log.client)
    far.produce(topic, b"y", headers={"millstream.time": b"9" * 18, "other": None, "empty": b"", "ü": b"\0\n"})
    far.produce(topic, b"", b"")
    far.produce(topic, b"two\nlines\n", b"a\nkey")
    assert far.flush(10) == 0
    part, expected = Part(topic, 0, 0, log.bounds(topic)[0].end), read_all(log, topic)
    (found,) = (pa.Table.from_batches([seen(each)]) for each in scan(log.client, part, 100, PATIENCE, kind=kind))
    assert found["key"].to_pylist() == [record.key for record in expected]
    assert found["value"].to_pylist() == [record.value for record in expected]
    assert found["offset"].to_pylist() == [record.offset for record in expected]
    headers = [[(pair["key"], pair["value"]) for pair in pairs or ()] for pairs in found["headers"].to_pylist()]
    assert headers == [list(record.headers) for record in expected]
    for column, stamps in (
        ("timestamp", [r.timestamp for r in expected]),
        ("append_time", [r.appended for r in expected]),
    ):
        assert [round(at.timestamp() * 1000) for at in found[column].to_pylist()] == stamps
    chosen = np.array([True, False, False, True, False, True])
    (some,) = (seen(each[chosen]) for each in scan(log.client, part, 100, PATIENCE, kind=kind))
    assert some.to_pylist() == found.filter(pa.array(chosen)).to_pylist()
    keys = (each.keys(np.array([5, 2])) for each in scan(log.client, part, 100, PATIENCE, kind=kind))
    assert list(keys) == [[b"a\nkey", None]]


def test_what_is_gone_is_named_and_a_broker_that_says_nothing_is_waited_for_in_vain_but_not_for_ever(
    log: KafkaLog, kind: type[Taker]
) -> None:
    topic = log.create_topic(name()).name
    log.append(topic, [Event(b"%d" % number) for number in range(10)])
    gone = confluent_kafka.TopicPartition(topic, 0, 4)
    for future in log.admin.delete_records([gone]).values():
        future.result(10)
    with pytest.raises(OffsetOutOfRange, match="offsets 0 to 3 are gone"):
        values(log, Part(topic, 0, 0, 10), kind)
    assert values(log, Part(topic, 0, 4, 10), kind) == list(range(4, 10))
    with pytest.raises(UnknownTopic, match="no topic nowhere"):
        values(log, Part("nowhere", 0, 0, 10), kind)
    away = {**log.client, "bootstrap.servers": "127.0.0.1:1"}
    with pytest.raises(LogUnavailable, match=f"no answer for 1 s, reading topic {topic} partition 0 from offset 4"):
        list(scan(away, Part(topic, 0, 4, 10), 100, 1.0, kind=kind))


def test_a_range_beyond_the_end_of_the_log_is_named_and_not_waited_for(log: KafkaLog, kind: type[Taker]) -> None:
    topic = log.create_topic(name()).name
    log.append(topic, [Event(b"%d" % number) for number in range(10)])
    end = log.bounds(topic)[0].end
    message = f"topic {topic} partition 0: offset 100 is beyond the end; the next one is {end}"
    with pytest.raises(OffsetOutOfRange, match=message) as caught:
        values(log, Part(topic, 0, 0, 100), kind)
    assert caught.value.missing == (end, 100)


def test_large_records_are_read_in_pieces_of_so_many_bytes_and_one_at_the_least(
    log: KafkaLog, kind: type[Taker]
) -> None:
    topic = log.create_topic(name()).name
    sizes = [10, 10, 10, 50, 200, 10, 40, 60, 10]
    log.append(topic, [Event(b"x" * size) for size in sizes])
    part = Part(topic, 0, 0, log.bounds(topic)[0].end)
    found = [each.lengths.tolist() for each in scan(log.client, part, 4, PATIENCE, most=100, kind=kind)]
    assert found == [[10, 10, 10, 50], [200], [10, 40], [60, 10]]


def made(log: KafkaLog, **config: str) -> str:
    """A topic with settings of Kafka's."""
    topic = name()
    wanted = confluent_kafka.admin.NewTopic(topic, 1, config={key.replace("_", "."): v for key, v in config.items()})
    log.admin.create_topics([wanted])[topic].result(10)
    return topic


def test_records_of_a_megabyte_and_more_are_read_whole(log: KafkaLog, kind: type[Taker]) -> None:
    topic = made(log, max_message_bytes=str(9 << 20))
    far: Any = confluent_kafka.Producer({**log.client, "message.max.bytes": str(9 << 20)})
    sent = [bytes([65 + number]) * size for number, size in enumerate([7, 1 << 20, 3 << 20, 0, (8 << 20) + 1, 1 << 20])]
    for value in sent:
        far.produce(topic, value)
        assert far.flush(30) == 0
    end = log.bounds(topic)[0].end
    for most, expected in [(1 << 30, [sent]), (4 << 20, [sent[:2], sent[2:4], sent[4:5], sent[5:]])]:
        found = scan(log.client, Part(topic, 0, 0, end), 100, PATIENCE, most, kind)
        assert [seen(each).column("value").to_pylist() for each in found] == expected


@pytest.fixture(scope="module")
def compacted(kafka: KafkaBroker) -> str:
    """A topic of which the broker has kept the last record of each key only, and then compacts no more; values are offsets."""
    with open_log(kafka.url) as log:
        assert isinstance(log, KafkaLog)
        topic = made(log, cleanup_policy="compact", segment_ms="500", min_cleanable_dirty_ratio="0.01")
        far, number = confluent_kafka.Producer(log.client), itertools.count()

        def send(key: bytes) -> None:
            far.produce(topic, b"%d" % next(number), key)

        for each in range(200):
            send(b"%d" % (each if each % 20 == 0 else 1000 + each % 7))
        assert far.flush(10) == 0

        def is_compacted() -> bool:
            send(b"last")  # it closes a segment that is old enough
            assert far.flush(10) == 0
            return len(read_all(log, topic)) < 100

        until(is_compacted, timeout=60)
        place = confluent_kafka.admin.ConfigResource("topic", topic)
        place.add_incremental_config(
            confluent_kafka.admin.ConfigEntry(
                "cleanup.policy", "delete", incremental_operation=confluent_kafka.admin.AlterConfigOpType.SET
            )
        )
        log.admin.incremental_alter_configs([place])[place].result(10)
        until(lambda: read_all(log, topic) == read_all(log, topic))
        return topic


def test_ranges_of_a_compacted_topic_have_what_is_left_of_them(
    log: KafkaLog, kind: type[Taker], compacted: str
) -> None:
    end = log.bounds(compacted)[0].end
    left = [record.offset for record in read_all(log, compacted)]
    assert set(range(0, 200, 20)) < set(left)
    assert len(left) < 100 < end
    assert values(log, Part(compacted, 0, 0, end), kind) == left
    for start in range(0, end, 13):
        wanted = [offset for offset in left if start <= offset < start + 13]
        assert values(log, Part(compacted, 0, start, min(start + 13, end)), kind, limit=5) == wanted, start


def test_messages_that_are_not_as_expected_are_taken_as_objects(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = log.create_topic(name()).name
    log.append(topic, [Event(b"%d" % number, b"k") for number in range(10)])
    part = Part(topic, 0, 0, log.bounds(topic)[0].end)
    for field, place, said in [
        ("_TIME", 11, "messages have their times elsewhere"),
        ("_OFFSET", 3, "messages have other partitions or offsets"),
        ("_PARTITION", 6, "messages have other partitions or offsets"),
    ]:
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "millstream"):
            patch.setattr(BulkTaker, "checked", False)
            patch.setattr(bulk, field, place)
            patch.setattr("millstream.log.kafka.scan._refused", set())
            assert values(log, part, BulkTaker) == values(log, part, BulkTaker) == list(range(10))
        (line,) = caplog.messages
        assert line == f"Kafka's client: {said}; instead an object is made of each message"
        caplog.clear()


@pytest.mark.parametrize("gone", [False, True])
def test_keys_are_read_where_a_value_begins_as_a_heartbeats_or_there_is_none(
    log: KafkaLog, kind: type[Taker], gone: bool
) -> None:
    topic = log.create_topic(name()).name
    beat = Event(b'{"time":7,"pipeline":"shop"}', key=b"millstream.heartbeat.0")
    sent = [Event(b'{"n":1}', b"a"), beat, Event(b'{"time":2}', b"b"), Event(b'{"time"', b"c"), Event(b"", b"d"), beat]
    far: Any = confluent_kafka.Producer(log.client)
    for event in [*sent, Event(None if gone else b"{}", b"e")]:
        far.produce(topic, event.value, event.key)
    assert far.flush(10) == 0
    part = Part(topic, 0, 0, log.bounds(topic)[0].end)
    (records,) = (records_of_messages(messages) for messages in scan(log.client, part, 100, PATIENCE, kind=kind))
    assert records.keys == [None, beat.key, b"b", None, None, beat.key, b"e" if gone else None]
    assert [*records.values] == [event.value for event in sent] + [None if gone else b"{}"]
    (records,) = (records_of_messages(m) for m in scan(log.client, Part(topic, 0, 3, 5), 100, PATIENCE, kind=kind))
    assert records.keys is None


def test_a_client_that_needs_python_is_no_bulk_one() -> None:
    assert bulk.fits({"sasl.mechanisms": "SCRAM-SHA-256"})
    assert not bulk.fits({"sasl.mechanisms": "OAUTHBEARER"})
    with pytest.raises(ConfigError, match="No such configuration property"):
        BulkTaker({"no.such.thing": "1"})


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


@pytest.mark.parametrize("limit", [1, 20, 1000])
def test_a_compacted_topic_is_cut_at_append_times(log: KafkaLog, compacted: str, limit: int) -> None:
    other = log.create_topic(name()).name
    log.append(other, [Event(b"%d" % each) for each in range(30)])
    ranges = [Part(topic, 0, b.start, b.end) for topic in (compacted, other) for b in log.bounds(topic).values()]
    appended = [{record.offset: record.appended for record in read_all(log, part.topic)} for part in ranges]
    for before, after in pairwise(cuts(log, ranges, limit)):
        taken = [
            at
            for times, low, high in zip(appended, before, after, strict=True)
            for o, at in times.items()
            if low <= o < high
        ]
        left = [at for times, high in zip(appended, after, strict=True) for o, at in times.items() if o >= high]
        assert max(taken, default=0) <= min(left, default=1 << 62)
