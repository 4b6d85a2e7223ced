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
    value = {"id": number, "item": number * 7 % ITEMS, "shop": 1, "at": at.isoformat()}
    return Event(Json().encode(value), b"a", at)


def price(list_: int) -> Event:
    return Event(Json().encode({"shop": 1, "list": list_}), b"1", BEGIN - timedelta(days=1))


@pytest.mark.parametrize("engine", ["sqlite", "kafka"])
def test_events_of_a_backlog_find_what_a_table_had_said_by_then(
    engine: str, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("kafka").url if engine == "kafka" else f"sqlite:{tmp_path / 'log.db'}"
    with open_log(url) as log:
        items, sales = log.create_topic(name("items"), 2).name, log.create_topic(name("sales")).name
        prices = log.create_topic(name("prices")).name
        for topic, event in ((items, item), (sales, sale)):
            for first in range(0, ITEMS, LIMIT):
                log.append(topic, [event(number) for number in range(first, first + LIMIT)])
                time.sleep(0.002)  # of another append time, which is in milliseconds: one time is never cut
                if topic == sales:
                    log.append(prices, [price(first // LIMIT)])
                    time.sleep(0.002)
    made = Pipeline("dim", log=url, to=f"sqlite:{tmp_path / 'views.db'}", checkpoint=str(tmp_path / "check"), buckets=2)
    stream = made.stream("sales", "id int, item int, shop int, at timestamp", topic=sales, time="at", delay="1 minute")
    table = made.table("items", "item int, name string", topic=items, key="item")
    joined = stream.join(table, on="item", as_of="at", how="left")
    made.view("named", joined.group_by().agg(n="count(*)", named="count(name)"))
    late = made.table("prices", "shop int, list int", topic=prices, key="shop")
    priced = stream.join(late, on="shop", as_of="at", how="left")
    made.view("priced", priced.group_by("list").agg(n="count(*)"))
    progress = run(made, spark=spark, once=True, rate_limit=LIMIT)
    assert progress.batch is not None
    assert progress.batch >= 2 * ITEMS // LIMIT - 1
    assert made.views["named"].to_polars().rows() == [(ITEMS, ITEMS)]
    # Each list came after a hundred sales, and the watermark is a minute, ten sales, behind the last of them.
    assert dict(made.views["priced"].to_polars().rows()) == {None: 89, 0: 100, 1: 100, 2: 11}
    verified = verify(made, spark=spark)
    assert verified.equal, verified
    assert verified.records == 2 * ITEMS + ITEMS // LIMIT
