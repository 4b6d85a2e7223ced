"""Conditions moved to where they keep most rows out: below joins, groups and unions, so that less is kept and sent.

The rows of every view stay the same. A condition is moved part by part, as far down as it is about the same rows: to the side of a
join that its columns are of, unless that side may be null; below a group if it is about the group's keys. Only what cannot
fail is moved (:mod:`millstream.relation.predicate`), and never into anything that another view or relation uses as well: two
kernels would then keep what one did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from millstream.plan.chain import ViewPlan
from millstream.relation import expression
from millstream.relation.nodes import Node, Select, Where
from millstream.relation.predicate import ROOM, is_safe, kinds_of, length, parts


def pushed(views: Sequence[ViewPlan]) -> list[ViewPlan]:
    """The views with conditions as far down as they may go."""
    users: dict[Node, set[object]] = defaultdict(set)
    for view in views:
        _count(view.node, view.name, users)
    shared = frozenset(node for node, found in users.items() if len(found) > 1)
    made = _Pusher(shared)
    return [replace(view, node=made.push(view.node)) for view in views]


def _count(node: Node, user: object, users: dict[Node, set[object]]) -> None:
    """The readers of each relation: views, and other relations."""
    known = node in users
    users[node].add(user)
    for place, below in enumerate(node.input_nodes() if not known else ()):
        _count(below, (node, place), users)


class _Pusher:
    def __init__(self, shared: frozenset[Node]) -> None:
        self.shared = shared
        self.done: dict[Node, Node] = {}

    def push(self, node: Node) -> Node:
        """The relation with every condition in it moved."""
        if node not in self.done:
            made = self._moved(node) if isinstance(node, Where) else node
            self.done[node] = made.with_inputs([self.push(each) for each in made.input_nodes()])
        return self.done[node]

    def _moved(self, node: Where) -> Node:
        kinds, below, left = kinds_of(node.input), node.input, []
        for part in parts(node.condition):
            lower = self._sink(part, below) if is_safe(part, kinds) else None
            below = lower or below
            left += [part] if lower is None else []
        if below is node.input:
            return node
        return Where(below, " AND ".join(left), node.place) if left else below

    def _sink(self, part: str, node: Node) -> Node | None:
        """The relation with one condition more, below a kernel; None if there is none that it may pass."""
        if node in self.shared:
            return None
        used = expression.check(part, node.visible(), "where")
        plain = isinstance(node, Where | Select)
        if not used and not plain:
            return None
        found = node.condition_below(part, used)
        if not found:
            return None
        there = []
        for text, each in zip(found, node.input_nodes(), strict=True):
            lower = self._sink(text, each) or (None if plain else _kept(each, text)) if text else each
            if lower is None:
                return None
            there.append(lower)
        return node.with_inputs(there)


def _kept(node: Node, condition: str) -> Where | None:
    """The rows for which a condition is true, if there is room for one more."""
    words, below = length(condition), node
    while isinstance(below, Where | Select):
        words += length(below.condition) if isinstance(below, Where) else 0
        below = below.input
    return Where(node, condition) if words <= ROOM else None
