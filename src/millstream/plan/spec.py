"""What each kernel is told to do: a spec names columns of its input and spans in microseconds, and nothing of where it runs.

A ``tag`` is what a class is called in checkpoints: classes may be renamed, tags never (:mod:`millstream.relation.fingerprint`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from millstream.relation.nodes import Column, Emit, Function, How, Look, Ties

__all__ = [
    "AsOfJoin",
    "Changelog",
    "Deduplicate",
    "Groups",
    "Hold",
    "Horizon",
    "IntervalJoin",
    "JoinSpec",
    "LatestJoin",
    "Measure",
    "Order",
    "Over",
    "Pass",
    "Reduce",
    "Session",
    "Spec",
    "TableJoin",
    "Top",
]


@dataclass(frozen=True, slots=True)
class Changelog:
    """A table's upserts and tombstones as changes: the latest row of each key."""

    tag: ClassVar[str] = "Changelog"
    keys: tuple[str, ...]
    values: tuple[str, ...]
    retract: bool = True


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


@dataclass(frozen=True, slots=True)
class Horizon:
    """When rows can change no more: as soon as the mark is beyond ``time`` + ``span``, for rows of that time."""

    tag: ClassVar[str] = "Horizon"
    time: str
    span: int = 0


@dataclass(frozen=True, slots=True)
class Reduce:
    """One row for each group. Spans are microseconds; ``size`` None means no window; with ``every`` windows overlap.

    ``retract`` says whether −before goes along with +after; a store that goes by key does not need it.
    ``insert_only`` says that nothing is ever taken back from the input, so the best of each group may stand for the rest.
    With a ``horizon``, whose time is one of the keys, a group is forgotten when it can change no more.
    """

    tag: ClassVar[str] = "Reduce"
    keys: tuple[str, ...]
    measures: tuple[Measure, ...]
    size: int | None = None
    emit: Emit = "changes"
    lateness: int = 0
    insert_only: bool = True
    retract: bool = True
    every: int | None = None
    horizon: Horizon | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """One row for each session of a group: rows of which each is at most ``gap`` after the one before, by column ``time``."""

    tag: ClassVar[str] = "Session"
    keys: tuple[str, ...]
    measures: tuple[Measure, ...]
    time: str
    gap: int
    emit: Emit = "changes"
    lateness: int = 0
    insert_only: bool = True
    retract: bool = True


@dataclass(frozen=True, slots=True)
class Order:
    """A column to sort by. Nulls come first when it ascends and last when it descends, as in Spark."""

    tag: ClassVar[str] = "Order"
    column: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Top:
    """The first ``count`` rows of each group in this order; ties are broken by the whole row, or by ``ties`` have one rank.

    With a ``horizon``, whose time is one of the keys, a group is forgotten when it can change no more. With ``emit="final"`` its
    rows appear ``lateness`` before that: when the mark reaches the end of the window that the group is of.
    """

    tag: ClassVar[str] = "Top"
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    order: tuple[Order, ...]
    count: int
    horizon: Horizon | None = None
    insert_only: bool = True
    retract: bool = True
    ties: Ties | None = None
    emit: Emit = "changes"
    lateness: int = 0


@dataclass(frozen=True, slots=True)
class TableJoin:
    """All rows of both sides by equal keys. ``left`` and ``right`` are the columns of each that are wanted; keys are ``_k0``, ``_k1``, …

    With a ``horizon``, whose time is one of the keys, rows are forgotten when neither side can change any more.
    ``insert_only`` says that it is an inner join of sides from which nothing is ever taken back.
    """

    tag: ClassVar[str] = "TableJoin"
    how: How
    keys: int
    left: tuple[str, ...]
    right: tuple[str, ...]
    horizon: Horizon | None = None
    insert_only: bool = False


@dataclass(frozen=True, slots=True)
class IntervalJoin:
    """Two streams by equal keys, where right time − left time is in [``low``, ``high``] (µs); times are ``_t``.

    ``lateness`` is how far below the mark of its side a row may still come.
    """

    tag: ClassVar[str] = "IntervalJoin"
    how: How
    keys: int
    left: tuple[str, ...]
    right: tuple[str, ...]
    low: int = 0
    high: int = 0
    lateness: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class AsOfJoin:
    """A stream by its time ``_t`` with a table by the time ``_v`` from which each of its rows holds.

    ``delay`` and ``lateness`` say how long the stream's rows are looked at again.
    """

    tag: ClassVar[str] = "AsOfJoin"
    how: How
    keys: int
    left: tuple[str, ...]
    right: tuple[str, ...]
    delay: int = 0
    lateness: int = 0


@dataclass(frozen=True, slots=True)
class LatestJoin:
    """A stream that only grows with a table as it is after the batch that brings the stream's row."""

    tag: ClassVar[str] = "LatestJoin"
    how: How
    keys: int
    left: tuple[str, ...]
    right: tuple[str, ...]


JoinSpec: TypeAlias = TableJoin | IntervalJoin | AsOfJoin | LatestJoin


@dataclass(frozen=True, slots=True)
class Over:
    """Each row, and what its neighbours in its group make of it; ties in the order are broken by the whole row.

    With a ``horizon``, whose time is the first column of the order, rows are forgotten that no change can reach any more.
    With ``emit="final"`` a row appears when the mark is beyond its time. ``window`` adds the start and the end of a window of
    that length that ends with the row. With ``until``, whose time is one of the keys, a group is forgotten when it can change no more.
    """

    tag: ClassVar[str] = "Over"
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    order: tuple[Order, ...]
    looks: tuple[Look, ...]
    horizon: Horizon | None = None
    emit: Emit = "changes"
    window: int | None = None
    insert_only: bool = True
    retract: bool = True
    until: Horizon | None = None


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """Of rows with equal keys the first by time; the next one counts again if it is more than ``within`` after that."""

    tag: ClassVar[str] = "Deduplicate"
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    horizon: Horizon
    within: int | None = None
    emit: Emit = "changes"
    insert_only: bool = True
    retract: bool = True


@dataclass(frozen=True, slots=True)
class Pass:
    """Rows as they come, from several inputs; with ``explode`` once for each element of that array, as column ``element``.

    With a ``size`` they come once for each window of that size, one starting ``every`` so often, that holds their ``time``.
    """

    tag: ClassVar[str] = "Pass"
    columns: tuple[str, ...]
    explode: str | None = None
    element: str = ""
    retract: bool = True
    time: str = ""
    size: int = 0
    every: int = 0


@dataclass(frozen=True, slots=True)
class Hold:
    """Rows of windows, from when the mark reaches the end of theirs, in column ``time``; after that as they come.

    ``keys`` is the column that they are spread by.
    """

    tag: ClassVar[str] = "Hold"
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    time: str
    retract: bool = True


@dataclass(frozen=True, slots=True)
class Groups:
    """What a function makes of the rows of each group: the keys, then ``made`` columns.

    With a ``horizon``, whose time is one of the keys, a group is forgotten when it can change no more.
    """

    tag: ClassVar[str] = "Groups"
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    made: tuple[Column, ...]
    function: Callable[[Any], Any]
    horizon: Horizon | None = None
    retract: bool = True


Spec: TypeAlias = Changelog | Reduce | Session | Top | Over | Deduplicate | Pass | Hold | Groups | JoinSpec
