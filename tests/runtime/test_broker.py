"""A broker that is killed and comes back under a live run: the run says that it waits, and goes on by itself."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from millstream.event import Event
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.plan.relation import tumbling
from millstream.runtime.run import Progress, run
from millstream.runtime.verify import verify
from millstream.testing import KafkaBroker
from tests.waiting import until

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def clicks(first: int, count: int) -> list[Event]:
    return [
        Event(json.dumps({"id": each, "at": (BEGIN + timedelta(seconds=each)).isoformat()}).encode(), b"%d" % each)
        for each in range(first, first + count)
    ]


def test_a_run_outlives_its_broker_and_loses_and_repeats_nothing(spark: SparkSession, tmp_path: Path) -> None:
    with KafkaBroker() as broker:
        with open_log(broker.url) as log:
            log.create_topic("clicks", 3)
            log.append("clicks", clicks(0, 100))
        made = Pipeline(
            "shop", log=broker.url, to=f"sqlite:{tmp_path / 'v.db'}", checkpoint=str(tmp_path / "c"), buckets=2
        )
        stream = made.stream("clicks", "id int, at timestamp", time="at", delay="10 seconds", idle="1 second")
        made.view("per_minute", stream.group_by(tumbling("at", "1 minute")).agg(n="count(*)", ids="count(DISTINCT id)"))
        stop, seen, ended = threading.Event(), list[Progress](), list[Progress | BaseException]()

        def live() -> None:
            try:
                ended.append(run(made, spark=spark, rate_limit=40, progress=seen.append, stop=stop))
            except BaseException as error:
                ended.append(error)

        thread = threading.Thread(target=live)
        thread.start()
        try:
            until(lambda: ended or (seen and seen[-1].records >= 60), timeout=120)
            broker.kill()
            until(lambda: ended or any(each.waiting.startswith("log: ") for each in seen), timeout=120)
            broker.start()
            until(lambda: ended or not seen[-1].waiting, timeout=120)
            with open_log(broker.url) as log:
                log.append("clicks", clicks(100, 100))
            until(lambda: ended or seen[-1].admitted == 200, timeout=120)
        finally:
            stop.set()
            thread.join(120)
        assert isinstance(ended[0], Progress), ended
        rows = made.views["per_minute"].frame()
        assert (rows["n"].sum(), rows["ids"].sum()) == (200, 200)
        verified = verify(made, spark=spark)
        assert verified.equal, verified
