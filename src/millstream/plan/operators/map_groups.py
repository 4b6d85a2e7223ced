"""`map_groups`: what a function makes of the rows of each group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from millstream.plan.operators.clauses import Horizon, horizon_of
from millstream.plan.operators.contract import Laid, SpecContract, quoted
from millstream.plan.operators.wording import ENDLESS, USE_WINDOWS, Say, beyond, keyed, of_each
from millstream.relation import nodes
from millstream.relation.clauses import Column


@dataclass(frozen=True, slots=True)
class Groups(SpecContract):
    """What a function makes of the rows of each group: the keys, then ``made`` columns.

    With a ``horizon``, whose time is one of the keys, a group is forgotten when it can change no more.
    """

    tag: ClassVar[str] = "Groups"
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    made: tuple[Column, ...]
    function: Callable[[Any], Any]
    horizon: Horizon | None = None
    retract: bool = True

    def title(self) -> str:
        return "map groups"

    def does(self, say: Say) -> str:
        name = getattr(self.function, "__name__", "a function")
        return f"by {keyed(self.keys, say)}: {', '.join(each.name for each in self.made)} = {name}(rows)"

    def keeps(self, say: Say) -> str:
        return f"every row {of_each(self.keys, say)}: the function is asked about all of them"

    def drops(self, say: Say) -> str:
        return beyond(self.horizon, say) if self.horizon else f"{ENDLESS}the rows"

    def bounded_by(self) -> str:
        return USE_WINDOWS

    def passes(self) -> bool:
        return False

    def is_bounded(self) -> bool:
        return self.horizon is not None

    def is_replayable(self) -> bool:
        return True

    def keeps_events(self, endless: Sequence[bool], own: Callable[[str], bool]) -> bool:
        return any(endless)

    def is_endless(self, endless: Sequence[bool]) -> bool:
        return False

    def holding(self, name: str, here: str) -> set[str]:
        return {name} & set(self.keys)

    def sends_as_many(self) -> bool:
        return False


def lay(node: nodes.MapGroups) -> Laid:
    """Say how a function is asked about groups."""
    below, keys = node.input.output_columns(), tuple(key.name for key in node.key)
    wanted = quoted(below) | {key.name: key.expression for key in node.key}
    horizon = horizon_of(node.settled(), keys)
    return Laid(Groups(keys, below, node.columns, node.function, horizon), wanted, keys, horizon is not None)
