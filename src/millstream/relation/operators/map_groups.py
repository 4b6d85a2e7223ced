"""`map_groups`: what a function makes of the rows of each key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.clauses import NOWHERE, Column, Emit, Named, Place
from millstream.relation.fingerprint import digest_of
from millstream.relation.kinds import Kind, declared, of_named, without_fields
from millstream.relation.operators.checks import given_columns
from millstream.relation.operators.contract import NodeContract, lower, renamed, texts_by_name
from millstream.relation.wording import describe_columns

if TYPE_CHECKING:
    from millstream.relation.nodes import Node


@dataclass(frozen=True, slots=True)
class MapGroups(NodeContract):
    """What a function of the user's makes of the rows of each key: the key, then columns as declared.

    ``digest`` stands for the function where definitions are compared: two of the same text are the same.
    """

    tag: ClassVar[str] = "MapGroups"
    input: Node
    key: tuple[Named, ...]
    columns: tuple[Column, ...]
    digest: str
    function: Callable[[Any], Any] = field(compare=False)
    place: Place = field(default=NOWHERE, compare=False)

    def input_nodes(self) -> tuple[Node, ...]:
        return (self.input,)

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return replace(self, input=inputs[0])

    def output_columns(self) -> tuple[str, ...]:
        return (*(key.name for key in self.key), *(column.name for column in self.columns))

    def visible(self) -> tuple[str, ...]:
        return self.output_columns()

    def expressions(self, side: int | None = None) -> list[str]:
        return [each.expression for each in self.key]

    def compared(self, side: int) -> Sequence[str]:
        return self.expressions()

    def kinds(self) -> dict[str, Kind]:
        return without_fields(of_named(self.key, self.input.kinds()) | dict(declared(self.columns)))

    def lines(self) -> list[str]:
        name = getattr(self.function, "__name__", "a function")
        return [*self.input.lines(), f"map groups by {describe_columns(self.key) or 'nothing'}: {name}"]

    def is_stream(self) -> bool:
        return False

    def is_insert_only(self, emit: Emit = "changes") -> bool:
        return False

    def event_time(self) -> str | None:
        return None

    def settled(self) -> dict[str, timedelta]:
        names = renamed(self.key)
        return {names[name.lower()]: span for name, span in self.input.settled().items() if name.lower() in names}

    def natural_key(self) -> tuple[str, ...]:
        return ()

    def never_null(self) -> frozenset[str]:
        known = lower(self.input.never_null())
        return frozenset(each.name for each in self.key if expression.lower_column(each.expression) in known)

    def has_kernel(self) -> bool:
        return True

    def is_bounded(self) -> bool:
        return bool(self.settled())

    def ends(self) -> bool:
        return False

    def condition_below(self, part: str, used: frozenset[str]) -> Sequence[str | None]:
        about_keys = used <= {key.name for key in self.key}
        return (expression.substitute(part, texts_by_name(self.key)),) if about_keys else ()


def map_groups(
    node: Node, function: Callable[[Any], Any], key: tuple[Named, ...], schema: str, place: Place
) -> MapGroups:
    """What a function makes of the rows of each key."""
    if not callable(function):
        raise PlanError(f"map_groups: expected a function of a Polars frame; found {function!r}")
    return MapGroups(node, key, given_columns("map_groups", schema), digest_of(function), function, place)
