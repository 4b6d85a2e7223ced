"""The types of what patterns look at and tell: slots from the rows, formulas from the slots.

A formula must be in the subset of scalar SQL that kernels compute: it is over rows that only a kernel has together. What it takes from one
row, inside of ``LAST(…)``, may be any expression, as that is computed before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import polars as pl

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.nodes import NOWHERE, Aggregation, Match, Place
from millstream.relation.pattern import Aggregated, Classifier, Formula, MatchId, MatchNumber, Slot, Stage
from millstream.scalar.compile import compile_scalar
from millstream.typecheck.rules import say

Types: TypeAlias = Mapping[str, pl.DataType]
_HINT = "what looks at one row may be any expression inside of LAST(…), as in LAST(soundex(A.name)); or compute it in a select before"


def known_of(types: Mapping[str, pl.DataType | None]) -> dict[str, pl.DataType]:
    """The types that are known."""
    return {name: kind for name, kind in types.items() if kind is not None}


def aggregations(formula: Formula) -> list[Aggregation]:
    """The aggregates among the slots of a formula."""
    return [
        Aggregation(name, slot.function, slot.arguments, slot.fraction, formula.written)
        for name, slot in formula.slots
        if isinstance(slot, Aggregated)
    ]


def plain_slots(formula: Formula) -> dict[str, pl.DataType]:
    """The slots whose types do not depend on the rows."""
    return known_of({name: _plain(slot) for name, slot in formula.slots})


def _plain(slot: Slot) -> pl.DataType | None:
    match slot:
        case Classifier() | MatchId() | Stage():
            return pl.String()
        case MatchNumber():
            return pl.Int64()
        case _:
            return None


def check_order(node: Match, kind: pl.DataType | None) -> None:
    """Refuse a span of time where rows are not in the order of one."""
    if node.longest() is not None and kind is not None and not isinstance(kind, pl.Datetime):
        text = node.order[0].expression
        raise PlanError(
            f"{node.place}: match: within= needs an order that begins with a timestamp; found `{text}`, {say(kind)}",
            hint=f"cast({text} AS timestamp)",
        )


def measured(node: Match, slots: Callable[[Formula], Types]) -> dict[str, pl.DataType]:
    """The types of the measures, the same in all searches; ``slots`` are the known types of a formula's slots."""
    found: dict[str, pl.DataType] = {}
    for search in node.searches:
        for each in search.conditions:
            kind = _type(node, each, "define", slots(each))
            if kind not in (None, pl.Boolean(), pl.Null()):
                hint = f"{each.name} AS {each.written} > 0"
                message = f"{_place(node, each)}: define {each.name} `{each.written}`: expected a condition; found {say(kind)}"
                raise PlanError(message, hint=hint)
        made = known_of({each.name: _type(node, each, "measure", slots(each)) for each in search.measures})
        for name, kind in made.items():
            if found.setdefault(name, kind) != kind:
                raise PlanError(
                    f"{node.place}: match_any: {name} is {say(found[name])} of one pattern and {say(kind)} of {search.name}; expected one type",
                    hint=f"cast({name} AS {say(found[name])})",
                )
    return found


def _place(node: Match, formula: Formula) -> Place:
    """Where a formula was said."""
    if formula.place == NOWHERE:
        return node.place
    return replace(formula.place, within=node.place.within)


def _type(node: Match, formula: Formula, what: str, slots: Types) -> pl.DataType | None:
    """The type of a formula; None if that of one of its slots is not known."""
    if len(slots) < len(formula.slots):
        return None
    if expression.plain_column(formula.expression) is not None:
        return slots[formula.expression]
    made = compile_scalar(formula.expression, slots, utc=True)
    if made is None:
        message = f"{_place(node, formula)}: {what} {formula.name} `{formula.written}`: kernels cannot compute this over the rows of a match"
        raise PlanError(message, hint=_HINT)
    return made.dtype
