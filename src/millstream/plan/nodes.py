"""The nodes of a plan: frozen, comparable, made without Spark.

A relation is a source with operations on it. Expressions are Spark SQL text over the columns of the relation below. Two
nodes that say the same are equal, wherever they were written, so what two views share is computed once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, TypeAlias

Late: TypeAlias = Literal["drop", "route", "correct"]
Emit: TypeAlias = Literal["changes", "final"]
Function: TypeAlias = Literal[
    "count", "count_distinct", "sum", "avg", "min", "max", "min_by", "max_by", "collect_list", "collect_set"
]


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the user's file something was defined."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


NOWHERE = Place("", 0)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a source: its name and its Spark SQL type."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class EventTime:
    """How a stream tells time, and what becomes of events that come late.

    ``delay`` is how far behind the newest event of its partition an event may be. With ``late="correct"``, one that is up
    to ``lateness`` later still is admitted and amends. ``ahead`` is how far an event may be ahead of its append.
    ``idle`` is how long a partition may be silent before it no longer holds the others back. With ``sent``, the time is
    corrected by the device's own clock error: occurred + (received − sent); ``received`` is the append unless named, and a
    correction beyond ``wild`` is counted.
    """

    column: str
    delay: timedelta = timedelta(0)
    lateness: timedelta = timedelta(0)
    late: Late = "drop"
    ahead: timedelta = timedelta(hours=1)
    idle: timedelta | None = timedelta(seconds=30)
    sent: str | None = None
    received: str | None = None
    wild: timedelta = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Sequence:
    """What marks a record as a repeat: a producer and its number, which only grows; both are expressions."""

    producer: str
    number: str


@dataclass(frozen=True, slots=True)
class Source:
    """A topic: a stream of facts, or a table's changelog (``key`` is its primary key)."""

    kind: Literal["stream", "table"]
    name: str
    topic: str
    columns: tuple[Column, ...]
    codec: Literal["json", "text", "avro"] = "json"
    avro_schema: str = ""
    key: tuple[str, ...] = ()
    time: EventTime | None = None
    sequence: Sequence | None = None
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Where:
    """The rows of ``input`` for which ``condition`` is true."""

    input: Node
    condition: str
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Named:
    """An expression and the name of its column."""

    name: str
    expression: str


@dataclass(frozen=True, slots=True)
class Select:
    """For each row of ``input`` one row of these columns."""

    input: Node
    columns: tuple[Named, ...]
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size side by side, aligned to the epoch; ``column`` is the stream's event time."""

    column: str
    size: timedelta


@dataclass(frozen=True, slots=True)
class Aggregation:
    """One aggregate: ``arguments`` are expressions; ``count`` of none counts rows.

    ``min_by`` and ``max_by`` have two: the value, and what it is ordered by.
    """

    name: str
    function: Function
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One row for each group: its keys (and ``window_start``, ``window_end``), then the aggregates."""

    input: Node
    keys: tuple[Named, ...]
    window: Tumbling | None
    aggregates: tuple[Aggregation, ...]
    place: Place = field(default=NOWHERE, compare=False)


Node: TypeAlias = Source | Where | Select | Aggregate

WINDOW_COLUMNS = ("window_start", "window_end")
META_COLUMNS = ("_key", "_partition", "_offset", "_append_time", "_timestamp")
"""What every record has besides its own columns, for expressions to use; never part of ``SELECT *``."""


def output_columns(node: Node) -> tuple[str, ...]:
    """The names of a relation's columns, in order."""
    match node:
        case Source():
            return tuple(column.name for column in node.columns)
        case Where():
            return output_columns(node.input)
        case Select():
            return tuple(column.name for column in node.columns)
        case Aggregate():
            window = WINDOW_COLUMNS if node.window else ()
            return (*(key.name for key in node.keys), *window, *(each.name for each in node.aggregates))


def source_of(node: Node) -> Source:
    """The source at the bottom of a relation."""
    while not isinstance(node, Source):
        node = node.input
    return node
