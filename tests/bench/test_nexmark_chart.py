"""The chart of rates, read back as XML."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from millstream.bench.nexmark import chart

SVG = "{http://www.w3.org/2000/svg}"
RESULTS: list[dict[str, Any]] = [
    {"name": "q10", "system": "millstream", "value": 400_000.0, "correct": True},
    {"name": "q10", "system": "spark", "value": 100_000.0, "correct": False},
    {"name": "q9", "system": "millstream", "value": 200_000.0, "correct": True},
    {"name": "q9", "system": "spark", "note": "refused: <no>"},
]


def bars(drawn: ElementTree.Element) -> dict[str, ElementTree.Element]:
    """What stands for a result, by what it says when it is pointed at."""
    return {tip.text or "": each for each in drawn for tip in each.findall(f"{SVG}title")}


def test_bars_are_as_tall_as_rates() -> None:
    found = bars(ElementTree.fromstring(chart.draw(RESULTS, "x")))
    tall = {said: float(bar.get("height", 0)) for said, bar in found.items() if bar.tag == f"{SVG}rect"}
    assert len(tall) == 3
    most = tall["q10, Millstream: 400,000 events/s"]
    assert tall["q9, Millstream: 200,000 events/s"] == pytest.approx(most / 2)
    assert tall["q10, plain Structured Streaming: 100,000 events/s, a wrong answer"] == pytest.approx(most / 4)


def test_what_cannot_run_is_a_cross_and_what_is_wrong_an_outline() -> None:
    found = bars(ElementTree.fromstring(chart.draw(RESULTS, "x")))
    classes = {said: (bar.get("class") or "").split() for said, bar in found.items()}
    assert classes["q9, plain Structured Streaming: cannot run. refused: <no>"] == ["cross", "s3"]
    assert classes["q10, plain Structured Streaming: 100,000 events/s, a wrong answer"] == ["s3", "wrong"]
    assert classes["q10, Millstream: 400,000 events/s"] == ["s0"]


def test_queries_are_in_the_order_of_their_numbers() -> None:
    drawn = ElementTree.fromstring(chart.draw(RESULTS, "x"))
    texts = [(each.text, float(each.get("x", 0))) for each in drawn.findall(f"{SVG}text") if each.text in ("q9", "q10")]
    assert [name for name, _ in sorted(texts, key=lambda text: text[1])] == ["q9", "q10"]


@pytest.mark.parametrize("most", [0.5, 7, 80, 799, 801, 99_999, 100_000, 1_234_567])
def test_lines_are_few_round_and_reach_over_the_bars(most: float) -> None:
    top, step = chart._scale(most)
    assert top >= most
    assert 1 <= top / step <= 8
    assert top - step < most
    assert float(f"{step:.2g}") == step


def test_results_in_a_file_are_drawn_into_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"results": RESULTS}))
    monkeypatch.setattr(sys, "argv", ["chart", str(tmp_path / "results.json"), str(tmp_path / "chart.svg")])
    chart.main()
    assert (tmp_path / "chart.svg").read_text() == chart.draw(RESULTS, "Nexmark, events a second")
