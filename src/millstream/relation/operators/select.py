"""`select`: for each row one row of these columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from millstream.relation import expression
from millstream.relation.clauses import NOWHERE, Emit, Named, Place
from millstream.relation.kinds import Kind, of_named, without_fields
from millstream.relation.operators.contract import NodeContract, lower, texts_by_name
from millstream.relation.wording import describe_columns

if TYPE_CHECKING:
    from millstream.relation.nodes import Node


@dataclass(frozen=True, slots=True)
class Select(NodeContract):
    """For each row of ``input`` one row of these columns."""

    tag: ClassVar[str] = "Select"
    input: Node
    columns: tuple[Named, ...]
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
        return [each.expression for each in self.columns]

    def compared(self, side: int) -> Sequence[str]:
        return ()

    def kinds(self) -> dict[str, Kind]:
        return without_fields(of_named(self.columns, self.input.kinds()))

    def lines(self) -> list[str]:
        return [*self.input.lines(), f"select {describe_columns(self.columns)}"]

    def is_stream(self) -> bool:
        return self.input.is_stream()

    def is_insert_only(self, emit: Emit = "changes") -> bool:
        return self.input.is_insert_only(emit)

    def event_time(self) -> str | None:
        name = self.input.event_time()
        kept = [each.name for each in self.columns if name and expression.is_column(each.expression, name)]
        return name if name in kept else next(iter(kept), None)

    def settled(self) -> dict[str, timedelta]:
        known = {name.lower(): span for name, span in self.input.settled().items()}
        plain = {each.name: expression.lower_column(each.expression) for each in self.columns}
        return {name: known[column] for name, column in plain.items() if column in known}

    def natural_key(self) -> tuple[str, ...]:
        names: dict[str, str] = {}
        for each in self.columns:
            names.setdefault(expression.lower_column(each.expression), each.name)
        key = [names.get(name.lower()) for name in self.input.natural_key()]
        return tuple(name for name in key if name) if None not in key else ()

    def never_null(self) -> frozenset[str]:
        known = lower(self.input.never_null())
        return frozenset(each.name for each in self.columns if expression.lower_column(each.expression) in known)

    def has_kernel(self) -> bool:
        return False

    def is_bounded(self) -> bool:
        return True

    def ends(self) -> bool:
        return False

    def condition_below(self, part: str, used: frozenset[str]) -> Sequence[str | None]:
        return (expression.substitute(part, texts_by_name(self.columns)),)
