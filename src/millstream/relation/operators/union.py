"""`union`: the rows of several relations with the same columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.clauses import NOWHERE, Emit, Place
from millstream.relation.kinds import Kind, without_fields
from millstream.relation.operators.contract import NodeContract, settled_by_time, written

if TYPE_CHECKING:
    from millstream.relation.nodes import Node


@dataclass(frozen=True, slots=True)
class Union(NodeContract):
    """The rows of several relations with the same columns, those that are equal as often as they are there."""

    tag: ClassVar[str] = "Union"
    inputs: tuple[Node, ...]
    place: Place = field(default=NOWHERE, compare=False)

    def input_nodes(self) -> tuple[Node, ...]:
        return self.inputs

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return replace(self, inputs=tuple(inputs))

    def output_columns(self) -> tuple[str, ...]:
        return self.inputs[0].output_columns()

    def visible(self) -> tuple[str, ...]:
        return self.output_columns()

    def expressions(self, side: int | None = None) -> list[str]:
        return []

    def compared(self, side: int) -> Sequence[str]:
        return ()

    def kinds(self) -> dict[str, Kind]:
        first, *others = (_in_order(each) for each in self.inputs)
        same = [kind if all(kind == other[at] for other in others) else None for at, kind in enumerate(first)]
        found = {name.lower(): kind for name, kind in zip(self.output_columns(), same, strict=True) if kind}
        return without_fields(found)

    def lines(self) -> list[str]:
        others = [f"  {line}" for each in self.inputs[1:] for line in ["with", *written(each).split("\n")]]
        return [*self.inputs[0].lines(), "\n".join(["union", *others])]

    def is_stream(self) -> bool:
        return all(each.is_stream() for each in self.inputs)

    def is_insert_only(self, emit: Emit = "changes") -> bool:
        return all(each.is_insert_only(emit) for each in self.inputs)

    def event_time(self) -> str | None:
        """The column of its event time, if it is called the same everywhere."""
        names = {each.event_time() for each in self.inputs}
        return names.pop() if len(names) == 1 else None

    def settled(self) -> dict[str, timedelta]:
        return settled_by_time(self)

    def natural_key(self) -> tuple[str, ...]:
        return ()

    def never_null(self) -> frozenset[str]:
        return frozenset()

    def has_kernel(self) -> bool:
        return True

    def is_bounded(self) -> bool:
        return True

    def ends(self) -> bool:
        return False

    def condition_below(self, part: str, used: frozenset[str]) -> Sequence[str | None]:
        names = self.output_columns()
        orders = [[expression.quote(name) for name in each.output_columns()] for each in self.inputs]
        return [expression.substitute(part, dict(zip(names, order, strict=True))) for order in orders]


def _in_order(node: Node) -> list[Kind | None]:
    known = node.kinds()
    return [known.get(name.lower()) for name in node.output_columns()]


def union(nodes: tuple[Node, ...], place: Place) -> Union:
    """The rows of several relations."""
    columns = [node.output_columns() for node in nodes]
    for each in columns[1:]:
        if [name.lower() for name in each] != [name.lower() for name in columns[0]]:
            raise PlanError(
                f"union: expected the same columns; found {', '.join(columns[0])} and {', '.join(each)}",
                hint="choose and order them with select(…)",
            )
    flat = [inner for node in nodes for inner in (node.inputs if isinstance(node, Union) else (node,))]
    return Union(tuple(flat), place)
