"""`percolate`: each event of a stream with the stored queries that it meets, as these were at its time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.clauses import NOWHERE, Column, Emit, Place
from millstream.relation.kinds import Kind, without_fields
from millstream.relation.operators.checks import check_names
from millstream.relation.operators.contract import NodeContract, lower, settled_by_time, written
from millstream.relation.operators.select import Select
from millstream.relation.operators.source import Source
from millstream.relation.operators.where import Where
from millstream.relation.schema import parse_columns

if TYPE_CHECKING:
    from millstream.relation.nodes import Node

_TYPES: Mapping[Kind, str] = {
    "integer": "long", "double": "double", "text": "string", "boolean": "boolean", "date": "date", "timestamp": "timestamp",
}  # fmt: skip
_USABLE = re.compile(
    r"byte|tinyint|short|smallint|int|integer|long|bigint|float|real|double|string|boolean|date|timestamp(_ltz|_ntz)?"
    r"|(decimal|dec|numeric)(\((?P<digits>\d+)(,\d+)?\))?"
)
_DIGITS = 18
_HINT = 'events.percolate(queries, "condition"), with queries = pipeline.table("queries", "id string, condition string", key="id")'


@dataclass(frozen=True, slots=True)
class Percolate(NodeContract):
    """Pairs of an event and a stored query whose condition is true of it: the event's columns, then the query's but for its condition.

    ``condition`` is the column of the queries that has it, ``columns`` are those of the event that a condition may use.
    """

    tag: ClassVar[str] = "Percolate"
    stream: Node
    queries: Node
    condition: str
    columns: tuple[Column, ...]
    place: Place = field(default=NOWHERE, compare=False)

    @property
    def shown(self) -> tuple[str, ...]:
        """The columns of a query that its pairs have."""
        return tuple(name for name in self.queries.output_columns() if name != self.condition)

    def input_nodes(self) -> tuple[Node, ...]:
        return self.stream, self.queries

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return replace(self, stream=inputs[0], queries=inputs[1])

    def output_columns(self) -> tuple[str, ...]:
        return (*self.stream.output_columns(), *self.shown)

    def visible(self) -> tuple[str, ...]:
        return self.output_columns()

    def expressions(self, side: int | None = None) -> list[str]:
        return [expression.quote(self.condition)] if side in (None, 1) else []

    def compared(self, side: int) -> Sequence[str]:
        return ()

    def kinds(self) -> dict[str, Kind]:
        queries = {name: kind for name, kind in self.queries.kinds().items() if name != self.condition.lower()}
        return without_fields(queries | self.stream.kinds())

    def lines(self) -> list[str]:
        queries = [f"  {line}" for line in written(self.queries).split("\n")]
        used = ", ".join(each.name for each in self.columns)
        return [*self.stream.lines(), "\n".join([f"percolate {self.condition} over {used} of", *queries])]

    def is_stream(self) -> bool:
        return True

    def is_insert_only(self, emit: Emit = "changes") -> bool:
        return False

    def event_time(self) -> str | None:
        return self.stream.event_time()

    def settled(self) -> dict[str, timedelta]:
        return settled_by_time(self)

    def natural_key(self) -> tuple[str, ...]:
        return ()

    def never_null(self) -> frozenset[str]:
        return self.stream.never_null() | (self.queries.never_null() - {self.condition})

    def has_kernel(self) -> bool:
        return True

    def is_bounded(self) -> bool:
        return False

    def ends(self) -> bool:
        return False

    def condition_below(self, part: str, used: frozenset[str]) -> Sequence[str | None]:
        """What it is over the events. Queries stay as they are: one that is left out would be no dead letter."""
        return (part, None) if lower(used) <= lower(self.stream.output_columns()) else ()


def percolate(node: Node, queries: Node, condition: str, columns: str | None, place: Place) -> Percolate:
    """Each event with the stored queries that it meets."""
    if not node.is_stream() or node.event_time() is None:
        raise PlanError(
            "percolate: expected a stream with event time, kept as it is: queries are met as they were at an event's time",
            hint='streams need time="at", and a select() must keep that column as it is',
        )
    bottom = queries
    while isinstance(bottom, Where | Select):
        bottom = bottom.input
    if not isinstance(bottom, Source) or bottom.kind != "table":
        raise PlanError("percolate: expected the queries in a table that is a topic, by their key", hint=_HINT)
    if not queries.natural_key():
        raise PlanError(
            f"percolate: a select has left out the key of table {bottom.name} ({', '.join(bottom.key)})",
            hint="keep it: a query is known by it",
        )
    names = {name.lower(): name for name in queries.output_columns()}
    found = names.get(condition.lower()) if isinstance(condition, str) else None
    if found is None or queries.kinds().get(found.lower(), "text") != "text":
        raise PlanError(
            f"percolate: expected the column of the queries that has their conditions, as text; found {condition!r}",
            hint=_HINT,
        )
    if found in queries.natural_key():
        raise PlanError(
            f"percolate: {found} is the key of the queries; expected another column for their conditions", hint=_HINT
        )
    made = Percolate(node, queries, found, _used(node, columns), place)
    twice = lower(node.output_columns()) & lower(made.shown)
    if twice:
        name = min(twice)
        raise PlanError(
            f"percolate: events and queries both have a column {name}; expected different names",
            hint=f'rename one before: queries.select("{name} AS query_{name}", …)',
        )
    check_names(made.output_columns(), "percolate")
    return made


def _used(node: Node, given: str | None) -> tuple[Column, ...]:
    """The columns of an event that conditions may use: those that are given, else all whose type is known."""
    names = {name.lower(): name for name in node.output_columns()}
    if given is None:
        kinds = node.kinds()
        found = tuple(Column(name, _TYPES[kinds[low]]) for low, name in names.items() if low in kinds)
        if not found:
            raise PlanError(
                "percolate: of no column of the events the type is known here",
                hint='name them: columns="price double, title string"',
            )
        return found
    columns = parse_columns(given)
    for each in columns:
        if each.name.lower() not in names:
            raise PlanError(f"percolate: no column {each.name}; the events have {', '.join(names.values())}")
        found_type = _USABLE.fullmatch(each.type.replace(" ", "").lower())
        if found_type is None or int(found_type["digits"] or 0) > _DIGITS:
            raise PlanError(
                f"percolate: conditions cannot use {each.name} {each.type}; only numbers of {_DIGITS} digits, text, booleans, dates and times",
                hint="cast it to one of these in a select() before",
            )
    return tuple(Column(names[each.name.lower()], each.type) for each in columns)
