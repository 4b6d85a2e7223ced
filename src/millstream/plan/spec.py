"""What each kernel is told to do: a spec names columns of its input and spans in microseconds, and nothing of where it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from millstream.plan.nodes import Emit, Function


@dataclass(frozen=True, slots=True)
class Changelog:
    """A table's upserts and tombstones as changes: the latest row of each key."""

    keys: tuple[str, ...]
    values: tuple[str, ...]
    retract: bool = True


@dataclass(frozen=True, slots=True)
class Measure:
    """One aggregate over columns of the input."""

    name: str
    function: Function
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reduce:
    """One row for each group. Spans are microseconds; ``size`` None means no window.

    ``retract`` says whether −before goes along with +after; a sink that stores by key does not need it.
    ``insert_only`` says that nothing is ever taken back from the input, so the best of each group may stand for the rest.
    """

    keys: tuple[str, ...]
    measures: tuple[Measure, ...]
    size: int | None = None
    emit: Emit = "changes"
    lateness: int = 0
    insert_only: bool = True
    retract: bool = True


Spec: TypeAlias = Changelog | Reduce
