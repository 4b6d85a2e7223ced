"""`top`: the first rows of each group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from millstream.plan.operators.clauses import Horizon, Order, horizon_of, micros
from millstream.plan.operators.contract import Laid, Names, SpecContract
from millstream.plan.operators.wording import (
    ENDLESS,
    TAKEN_BACK,
    USE_WINDOWS,
    Say,
    beyond,
    final,
    keyed,
    of_each,
    ordered,
    plus,
)
from millstream.relation import nodes
from millstream.relation.clauses import Emit, Ties
from millstream.relation.operators.contract import lateness


@dataclass(frozen=True, slots=True)
class Top(SpecContract):
    """The first ``count`` rows of each group in this order; ties are broken by the whole row, or by ``ties`` have one rank.

    With a ``horizon``, whose time is one of the keys, a group is forgotten when it can change no more. With ``emit="final"`` its
    rows appear ``lateness`` before that: when the mark reaches the end of the window that the group is of.
    """

    tag: ClassVar[str] = "Top"
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    order: tuple[Order, ...]
    count: int
    horizon: Horizon | None = None
    insert_only: bool = True
    retract: bool = True
    ties: Ties | None = None
    emit: Emit = "changes"
    lateness: int = 0

    def title(self) -> str:
        return "top"

    def does(self, say: Say) -> str:
        per = f" of each {keyed(self.keys, say)}" if self.keys else ""
        ends = plus(say(self.horizon.time, 0), self.horizon.span - self.lateness) if self.horizon else ""
        return f"{self.chosen()} by {ordered(self.order, say)}{per}{final(self.emit, ends)}"

    def keeps(self, say: Say) -> str:
        if not self.insert_only:
            return f"every row, {TAKEN_BACK} and the next best must be at hand"
        best = f"the rows of {self.ties} up to {self.count}" if self.ties else f"the best {self.count} rows"
        return f"{best} {of_each(self.keys, say)}: nothing is taken back"

    def drops(self, say: Say) -> str:
        if self.horizon is not None:
            return beyond(self.horizon, say)
        if self.is_bounded():
            return "never; it does not grow"
        return f"{ENDLESS}{'the groups' if self.insert_only else 'the rows'}"

    def bounded_by(self) -> str:
        return USE_WINDOWS

    def passes(self) -> bool:
        return False

    def is_bounded(self) -> bool:
        return self.horizon is not None or (self.insert_only and not self.keys)

    def is_replayable(self) -> bool:
        return True

    def keeps_events(self, endless: Sequence[bool], own: Callable[[str], bool]) -> bool:
        return any(endless) and not self.insert_only

    def is_endless(self, endless: Sequence[bool]) -> bool:
        return False

    def holding(self, name: str, here: str) -> set[str]:
        return {name} & set(self.columns)

    def sends_as_many(self) -> bool:
        return False

    def chosen(self) -> str:
        """Which rows it takes.

        >>> Top((), (), (), 3).chosen(), Top((), (), (), 3, ties="dense_rank").chosen()
        ('the first 3', 'those of dense_rank up to 3')
        """
        return f"those of {self.ties} up to {self.count}" if self.ties else f"the first {self.count}"


def lay(node: nodes.Top, emit: Emit, insert_only: bool) -> Laid:
    """Say how the first rows are found."""
    columns = node.input.output_columns()
    names = Names(columns)
    keys = tuple(map(names.name, node.per))
    horizon = horizon_of(node.input.settled(), keys)
    spec = Top(keys, columns, names.order(node.order), node.count, horizon, insert_only, ties=node.ties)
    if emit == "final" and node.windows_below():
        spec = replace(spec, emit=emit, lateness=micros(lateness(node)))
    return Laid(spec, names.wanted, keys, horizon is not None)
