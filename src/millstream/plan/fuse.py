"""Neighbours fused: kernels that need no shuffle between them run in one step of one stage.

A stage costs a shuffle, a round of tasks and a state store. Rows of a kernel lie in buckets by its key. A kernel after it whose key
has all of that key in it finds its rows in the same bucket, so it runs there, right after the first, which *leads* the step; their
state lies side by side. A union and an explode keep nothing, and run wherever their rows are made.

A join runs beside a side of it too if the other side can be sent to the same buckets: it is spread by the same values, and the hash of
values is the same whoever sends them. If both sides are kernels of one stage, their steps become one. A side then may have to be spread
by less than its whole key: by the part of it that the join is on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from millstream.plan import spec as specs
from millstream.plan.chain import ADMIT, DRIVER, Chain, Feed, Operator, Port
from millstream.plan.lineage import Lineage


def fuse(chain: Chain) -> Chain:
    """The chain with as few stages as it needs; numbers stay what they are."""
    steps = _Steps(chain)
    for operator in sorted(
        chain.operators, key=lambda each: each.number
    ):  # a reader comes after the makers of its rows
        steps.place(operator)
    return replace(
        chain,
        feeds=tuple(replace(feed, ports=steps.ports(feed)) for feed in chain.feeds),
        operators=tuple(
            replace(
                each,
                stage=steps.stages[each.number],
                step=steps.led_by(each.number),
                ports=steps.ports(each),
            )
            for each in chain.operators
        ),
    )


@dataclass(eq=False)
class _Step:
    """Kernels that share buckets. The key of the buckets has parts: for each part, every sender and every maker of rows has columns of its own."""

    leader: int
    keys: dict[int, list[set[str]]] = field(default_factory=dict)
    """For each kernel, for each part, the columns of its rows that hold it."""
    spreads: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    """For each kernel and side that rows are sent to, for each part, the column there that holds it."""

    def pick(self, parts: Sequence[int]) -> None:
        """Go by these parts alone, in this order."""
        self.keys = {number: [found[part] for part in parts] for number, found in self.keys.items()}
        self.spreads = {place: [names[part] for part in parts] for place, names in self.spreads.items()}


class _Steps:
    def __init__(self, chain: Chain) -> None:
        self.lineage = Lineage(chain)
        self.specs = {each.number: each.spec for each in chain.operators}
        self.stages: dict[int, int] = {feed.number: ADMIT for feed in chain.feeds}
        self.steps: dict[int, _Step] = {}
        """The step of each kernel that keeps something."""

    def place(self, operator: Operator) -> None:
        """Find the stage and the step of a kernel whose inputs have theirs."""
        number = operator.number
        last = max(self.stages[each] for each in operator.inputs)
        if operator.passes or self._follow(operator) or self._join(operator, last):
            self.stages[number] = last
        else:
            self.stages[number] = last + 1
            self.steps[number] = step = _Step(number)
            for _, port in self.lineage.ports_to(number):
                step.spreads[number, port.side] = list(port.spread)
                if not port.broadcast:
                    step.keys[number] = [self._made(operator, name) for name in port.spread]

    def _follow(self, operator: Operator) -> bool:
        """Put a kernel into the step that makes all its rows, if its own key contains the key of that step's buckets."""
        steps = {self.steps.get(each) for each in operator.inputs}
        step = steps.pop()
        if steps or step is None:
            return False
        keys: list[set[str]] | None = None
        for maker, port in self.lineage.ports_to(operator.number):
            here = dict(port.columns)
            found = [{name for name in port.spread if here[name] in names} for names in step.keys[maker.number]]
            if bool(found) != bool(port.spread):
                return False
            keys = found if keys is None else [one & other for one, other in zip(keys, found, strict=True)]
        if keys is None or not all(keys):
            return False
        self.steps[operator.number] = step
        step.keys[operator.number] = [set().union(*(self._made(operator, each) for each in names)) for names in keys]
        return True

    def _join(self, operator: Operator, last: int) -> bool:
        """Put a join into the steps of those sides that are made last, if all that comes for it can be sent to their buckets."""
        ports = self.lineage.ports_to(operator.number)
        beside = [(maker.number, port) for maker, port in ports if self.stages[maker.number] == last]
        if not isinstance(operator.spec, specs.JoinSpec) or not all(number in self.steps for number, _ in beside):
            return False
        steps = sorted({self.steps[number] for number, _ in beside}, key=lambda each: each.leader)
        names: list[str] = []
        picked: list[list[int]] = [[] for _ in steps]
        for name in ports[0][1].spread:
            parts = [self._part(step, beside, name) for step in steps]
            found = [part for part in parts if part is not None]
            if len(found) == len(steps):
                names.append(name)
                for part, taken in zip(found, picked, strict=True):
                    taken.append(part)
        if not names or not all(map(self._may_pick, steps, picked)):
            return False
        first, *others = steps
        for step, taken in zip(steps, picked, strict=True):
            step.pick(taken)
        for step in others:
            first.keys |= step.keys
            first.spreads |= step.spreads
            self.steps |= dict.fromkeys(step.keys, first)
        self.steps[operator.number] = first
        first.keys[operator.number] = [self._made(operator, name) for name in names]
        first.spreads |= {(operator.number, port.side): names for _, port in ports}
        return True

    def _part(self, step: _Step, beside: Sequence[tuple[int, Port]], name: str) -> int | None:
        """Which part of the key of a step's buckets a column is, of those that its kernels send."""
        sent = [(number, dict(port.columns)[name]) for number, port in beside if self.steps[number] is step]
        parts = range(len(step.keys[step.leader]))
        return next((part for part in parts if all(here in step.keys[number][part] for number, here in sent)), None)

    def _may_pick(self, step: _Step, parts: Sequence[int]) -> bool:
        """Whether a step may go by these parts alone.

        By fewer values, rows may lie less evenly. That is no loss where as many rows come as go on to the join, which has them by
        these values anyway; unless those are of windows alone, of which one at a time has rows.
        """
        if len(set(parts)) == len(step.keys[step.leader]):
            return True
        made_of = [
            self.lineage.taken(number, names[part], side)
            for (number, side), names in step.spreads.items()
            for part in parts
        ]
        return all(self.specs[number].sends_as_many() for number in step.keys) and not all(
            each.is_window for each in made_of
        )

    def _made(self, operator: Operator, name: str) -> set[str]:
        """The columns of a kernel's rows that hold a column of its key."""
        ports = (dict(port.columns) for _, port in self.lineage.ports_to(operator.number))
        found = operator.spec.holding(name, next(here[name] for here in ports if name in here))
        return (
            found | self._sides(operator.spec, operator, name) if isinstance(operator.spec, specs.JoinSpec) else found
        )

    def _sides(self, spec: specs.JoinSpec, operator: Operator, name: str) -> set[str]:
        """The columns of a side that are the key there, where that side is never null."""
        found: set[str] = set()
        for side, (columns, outer) in enumerate(((spec.left, ("right", "full")), (spec.right, ("left", "full")))):
            ports = [
                (maker, dict(port.columns))
                for maker, port in self.lineage.ports_to(operator.number)
                if port.side == side
            ]
            if spec.how not in outer:
                found |= {
                    each for each in columns if all(self._same(maker, here[name], here[each]) for maker, here in ports)
                }
        return found

    def _same(self, maker: Feed | Operator, one: str, other: str) -> bool:
        """Whether two columns of the rows that are made hold the same: not whether they are called the same, as in a join with itself."""
        step = self.steps.get(maker.number)
        return one == other or any({one, other} <= names for names in (step.keys[maker.number] if step else ()))

    def led_by(self, number: int) -> int | None:
        """The leader of a kernel's step, if that is another kernel."""
        step = self.steps.get(number)
        return None if step is None or step.leader == number else step.leader

    def ports(self, maker: Feed | Operator) -> tuple[Port, ...]:
        """The ports of a maker, once all kernels have their places."""
        return tuple(self._port(maker.number, port) for port in maker.ports)

    def _port(self, maker: int, port: Port) -> Port:
        if port.stage == DRIVER:
            return port
        port = replace(port, stage=self.stages[port.target])
        step = self.steps.get(port.target)
        if step is None or step is self.steps.get(maker):
            return replace(port, spread=(), buckets=1, first=None)
        spec = self.specs[port.target]
        spread = tuple(step.spreads[port.target, port.side])
        sums = spec if isinstance(spec, specs.Reduce) else None
        return replace(port, spread=spread, step=self.led_by(port.target), sums=sums)
