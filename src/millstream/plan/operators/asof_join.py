"""Joins of a stream with a table: as of the time of the stream's row, or as the table is when the row comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from millstream.plan.operators.clauses import micros
from millstream.plan.operators.contract import SpecContract
from millstream.plan.operators.wording import ENDLESS, USE_WINDOWS, Say, on_keys, plus, time_of
from millstream.relation import nodes
from millstream.relation.clauses import How
from millstream.relation.operators.contract import lateness, sources_of


@dataclass(frozen=True, slots=True)
class AsOfJoin(SpecContract):
    """A stream by its time ``_t`` with a table by the time ``_v`` from which each of its rows holds.

    ``delay`` and ``lateness`` say how long the stream's rows are looked at again.
    """

    tag: ClassVar[str] = "AsOfJoin"
    how: How
    keys: int
    left: tuple[str, ...]
    right: tuple[str, ...]
    delay: int = 0
    lateness: int = 0

    def title(self) -> str:
        return "join as of a time"

    def does(self, say: Say) -> str:
        return f"{on_keys(self.how, self.keys, say)}, with the table as of {time_of(say, 0)}"

    def keeps(self, say: Say) -> str:
        stream = "rows of the stream as long as one of their time may come: the table may correct them"
        return f"{stream}; of each key of the table the last row before the mark, and those after it"

    def drops(self, say: Say) -> str:
        stream = f"the stream's when the mark is beyond {plus(time_of(say, 0), self.lateness)}"
        return f"{stream}; the table's {ENDLESS}its keys"

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
        return endless[0]

    def holding(self, name: str, here: str) -> set[str]:
        return {name}

    def sends_as_many(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class LatestJoin(SpecContract):
    """A stream that only grows with a table as it is after the batch that brings the stream's row."""

    tag: ClassVar[str] = "LatestJoin"
    how: How
    keys: int
    left: tuple[str, ...]
    right: tuple[str, ...]

    def title(self) -> str:
        return "join with the latest"

    def does(self, say: Say) -> str:
        return f"{on_keys(self.how, self.keys, say)}, with the table as it is when a row comes"

    def keeps(self, say: Say) -> str:
        return "every row of the table, and none of the stream: what was answered is not corrected"

    def drops(self, say: Say) -> str:
        return f"when a row of the table is taken back; else {ENDLESS}the table"

    def bounded_by(self) -> str:
        return "aggregate the stream before, or join it within= or as_of="

    def passes(self) -> bool:
        return False

    def is_bounded(self) -> bool:
        return False

    def is_replayable(self) -> bool:
        return False

    def keeps_events(self, endless: Sequence[bool], own: Callable[[str], bool]) -> bool:
        return endless[1]

    def is_endless(self, endless: Sequence[bool]) -> bool:
        return endless[0]

    def holding(self, name: str, here: str) -> set[str]:
        return {name}

    def sends_as_many(self) -> bool:
        return False


def lay(node: nodes.Join) -> AsOfJoin | LatestJoin:
    """Say how a stream meets a table; the columns of the sides are known only when all have asked."""
    if not node.as_of:
        return LatestJoin(node.how, len(node.on), (), ())
    delay = max(source.time.delay for source in sources_of(node.left) if source.time)
    return AsOfJoin(node.how, len(node.on), (), (), micros(delay), micros(lateness(node)))
