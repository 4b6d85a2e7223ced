"""A view as it was: after an earlier batch and at an earlier time, in both kinds of stores."""

from __future__ import annotations

import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millstream.errors import ConfigError, UnknownView
from millstream.pipeline import Pipeline
from millstream.runtime.replay import entries_of
from millstream.runtime.run import Progress, run
from millstream.runtime.time_travel import as_of
from millstream.testing import PostgresServer
from tests.runtime.shop_file import append_clicks, load, write_shop


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_view_is_given_as_it_was(
    kind: str, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    file = write_shop(tmp_path)
    if kind == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        address = f"{server.address}?schema=travel_{uuid.uuid4().hex}"
        file.write_text(file.read_text().replace(f"sqlite:{tmp_path}/views.db", address))
    shop = load(file)
    append_clicks(tmp_path, 0, 200)
    seen: dict[int, dict[str, Any]] = {}

    def look(progress: Progress) -> None:
        assert progress.batch is not None
        seen[progress.batch] = {name: view.to_arrow() for name, view in shop.views.items()}

    run(shop, spark=spark, once=True, rate_limit=60, progress=look)
    assert len(seen) >= 4
    entries = {entry.batch: entry for entry in entries_of(shop, shop.to)}
    for batch, name in ((1, "by_user"), (2, "per_minute")):
        assert seen[batch][name] != seen[max(seen)][name]
        assert as_of(shop, name, batch, spark=spark) == seen[batch][name]
    moment = entries[1].committed_at + timedelta(microseconds=1)
    assert as_of(shop, "per_minute", moment, spark=spark) == seen[1]["per_minute"]
    refuse(shop, spark, entries[0].committed_at - timedelta(seconds=1), r"no batch before .*")
    refuse(shop, spark, 77, "no batch 77")
    with pytest.raises(UnknownView):
        as_of(shop, "nothing", 0, spark=spark)


def refuse(shop: Pipeline, spark: SparkSession, at: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=f"the ledger has {why}") as caught:
        as_of(shop, "by_user", at, spark=spark)
    assert "batches 0 (" in caught.value.hint
