"""The nodes of a plan: frozen, comparable, made without Spark.

A relation is a source with operations on it. Two nodes that say the same are equal, wherever they were written, so what two views
share is computed once. What nodes are made of is in :mod:`millstream.relation.clauses`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Literal, TypeAlias

from millstream.relation.clauses import (
    META_COLUMNS,
    NOWHERE,
    WINDOW_COLUMNS,
    Aggregation,
    Column,
    Emit,
    Equality,
    EventTime,
    Frame,
    Function,
    Hopping,
    How,
    Late,
    Look,
    Named,
    Ordering,
    Place,
    Policy,
    Ranking,
    Sequence,
    Session,
    Sliding,
    Ties,
    Tumbling,
    Window,
)

__all__ = [
    "META_COLUMNS",
    "NOWHERE",
    "WINDOW_COLUMNS",
    "Aggregate",
    "Aggregation",
    "Column",
    "Deduplicate",
    "Emit",
    "Equality",
    "EventTime",
    "Explode",
    "Frame",
    "Function",
    "Hopping",
    "How",
    "Join",
    "Late",
    "Look",
    "MapGroups",
    "Named",
    "Node",
    "Ordering",
    "Over",
    "Place",
    "Policy",
    "Ranking",
    "Select",
    "Sequence",
    "Session",
    "Sliding",
    "Source",
    "Ties",
    "Top",
    "Tumbling",
    "Union",
    "Where",
    "Window",
    "Windowed",
    "inputs_of",
    "output_columns",
    "source_of",
    "sources_of",
]


@dataclass(frozen=True, slots=True)
class Source:
    """A topic: a stream of facts, or a table's changelog (``key`` is its primary key)."""

    tag: ClassVar[str] = "Source"
    kind: Literal["stream", "table"]
    name: str
    topic: str
    columns: tuple[Column, ...]
    codec: Literal["json", "text", "avro"] = "json"
    avro_schema: str = ""
    key: tuple[str, ...] = ()
    time: EventTime | None = None
    sequence: Sequence | None = None
    failed: Policy = "dead_letter"
    """What happens to a record on which an expression fails: it alone is rejected, or it stops the pipeline."""
    place: Place = field(default=NOWHERE, compare=False)

    @property
    def all_columns(self) -> tuple[Column, ...]:
        """Its columns, with the one that is computed: its time, where an expression says it."""
        if self.time is None or not self.time.said:
            return self.columns
        return (*self.columns, Column(self.time.column, "timestamp"))


