"""`windowed`: each row once for every window that holds its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from millstream.relation.clauses import NOWHERE, WINDOW_COLUMNS, Emit, Hopping, Place, Tumbling
from millstream.relation.kinds import Kind, without_fields
from millstream.relation.operators.contract import NodeContract, lateness, settled_by_windows
from millstream.relation.wording import describe_window

if TYPE_CHECKING:
    from millstream.relation.nodes import Node


@dataclass(frozen=True, slots=True)
class Windowed(NodeContract):
    """Each row of ``input`` once for every window that holds its time, with the start and the end of that window."""

    tag: ClassVar[str] = "Windowed"
    input: Node
    window: Tumbling | Hopping
    place: Place = field(default=NOWHERE, compare=False)

    def input_nodes(self) -> tuple[Node, ...]:
        return (self.input,)

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return replace(self, input=inputs[0])

    def output_columns(self) -> tuple[str, ...]:
        return (*self.input.output_columns(), *WINDOW_COLUMNS)

    def visible(self) -> tuple[str, ...]:
        return self.output_columns()

    def expressions(self, side: int | None = None) -> list[str]:
        return []

    def compared(self, side: int) -> Sequence[str]:
        return ()

    def kinds(self) -> dict[str, Kind]:
        return without_fields(self.input.kinds() | dict.fromkeys(WINDOW_COLUMNS, "timestamp"))

    def lines(self) -> list[str]:
        return [*self.input.lines(), f"in windows {describe_window(self.window)}"]

    def is_stream(self) -> bool:
        return self.input.is_stream()

    def is_insert_only(self, emit: Emit = "changes") -> bool:
        return self.input.is_insert_only(emit)

    def event_time(self) -> str | None:
        """None: when its rows come depends on their windows."""
        return None

    def settled(self) -> dict[str, timedelta]:
        return settled_by_windows(self.window, lateness(self))

    def natural_key(self) -> tuple[str, ...]:
        return ()

    def never_null(self) -> frozenset[str]:
        return self.input.never_null() | frozenset(WINDOW_COLUMNS)

    def has_kernel(self) -> bool:
        """Whether its rows are made by a kernel: windows side by side are two more columns."""
        return False

    def is_bounded(self) -> bool:
        return True

    def ends(self) -> bool:
        return True

    def condition_below(self, part: str, used: frozenset[str]) -> Sequence[str | None]:
        return () if used & set(WINDOW_COLUMNS) else (part,)
