"""`where`: the rows for which a condition is true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from millstream.relation.clauses import NOWHERE, Emit, Place
from millstream.relation.kinds import Kind
from millstream.relation.operators.contract import NodeContract

if TYPE_CHECKING:
    from millstream.relation.nodes import Node


@dataclass(frozen=True, slots=True)
class Where(NodeContract):
    """The rows of ``input`` for which ``condition`` is true."""

    tag: ClassVar[str] = "Where"
    input: Node
    condition: str
    place: Place = field(default=NOWHERE, compare=False)

    def input_nodes(self) -> tuple[Node, ...]:
        return (self.input,)

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return replace(self, input=inputs[0])

    def output_columns(self) -> tuple[str, ...]:
        return self.input.output_columns()

    def visible(self) -> tuple[str, ...]:
        return self.input.visible()

    def expressions(self, side: int | None = None) -> list[str]:
        return [self.condition]

    def compared(self, side: int) -> Sequence[str]:
        return ()

    def kinds(self) -> dict[str, Kind]:
        return self.input.kinds()

    def lines(self) -> list[str]:
        return [*self.input.lines(), f"where {self.condition}"]

    def is_stream(self) -> bool:
        return self.input.is_stream()

    def is_insert_only(self, emit: Emit = "changes") -> bool:
        return self.input.is_insert_only(emit)

    def event_time(self) -> str | None:
        return self.input.event_time()

    def settled(self) -> dict[str, timedelta]:
        return self.input.settled()

    def natural_key(self) -> tuple[str, ...]:
        return self.input.natural_key()

    def never_null(self) -> frozenset[str]:
        return self.input.never_null()

    def has_kernel(self) -> bool:
        return False

    def is_bounded(self) -> bool:
        return True

    def ends(self) -> bool:
        return False

    def condition_below(self, part: str, used: frozenset[str]) -> Sequence[str | None]:
        return (part,)
