"""The same pipeline on Kafka and on the embedded log: windows that close, a partition that stays empty, the same views."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from pyspark.sql import SparkSession

from millstream.errors import OffsetOutOfRange
from millstream.event import Event
from millstream.log import open_log
from millstream.log.kafka.engine import KafkaLog
from millstream.log.partitioner import partition_of
from millstream.pipeline import Pipeline
from millstream.runtime.run import run
from millstream.runtime.verify import verify
from millstream.testing import KafkaBroker
from millstream.window import tumbling
from tests.contracts.log import name
from tests.runtime.shop_file import admission

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
PARTITIONS = 3
KEYS = [key for key in (f"k{number}".encode() for number in range(40)) if partition_of(key, PARTITIONS) != 2]
"""Keys that leave the last partition empty."""


def pipeline(label: str, folder: Path, log: str, topic: str) -> Pipeline:
    made = Pipeline(
        f"{label}-shop", log=log, to=f"sqlite:{folder / label}.db", checkpoint=str(folder / label), buckets=2
    )
    clicks = made.stream(
        "clicks", "page string, amount double, at timestamp", topic=topic, time="at", delay="10 seconds", late="route"
    )
    window = clicks.group_by("page", tumbling("at", "1 minute")).agg(n="count(*)", total="sum(amount)")
    made.view("per_minute", window)
    made.view("closed", window, emit="final")
    return made


def clicks(first: int, count: int) -> list[Event]:
    made = []
    for number in range(first, first + count):
        at = BEGIN + timedelta(seconds=number - (90 if number % 11 == 10 else 0))
        value = {"page": "aüc"[number % 3], "amount": number / 8, "at": at.isoformat()}
        text = b"nonsense" if number % 40 == 39 else json.dumps(value).encode()
        made.append(Event(text, key=KEYS[number % len(KEYS)]))
    return made


def outcome(made: Pipeline) -> tuple[Any, ...]:
    counts = [{**row, "topic": "", "watermark": None} for row in admission(made)]
    return (*(view.to_polars().rows() for view in made.views.values()), counts)


def test_a_pipeline_on_kafka_has_the_views_it_has_on_the_embedded_log_and_names_what_is_gone(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path
) -> None:
    outcomes, made_topics = [], list[str]()
    for label, url in (("kafka", kafka.url), ("sqlite", f"sqlite:{tmp_path / 'log.db'}")):
        with open_log(url) as log:
            topic = log.create_topic(name(), PARTITIONS).name
            made_topics.append(topic)
            made = pipeline(label, tmp_path, url, topic)
            log.append(topic, clicks(0, 150))
            run(made, spark=spark, once=True)
            # The empty partition held time back; a heartbeat is what lets windows close, and it is not in the topic.
            assert log.bounds(topic)[2].end == 0
            assert made.views["closed"].to_polars().height > 0
            assert made.views["closed"].to_polars().height < made.views["per_minute"].to_polars().height
            before = made.views["closed"].to_polars().rows()
            log.append(topic, clicks(150, 150))
            run(made, spark=spark, once=True, close=True, rate_limit=100)
            assert set(before) <= set(made.views["closed"].to_polars().rows())
            assert made.views["closed"].to_polars().rows() == made.views["per_minute"].to_polars().rows()
        verified = verify(made, spark=spark)
        assert verified.equal, verified
        assert verified.records == 300
        outcomes.append(outcome(made))
    assert outcomes[0] == outcomes[1]
    made = pipeline("kafka", tmp_path, kafka.url, made_topics[0])
    with open_log(kafka.url) as log:
        assert isinstance(log, KafkaLog)
        end = log.bounds(made_topics[0])[0].end
        log.append(made_topics[0], clicks(300, 100))
        place = confluent_kafka.TopicPartition(made_topics[0], 0, end + 2)
        for future in log.admin.delete_records([place]).values():
            future.result(10)
    with pytest.raises(OffsetOutOfRange, match=f"partition 0: offsets {end} to {end + 1} are gone") as caught:
        run(made, spark=spark, once=True)
    assert caught.value.missing == (end, end + 2)
    assert "--rebuild" in caught.value.hint
