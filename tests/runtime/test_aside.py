"""Batches whose chunks are too large to go through Spark, and are spilled to files."""

from __future__ import annotations

import json
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.event import Event
from millstream.log import open_log
from millstream.runtime.run import run
from millstream.runtime.verify import verify
from millstream.spark import spill
from tests.runtime.shop_file import BEGIN, Child, load, write_shop

TEXT = """
from millstream.pipeline import Pipeline

shop = Pipeline("shop", log="sqlite:{folder}/log.db", to="sqlite:{folder}/views.db", checkpoint="{folder}/check", buckets=2)
clicks = shop.stream("clicks", "user long, text string, at timestamp", time="at", delay="10 seconds")
users = clicks.group_by("user").agg(n="count(*)")
shop.view("last", clicks.top(2, "at DESC", "user"))
shop.view("joined", clicks.join(users, on="user").select("user", "n", "text"), unbounded=True)
"""
COUNT, HALF, USERS = 4000, 2000, 1500


def write_wide(folder: Path) -> Path:
    """A shop, and clicks with much text."""
    file = write_shop(folder, TEXT)
    with open_log(f"sqlite:{folder / 'log.db'}", create=False) as log:
        for low in range(0, COUNT, HALF):
            log.append("clicks", [Event(json.dumps(wide(number)).encode()) for number in range(low, low + HALF)])
            time.sleep(0.002)  # batches are cut by append time, in milliseconds
    return file


def wide(number: int) -> dict[str, object]:
    """The click of a number; no two have the same text or time."""
    return {
        "user": number * 7 % USERS,
        "text": f"{number:06d}" * 50,
        "at": (BEGIN + timedelta(seconds=number)).isoformat(),
    }


def check_views(file: Path) -> None:
    """Compare both views with what the clicks say."""
    shop, clicks = load(file), [wide(number) for number in range(COUNT)]
    texts: dict[object, list[object]] = {}
    for click in clicks:
        texts.setdefault(click["user"], []).append(click["text"])
    last = shop.views["last"].to_arrow().to_pylist()
    assert sorted((row["user"], row["text"]) for row in last) == sorted(
        (user, text) for user, found in texts.items() for text in found[-2:]
    )
    joined = shop.views["joined"].to_arrow().to_pylist()
    assert sorted((row["user"], row["n"], row["text"]) for row in joined) == sorted(
        (user, len(found), text) for user, found in texts.items() for text in found
    )


def test_what_is_laid_aside_reaches_the_views_and_is_removed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, laid = write_wide(tmp_path), []

    def clear(folder: Path) -> None:
        laid.append(len(list(folder.iterdir())))
        real(folder)
        assert not list(folder.iterdir())

    real = spill.clear
    monkeypatch.setattr(spill, "clear", clear)
    run(load(file), spark=spark, once=True, rate_limit=HALF)
    assert len(laid) > 1
    assert all(laid[:2]), laid
    check_views(file)
    assert not list((tmp_path / "check").glob("aside-*"))
    verified = verify(load(file), spark=spark)
    assert verified.equal, verified


@pytest.mark.timeout(300)
def test_what_a_killed_run_laid_aside_is_removed_by_the_next(spark: SparkSession, tmp_path: Path) -> None:
    file = write_wide(tmp_path)
    child = Child("run", file, "--once", failpoint="run.before_delivery:kill")
    try:
        code, _, err = child.wait()
        assert code == -signal.SIGKILL, err
        child.leaves_nothing()
    finally:
        child.end()
    (left,) = (tmp_path / "check").glob("aside-*")
    run(load(file), spark=spark, once=True)
    check_views(file)
    assert not left.exists()
    assert not list((tmp_path / "check").glob("aside-*"))
