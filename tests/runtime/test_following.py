"""What follows a view, whatever happens: a text index, Delta tables, a cache in Redis, documents, and files that are compacted."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import redis
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from millstream.pipeline import Pipeline
from millstream.runtime.run import run
from millstream.sink.compact import compact_files
from millstream.sink.files import committed_files
from millstream.sink.search_file import search
from millstream.testing import RedisServer
from tests.runtime.shop_file import TEXT, Child, append_clicks, load, write_shop
from tests.sink.opensearch_server import State, opensearch

SINKS = """
told = shop.view("told", clicks.group_by("user").agg(n="count(*)", word="max(concat('page ', page, ' of many'))"))
large = shop.view("large", clicks.where("amount > 20").select("user", "amount"))
shop.sink("index", told, "search:{folder}/told.search.db?columns=word")
shop.sink("lake", told, "delta:{folder}/lake")
shop.sink("added", large, "delta:{folder}/added")
shop.sink("near", told, "REDIS?ttl=1h")
shop.sink("far", told, "opensearch://FAR/told?tls=false")
shop.sink("kept", told, "files:{folder}/kept")
"""


def rows_of(pipeline: Pipeline, view: str = "told") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pipeline.views[view].to_arrow().to_pylist()
    return sorted(found, key=lambda row: tuple(row.values()))


def everywhere(folder: Path, server: RedisServer, state: State) -> dict[str, list[dict[str, Any]]]:
    """What is in each place, in order."""
    files = [row for file in committed_files(folder / "kept") for row in pl.read_parquet(file).to_dicts()]
    newest = {row["user"]: row for row in files}
    with redis.Redis.from_url(server.url) as client:
        cached: list[Any] = [json.loads(client.get(key) or b"") for key in client.scan_iter("millstream:{told}:{*")]
    found = {
        "index": [hit.row for hit in search(folder / "told.search.db", "page", limit=100)],
        "lake": pl.DataFrame(DeltaTable(folder / "lake").to_pyarrow_table()).to_dicts(),
        "near": cached,
        "far": list(state.indexes["told"].documents.values()),
        "kept": [{n: v for n, v in row.items() if n != "_weight"} for row in newest.values() if row["_weight"] == 1],
    }
    return {name: sorted(rows, key=lambda row: row["user"]) for name, rows in found.items()}


@pytest.mark.timeout(900)
@pytest.mark.campaign
def test_every_place_has_what_the_view_has_through_kills_and_a_rebuild(spark: SparkSession, tmp_path: Path) -> None:
    with RedisServer() as server, opensearch() as (place, state):
        file = write_shop(tmp_path, TEXT + SINKS.replace("REDIS", server.url).replace("FAR", place))
        for number, point in enumerate(("sink.after_send:kill@8", "store.before_commit:kill@2")):
            append_clicks(tmp_path, 150 * number, 150)
            child = Child("run", file, "--once", "--rate-limit", 60, failpoint=point)
            try:
                code, _, err = child.wait()
                assert code == -signal.SIGKILL, (point, err)
            finally:
                child.end()
        shop = load(file)
        run(shop, spark=spark, once=True)
        wanted = rows_of(shop)
        assert len(wanted) == 7
        for name, rows in everywhere(tmp_path, server, state).items():
            assert rows == wanted, name
        added = pl.DataFrame(DeltaTable(tmp_path / "added").to_pyarrow_table())
        large = [(row["user"], row["amount"]) for row in rows_of(shop, "large")]
        assert sorted(added.select("user", "amount").rows()) == large
        assert added.select("_topic", "_partition", "_offset").is_unique().all()
        assert compact_files(tmp_path / "kept").left_rows == 7

        text = file.read_text().replace(
            'told = shop.view("told", clicks.', 'told = shop.view("told", clicks.where("user < 3").'
        )
        file.write_text(text.replace('shop.sink("added"', "# "))
        fewer = load(file)
        run(fewer, spark=spark, once=True, rebuild=True)
        assert [row["user"] for row in rows_of(fewer)] == [0, 1, 2]
        for name, rows in everywhere(tmp_path, server, state).items():
            assert rows == rows_of(fewer), name
