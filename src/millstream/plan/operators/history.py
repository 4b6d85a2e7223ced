"""`history`: what the kernel keeps is the latest row of each key, since a record ends no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from millstream.plan.operators.contract import Laid, SpecContract, quoted
from millstream.plan.operators.wording import ENDLESS, USE_WINDOWS, Say, listed
from millstream.relation import expression, nodes
from millstream.relation.operators.history import COLUMNS


@dataclass(frozen=True, slots=True)
class History(SpecContract):
    """A table's records as rows with the span in which each held: ``values`` are the columns besides the key and the span."""

    tag: ClassVar[str] = "History"
    keys: tuple[str, ...]
    values: tuple[str, ...]
    retract: bool = True

    def title(self) -> str:
        return "history"

    def does(self, say: Say) -> str:
        return f"every row of each {listed(self.keys)}, from the time of its record until that of the next"

    def keeps(self, say: Say) -> str:
        return f"the latest row of each {listed(self.keys)}, or when it was deleted: the next record ends it"

    def drops(self, say: Say) -> str:
        return f"{ENDLESS}the keys"

    def bounded_by(self) -> str:
        return USE_WINDOWS

    def passes(self) -> bool:
        return False

    def is_bounded(self) -> bool:
        return False

    def is_replayable(self) -> bool:
        return True

    def keeps_events(self, endless: Sequence[bool], own: Callable[[str], bool]) -> bool:
        return False

    def is_endless(self, endless: Sequence[bool]) -> bool:
        return True  # each change of a key is one row more, for ever

    def holding(self, name: str, here: str) -> set[str]:
        return {name} & set(self.keys)

    def sends_as_many(self) -> bool:
        return True


def lay(node: nodes.History) -> Laid:
    """Say how a table's records become rows with spans: the time of a record is when its row begins to hold."""
    columns, keys = node.input.output_columns(), node.input.natural_key()
    spec = History(keys, tuple(name for name in columns if name not in keys))
    return Laid(spec, quoted(columns) | {COLUMNS[0]: expression.quote("_timestamp")}, keys)
