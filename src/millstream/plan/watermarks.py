"""Watermark steps: which feeds tell which as-of joins how their watermarks rose while records were appended.

A join as of a time asks what the mark of its left side was when a record of its table was appended. That is the least of the
watermarks of all sources on that side, less what the kernels between hold back; so the sources send it themselves, by ports called clocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from millstream.plan.chain import Chain, Operator, Port
from millstream.plan.spec import AsOfJoin, Percolate


def clocked(chain: Chain) -> Chain:
    """The chain with the ports that send watermark steps to its as-of joins; every kernel has its stage already."""
    kernels = {each.number: each for each in chain.operators}
    clocks = {
        each.number: _longest(_sources(kernels, each.inputs[0], 0))
        for each in chain.operators
        if isinstance(each.spec, AsOfJoin | Percolate)
    }
    ports = {number: _port(chain, kernels[number]) for number in clocks}
    return replace(
        chain,
        feeds=tuple(
            replace(feed, clocks=tuple(ports[number] for number, told in clocks.items() if feed.number in dict(told)))
            for feed in chain.feeds
        ),
        operators=tuple(replace(each, clocks=clocks.get(each.number, ())) for each in chain.operators),
    )


def _sources(kernels: dict[int, Operator], number: int, hold: int) -> Iterator[tuple[int, int]]:
    """The feeds that rows come from, and by how much the kernels on the way hold their marks back."""
    if (kernel := kernels.get(number)) is None:
        yield number, hold
        return
    for below, held in zip(kernel.inputs, kernel.hold or (0,) * len(kernel.inputs), strict=True):
        if held is not None:
            yield from _sources(kernels, below, hold + held)


def _longest(found: Iterator[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Each feed once, with the longest hold of all ways from it."""
    longest: dict[int, int] = {}
    for number, hold in found:
        longest[number] = max(hold, longest.get(number, hold))
    return tuple(sorted(longest.items()))


def _port(chain: Chain, kernel: Operator) -> Port:
    return Port(kernel.stage, kernel.number, (), buckets=chain.buckets, tasks=chain.tasks, step=kernel.step)
