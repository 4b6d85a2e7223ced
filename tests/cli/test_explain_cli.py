"""``millstream explain``: text, JSON, a picture, and what is said when something is wrong; no log, no Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from millstream.cli import execute

TEXT = """
from millstream import Pipeline
from millstream.window import tumbling

shop = Pipeline("shop", log="sqlite:nowhere/log.db")
clicks = shop.stream("clicks", "user long, page string, at timestamp", time="at", delay="10 seconds")
users = shop.table("users", "id long, country string", key="id")
shop.view("per_minute", clicks.group_by("page", tumbling("at", "1 minute")).agg(n="count(*)"))
shop.view("with_country", clicks.join(users, on="user = id", latest=True))
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "shop.py"
    file.write_text(TEXT)
    return file


def test_help_says_what_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["explain", "--help"]) == 0
    out = capsys.readouterr().out
    assert "FILE [VIEW]" in out
    assert "--svg" in out
    assert "Examples:" in out


def test_a_pipeline_is_explained_without_a_log_and_nothing_is_made(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["explain", "shop.py"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("pipeline shop: reads 2 topics (clicks, users); 1 stage (stage 1)")
    assert "dropped  when the mark reaches window_end" in out
    assert "grows with its keys: view with_country" in out
    assert "not replayable: view with_country" in out
    assert [path.name for path in shop.parent.iterdir() if path.name != "__pycache__"] == ["shop.py"]


def test_one_view_alone(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["explain", str(shop), "per_minute"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("pipeline shop: reads 1 topic (clicks); 1 stage")
    assert "view per_minute" in out
    assert "unbounded" not in out
    assert "grows with" not in out


def test_an_unknown_view_is_an_error_with_the_names_there_are(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["explain", str(shop), "per_hour"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "no view per_hour in pipeline shop; there are per_minute, with_country" in err


def test_json_has_the_same_facts(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["explain", str(shop), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["pipeline"], found["topics"]) == ("shop", ["clicks", "users"])
    assert found["stages"] == ["stage 1"]
    steps = {step["number"]: step for step in found["steps"]}
    views = {view["name"]: view for view in found["views"]}
    assert views["per_minute"]["unbounded"] == []
    assert (len(views["with_country"]["growing"]), views["with_country"]["unbounded"]) == (2, [])
    assert len(views["with_country"]["not_replayable"]) == 1
    (last,) = [arrow["source"] for arrow in found["arrows"] if arrow["target"] == views["per_minute"]["number"]]
    assert steps[last]["drops"] == "when the mark reaches window_end"
    assert steps[last]["keeps"] == "one row for each page and window: count(*)"
    assert steps[last]["views"] == ["per_minute"]


def test_a_picture_is_written_and_json_may_go_along(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["explain", str(shop), "--svg", "shop.svg"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", "wrote shop.svg\n")
    assert ElementTree.parse(shop.parent / "shop.svg").getroot().tag.endswith("svg")
    assert execute(["explain", str(shop), "--svg", "shop.svg", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pipeline"] == "shop"


def test_a_picture_that_cannot_be_written_is_an_error_that_says_why(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["explain", str(shop), "--svg", "no/such/folder/shop.svg"]) == 2
    assert "--svg no/such/folder/shop.svg: No such file or directory" in capsys.readouterr().err


def test_spark_is_not_loaded(shop: Path) -> None:
    code = f"""
import sys
from millstream.cli import execute
assert execute(["explain", {str(shop)!r}]) == 0
heavy = {{"pyspark", "pandas"}}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
