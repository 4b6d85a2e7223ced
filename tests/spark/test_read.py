"""Spark reads the log: the same on both engines, as a batch and as a stream, with the progress as a consumer group."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from millstream.errors import ConfigError, OffsetOutOfRange
from millstream.event import Event
from millstream.log import open_log
from millstream.log.archive import Archive
from millstream.log.contract import Log, TopicSettings
from millstream.log.embedded.engine import SqliteLog
from millstream.log.kafka.names import java_settings
from millstream.log.lag import group_lag
from millstream.spark.options import Options
from millstream.spark.read import COLUMNS, read_batch, read_stream
from millstream.spark.source import StreamReader, cut
from tests.contracts.log import name, read_all
from tests.waiting import until

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(params=["sqlite", "kafka"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    url = request.getfixturevalue("kafka").url if request.param == "kafka" else f"sqlite:{tmp_path / 'log.db'}"
    with open_log(url) as opened:
        yield opened


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Log]:
    with open_log(f"sqlite:{tmp_path / 'log.db'}") as opened:
        yield opened


@pytest.fixture
def topic(log: Log) -> str:
    made = log.create_topic(name(), 3).name
    log.append(made, numbered(range(100)))
    return made


def numbered(numbers: range) -> list[Event]:
    return [Event(b"%d" % i, b"k%d" % (i % 10), NOON + timedelta(seconds=i)) for i in numbers]


def run(frame: DataFrame, checkpoint: Path) -> list[list[int]]:
    """Run a stream until it has caught up; give the values of each micro-batch."""
    batches: list[list[int]] = []
    query = (
        frame.writeStream.foreachBatch(lambda part, _: batches.append([int(row.value) for row in part.collect()]))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    return batches


def flat(batches: list[list[int]]) -> list[int]:
    return sorted(chain.from_iterable(batches))


def test_a_batch_holds_what_the_log_holds_in_kafkas_columns(spark: SparkSession, log: Log) -> None:
    topic = log.create_topic(name(), 2).name
    log.append(
        topic,
        [Event(b"v", b"k", NOON, (("h", b"1"), ("h", b"2"))), Event(None, b"gone", NOON), Event(b"x", None, NOON)],
    )
    frame = read_batch(spark, log.url, topic)
    assert tuple(frame.columns) == COLUMNS
    assert [kind for _, kind in frame.dtypes] == [
        "binary", "binary", "string", "int", "bigint", "timestamp", "array<struct<key:string,value:binary>>",
    ]  # fmt: skip
    found = {
        (row.topic, row.partition, row.offset): (
            row.key,
            row.value,
            row.at,
            tuple((h.key, bytes(h.value)) for h in row.headers or ()),
        )
        for row in frame.selectExpr("*", "unix_millis(timestamp) AS at").collect()
    }
    assert found == {
        (r.topic, r.partition, r.offset): (r.key, r.value, r.timestamp, r.headers) for r in read_all(log, topic)
    }


def test_a_stream_reads_everything_once_and_goes_on_after_a_restart(
    spark: SparkSession, log: Log, topic: str, tmp_path: Path
) -> None:
    frame = read_stream(spark, log.url, topic)
    assert flat(run(frame, tmp_path / "checkpoint")) == list(range(100))
    log.append(topic, numbered(range(100, 150)))
    assert flat(run(frame, tmp_path / "checkpoint")) == list(range(100, 150))
    assert run(frame, tmp_path / "checkpoint") == []


def test_a_limit_bounds_every_batch(spark: SparkSession, log: Log, topic: str, tmp_path: Path) -> None:
    batches = run(read_stream(spark, log.url, topic, limit=30), tmp_path / "checkpoint")
    assert all(len(batch) <= 30 for batch in batches)
    assert len(batches) >= 4
    assert flat(batches) == list(range(100))


def test_a_stream_starts_where_it_is_told(spark: SparkSession, log: Log, topic: str, tmp_path: Path) -> None:
    def first(start: object, place: str) -> list[int]:
        return flat(run(read_stream(spark, log.url, topic, start=start), tmp_path / place))  # type: ignore[arg-type]

    assert first("latest", "a") == []
    assert first(NOON + timedelta(seconds=90), "b") == list(range(90, 100))
    starts = {p: bounds.end for p, bounds in log.bounds(topic).items()}
    own = [r for r in read_all(log, topic) if r.partition == 0]
    assert first(starts | {0: own[3].offset}, "c") == sorted(int(r.value or b"") for r in own[3:])


def test_the_progress_of_a_query_shows_as_a_group_without_lag_at_its_end(
    spark: SparkSession, log: Log, topic: str, tmp_path: Path
) -> None:
    group = name("group")
    run(read_stream(spark, log.url, topic, group=group, limit=40), tmp_path / "checkpoint")
    until(lambda: (found := group_lag(log, groups=[group])) and sum(row.records for row in found) == 0)
    rows = group_lag(log, groups=[group])
    assert {row.partition for row in rows} == {0, 1, 2}
    log.append(topic, numbered(range(100, 110)))
    assert sum(row.records for row in group_lag(log, groups=[group])) >= 10


def test_partitions_that_are_added_later_are_read_from_their_beginning(
    spark: SparkSession, log: Log, topic: str, tmp_path: Path
) -> None:
    frame = read_stream(spark, log.url, topic)
    run(frame, tmp_path / "checkpoint")
    log.alter_topic(topic, partitions=6)
    log.append(topic, numbered(range(100, 200)))
    assert flat(run(frame, tmp_path / "checkpoint")) == list(range(100, 200))


def test_an_archive_and_the_live_log_are_one_relation(
    spark: SparkSession, log: Log, topic: str, tmp_path: Path
) -> None:
    Archive(tmp_path / "archive", topic).take(log)
    log.append(topic, numbered(range(100, 130)))
    frame = read_batch(spark, log.url, topic, archive=tmp_path / "archive")
    assert tuple(frame.columns) == COLUMNS
    rows = frame.collect()
    assert sorted(int(row.value) for row in rows) == list(range(130))
    assert len({(row.partition, row.offset) for row in rows}) == 130


def test_a_replay_begins_before_the_live_log_does(spark: SparkSession, embedded: Log, tmp_path: Path) -> None:
    settings = TopicSettings(retention_bytes=100, archive="archive")
    topic = embedded.create_topic(name(), 2, settings).name
    embedded.append(topic, numbered(range(200)))
    assert embedded.maintain(topic).expired > 150
    embedded.append(topic, numbered(range(200, 220)))
    live = read_batch(spark, embedded.url, topic).count()
    assert live < 100
    whole = read_stream(spark, embedded.url, topic, archive=tmp_path / "archive", limit=70)
    batches = run(whole, tmp_path / "checkpoint")
    assert flat(batches) == list(range(220))
    assert len(batches) >= 4


def test_a_gap_between_archive_and_live_log_is_an_error_that_names_it(
    spark: SparkSession, embedded: Log, tmp_path: Path
) -> None:
    topic = embedded.create_topic(name(), 1, TopicSettings(retention_bytes=10)).name
    embedded.append(topic, numbered(range(10)))
    archive = Archive(tmp_path / "archive", topic)
    archive.take(embedded)
    embedded.append(topic, numbered(range(10, 50)))
    embedded.maintain(topic)
    start = embedded.bounds(topic)[0].start
    with pytest.raises(OffsetOutOfRange, match=f"offsets 10 to {start - 1}"):
        archive.take(embedded)


def test_a_stream_that_retention_overtook_fails_and_names_what_is_missing(
    spark: SparkSession, embedded: Log, tmp_path: Path
) -> None:
    topic = embedded.create_topic(name(), 1, TopicSettings(retention_bytes=10)).name
    embedded.append(topic, numbered(range(5)))
    frame = read_stream(spark, embedded.url, topic)
    run(frame, tmp_path / "checkpoint")
    embedded.append(topic, numbered(range(5, 50)))
    embedded.maintain(topic)
    start = embedded.bounds(topic)[0].start
    assert start > 5
    with pytest.raises(PySparkException, match=f"offsets 5 to {start - 1} are gone"):
        run(frame, tmp_path / "checkpoint")


def test_the_bare_format_needs_no_function_of_ours(spark: SparkSession, embedded: Log, tmp_path: Path) -> None:
    topic = embedded.create_topic(name(), 4).name
    embedded.append(topic, numbered(range(50)))
    reader = spark.read.format("millstream").options(log=embedded.url, subscribe=topic)
    assert reader.load().count() == 50
    assert reader.load().rdd.getNumPartitions() == 1  # so little is not worth a second task
    assert reader.option("minPartitions", 10).load().rdd.getNumPartitions() >= 10
    offsets = {str(p): bounds.end for p, bounds in embedded.bounds(topic).items()}
    embedded.append(topic, numbered(range(50, 60)))

    def later(**options: str) -> DataFrame:
        return spark.read.format("millstream").options(log=embedded.url, subscribe=topic, **options).load()

    assert later(startingOffsets=json.dumps({topic: offsets})).count() == 10
    assert later(endingOffsets=json.dumps({topic: offsets})).count() == 50
    assert later(startingOffsets="latest").count() == 0
    assert later(startingTimestamp=str(int((NOON + timedelta(seconds=55)).timestamp() * 1000))).count() == 5
    timed = later(includeAppendTime="true")
    assert timed.filter("append_time > timestamp").count() == 60
    stream = spark.readStream.format("millstream").options(
        log=embedded.url, subscribe=topic, startingOffsets="earliest"
    )
    assert flat(run(stream.load(), tmp_path / "checkpoint")) == list(range(60))
    assert sum(row.records for row in group_lag(embedded, groups=[f"spark-{topic}"])) == 0


def test_a_query_reports_the_end_of_the_log(spark: SparkSession, embedded: Log, tmp_path: Path) -> None:
    topic = embedded.create_topic(name(), 1).name
    embedded.append(topic, numbered(range(50)))
    frame = read_stream(spark, embedded.url, topic, limit=20)
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    (source,) = query.recentProgress[0]["sources"]
    assert json.loads(source["latestOffset"]) == {topic: {"0": 50}}
    assert json.loads(source["endOffset"]) == {topic: {"0": 20}}


def test_one_cut_covers_several_topics(spark: SparkSession, embedded: Log, tmp_path: Path) -> None:
    one, two = embedded.create_topic(name(), 1).name, embedded.create_topic(name(), 2).name
    embedded.append(one, numbered(range(10)))
    embedded.append(two, numbered(range(10, 30)))
    assert flat(run(read_stream(spark, embedded.url, [one, two]), tmp_path / "c")) == list(range(30))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "option log"),
        ({"log": "redis://x"}, "option log"),
        ({"log": "sqlite:x.db"}, "option subscribe"),
        ({"log": "sqlite:x.db", "subscribe": "t", "maxOffsetsPerTrigger": "many"}, "option maxOffsetsPerTrigger"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        Options.of(options)


@pytest.mark.parametrize("read", [read_stream, read_batch])
@pytest.mark.parametrize("log", ["redis://x", "kafka://me:c4n4ry@broker:9092", "sqlite:"])
def test_what_is_no_address_of_a_log_is_refused_and_a_secret_in_it_not_shown(
    read: Any, log: str, spark: SparkSession
) -> None:
    with pytest.raises(ConfigError, match="log: found") as caught:
        read(spark, log, "clicks")
    assert "c4n4ry" not in str(caught.value)


def test_a_cut_takes_exactly_the_limit_and_never_passes_the_end() -> None:
    end = {"t": {"0": 100, "1": 3, "2": 50}}
    start = {"t": {"0": 0, "1": 3, "2": 49}}
    for limit in range(1, 110):
        cut_at = cut(start, end, limit)
        taken = {p: cut_at["t"][p] - start["t"][p] for p in end["t"]}
        assert sum(taken.values()) == min(limit, 101)
        assert all(0 <= taken[p] <= end["t"][p] - start["t"][p] for p in taken)


def test_a_batch_is_bounded_in_bytes(embedded: Log, tmp_path: Path) -> None:
    embedded.create_topic("t", 1)
    for _ in range(10):
        embedded.append("t", [Event(b"x" * 100)])
    options = {"log": f"sqlite:{tmp_path / 'log.db'}", "subscribe": "t", "maxOffsetsPerTrigger": "8"}
    reader = StreamReader(Options.of({**options, "maxBytesPerTrigger": "300"}))
    try:
        assert reader.latestOffset({"t": {"0": 0}}, reader.getDefaultReadLimit()) == {"t": {"0": 3}}
        assert reader.latestOffset({"t": {"0": 8}}, reader.getDefaultReadLimit()) == {"t": {"0": 10}}
    finally:
        reader.stop()


def test_a_limit_holds_after_an_append_under_a_clock_that_ran_ahead(tmp_path: Path) -> None:
    now = 1_000_000
    with SqliteLog(tmp_path / "log.db", clock=lambda: now) as log:
        log.create_topic("t")
        for i in range(50):
            now += 10**9 if i == 1 else -(10**9) if i == 2 else 1000
            log.append("t", [Event(b"%d" % i)])
        options = {"log": log.url, "subscribe": "t", "startingOffsets": "earliest", "wholeAppends": "true"}
        reader, read, batches = StreamReader(Options.of(options)), {"t": {"0": 0}}, []
        while (end := reader.latestOffset(read, ReadMaxRows(10))) != read:
            batches.append(end["t"]["0"] - read["t"]["0"])
            read = end
        reader.stop()
    assert batches == [10] * 5


def test_a_group_that_others_use_does_not_stop_a_stream_that_shows_its_progress_there(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        log.create_topic("t")
        log.append("t", [Event(b"1")])
        with log.consumer("t", "shop") as other:
            reader = StreamReader(Options.of({"log": log.url, "subscribe": "t", "group": "shop"}))
            assert reader.latestOffset({"t": {"0": 0}}, ReadAllAvailable()) == {"t": {"0": 1}}
            reader.stop()
            assert [record.value for record in other.poll()] == [b"1"]


def test_secrets_reach_sparks_kafka_client_under_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", 'pa"ss')
    settings = {"sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "me", "sasl.password": "${env:KAFKA_PASSWORD}"}
    jaas = java_settings(settings)["sasl.jaas.config"]
    assert jaas == 'org.apache.kafka.common.security.scram.ScramLoginModule required username="me" password="pa\\"ss";'
