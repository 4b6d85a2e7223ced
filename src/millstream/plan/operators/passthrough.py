"""Rows as they come, which nothing is kept of: `union`, `explode`, and rows with their windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from millstream.plan.operators.clauses import micros
from millstream.plan.operators.contract import Laid, StatelessSpec, quoted
from millstream.plan.operators.wording import Say, windows
from millstream.relation import nodes


@dataclass(frozen=True, slots=True)
class Pass(StatelessSpec):
    """Rows as they come, from several inputs; with ``explode`` once for each element of that array, as column ``element``.

    With a ``size`` they come once for each window of that size, one starting ``every`` so often, that holds their ``time``.
    """

    tag: ClassVar[str] = "Pass"
    columns: tuple[str, ...]
    explode: str | None = None
    element: str = ""
    retract: bool = True
    time: str = ""
    size: int = 0
    every: int = 0

    def title(self) -> str:
        return "windows" if self.size else "union" if self.explode is None else "explode"

    def does(self, say: Say) -> str:
        if self.size:
            return f"each row once for each window of {windows(say(self.time, 0), self.size, self.every)}"
        if self.explode is None:
            return "the rows of all inputs"
        return f"each row once for each element of {say(self.explode, 0)}, as {self.element}"


def lay_union(node: nodes.Union) -> Laid:
    """Say how rows of several relations become those of one."""
    columns = node.output_columns()
    return Laid(Pass(columns), quoted(columns), columns, node.event_time() is not None)


def lay_explode(node: nodes.Explode) -> Laid:
    """Say how rows are repeated for each element of an array."""
    columns = node.input.output_columns()
    wanted = {**quoted(columns), "_array": node.array}
    return Laid(Pass(columns, "_array", node.name), wanted, columns[:1], bool(node.settled()))


def lay_windows(node: nodes.Windowed) -> Laid:
    """Say how rows are repeated for each window that holds them."""
    below = node.input.output_columns()
    size, every = micros(node.window.size), micros(getattr(node.window, "every", node.window.size))
    return Laid(Pass(below, time=node.window.column, size=size, every=every), quoted(below), (), True)
