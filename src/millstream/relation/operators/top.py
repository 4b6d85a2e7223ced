"""`top`: the first rows of each group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.clauses import NOWHERE, WINDOW_COLUMNS, Emit, Ordering, Place, Ties
from millstream.relation.kinds import Kind, without_fields
from millstream.relation.operators.checks import partition_of
from millstream.relation.operators.contract import NodeContract, lower, settled_by_keys
from millstream.relation.operators.select import Select
from millstream.relation.operators.where import Where
from millstream.relation.operators.windowed import Windowed
from millstream.relation.wording import describe_order

if TYPE_CHECKING:
    from millstream.relation.nodes import Node


@dataclass(frozen=True, slots=True)
class Top(NodeContract):
    """The first ``count`` rows in this order, of each group of rows with equal ``per``; with ``ties`` all of the first ranks."""

    tag: ClassVar[str] = "Top"
    input: Node
    count: int
    order: tuple[Ordering, ...]
    per: tuple[str, ...] = ()
    ties: Ties | None = None
    place: Place = field(default=NOWHERE, compare=False)

    def input_nodes(self) -> tuple[Node, ...]:
        return (self.input,)

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return replace(self, input=inputs[0])

    def output_columns(self) -> tuple[str, ...]:
        return self.input.output_columns()

    def visible(self) -> tuple[str, ...]:
        return self.output_columns()

    def expressions(self, side: int | None = None) -> list[str]:
        return [*self.per, *(each.expression for each in self.order)]

    def compared(self, side: int) -> Sequence[str]:
        return self.expressions()

    def kinds(self) -> dict[str, Kind]:
        return without_fields(self.input.kinds())

    def lines(self) -> list[str]:
        per = f" per {', '.join(self.per)}" if self.per else ""
        ties = f" by {self.ties}" if self.ties else ""
        return [*self.input.lines(), f"top {self.count}{ties} by {describe_order(self.order)}{per}"]

    def is_stream(self) -> bool:
        return False

    def is_insert_only(self, emit: Emit = "changes") -> bool:
        return False

    def event_time(self) -> str | None:
        """None: others may take the place of its rows."""
        return None

    def settled(self) -> dict[str, timedelta]:
        return settled_by_keys(self.input, self.per)

    def natural_key(self) -> tuple[str, ...]:
        return self.input.natural_key()

    def never_null(self) -> frozenset[str]:
        return self.input.never_null()

    def has_kernel(self) -> bool:
        return True

    def is_bounded(self) -> bool:
        return bool(self.settled())

    def ends(self) -> bool:
        return False

    def condition_below(self, part: str, used: frozenset[str]) -> Sequence[str | None]:
        plain = {expression.lower_column(text) for text in self.per}
        return (part,) if lower(used) <= plain else ()

    def windows_below(self) -> Windowed | None:
        """The windows that its groups are of, each of one: none of a group's rows is final before all of them are."""
        names, below = {expression.lower_column(each) for each in self.per}, self.input
        while isinstance(below, Where | Select):
            if isinstance(below, Select):
                plain = {each.name.lower(): expression.lower_column(each.expression) for each in below.columns}
                names = {plain.get(name, "") for name in names}
            below = below.input
        return below if isinstance(below, Windowed) and names & set(WINDOW_COLUMNS) else None


def top(node: Node, count: int, by: str, per: Any, ties: Ties | None, place: Place) -> Top:
    """The first rows of each group."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise PlanError(f"top: expected how many rows, above zero; found {count!r}")
    order = expression.parse_order(by, node.visible(), "top: by")
    if ties is not None and ties not in get_args(Ties):
        raise PlanError(f"top: expected ties to be {' or '.join(get_args(Ties))}; found {ties!r}")
    return Top(node, count, order, partition_of(node, per, "top: per"), ties, place)
