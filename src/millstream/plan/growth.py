"""How state grows on endless input: not at all, with the keys there are, or with every event.

What grows with keys (groups, tables, distinct values, what a view shows) is as large as what it is about. What keeps something of
every event of a stream, for ever, fills any disk: :mod:`millstream.explain.endless` refuses it unless its author says that this is
meant. Both are read off the chain, so they are said of the kernels that run.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from millstream.plan import spec as specs
from millstream.plan.chain import Chain, Feed, Operator
from millstream.plan.lineage import Lineage
from millstream.relation import expression

Growth: TypeAlias = Literal["none", "keys", "events"]

_OWN = ("_offset", "_append_time", "_timestamp")
"""What a record has besides its columns and shares with no other, or hardly with one."""


def growth(chain: Chain) -> dict[int, Growth]:
    """Say of every feed and kernel how its state grows."""
    flows = _Flows(chain)
    found: dict[int, Growth] = {feed.number: "keys" if feed.source.sequence else "none" for feed in chain.feeds}
    for operator in chain.operators:
        endless = flows.keeps_events(operator)
        found[operator.number] = "none" if operator.spec.is_bounded() else "events" if endless else "keys"
    return found


class _Flows(Lineage):
    """Which kernels get rows without end."""

    def keeps_events(self, operator: Operator) -> bool:
        """Whether a kernel that never stops growing keeps something of each event, rather than of each key."""
        endless = [self.is_endless(number) for number in operator.inputs]
        return operator.spec.keeps_events(endless, lambda column: self.is_own(operator.number, column))

    def is_endless(self, number: int) -> bool:
        """Whether rows of a feed or a kernel are facts of which there are ever more, not the present rows of keys or windows."""
        maker = self.makers[number]
        if isinstance(maker, Feed):
            return maker.source.kind == "stream"
        return maker.spec.is_endless([self.is_endless(number) for number in maker.inputs])

    def is_own(self, number: int, column: str, side: int = 0) -> bool:
        """Whether a column of a kernel's input is an event's own: its time, or its place in the log."""
        for maker, port in self.ports_to(number):
            here = dict(port.columns).get(column)
            if port.side != side or here is None:
                continue
            if isinstance(maker, Feed):
                made, time = self.made(maker, here).text, maker.source.time
                text = expression.plain_column(made)
                if text is not None and text.lower() in (time.column.lower() if time else "", *_OWN):
                    return True
                if time is not None and made == time.said:
                    return True
            elif self.is_endless(maker.number):
                right = isinstance(maker.spec, specs.JoinSpec) and here.startswith("_r")
                if self.is_own(maker.number, here, 1 if right else 0):
                    return True
        return False