@dataclass(frozen=True, slots=True)
class Where:
    """The rows of ``input`` for which ``condition`` is true."""

    tag: ClassVar[str] = "Where"
    input: Node
    condition: str
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Select:
    """For each row of ``input`` one row of these columns."""

    tag: ClassVar[str] = "Select"
    input: Node
    columns: tuple[Named, ...]
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One row for each group: its keys (and ``window_start``, ``window_end``), then the aggregates."""

    tag: ClassVar[str] = "Aggregate"
    input: Node
    keys: tuple[Named, ...]
    window: Window | None
    aggregates: tuple[Aggregation, ...]
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Windowed:
    """Each row of ``input`` once for every window that holds its time, with the start and the end of that window."""

    tag: ClassVar[str] = "Windowed"
    input: Node
    window: Tumbling | Hopping
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Join:
    """Pairs of rows of two relations, and with an outer join the rows that have no partner.

    ``within`` bounds right time − left time where both are streams. ``as_of`` is the stream's time column, where the right
    is a table as it was then; with ``latest`` it is the table as it is when a row of the stream is processed. A regular join
    has none of these: it is of all rows of both sides, tables or streams.
    """

    tag: ClassVar[str] = "Join"
    left: Node
    right: Node
    on: tuple[Equality, ...]
    how: How = "inner"
    within: tuple[timedelta, timedelta] | None = None
    as_of: str | None = None
    latest: bool = False
    place: Place = field(default=NOWHERE, compare=False)

    @property
    def regular(self) -> bool:
        """Whether no time bounds it, so that all rows of both sides are kept."""
        return self.within is None and self.as_of is None and not self.latest

    @property
    def replayable(self) -> bool:
        """Whether a replay gives the same rows: what is latest depends on where batches ended."""
        return not self.latest

    @property
    def nullable(self) -> tuple[bool, bool]:
        """Whether the columns of the left, of the right, are null where a row has no partner."""
        return self.how in ("right", "full"), self.how in ("left", "full")

    @property
    def merged(self) -> tuple[str, ...]:
        """The columns that are one of both."""
        return tuple(each.name for each in self.on if each.name)


@dataclass(frozen=True, slots=True)
class Over:
    """Each row of ``input``, and what its neighbours of equal ``partition``, in this order, make of it."""

    tag: ClassVar[str] = "Over"
    input: Node
    partition: tuple[str, ...]
    order: tuple[Ordering, ...]
    looks: tuple[Look, ...]
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Top:
    """The first ``count`` rows in this order, of each group of rows with equal ``per``; with ``ties`` all of the first ranks."""

    tag: ClassVar[str] = "Top"
    input: Node
    count: int
    order: tuple[Ordering, ...]
    per: tuple[str, ...] = ()
    ties: Ties | None = None
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """Of the rows with one id the first by event time; then again the first that is more than ``within`` after it."""

    tag: ClassVar[str] = "Deduplicate"
    input: Node
    id: tuple[str, ...]
    within: timedelta | None = None
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Union:
    """The rows of several relations with the same columns, those that are equal as often as they are there."""

    tag: ClassVar[str] = "Union"
    inputs: tuple[Node, ...]
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Explode:
    """Each row once for each element of an array, with the element as one more column."""

    tag: ClassVar[str] = "Explode"
    input: Node
    array: str
    name: str
    place: Place = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class MapGroups:
    """What a function of the user's makes of the rows of each key: the key, then columns as declared.

    ``digest`` stands for the function where definitions are compared: two of the same text are the same.
    """

    tag: ClassVar[str] = "MapGroups"
    input: Node
    key: tuple[Named, ...]
    columns: tuple[Column, ...]
    digest: str
    function: Callable[[Any], Any] = field(compare=False)
    place: Place = field(default=NOWHERE, compare=False)


Node: TypeAlias = (
    Source | Where | Select | Aggregate | Windowed | Join | Over | Top | Deduplicate | Union | Explode | MapGroups
)


def output_columns(node: Node) -> tuple[str, ...]:
    """The names of a relation's columns, in order."""
    match node:
        case Source():
            return tuple(column.name for column in node.all_columns)
        case Where():
            return output_columns(node.input)
        case Select():
            return tuple(column.name for column in node.columns)
        case Aggregate():
            window = WINDOW_COLUMNS if node.window else ()
            return (*(key.name for key in node.keys), *window, *(each.name for each in node.aggregates))
        case Windowed():
            return (*output_columns(node.input), *WINDOW_COLUMNS)
        case Join():
            left = output_columns(node.left)
            if node.how in ("semi", "anti"):
                return left
            merged = {name.lower() for name in node.merged}
            return (*left, *(name for name in output_columns(node.right) if name.lower() not in merged))
        case Over():
            return (*output_columns(node.input), *(each.name for each in node.looks))
        case Top() | Deduplicate():
            return output_columns(node.input)
        case Union():
            return output_columns(node.inputs[0])
        case Explode():
            return (*output_columns(node.input), node.name)
        case MapGroups():
            return (*(key.name for key in node.key), *(column.name for column in node.columns))


def inputs_of(node: Node) -> tuple[Node, ...]:
    """The relations that a relation is made of; none for a source."""
    match node:
        case Source():
            return ()
        case Join():
            return node.left, node.right
        case Union():
            return node.inputs
        case _:
            return (node.input,)


def sources_of(node: Node) -> tuple[Source, ...]:
    """The sources at the bottom of a relation, each once, the left one first."""
    if isinstance(node, Source):
        return (node,)
    return tuple(dict.fromkeys(source for each in inputs_of(node) for source in sources_of(each)))


def source_of(node: Node) -> Source:
    """The source at the bottom of a relation; the leftmost one if there are several."""
    return sources_of(node)[0]
