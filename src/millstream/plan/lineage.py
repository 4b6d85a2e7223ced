"""What the columns of a chain are called by who wrote its expressions: the chain's own names (_c0, _k0, _a1) traced back to text."""

from __future__ import annotations

import re

from millstream.plan.chain import Chain, Feed, Operator, Port
from millstream.plan.describe import Say, span
from millstream.plan.spec import Changelog, JoinSpec
from millstream.relation.nodes import WINDOW_COLUMNS

_START = re.compile(r"timestamp_micros\(unix_micros\((.+?)\) - pmod\(unix_micros\(\1\), (\d+)\)( \+ \d+)?\)")
"""The start of a window, or its end, as :func:`~millstream.plan.select_kernel.starts` says them."""


def spoken(text: str) -> str:
    """An expression with the columns of windows by their names.

    >>> spoken("timestamp_micros(unix_micros(at) - pmod(unix_micros(at), 60000000) + 60000000)")
    'window_end'
    """
    return _START.sub(lambda found: WINDOW_COLUMNS[found[3] is not None], text)


def windows_in(text: str) -> str:
    """An expression with the windows themselves in place of their columns."""
    return _START.sub(lambda found: f"tumbling({found[1]}, {span(int(found[2]))})", text)


class Words:
    """What the columns of a chain are called by who wrote its expressions."""

    def __init__(self, chain: Chain) -> None:
        self.makers: dict[int, Feed | Operator] = {}
        self.makers.update((feed.number, feed) for feed in chain.feeds)
        self.makers.update((operator.number, operator) for operator in chain.operators)

    def ports_to(self, number: int) -> list[tuple[Feed | Operator, Port]]:
        """Who sends to a kernel or a view, and by which ports."""
        return [(maker, port) for maker in self.makers.values() for port in maker.ports if port.target == number]

    def taken(self, number: int, column: str, side: int) -> str:
        """What a column of a kernel's input is."""
        for maker, port in self.ports_to(number):
            columns = dict(port.columns)
            if port.side == side and column in columns:
                return self.left(maker, port, columns[column])
        return column

    def left(self, maker: Feed | Operator, port: Port, column: str) -> str:
        """What a column is that leaves by a port."""
        computed = {each.name: each.written for each in port.computed}
        return computed.get(column) or self.made(maker, column)

    def made(self, maker: Feed | Operator, column: str) -> str:
        """What a column of a feed's or a kernel's rows is."""
        if isinstance(maker, Feed):
            return next((each.expression for each in maker.expressions if each.name == column), column)
        if isinstance(maker.spec, Changelog):
            return self.made(self.makers[maker.inputs[0]], column)
        if isinstance(maker.spec, JoinSpec) and column[:2] in ("_k", "_l", "_r"):
            return self.taken(maker.number, column, 1 if column.startswith("_r") else 0)
        return column

    def kept(self, maker: Feed | Operator, keep: str) -> str:
        """Which rows are kept: a column says it, or a condition over columns."""
        if isinstance(maker, Operator) and isinstance(maker.spec, JoinSpec):
            return re.sub(r"\b_[klr]\d+\b", lambda found: self.made(maker, found[0]), keep)
        return self.made(maker, keep)

    def say(self, operator: Operator) -> Say:
        """What the columns of a kernel's input are."""

        def say(column: str, side: int) -> str:
            return spoken(self.taken(operator.number, column, side))

        return say
