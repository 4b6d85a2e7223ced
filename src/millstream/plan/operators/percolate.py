"""`percolate`: events with the stored queries that they meet. Every bucket has all queries, and some of the events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from millstream.plan.operators.clauses import micros
from millstream.plan.operators.contract import SpecContract
from millstream.plan.operators.wording import ENDLESS, USE_WINDOWS, Say, listed, plus, time_of
from millstream.relation import nodes
from millstream.relation.operators.contract import lateness, sources_of

CONDITION = "_condition"
"""The column of a query's condition on its way to the kernel."""


_SPREAD = 3


@dataclass(frozen=True, slots=True)
class Percolate(SpecContract):
    """Events by their time ``_t``, with queries by the time ``_v`` from which each holds.

    ``events`` and ``shown`` are the columns of a pair, ``keys`` those by which a query is known, and ``columns`` are those that conditions
    may use, with their declared types. ``delay`` and ``lateness`` say how long events are looked at again.
    """

    tag: ClassVar[str] = "Percolate"
    events: tuple[str, ...]
    keys: tuple[str, ...]
    shown: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    delay: int = 0
    lateness: int = 0
    retract: bool = True

    def hold(self) -> tuple[int | None, ...]:
        """A table has no event time, so it holds no mark back."""
        return 0, None

    def spread(self) -> tuple[str, ...]:
        """What events go to buckets by: times alone may be few."""
        return "_t", *(name for name, _ in self.columns[:_SPREAD])

    def title(self) -> str:
        return "percolate"

    def does(self, say: Say) -> str:
        used = listed([name for name, _ in self.columns])
        return f"each event with the queries whose {say(CONDITION, 1)} it meets, as of {time_of(say, 0)}; a condition may use {used}"

    def keeps(self, say: Say) -> str:
        stream = "events as long as one of their time may come: a query may correct them"
        return f"{stream}; in every bucket, of each query the last record before the mark, and those after it"

    def drops(self, say: Say) -> str:
        stream = f"events when the mark is beyond {plus(time_of(say, 0), self.lateness)}"
        return f"{stream}; a query when it is deleted; else {ENDLESS}the queries"

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
        return set()

    def sends_as_many(self) -> bool:
        return False


def lay(node: nodes.Percolate) -> Percolate:
    """Say how events meet queries."""
    delay = max(source.time.delay for source in sources_of(node.stream) if source.time)
    return Percolate(
        node.stream.output_columns(),
        node.queries.natural_key(),
        node.shown,
        tuple((each.name, each.type) for each in node.columns),
        micros(delay),
        micros(lateness(node)),
    )
