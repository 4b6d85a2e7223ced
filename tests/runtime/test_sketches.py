"""Approximate aggregates on Spark: streamed in several batches, with a restart in between, beside exact ones over the same rows."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from millstream import Pipeline
from millstream.event import Event
from millstream.log import open_log
from millstream.runtime.run import Progress, run
from millstream.runtime.verify import verify
from millstream.window import session, tumbling

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def test_sketches_go_on_from_a_checkpoint_and_stay_near_the_exact_answer(spark: SparkSession, tmp_path: Path) -> None:
    shop = Pipeline(
        "sketches",
        log=f"sqlite:{tmp_path / 'log.db'}",
        to=f"sqlite:{tmp_path / 'views.db'}",
        checkpoint=str(tmp_path / "checkpoint"),
        buckets=2,
    )
    calls = shop.stream("calls", "page string, user long, ms double, at timestamp", time="at", delay="10 seconds")
    slow = {"p": "approx_percentile(ms, 0.9)", "low": "percentile(ms, 0.88)", "high": "percentile(ms, 0.92)"}
    who = {"n": "approx_count_distinct(user)", "exact": "count(DISTINCT user)"}
    shop.view("slow", calls.group_by("page", tumbling("at", "2 minutes")).agg(**slow), emit="final")
    shop.view("who", calls.group_by("page").agg(**who))
    shop.view("visits", calls.group_by("page", session("at", "30 seconds")).agg(**who))
    chance, progress = random.Random(5), list[Progress]()
    with open_log(shop.log, create=True) as log:
        log.create_topic("calls", 2)
        for minute in range(4):
            events = []
            for _ in range(3_000):
                at = BEGIN + timedelta(minutes=minute, seconds=chance.uniform(0, 60))
                call = {"page": chance.choice("ab"), "user": chance.randrange(2_000), "ms": chance.lognormvariate(3, 1)}
                events.append(
                    Event(json.dumps({**call, "at": at.isoformat()}).encode(), key=str(call["page"]).encode())
                )
            events.sort(key=lambda event: json.loads(event.value or b"{}")["at"])
            for first in range(0, len(events), 500):
                log.append("calls", events[first : first + 500])
            if minute % 2:
                last = minute == 3
                run(shop, spark=spark, once=True, close=last, rate_limit=2_000, progress=progress.append)
    assert len(progress) >= 6
    views = {name: view.to_polars() for name, view in shop.views.items()}
    assert views["slow"].height == 4
    assert (views["slow"]["low"] < views["slow"]["p"]).all()
    assert (views["slow"]["p"] < views["slow"]["high"]).all()
    for name in ("who", "visits"):
        assert views[name].height == 2
        assert ((views[name]["n"] - views[name]["exact"]).abs() <= views[name]["exact"] * 0.05).all()
    checked = {view.view: view.equal for view in verify(shop, spark=spark).views}
    assert (checked["who"], checked["visits"]) == (True, True), "distinct values are the same, wherever batches end"
