"""`match`: rows in a pattern, within the rows of a key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from millstream.plan.operators.clauses import Horizon, Order, micros
from millstream.plan.operators.contract import Laid, Names, SpecContract
from millstream.plan.operators.wording import ENDLESS, TAKEN_BACK, Say, beyond, keyed, ordered, span
from millstream.relation import expression, nodes
from millstream.relation.clauses import Emit
from millstream.relation.pattern import (
    Aggregated,
    Alternatives,
    Anchor,
    Classifier,
    Excluded,
    Formula,
    MatchNumber,
    Navigation,
    Pattern,
    Repeated,
    Search,
    Sequential,
    Slot,
)
from millstream.relation.pattern_text import written


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
    return f"{written(search.pattern)}{within}" + (f" where {conditions}" if conditions else "")


def lay(node: nodes.Match, emit: Emit, insert_only: bool) -> Laid:
    """Say how rows are searched for patterns."""
    keys, columns = {each.name: each.expression for each in node.partition}, node.kept()
    names = Names(columns)
    names.wanted = {**keys, **names.wanted}
    order = names.order(node.order)
    searches = tuple(_over_columns(each, names) for each in node.searches)
    final = emit == "final" and node.ends()
    time = expression.lower_column(node.order[0].expression)
    spans = [span for name, span in node.input.settled().items() if name.lower() == time and not order[0].descending]
    horizon = Horizon(order[0].column, micros(spans[0])) if spans else None
    spec = Match(
        tuple(keys), columns, order, searches, horizon, "final" if final else "changes", insert_only, named=node.named
    )
    return Laid(spec, names.wanted, tuple(keys), horizon is not None)


def _over_columns(search: Search, names: Names) -> Search:
    """A search whose slots name columns."""

    def slot(each: Slot) -> Slot:
        if isinstance(each, Navigation):
            return replace(each, argument=names.name(each.argument))
        return replace(each, arguments=tuple(map(names.name, each.arguments))) if isinstance(each, Aggregated) else each

    def formula(each: Formula) -> Formula:
        return replace(each, slots=tuple((name, slot(one)) for name, one in each.slots))

    return replace(
        search, conditions=tuple(map(formula, search.conditions)), measures=tuple(map(formula, search.measures))
    )
