"""A changed pipeline is built beside the one that people read, takes its place, and gives it back; sinks get the difference."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.errors import AlreadyRunning, CheckpointMismatch, PipelineError
from millstream.failpoint import armed
from millstream.pipeline import Pipeline
from millstream.runtime.rebuild import rebuild, roll_back
from millstream.runtime.run import Progress, run
from millstream.runtime.verify import verify
from millstream.store import open_reader, open_writer
from tests.runtime.shop_file import TEXT, append_clicks, load, write_shop
from tests.runtime.test_sinks import changelog, newest

SINK = 'shop.sink("out", shop.views["by_user"], "topic:out")\n'
CHANGED = TEXT.replace('clicks.group_by("user")', 'clicks.where("user < 5").group_by("user")')
MORE = 'shop.view("pages", clicks.group_by("page").agg(n="count(*)"))\n'


def rows(pipeline: Pipeline, view: str) -> list[dict[str, object]]:
    with open_reader(pipeline.to) as store:
        found: list[dict[str, object]] = store.table(view).to_pylist()
        return found


def right(pipeline: Pipeline, spark: SparkSession) -> None:
    verified = verify(pipeline, spark=spark)
    assert verified.equal, verified


def test_a_changed_pipeline_is_built_beside_and_exchanged_and_rolled_back(spark: SparkSession, tmp_path: Path) -> None:
    file = write_shop(tmp_path, TEXT + SINK)
    append_clicks(tmp_path, 0, 150)
    first = load(file)
    run(first, spark=spark, once=True)
    before = rows(first, "by_user")
    assert len(before) == 7

    file.write_text((CHANGED + MORE + SINK).replace("{folder}", str(tmp_path)))
    changed = load(file)
    with pytest.raises(CheckpointMismatch, match="of another definition"):
        run(changed, spark=spark, once=True)
    append_clicks(tmp_path, 150, 50)
    seen: list[list[dict[str, object]]] = []

    def look(_: Progress) -> None:
        seen.append(rows(first, "by_user"))

    rebuild(changed, spark=spark, rate_limit=60, progress=look)
    assert len(seen) >= 3
    assert all(each == before for each in seen)  # people read the old version until the exchange
    assert [row["user"] for row in rows(changed, "by_user")] == [0, 1, 2, 3, 4]
    assert rows(changed, "by_user~old") == before
    assert len(rows(changed, "pages")) == 3
    right(changed, spark)
    assert newest(changelog(tmp_path)) == before  # nothing is sent by who builds
    append_clicks(tmp_path, 200, 50)
    run(changed, spark=spark, once=True)
    right(changed, spark)
    assert newest(changelog(tmp_path)) == rows(changed, "by_user")

    file.write_text((TEXT + SINK).replace("{folder}", str(tmp_path)))
    again = load(file)
    roll_back(again)
    assert rows(again, "by_user") == before
    assert [row["user"] for row in rows(again, "by_user~next")] == [0, 1, 2, 3, 4]
    run(again, spark=spark, once=True)
    right(again, spark)
    assert len(rows(again, "by_user")) == 7
    assert newest(changelog(tmp_path)) == rows(again, "by_user")
    with pytest.raises(PipelineError, match="there is no version shop~old"):
        roll_back(again)


@pytest.mark.parametrize("place", ["store.in_swap", "rebuild.after_swap"])
def test_an_exchange_that_is_cut_short_is_finished_or_has_not_happened(
    place: str, spark: SparkSession, tmp_path: Path
) -> None:
    file = write_shop(tmp_path)
    append_clicks(tmp_path, 0, 100)
    run(load(file), spark=spark, once=True)
    file.write_text(CHANGED.replace("{folder}", str(tmp_path)))
    changed = load(file)
    with armed(place), pytest.raises(RuntimeError, match="failpoint"):
        rebuild(changed, spark=spark)
    if place == "store.in_swap":
        assert len(rows(changed, "by_user")) == 7
        rebuild(changed, spark=spark)
    run(changed, spark=spark, once=True)
    assert [row["user"] for row in rows(changed, "by_user")] == [0, 1, 2, 3, 4]
    right(changed, spark)


def test_a_version_that_is_ready_waits_for_the_old_one_to_end(spark: SparkSession, tmp_path: Path) -> None:
    file = write_shop(tmp_path)
    append_clicks(tmp_path, 0, 100)
    run(load(file), spark=spark, once=True)
    file.write_text(CHANGED.replace("{folder}", str(tmp_path)))
    changed = load(file)
    with open_writer(changed.to) as running:
        running.claim("shop")
        with pytest.raises(AlreadyRunning):
            rebuild(changed, spark=spark)
        assert len(rows(changed, "by_user")) == 7
        rebuild(changed, spark=spark, takeover=True)
    assert len(rows(changed, "by_user")) == 5
