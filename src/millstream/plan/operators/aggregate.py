"""`group_by(…).agg`: one row for each group, and for each window of one size if there is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from millstream.plan.operators import over, session
from millstream.plan.operators.clauses import Horizon, Measure, horizon_of, micros
from millstream.plan.operators.contract import Laid, Names, SpecContract
from millstream.plan.operators.wording import (
    ENDLESS,
    USE_WINDOWS,
    Say,
    beyond,
    final,
    for_each,
    keyed,
    made,
    plus,
    values_kept,
    windows,
)
from millstream.relation import expression, nodes
from millstream.relation.clauses import WINDOW_COLUMNS, Emit
from millstream.relation.operators.contract import lateness


@dataclass(frozen=True, slots=True)
class Reduce(SpecContract):
    """One row for each group. Spans are microseconds; ``size`` None means no window; with ``every`` windows overlap.

    ``retract`` says whether −before goes along with +after; a store that goes by key does not need it.
    ``insert_only`` says that nothing is ever taken back from the input, so the best of each group may stand for the rest.
    With a ``horizon``, whose time is one of the keys, a group is forgotten when it can change no more.
    """

    tag: ClassVar[str] = "Reduce"
    keys: tuple[str, ...]
    measures: tuple[Measure, ...]
    size: int | None = None
    emit: Emit = "changes"
    lateness: int = 0
    insert_only: bool = True
    retract: bool = True
    every: int | None = None
    horizon: Horizon | None = None

    def title(self) -> str:
        return "aggregate"

    def does(self, say: Say) -> str:
        window = [windows(say(WINDOW_COLUMNS[0], 0), self.size, self.every)] if self.size else []
        return f"by {keyed(self.keys, say, *window)}: {made(self.measures, say)}{final(self.emit, WINDOW_COLUMNS[1])}"

    def keeps(self, say: Say) -> str:
        window = ["window"] if self.size else []
        return f"one row {for_each(self.keys, window)}: {values_kept(self.measures, self.insert_only, say)}"

    def drops(self, say: Say) -> str:
        if self.size is not None:
            return f"when the mark reaches {plus(WINDOW_COLUMNS[1], self.lateness)}"
        if self.horizon is not None:
            return beyond(self.horizon, say)
        if self.is_bounded():
            return "never; it does not grow"
        grows = "the groups" if self.keys else "the values"
        return f"{'when a group has no rows; else ' if not self.insert_only else ''}{ENDLESS}{grows}"

    def bounded_by(self) -> str:
        return USE_WINDOWS

    def passes(self) -> bool:
        return False

    def is_bounded(self) -> bool:
        grows = any(not each.adds_up(self.insert_only) for each in self.measures)
        return self.size is not None or self.horizon is not None or not (self.keys or grows)

    def is_replayable(self) -> bool:
        return all(each.is_replayable() for each in self.measures)

    def keeps_events(self, endless: Sequence[bool], own: Callable[[str], bool]) -> bool:
        if self.size is not None or not any(endless):
            return False
        return any(map(own, self.keys)) or any(each.lists(self.insert_only) for each in self.measures)

    def is_endless(self, endless: Sequence[bool]) -> bool:
        return False

    def holding(self, name: str, here: str) -> set[str]:
        return {name} & set(self.keys)

    def sends_as_many(self) -> bool:
        return all(each.is_linear(self.insert_only) for each in self.measures)


def lay(node: nodes.Aggregate, emit: Emit, insert_only: bool) -> Laid:
    """Say how rows are gathered in groups."""
    match node.window:
        case nodes.Session() as window:
            return session.lay(node, window, emit, insert_only)
        case nodes.Sliding() as window:
            return over.lay_sliding(node, window, emit, insert_only)
        case nodes.Tumbling() | nodes.Hopping() | None:
            return _reduce(node, node.window, emit, insert_only)


def _reduce(
    node: nodes.Aggregate, window: nodes.Tumbling | nodes.Hopping | None, emit: Emit, insert_only: bool
) -> Laid:
    keys, names = tuple(key.name for key in node.keys), Names()
    wanted = {key.name: key.expression for key in node.keys}
    size = every = horizon = None
    late = 0
    if window is None:
        horizon, emit = horizon_of(node.settled(), keys), "changes"
    else:
        size, late = micros(window.size), micros(lateness(node))
        every = micros(window.every) if isinstance(window, nodes.Hopping) else None
        wanted[WINDOW_COLUMNS[0]] = expression.quote(window.column)  # the kernel makes it the start of the window
    measures = names.measures(node)
    spec = Reduce(keys, measures, size, emit, late, insert_only, every=every, horizon=horizon)
    return Laid(spec, {**wanted, **names.wanted}, keys, bool(size or horizon))
