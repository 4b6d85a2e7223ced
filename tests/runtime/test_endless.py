"""A stream without an end: what a windowed pipeline keeps, in rows and in bytes on disk, reaches a plateau."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.shop_file import ROOT

ENDLESS = """
import json, sys, threading
from datetime import datetime, timedelta, UTC
from pathlib import Path
from millstream.event import Event
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.window import tumbling
from millstream.runtime.run import run
from millstream.spark.session import spark_session, stop_session

folder, batches = Path(sys.argv[1]), int(sys.argv[2])
pipeline = Pipeline("endless", log=f"sqlite:{folder}/log.db", to=f"sqlite:{folder}/views.db", checkpoint=f"{folder}/check", buckets=1)
ticks = pipeline.stream("ticks", "name long, at timestamp", time="at", delay="10 seconds")
pipeline.view("per_minute", ticks.group_by("name", tumbling("at", "1 minute")).agg(n="count(*)", names="count(DISTINCT name)"))
log = open_log(pipeline.log, create=True)
log.create_topic("ticks", 1)
begin = datetime(2026, 1, 1, tzinfo=UTC)

def append(minute):
    log.append("ticks", [
        Event(json.dumps({"name": minute * 600 + i, "at": (begin + timedelta(minutes=minute, seconds=i / 10)).isoformat()}).encode())
        for i in range(600)
    ])

def size():
    total = 0
    for path in (folder / "check").rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            pass
    return total

stop = threading.Event()
def after(progress):
    print(json.dumps([progress.batch, progress.state_rows, progress.state_bytes, size(), progress.late]), flush=True)
    if progress.batch + 1 >= batches:
        stop.set()
    else:
        append(progress.batch + 1)

append(0)
# Spark throws old state away once a minute, and after a snapshot, which is every ten batches: too slow for a test.
faster = {"maintenanceInterval": "1s", "minDeltasForSnapshot": "2", "minVersionsToDelete": "0"}
spark = spark_session("endless", settings={f"spark.sql.streaming.stateStore.{name}": value for name, value in faster.items()})
run(pipeline, spark=spark, stop=stop, progress=after)
stop_session()
"""


@pytest.mark.timeout(280)
def test_state_and_checkpoint_of_an_endless_stream_reach_a_plateau(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDLESS, str(tmp_path), "30"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [line[0] for line in lines] == list(range(30))
    assert lines[-1][4] == 0
    # A segment keeps what has expired until it is full, so state grows at first; what grows for ever would double. Spark
    # deletes files in the background, now and then, so the folder goes up and down.
    for column, bound in ((1, 1.25), (2, 1.25), (3, 1.6)):
        held = [line[column] for line in lines]
        assert max(held[15:]) <= bound * max(held[:15]), held
