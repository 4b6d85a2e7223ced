"""Joins of two streams within a span of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from millstream.plan.operators.clauses import micros
from millstream.plan.operators.contract import SpecContract
from millstream.plan.operators.wording import USE_WINDOWS, Say, on_keys, plus, span, time_of
from millstream.relation import nodes
from millstream.relation.clauses import How
from millstream.relation.operators.contract import lateness


@dataclass(frozen=True, slots=True)
class IntervalJoin(SpecContract):
    """Two streams by equal keys, where right time − left time is in [``low``, ``high``] (µs); times are ``_t``.

    ``lateness`` is how far below the mark of its side a row may still come.
    """

    tag: ClassVar[str] = "IntervalJoin"
    how: How
    keys: int
    left: tuple[str, ...]
    right: tuple[str, ...]
    low: int = 0
    high: int = 0
    lateness: tuple[int, int] = (0, 0)

    def title(self) -> str:
        return "join of streams"

    def does(self, say: Say) -> str:
        apart = f"{time_of(say, 1)} − {time_of(say, 0)} from {span(self.low)} to {span(self.high)}"
        return f"{on_keys(self.how, self.keys, say)}, {apart}"

    def keeps(self, say: Say) -> str:
        return "rows of both sides until no partner can come any more: the other side's mark tells"

    def drops(self, say: Say) -> str:
        left = f"the left when the right's mark is beyond {plus(time_of(say, 0), self.high + self.lateness[1])}"
        right = f"the right when the left's mark is beyond {plus(time_of(say, 1), self.lateness[0] - self.low)}"
        return f"{left}, {right}"

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
        return {name}

    def sends_as_many(self) -> bool:
        return False

    def hold(self) -> tuple[int, int]:
        """How far it holds back the mark of each side: a row that comes on one side makes rows with the time of the other."""
        return (-self.low, 0) if self.how == "right" else (0, self.high)


def lay(node: nodes.Join, within: tuple[timedelta, timedelta]) -> IntervalJoin:
    """Say how rows of two streams meet; the columns of the sides are known only when all have asked."""
    low, high = map(micros, within)
    late = micros(lateness(node.left)), micros(lateness(node.right))
    return IntervalJoin(node.how, len(node.on), (), (), low, high, late)
