"""Neighbours fused: kernels that need no shuffle between them run in one step of one stage.

A stage costs a shuffle, a round of tasks and a state store. Rows of a kernel lie in buckets by its key. A kernel after it whose key
has all of that key in it finds its rows in the same bucket, so it runs there, right after the first, which *leads* the step; their
state lies side by side. A union and an explode keep nothing, and run wherever their rows are made.
"""

from __future__ import annotations

from dataclasses import replace

from millstream.plan import spec as specs
from millstream.plan.parts import ADMIT, SINK, Chain, Operator, Port
from millstream.plan.words import Words


def fuse(chain: Chain) -> Chain:
    """The chain with as few stages as it needs; numbers stay what they are."""
    steps = _Steps(chain)
    for operator in sorted(
        chain.operators, key=lambda each: each.number
    ):  # whoever takes rows comes after who makes them
        steps.place(operator)
    return replace(
        chain,
        feeds=tuple(replace(feed, ports=steps.ports(feed.ports)) for feed in chain.feeds),
        operators=tuple(
            replace(
                each,
                stage=steps.stages[each.number],
                step=steps.leaders.get(each.number),
                ports=steps.ports(each.ports),
            )
            for each in chain.operators
        ),
    )


class _Steps:
    def __init__(self, chain: Chain) -> None:
        self.words = Words(chain)
        self.specs = {each.number: each.spec for each in chain.operators}
        self.stages: dict[int, int] = {feed.number: ADMIT for feed in chain.feeds}
        self.leaders: dict[int, int] = {}
        """Who leads the step of a kernel that does not lead its own."""
        self.passing: set[int] = set()
        self.keys: dict[int, list[set[str]]] = {}
        """For each kernel, for each part of its leader's key, the columns of its rows that hold it."""

    def place(self, operator: Operator) -> None:
        """Find the stage and the step of a kernel whose inputs have theirs."""
        number = operator.number
        last = max(self.stages[each] for each in operator.inputs)
        if operator.passes:
            self.stages[number] = last
            self.passing.add(number)
            return
        led = self._led(operator)
        if led is None:
            self.stages[number] = last + 1
            spread = next(port.spread for _, port in self.words.ports_to(number))
            self.keys[number] = [self._made(operator, name) for name in spread]
        else:
            leader, keys = led
            self.stages[number], self.leaders[number] = self.stages[leader], leader
            self.keys[number] = [set().union(*(self._made(operator, name) for name in names)) for names in keys]

    def _led(self, operator: Operator) -> tuple[int, list[set[str]]] | None:
        """Who leads the step that a kernel can run in, and which columns of its input hold that leader's key."""
        leaders = {self.leaders.get(each, each) for each in operator.inputs}
        if len(leaders) > 1 or not all(each in self.keys for each in operator.inputs):
            return None
        keys: list[set[str]] | None = None
        for maker, port in self.words.ports_to(operator.number):
            here = dict(port.columns)
            found = [{name for name in port.spread if here[name] in names} for names in self.keys[maker.number]]
            if bool(found) != bool(port.spread):
                return None
            keys = found if keys is None else [one & other for one, other in zip(keys, found, strict=True)]
        return (leaders.pop(), keys) if keys is not None and all(keys) else None

    def _made(self, operator: Operator, name: str) -> set[str]:
        """The columns of a kernel's rows that hold a column of its key."""
        match operator.spec:
            case specs.Reduce(keys=keys) | specs.Session(keys=keys) | specs.Groups(keys=keys):
                return {name} & set(keys)
            case (
                specs.Top(columns=columns)
                | specs.Over(columns=columns)
                | specs.Deduplicate(columns=columns)
                | specs.Hold(columns=columns)
            ):
                return {name} & set(columns)
            case specs.TableJoin() | specs.IntervalJoin() | specs.AsOfJoin() | specs.LatestJoin():
                return {name} | self._sides(operator, name)
            case _:
                return set()

    def _sides(self, operator: Operator, name: str) -> set[str]:
        """The columns of a side that are the key there, where that side is never null."""
        spec = operator.spec
        assert isinstance(spec, specs.JoinSpec)  # noqa: S101
        found: set[str] = set()
        for side, (columns, outer) in enumerate(((spec.left, ("right", "full")), (spec.right, ("left", "full")))):
            key = self.words.taken(operator.number, name, side)
            if spec.how not in outer:
                found |= {each for each in columns if self.words.taken(operator.number, each, side) == key}
        return found

    def ports(self, ports: tuple[Port, ...]) -> tuple[Port, ...]:
        return tuple(map(self._port, ports))

    def _port(self, port: Port) -> Port:
        if port.stage == SINK:
            return port
        port = replace(port, stage=self.stages[port.target])
        near = port.target in self.leaders or port.target in self.passing
        if near:
            return replace(port, spread=(), buckets=1, first=None)
        spec = self.specs[port.target]
        return replace(port, sums=spec) if isinstance(spec, specs.Reduce) else port
