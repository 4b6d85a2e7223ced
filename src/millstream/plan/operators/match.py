"""`match`: rows in a pattern, within the rows of a key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from millstream.plan.operators.clauses import Horizon, Order
from millstream.plan.operators.contract import SpecContract
from millstream.plan.operators.wording import ENDLESS, TAKEN_BACK, Say, beyond, keyed, ordered, span
from millstream.relation.clauses import Emit
from millstream.relation.pattern import (
    Alternatives,
    Anchor,
    Classifier,
    Excluded,
    MatchNumber,
    Navigation,
    Pattern,
    Repeated,
    Search,
    Sequential,
    Variable,
)


@dataclass(frozen=True, slots=True)
class Match(SpecContract):
    """The matches of one or several patterns among the rows of a key, in this order; ties are broken by the whole row.

    Rows of the output are the ``keys``, then, where there are several searches or ``named``, the search's name as ``pattern``, then, if any search shows all
    rows, the ``columns``; then the measures, which are of equal names and types in all searches. With a ``horizon``, whose time is the first column of the
    order, ascending, what no change can reach any more is forgotten. With ``emit="final"`` a match appears as soon as
    no row at or after the mark can change it; ``horizon.span`` is how much later rows still come.
    """

    tag: ClassVar[str] = "Match"
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    order: tuple[Order, ...]
    searches: tuple[Search, ...]
    horizon: Horizon | None = None
    emit: Emit = "changes"
    insert_only: bool = True
    retract: bool = True
    named: bool = False

    def title(self) -> str:
        return "match"

    def does(self, say: Say) -> str:
        among = f"rows of equal {keyed(self.keys, say)}" if self.keys else "all rows"
        order = f", in the order of {ordered(self.order, say)}" if self.order else ""
        searches = "; ".join(f"{each.name}: {_said(each)}" for each in self.searches)
        final = "; a match appears when no later row can change it" if self.emit == "final" else ""
        return f"matches among {among}{order}: {searches}{final}"

    def keeps(self, say: Say) -> str:
        if self.horizon is None or not self.insert_only:
            return "every row" + ("" if self.insert_only else f", {TAKEN_BACK}")
        before = max(self._before(each) for each in self.searches)
        rows = "rows from the first one of which it is not certain yet what begins with it"
        rows += f", and {before} before it" if before else ""
        return rows + ("; and how many matches each key had" if self._counts() else "")

    def drops(self, say: Say) -> str:
        if self.horizon is None or not self.insert_only:
            return f"{ENDLESS}the rows"
        within = [each.within for each in self.searches if each.within is not None]
        if len(within) < len(self.searches):
            return "when what begins with them is certain; a match of any length may wait for ever"
        rest = beyond(self.horizon, say, max(within, default=0))
        return f"{rest}, but what is kept of each key {ENDLESS}the keys" if self._keeps_keys() else rest

    def bounded_by(self) -> str:
        return "a bound in time lets go of it: within=, or WITHIN behind PATTERN"

    def passes(self) -> bool:
        return False

    def is_bounded(self) -> bool:
        return self._lets_go() and not self._keeps_keys()

    def is_replayable(self) -> bool:
        return True

    def keeps_events(self, endless: Sequence[bool], own: Callable[[str], bool]) -> bool:
        return any(endless) and not self._lets_go()

    def is_endless(self, endless: Sequence[bool]) -> bool:
        return any(endless)

    def holding(self, name: str, here: str) -> set[str]:
        return {name} & set(self.keys)

    def sends_as_many(self) -> bool:
        return False

    def _lets_go(self) -> bool:
        """Whether every row is forgotten at some time, besides a few of each key."""
        bounded = all(search.within is not None for search in self.searches)
        return self.insert_only and self.horizon is not None and bounded

    def _keeps_keys(self) -> bool:
        """Whether something is kept of each key for ever."""
        anchored = any(_has_start(search.pattern) for search in self.searches)
        return (
            anchored or self._counts() or any(self._before(search) or self._after(search) for search in self.searches)
        )

    def _counts(self) -> bool:
        slots = (slot for search in self.searches for each in search.measures for _, slot in each.slots)
        return any(isinstance(slot, MatchNumber) for slot in slots)

    def _before(self, search: Search) -> int:
        """How many rows before a match its conditions and measures look."""
        return max([0, *(-away for away in _aways(search))])

    def _after(self, search: Search) -> int:
        return max([0, *_aways(search)])


def _aways(search: Search) -> list[int]:
    slots = [slot for each in (*search.conditions, *search.measures) for _, slot in each.slots]
    return [slot.away for slot in slots if isinstance(slot, Navigation | Classifier)]


def _has_start(pattern: Pattern) -> bool:
    match pattern:
        case Anchor(at):
            return at == "start"
        case Sequential(parts) | Alternatives(parts):
            return any(map(_has_start, parts))
        case Repeated(part) | Excluded(part):
            return _has_start(part)
    return False


def _said(search: Search) -> str:
    """A search in words: the pattern, the conditions of its variables, how long a match may be."""
    conditions = ", ".join(f"{each.name} AS {each.written or each.expression}" for each in search.conditions)
    within = f" within {span(search.within)}" if search.within is not None else ""
    return f"{pattern_text(search.pattern)}{within}" + (f" where {conditions}" if conditions else "")


def pattern_text(pattern: Pattern) -> str:
    """A pattern as one writes it.

    >>> pattern_text(Sequential((Variable("A"), Repeated(Variable("B"), 1, None), Anchor("end"))))
    'A B+ $'
    >>> pattern_text(Repeated(Alternatives((Variable("A"), Variable("B"))), 2, 3, greedy=False))
    '(A | B){2,3}?'
    """
    match pattern:
        case Variable(name):
            return name
        case Sequential(parts):
            return (
                " ".join(_inner(each) if isinstance(each, Alternatives) else pattern_text(each) for each in parts)
                or "()"
            )
        case Alternatives(parts):
            return " | ".join(map(pattern_text, parts))
        case Excluded(part):
            return f"{{- {pattern_text(part)} -}}"
        case Anchor(at):
            return {"start": "^", "end": "$", "expiry": "until time runs out"}[at]
        case Repeated(part, least, most, greedy):
            counted = {(0, None): "*", (1, None): "+", (0, 1): "?"}
            usual = f"{{{least}}}" if least == most else f"{{{least},{'' if most is None else most}}}"
            return f"{_inner(part)}{counted.get((least, most), usual)}{'' if greedy else '?'}"


def _inner(pattern: Pattern) -> str:
    text = pattern_text(pattern)
    return text if isinstance(pattern, Variable | Excluded) else f"({text})"
