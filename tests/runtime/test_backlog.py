"""The example of a backlog: a spike by append time that is none by event time, and the chart of it in the documentation."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parent.parent.parent


def load() -> Any:
    spec = importlib.util.spec_from_file_location("backlog", ROOT / "examples" / "backlog.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("spark")
def test_a_backlog_is_a_spike_by_append_time_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load().main(["--svg", str(tmp_path / "chart.svg")])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    counts = {line[0]: (int(line[1]), int(line[2])) for line in lines[1:]}
    stopped = [f"12:{minute}" for minute in range(30, 60, 5)]
    assert len(counts) == 24
    assert [counts.pop(window) for window in stopped] == [(30, 60)] * 6
    assert counts.pop("13:00") == (60 + 6 * 30, 60)
    assert set(counts.values()) == {(60, 60)}
    drawn = (tmp_path / "chart.svg").read_text()
    assert drawn == (ROOT / "docs" / "backlog.svg").read_text(), "`python examples/backlog.py --svg docs/backlog.svg`"
    ElementTree.fromstring(drawn)


def test_the_chart_rises_where_the_count_does() -> None:
    example = load()
    counts = {example.BEGIN: {"append": 10, "event": 60}, example.BEGIN + example.SIZE: {"append": 120, "event": 60}}
    drawn = ElementTree.fromstring(example.chart(counts))
    paths = {
        each.get("class"): each.get("d") for each in reversed(list(drawn.iter("{http://www.w3.org/2000/svg}path")))
    }
    assert paths["append"] == "M48 260.7V260.7H392.0V48.0H736.0"
    assert paths["event"] == "M48 164.0V164.0H392.0V164.0H736.0"
