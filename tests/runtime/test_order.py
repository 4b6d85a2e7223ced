"""What was in the log first is read first, on both engines: a backlog of many batches joins as one batch does."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.codec import Json
from millstream.event import Event
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.runtime.run import run
from millstream.runtime.verify import verify
from tests.contracts.log import name

BEGIN = datetime(2026, 1, 31, tzinfo=UTC)
ITEMS = 300
LIMIT = 100


def item(number: int) -> Event:
    return Event(
        Json().encode({"item": number, "name": f"n{number}"}),
        b"%d" % number,
        BEGIN - timedelta(minutes=60 - number // 10),
    )


def sale(number: int) -> Event:
    at = BEGIN + timedelta(seconds=6 * number)
    return Event(Json().encode({"id": number, "item": number * 7 % ITEMS, "at": at.isoformat()}), b"a", at)


@pytest.mark.parametrize("engine", ["sqlite", "kafka"])
def test_a_table_that_was_in_the_log_first_is_found_by_every_event_of_a_backlog(
    engine: str, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("kafka").url if engine == "kafka" else f"sqlite:{tmp_path / 'log.db'}"
    with open_log(url) as log:
        items, sales = log.create_topic(name("items"), 2).name, log.create_topic(name("sales")).name
        for topic, event in ((items, item), (sales, sale)):
            for first in range(0, ITEMS, LIMIT):
                log.append(topic, [event(number) for number in range(first, first + LIMIT)])
                time.sleep(0.002)  # of another append time, which is in milliseconds: one time is never cut
    made = Pipeline("dim", log=url, to=f"sqlite:{tmp_path / 'views.db'}", checkpoint=str(tmp_path / "check"), buckets=2)
    stream = made.stream("sales", "id int, item int, at timestamp", topic=sales, time="at", delay="1 minute")
    table = made.table("items", "item int, name string", topic=items, key="item")
    joined = stream.join(table, on="item", as_of="at", how="left")
    made.view("named", joined.group_by().agg(n="count(*)", named="count(name)"))
    progress = run(made, spark=spark, once=True, rate_limit=LIMIT)
    assert progress.batch is not None
    assert progress.batch >= 2 * ITEMS // LIMIT - 1
    assert made.views["named"].frame().rows() == [(ITEMS, ITEMS)]
    verified = verify(made, spark=spark)
    assert verified.equal, verified
    assert verified.records == 2 * ITEMS
