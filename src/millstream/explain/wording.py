"""Names for the columns of a chain: what their author wrote, with the bounds of windows by their names."""

from __future__ import annotations

from millstream.plan.chain import Chain, Operator
from millstream.plan.lineage import Lineage
from millstream.plan.operators.wording import Say, span


class Wording:
    """The columns and expressions of a chain, as their author wrote them."""

    def __init__(self, chain: Chain) -> None:
        self.lineage = Lineage(chain)
        self.windows = sorted(chain.windows, key=lambda each: len(each.expression), reverse=True)

    def say(self, operator: Operator) -> Say:
        """What the columns of a kernel's input are."""

        def say(column: str, side: int) -> str:
            return self.spoken(self.lineage.taken(operator.number, column, side).text)

        return say

    def spoken(self, text: str) -> str:
        """An expression with the bounds of windows by their names."""
        for each in self.windows:
            text = text.replace(each.expression, each.name)
        return text

    def windows_in(self, text: str) -> str:
        """An expression with the windows themselves in place of their bounds."""
        for each in self.windows:
            text = text.replace(each.expression, f"tumbling({each.time}, {span(each.size)})")
        return text
