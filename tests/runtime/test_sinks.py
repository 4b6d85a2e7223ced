"""Views sent on: to a topic, to files, to a function; once each, in order, through kills, rebuilds and sinks that are away."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

from millstream.errors import CheckpointMismatch, RowRefused
from millstream.log import open_log
from millstream.log.lag import group_lag
from millstream.pipeline import Pipeline
from millstream.runtime.offset_log import newest_planned
from millstream.runtime.run import Progress, run
from millstream.sink.files import committed_files
from millstream.sink.function import Change, RejectChange
from millstream.store import open_reader
from tests.runtime.shop_file import TEXT, append_clicks, kill_around_sends, load, write_shop

SINKS = 'shop.sink("out", shop.views["by_user"], "topic:out")\nshop.sink("kept", shop.views["by_user"], "files:{folder}/kept")\n'


def changelog(folder: Path, topic: str = "out") -> dict[int, list[dict[str, Any] | None]]:
    """What a topic says of each key, in order."""
    found: dict[int, list[dict[str, Any] | None]] = {}
    with open_log(f"sqlite:{folder / 'log.db'}") as log:
        for partition, bound in log.bounds(topic).items():
            for record in log.read(topic, partition, 0, bound.end):
                row = None if record.value is None else json.loads(record.value)
                found.setdefault(json.loads(record.key or b"")["user"], []).append(row)
    return found


def newest(changes: dict[int, list[dict[str, Any] | None]]) -> list[dict[str, Any]]:
    return [row for _, rows in sorted(changes.items()) if (row := rows[-1]) is not None]


def held(pipeline: Pipeline) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pipeline.views["by_user"].to_arrow().to_pylist()
    return rows


def in_files(folder: Path) -> list[dict[str, Any]]:
    changes = [row for file in committed_files(folder) for row in pl.read_parquet(file).to_dicts()]
    rows = {row["user"]: row for row in changes}
    return [{n: v for n, v in row.items() if n != "_weight"} for _, row in sorted(rows.items()) if row["_weight"] == 1]


def grows(changes: dict[int, list[dict[str, Any] | None]]) -> bool:
    """Whether every change of a key has a higher count than the one before: none twice, none out of order."""
    counts = [[row["n"] for row in rows if row is not None] for rows in changes.values()]
    return all(rows == sorted(set(rows)) for rows in counts)


def test_a_view_goes_to_several_sinks_and_a_new_one_gets_what_is_there(spark: SparkSession, tmp_path: Path) -> None:
    file = write_shop(tmp_path, TEXT + SINKS)
    append_clicks(tmp_path, 0, 200)
    run(load(file), spark=spark, once=True, rate_limit=70)
    assert newest(changelog(tmp_path)) == held(load(file)) == in_files(tmp_path / "kept")
    assert grows(changelog(tmp_path))
    assert max(len(rows) for rows in changelog(tmp_path).values()) > 1

    got: list[Change] = []
    pipeline = load(file)
    pipeline.sink("called", pipeline.views["by_user"], got.extend)
    run(pipeline, spark=spark, once=True)
    assert [change.row for change in got] == held(pipeline)
    append_clicks(tmp_path, 200, 50)
    run(pipeline, spark=spark, once=True)
    assert len({change.id for change in got}) == len(got) > 7
    assert sorted(({c.row["user"]: c.row for c in got}).values(), key=lambda row: row["user"]) == held(pipeline)
    assert newest(changelog(tmp_path)) == held(pipeline) == in_files(tmp_path / "kept")

    # Computed anew, by a definition that has fewer rows: what is gone must go from the sinks as well.
    file.write_text(file.read_text().replace('clicks.group_by("user")', 'clicks.where("user < 3").group_by("user")'))
    changed = load(file)
    with pytest.raises(CheckpointMismatch):
        run(changed, spark=spark, once=True)
    run(changed, spark=spark, once=True, rebuild=True)
    assert [row["user"] for row in held(changed)] == [0, 1, 2]
    assert newest(changelog(tmp_path)) == held(changed) == in_files(tmp_path / "kept")


@pytest.mark.timeout(900)
def test_a_process_that_is_killed_around_a_send_sends_nothing_twice(spark: SparkSession, tmp_path: Path) -> None:
    file = write_shop(tmp_path, TEXT + SINKS)
    kill_around_sends(file, tmp_path)
    run(load(file), spark=spark, once=True)
    assert newest(changelog(tmp_path)) == held(load(file)) == in_files(tmp_path / "kept")
    assert grows(changelog(tmp_path))


def test_a_sink_that_is_away_is_waited_for_and_seen_and_a_refused_row_becomes_a_letter(
    spark: SparkSession, tmp_path: Path
) -> None:
    file = write_shop(tmp_path)
    append_clicks(tmp_path, 0, 100)
    got: list[Change] = []
    failures = iter([OSError("no route"), TimeoutError("no answer")])

    def picky(changes: Sequence[Change]) -> None:
        for failure in failures:
            raise failure
        for change in changes:
            if change.row["user"] == 3:
                raise RejectChange(change, "not this one")
        got.extend(changes)

    def pipeline(refused: Any) -> Pipeline:
        found = load(file)
        found.sink("picky", found.views["by_user"], picky, refused=refused)
        return found

    with pytest.raises(RowRefused, match=r"sink picky to picky\(\): 1 refused, the first \(user=3.*not this one"):
        run(pipeline("stop"), spark=spark, once=True)
    failures = iter([OSError("no route"), TimeoutError("no answer")])
    seen: list[Progress] = []
    run(pipeline("dead_letter"), spark=spark, once=True, progress=seen.append)
    assert [each.waiting.partition("; next")[0] for each in seen if each.waiting] == [
        "batch 0, which stays as it was planned, whatever the limits are now: sink picky gets batches at least once, so nobody"
        " knows what it has of it",
        "sink picky: picky(): OSError: no route", "sink picky: picky(): TimeoutError: no answer",
    ]  # fmt: skip
    assert seen[-1].waiting == ""
    assert sorted({change.row["user"] for change in got}) == [0, 1, 2, 4, 5, 6]
    with open_reader(load(file).to) as store:
        letters = store.dead_letters("shop", reason="refused").to_pylist()
    assert [(row["topic"], row["offset"]) for row in letters] == [("sink picky", 0)]
    assert "user=3" in letters[0]["detail"]
    assert "not this one" in letters[0]["detail"]


def test_a_slow_sink_holds_up_one_batch_at_a_time_and_the_lag_is_shown_until_it_has_caught_up(
    spark: SparkSession, tmp_path: Path
) -> None:
    file = write_shop(tmp_path)
    append_clicks(tmp_path, 0, 50)
    got: list[Change] = []
    planned: list[int | None] = []
    unread: list[int] = []
    seen: list[Progress] = []
    stop = threading.Event()

    def slow(changes: Sequence[Change]) -> None:
        call = len(planned)
        if call < 3:  # while it works, twice as much comes as a batch may have
            append_clicks(tmp_path, 50 + 100 * call, 100)
        planned.append(newest_planned(tmp_path / "check"))
        with open_log(f"sqlite:{tmp_path / 'log.db'}") as log:
            unread.append(sum(each.records for each in group_lag(log, groups=["shop"])))
        got.extend(changes)

    def watch(progress: Progress) -> None:
        seen.append(progress)
        if progress.lag == 0:
            stop.set()

    pipeline = load(file)
    pipeline.sink("slow", pipeline.views["by_user"], slow)
    run(pipeline, spark=spark, rate_limit=50, heartbeats=False, progress=watch, stop=stop)
    assert [(each.batch, each.records, each.lag) for each in seen] == [
        (0, 50, 100), (1, 100, 150), (2, 150, 200), (3, 200, 150), (4, 250, 100), (5, 300, 50), (6, 350, 0),
    ]  # fmt: skip
    assert planned == list(range(7))  # nothing is begun while a batch waits
    assert unread[2] > unread[1] > unread[6]  # what `millstream lag` says meanwhile
    assert [({c.row["user"]: c.row for c in got})[row["user"]] for row in held(pipeline)] == held(pipeline)


def test_at_most_once_never_sends_again(spark: SparkSession, tmp_path: Path) -> None:
    file = write_shop(tmp_path)
    append_clicks(tmp_path, 0, 100)
    calls: list[int] = []

    def broken(changes: Sequence[Change]) -> None:
        calls.append(len(changes))
        raise OSError("no route")

    pipeline = load(file)
    pipeline.sink("once", pipeline.views["by_user"], broken, mode="at_most_once", refused="dead_letter")
    run(pipeline, spark=spark, once=True)
    assert calls == [7]
    with open_reader(pipeline.to) as store:
        letters = store.dead_letters("shop", reason="refused").to_pylist()
    assert ["not sent: broken(): OSError: no route" in row["detail"] for row in letters] == [True]
