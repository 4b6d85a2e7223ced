"""What is shown of matches: measures over all of them at once.

A line of output is a match, or one of its rows, and the slots of a measure are columns over all lines: a value of a row that is found
by counting the rows of some variables, or an aggregate over a run of them. Scalar expressions over slots come last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import polars as pl

from millstream.errors import PipelineError
from millstream.kernel.aggregates.window_functions import aggregated
from millstream.kernel.pattern.automaton import Automaton
from millstream.kernel.pattern.formulas import compiled, formula_type, slot_type, types_of
from millstream.kernel.pattern.layout import Flags, Layout, Positions, plain, runs_from
from millstream.kernel.pattern.scan import Found
from millstream.plan.operators.clauses import Order
from millstream.relation.pattern import (
    Aggregated,
    Classifier,
    Formula,
    MatchId,
    MatchNumber,
    Navigation,
    Search,
    Slot,
)


@dataclass(frozen=True)
class Matches:
    """Matches as arrays. ``rows`` are those of all matches, one match after the other, ``places`` what each is mapped to."""

    start: Positions
    end: Positions
    number: Positions
    near: Flags
    places: Positions
    rows: Positions
    begin: Positions
    """Where the rows of each match begin among ``rows``."""

    @classmethod
    def of(cls, found: Found) -> Matches:
        """As arrays."""
        start, end = np.array(found.start, np.int64), np.array(found.end, np.int64)
        counts = end - start
        rows = np.repeat(start, counts) + runs_from(counts)
        begin = np.cumsum(counts) - counts
        number, near = np.array(found.number, np.int64), np.array(found.near, np.bool_)
        return cls(start, end, number, near, np.array(found.places, np.int64), rows, begin)


@dataclass(frozen=True)
class Lines:
    """What is shown, line by line: a row, a match (−1: none), and among the rows of matches from where, up to where so far and at last."""

    row: Positions
    match: Positions
    low: Positions
    so_far: Positions
    high: Positions


def lines(search: Search, automaton: Automaton, matches: Matches, unmatched: Positions) -> Lines:
    """The lines of these matches, and of rows of none."""
    counts = matches.end - matches.start
    every = np.arange(len(counts))
    if search.shown == "one":
        high = matches.begin + counts
        return Lines(matches.start, every, matches.begin, high, high)
    of_row = np.repeat(every, counts)
    excluded = np.array([place.excluded for place in automaton.places], np.bool_)
    at = np.flatnonzero(~excluded[matches.places]) if len(matches.places) else np.zeros(0, np.int64)
    match = of_row[at]
    made = [(matches.rows[at], match, matches.begin[match], at + 1, (matches.begin + counts)[match])]
    if search.shown in ("all_with_empty", "all_with_unmatched"):
        empty = np.flatnonzero(counts == 0)
        begin = matches.begin[empty]
        made.append((matches.start[empty], empty, begin, begin, begin))
    if search.shown == "all_with_unmatched":
        none = np.zeros(len(unmatched), np.int64)
        made.append((unmatched, none - 1, none, none, none))
    return Lines(*(np.concatenate(each) for each in zip(*made, strict=True)))


def shown(
    search: Search, automaton: Automaton, layout: Layout, order: Sequence[Order], matches: Matches, made: Lines
) -> list[pl.Series]:
    """The measures, a column each."""
    teller = _Teller(search, automaton, layout, order, matches, made)
    return [teller.formula(each) for each in search.measures]


class _Teller:
    """The slots of measures over lines; one that several measures have is computed once."""

    def __init__(
        self,
        search: Search,
        automaton: Automaton,
        layout: Layout,
        order: Sequence[Order],
        matches: Matches,
        made: Lines,
    ) -> None:
        self.search, self.automaton, self.layout = search, automaton, layout
        self.order, self.matches, self.lines = order, matches, made
        self._known: dict[Slot, pl.Series] = {}
        self._sets: dict[frozenset[str], tuple[Positions, Positions]] = {}

    def formula(self, formula: Formula) -> pl.Series:
        """One measure."""
        schema = self.layout.rows.schema
        dtype = formula_type(formula, schema)
        types = types_of(formula, schema)
        slots = dict(formula.slots)
        if formula.expression in slots:
            return self._slot(slots[formula.expression]).cast(dtype).alias(formula.name)
        scalar = compiled(formula.expression, types)
        assert scalar is not None  # noqa: S101
        height = pl.repeat(0, len(self.lines.row), eager=True).alias("_height")
        frame = pl.DataFrame([height, *(self._slot(slot).alias(name) for name, slot in formula.slots)])
        if scalar.unsure is not None and frame.select(scalar.unsure.fill_null(False).any()).item():
            row = int(self.lines.row[frame.select(scalar.unsure.fill_null(False).arg_max()).item()])
            raise PipelineError(
                f"pattern {self.search.name}, {self.layout.key(row)}: the measure {formula.name} has no value: "
                "a division by zero, or a number too large",
                hint="guard it: nullif(x, 0), or a cast to a wider type",
            )
        return frame.select("_height", scalar.value.alias(formula.name))[formula.name]

    def _slot(self, slot: Slot) -> pl.Series:
        if slot not in self._known:
            made = self._made(slot)
            self._known[slot] = made.cast(slot_type(slot, self.layout.rows.schema))
        return self._known[slot]

    def _made(self, slot: Slot) -> pl.Series:
        if isinstance(slot, Navigation):
            return self.layout.value(slot.argument, self._rows(slot), slot.away)
        if isinstance(slot, Aggregated):
            rows, low, high = self._runs(slot.variables, slot.final)
            chosen = (
                self.layout.rows.select(list(dict.fromkeys(slot.arguments))) if slot.arguments else self.layout.rows
            )
            chosen = chosen[self.matches.rows[rows]]
            return aggregated(chosen, "made", slot.function, slot.arguments, slot.fraction, low, high)
        if isinstance(slot, Classifier):
            return self._classified(slot)
        match, matches = self.lines.match, self.matches
        whole = (match >= 0) & _filled(matches.near, match)
        if isinstance(slot, MatchNumber):
            return _where((match >= 0) & ~whole, pl.Series(_filled(matches.number, match)))
        if isinstance(slot, MatchId):
            return _where(match >= 0, pl.Series(_filled(self._ids(), match), dtype=pl.String))
        last = _filled(matches.begin + (matches.end - matches.start) - 1, match)
        return _where(whole, self._names(last))

    def _runs(self, variables: tuple[str, ...], final: bool) -> tuple[Positions, Positions, Positions]:
        """The rows of some variables among those of all matches, and for each line from where up to where it sees them."""
        key = frozenset(variables)
        if key not in self._sets:
            chosen = np.array([not variables or place.variable in key for place in self.automaton.places], np.bool_)
            places = self.matches.places
            there = chosen[places] if len(places) else np.zeros(0, np.bool_)
            self._sets[key] = np.flatnonzero(there), np.concatenate([np.zeros(1, np.int64), np.cumsum(there)])
        rows, count = self._sets[key]
        high = self.lines.high if final else self.lines.so_far
        return rows, count[self.lines.low], count[high]

    def _at(self, slot: Navigation | Classifier) -> Positions:
        """For each line which of the rows of all matches a slot begins at; −1 for none."""
        rows, low, high = self._runs(slot.variables, slot.final)
        at = low + slot.steps if slot.which == "first" else high - 1 - slot.steps
        inside = (at >= low) & (at < high)
        return np.where(inside, rows[np.where(inside, at, 0)], -1) if len(rows) else np.full(len(low), -1)

    def _rows(self, slot: Navigation) -> Positions:
        at = self._at(slot)
        return np.where(at >= 0, self.matches.rows[at], -1) if len(self.matches.rows) else at

    def _classified(self, slot: Classifier) -> pl.Series:
        """Names of variables; a row beside the match is mapped to none, nor is in a running measure one that is still to come."""
        at = self._at(slot)
        high = self.lines.high if slot.final else self.lines.so_far
        moved = at + slot.away
        inside = (at >= 0) & (moved >= self.lines.low) & (moved < high)
        return _where(inside, self._names(np.where(inside, moved, 0)))

    def _names(self, at: Positions) -> pl.Series:
        names = pl.Series([place.variable for place in self.automaton.places], dtype=pl.String)
        if not len(self.matches.places):
            return pl.repeat(None, len(at), dtype=pl.String, eager=True)
        return names.gather(pl.Series(self.matches.places[np.maximum(at, 0)]).cast(pl.UInt32))

    def _ids(self) -> list[str]:
        """For each match a text that tells it from all others, whatever else there is."""
        layout, matches = self.layout, self.matches
        keys = [name for name in layout.keys if not name.startswith("_g")]
        names = [*keys, *(each.column for each in self.order)]
        peers = _peers(layout, self.order)
        last = np.maximum(matches.end - 1, matches.start)
        values = plained(layout.rows.select(pl.lit(None).alias("_"), *dict.fromkeys(names))) if len(peers) else None
        first_values, last_values = (
            values[rows].rows() if values is not None else [] for rows in (matches.start, last)
        )
        told = zip(
            first_values,
            peers[matches.start].tolist(),
            last_values,
            peers[last].tolist(),
            (matches.end - matches.start == 0).tolist(),
            matches.near.tolist(),
            strict=True,
        )
        name = self.search.name
        return [blake2b(repr((name, *each)).encode(), digest_size=16).hexdigest() for each in told]


def plained(rows: pl.DataFrame) -> pl.DataFrame:
    """Values whose text depends on nothing but them: times as numbers, 0.0 without a sign."""
    return rows.select(plain(column) if not column.dtype.is_float() else column + 0.0 for column in rows.get_columns())


def _peers(layout: Layout, order: Sequence[Order]) -> Positions:
    """For each row how many before it in its key have the same order."""
    begins = np.zeros(layout.rows.height, np.bool_)
    begins[layout.first] = True
    for each in order:
        values = layout.rows[each.column]
        begins[1:] |= values.ne_missing(values.shift(1)).to_numpy()[1:]
    at = np.arange(len(begins))
    found: Positions = at - np.maximum.accumulate(np.where(begins, at, 0)) if len(begins) else at
    return found


def peers_first(layout: Layout, order: Sequence[Order], rows: Positions) -> Positions:
    """For each of these rows the first one of its key that has the same order."""
    return rows - _peers(layout, order)[rows] if len(rows) else rows


def _filled(values: Any, match: Positions) -> Any:
    """The values of matches for lines; of a line without a match any."""
    if not len(values):
        return np.zeros(len(match), values.dtype) if isinstance(values, np.ndarray) else [None] * len(match)
    if isinstance(values, np.ndarray):
        return values[np.maximum(match, 0)]
    return [values[max(each, 0)] for each in match.tolist()]


def _where(flags: Flags, values: pl.Series) -> pl.Series:
    return pl.select(pl.when(pl.Series(flags, dtype=pl.Boolean)).then(values).alias("made")).to_series()
