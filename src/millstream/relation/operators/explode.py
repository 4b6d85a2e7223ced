"""`explode`: each row once for each element of an array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.clauses import NOWHERE, Emit, Place
from millstream.relation.kinds import Kind, without_fields
from millstream.relation.operators.contract import NodeContract

if TYPE_CHECKING:
    from millstream.relation.nodes import Node


@dataclass(frozen=True, slots=True)
class Explode(NodeContract):
    """Each row once for each element of an array, with the element as one more column."""

    tag: ClassVar[str] = "Explode"
    input: Node
    array: str
    name: str
    place: Place = field(default=NOWHERE, compare=False)

    def input_nodes(self) -> tuple[Node, ...]:
        return (self.input,)

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return replace(self, input=inputs[0])

    def output_columns(self) -> tuple[str, ...]:
        return (*self.input.output_columns(), self.name)

    def visible(self) -> tuple[str, ...]:
        return self.output_columns()

    def expressions(self, side: int | None = None) -> list[str]:
        return [self.array]

    def compared(self, side: int) -> Sequence[str]:
        return ()

    def kinds(self) -> dict[str, Kind]:
        return without_fields(self.input.kinds())

    def lines(self) -> list[str]:
        return [*self.input.lines(), f"explode {self.array} AS {self.name}"]

    def is_stream(self) -> bool:
        return self.input.is_stream()

    def is_insert_only(self, emit: Emit = "changes") -> bool:
        return self.input.is_insert_only(emit)

    def event_time(self) -> str | None:
        return self.input.event_time()

    def settled(self) -> dict[str, timedelta]:
        return self.input.settled()

    def natural_key(self) -> tuple[str, ...]:
        return ()

    def never_null(self) -> frozenset[str]:
        return self.input.never_null()

    def has_kernel(self) -> bool:
        return True

    def is_bounded(self) -> bool:
        return True

    def ends(self) -> bool:
        return False

    def condition_below(self, part: str, used: frozenset[str]) -> Sequence[str | None]:
        return (part,) if self.name not in used else ()


def explode(node: Node, array: str, name: str, place: Place) -> Explode:
    """Each row once for each element of an array."""
    expression.check(array, node.visible(), "explode")
    if not isinstance(name, str) or expression.plain_column(name) is None:
        raise PlanError(f"explode: expected the name of the element's column; found {name!r}", hint='as_="tag"')
    return Explode(node, array, name, place)
