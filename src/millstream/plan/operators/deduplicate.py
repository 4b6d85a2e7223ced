"""`deduplicate`: the rows that are no repeats of an earlier one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from millstream.plan.operators.clauses import Horizon, micros
from millstream.plan.operators.contract import Laid, Names, SpecContract
from millstream.plan.operators.wording import ENDLESS, Say, beyond, final, keyed, listed, span
from millstream.relation import expression, nodes
from millstream.relation.clauses import Emit
from millstream.relation.operators.contract import lateness


@dataclass(frozen=True, slots=True)
class Deduplicate(SpecContract):
    """Of rows with equal keys the first by time; the next one counts again if it is more than ``within`` after that."""

    tag: ClassVar[str] = "Deduplicate"
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    horizon: Horizon
    within: int | None = None
    emit: Emit = "changes"
    insert_only: bool = True
    retract: bool = True

    def title(self) -> str:
        return "deduplicate"

    def does(self, say: Say) -> str:
        again = f", and again when more than {span(self.within)} after it" if self.within is not None else ""
        time = say(self.horizon.time, 0)
        return f"the first of each {keyed(self.keys, say)} by {time}{again}{final(self.emit, time, 'is beyond')}"

    def keeps(self, say: Say) -> str:
        if self.within is None:
            return f"the first row of each {keyed(self.keys, say)}; repeats as long as an earlier row may come"
        counting = f"the rows of each {keyed(self.keys, say)} that count, for {span(self.within)}"
        return f"{counting}; repeats as long as an earlier row may come"

    def drops(self, say: Say) -> str:
        if self.within is None:
            return f"{ENDLESS}{listed([say(key, 0) for key in self.keys])}"
        return beyond(self.horizon, say, self.within)

    def bounded_by(self) -> str:
        return 'within="1 day" lets go of it'

    def passes(self) -> bool:
        return False

    def is_bounded(self) -> bool:
        return self.within is not None

    def is_replayable(self) -> bool:
        return True

    def keeps_events(self, endless: Sequence[bool], own: Callable[[str], bool]) -> bool:
        return any(endless)

    def is_endless(self, endless: Sequence[bool]) -> bool:
        return any(endless)

    def holding(self, name: str, here: str) -> set[str]:
        return {name} & set(self.columns)

    def sends_as_many(self) -> bool:
        return False


def lay(node: nodes.Deduplicate, emit: Emit, insert_only: bool) -> Laid:
    """Say how repeats are found."""
    columns = node.input.output_columns()
    names = Names(columns)
    keys = tuple(map(names.name, node.id))
    time = node.input.event_time()
    assert time is not None  # noqa: S101
    horizon = Horizon(names.name(expression.quote(time)), micros(lateness(node)))
    within = micros(node.within) if node.within is not None else None
    spec = Deduplicate(keys, columns, horizon, within, emit, insert_only)
    return Laid(spec, names.wanted, keys, True)
