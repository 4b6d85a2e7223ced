"""What a pipeline does, explained: every feed, kernel and view of its chain, what is kept and until when, what runs where.

An explanation is read off the chain that runs, so it cannot say anything else than what is done. It needs neither Spark nor a
log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from millstream.address import NOWHERE
from millstream.explain.report import Arrow, Explanation, Runs, Step, ViewStep
from millstream.explain.wording import Wording
from millstream.log.capabilities import capabilities_of
from millstream.plan.build import build_chain
from millstream.plan.chain import ADMIT, Chain, Feed, Operator, Output, Port, ViewPlan
from millstream.plan.growth import growth
from millstream.plan.lineage import Lineage
from millstream.plan.operators.match import Match
from millstream.plan.operators.wording import listed, span
from millstream.relation import expression
from millstream.relation.functions import Functions
from millstream.relation.nodes import EventTime
from millstream.relation.schema import format_duration
from millstream.relation.sinks import SinkDefinition

_OURS = ("_t", "_v", "_keep")
"""Columns that a join is sent for itself."""


class Defined(Protocol):
    """What is asked of a pipeline; :class:`~millstream.pipeline.Pipeline` is one."""

    name: str
    to: str
    buckets: int
    log: str
    udf: Functions

    @property
    def views(self) -> Mapping[str, Any]:
        """The views, by name."""

    @property
    def sinks(self) -> Mapping[str, SinkDefinition]:
        """The sinks, by name."""

    def validate(self) -> None:
        """Refuse a pipeline that would do nothing."""


def explain(pipeline: Defined) -> Explanation:
    """Explain a pipeline from its definition alone; ``str`` of it is for people."""
    pipeline.validate()
    views = [
        ViewPlan(view.name, view.node, view.to, view.emit, view.key, kept=view.kept) for view in pipeline.views.values()
    ]
    chain = build_chain(views, buckets=pipeline.buckets, to=pipeline.to, functions=pipeline.udf.all)
    made = explain_chain(pipeline.name, replace(chain, early=True))
    return replace(
        made,
        stamped=capabilities_of(pipeline.log).stamps,
        views=tuple(_sending(view, made, pipeline, _provisional(chain)) for view in made.views),
    )


def _sending(view: ViewStep, made: Explanation, pipeline: Defined, provisional: set[int]) -> ViewStep:
    """A view with where its changes go, and which of its sinks tell of matches that may be taken back."""
    sinks = [each for each in pipeline.sinks.values() if each.view == view.name]
    unsure = any(step.number in provisional and view.name in step.views for step in made.steps)
    told = tuple(each.where for each in sinks if unsure and each.tells)
    return replace(view, sends=tuple(each.told for each in sinks), taken_back=told)


def _provisional(chain: Chain) -> set[int]:
    """The kernels of patterns that show a match before it is certain."""
    return {each.number for each in chain.operators if isinstance(each.spec, Match) and each.spec.emit == "changes"}


def explain_chain(name: str, chain: Chain) -> Explanation:
    """Explain a chain."""
    words = _Explained(chain)
    makers: list[Feed | Operator] = [*chain.feeds, *chain.operators]
    arrows = tuple(words.arrow(maker, port) for maker in makers for port in maker.ports)
    below = {output.number: _below(output.number, arrows) for output in chain.outputs}
    steps = []
    for maker in makers:
        users = tuple(output.name for output in chain.outputs if maker.number in below[output.number])
        made = words.feed(maker, users) if isinstance(maker, Feed) else words.kernel(maker, users)
        steps.append(made)
    return Explanation(
        name,
        tuple(feed.source.topic for feed in chain.feeds),
        tuple("admission" if stage == ADMIT else f"stage {stage}" for stage in chain.stages),
        chain.buckets,
        tuple(steps),
        arrows,
        tuple(_view(output, [step for step in steps if output.name in step.views]) for output in chain.outputs),
    )


def _below(number: int, arrows: tuple[Arrow, ...]) -> set[int]:
    """Everything that flows into it, near and far."""
    found, new = set[int](), {number}
    while new:
        new = {arrow.source for arrow in arrows if arrow.target in new} - found
        found |= new
    return found


class _Explained(Lineage):
    """Kernels and ports of a chain, described."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        super().__init__(chain)
        self.grows = growth(chain)
        self.wording = Wording(chain)

    def kernel(self, operator: Operator, views: tuple[str, ...]) -> Step:
        spec, say = operator.spec, self.wording.say(operator)
        return Step(
            operator.number,
            "kernel",
            spec.title(),
            self.stage(operator),
            operator.stage,
            spec.does(say),
            spec.keeps(say),
            spec.drops(say),
            self.marks(operator),
            self.grows[operator.number],
            spec.is_replayable(),
            views,
            beside=self.beside(operator),
        )

    def feed(self, feed: Feed, views: tuple[str, ...]) -> Step:
        """What is done with a topic, for these views."""
        return _feed(feed, self.stage(feed), views)

    def stage(self, maker: Feed | Operator) -> str:
        """Where rows are made: a union's are where those of its last input are."""
        if isinstance(maker, Feed):
            return "admission" if self.chain.staged(maker) else "reading" if maker.judged else "packing"
        if maker.passes:
            return self.stage(max((self.makers[each] for each in maker.inputs), key=_depth))
        return f"stage {maker.stage}"

    def beside(self, operator: Operator) -> str:
        """In whose step a kernel runs, if not in its own."""
        found = operator.inputs if operator.passes else () if operator.step is None else (operator.step,)
        return listed(list(dict.fromkeys(_title(self.makers[each]) for each in found)))

    def marks(self, operator: Operator) -> str:
        """Which marks reach a kernel, and which it passes on."""
        told = {port.side for _, port in self.ports_to(operator.number) if port.marks}
        if not told:
            return ""
        sides = ("the left", "the right")
        taken = "takes the mark"
        if operator.sides > 1:
            taken += f"{'s' * (len(told) > 1)} of {' and '.join(sides[side] for side in sorted(told))}"
        if not any(port.marks for port in operator.ports):
            return taken
        held = [f", that of {sides[side]} less {span(hold)}" for side, hold in enumerate(operator.hold) if hold]
        return f"{taken} and passes {'on the least' if len(told) > 1 else 'it on'}{''.join(held)}"

    def arrow(self, maker: Feed | Operator, port: Port) -> Arrow:
        texts = {name: self.left(maker, port, here).text for name, here in port.columns}
        if native := isinstance(maker, Feed):
            there = {each.name for each in maker.source.columns}
            shown = [text for name, text in texts.items() if name not in _OURS and not _is_plain(text, there)]
        else:
            shown = [each.written for each in port.computed]
        where = self.kept(maker, self.wording.spoken(port.keep)) if port.keep else texts.get("_keep", "true")
        where = self.wording.spoken(condition(where)) if where != "true" else ""
        computes = tuple(dict.fromkeys(self.wording.windows_in(condition(text)) for text in shown))
        runs: Runs = "Spark SQL" if native else "compiled"
        tested = native or (port.keep is not None and not _is_plain(port.keep))
        return Arrow(maker.number, port.target, port.side, where, computes, runs, tested, port.marks, port.late)


