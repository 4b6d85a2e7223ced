"""A batch is bounded in bytes as well as in records, on both engines: what is planned of a log, without Spark."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import confluent_kafka
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from millstream.errors import LogUnavailable
from millstream.event import Event
from millstream.log import open_log
from millstream.log.contract import Log, TopicSettings
from millstream.log.embedded.engine import SqliteLog
from millstream.log.embedded.scan import Part
from millstream.log.kafka.engine import KafkaLog
from millstream.log.kafka.sizes import Sizes
from millstream.log.partitioner import partition_of
from millstream.spark.options import Options
from millstream.spark.source import StreamReader, parts_between
from millstream.testing import KafkaBroker
from tests.contracts.log import name, read_all

LIMIT = 100_000


@dataclass(frozen=True)
class Planned:
    """The batches of a backlog: how many bytes each has, and its records."""

    sizes: list[int]
    records: int


@pytest.fixture(params=["sqlite", "kafka"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    url = request.getfixturevalue("kafka").url if request.param == "kafka" else f"sqlite:{tmp_path / 'log.db'}"
    with open_log(url, create=True) as opened:
        yield opened


def fill(log: Log, topic: str, sizes: Sequence[int], key: bytes = b"k") -> None:
    """Append values of these sizes, in appends that are small beside the limit."""
    while sizes:
        count = max(1, sum(1 for n in range(min(len(sizes), 1000)) if sum(sizes[:n]) < LIMIT // 10))
        log.append(topic, [Event(b"x" * size, key) for size in sizes[:count]])
        sizes = sizes[count:]
        time.sleep(0.001)  # of another append time, which is in milliseconds


def plan(log: Log, *topics: str, records: int = 1_000_000, **options: str) -> Planned:
    """All batches of a backlog, as a run would plan them."""
    there = {
        (topic, record.partition, record.offset): len(record.value or b"") + len(record.key or b"")
        for topic in topics
        for record in read_all(log, topic)
    }
    given = {"log": log.url, "subscribe": ",".join(topics), "wholeAppends": "true", "startingOffsets": "earliest"}
    given |= {"maxOffsetsPerTrigger": str(records), "maxBytesPerTrigger": str(LIMIT)}
    reader = StreamReader(Options.of(given | options))
    try:
        made, end = [reader.initialOffset()], reader.ends()
        while made[-1] != end:
            made.append(reader.latestOffset(made[-1], ReadMaxRows(records)))
            assert made[-1] != made[-2], "there is more, and nothing is planned"
    finally:
        reader.stop()
    found = [
        [
            size
            for part in parts_between(before, after)
            for offset in range(part.start, part.end)
            if (size := there.get((part.topic, part.partition, offset))) is not None
        ]
        for before, after in pairwise(made)
    ]
    assert max(map(len, found)) <= records
    return Planned([sum(sizes) for sizes in found], sum(map(len, found)))


def check(planned: Planned, records: int) -> None:
    assert planned.records == records
    assert max(planned.sizes) <= 2 * LIMIT, planned.sizes
    fewest = sum(planned.sizes) / LIMIT
    assert len(planned.sizes) <= 8 + 4 * fewest, f"{planned.sizes}: many small batches"


def test_large_records_and_then_small_ones(log: Log) -> None:
    topic = log.create_topic(name()).name
    fill(log, topic, [5_000] * 60 + [10] * 6_000 + [5_000] * 50)
    check(plan(log, topic), 6_110)


def test_a_partition_of_large_records_one_of_small_ones_and_a_silent_one(log: Log) -> None:
    first, second = log.create_topic(name(), 3).name, log.create_topic(name()).name
    keys = {partition_of(b"%d" % n, 3): b"%d" % n for n in range(40)}
    fill(log, first, [5_000] * 50, keys[0])
    fill(log, second, [10] * 4_000)
    fill(log, first, [5_000] * 50, keys[1])
    check(plan(log, first, second), 4_100)


def test_offsets_without_records(log: Log) -> None:
    """Compaction leaves them in the embedded log, as on Kafka; here an aborted transaction does the same there."""
    topic = log.create_topic(name(), 1, TopicSettings(cleanup="compact")).name
    if isinstance(log, KafkaLog):
        aborted = confluent_kafka.Producer({**log.client, "transactional.id": name()})
        aborted.init_transactions(10)
        aborted.begin_transaction()
        for number in range(3_000):
            aborted.produce(topic, b"x", b"%d" % number)
        aborted.abort_transaction(10)
    else:
        log.append(topic, [Event(b"x", b"0") for _ in range(3_000)])
        log.maintain(topic)
    for number in range(100):
        fill(log, topic, [5_000], b"%d" % number)
    check(plan(log, topic), len(read_all(log, topic)))


@pytest.mark.parametrize("limit", [1, 3, 10])
def test_no_batch_cuts_an_append_to_several_topics_whatever_the_clock_does(tmp_path: Path, limit: int) -> None:
    ticks, now = random.Random(limit), [5_000_000]
    with SqliteLog(tmp_path / "log.db", clock=lambda: now[0]) as log:
        for topic in ("a", "b", "c"):
            log.create_topic(topic, 2)
        for number in range(120):
            now[0] += ticks.choice([0, 0, 1, 5, 400, -300])
            if number % 3:
                log.append(ticks.choice("abc"), [Event(b"alone", b"%d" % number)])
            else:
                chosen = ticks.sample("abc", 2)
                log.append_all({topic: [Event(b"%d" % number, b"%d" % n) for n in range(3)] for topic in chosen})
        given = {"log": log.url, "subscribe": "a,b,c", "wholeAppends": "true", "startingOffsets": "earliest"}
        reader = StreamReader(Options.of(given | {"maxOffsetsPerTrigger": str(limit)}))
        made, end, seen = [reader.initialOffset()], reader.ends(), list[bytes]()
        while made[-1] != end:
            made.append(reader.latestOffset(made[-1], ReadMaxRows(limit)))
            batch = [
                record.value or b""
                for part in parts_between(made[-2], made[-1])
                for record in log.read(part.topic, part.partition, part.start, part.end - part.start)
            ]
            whole = {value for value in batch if value != b"alone"}
            assert all(batch.count(value) == 6 for value in whole), batch
            seen += whole
        reader.stop()
    assert sorted(map(int, seen)) == list(range(0, 120, 3))
    assert len(made) > 20


def test_records_that_are_archived_count(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        log.create_topic("t", 1, TopicSettings(retention_bytes=1, archive=str(tmp_path / "archive")))
        for _ in range(100):
            log.append("t", [Event(random.randbytes(5_000))])
            time.sleep(0.001)
        log.maintain("t")
        assert log.bounds("t")[0].start > 90
        given = {"log": log.url, "subscribe": "t", "wholeAppends": "true", "archives": "true"}
        reader = StreamReader(Options.of(given | {"maxBytesPerTrigger": str(LIMIT)}))
        assert reader.latestOffset({"t": {"0": 0}}, ReadMaxRows(1000))["t"]["0"] in range(15, 41)
        reader.stop()


def test_no_answer_is_no_estimate(kafka: KafkaBroker) -> None:
    with open_log(kafka.url) as log:
        assert isinstance(log, KafkaLog)
        topic = log.create_topic(name()).name
        log.append(topic, [Event(b"x" * 1000) for _ in range(50)])
        sizes = Sizes(log, patience=1.0)
        try:
            silent, heard = Part(topic, 7, 0, 50), Part(topic, 0, 0, 50)
            assert 40 <= sizes.within([heard, silent], 50_000) <= 60, "as large as what was heard"
            with pytest.raises(LogUnavailable, match="no answer for 1 s, looking how large records are"):
                sizes.within([silent], 1)
        finally:
            sizes.close()
