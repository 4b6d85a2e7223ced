"""What a power cut may leave: everything that was synced, and any part of what was not, whole, empty or not at all.

Synced are the log and the views with every commit, the identity of the checkpoint, and the offsets of every batch that the views have. The
rest of the checkpoint is Spark's, which syncs nothing. Whatever is left of it, a start goes on to the right views, or is refused.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.errors import CheckpointMismatch, SparkError
from millstream.failpoint import armed
from millstream.runtime.run import run
from tests.runtime.shop_file import append_clicks, batches, load, write_shop
from tests.runtime.test_older import put

Cut = Callable[[Path, random.Random], None]


def unsynced(check: Path, last: int) -> Iterator[Path]:
    """The files of a checkpoint that nobody has synced, where the views are at that batch."""
    synced = {check / "millstream.json", *(check / "offsets" / str(batch) for batch in range(last + 1))}
    yield from sorted(path for path in check.rglob("*") if path.is_file() and path not in synced)


def everything(path: Path, _: random.Random) -> None:
    path.unlink()


def commits(path: Path, _: random.Random) -> None:
    if path.parent.name == "commits":
        path.unlink()


def newest_commit(path: Path, _: random.Random) -> None:
    if path.parent.name == "commits" and path.name in ("3", ".3.crc"):
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
    spark: SparkSession, tmp_path: Path
) -> None:
    file = write_shop(tmp_path)
    pipeline, check, views = load(file), tmp_path / "check", tmp_path / "views.db"
    append_clicks(tmp_path, 0, 150)
    run(pipeline, spark=spark, once=True, rate_limit=50)
    append_clicks(tmp_path, 150, 100)
    with armed("sink.before_commit"), pytest.raises(SparkError):
        run(pipeline, spark=spark, once=True, rate_limit=50)
    shutil.copytree(check, tmp_path / "planned")
    shutil.copy(views, tmp_path / "planned.db")
    assert batches(pipeline)[-1][0] == 2
    with armed("sink.after_commit"), pytest.raises(SparkError):
        run(pipeline, spark=spark, once=True, rate_limit=50)
    shutil.copytree(check, tmp_path / "written")
    shutil.copy(views, tmp_path / "written.db")
    assert batches(pipeline)[-1][0] == 3
    run(pipeline, spark=spark, once=True, rate_limit=50)
    right = {name: view.arrow() for name, view in pipeline.views.items()}

    outcomes: dict[tuple[str, str, int], str] = {}
    cuts: list[tuple[str, Cut, int]] = [
        ("planned", newest_commit, 0), ("planned", everything, 0), ("planned", some, 1),
        ("written", newest_commit, 0), ("written", commits, 0), ("written", newest_state, 0), ("written", empty_state, 0),
        ("written", everything, 0), ("written", some, 1), ("written", some, 2),
    ]  # fmt: skip
    for point, cut, seed in cuts:
        put(check, tmp_path / point)
        put(views, tmp_path / f"{point}.db")
        chance = random.Random(seed)
        for path in unsynced(check, batches(pipeline)[-1][0]):
            cut(path, chance)
        try:
            run(pipeline, spark=spark, once=True, rate_limit=50)
        except CheckpointMismatch as error:
            outcomes[point, cut.__name__, seed] = error.hint
        else:
            outcomes[point, cut.__name__, seed] = "right"
            assert {name: view.arrow() for name, view in pipeline.views.items()} == right, (point, cut, seed)
    assert all(outcome == "right" or "--rebuild" in outcome for outcome in outcomes.values())
    assert outcomes["planned", "newest_commit", 0] == outcomes["written", "newest_commit", 0] == "right"
    assert outcomes["written", "newest_state", 0] != "right"  # which batch 3 begins with
