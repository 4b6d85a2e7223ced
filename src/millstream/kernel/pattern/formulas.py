"""The conditions of a search: which are columns over all rows, which look at the first row of a match too, which at all of it.

A part of a condition between ANDs that looks at the row itself and its neighbours alone is a column. What is left is computed for a
row and the first row of its match, if no more is looked at; else the match so far is kept for it (:mod:`.history`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np
import polars as pl
from sqlglot import Token, TokenError, TokenType

from millstream.errors import PipelineError
from millstream.kernel.aggregates.window_functions import aggregated
from millstream.kernel.pattern.automaton import ACCEPT, AT_START, Automaton
from millstream.relation.pattern import (
    Aggregated,
    Classifier,
    Formula,
    MatchId,
    MatchNumber,
    Navigation,
    Search,
    Slot,
    Stage,
)
from millstream.relation.schema import tokens_of
from millstream.scalar.compile import Scalar, compile_scalar
from millstream.scalar.types import BOOLEAN, LONG, TEXT

Reads: TypeAlias = Literal["row", "start", "match"]
"""What a slot looks at: the row, the first row of the match besides, or all of the match so far."""

_MANY = 1_000


@dataclass(frozen=True)
class Part:
    """A part of a condition: true where the condition is true, together with its other parts."""

    variable: str
    sql: str
    slots: tuple[tuple[str, Slot], ...]
    reads: Reads


def slot_type(slot: Slot, schema: Mapping[str, pl.DataType]) -> pl.DataType:
    """The type of a slot over rows of these types."""
    if isinstance(slot, Navigation):
        return schema[slot.argument]
    if isinstance(slot, Aggregated):
        return _aggregate_type(slot.function, slot.fraction, tuple(schema[name] for name in slot.arguments))
    return LONG if isinstance(slot, MatchNumber) else TEXT


@cache
def _aggregate_type(function: str, fraction: float, types: tuple[pl.DataType, ...]) -> pl.DataType:
    none = np.zeros(0, np.int64)
    names = tuple(f"_{index}" for index in range(len(types)))
    rows = pl.DataFrame(schema=dict(zip(names, types, strict=True)))
    return aggregated(rows, "made", function, names, fraction, none, none).dtype


def types_of(formula: Formula, schema: Mapping[str, pl.DataType]) -> dict[str, pl.DataType]:
    """The types of a formula's slots."""
    return {name: slot_type(slot, schema) for name, slot in formula.slots}


def compiled(sql: str, types: Mapping[str, pl.DataType]) -> Scalar | None:
    """An expression over slots of these types; None if it takes Spark."""
    return _compiled(sql, tuple(types.items()))


@cache
def _compiled(sql: str, types: tuple[tuple[str, pl.DataType], ...]) -> Scalar | None:
    return compile_scalar(sql, dict(types), exact=True)


def formula_type(formula: Formula, schema: Mapping[str, pl.DataType]) -> pl.DataType:
    """The type of a formula over rows of these types; PipelineError where it cannot be computed without Spark."""
    types = types_of(formula, schema)
    if formula.expression in types:
        return types[formula.expression]
    scalar = compiled(formula.expression, types)
    if scalar is None:
        raise PipelineError(
            f"{formula.name}: {formula.written or formula.expression} is not an expression that a pattern can compute",
            hint="compute what it needs in a select below the pattern, as a column",
        )
    return scalar.dtype


def computable(formula: Formula, types: Mapping[str, pl.DataType]) -> bool:
    """Whether a pattern can compute a condition or a measure over rows of these types."""
    try:
        formula_type(formula, types)
    except PipelineError:
        return False
    return True


