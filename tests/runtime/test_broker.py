"""A broker that is killed and comes back under a live run: the run says that it waits, and goes on by itself."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millstream.event import Event
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.runtime.run import Progress, run
from millstream.runtime.verify import verify
from millstream.testing import KafkaBroker
from millstream.window import tumbling
from tests.runtime.shop_file import Child
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
        rows = made.views["per_minute"].to_polars()
        assert (rows["n"].sum(), rows["ids"].sum()) == (200, 200)
        verified = verify(made, spark=spark)
        assert verified.equal, verified


FILE = """
from millstream import Pipeline

shop = Pipeline("shop", log={log!r}, to={to!r}, checkpoint={checkpoint!r}, buckets=2)
shop.view("each", shop.stream("clicks", "id int").group_by("id").agg(n="count(*)"))
"""


@pytest.mark.campaign
def test_a_broker_that_goes_between_the_plan_of_a_batch_and_its_delivery_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    with KafkaBroker() as broker:
        with open_log(broker.url) as log:
            log.create_topic("clicks", 1)
            log.append("clicks", clicks(0, 100))
        places = {"to": f"sqlite:{tmp_path / 'v.db'}", "checkpoint": str(tmp_path / "c")}
        file.write_text(FILE.format(log=broker.url, **places), encoding="utf-8")
        child, lines = Child("run", file, "--json", failpoint="run.before_delivery:stop"), list[dict[str, Any]]()
        thread = threading.Thread(target=lambda: lines.extend(map(json.loads, child.process.stdout or ())), daemon=True)
        thread.start()
        try:
            until(lambda: _stands_still(child.pid), timeout=120)
            broker.kill()
            child.process.send_signal(signal.SIGCONT)
            until(lambda: child.process.poll() is not None or any(_waits(each) for each in lines), timeout=120)
            broker.start()
            until(lambda: child.process.poll() is not None or _delivered(lines) == 100, timeout=120)
            broker.kill()  # once more, under a run that has nothing to do
            seen = len(lines)
            until(lambda: child.process.poll() is not None or any(_waits(each) for each in lines[seen:]), timeout=120)
            broker.start()
            with open_log(broker.url) as log:
                log.append("clicks", clicks(100, 1))
            until(lambda: child.process.poll() is not None or _delivered(lines) == 101, timeout=120)
            child.process.send_signal(signal.SIGTERM)
            assert child.process.wait(120) == 0, child.process.stderr and child.process.stderr.read()
            thread.join(30)
        finally:
            child.end()
    assert any(_waits(each) for each in lines), lines
    assert _delivered(lines) == 101


def _stands_still(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"


def _waits(line: Mapping[str, Any]) -> bool:
    return str(line["waiting"]).startswith("log: ")


def _delivered(lines: Sequence[Mapping[str, Any]]) -> int:
    return max((line["records"] for line in lines), default=0)
