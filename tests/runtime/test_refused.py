"""Rows that the store of a view cannot hold: the run stops, or they become dead letters and all else goes on as if they were not."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millstream.cli import execute
from millstream.errors import PipelineError
from millstream.event import Event
from millstream.failpoint import armed
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.relation.nodes import Policy
from millstream.runtime.batch import run_batch
from millstream.runtime.rebuild import rebuild
from millstream.runtime.run import run
from millstream.runtime.time_travel import as_of
from millstream.runtime.verify import verify
from millstream.sink.function import Change
from millstream.store import open_reader
from millstream.testing import PostgresServer

BATCHES = [
    [("ann", "home", 1), ("bob", "home", 2), ("eve", "a\0", 3)],
    [("ann", "shop\0", 4), ("bob", "shop", 5), ("cat", "a\0", 6)],
    [("ann", "till", 7), ("bob", "\0", 8), ("eve", "b\0", 9)],
]
"""User, page and the order of their clicks."""


def shop(folder: Path, to: str, refused: Policy) -> Pipeline:
    made = Pipeline("shop", log=f"sqlite:{folder / 'log.db'}", to=to, checkpoint=str(folder / "checkpoint"), buckets=2)
    clicks = made.stream("clicks", "user string, page string, n long, at timestamp", time="at", late="route")
    newest = clicks.group_by("user").agg(page="last(page, n)", n="max(n)")
    made.view("newest", newest, refused=refused)
    made.view("pages", clicks.group_by("page").agg(n="count(*)"), refused=refused)
    made.view("shown", newest.select("page"), refused=refused)  # without a key
    made.view("all", clicks.select("user", "page"), refused=refused)
    return made


def append(folder: Path, rows: list[tuple[str, str, int]], at: str = "2026-01-01 12:00:00") -> None:
    with open_log(f"sqlite:{folder / 'log.db'}") as log:
        events = [Event(json.dumps({"user": user, "page": page, "n": n, "at": at}).encode()) for user, page, n in rows]
        log.append("clicks", events)


def expected(rows: list[tuple[str, str, int]]) -> dict[str, list[Any]]:
    """What views hold without the rows that have a NUL, worked out anew."""
    newest = {user: (user, page, n) for user, page, n in rows}
    pages = [page for _, page, _ in rows]
    return {
        "newest": sorted(row for row in newest.values() if "\0" not in row[1]),
        "pages": sorted((page, pages.count(page)) for page in set(pages) if "\0" not in page),
        "shown": sorted((page,) for _, page, _ in newest.values() if "\0" not in page),
        "all": sorted((user, page) for user, page, _ in rows if "\0" not in page),
    }


def held(made: Pipeline) -> dict[str, list[Any]]:
    return {
        name: sorted(tuple(row[column] for column in view.columns) for row in view.to_arrow().to_pylist())
        for name, view in made.views.items()
    }


def letters(address: str) -> list[tuple[str, int, str]]:
    with open_reader(address) as store:
        found = store.dead_letters("shop", reason="refused").to_pylist()
    return sorted((each["topic"], each["offset"], each["detail"]) for each in found)


def test_refused_rows_stop_the_run_or_become_dead_letters_and_nothing_else_notices(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"{postgres.address}?schema=refused_{uuid.uuid4().hex}"
    with open_log(f"sqlite:{tmp_path / 'log.db'}") as log:
        log.create_topic("clicks", 1)
    append(tmp_path, BATCHES[0])
    with pytest.raises(PipelineError, match="text with a NUL") as caught:
        run(shop(tmp_path, address, "stop"), spark=spark, once=True)
    assert 'refused="dead_letter"' in (caught.value.hint or "")
    assert letters(address) == []

    made = shop(tmp_path, address, "dead_letter")
    assert made.fingerprint() == shop(tmp_path, address, "stop").fingerprint()
    told: list[Change] = []
    made.sink("told", made.views["newest"], told.extend)
    seen = []
    for number, place in enumerate(["store.before_commit", "store.after_commit", "run.after_delivery"]):
        if number:
            append(tmp_path, BATCHES[number])
        with armed(place), pytest.raises(Exception, match="failpoint"):
            run(made, spark=spark, once=True)
        run(made, spark=spark, once=True)  # the same batch again, by whoever comes next
        seen.append(held(made))
        assert seen[-1] == expected([row for batch in BATCHES[: number + 1] for row in batch])
    told_last = {change.row["user"]: change for change in told}
    assert (
        sorted((user, change.row["page"], change.row["n"]) for user, change in told_last.items() if change.weight > 0)
        == expected([row for batch in BATCHES for row in batch])["newest"]
    )
    assert not any("\0" in (change.row.get("page") or "") for change in told)

    found = letters(address)
    assert len(found) == len(set(found)) == 4 + 8 + 8
    assert ("view newest", 1, "user='ann'") in [(topic, batch, detail[:10]) for topic, batch, detail in found]
    assert all("column 'page': text with a NUL" in detail for _, _, detail in found)
    verified = verify(made, spark=spark)
    assert verified.equal, verified
    for name, view in made.views.items():
        rows = as_of(made, name, 1, spark=spark).to_pylist()
        assert sorted(tuple(row[column] for column in view.columns) for row in rows) == seen[1][name]

    append(tmp_path, [("dan", "late\0", 10)], at="2025-01-01 12:00:00")  # too late, and no row for its side view either
    rebuild(made, spark=spark)
    assert held(made) == seen[2]
    assert verify(made, spark=spark).equal
    with open_reader(address) as store:
        assert {view.name: view.refused for view in store.views() if "~" not in view.name}["clicks_late"] == 1
    assert execute(["views", "list", "--views", address, "--json"]) == 0
    listed = {row["name"]: row["refused"] for row in json.loads(capsys.readouterr().out)}
    assert listed["newest"] > 0

    other = f"{postgres.address}?schema=batch_{uuid.uuid4().hex}"
    assert sorted(row["user"] for row in run_batch(made, spark=spark, to=other).views["newest"].to_pylist()) == ["ann"]
    assert {topic for topic, _, _ in letters(other)} == {f"view {name}" for name in (*made.views, "clicks_late")}
    everywhere = run_batch(made, spark=spark, to=f"sqlite:{tmp_path / 'other.db'}").views["newest"]
    assert everywhere.num_rows == 4  # a file has a place for all of them
