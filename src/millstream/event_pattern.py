"""`pattern`: events of several streams in a sequence, said step by step.

The streams are laid together in the order of their event times, with a column for each variable that says which rows may be one of its, and are
searched as :meth:`~millstream.relation.relation.Relation.match` does. Variables over one stream share its rows: each is there once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal

from millstream.errors import PlanError
from millstream.event_rows import EventRows, event_rows
from millstream.relation.operators.checks import as_list
from millstream.relation.operators.match import match
from millstream.relation.pattern import Alternatives, Anchor, Pattern, Repeated, Sequential, Skip, Variable
from millstream.relation.pattern_search import Said, Sought, read_skip
from millstream.relation.predicate import parts
from millstream.relation.relation import Relation
from millstream.relation.schema import parse_duration
from millstream.relation.source_location import here, placed

_EXAMPLE = 'pattern(login=logins, purchase=orders, on="user").then("login").followed_by("purchase").within("5 minutes").select(at="login.at")'


@dataclass(frozen=True, slots=True)
class _Step:
    """One step: one of these variables, at once or with others before it; or none of them until the next step."""

    kind: Literal["then", "followed_by", "without"]
    variables: tuple[str, ...]
    least: int = 1
    most: int | None = 1


@dataclass(frozen=True, slots=True)
class EventPattern:
    """A sequence of events; nothing until :meth:`select` says what is told of it."""

    streams: Mapping[str, Relation] = field(repr=False)
    on: tuple[str, ...]
    steps: tuple[_Step, ...] = ()
    conditions: Mapping[str, str] = field(default_factory=dict)
    longest: timedelta | None = None
    behind: Skip | None = None
    is_near: bool = False

    def then(self, *variables: str) -> EventPattern:
        """Go on with the very next event, which must be one of these variables; the first step is the first event."""
        return self._step("then", variables)

    def followed_by(self, *variables: str) -> EventPattern:
        """Go on with an event of one of these variables, the nearest one preferred; others may lie between."""
        return self._step("followed_by", variables)

    def any_of(self, *variables: str) -> EventPattern:
        """Go on with an event of any of these variables: ``followed_by`` of several."""
        return self._step("followed_by", variables)

    def not_followed_by(self, variable: str, within: str | timedelta | None = None) -> EventPattern:
        """Let no event of this variable come before the next step; as the last step, before the time is over.

        :param within: as the last step how long it must not come, from the first event of the pattern on; it is told when that time has passed
        """
        with placed(here()):
            made = self.within(within) if within is not None else self
            return made._step("without", (variable,))

    def times(self, least: int, most: float | None = None) -> EventPattern:
        """Repeat the last step so many times: exactly ``least``, or up to ``most``; ``math.inf`` for any number."""
        with placed(here()):
            if not self.steps or self.steps[-1].kind == "without":
                raise PlanError("times: expected a step before it, then(…) or followed_by(…)", hint=_EXAMPLE)
            top = least if most is None else most
            if least < 1 or top < least:
                raise PlanError(
                    f"times: expected how often, at least once and the smaller number first; found {least}, {most}"
                )
            bound = None if top == float("inf") else int(top)
            return replace(self, steps=(*self.steps[:-1], replace(self.steps[-1], least=least, most=bound)))

    def within(self, longest: str | timedelta) -> EventPattern:
        """Bound the time from the first event to the last, exclusive."""
        with placed(here()):
            found = parse_duration(longest)
            if self.longest not in (None, found):
                raise PlanError(
                    f"within: it is {self.longest} already; found {found}",
                    hint="it counts from the first event on, once for all steps",
                )
            return replace(self, longest=found)

    def where(self, **conditions: str) -> EventPattern:
        """Say more of the events of variables, across them: ``where(purchase="purchase.country <> login.country")``."""
        with placed(here()):
            for name in conditions:
                self._check(name)
            return replace(self, conditions={**self.conditions, **conditions})

    def skip(self, to: str) -> EventPattern:
        """Say where the next search begins, as ``skip`` of ``match``: past the last event unless said, behind an absence at the next one."""
        with placed(here()):
            return replace(self, behind=read_skip(to))

    def near(self) -> EventPattern:
        """Tell of beginnings that ran out of time too, with the variable that they came to as ``stage``, which is null of a match."""
        return replace(self, is_near=True)

    def select(self, **measures: str) -> Relation:
        """Give one row for each match: the columns of ``on``, and these, as ``amount="purchase.amount"``.

        :raises PlanError: if the pattern or a measure does not hold together
        """
        place = here()
        with placed(place):
            if not self.steps or self.steps[0].kind == "without":
                raise PlanError("pattern: expected an event to begin with", hint=_EXAMPLE)
            rows = event_rows(self.streams, self.on, [*self.conditions.values(), *measures.values()])
            said = _Layer(self, rows).sought({name: rows.renamed(text) for name, text in measures.items()})
            node = rows.relation.node
            return Relation(match(node, (said,), list(self.on), rows.time, place))

    def _step(self, kind: Any, variables: Sequence[str]) -> EventPattern:
        with placed(here()):
            if not variables:
                raise PlanError("pattern: expected a variable for the step; found none", hint=_EXAMPLE)
            for name in variables:
                self._check(name)
            if kind == "then" and self.steps and self.steps[-1].kind == "without":
                raise PlanError(
                    f"then: {', '.join(variables)} is to come at once, so nothing can come before it",
                    hint='not_followed_by("a").followed_by("b")',
                )
            return replace(self, steps=(*self.steps, _Step(kind, tuple(variables))))

    def _check(self, name: str) -> None:
        if name not in self.streams:
            there = ", ".join(self.streams)
            raise PlanError(f"pattern: no variable {name}; there are {there}", hint=_EXAMPLE)


def pattern(*, on: str | Sequence[str] | None = None, **streams: Relation) -> EventPattern:
    """Begin a pattern over events of several streams, or of one stream in several roles.

    :param on: columns that all streams have, by which events belong together
    :param streams: the variables, and the events that each stands for: a stream, or a part of one by ``where``
    :raises PlanError: by its methods too, with file and line, if something does not hold together

    >>> from millstream import Pipeline
    >>> shop = Pipeline("shop")
    >>> logins = shop.stream("logins", "user long, country string, at timestamp", time="at")
    >>> orders = shop.stream("orders", "user long, country string, amount double, at timestamp", time="at")
    >>> moved = pattern(login=logins, purchase=orders, on="user").then("login").followed_by("purchase").within("5 minutes")
    >>> moved.where(purchase="purchase.country <> login.country").select(amount="purchase.amount").columns
    ('user', 'amount')
    """
    with placed(here()):
        wrong = [name for name, each in streams.items() if not isinstance(each, Relation)]
        if wrong or not streams:
            found = f"{wrong[0]}={streams[wrong[0]]!r}" if wrong else "none"
            raise PlanError(f"pattern: expected relations by the names of variables; found {found}", hint=_EXAMPLE)
    return EventPattern(streams, as_list(on))


class _Layer:
    """The steps as one pattern, with the conditions of its variables."""

    def __init__(self, said: EventPattern, rows: EventRows) -> None:
        self.said, self.rows = said, rows
        self.define: dict[str, str] = {}
        self.own: dict[str, tuple[str, ...]] = {}
        self.gaps: dict[str, str] = {}

    def sought(self, measures: Mapping[str, str]) -> Sought:
        """The search for the whole sequence."""
        said, made = self.said, list[Pattern]()
        steps, absent = said.steps, list[str]()
        before = ""
        for step in steps:
            if step.kind == "without":
                absent += step.variables
                continue
            made += self._part(step, before, absent)
            before, absent = " or ".join(step.variables), []
        skip = said.behind
        if absent:
            if said.longest is None:
                hint = f'not_followed_by("{absent[0]}", within="1 hour"): an event that never comes is missed when its time is over'
                raise PlanError("pattern: an absence at the end needs a time", hint=hint)
            made += [Repeated(self._gap(before, absent), 0, None), Anchor("expiry")]
            skip = skip or Skip("next_row")
        shown = {**measures, **self._stage()} if said.is_near and "stage" not in measures else measures
        return Sought(
            made[0] if len(made) == 1 else Sequential(tuple(made)),
            [Said(name, text) for name, text in self.define.items()],
            [Said(name, text) for name, text in shown.items()],
            skip=skip or Skip(),
            within=said.longest,
            near=said.is_near,
            own=self.own,
        )

    def _part(self, step: _Step, before: str, absent: Sequence[str]) -> tuple[Pattern, ...]:
        """One step with what may lie before it, and its repeats with what may lie between them."""
        variables = tuple(map(self._variable, step.variables))
        one: Pattern = variables[0] if len(variables) == 1 else Alternatives(variables)
        gap = (
            Repeated(self._gap(before, absent), 0, None, greedy=False)
            if before and step.kind == "followed_by"
            else None
        )
        first: tuple[Pattern, ...] = (gap, one) if gap else (one,)
        if step.most != 1:
            again: Pattern = one
            if step.kind == "followed_by":
                again = Sequential((Repeated(self._gap(" or ".join(step.variables), ()), 0, None, greedy=False), one))
            first = (*first, Repeated(again, step.least - 1, None if step.most is None else step.most - 1))
        return first

    def _variable(self, name: str) -> Variable:
        if condition := self._condition(name):
            self.define[name] = " AND ".join(condition)
        return Variable(name)

    def _condition(self, name: str) -> list[str]:
        text = self.said.conditions.get(name)
        flag = [self.rows.flags[name]] if name in self.rows.flags else []
        if text is None:
            return flag
        cut = parts(self.rows.renamed(text))
        return [*flag, *(cut if len(cut) > 1 else [f"({cut[0]})"])]

    def _gap(self, before: str, absent: Sequence[str]) -> Variable:
        """What lies between two steps: any event, or one that is none of some variables."""
        name = "_".join(["after", before.replace(" ", "_"), *(f"no_{each}" for each in absent)])
        if absent:
            none = [f"NOT coalesce({' AND '.join(self._condition(each) or ['true'])}, false)" for each in absent]
            self.define[name], self.own[name] = " AND ".join(none), tuple(absent)
        self.gaps[name] = before
        return Variable(name)

    def _stage(self) -> dict[str, str]:
        """What a near miss came to: between two steps, the one before."""
        cases = " ".join(f"WHEN STAGE() = '{gap}' THEN '{before}'" for gap, before in self.gaps.items())
        return {"stage": f"CASE {cases} ELSE STAGE() END" if cases else "STAGE()"}
