"""Pipelines under real faults: processes killed at every named place and at random, a zombie, two at once, lost folders.

Spark starts slowly, so one log goes through all kills, one after the other, with new records before each, and is compared
at the end with a pipeline over the same log that nothing ever happened to.
"""

from __future__ import annotations

import random
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.errors import AlreadyRunning, CheckpointMismatch, SparkError
from millstream.pipeline import Pipeline
from millstream.runtime.batch import run_batch
from millstream.runtime.run import run
from millstream.runtime.verify import verify
from tests.runtime.shop_file import TEXT, Child, admission, append_clicks, batches, load, write_shop
from tests.waiting import until

DRIVER = [
    "run.before_delivery", "store.before_write", "store.in_transaction", "store.before_commit", "store.after_commit", "run.after_delivery",
]  # fmt: skip
WORKER = ["stage.before_bucket", "stage.after_bucket", "stage.close"]
WORKER_ENDED = "pipeline shop stopped: a Python process of Spark's was killed, or crashed"


def same_as_never_killed(spark: SparkSession, folder: Path, file: Path) -> None:
    """Finish what is left, then compare: with the batch, with an undisturbed run, and the ledger with itself."""
    survivor = load(file)
    run(survivor, spark=spark, once=True)
    calm = folder / "calm.py"
    calm.write_text(file.read_text().replace("/views.db", "/calm.db").replace("/check", "/calm"))
    undisturbed = load(calm)
    run(undisturbed, spark=spark, once=True)
    for view, other in zip(survivor.views.values(), undisturbed.views.values(), strict=True):
        assert view.to_arrow().num_rows > 0
        assert view.to_arrow() == other.to_arrow()
    assert admission(survivor) == admission(undisturbed)
    numbers = [batch for batch, _ in batches(survivor)]
    assert numbers == list(range(len(numbers)))
    fences = [fence for _, fence in batches(survivor)]
    assert fences == sorted(fences)
    verified = verify(survivor, spark=spark)
    assert verified.equal, verified


@contextmanager
def failing_workers(spark: SparkSession, failpoint: str) -> Iterator[None]:
    """Let the Python workers that Spark starts now have a failpoint; ours has none."""
    environment = spark.sparkContext.environment
    environment["MILLSTREAM_FAILPOINT"] = failpoint
    try:
        yield
    finally:
        del environment["MILLSTREAM_FAILPOINT"]


