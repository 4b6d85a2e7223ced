"""A chart of rates: for every query a group of bars, one for each system; SVG as text, for light and for dark.

A bar that is only an outline is of a wrong answer, a cross is of a query that the system cannot run. ``python -m
millstream.bench.nexmark.chart RESULTS.json CHART.svg`` draws what ``millstream bench nexmark --json`` printed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

_BAR, _BETWEEN, _LEFT, _TOP, _HEIGHT, _BOTTOM, _EDGE = 9, 12, 72, 72, 300, 34, 20
_STEPS = (1, 2, 2.5, 5, 10)
_STYLE = """
.ground { fill: #ffffff }
text { font: 12px ui-sans-serif, system-ui, "Helvetica Neue", Arial, sans-serif; fill: #1f2328 }
.title { font-weight: bold; font-size: 14px }
.soft { fill: #57606a }
.line { stroke: #d0d7de; stroke-width: 1 }
.s0 { fill: #0969da; stroke: #0969da }
.s1 { fill: #bc4c00; stroke: #bc4c00 }
.s2 { fill: #f0a868; stroke: #f0a868 }
.s3 { fill: #6e7781; stroke: #6e7781 }
.wrong { fill: none; stroke-width: 1.5 }
.cross { fill: none; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
  .ground { fill: #0d1117 }
  text { fill: #e6edf3 }
  .soft { fill: #9198a1 }
  .line { stroke: #30363d }
  .s0 { fill: #58a6ff; stroke: #58a6ff }
  .s1 { fill: #f0883e; stroke: #f0883e }
  .s2 { fill: #9e6a03; stroke: #9e6a03 }
  .s3 { fill: #9198a1; stroke: #9198a1 }
  .wrong, .cross { fill: none }
}
"""
_COLOURS = {"millstream": "s0", "flink": "s1", "flink_heap": "s2", "spark": "s3"}
_NAMES = {
    "millstream": "Millstream",
    "flink": "Flink, RocksDB and checkpoints",
    "flink_heap": "Flink, heap, no fault tolerance",
    "spark": "plain Structured Streaming",
}

Result = Mapping[str, Any]


def draw(results: Sequence[Result], title: str) -> str:
    """Draw results, each with ``name`` of a query, ``system``, ``value`` in events a second or none, ``correct``, and
    ``note`` of what is wrong or why it cannot run."""
    results = [each for each in results if each["system"] in _COLOURS]
    found = {(each["name"], each["system"]): each for each in results}
    queries = sorted({name for name, _ in found}, key=lambda name: (len(name), name))
    systems = [system for system in _COLOURS if any(other == system for _, other in found)]
    top, step = _scale(max((each.get("value") or 0 for each in results), default=0))
    group = len(systems) * _BAR + _BETWEEN
    legend = sum(40 + 7 * len(_NAMES[system]) for system in systems)
    width = _LEFT + max(len(queries) * group, legend, 7 * len(title)) + _EDGE
    height = _TOP + _HEIGHT + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="ground" width="{width}" height="{height}"/>',
        f'<text class="title" x="{_EDGE}" y="24">{escape(title)}</text>',
        *_legend(systems),
        *_lines(top, step, width),
    ]
    for place, query in enumerate(queries):
        left = _LEFT + place * group + _BETWEEN / 2
        middle = left + len(systems) * _BAR / 2
        parts.append(f'<text x="{middle:g}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">{escape(query)}</text>')
        for number, system in enumerate(systems):
            if (query, system) in found:
                parts.append(_bar(found[query, system], left + number * _BAR, top))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _scale(most: float) -> tuple[float, float]:
    """The top of the chart and what lies between two lines: a round number, four to eight times."""
    power = 10.0 ** (len(str(int(most))) - 1) / 10
    step = next(step * power * ten for ten in (1, 10, 100) for step in _STEPS if step * power * ten * 8 >= most)
    lines = max(1, -int(-most // step))
    return step * lines, step


def _lines(top: float, step: float, width: float) -> Iterator[str]:
    for number in range(round(top / step) + 1):
        y = _TOP + _HEIGHT * (1 - number * step / top)
        told = f"{number * step / 1000:g} k" if number else "0"
        yield f'<path class="line" d="M{_LEFT} {y:g}H{width - _EDGE}"/>'
        yield f'<text class="soft" x="{_LEFT - 8}" y="{y + 4:g}" text-anchor="end">{told}</text>'


def _legend(systems: list[str]) -> Iterator[str]:
    x = _LEFT
    yield f'<text class="soft" x="{_EDGE}" y="49">events/s</text>'
    for system in systems:
        yield f'<rect class="{_COLOURS[system]}" x="{x + 8}" y="40" width="10" height="10"/>'
        yield f'<text x="{x + 24}" y="49">{escape(_NAMES[system])}</text>'
        x += 40 + 7 * len(_NAMES[system])


def _bar(result: Result, x: float, top: float) -> str:
    style, base, value = _COLOURS[result["system"]], _TOP + _HEIGHT, result.get("value")
    said = f"{result['name']}, {_NAMES[result['system']]}: "
    if not value:
        tip = f"<title>{escape(said + 'cannot run. ' + str(result.get('note') or ''))}</title>"
        return f'<path class="cross {style}" d="M{x + 1:g} {base - 8}l6 6m0 -6l-6 6">{tip}</path>'
    wrong = result.get("correct") is False
    tall = round(_HEIGHT * value / top, 1)
    tip = f"<title>{escape(said)}{value:,.0f} events/s{', a wrong answer' if wrong else ''}</title>"
    box = f'x="{x + 0.5:g}" y="{base - tall:g}" width="{_BAR - 2}" height="{tall:g}"'
    return f'<rect class="{style}{" wrong" if wrong else ""}" {box}>{tip}</rect>'


def main() -> None:
    """Draw the results in one file into another."""
    source, target = map(Path, sys.argv[1:])
    told = json.loads(source.read_text())
    target.write_text(draw(told["results"], "Nexmark, events a second"))


if __name__ == "__main__":
    main()
