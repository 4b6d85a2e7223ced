"""`group_by(…).agg`: one row for each group, and for each window if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from millstream.relation import expression
from millstream.relation.clauses import (
    NOWHERE,
    WINDOW_COLUMNS,
    Aggregation,
    Emit,
    Hopping,
    Named,
    Place,
    Sliding,
    Tumbling,
    Window,
)
from millstream.relation.kinds import Kind, of_made, of_named, without_fields
from millstream.relation.operators.contract import (
    NodeContract,
    lateness,
    lower,
    renamed,
    settled_by_windows,
    texts_by_name,
)
from millstream.relation.wording import describe_call, describe_column, describe_window

if TYPE_CHECKING:
    from millstream.relation.nodes import Node


@dataclass(frozen=True, slots=True)
class Aggregate(NodeContract):
    """One row for each group: its keys (and ``window_start``, ``window_end``), then the aggregates."""

    tag: ClassVar[str] = "Aggregate"
    input: Node
    keys: tuple[Named, ...]
    window: Window | None
    aggregates: tuple[Aggregation, ...]
    place: Place = field(default=NOWHERE, compare=False)

    def input_nodes(self) -> tuple[Node, ...]:
        return (self.input,)

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return replace(self, input=inputs[0])

    def output_columns(self) -> tuple[str, ...]:
        window = WINDOW_COLUMNS if self.window else ()
        return (*(key.name for key in self.keys), *window, *(each.name for each in self.aggregates))

    def visible(self) -> tuple[str, ...]:
        return self.output_columns()

    def expressions(self, side: int | None = None) -> list[str]:
        return [*self.compared(0), *(text for each in self.aggregates for text in each.arguments)]

    def compared(self, side: int) -> Sequence[str]:
        return [each.expression for each in self.keys]

    def kinds(self) -> dict[str, Kind]:
        below = self.input.kinds()
        windows: dict[str, Kind] = dict.fromkeys(WINDOW_COLUMNS if self.window else (), "timestamp")
        return without_fields(of_named(self.keys, below) | windows | of_made(self.aggregates, below))

    def lines(self) -> list[str]:
        keys = [describe_column(key) for key in self.keys]
        if self.window:
            keys.append(describe_window(self.window))
        made = ", ".join(f"{each.name} = {describe_call(each)}" for each in self.aggregates)
        return [*self.input.lines(), f"group by {', '.join(keys) or 'nothing'}: {made}"]

    def is_stream(self) -> bool:
        return False

    def is_insert_only(self, emit: Emit = "changes") -> bool:
        return emit == "final" and self.ends() and not lateness(self)

    def event_time(self) -> str | None:
        return None

    def settled(self) -> dict[str, timedelta]:
        late = lateness(self)
        if isinstance(self.window, Tumbling | Hopping):
            return settled_by_windows(self.window, late)
        if self.window:
            return {WINDOW_COLUMNS[1]: late}
        names = renamed(self.keys)  # only windows: of each event's own time there is a group for every event
        names.pop((self.input.event_time() or "").lower(), None)
        return {names[name.lower()]: span for name, span in self.input.settled().items() if name.lower() in names}

    def natural_key(self) -> tuple[str, ...]:
        if isinstance(self.window, Sliding):
            return ()  # two events of one key and time have a row each
        return (*(key.name for key in self.keys), *(WINDOW_COLUMNS[:1] if self.window else ()))

    def never_null(self) -> frozenset[str]:
        known = lower(self.input.never_null())
        found = {each.name for each in self.keys if expression.lower_column(each.expression) in known}
        return frozenset(found | set(WINDOW_COLUMNS if self.window else ()))

    def has_kernel(self) -> bool:
        return True

    def is_bounded(self) -> bool:
        return self.window is not None or bool(self.settled())

    def ends(self) -> bool:
        return self.window is not None

    def condition_below(self, part: str, used: frozenset[str]) -> Sequence[str | None]:
        about_keys = used <= {key.name for key in self.keys}
        return (expression.substitute(part, texts_by_name(self.keys)),) if about_keys else ()
