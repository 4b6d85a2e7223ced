"""`deduplicate`: the rows that are no repeats of an earlier one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.clauses import NOWHERE, Emit, Place
from millstream.relation.kinds import Kind, without_fields
from millstream.relation.operators.checks import partition_of
from millstream.relation.operators.contract import NodeContract, lateness, lower, settled_by_time, sources_of
from millstream.relation.schema import format_duration, parse_duration

if TYPE_CHECKING:
    from millstream.relation.nodes import Node


@dataclass(frozen=True, slots=True)
class Deduplicate(NodeContract):
    """Of the rows with one id the first by event time; then again the first that is more than ``within`` after it."""

    tag: ClassVar[str] = "Deduplicate"
    input: Node
    id: tuple[str, ...]
    within: timedelta | None = None
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
        return list(self.id)

    def compared(self, side: int) -> Sequence[str]:
        return self.id

    def kinds(self) -> dict[str, Kind]:
        return without_fields(self.input.kinds())

    def lines(self) -> list[str]:
        within = f" within {format_duration(self.within)}" if self.within else ""
        return [*self.input.lines(), f"deduplicate {', '.join(self.id)}{within}"]

    def is_stream(self) -> bool:
        return self.input.is_stream()

    def is_insert_only(self, emit: Emit = "changes") -> bool:
        return emit == "final" and not lateness(self)

    def event_time(self) -> str | None:
        return self.input.event_time()

    def settled(self) -> dict[str, timedelta]:
        return settled_by_time(self)

    def natural_key(self) -> tuple[str, ...]:
        return ()

    def never_null(self) -> frozenset[str]:
        return self.input.never_null()

    def has_kernel(self) -> bool:
        return True

    def is_bounded(self) -> bool:
        return self.within is not None

    def ends(self) -> bool:
        return True

    def condition_below(self, part: str, used: frozenset[str]) -> Sequence[str | None]:
        plain = {expression.lower_column(text) for text in self.id}
        return (part,) if lower(used) <= plain else ()


def deduplicate(node: Node, ids: Any, within: str | timedelta | None, place: Place) -> Deduplicate:
    """The rows that are no repeats of an earlier one."""
    keys = partition_of(node, ids, "deduplicate")
    if not keys:
        raise PlanError("deduplicate: expected the columns that tell repeats; found none", hint="distinct() takes all")
    if node.event_time() is None:
        raise PlanError(
            f"deduplicate: which of several comes first is a matter of event time, and {sources_of(node)[0].name} has none here",
            hint='stream(…, time="at"), or top(1, by="…", per="id") for another order',
        )
    if within is not None and not parse_duration(within):
        raise PlanError(f"deduplicate: expected a duration above zero; found {within!r}")
    return Deduplicate(node, keys, parse_duration(within) if within is not None else None, place)
