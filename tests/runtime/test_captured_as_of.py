"""Events that are older than the capture of a table find the row that was there when it began."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.capture.loop import HELD_SINCE_EVER
from millstream.event import Event
from millstream.log import open_log
from millstream.log.contract import TopicSettings
from millstream.pipeline import Pipeline
from millstream.runtime.run import run
from tests.capture.databases import Sqlite
from tests.capture.process import once


@pytest.mark.parametrize("ever", [True, False])
def test_an_event_from_before_the_snapshot_finds_the_row_of_the_snapshot(
    spark: SparkSession, tmp_path: Path, ever: bool
) -> None:
    database, now = Sqlite(tmp_path / "shop.db"), datetime.now(UTC)
    database.made(rows=3)
    shop = Pipeline(
        "shop", log=f"sqlite:{tmp_path}/log.db", to=f"sqlite:{tmp_path}/views.db", checkpoint=f"{tmp_path}/check", buckets=2
    )  # fmt: skip
    users = shop.table("a", "id int, v int, t string", key="id", topic=database.topic("a"), codec="debezium")
    looks = shop.stream("looks", "user int, at timestamp", time="at", delay="1 hour")
    shop.view("then", looks.join(users, on="user = id", as_of="at").select("user", "at", "v"))
    with open_log(shop.log) as log:
        once(log, database, since=HELD_SINCE_EVER if ever else now)
        database.run("UPDATE a SET v = 10 WHERE id = 1", "DELETE FROM a WHERE id = 2")
        once(log, database)
        log.create_topic("looks", settings=TopicSettings(retention=timedelta(days=7)))
        times = [now - timedelta(days=2000), now + timedelta(minutes=5)]
        told = [{"user": user, "at": at.isoformat()} for at in times for user in range(3)]
        log.append("looks", [Event(json.dumps(each).encode()) for each in told])
    run(shop, spark=spark, once=True)
    found = {(row["user"], row["at"] < now, row["v"]) for row in shop.views["then"].to_arrow().to_pylist()}
    assert found == {*({(0, True, 0), (1, True, 1), (2, True, 2)} if ever else ()), (0, False, 0), (1, False, 10)}
