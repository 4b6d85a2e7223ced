"""What specs are made of: aggregates over columns, orders, and when rows can change no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from millstream.relation.approximate import EXACT
from millstream.relation.clauses import Function


@dataclass(frozen=True, slots=True)
class Measure:
    """One aggregate over columns of the input."""

    tag: ClassVar[str] = "Measure"
    name: str
    function: Function
    arguments: tuple[str, ...]
    fraction: float = 0.0
    """Which percentile, between 0 and 1."""

    def is_linear(self, insert_only: bool) -> bool:
        """Whether columns that add up are enough."""
        extremes = insert_only and self.function in ("min", "max")
        return self.function in ("count", "count_distinct", "sum", "avg") or extremes

    def adds_up(self, insert_only: bool) -> bool:
        """Whether it needs no more than a few numbers, a sketch, or the best value so far."""
        best = self.function in ("min", "max", "min_by", "max_by")
        return self.function in ("count", "sum", "avg", *EXACT) or (best and insert_only)

    def is_replayable(self) -> bool:
        """Whether a replay gives the same, wherever batches end."""
        return self.function != "approx_percentile"

    def lists(self, insert_only: bool) -> bool:
        """Whether it keeps each of its values, equal ones too, or values in an order that hardly has equal ones."""
        return self.function == "collect_list" or (self.function in ("min_by", "max_by") and not insert_only)


@dataclass(frozen=True, slots=True)
class Horizon:
    """When rows can change no more: as soon as the mark is beyond ``time`` + ``span``, for rows of that time."""

    tag: ClassVar[str] = "Horizon"
    time: str
    span: int = 0


@dataclass(frozen=True, slots=True)
class Order:
    """A column to sort by. Nulls come first when it ascends and last when it descends, as in Spark."""

    tag: ClassVar[str] = "Order"
    column: str
    descending: bool = False


_MICROSECOND = timedelta(microseconds=1)


def micros(span: timedelta) -> int:
    """Whole microseconds."""
    return span // _MICROSECOND


def horizon_of(settled: Mapping[str, timedelta], names: tuple[str, ...]) -> Horizon | None:
    """The first of these columns that tells when its rows can change no more."""
    known = {name.lower(): micros(span) for name, span in settled.items()}
    return next((Horizon(name, known[name.lower()]) for name in names if name.lower() in known), None)
