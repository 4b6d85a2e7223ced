"""Views that are kept nowhere: their sinks get every change once, the ledger goes on, and whoever wants rows is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from millstream.cli import cli
from millstream.errors import CheckpointMismatch, ConfigError, MillstreamError, PipelineError, UnknownView
from millstream.kernel.exchange.chunk import Chunk, Kind
from millstream.pipeline import Pipeline
from millstream.runtime import delivery
from millstream.runtime.batch import run_batch
from millstream.runtime.diff import change_of
from millstream.runtime.rebuild import rebuild, roll_back
from millstream.runtime.run import run
from millstream.runtime.time_travel import as_of
from millstream.runtime.verify import verify
from millstream.sink.function import Change
from millstream.store import open_reader
from tests.runtime.shop_file import TEXT, append_clicks, batches, kill_around_sends, load, write_shop
from tests.runtime.test_sinks import SINKS, changelog, grows, in_files, newest

NOWHERE = TEXT.replace('best="max(amount)"))', 'best="max(amount)"), to="nowhere")')
UNSEEN = 'shop.view("unseen", clicks.select("user", "page"), to="nowhere")\n'


def right(pipeline: Pipeline, spark: SparkSession, folder: Path) -> list[dict[str, Any]]:
    """The rows of ``by_user``, by a batch over all of the log."""
    rows: list[dict[str, Any]] = run_batch(pipeline, spark=spark, out=folder).views["by_user"].to_pylist()
    return rows


def test_only_changes_go_to_sinks_and_nothing_is_stored(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived: list[Chunk] = []
    collect = delivery.chunks_of

    def seen(frame: Any) -> list[Chunk]:
        arrived.extend(chunks := collect(frame))
        return chunks

    monkeypatch.setattr(delivery, "chunks_of", seen)
    file = write_shop(tmp_path, NOWHERE + UNSEEN + SINKS)
    append_clicks(tmp_path, 0, 200)
    pipeline = load(file)
    run(pipeline, spark=spark, once=True, rate_limit=70)
    assert len(batches(pipeline)) > 1
    rows = right(pipeline, spark, tmp_path / "all")
    assert len(rows) == 7
    assert newest(changelog(tmp_path)) == rows == in_files(tmp_path / "kept")
    assert grows(changelog(tmp_path))
    with open_reader(pipeline.to) as store:
        assert [each.name for each in store.views()] == ["per_minute"]
        assert store.dead_letters("shop", reason="malformed").num_rows == 4
    # Nobody gets the rows of one of them, so they stay in the workers.
    numbers = {chunk.target for chunk in arrived if chunk.kind == Kind.CHANGES}
    assert len(numbers) == 2

    verified = verify(pipeline, spark=spark)
    assert verified.equal
    assert [each.view for each in verified.views] == ["per_minute", "millstream_admission"]
    assert verified.skipped == ("by_user", "unseen")
    reads: tuple[Callable[[], object], ...] = (
        pipeline.views["by_user"].to_arrow,
        lambda: as_of(pipeline, "by_user", 0, spark=spark),
    )
    for read in reads:
        with pytest.raises(UnknownView, match="by_user of pipeline shop is kept nowhere") as error:
            read()
        assert "--batch --out DIR" in str(error.value.hint)

    listed = json.loads(CliRunner().invoke(cli, ["views", "list", "--views", str(file), "--json"]).stdout)
    assert [(each["name"], each["store"]) for each in listed] == [
        ("per_minute", pipeline.to), ("by_user", "nowhere"), ("unseen", "nowhere"),
    ]  # fmt: skip
    shown = CliRunner().invoke(cli, ["views", "show", "by_user", "--views", str(file)])
    assert isinstance(shown.exception, MillstreamError | SystemExit)
    assert "is kept nowhere" in shown.output + str(shown.exception)
    assert change_of(pipeline).nowhere == ("by_user", "unseen")
    assert not change_of(pipeline).rebuild

    # What a sink that comes now has missed nobody knows; and whoever would keep the view needs what was before.
    got: list[Change] = []
    pipeline.sink("late", pipeline.views["by_user"], got.extend)
    with pytest.raises(CheckpointMismatch, match=r"sink late: it is new.*by_user is kept nowhere") as refused:
        run(pipeline, spark=spark, once=True)
    assert "--rebuild" in str(refused.value.hint)
    file.write_text(file.read_text().replace(', to="nowhere"', ""))
    with pytest.raises(CheckpointMismatch):
        run(load(file), spark=spark, once=True)
    assert got == []


def test_sinks_that_hold_what_nobody_knows_are_not_told_another_story(spark: SparkSession, tmp_path: Path) -> None:
    file = write_shop(tmp_path, NOWHERE + SINKS)
    append_clicks(tmp_path, 0, 100)
    run(load(file), spark=spark, once=True)
    for anew in (rebuild, roll_back):
        with pytest.raises(PipelineError, match="by_user is kept nowhere, so it has no versions"):
            anew(load(file))
    before = changelog(tmp_path), in_files(tmp_path / "kept")
    with pytest.raises(PipelineError, match="which rows of view by_user it has is not known") as error:
        run(load(file), spark=spark, once=True, rebuild=True)
    assert "another name" in str(error.value.hint)
    assert (changelog(tmp_path), in_files(tmp_path / "kept")) == before
    whole = file.read_text()
    file.write_text(
        whole.replace(', to="nowhere"', "")
    )  # to be kept from now on: what is in the sinks is as little known
    with pytest.raises(PipelineError, match="which rows of view by_user it has is not known"):
        run(load(file), spark=spark, once=True, rebuild=True)
    file.write_text(whole)
    run(load(file), spark=spark, once=True)  # nothing was forgotten
    assert (changelog(tmp_path), in_files(tmp_path / "kept")) == before

    # With sinks that begin anew there is nothing to be told.
    text = file.read_text().replace('"out"', '"more"').replace("topic:out", "topic:more").replace('"kept"', '"again"')
    file.write_text(text.replace("/kept", "/again"))
    append_clicks(tmp_path, 100, 50)
    run(load(file), spark=spark, once=True, rebuild=True)
    rows = right(load(file), spark, tmp_path / "all")
    assert newest(changelog(tmp_path, "more")) == rows == in_files(tmp_path / "again")


def test_a_view_that_was_kept_is_cleared_from_sinks_before_it_is_kept_nowhere(
    spark: SparkSession, tmp_path: Path
) -> None:
    file = write_shop(tmp_path, TEXT + SINKS)
    append_clicks(tmp_path, 0, 100)
    run(load(file), spark=spark, once=True)
    changed = NOWHERE.replace('clicks.group_by("user")', 'clicks.where("user < 3").group_by("user")') + SINKS
    file.write_text(changed.replace("{folder}", str(tmp_path)))
    run(load(file), spark=spark, once=True, rebuild=True)
    assert [row["user"] for row in newest(changelog(tmp_path))] == [0, 1, 2]
    assert [row["user"] for row in in_files(tmp_path / "kept")] == [0, 1, 2]
    with open_reader(load(file).to) as store:
        assert [each.name for each in store.views()] == ["per_minute"]


def test_a_batch_leaves_them_out_unless_it_is_told_where_to(spark: SparkSession, tmp_path: Path) -> None:
    file = write_shop(tmp_path, NOWHERE)
    append_clicks(tmp_path, 0, 100)
    assert list(run_batch(load(file), spark=spark).views) == ["per_minute"]
    with open_reader(load(file).to) as store:
        assert [each.name for each in store.views()] == ["per_minute"]
    other = f"sqlite:{tmp_path}/other.db"
    assert list(run_batch(load(file), spark=spark, to=other).views) == ["per_minute", "by_user"]
    with open_reader(other) as store:
        assert store.table("by_user").num_rows == 7
    none = load(file)
    del none.views["per_minute"]
    with pytest.raises(ConfigError, match="all its views are kept nowhere"):
        run_batch(none, spark=spark)


@pytest.mark.timeout(900)
@pytest.mark.campaign
def test_a_process_that_is_killed_sends_nothing_twice_and_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    file = write_shop(tmp_path, NOWHERE + SINKS)
    kill_around_sends(file, tmp_path)
    run(load(file), spark=spark, once=True)
    rows = right(load(file), spark, tmp_path / "all")
    assert newest(changelog(tmp_path)) == rows == in_files(tmp_path / "kept")
    assert grows(changelog(tmp_path))
