"""`history`: every row that a table has had, with the time from which and the time until which it held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from millstream.errors import PlanError
from millstream.relation.clauses import NOWHERE, Emit, Place
from millstream.relation.kinds import Kind, without_fields
from millstream.relation.operators.checks import check_names
from millstream.relation.operators.contract import NodeContract
from millstream.relation.operators.source import Source

if TYPE_CHECKING:
    from millstream.relation.nodes import Node

COLUMNS = ("valid_from", "valid_to")
"""From when a row held, and until when; null of one that holds still."""


@dataclass(frozen=True, slots=True)
class History(NodeContract):
    """The rows that the records of a table have said, each with the span in which it held; the spans of a key do not overlap."""

    tag: ClassVar[str] = "History"
    input: Node
    place: Place = field(default=NOWHERE, compare=False)

    def input_nodes(self) -> tuple[Node, ...]:
        return (self.input,)

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return replace(self, input=inputs[0])

    def output_columns(self) -> tuple[str, ...]:
        return (*self.input.output_columns(), *COLUMNS)

    def visible(self) -> tuple[str, ...]:
        return self.output_columns()

    def expressions(self, side: int | None = None) -> list[str]:
        return []

    def compared(self, side: int) -> Sequence[str]:
        return ()

    def kinds(self) -> dict[str, Kind]:
        return without_fields(self.input.kinds()) | dict.fromkeys(COLUMNS, "timestamp")

    def lines(self) -> list[str]:
        return [*self.input.lines(), "history"]

    def is_stream(self) -> bool:
        return False

    def is_insert_only(self, emit: Emit = "changes") -> bool:
        return False

    def event_time(self) -> str | None:
        return None

    def settled(self) -> dict[str, timedelta]:
        return {}

    def natural_key(self) -> tuple[str, ...]:
        return (*self.input.natural_key(), COLUMNS[0])

    def never_null(self) -> frozenset[str]:
        return self.input.never_null() | {COLUMNS[0]}

    def has_kernel(self) -> bool:
        return True

    def is_bounded(self) -> bool:
        return False

    def ends(self) -> bool:
        return False

    def condition_below(self, part: str, used: frozenset[str]) -> Sequence[str | None]:
        return ()  # a record that a condition keeps out would not end the row before it


def history(node: Node, place: Place) -> History:
    """Every row that a table has had."""
    if not isinstance(node, Source) or node.kind != "table":
        raise PlanError(
            "history: expected a table itself; found "
            + (node.kind if isinstance(node, Source) else "a relation computed from one"),
            hint='users.history().where("valid_to IS NULL"): say history() first',
        )
    made = History(node, place)
    check_names(made.output_columns(), "history")
    return made
