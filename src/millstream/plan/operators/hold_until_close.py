"""Rows of windows that wait for the end of theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from millstream.plan.operators.contract import Laid, SpecContract, quoted
from millstream.plan.operators.wording import USE_WINDOWS, Say, final
from millstream.relation import nodes
from millstream.relation.clauses import WINDOW_COLUMNS


@dataclass(frozen=True, slots=True)
class Hold(SpecContract):
    """Rows of windows, from when the mark reaches the end of theirs, in column ``time``; after that as they come.

    ``keys`` is the column that they are spread by.
    """

    tag: ClassVar[str] = "Hold"
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    time: str
    retract: bool = True

    def title(self) -> str:
        return "wait"

    def does(self, say: Say) -> str:
        return f"the rows of windows that are over{final('final', say(self.time, 0))}"

    def keeps(self, say: Say) -> str:
        return "the rows of windows that are not over yet"

    def drops(self, say: Say) -> str:
        return f"when the mark reaches {say(self.time, 0)}"

    def bounded_by(self) -> str:
        return USE_WINDOWS

    def passes(self) -> bool:
        return False

    def is_bounded(self) -> bool:
        return True

    def is_replayable(self) -> bool:
        return True

    def keeps_events(self, endless: Sequence[bool], own: Callable[[str], bool]) -> bool:
        return False

    def is_endless(self, endless: Sequence[bool]) -> bool:
        return any(endless)

    def holding(self, name: str, here: str) -> set[str]:
        return {name} & set(self.columns)

    def sends_as_many(self) -> bool:
        return False


def lay(node: nodes.Windowed) -> Laid:
    """Say how rows of windows wait for the end of theirs."""
    columns, keys = node.output_columns(), (node.window.column,)
    return Laid(Hold(keys, columns, WINDOW_COLUMNS[1]), quoted(columns), keys, True)
