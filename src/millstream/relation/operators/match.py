"""`match`: rows in a pattern, among the rows of equal partition, in an order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.clauses import NOWHERE, WINDOW_COLUMNS, Emit, Named, Ordering, Place
from millstream.relation.kinds import Kind, of_named, without_fields
from millstream.relation.operators.checks import as_list, check_names, named_column
from millstream.relation.operators.contract import NodeContract, lateness, lower, texts_by_name
from millstream.relation.pattern import Aggregated, Anchor, MatchId, MatchNumber, Navigation, Search
from millstream.relation.pattern_search import Sought, at_its_place, inside, never_ends, search_of, sought
from millstream.relation.pattern_text import written
from millstream.relation.schema import format_duration
from millstream.relation.wording import describe_columns, describe_order

if TYPE_CHECKING:
    from millstream.relation.nodes import Node

_OPTIONS = ("pattern", "define", "measures", "rows", "skip", "within", "subset", "near")
_ANY = 'match_any({"fall": {"pattern": "A B+", "define": {"B": "price < PREV(price)"}, "measures": {"low": "LAST(B.price)"}}}, order="at")'
PATTERN = "pattern"
"""The column with the name of a search, where there are several."""


@dataclass(frozen=True, slots=True)
class Match(NodeContract):
    """The matches of one or several searches among the rows of ``input`` of equal ``partition``, in this order.

    Its columns are those of ``partition``; with ``named`` the search's name; if all rows are shown the other columns of the
    input; then the measures.
    """

    tag: ClassVar[str] = "Match"
    input: Node
    partition: tuple[Named, ...]
    order: tuple[Ordering, ...]
    searches: tuple[Search, ...]
    named: bool = False
    place: Place = field(default=NOWHERE, compare=False)

    def input_nodes(self) -> tuple[Node, ...]:
        return (self.input,)

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return replace(self, input=inputs[0])

    def output_columns(self) -> tuple[str, ...]:
        measures = [each.name for each in self.searches[0].measures]
        return (*self.keys(), *([PATTERN] if self.named else []), *self.kept(), *measures)

    def keys(self) -> tuple[str, ...]:
        """The columns of the partition."""
        return tuple(each.name for each in self.partition)

    def kept(self) -> tuple[str, ...]:
        """The columns of the input that its rows have besides: none where each match is one row."""
        keys = lower(self.keys())
        shown = any(each.shown != "one" for each in self.searches)
        return tuple(name for name in self.input.output_columns() if name.lower() not in keys) if shown else ()

    def visible(self) -> tuple[str, ...]:
        return self.output_columns()

    def expressions(self, side: int | None = None) -> list[str]:
        return [*self.compared(0), *self.arguments()]

    def arguments(self) -> list[str]:
        """What values of rows are looked at, as expressions over the input."""
        found: list[str] = []
        for search in self.searches:
            for _, slot in (slot for each in (*search.conditions, *search.measures) for slot in each.slots):
                if isinstance(slot, Navigation):
                    found.append(slot.argument)
                elif isinstance(slot, Aggregated):
                    found += slot.arguments
        return list(dict.fromkeys(found))

    def compared(self, side: int) -> Sequence[str]:
        return [*(each.expression for each in self.partition), *(each.expression for each in self.order)]

    def kinds(self) -> dict[str, Kind]:
        below = self.input.kinds()
        kept = {name.lower(): below[name.lower()] for name in self.kept() if name.lower() in below}
        return without_fields(kept | of_named(self.partition, below))

    def lines(self) -> list[str]:
        by = f"partition {describe_columns(self.partition) or 'all'} order {describe_order(self.order)}"
        return [*self.input.lines(), *(f"match {by}: {describe_search(each)}" for each in self.searches)]

    def is_stream(self) -> bool:
        return self.input.is_stream()

    def is_insert_only(self, emit: Emit = "changes") -> bool:
        return emit == "final" and self.ends() and not lateness(self)

    def event_time(self) -> str | None:
        """None: a match may be told long after its last row, when it has run out of time."""
        return None

    def settled(self) -> dict[str, timedelta]:
        """The times of a match's rows: it changes no more once its first row is as long ago as it may last."""
        time, longest = self.input.event_time(), self.longest()
        if time is None or longest is None or not self.in_time():
            return {}
        span = lateness(self) + longest
        names = [name for name in self.kept() if name.lower() == time.lower()]
        if len(self.searches) == 1:
            for each in self.searches[0].measures:
                slot = each.slots[0][1] if each.expression == "_s0" else None
                if isinstance(slot, Navigation) and slot.away == 0 and expression.is_column(slot.argument, time):
                    names.append(each.name)
        return dict.fromkeys(names, span)

    def natural_key(self) -> tuple[str, ...]:
        if len(self.searches) > 1 or self.searches[0].shown != "one":
            return ()
        for each in self.searches[0].measures:
            if each.expression == "_s0" and isinstance(each.slots[0][1], MatchId):
                return (*self.keys(), each.name)
        return ()

    def never_null(self) -> frozenset[str]:
        known = lower(self.input.never_null())
        keys = {each.name for each in self.partition if expression.lower_column(each.expression) in known}
        kept = {name for name in self.kept() if name.lower() in known}
        return frozenset({*keys, *kept, *([PATTERN] if self.named else [])})

    def has_kernel(self) -> bool:
        return True

    def is_bounded(self) -> bool:
        """Whether it keeps nothing for ever: a row before the match, and how many there were, are kept of each key."""
        slots = [
            slot for each in self.searches for made in (*each.conditions, *each.measures) for _, slot in made.slots
        ]
        of_keys = any(isinstance(slot, MatchNumber) or getattr(slot, "away", 0) for slot in slots)
        starts = any(
            isinstance(part, Anchor) and part.at == "start" for each in self.searches for part in inside(each.pattern)
        )
        lets_go = self.longest() is not None and self.in_time() and self.input.is_insert_only()
        return lets_go and not of_keys and not starts

    def ends(self) -> bool:
        return self.in_time() and not any(map(never_ends, self.searches))

    def condition_below(self, part: str, used: frozenset[str]) -> Sequence[str | None]:
        about_keys = used <= set(self.keys())
        return (expression.substitute(part, texts_by_name(self.partition)),) if about_keys else ()

    def in_time(self) -> bool:
        """Whether its rows are in the order of the event time, so that what is before the mark stays."""
        time, first = self.input.event_time(), self.order[0]
        return time is not None and not first.descending and expression.is_column(first.expression, time)

    def longest(self) -> timedelta | None:
        """How long any match may be; None where one of the searches does not say."""
        spans = [each.within for each in self.searches]
        return None if None in spans else timedelta(microseconds=max(each or 0 for each in spans))


