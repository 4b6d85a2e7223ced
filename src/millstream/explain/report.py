"""An explanation: what is known of each feed, kernel and view of a pipeline, as data and as text.

The text has a summary, then for each view the tree of what makes it, the sources first. The tree grows downwards: what stands
above a line, joined to it by a rule, flows into it. What several views share is told where it comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from millstream.address import NOWHERE
from millstream.errors import UnknownView
from millstream.plan.growth import Growth

Runs: TypeAlias = Literal["Spark SQL", "compiled"]
_WHERE = {"Spark SQL": "Spark SQL, before the kernels", "compiled": "compiled, between kernels"}


@dataclass(frozen=True, slots=True)
class Arrow:
    """Rows on their way: from whom to whom, which rows, what is computed of them on leaving, and by whom."""

    source: int
    target: int
    side: int
    where: str
    computes: tuple[str, ...]
    runs: Runs
    tested: bool
    """Whether ``where`` is computed here too; else further down, and here its outcome is looked at."""
    marks: bool
    late: bool


@dataclass(frozen=True, slots=True)
class Step:
    """A feed or a kernel. ``stage`` is "packing", "reading", "admission" or "stage 1" and so on; ``views`` are all that need it."""

    number: int
    kind: Literal["feed", "kernel"]
    title: str
    stage: str
    depth: int
    does: str
    keeps: str
    drops: str
    marks: str
    grows: Growth
    replayable: bool
    views: tuple[str, ...]
    topic: str = ""
    beside: str = ""
    """In whose step it runs, if not in its own."""


@dataclass(frozen=True, slots=True)
class ViewStep:
    """A view: where it is kept, what tells its rows apart, what Spark SQL makes of its rows before the sink."""

    number: int
    name: str
    to: str
    key: str
    computes: tuple[str, ...]
    where: str
    unbounded: tuple[str, ...]
    """The steps below it that keep something of every event for ever."""
    growing: tuple[str, ...]
    """The steps below it whose state grows with its keys."""
    not_replayable: tuple[str, ...]
    """The steps below it that a replay may answer differently."""
    sends: tuple[str, ...] = ()
    """Where its changes go, and how surely."""
    taken_back: tuple[str, ...] = ()
    """The sinks among those that tell of matches which a later row may take back."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A pipeline explained; as text by ``str``, as a picture by :func:`millstream.explain.svg.svg`."""

    pipeline: str
    topics: tuple[str, ...]
    stages: tuple[str, ...]
    buckets: int
    steps: tuple[Step, ...]
    arrows: tuple[Arrow, ...]
    views: tuple[ViewStep, ...]
    stamped: bool = True
    """Whether the log itself says of every record when it was appended, by which batches are cut."""

    def only(self, name: str) -> Explanation:
        """Explain one view: what it is made of, and nothing else."""
        found = [view for view in self.views if view.name == name]
        if not found:
            names = ", ".join(view.name for view in self.views)
            raise UnknownView(
                f"no view {name} in pipeline {self.pipeline}; there are {names}", hint="name one of those"
            )
        steps = tuple(step for step in self.steps if name in step.views)
        there = {found[0].number, *(step.number for step in steps)}
        arrows = tuple(arrow for arrow in self.arrows if {arrow.source, arrow.target} <= there)
        topics = tuple(step.topic for step in steps if step.topic)
        stages = tuple(stage for stage in self.stages if any(step.stage == stage for step in steps))
        return replace(self, topics=topics, stages=stages, steps=steps, arrows=arrows, views=(found[0],))

    def step(self, number: int) -> Step:
        """The feed or kernel of that number."""
        return next(step for step in self.steps if step.number == number)

    def into(self, number: int) -> list[Arrow]:
        """The arrows that end at a kernel or a view, the left side first."""
        return sorted((arrow for arrow in self.arrows if arrow.target == number), key=lambda arrow: arrow.side)

    def __str__(self) -> str:
        return told(self)


def told(explanation: Explanation) -> str:
    """The whole text."""
    lines = [summary(explanation), *_warnings(explanation)]
    said: dict[int, str] = {}
    for view in explanation.views:
        arrows = explanation.into(view.number)
        lines += ["", *_inputs(explanation, arrows, view, "", said), f"view {view.name}"]
        lines += [f"  {line}" for line in _of_view(view, arrows)]
    return "\n".join(lines)


