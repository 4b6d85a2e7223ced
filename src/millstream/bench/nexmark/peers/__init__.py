"""Nexmark on other systems, over the same files or topics on the same machine: Flink SQL and plain Structured Streaming; and what the work
alone costs, as one Polars job.

A rate is events by the wall time from the start of a query to its end, with the engine up and warmed by the same query over a
few events. Answers can be looked at too, since a fast wrong answer is worth nothing. One peer is up at a time; it stays up
until another is wanted, so that one who compares goes through the queries of a system, then to the next.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from millstream.bench.nexmark.peers.layout import Input

SYSTEMS = ("flink", "flink_heap", "spark", "polars")
QUERIES = (*(f"q{number}" for number in range(23)), *(f"cep{number}" for number in range(4)))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a timed query: seconds, or the reason why the system cannot run it."""

    system: str
    query: str
    events: int
    seconds: float | None = None
    reason: str = ""

    @property
    def rate(self) -> float | None:
        """Events a second."""
        return self.events / self.seconds if self.seconds else None


class Peer(Protocol):
    """A system that is up, in a process of its own."""

    def seconds(self, system: str, query: str, given: Input) -> float | str:
        """Time a query, or say why it cannot run."""

    def answer(self, system: str, query: str, given: Input) -> list[list[Any]] | str:
        """Give a query's final content, or say why it cannot run."""

    def close(self) -> None:
        """End the process."""


_up: dict[str, Peer] = {}


def run_peer(
    system: str, query: str, given: Input, events: int, warm: Input, *, say: Callable[[str], None] = lambda _: None
) -> Outcome:
    """Run a query over so many events, after one over the few of ``warm``."""
    peer = _peer(system, given, say)
    found: float | str = ""
    for what, where in (("warming", warm), (f"{events:,} events", given)):
        say(f"{system} {query}: {what}")
        found = peer.seconds(system, query, where)
        if isinstance(found, str):
            return Outcome(system, query, events, reason=found)
    assert isinstance(found, float)  # noqa: S101
    return Outcome(system, query, events, found)


def answer_of(
    system: str, query: str, given: Input, *, say: Callable[[str], None] = lambda _: None
) -> list[list[Any]] | str:
    """The final content of a query, its columns in the order of the question; or the reason why it cannot run."""
    peer = _peer(system, given, say)
    say(f"{system} {query}: its answer")
    return peer.answer(system, query, given)


def close_peers() -> None:
    """End the peer that is up, if any."""
    while _up:
        _up.popitem()[1].close()


atexit.register(close_peers)


def _peer(system: str, given: Input, say: Callable[[str], None]) -> Peer:
    kind = system.removesuffix("_heap")  # Flink's cluster is the same for both
    if kind not in _up:
        close_peers()
        if kind == "flink":
            from millstream.bench.nexmark.peers.on_flink import Flink

            _up[kind] = Flink(say, kafka=bool(given.bootstrap))
        elif kind == "polars":
            from millstream.bench.nexmark.peers.on_polars import Polars

            _up[kind] = Polars()
        else:
            from millstream.bench.nexmark.peers.on_spark import Spark

            _up[kind] = Spark(say, kafka=bool(given.bootstrap))
    return _up[kind]