def _depth(maker: Feed | Operator) -> int:
    return ADMIT if isinstance(maker, Feed) else maker.stage


def _title(maker: Feed | Operator) -> str:
    if isinstance(maker, Feed):
        return f"{maker.source.kind} {maker.source.name}"
    return maker.spec.title()


def condition(text: str) -> str:
    """A condition as it was written: the chain makes each part of it false where it is null."""
    first, between, last = "coalesce((", "), false) AND coalesce((", "), false)"
    if not (text.startswith(first) and text.endswith(last)):
        return text
    return " AND ".join(text.removeprefix(first).removesuffix(last).split(between))


def _is_plain(text: str, names: Collection[str] = ()) -> bool:
    """Whether it is a column as it is there: one of these names, however odd, or written as a column."""
    return text in names or expression.plain_column(text) is not None


def _feed(feed: Feed, stage: str, views: tuple[str, ...]) -> Step:
    source, time = feed.source, feed.source.time
    kept_of = ["one watermark for each partition"] if time else []
    numbered = "keys" if source.kind == "table" else "producers"
    kept_of += [f"the highest number of each {numbered[:-1]}"] if source.sequence else []
    endless = f"never: it grows with the {numbered}" if source.sequence else "never; it does not grow"
    judged = {
        "admission": "its records are judged in the order of offsets",
        "reading": "its records are judged in the order of offsets, as they are read",
        "packing": "its records are judged as they are packed",
    }[stage]
    return Step(
        feed.number,
        "feed",
        _title(feed),
        stage,
        ADMIT,
        f"reads topic {source.topic}; {judged}",
        " and ".join(kept_of) or "nothing",
        endless if kept_of else "nothing to drop",
        _watermark(time, any(port.marks for port in feed.ports)) if time else "",
        "keys" if source.sequence else "none",
        True,
        views,
        source.topic,
    )


def _watermark(time: EventTime, wanted: bool) -> str:
    behind = f"{format_duration(time.delay)} behind" if time.delay else "at"
    fates = {
        "drop": "rejected",
        "route": "rejected, and kept in a view of their own",
        "correct": f"let in and correct, up to {format_duration(time.lateness)} more",
    }
    tells = "; its mark is the least of them" if wanted else ""
    return f"each watermark is {behind} the newest {time.column}; later rows are {fates[time.late]}{tells}"


def _view(output: Output, steps: list[Step]) -> ViewStep:
    key = ", ".join(output.key) or ("topic, partition and offset" if output.append else "the whole row")
    return ViewStep(
        output.number,
        output.name,
        output.to if output.kept else NOWHERE,
        key,
        tuple(
            f"{each.expression} AS {each.name}"
            for each in output.select
            if not _is_plain(each.expression, output.columns)
        ),
        " AND ".join(output.where),
        tuple(f"{step.title} ({step.does})" for step in steps if step.grows == "events"),
        tuple(f"{step.title} ({step.does})" for step in steps if step.grows == "keys"),
        tuple(f"{step.title} ({step.does})" for step in steps if not step.replayable),
    )