def describe_search(search: Search) -> str:
    """A search as one line."""
    name = f"{search.name} = " if search.name != "match" else ""
    within = f" within {format_duration(timedelta(microseconds=search.within))}" if search.within else ""
    defined = "; ".join(f"{each.name} as {each.written}" for each in search.conditions)
    made = ", ".join(f"{each.name} = {each.written}" for each in search.measures)
    shown = "" if search.shown == "one" else f", {search.shown.replace('_', ' ')} rows"
    behind = f" where {defined}" if defined else ""
    return (
        f"{name}({written(search.pattern)}){within}{behind}{shown}{', near misses' * search.near}: {made or 'nothing'}"
    )


def match(
    node: Node, said: Sequence[Sought], partition: Any, order: str | None, place: Place, named: bool = False
) -> Match:
    """The matches of one or several searches."""
    keys = tuple(named_column(text, node, "match: partition") for text in as_list(partition))
    if not order:
        raise PlanError("match: a pattern needs an order", hint='order="at"')
    ordering = expression.parse_order(order, node.visible(), "match: order")
    searches = tuple(search_of(each, node.visible()) for each in said)
    _refuse_different(searches)
    made = Match(node, keys, ordering, searches, named, place)
    for one, each in zip(said, searches, strict=True):
        for measure in each.measures:
            if measure.name.lower() in WINDOW_COLUMNS:
                raise PlanError(f"match: {measure.name} is reserved for windows; expected another name")
        with at_its_place(one.places.within):
            if (each.within is not None and ordering[0].descending) or (_waits(each) and not made.in_time()):
                what = "near=True" if each.near else "within="
                hint = f'order="{node.event_time() or "at"}"'
                raise PlanError(f"match: {what} needs an order that begins with the event time, ascending", hint=hint)
    if not made.output_columns():
        raise PlanError("match: expected at least one measure; found none", hint='measures={"n": "count(*)"}')
    check_names(made.output_columns(), "match")
    return made


def match_any(node: Node, patterns: Any, partition: Any, order: str | None, place: Place) -> Match:
    """The matches of several searches, with the name of each."""
    if not isinstance(patterns, Mapping) or not patterns:
        raise PlanError(f"match_any: expected patterns by their names; found {patterns!r}", hint=_ANY)
    said = []
    for name, options in patterns.items():
        wrong = [each for each in options if each not in _OPTIONS] if isinstance(options, Mapping) else [options]
        if wrong or "pattern" not in options:
            found = repr(wrong[0]) if wrong else "no pattern"
            raise PlanError(f"match_any {name}: expected {', '.join(_OPTIONS)}; found {found}", hint=_ANY)
        said.append(sought(**options, name=name))
    return match(node, said, partition, order, place, named=True)


def _refuse_different(searches: Sequence[Search]) -> None:
    """Refuse several searches that would not make rows of the same columns."""
    first = searches[0]
    for each in searches[1:]:
        if [measure.name for measure in each.measures] != [measure.name for measure in first.measures]:
            found = " and ".join(", ".join(made.name for made in one.measures) or "none" for one in (first, each))
            raise PlanError(
                f"match_any: {first.name} and {each.name}: expected measures of the same names; found {found}",
                hint="the matches of all patterns are rows of one relation: cast(NULL AS string) where one has no value",
            )
        if each.shown != first.shown:
            raise PlanError(
                f"match_any: {first.name} and {each.name}: expected the same rows=; found {first.shown} and {each.shown}"
            )


def _waits(search: Search) -> bool:
    """Whether it tells something only because time has gone on."""
    return search.near or any(isinstance(each, Anchor) and each.at == "expiry" for each in inside(search.pattern))


def not_final(node: Node) -> PlanError | None:
    """Why matches in a relation never become final; None if they do, or there are none."""
    if isinstance(node, Match) and not node.ends():
        if not node.in_time():
            hint = f'order="{node.input.event_time() or "at"}", the event time, ascending'
            return PlanError('emit="final": matches become final in the order of the event time alone', hint=hint)
        what = next(filter(None, map(never_ends, node.searches)))
        message = f'emit="final": a match of {what} at the end of a pattern is never known to be the longest'
        return PlanError(message, hint='say how long a match may last: within="5 minutes"; or emit="changes"')
    return next(filter(None, map(not_final, node.input_nodes())), None)
