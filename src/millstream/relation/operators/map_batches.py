"""`map_batches`: what a function over Arrow batches makes of each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from millstream.errors import PlanError
from millstream.relation.clauses import NOWHERE, Column, Emit, Place
from millstream.relation.fingerprint import digest_of
from millstream.relation.kinds import Kind, declared, without_fields
from millstream.relation.operators.checks import given_columns
from millstream.relation.operators.contract import NodeContract, settled_by_time

if TYPE_CHECKING:
    from millstream.relation.nodes import Node


@dataclass(frozen=True, slots=True)
class MapBatches(NodeContract):
    """What a function of the user's makes of each row, many of them at a time: columns as declared. ``digest`` is as for groups."""

    tag: ClassVar[str] = "MapBatches"
    input: Node
    columns: tuple[Column, ...]
    digest: str
    function: Callable[[Any], Any] = field(compare=False)
    place: Place = field(default=NOWHERE, compare=False)

    def input_nodes(self) -> tuple[Node, ...]:
        return (self.input,)

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return replace(self, input=inputs[0])

    def output_columns(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def visible(self) -> tuple[str, ...]:
        return self.output_columns()

    def expressions(self, side: int | None = None) -> list[str]:
        return []

    def compared(self, side: int) -> Sequence[str]:
        return ()

    def kinds(self) -> dict[str, Kind]:
        return without_fields(dict(declared(self.columns)))

    def lines(self) -> list[str]:
        return [*self.input.lines(), f"map batches: {getattr(self.function, '__name__', 'a function')}"]

    def is_stream(self) -> bool:
        return self.input.is_stream()

    def is_insert_only(self, emit: Emit = "changes") -> bool:
        return self.input.is_insert_only(emit)

    def event_time(self) -> str | None:
        name = (self.input.event_time() or "").lower()
        return next(
            (each.name for each in self.columns if each.name.lower() == name and each.type == "timestamp"), None
        )

    def settled(self) -> dict[str, timedelta]:
        return settled_by_time(self)

    def natural_key(self) -> tuple[str, ...]:
        return ()

    def never_null(self) -> frozenset[str]:
        return frozenset(filter(None, [self.event_time()]))

    def has_kernel(self) -> bool:
        return True

    def is_bounded(self) -> bool:
        return True

    def ends(self) -> bool:
        return False

    def condition_below(self, part: str, used: frozenset[str]) -> Sequence[str | None]:
        return ()


def map_batches(node: Node, function: Callable[[Any], Any], schema: str, place: Place) -> MapBatches:
    """What a function makes of each row."""
    if not callable(function):
        raise PlanError(f"map_batches: expected a function of Arrow batches; found {function!r}")
    return MapBatches(node, given_columns("map_batches", schema), digest_of(function), function, place)
