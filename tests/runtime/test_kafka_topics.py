"""Topics of Kafka as others make them: times by producers, partitions that are added, large records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from pyspark.sql import SparkSession

from millstream.log import open_log
from millstream.log.kafka.engine import KafkaLog
from millstream.pipeline import Pipeline
from millstream.runtime.run import run
from millstream.runtime.verify import verify
from millstream.testing import KafkaBroker
from tests.contracts.log import name

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def log(kafka: KafkaBroker) -> Iterator[KafkaLog]:
    with open_log(kafka.url) as opened:
        assert isinstance(opened, KafkaLog)
        yield opened


def made(log: KafkaLog, partitions: int = 1, **config: str) -> str:
    """A topic with settings of Kafka's."""
    topic, config = name(), {key.replace("_", "."): value for key, value in config.items()}
    log.admin.create_topics([confluent_kafka.admin.NewTopic(topic, partitions, config=config)])[topic].result(10)
    return topic


def send(log: KafkaLog, topic: str, values: list[dict[str, Any]], **options: Any) -> None:
    """Append values as a producer that knows nothing of ours does."""
    far: Any = confluent_kafka.Producer({**log.client, "message.max.bytes": str(9 << 20)})
    for number, value in enumerate(values):
        stamp = options["stamps"][number] if "stamps" in options else 0
        far.produce(
            topic,
            json.dumps(value).encode(),
            b"%d" % value["n"],
            partition=value["n"] % options.get("spread", 1),
            timestamp=stamp,
        )
    assert far.flush(30) == 0


def totals(log: KafkaLog, topic: str, folder: Path, **source: Any) -> Pipeline:
    """A view that counts and sums by key."""
    pipeline = Pipeline(
        "totals", log=log.url, to=f"sqlite:{folder / 'views.db'}", checkpoint=str(folder / "check"), buckets=2
    )
    stream = pipeline.stream("events", "n int, k int, at timestamp, pad string", topic=topic, **source)
    pipeline.view("sums", stream.group_by("k").agg(n="count(*)", s="sum(n)", pads="sum(length(pad))"))
    return pipeline


def expected(values: list[dict[str, Any]]) -> dict[int, tuple[int, int, int | None]]:
    """What the view must have."""
    by_key: dict[int, list[dict[str, Any]]] = {}
    for value in values:
        by_key.setdefault(value["k"], []).append(value)
    return {
        key: (len(found), sum(each["n"] for each in found), sum(len(each["pad"]) for each in found))
        for key, found in by_key.items()
    }


def value(n: int, size: int = 3) -> dict[str, Any]:
    return {"n": n, "k": n % 5, "at": (BEGIN + timedelta(seconds=n)).isoformat(), "pad": "x" * size}


def sums(pipeline: Pipeline) -> dict[int, tuple[int, ...]]:
    return {row[0]: row[1:] for row in pipeline.views["sums"].to_polars().rows()}


def test_times_of_producers_out_of_order_are_read_once_and_verify_agrees(
    log: KafkaLog, spark: SparkSession, tmp_path: Path
) -> None:
    topic = made(log, 2, message_timestamp_type="CreateTime")
    base = int(BEGIN.timestamp() * 1000)
    sent = [value(n) for n in range(120)]
    send(log, topic, sent, spread=2, stamps=[base + n * 37 % 60 * 1000 for n in range(120)])
    pipeline = totals(log, topic, tmp_path, time="at", delay="10 minutes")
    done = run(pipeline, spark=spark, once=True, rate_limit=20)
    assert done.batch is not None
    assert done.batch >= 5  # it was cut
    assert sums(pipeline) == expected(sent)
    verified = verify(pipeline, spark=spark)
    assert verified.equal, verified
    assert verified.records == 120


def test_partitions_that_are_added_are_read_at_the_next_start(
    log: KafkaLog, spark: SparkSession, tmp_path: Path
) -> None:
    topic = made(log, 1)
    send(log, topic, [value(n) for n in range(30)])
    pipeline = totals(log, topic, tmp_path)
    run(pipeline, spark=spark, once=True)
    assert sums(pipeline) == expected([value(n) for n in range(30)])
    log.admin.create_partitions([confluent_kafka.admin.NewPartitions(topic, 3)])[topic].result(10)
    send(log, topic, [value(n) for n in range(30, 90)], spread=3)
    run(pipeline, spark=spark, once=True)
    assert sums(pipeline) == expected([value(n) for n in range(90)])
    verified = verify(pipeline, spark=spark)
    assert verified.equal, verified
    assert verified.records == 90


def test_records_above_a_megabyte_pass_where_the_topic_takes_them(
    log: KafkaLog, spark: SparkSession, tmp_path: Path
) -> None:
    topic = made(log, max_message_bytes=str(9 << 20))
    sent = [value(n, size) for n, size in enumerate([1, 1 << 20, 3 << 20, 8 << 20, 2])]
    send(log, topic, sent)
    pipeline = totals(log, topic, tmp_path)
    run(pipeline, spark=spark, once=True)
    assert sums(pipeline) == expected(sent)
    verified = verify(pipeline, spark=spark)
    assert verified.equal, verified
