"""A hot key on Spark: one with half of all events is as right as any other, and one that would fill the memory stops the run."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream import Pipeline
from millstream.errors import PipelineError
from millstream.event import Event
from millstream.log import open_log
from millstream.runtime.run import run
from millstream.window import session

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def pipeline(folder: Path, name: str) -> Pipeline:
    return Pipeline(
        name,
        log=f"sqlite:{folder / 'log.db'}",
        to=f"sqlite:{folder / 'views.db'}",
        checkpoint=str(folder / "checkpoint"),
        buckets=2,
    )


def event(user: int, number: int) -> Event:
    at = (BEGIN + timedelta(milliseconds=number)).isoformat()
    return Event(json.dumps({"user": user, "at": at}).encode(), key=str(user).encode())


def test_a_key_with_half_of_all_events_is_right(spark: SparkSession, tmp_path: Path) -> None:
    made = pipeline(tmp_path, "half")
    clicks = made.stream("clicks", "user long, at timestamp", time="at", delay="1 second")
    made.view("visits", clicks.group_by("user", session("at", "10 minutes")).agg(n="count(*)", last="max(at)"))
    made.view("counts", clicks.group_by("user").agg(n="count(*)"))
    with open_log(made.log, create=True) as log:
        log.create_topic("clicks", 2)
        log.append("clicks", [event(7 if number % 2 else number % 100, number) for number in range(20_000)])
    run(made, spark=spark, once=True, rate_limit=10_000)
    assert dict(made.views["counts"].to_polars().rows())[7] == 10_000
    assert {row["user"]: row["n"] for row in made.views["visits"].to_polars().rows(named=True)}[7] == 10_000


def test_a_key_that_meets_itself_too_often_stops_the_run_and_is_named(spark: SparkSession, tmp_path: Path) -> None:
    made = pipeline(tmp_path, "meeting")
    one, two = (made.stream(name, "user long, at timestamp", time="at", delay="1 hour") for name in ("one", "two"))
    pairs = one.join(two.select("user AS other", "at AS then"), on="user = other", within="1 hour")
    made.view("pairs", pairs)
    with open_log(made.log, create=True) as log:
        for topic in ("one", "two"):
            log.create_topic(topic, 1)
            log.append(topic, [event(7, number) for number in range(10_000)])
    with pytest.raises(PipelineError) as caught:
        run(made, spark=spark, once=True)
    assert caught.value.message.startswith("pipeline meeting: view pairs: a join would make 100,000,000 pairs of rows")
    assert "The key 7 has 10,000 rows with 10,000 partners each" in caught.value.message
    assert "join on more columns" in caught.value.hint
