"""``millstream init`` makes a project whose test passes and whose pipeline runs, and never writes over anything."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.cli import execute as cli
from millstream.load import load_pipeline
from tests.runtime.shop_file import ROOT, Child

FILES = ["pipeline.py", "test_pipeline.py", "clicks.jsonl", "millstream.toml", ".gitignore", "README.md"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pytest_in(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "millstream.testing.plugin", "-p", "no:cacheprovider"]
    environ = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False)


def ended(folder: Path, *arguments: str) -> str:
    child = Child(*arguments, cwd=folder)
    try:
        code, out, err = child.wait()
    finally:
        child.end()
    assert code == 0, err
    return out


def test_the_project_passes_its_test_and_its_commands_run(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli(["init", "my shop"]) == 0
    printed = capfd.readouterr().out
    folder = here / "my shop"
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert "  cd 'my shop'\n  pytest\n" in printed
    assert load_pipeline(folder / "pipeline.py").name == "my-shop"

    done = pytest_in(folder)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout

    steps = [line.strip() for line in printed.splitlines() if line.startswith("  millstream")]
    assert all(step in (folder / "README.md").read_text() for step in steps)
    create, produce, run, show = (step.split()[1:] for step in steps)
    ended(folder, *create)
    ended(folder, *produce)
    assert "per_minute" in ended(folder, "explain", "pipeline.py")
    ended(folder, *run)
    rows = json.loads(ended(folder, *show, "--json"))
    assert [(row["page"], row["n"]) for row in rows] == [("/", 2), ("/pay", 1)]
    letters = "SELECT reason FROM millstream_dead_letters"
    assert json.loads(ended(folder, "views", "query", "per_minute", letters, "--json")) == [{"reason": "late"}]
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    seen = ["git", "ls-files", "--others", "--exclude-standard"]
    kept = subprocess.run(seen, cwd=folder, check=True, capture_output=True, text=True)
    assert sorted(kept.stdout.split()) == sorted(FILES), "what runs make is ignored"


@pytest.mark.parametrize("taken", FILES)
def test_nothing_is_written_over(here: Path, taken: str, capfd: pytest.CaptureFixture[str]) -> None:
    (here / taken).write_text("mine")
    assert cli(["init"]) == 2
    assert f"{taken} is there already; nothing was written" in " ".join(capfd.readouterr().err.split())
    assert [(path.name, path.read_text()) for path in here.iterdir()] == [(taken, "mine")]


def test_json_says_what_was_made_and_what_comes_next(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli(["init", "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert (said["folder"], said["files"], said["next"][0]) == (".", FILES, "pytest")
    assert load_pipeline(here / "pipeline.py").name == re.sub("[^A-Za-z0-9_-]+", "-", here.name)[:63]
    assert cli(["init", "deep/er", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["next"][0] == "cd deep/er"


@pytest.mark.parametrize(
    ("folder", "name"), [("shop", "shop"), ("9 lives!", "9-lives"), ("äö", "shop"), ("x" * 80, "x" * 63)]
)
def test_the_pipeline_is_called_after_its_folder(here: Path, folder: str, name: str) -> None:
    assert cli(["init", folder]) == 0
    assert load_pipeline(here / folder / "pipeline.py").name == name


def test_a_folder_that_cannot_be_written_is_told(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "file").write_text("")
    assert cli(["init", "file/below"]) == 2
    assert "file/below: Not a directory" in " ".join(capfd.readouterr().err.split())
