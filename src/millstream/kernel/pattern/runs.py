"""Conditions that compare a row with the first row of its match, over many rows at once: for starts whose matches go far.

Row by row such a condition costs about a microsecond, and a key with many rows in a short time has many starts that go over all of
them. Both sides of a comparison are columns, each computed once, so that a run of rows costs a look at numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from sqlglot import TokenType

from millstream.kernel.pattern.automaton import Automaton
from millstream.kernel.pattern.formulas import Part, compiled, is_row, is_start, names_of, outermost, slot_type
from millstream.kernel.pattern.layout import Flags, Layout, Positions
from millstream.relation.pattern import Navigation
from millstream.scalar.types import DOUBLE, INTEGERS, TIMESTAMP

_TESTS: dict[TokenType, Callable[[Any, Any], Flags]] = {
    TokenType.EQ: np.equal, TokenType.NEQ: np.not_equal,
    TokenType.LT: np.less, TokenType.LTE: np.less_equal,
    TokenType.GT: np.greater, TokenType.GTE: np.greater_equal,
}  # fmt: skip
_TIMES = (TIMESTAMP, pl.Datetime("us"))


@dataclass(frozen=True)
class _Side:
    """One side of a comparison for every row: the value, where there is one, and where only Spark can tell."""

    kind: str
    values: Any
    known: Flags
    unsure: Flags


@dataclass(frozen=True)
class _Comparison:
    """A row, and the first row of its match."""

    test: Callable[[Any, Any], Flags]
    row: _Side
    start: _Side


class Runs:
    """What the conditions of one search say of runs of rows, for a start. ``slow`` are the variables of which it takes more to tell."""

    def __init__(self, parts: list[Part], automaton: Automaton, layout: Layout, masks: Positions) -> None:
        self._masks = masks
        variables = automaton.variables()
        self._compared: list[list[_Comparison]] = [[] for _ in variables]
        self.slow: set[int] = set()
        for part in parts:
            if part.reads != "start":
                continue
            variable = variables.index(part.variable)
            if (compared := _comparison(part, automaton, layout)) is None:
                self.slow.add(variable)
            else:
                self._compared[variable].append(compared)

    def bits(self, variables: set[int], begin: int, end: int, start: int) -> tuple[Positions, Flags]:
        """The bits of the rows, as far as these variables go, and which rows must be asked one by one."""
        count = len(self._compared)
        bits = self._masks[begin:end].copy()
        doubtful = np.zeros(end - begin, np.bool_)
        for variable in variables:
            if not self._compared[variable]:
                continue
            asked = bits >> variable & 1 == 1
            doubtful |= asked & (bits >> count + variable & 1 == 1)
            true = np.ones(end - begin, np.bool_)
            for each in self._compared[variable]:
                true &= each.row.known[begin:end] & each.start.known[start]
                true &= each.test(each.row.values[begin:end], each.start.values[start])
                doubtful |= asked & (each.row.unsure[begin:end] | each.start.unsure[start])
            bits[asked & ~true] &= ~(1 << variable)
        return bits, doubtful


def _comparison(part: Part, automaton: Automaton, layout: Layout) -> _Comparison | None:
    """The part as a comparison of a row with the first row of its match, each for itself; None if it is more."""
    cut = [token for token in outermost(part.sql) if token.token_type in _TESTS]
    if len(cut) != 1:
        return None
    sides = [part.sql[: cut[0].start], part.sql[cut[0].end + 1 :]]
    found = {name: slot for name, slot in part.slots if isinstance(slot, Navigation)}
    if len(found) < len(part.slots):
        return None
    slots = [{name: slot for name, slot in found.items() if name.lower() in names_of(side)} for side in sides]
    of_row = [all(is_row(slot, part.variable) for slot in each.values()) for each in slots]
    of_start = [all(is_start(slot, automaton) for slot in each.values()) for each in slots]
    if not (of_row[0] and of_start[1]) and not (of_start[0] and of_row[1]):
        return None
    left, right = (_side(side, each, layout) for side, each in zip(sides, slots, strict=True))
    if left is None or right is None or left.kind != right.kind:
        return None
    test = _TESTS[cut[0].token_type]
    if of_row[0] and of_start[1]:
        return _Comparison(test, left, right)
    return _Comparison(lambda row, start: test(start, row), right, left)


def _side(sql: str, slots: dict[str, Navigation], layout: Layout) -> _Side | None:
    schema = layout.rows.schema
    scalar = compiled(sql.strip(), {name: slot_type(slot, schema) for name, slot in slots.items()})
    if scalar is None or scalar.dtype not in (*INTEGERS, *_TIMES, DOUBLE):
        return None
    kind = "integer" if scalar.dtype in INTEGERS else str(scalar.dtype)
    height = pl.repeat(0, layout.rows.height, eager=True).alias("_height")
    given = [layout.shifted(slot.argument, slot.away).alias(name) for name, slot in slots.items()]
    doubt = pl.lit(False) if scalar.unsure is None else scalar.unsure.fill_null(False)
    made = pl.DataFrame([height, *given]).select("_height", scalar.value.alias("_value"), doubt.alias("_doubt"))
    values = made["_value"].to_physical()
    if scalar.dtype != DOUBLE:
        values = values.cast(pl.Int64)
    elif values.is_nan().any():  # Spark's order has a place for it, a processor's has none
        return None
    return _Side(kind, values.fill_null(0).to_numpy(), values.is_not_null().to_numpy(), made["_doubt"].to_numpy())
