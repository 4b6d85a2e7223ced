"""Checkpoint, views and log of different ages: a run goes on only where all of them fit together."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.errors import CheckpointMismatch, SparkError
from millstream.failpoint import armed
from millstream.runtime.run import run
from millstream.runtime.verify import verify
from tests.runtime.shop_file import append_clicks, batches, load, write_shop


def put(folder: Path, copy: Path) -> None:
    """Let a folder, or a file of views, be as its copy is."""
    for old in (folder, folder.with_name(f"{folder.name}-wal"), folder.with_name(f"{folder.name}-shm")):
        shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
    shutil.copytree(copy, folder) if copy.is_dir() else shutil.copy(copy, folder)


def places(folder: Path) -> Iterator[Path]:
    yield folder / "check"
    yield folder / "views.db"


@pytest.mark.timeout(400)
def test_a_run_goes_on_only_where_checkpoint_and_views_fit_together(spark: SparkSession, tmp_path: Path) -> None:
    file = write_shop(tmp_path)
    pipeline = load(file)
    copies = {}
    for at, first in ((1, 0), (4, 100)):
        append_clicks(tmp_path, first, 100 if first == 0 else 150)
        run(pipeline, spark=spark, once=True, rate_limit=50)
        assert batches(pipeline)[-1][0] == at
        for path in places(tmp_path):
            copies[at, path.name] = copy = tmp_path / f"copy-{at}-{path.name}"
            shutil.copytree(path, copy) if path.is_dir() else shutil.copy(path, copy)
    append_clicks(tmp_path, 250, 50)
    check, views = places(tmp_path)
    whole = {view.name: view.arrow() for view in pipeline.views.values()}

    def refused(match: str, hint: str = "--rebuild") -> None:
        with pytest.raises(CheckpointMismatch, match=match) as caught:
            run(pipeline, spark=spark, once=True, rate_limit=50)
        assert hint in caught.value.hint

    put(check, copies[1, "check"])
    refused("the checkpoint .*/check is older than the views: it ends at batch 1, they are at batch 4, 3 later")
    assert {view.name: view.arrow() for view in pipeline.views.values()} == whole
    put(check, copies[4, "check"])

    put(views, copies[1, "views.db"])
    refused(
        "the views in sqlite:.*/views.db are older than the checkpoint: they are at batch 1, it has finished batch 4"
    )
    put(views, copies[4, "views.db"])

    views.unlink()
    refused("check is there, but its views in .*/views.db are gone", f"restore {views}")
    assert not views.exists()
    put(views, copies[4, "views.db"])

    (check / "millstream.json").write_text('{"id": ')
    refused("millstream.json: cannot be read")
    put(check, copies[4, "check"])

    for part in ("offsets", "state"):
        shutil.rmtree(check / part)
        refused(f"{part}.* is gone", "restore")
        put(check, copies[4, "check"])

    (check / "commits" / "4").unlink()  # all that a power cut may take: the batch is planned for good, and comes again
    (check / "commits" / ".4.crc").unlink(missing_ok=True)
    run(pipeline, spark=spark, once=True, rate_limit=50)
    assert [batch for batch, _ in batches(pipeline)] == [0, 1, 2, 3, 4, 5]

    append_clicks(tmp_path, 300, 150)
    with armed("run.before_delivery"), pytest.raises(SparkError):
        run(pipeline, spark=spark, once=True)  # a batch of 150 is planned, and cannot be done
    assert (check / "offsets" / "6").exists()
    run(pipeline, spark=spark, once=True, rate_limit=50)
    assert [batch for batch, _ in batches(pipeline)] == list(range(9))
    assert verify(pipeline, spark=spark).equal

    (check / "millstream.json").write_text("{}")
    run(pipeline, spark=spark, once=True, rebuild=True)
    assert verify(pipeline, spark=spark).equal
