"""Joins of all rows of both sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from millstream.plan.operators.clauses import Horizon, micros
from millstream.plan.operators.contract import SpecContract
from millstream.plan.operators.wording import ENDLESS, Say, beyond, on_keys
from millstream.relation import nodes
from millstream.relation.clauses import How


@dataclass(frozen=True, slots=True)
class TableJoin(SpecContract):
    """All rows of both sides by equal keys. ``left`` and ``right`` are the columns of each that are wanted; keys are ``_k0``, ``_k1``, …

    With a ``horizon``, whose time is one of the keys, rows are forgotten when neither side can change any more.
    ``insert_only`` says that it is an inner join of sides from which nothing is ever taken back.
    """

    tag: ClassVar[str] = "TableJoin"
    how: How
    keys: int
    left: tuple[str, ...]
    right: tuple[str, ...]
    horizon: Horizon | None = None
    insert_only: bool = False

    def title(self) -> str:
        return "join"

    def does(self, say: Say) -> str:
        return on_keys(self.how, self.keys, say)

    def keeps(self, say: Say) -> str:
        if self.horizon is None:
            return "every row of both sides: either may get a partner at any time"
        return "the rows of both sides as long as either can change"

    def drops(self, say: Say) -> str:
        if self.horizon is not None:
            return beyond(self.horizon, say)
        return f"when a row is taken back; else {ENDLESS}both sides"

    def bounded_by(self) -> str:
        return (
            'two streams can be joined within="1 hour", a stream and a table as_of= its time or latest=True; '
            "or aggregate the stream before"
        )

    def passes(self) -> bool:
        return False

    def is_bounded(self) -> bool:
        return self.horizon is not None

    def is_replayable(self) -> bool:
        return True

    def keeps_events(self, endless: Sequence[bool], own: Callable[[str], bool]) -> bool:
        return any(endless)

    def is_endless(self, endless: Sequence[bool]) -> bool:
        return endless[0] if self.how in ("semi", "anti") else any(endless)

    def holding(self, name: str, here: str) -> set[str]:
        return {name}

    def sends_as_many(self) -> bool:
        return False


def lay(node: nodes.Join, insert_only: bool) -> TableJoin:
    """Say how all rows of both sides meet; the columns of the sides are known only when all have asked."""
    met = next(iter(node.meetings().items()), None)
    horizon = Horizon(f"_k{met[0]}", micros(met[1])) if met else None
    return TableJoin(node.how, len(node.on), (), (), horizon, node.how == "inner" and insert_only)
