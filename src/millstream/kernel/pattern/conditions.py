"""The conditions of a search over laid out rows: as bits of each row what can be told of it alone, as functions what cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from millstream.kernel.pattern.automaton import Automaton
from millstream.kernel.pattern.closures import Compute, Unsure, closure
from millstream.kernel.pattern.formulas import Part, compiled, is_row, is_start, slot_type, value_of_rows
from millstream.kernel.pattern.history import Asked, Count, Extreme, Rows, Running, Total
from millstream.kernel.pattern.layout import Flags, Layout, plain
from millstream.kernel.pattern.runs import Runs
from millstream.relation.pattern import Aggregated, Classifier, Navigation, Slot

_WORD = 60
"""Variables whose bits fit a whole number of the machine."""


@dataclass
class Here:
    """Where a search is: the rows of its key, the place that each row so far is mapped to, and from which row on."""

    low: int = 0
    high: int = 0
    start: int = 0
    labels: list[int] = field(default_factory=list)


class Conditions:
    """The conditions of the variables of a pattern, over some rows."""

    def __init__(self, parts: list[Part], automaton: Automaton, layout: Layout) -> None:
        self.automaton, self.layout = automaton, layout
        self.variables = automaton.variables()
        self.number = {name: index for index, name in enumerate(self.variables)}
        self.here = Here()
        self._tracked: dict[Any, Running] = {}
        self.pushes: list[list[Running]] = [[] for _ in self.variables]
        """What goes on when a row is mapped to a variable."""
        self.of_start: list[list[Compute]] = [[] for _ in self.variables]
        self.of_match: list[list[Compute]] = [[] for _ in self.variables]
        rows: dict[str, list[tuple[Flags, Flags | None]]] = {}
        for part in parts:
            if part.reads == "row":
                rows.setdefault(part.variable, []).append(self._column(part))
            else:
                made = self.of_start if part.reads == "start" else self.of_match
                made[self.number[part.variable]].append(self._function(part))
        height = layout.rows.height
        self.true: dict[int, Flags] = {}
        """Of the variables of which something is known by the row alone: where that holds, or Spark would fail."""
        self.unsure: dict[int, Flags] = {}
        for name, columns in rows.items():
            true, unsure, maybe = np.ones(height, np.bool_), np.zeros(height, np.bool_), np.ones(height, np.bool_)
            for flags, doubt in columns:
                true &= flags
                maybe &= flags if doubt is None else flags | doubt
                unsure |= False if doubt is None else doubt
            self.true[self.number[name]] = true | (maybe & unsure)
            if (maybe & unsure).any():
                self.unsure[self.number[name]] = maybe & unsure
        self.runs: Runs | None = None
        """Conditions of the first row over many rows at once; None if there are none, or more variables than bits of a number."""
        self.masks = self._masks(parts)
        self.looks_back = any(self.of_match)
        """Whether a condition looks at more of the match than its first row."""
        self.looks_at_start = any(self.of_start)
        """Whether a condition looks at the first row of the match."""

    def _masks(self, parts: list[Part]) -> list[int]:
        """For each row the variables that it may be mapped to, as bits; a second half has those where Spark would fail."""
        count, height = len(self.variables), self.layout.rows.height
        bits = dict(self.true)
        bits |= {count + index: flags for index, flags in self.unsure.items()}
        always = sum(1 << index for index in range(count) if index not in self.true)
        masks = np.zeros(height, object if 2 * count > _WORD else np.int64)
        for index, flags in bits.items():
            masks += flags.astype(masks.dtype) * (1 << index)
        masks += always
        if any(self.of_start) and masks.dtype != object:
            self.runs = Runs(parts, self.automaton, self.layout, masks)
        found: list[int] = masks.tolist()
        return found

    def _column(self, part: Part) -> tuple[Flags, Flags | None]:
        """Where a part is true that looks at the row and its neighbours alone, and where Spark would fail."""
        layout = self.layout
        known = layout.columns.get((part.sql, part.slots, part.variable))
        if known is None:
            height = layout.rows.height
            given: list[pl.Series] = [pl.repeat(0, height, eager=True).alias("_height")]
            for name, slot in part.slots:
                if isinstance(slot, Navigation):
                    given.append(layout.shifted(slot.argument, slot.away).alias(name))
                else:
                    given.append(pl.repeat(part.variable, height, eager=True).alias(name))
            frame = pl.DataFrame(given)
            scalar = compiled(part.sql, {name: frame.schema[name] for name, _ in part.slots})
            assert scalar is not None  # noqa: S101
            doubt = pl.lit(False) if scalar.unsure is None else scalar.unsure.fill_null(False)
            made = frame.select(scalar.value.fill_null(False).alias("_value"), doubt.alias("_doubt"), "_height")
            flags, unsure = made["_value"].to_numpy(), made["_doubt"].to_numpy()
            known = (flags & ~unsure, unsure) if unsure.any() else (flags, None)
            layout.columns[part.sql, part.slots, part.variable] = known
        return known

    def _function(self, part: Part) -> Compute:
        schema = self.layout.rows.schema
        slots = {name: (slot_type(slot, schema), self._slot(slot, part.variable)) for name, slot in part.slots}
        made = closure(part.sql, slots)
        return made if made is not None else _framed(part, slots)

    def _slot(self, slot: Slot, variable: str) -> Compute:
        """The value of a slot for a row and the first row of its match."""
        if isinstance(slot, Aggregated):
            running = self._running(slot)
            return lambda _row, _start: running.value()
        assert isinstance(slot, Navigation | Classifier)  # noqa: S101
        here, away = self.here, slot.away
        if isinstance(slot, Navigation):
            values = self.layout.listed(slot.argument)
            if not away and is_row(slot, variable):
                return lambda row, _start: values[row]
            if not away and is_start(slot, self.automaton):
                return lambda _row, start: values[start]

            def read(row: int) -> Any:
                return values[row] if here.low <= row < here.high else None
        else:
            names = [place.variable for place in self.automaton.places]

            def read(row: int) -> Any:
                inside = 0 <= row - here.start < len(here.labels)
                return names[here.labels[row - here.start]] if inside else None

        if is_row(slot, variable):
            if isinstance(slot, Classifier) and not away:
                return lambda _row, _start: variable
            return lambda row, _start: read(row + away)
        if isinstance(slot, Navigation) and is_start(slot, self.automaton):
            return lambda _row, start: read(start + away)
        rows, steps = self._rows(slot.variables).rows, slot.steps
        at = steps if slot.which == "first" else -1 - steps
        return lambda _row, _start: read(rows[at] + away) if len(rows) > steps else None

    def _rows(self, variables: tuple[str, ...]) -> Rows:
        found = self._track(variables, frozenset(variables), Rows)
        assert isinstance(found, Rows)  # noqa: S101
        return found

    def _running(self, slot: Aggregated) -> Any:
        layout = self.layout

        def make() -> Running:
            values = layout.listed(slot.arguments[0]) if slot.arguments else None
            if slot.function == "count":
                return Count(values)
            if values is not None and slot.function in ("min", "max"):
                return Extreme(values, slot.function == "max")
            if values is not None and slot.function in ("sum", "avg"):
                return Total(values, layout.rows.schema[slot.arguments[0]], slot.function == "avg")
            return Asked(lambda rows: _plain(value_of_rows(layout.rows[rows], slot)))

        return self._track(slot.variables, slot, make)

    def _track(self, variables: tuple[str, ...], key: Any, make: Callable[[], Running]) -> Running:
        if key not in self._tracked:
            self._tracked[key] = running = make()
            for name in variables or self.variables:
                if name in self.number:
                    self.pushes[self.number[name]].append(running)
        return self._tracked[key]


def _plain(value: Any) -> Any:
    return plain(pl.Series([value])).to_list()[0]


def _framed(part: Part, slots: dict[str, tuple[pl.DataType, Compute]]) -> Compute:
    """A condition as a frame of one row; values that were met before are remembered."""
    scalar = compiled(part.sql, {name: dtype for name, (dtype, _) in slots.items()})
    assert scalar is not None  # noqa: S101
    doubt = pl.lit(False) if scalar.unsure is None else scalar.unsure.fill_null(False)
    met: dict[Any, tuple[bool | None, bool]] = {}

    def compute(row: int, start: int) -> bool | None:
        values = [read(row, start) for _, read in slots.values()]
        key = repr(values)
        if key not in met:
            series = [
                pl.Series(name, [value], plain(pl.Series([], dtype=dtype)).dtype).cast(dtype)
                for (name, (dtype, _)), value in zip(slots.items(), values, strict=True)
            ]
            frame = pl.DataFrame(series) if series else pl.DataFrame({"_": [0]})
            found = frame.select(scalar.value.alias("value"), doubt.alias("doubt"))
            if len(met) > _REMEMBERED:
                met.clear()
            met[key] = (found.item(0, "value"), found.item(0, "doubt"))
        value, unsure = met[key]
        if unsure:
            raise Unsure
        return value

    return compute


_REMEMBERED = 100_000
