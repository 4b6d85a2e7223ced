"""A checkpoint is continued by the same definition in the same layout, and by no other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from millstream import Pipeline
from millstream.errors import CheckpointMismatch
from millstream.plan.state_layout import layout
from millstream.runtime.checkpoint import FORMAT, Checkpoint, open_checkpoint
from millstream.runtime.setup import chain_of


def shop(order: Sequence[str] = ("per_user", "per_page", "people")) -> Pipeline:
    made = Pipeline("shop")
    clicks = made.stream("clicks", "user long, page string, at timestamp", time="at")
    users = made.table("users", "id long, country string", key="id")
    relations = {
        "per_user": clicks.group_by("user").agg(n="count(*)"),
        "per_page": clicks.group_by("page").agg(n="count(*)"),
        "people": users.group_by("country").agg(n="count(*)"),
    }
    for name in order:
        made.view(name, relations[name])
    return made


def opened(folder: Path, pipeline: Pipeline) -> Checkpoint:
    return open_checkpoint(folder, pipeline, chain_of(pipeline), {"clicks": {0: 0}}, None, 2)


def change(folder: Path, **values: Any) -> None:
    path = folder / "millstream.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_it_keeps_the_layout_and_views_may_change_places(tmp_path: Path) -> None:
    made = opened(tmp_path / "check", shop())
    assert made.layout == layout(chain_of(shop()))
    assert len(made.layout) == 5
    assert opened(tmp_path / "check", shop(("people", "per_page", "per_user"))) == made


def test_another_layout_is_refused_and_says_where_it_differs(tmp_path: Path) -> None:
    folder = tmp_path / "check"
    found = opened(folder, shop()).layout
    number, kernel = next((number, text) for number, text in found.items() if "by page" in text)
    change(folder, layout=found | {number: kernel.replace("stage 1", "stage 2")})
    with pytest.raises(CheckpointMismatch, match=f"under number {number} there is Reduce by page in stage 2") as caught:
        opened(folder, shop())
    assert "--rebuild" in caught.value.hint


def test_one_of_an_older_version_which_says_no_layout_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "check"
    opened(folder, shop())
    path = folder / "millstream.json"
    older = {name: value for name, value in json.loads(path.read_text()).items() if name != "layout"}
    path.write_text(json.dumps(older | {"format": 1}))
    with pytest.raises(CheckpointMismatch, match="another version of Millstream") as caught:
        opened(folder, shop())
    assert "--rebuild" in caught.value.hint


def test_one_of_a_later_version_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "check"
    opened(folder, shop())
    change(folder, format=FORMAT + 1)
    with pytest.raises(CheckpointMismatch, match=f"format {FORMAT + 1}, this version reads {FORMAT}"):
        opened(folder, shop())


def test_one_of_another_spark_is_refused_and_one_that_does_not_say_is_taken(tmp_path: Path) -> None:
    folder = tmp_path / "check"
    opened(folder, shop())
    change(folder, spark="3.5.4")
    with pytest.raises(CheckpointMismatch, match=r"was written by Spark 3\.5\.4, and this is Spark") as caught:
        opened(folder, shop())
    assert "--rebuild" in caught.value.hint
    assert "pyspark==3.5.4" in caught.value.hint
    change(folder, spark="")
    opened(folder, shop())
