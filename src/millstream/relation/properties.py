"""Properties of a relation, as functions: its key, its event time, its kind of rows. Each node answers for itself.

Nothing here refuses anything; the caller decides what the answer means.
"""

from __future__ import annotations

from datetime import timedelta

from millstream.relation.nodes import Emit, Node
from millstream.relation.operators.contract import lateness

__all__ = [
    "event_time",
    "has_aggregate",
    "has_window",
    "is_bounded",
    "is_insert_only",
    "is_stream",
    "lateness",
    "natural_key",
    "settled",
    "visible",
]


def is_stream(node: Node) -> bool:
    """Whether its rows are facts that happened, rather than the present rows of a table, a group or a join of those."""
    return node.is_stream()


def is_insert_only(node: Node, emit: Emit = "changes") -> bool:
    """Whether none of its rows is ever taken back."""
    return node.is_insert_only(emit)


def event_time(node: Node) -> str | None:
    """The column of its event time."""
    return node.event_time()


def settled(node: Node) -> dict[str, timedelta]:
    """Columns that tell when a row can change no more."""
    return node.settled()


def natural_key(node: Node) -> tuple[str, ...]:
    """The columns that identify its rows."""
    return node.natural_key()


def is_bounded(node: Node) -> bool:
    """Whether what is kept for this node, not for those below, stops growing on endless input."""
    return node.is_bounded()


def visible(node: Node) -> tuple[str, ...]:
    """What an expression over a relation may use."""
    return node.visible()


def has_window(node: Node) -> bool:
    """Whether there is anything in it whose rows become final: a windowed aggregate, or rows that are distinguished by time."""
    return node.ends() or any(map(has_window, node.input_nodes()))


def has_aggregate(node: Node) -> bool:
    """Whether its rows are made by kernels, so that they are not those of one source."""
    return node.has_kernel() or any(map(has_aggregate, node.input_nodes()))
