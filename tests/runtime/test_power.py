"""What a power cut may leave: everything that was synced, and any part of what was not, whole, empty or not at all.

SQLite syncs the log and the views with every commit. What this process syncs of the checkpoint is watched; Spark's JVM syncs nothing.
Whatever is left of it, a start goes on to the right views, or is refused.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.errors import CheckpointMismatch, SparkError
from millstream.failpoint import armed
from millstream.runtime.run import run
from tests.runtime.shop_file import append_clicks, batches, load, write_shop
from tests.runtime.test_older import put

Cut = Callable[[Path, random.Random], None]


class Synced:
    """What this process has synced: files as they were then, and the names that folders had then."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._files: dict[int, int] = {}
        self._names: set[tuple[int, str, int]] = set()
        self._fsync = os.fsync
        patch.setattr(os, "fsync", self)

    def __call__(self, handle: int) -> None:
        self._fsync(handle)
        path, found = Path(os.readlink(f"/proc/self/fd/{handle}")), os.fstat(handle)
        if path.is_dir():
            self._names |= {(found.st_ino, each.name, each.lstat().st_ino) for each in path.iterdir()}
        else:
            self._files[found.st_ino] = found.st_mtime_ns

    def has(self, path: Path) -> bool:
        """Whether a file has survived for sure, with what it holds and under its name."""
        found = path.stat()
        same = self._files.get(found.st_ino) == found.st_mtime_ns
        return same and (path.parent.stat().st_ino, path.name, found.st_ino) in self._names

    def lacks(self, check: Path) -> list[str]:
        """The files of a checkpoint of which that is not so."""
        files = sorted(path for path in check.rglob("*") if path.is_file())
        return [str(path.relative_to(check)) for path in files if not self.has(path)]


def everything(path: Path, _: random.Random) -> None:
    path.unlink()


def commits(path: Path, _: random.Random) -> None:
    if path.parent.name == "commits":
        path.unlink()


def newest_batch(path: Path, _: random.Random) -> None:
    if path.parent.name in ("commits", "offsets") and path.name in ("3", ".3.crc"):
        path.unlink()


def newest_state(path: Path, _: random.Random) -> None:
    if path.name.startswith(("3_", ".3_", "4_", ".4_")):
        path.unlink()


def empty_state(path: Path, _: random.Random) -> None:
    if "state" in path.parts:
        path.write_bytes(b"")


def some(path: Path, chance: random.Random) -> None:
    if chance.random() < 0.3:
        path.unlink()
    elif chance.random() < 0.3:
        path.write_bytes(b"")


@pytest.mark.timeout(600)
def test_a_power_cut_at_any_point_of_a_batch_leaves_the_right_views_or_a_refusal(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, unsynced = Synced(monkeypatch), {}
    file = write_shop(tmp_path)
    pipeline, check, views = load(file), tmp_path / "check", tmp_path / "views.db"
    append_clicks(tmp_path, 0, 150)
    run(pipeline, spark=spark, once=True, rate_limit=50)
    append_clicks(tmp_path, 150, 100)
    with armed("store.before_commit"), pytest.raises(SparkError):
        run(pipeline, spark=spark, once=True, rate_limit=50)
    unsynced["planned"] = synced.lacks(check)
    shutil.copytree(check, tmp_path / "planned")
    shutil.copy(views, tmp_path / "planned.db")
    assert batches(pipeline)[-1][0] == 2
    with armed("store.after_commit"), pytest.raises(SparkError):
        run(pipeline, spark=spark, once=True, rate_limit=50)
    unsynced["written"] = synced.lacks(check)
    shutil.copytree(check, tmp_path / "written")
    shutil.copy(views, tmp_path / "written.db")
    assert batches(pipeline)[-1][0] == 3
    run(pipeline, spark=spark, once=True, rate_limit=50)
    right = {name: view.to_arrow() for name, view in pipeline.views.items()}

    outcomes: dict[tuple[str, str, int], str] = {}
    cuts: list[tuple[str, Cut, int]] = [
        ("planned", newest_batch, 0), ("planned", everything, 0), ("planned", some, 1),
        ("written", newest_batch, 0), ("written", commits, 0), ("written", newest_state, 0), ("written", empty_state, 0),
        ("written", everything, 0), ("written", some, 1), ("written", some, 2),
    ]  # fmt: skip
    for point, cut, seed in cuts:
        put(check, tmp_path / point)
        put(views, tmp_path / f"{point}.db")
        chance = random.Random(seed)
        for path in unsynced[point]:
            cut(check / path, chance)
        try:
            run(pipeline, spark=spark, once=True, rate_limit=50)
        except CheckpointMismatch as error:
            outcomes[point, cut.__name__, seed] = error.hint
        else:
            outcomes[point, cut.__name__, seed] = "right"
            assert {name: view.to_arrow() for name, view in pipeline.views.items()} == right, (point, cut, seed)
    assert all(outcome == "right" or "--rebuild" in outcome for outcome in outcomes.values())
    assert outcomes["planned", "newest_batch", 0] == outcomes["written", "newest_batch", 0] == "right"
    assert outcomes["written", "newest_state", 0] != "right"  # which batch 3 begins with
