"""An explanation as a picture: boxes for feeds, kernels and views in columns by stage, and an arrow for every port.

It is SVG and needs nothing to be made. Letters are of one width, so that a box can be cut to its text without measuring it. An
arrow that goes past a stage gets a lane of its own there, so none runs through a box. Every colour is set, the ground's too,
for light and for dark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from textwrap import wrap

from millstream.address import NOWHERE
from millstream.explain.report import Arrow, Explanation, Step, ViewStep, summary

_LETTERS = 40
"""Letters in a line of a box."""
_LETTER, _LINE = 7.3, 16
_PAD, _GAP, _BETWEEN, _LANE, _EDGE, _HEAD = 10, 18, 90, 8, 24, 64
_WIDTH = round(_LETTERS * _LETTER + 2 * _PAD)
_STYLE = """
.ground { fill: #ffffff }
.box { fill: #f6f8fa; stroke: #6e7781; stroke-width: 1.5 }
.feed .box { stroke: #0969da }
.view .box { stroke: #1a7f37 }
.unbounded .box { stroke: #bc4c00 }
.unreplayable .box { stroke-dasharray: 6 4 }
text { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2328 }
.title { font-weight: bold }
.soft { fill: #57606a }
.warn { fill: #bc4c00 }
.arrow { fill: none; stroke: #57606a; stroke-width: 1.3 }
.late { stroke-dasharray: 4 4 }
.tip { fill: #57606a }
@media (prefers-color-scheme: dark) {
  .ground { fill: #0d1117 }
  .box { fill: #161b22; stroke: #8b949e }
  .feed .box { stroke: #58a6ff }
  .view .box { stroke: #3fb950 }
  .unbounded .box { stroke: #f0883e }
  text { fill: #e6edf3 }
  .soft { fill: #9198a1 }
  .warn { fill: #f0883e }
  .arrow { stroke: #9198a1 }
  .tip { fill: #9198a1 }
}
"""


@dataclass
class _Place:
    """A box, or with no lines the lane of an arrow; ``y`` is found when its column is laid out."""

    column: int
    kind: str = "lane"
    number: int = -1
    lines: tuple[tuple[str, str], ...] = ()
    y: float = 0.0

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE + 2 * _PAD if self.lines else _LANE

    @property
    def x(self) -> float:
        return _EDGE + self.column * (_WIDTH + _BETWEEN)

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def svg(explanation: Explanation) -> str:
    """Draw an explanation; the text of an SVG file."""
    stages = sorted({step.depth for step in explanation.steps if step.kind == "kernel"})
    boxes = {step.number: _of_step(step, stages) for step in explanation.steps}
    boxes |= {view.number: _of_view(view, len(stages) + 1) for view in explanation.views}
    paths = [(arrow, _lanes(boxes[arrow.source], boxes[arrow.target])) for arrow in explanation.arrows]
    _lay_out(list(boxes.values()), [path for _, path in paths])
    everything = [*boxes.values(), *(place for _, path in paths for place in path)]
    height = max(place.y + place.height for place in everything) + _EDGE
    head = summary(explanation)
    columns = (len(stages) + 2) * (_WIDTH + _BETWEEN) - _BETWEEN
    width = max(columns, round(len(head) * _LETTER)) + 2 * _EDGE
    names = ["topics", *(f"stage {stage}" for stage in stages), "views"]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:g}" viewBox="0 0 {width} {height:g}">',
        f"<title>{_safe(head)}</title>",
        f"<style>{_STYLE}</style>",
        '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path class="tip" d="M0 0L8 4L0 8z"/></marker>',
        f'<rect class="ground" width="{width}" height="{height:g}"/>',
        _text(_EDGE, 26, "title", head),
        *(_text(_Place(column).x, _HEAD - 12, "soft", name) for column, name in enumerate(names)),
        *_drawn(paths),
        *(_box(box) for box in boxes.values()),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _of_step(step: Step, stages: list[int]) -> _Place:
    lines = [*_wrapped("title", step.title), *_wrapped("", step.does), *_wrapped("soft", f"keeps {step.keeps}")]
    if step.keeps != "nothing":
        lines += _wrapped("soft" if step.grows != "events" else "warn", f"dropped {step.drops}")
    lines += _wrapped("soft", step.marks)
    kind = step.kind + ("" if step.grows != "events" else " unbounded")
    if not step.replayable:
        kind += " unreplayable"
        lines.append(("warn", "not replayable"))
    column = 0 if step.kind == "feed" else stages.index(step.depth) + 1
    return _Place(column, kind, step.number, tuple(lines))


def _of_view(view: ViewStep, column: int) -> _Place:
    lines = _wrapped("title", view.name)
    lines += _wrapped("", f"where {view.where}") if view.where else []
    lines += _wrapped("", ", ".join(view.computes))
    lines += [
        *_wrapped("soft", f"a row known by {view.key}"),
        *_wrapped("soft", "kept nowhere" if view.to == NOWHERE else f"in {view.to}"),
    ]
    lines += [("warn", "unbounded state")] if view.unbounded else []
    lines += [("warn", "not replayable")] if view.not_replayable else []
    return _Place(column, "view" + (" unbounded" if view.unbounded else ""), view.number, tuple(lines))


def _wrapped(style: str, text: str) -> list[tuple[str, str]]:
    return [(style, line) for line in wrap(text, _LETTERS)]


def _lanes(source: _Place, target: _Place) -> list[_Place]:
    """The way of an arrow: its two boxes, and a lane in every column between them."""
    return [source, *(_Place(column) for column in range(source.column + 1, target.column)), target]


def _lay_out(boxes: list[_Place], paths: list[list[_Place]]) -> None:
    """Put each column's boxes and lanes under each other, in the order of what flows into them, the columns' middles level."""
    places = {id(place): place for place in [*boxes, *(place for path in paths for place in path)]}
    before: dict[int, list[_Place]] = {number: [] for number in places}
    for path in paths:
        for left, right in pairwise(path):
            before[id(right)].append(left)
    columns: dict[int, list[_Place]] = {}
    for place in places.values():
        columns.setdefault(place.column, []).append(place)
    heights = {column: sum(place.height + _GAP for place in here) for column, here in columns.items()}
    for column, here in sorted(columns.items()):
        here.sort(key=lambda place: sum(each.middle for each in before[id(place)]) / max(len(before[id(place)]), 1))
        y = _HEAD + (max(heights.values()) - heights[column]) / 2
        for place in here:
            place.y = y
            y += place.height + _GAP


def _drawn(paths: list[tuple[Arrow, list[_Place]]]) -> Iterator[str]:
    """The arrows; those that leave or reach one box do so at different heights, in the order of their other ends."""
    for arrow, path in paths:
        leaves = sorted((each for each in paths if each[1][0] is path[0]), key=lambda each: each[1][1].middle)
        comes = sorted((each for each in paths if each[1][-1] is path[-1]), key=lambda each: each[1][-2].middle)
        x, y = path[0].x + _WIDTH, _height(path[0], leaves.index((arrow, path)), len(leaves))
        drawn = f"M{x:g} {y:g}"
        for place in path[1:]:
            last = place is path[-1]
            to = _height(place, comes.index((arrow, path)), len(comes)) if last else place.middle
            half = (x + place.x) / 2
            drawn += f"C{half:g} {y:g} {half:g} {to:g} {place.x:g} {to:g}"
            x, y = place.x + _WIDTH, to
            drawn += "" if last else f"H{x:g}"
        style = "arrow late" if arrow.late else "arrow"
        done = [*([f"where {arrow.where}"] if arrow.where else []), *arrow.computes]
        tip = f"<title>{_safe(f'{arrow.runs}: ' + ', '.join(done))}</title>" if done else ""
        ends = f'data-from="{arrow.source}" data-to="{arrow.target}" data-side="{arrow.side}"'
        yield f'<path class="{style}" {ends} d="{drawn}" marker-end="url(#tip)">{tip}</path>'


def _height(place: _Place, index: int, count: int) -> float:
    return round(place.y + place.height * (index + 1) / (count + 1), 1)


def _box(place: _Place) -> str:
    rect = f'<rect class="box" x="{place.x:g}" y="{place.y:g}" width="{_WIDTH}" height="{place.height:g}" rx="6"/>'
    texts = (
        _text(place.x + _PAD, place.y + _PAD + (line + 1) * _LINE - 4, style, text)
        for line, (style, text) in enumerate(place.lines)
    )
    return f'<g class="{place.kind}" id="n{place.number}">{rect}{"".join(texts)}</g>'


def _text(x: float, y: float, style: str, text: str) -> str:
    known = f' class="{style}"' if style else ""
    return f'<text x="{x:g}" y="{y:g}"{known} xml:space="preserve">{_safe(text)}</text>'


def _safe(text: str) -> str:
    """Text for XML, which cannot hold every character."""
    return escape("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text))