def summary(explanation: Explanation) -> str:
    """One line: topics, stages, kernels, views."""
    kernels = sum(step.kind == "kernel" for step in explanation.steps)
    parts = [
        f"reads {_many(len(explanation.topics), 'topic')} ({', '.join(explanation.topics)})",
        _many(len(explanation.stages), "stage") + (f" ({', '.join(explanation.stages)})" if explanation.stages else ""),
        _many(kernels, "kernel") + (f" of {_many(explanation.buckets, 'bucket')}" if kernels else ""),
        _many(len(explanation.views), "view"),
    ]
    return f"pipeline {explanation.pipeline}: {'; '.join(parts)}"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _warnings(explanation: Explanation) -> Iterator[str]:
    for view in explanation.views:
        if view.unbounded:
            yield f"unbounded state: view {view.name}, by {'; '.join(view.unbounded)}"
    for view in explanation.views:
        if view.growing:
            yield f"grows with its keys: view {view.name}, by {'; '.join(view.growing)}"
    for view in explanation.views:
        if view.not_replayable:
            yield f"not replayable: view {view.name}, by {'; '.join(view.not_replayable)}"
    for view in explanation.views:
        if view.taken_back:
            yield (
                f'matches may be taken back: view {view.name} tells {", ".join(view.taken_back)} of each as it changes; emit="final", or EMIT FINAL,'
                " tells it once, when no row can change it"
            )
    if not explanation.stamped:
        yield (
            "batches are cut over all topics by append time; a topic with message.timestamp.type=CreateTime by the times of its producers,"
            " where a record that is older than one before it counts as that one"
        )


def _inputs(
    explanation: Explanation, arrows: list[Arrow], view: ViewStep, indent: str, said: dict[int, str]
) -> Iterator[str]:
    """What flows into a line, each with what flows into it above."""
    for place, arrow in enumerate(arrows):
        step = explanation.step(arrow.source)
        corner, above = ("┌─ ", "   ") if place == 0 else ("├─ ", "│  ")
        if step.number in said:
            there = "above" if said[step.number] == view.name else f"in view {said[step.number]}"
            does = f": {step.does}" if step.kind == "kernel" else ""
            yield f"{indent}{corner}{step.title}{does}, as {there}"
            continue
        said[step.number] = view.name
        below = explanation.into(step.number)
        yield from _inputs(explanation, below, view, indent + above, said)
        beside = f", in the same step as {step.beside}" if step.beside else ""
        yield f"{indent}{corner}{step.title}: {step.does}  [{step.stage}{beside}]"
        yield from (f"{indent}│    {line}" for line in _of_step(step, below, view))


def _of_step(step: Step, arrows: list[Arrow], view: ViewStep) -> Iterator[str]:
    yield from _taken(arrows)
    yield f"keeps    {step.keeps}"
    if step.keeps != "nothing":
        yield f"dropped  {step.drops}"
    if step.marks:
        yield f"marks    {step.marks}"
    if others := [name for name in step.views if name != view.name]:
        yield f"shared   with {', '.join(others)}"
    if step.grows == "events":
        yield "note     unbounded: it keeps something of every event for ever"
    if not step.replayable:
        yield "note     not replayable: a replay with other batches may give other rows"


def _of_view(view: ViewStep, arrows: list[Arrow]) -> Iterator[str]:
    yield from _taken(arrows)
    if view.where:
        yield f"takes    rows where {view.where} (Spark SQL, before the sink)"
    if view.computes:
        yield f"takes    {', '.join(view.computes)} (Spark SQL, before the sink)"
    if view.to == NOWHERE:
        yield f"stored   nowhere: only its changes go on, a row known by {view.key}"
    else:
        yield f"stored   in {view.to}, a row known by {view.key}"
    for sent in view.sends:
        yield f"sends    {sent}"
    if view.unbounded:
        yield "note     unbounded: something of every event is kept for ever"
    if view.not_replayable:
        yield "note     not replayable: verify may find other rows"


def _taken(arrows: list[Arrow]) -> Iterator[str]:
    """What is done to rows on their way in, and where that runs."""
    for arrow in arrows:
        side = f" of the {('left', 'right')[arrow.side]}" if len({each.side for each in arrows}) > 1 else ""
        if arrow.late:
            yield "takes    the rows that came too late, and no others"
        if arrow.where:
            yield f"takes    rows{side} where {arrow.where}" + (f" ({_WHERE[arrow.runs]})" if arrow.tested else "")
        if computes := [text for text in arrow.computes if text != arrow.where]:
            yield f"takes    {', '.join(computes)}{side} ({_WHERE[arrow.runs]})"
