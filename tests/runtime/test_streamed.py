"""Streamed = batch = replayed = computed by hand: random pipelines over random records, in several micro-batches, on Spark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.runtime.run import Progress, run
from millstream.runtime.verify import verify
from millstream.store import open_reader
from tests.runtime.random_shop import Shop, Supply, expected, stored

COUNTED = ("admitted", "late", "duplicate", "future", "malformed")


def fates(pipeline: Pipeline) -> dict[tuple[str, int], Counter[str]]:
    """What the views' store says of each partition, after checking that every batch adds up."""
    with open_reader(pipeline.to) as store:
        names, rows = store.query(f"SELECT * FROM millstream_admission WHERE pipeline = '{pipeline.name}'")
    found: dict[tuple[str, int], Counter[str]] = {}
    for row in (dict(zip(names, row, strict=True)) for row in rows):
        assert row["records"] == sum(row[name] for name in COUNTED), row
        counted = Counter({name: row[name] for name in COUNTED} | {"heartbeat": row["heartbeats"]})
        found.setdefault((row["topic"], row["partition"]), Counter()).update(counted)
    return {place: +count for place, count in found.items() if +count}


@pytest.mark.parametrize("seed", [3, 1, 5])
def test_streamed_equals_batch_equals_replayed_equals_what_python_says(
    seed: int, spark: SparkSession, tmp_path: Path
) -> None:
    shop, supply = Shop(seed), Supply(seed)
    url = f"sqlite:{tmp_path / 'log.db'}"
    streamed = shop.pipeline("streamed", tmp_path, url)
    seen: list[Progress] = []
    with open_log(url, create=True) as log:
        for topic in ("clicks", "notes", "users"):
            log.create_topic(topic, shop.partitions)
        for part in range(2):
            for _ in range(6):
                log.append("clicks", supply.clicks(25))
                log.append("notes", supply.notes(4))
                log.append("users", supply.users(6))
            run(streamed, spark=spark, once=True, rate_limit=90 if part else None, progress=seen.append)
            views, counts = expected(shop, streamed, log)
            assert stored(streamed) == views
            assert fates(streamed) == counts
        assert len(seen) >= 4
        assert seen[-1].lag == 0
        run(streamed, spark=spark, once=True, close=True)
        views, counts = expected(shop, streamed, log)
        assert stored(streamed) == views
        assert fates(streamed) == counts
        assert {verdict for count in counts.values() for verdict in count} >= set(COUNTED)
        held = sum(
            bound.end - bound.start for topic in ("clicks", "notes", "users") for bound in log.bounds(topic).values()
        )
        assert sum(count.total() for count in counts.values()) == held

        verified = verify(streamed, spark=spark)
        assert verified.equal, verified
        assert verified.records == sum(count.total() - count["heartbeat"] for count in counts.values())

        replayed = shop.pipeline("replayed", tmp_path, url)
        run(replayed, spark=spark, once=True, close=True)
        assert stored(replayed) == stored(streamed)
