"""What nodes are made of: columns, event times, windows, orders, aggregates; frozen, comparable, made without Spark.

Expressions are Spark SQL text over the columns of the relation below. A ``tag`` is what a class is called in fingerprints, which
are stored: classes may be renamed, tags never (:mod:`millstream.relation.fingerprint`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar, Literal, TypeAlias

Policy: TypeAlias = Literal["stop", "dead_letter"]
Late: TypeAlias = Literal["drop", "route", "correct"]
Emit: TypeAlias = Literal["changes", "final"]
How: TypeAlias = Literal["inner", "left", "right", "full", "semi", "anti"]
Function: TypeAlias = Literal[
    "count",
    "count_distinct",
    "sum",
    "avg",
    "min",
    "max",
    "min_by",
    "max_by",
    "collect_list",
    "collect_set",
    "percentile",
    "approx_percentile",
    "approx_count_distinct",
]
Ties: TypeAlias = Literal["rank", "dense_rank"]
Ranking: TypeAlias = Literal["row_number", "rank", "dense_rank", "lag", "lead"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the user's file something was defined."""

    file: str
    line: int
    column: int = 0
    """Given for SQL only: one line of it may hold a whole query."""
    within: str = ""
    """The line of Python in which the SQL stands, if it has no file of its own."""

    def __str__(self) -> str:
        if not self.column:
            return f"{self.file}:{self.line}"
        if self.file:
            return f"{self.file}:{self.line}:{self.column}"
        return f"{self.within}{': ' if self.within else ''}line {self.line}, column {self.column}"


NOWHERE = Place("", 0)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a source: its name and its Spark SQL type."""

    tag: ClassVar[str] = "Column"
    name: str
    type: str
    sealed: bool = field(default=False, compare=False, kw_only=True)
    """Whether its text is a token of a vault, so that nothing can be computed with it; the same data to a store and a checkpoint."""

    @property
    def written(self) -> str:
        """Its type as its author may write it."""
        return "sealed" if self.sealed else self.type


@dataclass(frozen=True, slots=True)
class EventTime:
    """The event time of a stream, and what happens to events that come late.

    ``delay`` is how far behind the newest event of its partition an event may be. With ``late="correct"``, one that is up
    to ``lateness`` later still is admitted and amends. ``ahead`` is how far an event may be ahead of its append.
    ``idle`` is how long a partition may be silent before it no longer holds the others back. With ``sent``, the time is
    corrected by the device's own clock error: occurred + (received − sent); ``received`` is the append unless named, and a
    correction beyond ``wild`` is counted. ``said`` is the expression that gives the time, under the name ``column``, where that is no
    column of the record.
    """

    tag: ClassVar[str] = "EventTime"
    column: str
    delay: timedelta = timedelta(0)
    lateness: timedelta = timedelta(0)
    late: Late = "drop"
    ahead: timedelta = timedelta(hours=1)
    idle: timedelta | None = timedelta(seconds=30)
    sent: str | None = None
    received: str | None = None
    wild: timedelta = timedelta(days=1)
    said: str = ""


@dataclass(frozen=True, slots=True)
class Sequence:
    """What marks a record as a repeat: a producer and its number, which only grows; both are expressions."""

    tag: ClassVar[str] = "Sequence"
    producer: str
    number: str


@dataclass(frozen=True, slots=True)
class Subject:
    """Where the schemas of framed values are: a registry, who asks (references, no secrets), and a subject in it."""

    tag: ClassVar[str] = "Subject"
    url: str
    name: str
    user: str | None = None
    password: str | None = None


@dataclass(frozen=True, slots=True)
class Named:
    """An expression and the name of its column."""

    tag: ClassVar[str] = "Named"
    name: str
    expression: str


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size side by side, aligned to the epoch; ``column`` is the stream's event time."""

    tag: ClassVar[str] = "Tumbling"
    column: str
    size: timedelta


@dataclass(frozen=True, slots=True)
class Hopping:
    """Windows of one size, of which one starts ``every`` so often, aligned to the epoch."""

    tag: ClassVar[str] = "Hopping"
    column: str
    size: timedelta
    every: timedelta


@dataclass(frozen=True, slots=True)
class Session:
    """Windows that last as long as events are at most ``gap`` apart; they end a gap after the last one."""

    tag: ClassVar[str] = "Session"
    column: str
    gap: timedelta


@dataclass(frozen=True, slots=True)
class Sliding:
    """For each event the window of this size that ends with it, ties included."""

    tag: ClassVar[str] = "Sliding"
    column: str
    size: timedelta


Window: TypeAlias = Tumbling | Hopping | Session | Sliding


@dataclass(frozen=True, slots=True)
class Frame:
    """The rows around a row that an aggregate looks at: so many before and after it, or those whose order is so far away.

    None means all there are. Distances are microseconds where the order is a time. Rows of equal order are at no distance.
    """

    tag: ClassVar[str] = "Frame"
    kind: Literal["rows", "range"]
    before: int | None = None
    after: int | None = 0


@dataclass(frozen=True, slots=True)
class Ordering:
    """An expression to sort by. Nulls come first when it ascends and last when it descends, as in Spark."""

    tag: ClassVar[str] = "Ordering"
    expression: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Aggregation:
    """One aggregate: ``arguments`` are expressions; ``count`` of none counts rows.

    ``min_by`` and ``max_by`` have two: the value, and what it is ordered by.
    """

    tag: ClassVar[str] = "Aggregation"
    name: str
    function: Function
    arguments: tuple[str, ...] = ()
    fraction: float = 0.0
    """Which percentile, between 0 and 1."""
    written: str = field(default="", compare=False, repr=False)
    """What its author wrote."""


@dataclass(frozen=True, slots=True)
class Equality:
    """What rows of two relations must have in common: an expression over each. With a ``name`` both are one column of the join."""

    tag: ClassVar[str] = "Equality"
    left: str
    right: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """One column that is made by looking at a row's neighbours: its place, a neighbour's value, or an aggregate over a frame."""

    tag: ClassVar[str] = "Look"
    name: str
    function: Function | Ranking
    arguments: tuple[str, ...] = ()
    frame: Frame | None = None
    offset: int = 1
    """How far away the neighbour of lag and lead is."""
    fraction: float = 0.0
    written: str = field(default="", compare=False, repr=False)


WINDOW_COLUMNS = ("window_start", "window_end")
HEADERS = "_headers"
"""The headers of a record, a map of text; they are read where an expression names them."""
META_COLUMNS = ("_key", "_partition", "_offset", "_append_time", "_timestamp", HEADERS)
"""What every record has besides its own columns, for expressions to use; never part of ``SELECT *``."""
