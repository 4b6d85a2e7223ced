"""Session windows: one row for each session of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from millstream.plan.operators.clauses import Measure, micros
from millstream.plan.operators.contract import Laid, Names, SpecContract
from millstream.plan.operators.wording import (
    TAKEN_BACK,
    USE_WINDOWS,
    Say,
    final,
    for_each,
    keyed,
    made,
    plus,
    span,
    values_kept,
)
from millstream.relation import expression, nodes
from millstream.relation.clauses import WINDOW_COLUMNS, Emit
from millstream.relation.operators.contract import lateness


@dataclass(frozen=True, slots=True)
class Session(SpecContract):
    """One row for each session of a group: rows of which each is at most ``gap`` after the one before, by column ``time``."""

    tag: ClassVar[str] = "Session"
    keys: tuple[str, ...]
    measures: tuple[Measure, ...]
    time: str
    gap: int
    emit: Emit = "changes"
    lateness: int = 0
    insert_only: bool = True
    retract: bool = True

    def title(self) -> str:
        return "sessions"

    def does(self, say: Say) -> str:
        window = [f"session({say(self.time, 0)}, {span(self.gap)})"]
        ends = final(self.emit, WINDOW_COLUMNS[1], "is beyond")
        return f"by {keyed(self.keys, say, *window)}: {made(self.measures, say)}{ends}"

    def keeps(self, say: Say) -> str:
        values = values_kept(self.measures, self.insert_only, say)
        if self.insert_only:
            return f"one row {for_each(self.keys, ['session'])}: {values}"
        return f"one row {for_each(self.keys, ['moment'])}, {TAKEN_BACK} and a session may fall apart: {values}"

    def drops(self, say: Say) -> str:
        return f"when the mark is beyond {plus(WINDOW_COLUMNS[1], self.lateness)}"

    def bounded_by(self) -> str:
        return USE_WINDOWS

    def passes(self) -> bool:
        return False

    def is_bounded(self) -> bool:
        return True

    def is_replayable(self) -> bool:
        return all(each.is_replayable() for each in self.measures)

    def keeps_events(self, endless: Sequence[bool], own: Callable[[str], bool]) -> bool:
        return False

    def is_endless(self, endless: Sequence[bool]) -> bool:
        return False

    def holding(self, name: str, here: str) -> set[str]:
        return {name} & set(self.keys)

    def sends_as_many(self) -> bool:
        return False


def lay(node: nodes.Aggregate, window: nodes.Session, emit: Emit, insert_only: bool) -> Laid:
    """Say how rows are gathered in sessions."""
    keys, names = tuple(key.name for key in node.keys), Names()
    time = names.name(expression.quote(window.column))
    late = micros(lateness(node))
    spec = Session(keys, names.measures(node), time, micros(window.gap), emit, late, insert_only)
    return Laid(spec, {**{key.name: key.expression for key in node.keys}, **names.wanted}, keys, True)