def condition_parts(search: Search, automaton: Automaton, schema: Mapping[str, pl.DataType]) -> list[Part]:
    """The parts of all conditions that the pattern asks."""
    made = []
    asked = set(automaton.variables())
    for condition in search.conditions:
        if condition.name not in asked:
            continue
        if formula_type(condition, schema) != BOOLEAN:
            raise PipelineError(f"{condition.name}: a condition is true or false; found {condition.written}")
        if any(isinstance(slot, MatchNumber | MatchId | Stage) for _, slot in condition.slots):
            raise PipelineError(f"{condition.name}: a condition knows neither the number of its match nor its id")
        types = types_of(condition, schema)
        texts = _conjuncts(condition.expression)
        if any((scalar := compiled(text, types)) is None or scalar.dtype != BOOLEAN for text in texts):
            texts = [condition.expression]
        for text in texts:
            slots = tuple((name, slot) for name, slot in condition.slots if name.lower() in names_of(text))
            reads = [_reads(slot, condition.name, automaton) for _, slot in slots]
            made.append(Part(condition.name, text, slots, _most(reads)))
    return made


def _most(reads: Iterable[Reads]) -> Reads:
    found = set(reads)
    return "match" if "match" in found else "start" if "start" in found else "row"


def _reads(slot: Slot, variable: str, automaton: Automaton) -> Reads:
    if not isinstance(slot, Navigation | Classifier):
        return "match"
    if is_row(slot, variable):
        return "match" if isinstance(slot, Classifier) and slot.away else "row"
    if isinstance(slot, Navigation) and is_start(slot, automaton):
        return "start"
    return "match"


def is_row(slot: Navigation | Classifier, variable: str) -> bool:
    """Whether it begins at the row itself, when that is mapped to a variable."""
    return slot.which == "last" and not slot.steps and (not slot.variables or variable in slot.variables)


def is_start(slot: Navigation, automaton: Automaton) -> bool:
    """Whether it begins at the first row of the match, whatever that is."""
    if slot.steps:
        return False
    if not slot.variables:
        return slot.which == "first"
    heads = {each for where in (0, AT_START) for each in automaton.first(where) if each != ACCEPT}
    places = automaton.places
    if any(places[each].variable not in slot.variables for each in heads):
        return False
    if slot.which == "first":
        return True
    if len(places) > _MANY:
        return False
    others = {each for place in range(len(places)) for where in range(8) for each in automaton.follow(place, where)}
    return not any(each != ACCEPT and places[each].variable in slot.variables for each in others)


def reach(slots: Iterable[Slot]) -> tuple[int, int]:
    """How many rows before and behind a row of the match these look."""
    away = [slot.away for slot in slots if isinstance(slot, Navigation | Classifier)]
    return max([0, *(-each for each in away)]), max([0, *away])


def names_of(sql: str) -> set[str]:
    """The words of a piece of SQL, without case."""
    return {token.text.lower() for token in tokens_of(sql)}


_OPENS = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.CASE)
_CLOSES = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.END)


def outermost(sql: str) -> Iterator[Token]:
    """The tokens of a piece of SQL that are in no brackets and in no CASE; what closes one is among them."""
    depth = 0
    for token in tokens_of(sql):
        depth += (token.token_type in _OPENS) - (token.token_type in _CLOSES)
        if not depth:
            yield token


def _conjuncts(sql: str) -> list[str]:
    """The parts of a condition between its outermost ANDs."""
    between = begin = 0
    parts = []
    try:
        for token in outermost(sql):
            kind = token.token_type
            if kind == TokenType.OR:
                return [sql]
            between += kind == TokenType.BETWEEN
            if kind == TokenType.AND:
                if between:
                    between -= 1
                    continue
                parts.append(sql[begin : token.start])
                begin = token.end + 1
    except TokenError:
        return [sql]
    return [*parts, sql[begin:]]


def value_of_rows(rows: pl.DataFrame, slot: Aggregated) -> Any:
    """An aggregate over all of some rows."""
    low, high = np.zeros(1, np.int64), np.full(1, rows.height, np.int64)
    return aggregated(rows, "made", slot.function, slot.arguments, slot.fraction, low, high)[0]
