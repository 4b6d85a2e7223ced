"""A partition that has nothing to say, while the pipeline runs on: it holds nobody back, and its heartbeats are few."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from millstream.event import Event
from millstream.log import open_log
from millstream.log.partitioner import partition_of
from millstream.pipeline import Pipeline
from millstream.plan.nodes import EventTime
from millstream.plan.relation import tumbling
from millstream.runtime.heartbeat import Quiet, due
from millstream.runtime.run import Progress, run
from millstream.runtime.verify import verify

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
KEY = next(key for key in (b"%d" % number for number in range(9)) if partition_of(key, 2) == 0)


def test_a_silent_partition_gets_a_heartbeat_a_batch_and_windows_close(spark: SparkSession, tmp_path: Path) -> None:
    made = Pipeline(
        "beat",
        log=f"sqlite:{tmp_path / 'log.db'}",
        to=f"sqlite:{tmp_path / 'views.db'}",
        checkpoint=str(tmp_path / "check"),
        buckets=1,
    )
    ticks = made.stream("ticks", "at timestamp", time="at", idle="10 minutes")
    made.view("closed", ticks.group_by(tumbling("at", "1 minute")).agg(n="count(*)"), emit="final")
    stop = threading.Event()
    closed: list[int] = []
    with open_log(made.log, create=True) as log:
        log.create_topic("ticks", 2)

        def append(minute: int) -> None:
            at = [BEGIN + timedelta(minutes=minute, seconds=second) for second in range(0, 60, 10)]
            log.append("ticks", [Event(json.dumps({"at": each.isoformat()}).encode(), key=KEY) for each in at])

        def after(progress: Progress) -> None:
            closed.append(made.views["closed"].arrow().num_rows)
            append(len(closed))
            if closed[-1] >= 3 or len(closed) > 20:
                stop.set()

        append(0)
        run(made, spark=spark, stop=stop, progress=after)
        assert closed[-1] >= 3
        assert log.bounds("ticks")[1].end <= len(closed) + 1
    verified = verify(made, spark=spark)
    assert verified.equal, verified


def test_a_partition_that_is_behind_is_not_idle_however_old_its_last_record() -> None:
    time = EventTime("at", idle=timedelta(seconds=1))
    behind = {0: Quiet(50, 60, unread=True), 1: Quiet(40, 60)}
    assert due(time, behind, 90_000_000) == {1: 50}
    assert due(time, {0: Quiet(50, 60, unread=True), 1: Quiet(40, 60, unread=True)}, 90_000_000) == {}
    assert due(time, {0: Quiet(50, 60), 1: Quiet(40, 60)}, 90_000_000) == {0: 89_000_000, 1: 89_000_000}
