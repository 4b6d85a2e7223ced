"""`unpivot`: each row once for each of several columns, with the name of the column and its value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.clauses import NOWHERE, Emit, Named, Place
from millstream.relation.kinds import Kind, of_named, without_fields
from millstream.relation.operators.checks import as_list, check_names, named_column, new_column
from millstream.relation.operators.contract import NodeContract, lower, renamed, texts_by_name
from millstream.relation.wording import describe_columns

if TYPE_CHECKING:
    from millstream.relation.nodes import Node


@dataclass(frozen=True, slots=True)
class Unpivot(NodeContract):
    """Each row once for each of ``values``: ``ids``, then as ``variable`` the name of a value's column, as ``value`` the value."""

    tag: ClassVar[str] = "Unpivot"
    input: Node
    ids: tuple[Named, ...]
    values: tuple[Named, ...]
    variable: str
    value: str
    place: Place = field(default=NOWHERE, compare=False)

    def input_nodes(self) -> tuple[Node, ...]:
        return (self.input,)

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return replace(self, input=inputs[0])

    def output_columns(self) -> tuple[str, ...]:
        return (*(each.name for each in self.ids), self.variable, self.value)

    def visible(self) -> tuple[str, ...]:
        return self.output_columns()

    def expressions(self, side: int | None = None) -> list[str]:
        return [each.expression for each in (*self.ids, *self.values)]

    def compared(self, side: int) -> Sequence[str]:
        return ()

    def kinds(self) -> dict[str, Kind]:
        below = self.input.kinds()
        found = of_named(self.ids, below) | {self.variable.lower(): "text"}
        of_values = of_named(self.values, below)
        if len(of_values) == len(self.values) and len(set(of_values.values())) == 1:
            found[self.value.lower()] = next(iter(of_values.values()))
        return without_fields(found)

    def lines(self) -> list[str]:
        ids = f" of each {describe_columns(self.ids)}" if self.ids else ""
        made = f"unpivot {describe_columns(self.values)} as {self.variable}, {self.value}{ids}"
        return [*self.input.lines(), made]

    def is_stream(self) -> bool:
        return self.input.is_stream()

    def is_insert_only(self, emit: Emit = "changes") -> bool:
        return self.input.is_insert_only(emit)

    def event_time(self) -> str | None:
        name = self.input.event_time()
        return next((each.name for each in self.ids if name and expression.is_column(each.expression, name)), None)

    def settled(self) -> dict[str, timedelta]:
        names = renamed(self.ids)
        return {names[name.lower()]: span for name, span in self.input.settled().items() if name.lower() in names}

    def natural_key(self) -> tuple[str, ...]:
        names, key = renamed(self.ids), self.input.natural_key()
        kept = [names[name.lower()] for name in key if name.lower() in names]
        return (*kept, self.variable) if key and len(kept) == len(key) else ()

    def never_null(self) -> frozenset[str]:
        known = lower(self.input.never_null())
        found = {each.name for each in self.ids if expression.lower_column(each.expression) in known}
        values = {expression.lower_column(each.expression) for each in self.values}
        return frozenset({*found, self.variable, *([self.value] if values <= known else [])})

    def has_kernel(self) -> bool:
        return True

    def is_bounded(self) -> bool:
        return True

    def ends(self) -> bool:
        return False

    def condition_below(self, part: str, used: frozenset[str]) -> Sequence[str | None]:
        about_ids = used <= {each.name for each in self.ids}
        return (expression.substitute(part, texts_by_name(self.ids)),) if about_ids else ()


def unpivot(node: Node, ids: Any, values: Any, variable: str, value: str, place: Place) -> Unpivot:
    """Each row once for each of several columns; without ``values`` for all that are no ids."""
    kept = tuple(named_column(text, node, "unpivot") for text in as_list(ids))
    if values is None:
        taken = {expression.lower_column(each.expression) for each in kept}
        others = [name for name in node.output_columns() if name.lower() not in taken]
        spread = tuple(Named(name, expression.quote(name)) for name in others)
    else:
        spread = tuple(named_column(text, node, "unpivot") for text in as_list(values))
    if not spread:
        raise PlanError(
            "unpivot: expected at least one value column; found none",
            hint='unpivot("id", ["a", "b"], "variable", "value"); None for values takes all columns but the ids',
        )
    check_names([each.name for each in spread], "unpivot")
    for name, example in ((variable, "variable"), (value, "value")):
        new_column(name, "unpivot", f'"{example}"')
    made = Unpivot(node, kept, spread, variable, value, place)
    check_names(made.output_columns(), "unpivot")
    return made
