"""Spark appends to the log: a DataFrame of any source, as a batch and as a stream, each micro-batch once on both engines."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millstream.event import Record
from millstream.log import open_log
from millstream.log.contract import Log
from millstream.spark.source import MillstreamSource
from tests.contracts.log import name, read_all

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture(params=["sqlite", "kafka"])
def log(request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession) -> Iterator[Log]:
    spark.dataSource.register(MillstreamSource)
    url = request.getfixturevalue("kafka").url if request.param == "kafka" else f"sqlite:{tmp_path / 'log.db'}"
    with open_log(url) as opened:
        yield opened


@pytest.fixture
def topic(log: Log) -> str:
    return log.create_topic(name(), 3).name


def files(spark: SparkSession, folder: Path) -> DataFrame:
    """A stream of JSON files, one a micro-batch."""
    folder.mkdir(exist_ok=True)
    reader = spark.readStream.schema("user string, n int").option("maxFilesPerTrigger", 1)
    return reader.json(str(folder)).selectExpr("user AS key", "to_json(struct(*)) AS value")


def add(folder: Path, number: int, *users: str) -> None:
    lines = (f'{{"user": "{user}", "n": {number}}}\n' for user in users)
    (folder / f"{number}.json").write_text("".join(lines))


def run(frame: DataFrame, log: Log, topic: str, checkpoint: Path) -> None:
    """Append until the stream has caught up."""
    writer = frame.writeStream.format("millstream").option("log", log.url).option("topic", topic)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


def values(log: Log, topic: str) -> list[str]:
    return sorted((record.value or b"").decode() for record in read_all(log, topic))


def told(numbers: dict[int, str]) -> list[str]:
    return sorted(f'{{"user":"{user}","n":{number}}}' for number, users in numbers.items() for user in users.split())


def test_a_stream_of_files_is_in_the_topic_once_whatever_is_run_again(
    spark: SparkSession, log: Log, topic: str, tmp_path: Path
) -> None:
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    frame = files(spark, folder)
    add(folder, 1, "ann", "bob")
    add(folder, 2, "ann", "eve", "zoe")
    run(frame, log, topic, checkpoint)
    assert values(log, topic) == told({1: "ann bob", 2: "ann eve zoe"})
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (newest, newest.with_name(f".{newest.name}.crc")):
        path.unlink(missing_ok=True)  # as if Spark had been killed after our append
    add(folder, 3, "bob")
    run(frame, log, topic, checkpoint)
    assert values(log, topic) == told({1: "ann bob", 2: "ann eve zoe", 3: "bob"})


def test_a_checkpoint_that_is_older_than_the_topic_is_refused(
    spark: SparkSession, log: Log, topic: str, tmp_path: Path
) -> None:
    folder, checkpoint, old = tmp_path / "in", tmp_path / "checkpoint", tmp_path / "old"
    frame = files(spark, folder)
    add(folder, 1, "ann")
    run(frame, log, topic, checkpoint)
    shutil.copytree(checkpoint, old)
    add(folder, 2, "bob")
    add(folder, 3, "eve")
    run(frame, log, topic, checkpoint)
    add(folder, 4, "zoe")
    with pytest.raises(PySparkException, match="has batch 2 of this query, whose checkpoint is at batch 1"):
        run(frame, log, topic, old)
    assert values(log, topic) == told({1: "ann", 2: "bob", 3: "eve"})


def test_a_frame_is_appended_with_keys_times_headers_and_tombstones(spark: SparkSession, log: Log, topic: str) -> None:
    frame = spark.sql(
        "SELECT * FROM VALUES (CAST('a' AS BINARY), 'x', TIMESTAMP '2026-01-31 12:00:00Z', array(named_struct('key', 'h', 'value', X'00'))),"
        " (NULL, 'y', TIMESTAMP '2026-01-31 12:00:00Z', NULL) AS t (value, key, timestamp, headers)"
    )
    frame.write.format("millstream").mode("append").option("log", log.url).option("topic", topic).save()
    seen: dict[bytes | None, Record] = {record.key: record for record in read_all(log, topic)}
    assert {key: record.value for key, record in seen.items()} == {b"x": b"a", b"y": None}
    assert {record.time for record in seen.values()} == {NOON}
    assert seen[b"x"].headers == (("h", b"\0"),)
    assert seen[b"y"].headers == ()


@pytest.mark.parametrize(
    ("select", "mode", "options", "match"),
    [
        ("1 AS n", "append", {}, "found the columns n; expected value"),
        ("stack(1, 'a', 1) AS (value, n)", "append", {}, "not n"),
        ("1 AS value", "append", {}, "column value: found int, expected string or binary"),
        ("'a' AS value", "overwrite", {}, "a log is only ever appended to"),
        ("'a' AS value", "append", {"topic": ""}, "option topic is missing"),
        ("'a' AS value", "append", {"topic": "nowhere"}, "nowhere"),
    ],
)
def test_what_cannot_be_appended_is_an_error(
    spark: SparkSession, tmp_path: Path, select: str, mode: str, options: dict[str, str], match: str
) -> None:
    spark.dataSource.register(MillstreamSource)
    with open_log(f"sqlite:{tmp_path / 'log.db'}") as log:
        log.create_topic("t")
        given = {"log": log.url, "topic": "t", **options}
        with pytest.raises(PySparkException, match=match):
            spark.range(1).selectExpr(select).write.format("millstream").mode(mode).options(**given).save()
        assert read_all(log, "t") == []
