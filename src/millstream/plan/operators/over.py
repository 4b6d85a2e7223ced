"""`over`: each row, and what its neighbours make of it; sliding windows, which are neighbours in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from millstream.plan.operators.clauses import Horizon, Order, horizon_of, micros
from millstream.plan.operators.contract import Laid, Names, SpecContract
from millstream.plan.operators.wording import ENDLESS, Say, beyond, call, final, keyed, of_each, ordered, span
from millstream.relation import expression, nodes
from millstream.relation.clauses import Emit, Frame, Look
from millstream.relation.operators.contract import lateness


@dataclass(frozen=True, slots=True)
class Over(SpecContract):
    """Each row, and what its neighbours in its group make of it; ties in the order are broken by the whole row.

    With a ``horizon``, whose time is the first column of the order, rows are forgotten that no change can reach any more.
    With ``emit="final"`` a row appears when the mark is beyond its time. ``window`` adds the start and the end of a window of
    that length that ends with the row. With ``until``, whose time is one of the keys, a group is forgotten when it can change no more.
    """

    tag: ClassVar[str] = "Over"
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    order: tuple[Order, ...]
    looks: tuple[Look, ...]
    horizon: Horizon | None = None
    emit: Emit = "changes"
    window: int | None = None
    insert_only: bool = True
    retract: bool = True
    until: Horizon | None = None

    def title(self) -> str:
        return "over" if self.window is None else "sliding window"

    def does(self, say: Say) -> str:
        looks = ", ".join(f"{each.name} = {self._look(each, say)}" for each in self.looks)
        order = f", in the order of {ordered(self.order, say)}" if self.order else ""
        among = f"rows of equal {keyed(self.keys, say)}" if self.keys else "all rows"
        time = self.horizon.time if self.horizon else ""
        return f"each row among {among}{order}: {looks}{final(self.emit, say(time, 0), 'is beyond')}"

    def keeps(self, say: Say) -> str:
        away = self.reach()
        if self.until is not None:
            return f"every row {of_each(self.keys, say)}, as long as any of them may change"
        if self.horizon is None:
            return "every row: without an order in time any of them may change"
        if away is None:
            return "every row: a row may look at one any far away"
        return "rows that can still change, and those that they look at" + (
            f", up to {away} row{'s' * (away > 1)} away" if away else ""
        )

    def drops(self, say: Say) -> str:
        away = self.reach()
        if self.until is not None:
            return beyond(self.until, say)
        if self.horizon is None or away is None:
            return f"{ENDLESS}the rows"
        if away:
            rest = beyond(self.horizon, say)
            return f"{rest}, but the last {'row' if away == 1 else f'{away} rows'} of each key {ENDLESS}the keys"
        frames = [look.frame for look in self.looks if look.frame and look.frame.kind == "range"]
        before, after = (max((getattr(each, side) or 0 for each in frames), default=0) for side in ("before", "after"))
        return beyond(self.horizon, say, before + after)

    def bounded_by(self) -> str:
        return 'an order by the event time and a frame of a certain length let go of it: frame=frame.span("1 day")'

    def passes(self) -> bool:
        return False

    def is_bounded(self) -> bool:
        return self.until is not None or (self.horizon is not None and self.reach() == 0)

    def is_replayable(self) -> bool:
        return True

    def keeps_events(self, endless: Sequence[bool], own: Callable[[str], bool]) -> bool:
        return any(endless) and (self.horizon is None or self.reach() is None)

    def is_endless(self, endless: Sequence[bool]) -> bool:
        return any(endless)

    def holding(self, name: str, here: str) -> set[str]:
        return {name} & set(self.columns)

    def sends_as_many(self) -> bool:
        return False

    def reach(self) -> int | None:
        """How many rows away its looks go, besides distances in time; None where there is no end to it."""
        away = 0
        for look in self.looks:
            if look.function in ("lag", "lead"):
                away = max(away, look.offset)
            elif look.frame is None or look.frame.before is None or look.frame.after is None:
                return None
            elif look.frame.kind == "rows":
                away = max(away, look.frame.before, look.frame.after)
        return away

    def _look(self, look: Look, say: Say) -> str:
        arguments = [say(name, 0) for name in look.arguments]
        if look.function in ("lag", "lead"):
            return f"{look.function}({arguments[0]}, {look.offset})"
        if look.frame is None:
            return f"{look.function}()"
        written = call(look.function, arguments, look.fraction)
        if self.window is not None:
            return f"{written} over the last {span(self.window)}"
        timed = look.frame.kind == "range" and self.horizon is not None
        before, after = (
            "all" if far is None else span(far) if timed else str(far) for far in (look.frame.before, look.frame.after)
        )
        return f"{written} over {look.frame.kind} {before} before, {after} after"


def lay(node: nodes.Over, emit: Emit, insert_only: bool) -> Laid:
    """Say how rows look at their neighbours."""
    columns = node.input.output_columns()
    names = Names(columns)
    keys = tuple(map(names.name, node.partition))
    order = names.order(node.order)
    looks = tuple(replace(each, arguments=tuple(map(names.name, each.arguments))) for each in node.looks)
    horizon = horizon_of(node.input.settled(), (order[0].column,)) if order else None
    final = emit == "final" and node.ends()
    until = None if final else horizon_of(node.input.settled(), keys)
    emit = "final" if final else "changes"
    spec = Over(keys, columns, order, looks, horizon, emit, insert_only=insert_only, until=until)
    return Laid(spec, names.wanted, keys, bool(horizon or until))


def lay_sliding(node: nodes.Aggregate, window: nodes.Sliding, emit: Emit, insert_only: bool) -> Laid:
    """Say how each row looks at those of the window that ends with it."""
    keys, names = tuple(key.name for key in node.keys), Names()
    size = micros(window.size)
    time = names.name(expression.quote(window.column))
    frame = Frame("range", size, 0)
    looks = tuple(
        Look(each.name, each.function, each.arguments, frame, fraction=each.fraction) for each in names.measures(node)
    )
    horizon = Horizon(time, micros(lateness(node)))
    spec = Over(keys, keys, (Order(time),), looks, horizon, emit, size, insert_only)
    return Laid(spec, {**{key.name: key.expression for key in node.keys}, **names.wanted}, keys, True)
