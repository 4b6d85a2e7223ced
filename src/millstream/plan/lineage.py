"""What the columns of a chain come from: its own names (_c0, _k0, _a1) traced back to what an author wrote, as data.

Steps, layouts and growth are decided by it, so nothing here is worded for people: that is :mod:`millstream.explain.wording`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from millstream.plan.chain import Chain, Feed, Operator, Port, WindowBound
from millstream.plan.spec import Changelog, JoinSpec
from millstream.relation.nodes import WINDOW_COLUMNS


class Origin(NamedTuple):
    """What a column comes from: an expression over columns that their author knows, and what that is if it is the bound of a window."""

    text: str
    window: WindowBound | None = None

    @property
    def is_window(self) -> bool:
        """Whether it is the bound of a window, as an expression or as a column that a kernel made."""
        return self.window is not None or self.text in WINDOW_COLUMNS


class Lineage:
    """Where the columns of a chain come from."""

    def __init__(self, chain: Chain) -> None:
        self.makers: dict[int, Feed | Operator] = {}
        self.makers.update((feed.number, feed) for feed in chain.feeds)
        self.makers.update((operator.number, operator) for operator in chain.operators)

    def ports_to(self, number: int) -> list[tuple[Feed | Operator, Port]]:
        """The makers that send to a kernel or a view, with their ports."""
        return [(maker, port) for maker in self.makers.values() for port in maker.ports if port.target == number]

    def taken(self, number: int, column: str, side: int) -> Origin:
        """What a column of a kernel's input is."""
        for maker, port in self.ports_to(number):
            columns = dict(port.columns)
            if port.side == side and column in columns:
                return self.left(maker, port, columns[column])
        return Origin(column)

    def left(self, maker: Feed | Operator, port: Port, column: str) -> Origin:
        """What a column is that leaves by a port."""
        computed = {each.name: Origin(each.written, each.window) for each in port.computed}
        return computed.get(column) or self.made(maker, column)

    def made(self, maker: Feed | Operator, column: str) -> Origin:
        """What a column of a feed's or a kernel's rows is."""
        if isinstance(maker, Feed):
            asked = {each.name: Origin(each.expression, each.window) for each in maker.expressions}
            return asked.get(column, Origin(column))
        if isinstance(maker.spec, Changelog):
            return self.made(self.makers[maker.inputs[0]], column)
        if isinstance(maker.spec, JoinSpec) and column[:2] in ("_k", "_l", "_r"):
            return self.taken(maker.number, column, 1 if column.startswith("_r") else 0)
        return Origin(column)

    def kept(self, maker: Feed | Operator, keep: str) -> str:
        """Which rows are kept: a column says it, or a condition over columns."""
        if isinstance(maker, Operator) and isinstance(maker.spec, JoinSpec):
            return re.sub(r"\b_[klr]\d+\b", lambda found: self.made(maker, found[0]).text, keep)
        return self.made(maker, keep).text