class Clicks:
    """Appends the next hundred, and the next."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.appended = folder, 0

    def more(self) -> None:
        append_clicks(self.folder, self.appended, 100)
        self.appended += 100


@pytest.mark.timeout(900)
def test_a_driver_that_is_killed_anywhere_in_a_delivery_leaves_no_trace(spark: SparkSession, tmp_path: Path) -> None:
    file, clicks = write_shop(tmp_path), Clicks(tmp_path)
    for number, point in enumerate(DRIVER):
        clicks.more()
        child = Child("run", file, "--once", "--rate-limit", 60, failpoint=f"{point}:kill@{1 + number % 2}")
        try:
            code, _, err = child.wait()
            assert code == -signal.SIGKILL, (point, err)
            child.leaves_nothing()
        finally:
            child.end()
    same_as_never_killed(spark, tmp_path, file)


@pytest.mark.timeout(900)
@pytest.mark.campaign
def test_killed_workers_and_kills_at_random_leave_no_trace(spark: SparkSession, tmp_path: Path) -> None:
    file, clicks, chance = write_shop(tmp_path), Clicks(tmp_path), random.Random(5)
    for point in WORKER:
        clicks.more()
        with failing_workers(spark, f"{point}:kill"), pytest.raises(SparkError, match=WORKER_ENDED):
            run(load(file), spark=spark, once=True)
    with failing_workers(spark, f"{WORKER[0]}:kill"), pytest.raises(SparkError, match=WORKER_ENDED):
        run_batch(load(file), spark=spark, out=tmp_path / "batch")
    child = Child("run", file, "--once", failpoint="stage.after_bucket:kill@2")
    try:
        code, _, err = child.wait()
        child.leaves_nothing()
    finally:
        child.end()
    assert code == 1, err
    assert f"error: {WORKER_ENDED}" in err, err
    assert "hint: run it again" in err
    assert "\tat " not in err, err
    for _ in range(3):
        clicks.more()
        child = Child("run", file, "--rate-limit", 50, "--json")
        try:
            assert child.process.stdout is not None
            assert child.process.stdout.readline().startswith("{")  # a batch is done
            threading.Event().wait(chance.random() * 2)  # anywhere in what comes next
            child.kill()
            child.wait()
            child.leaves_nothing()
        finally:
            child.end()
    same_as_never_killed(spark, tmp_path, file)


@pytest.mark.timeout(400)
def test_a_process_that_was_stopped_while_another_took_over_writes_nothing_more(
    spark: SparkSession, tmp_path: Path
) -> None:
    file = write_shop(tmp_path)
    append_clicks(tmp_path, 0, 200)
    pipeline = load(file)
    zombie = Child("run", file, "--rate-limit", 50, failpoint="store.before_write:stop@2")
    try:
        until(lambda: stopped(zombie.pid), timeout=200, what="the stop in the second batch")
        before = batches(pipeline)
        assert [batch for batch, _ in before] == [0]
        with pytest.raises(AlreadyRunning, match=f"process {zombie.pid}"):
            run(pipeline, spark=spark, once=True)
        assert batches(pipeline) == before
        done = run(pipeline, spark=spark, once=True, takeover=True)
        assert done.lag == 0
        after = batches(pipeline)
        assert {fence for batch, fence in after if batch > 0} == {before[0][1] + 1}
        zombie.process.send_signal(signal.SIGCONT)
        code, _, err = zombie.wait()
        assert code == 1, err
        assert "has been taken over" in err
        zombie.leaves_nothing()
    finally:
        zombie.end()
    assert batches(pipeline) == after
    same_as_never_killed(spark, tmp_path, file)


def stopped(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


def test_what_does_not_belong_together_is_refused_and_a_rebuild_helps(spark: SparkSession, tmp_path: Path) -> None:
    file = write_shop(tmp_path)
    append_clicks(tmp_path, 0, 100)
    pipeline = load(file)
    run(pipeline, spark=spark, once=True)
    whole = {view.name: view.to_arrow() for view in pipeline.views.values()}
    ledger = batches(pipeline)
    check, views = tmp_path / "check", tmp_path / "views.db"

    def refused(changed: Pipeline, match: str) -> None:
        with pytest.raises(CheckpointMismatch, match=match) as caught:
            run(changed, spark=spark, once=True)
        assert "--rebuild" in caught.value.hint

    file.write_text(file.read_text().replace('"count(*)", total', '"count(page)", total'))
    refused(load(file), "of another definition")
    file.write_text(TEXT.replace("{folder}", str(tmp_path)))

    aside = tmp_path / "aside"
    check.rename(aside)
    refused(pipeline, "checkpoint .* is gone")
    assert not check.exists()
    check.mkdir()
    refused(pipeline, "checkpoint .* is gone")
    check.rmdir()

    other = load(file)
    shutil.copytree(aside, check)
    kept = views.read_bytes()
    assert not (tmp_path / "views.db-wal").exists() or not (tmp_path / "views.db-wal").stat().st_size
    views.unlink()
    refused(other, "its views in .* are gone")
    views.write_bytes(kept)

    assert batches(pipeline) == ledger
    assert {view.name: view.to_arrow() for view in pipeline.views.values()} == whole
    shutil.rmtree(check)
    run(pipeline, spark=spark, once=True, rebuild=True)
    assert {view.name: view.to_arrow() for view in pipeline.views.values()} == whole
    assert verify(pipeline, spark=spark).equal
