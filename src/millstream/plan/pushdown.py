"""Conditions moved to where they keep most rows out: below joins, groups and unions, so that less is kept and sent.

The rows of every view stay the same. A condition is moved part by part, as far down as it is about the same rows: to the side of a
join that its columns are of, unless that side may be null; below a group if it is about the group's keys. Only what cannot
fail is moved (:mod:`millstream.relation.predicate`), and never into anything that another view or relation uses as well: two
kernels would then keep what one did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from millstream.plan.chain import ViewPlan
from millstream.relation import expression
from millstream.relation.nodes import (
    WINDOW_COLUMNS,
    Aggregate,
    Deduplicate,
    Explode,
    Join,
    MapGroups,
    Named,
    Node,
    Over,
    Select,
    Source,
    Top,
    Union,
    Where,
    Windowed,
    inputs_of,
    output_columns,
)
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
    """Who takes rows of each relation: a view, or another relation."""
    known = node in users
    users[node].add(user)
    for place, below in enumerate(inputs_of(node) if not known else ()):
        _count(below, (node, place), users)


class _Pusher:
    def __init__(self, shared: frozenset[Node]) -> None:
        self.shared = shared
        self.done: dict[Node, Node] = {}

    def push(self, node: Node) -> Node:
        """The relation with every condition in it moved."""
        if node not in self.done:
            made = self._moved(node) if isinstance(node, Where) else node
            self.done[node] = _over(made, [self.push(each) for each in inputs_of(made)])
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
        match node:
            case Source():
                return None
            case Where():
                lower = self._sink(part, node.input)
                return lower and replace(node, input=lower)
            case Select():
                lower = self._sink(expression.substitute(part, _texts(node.columns)), node.input)
                return lower and replace(node, input=lower)
            case _:
                found = _below(part, node)
                if not found:
                    return None
                inputs = [
                    (self._sink(text, each) or _kept(each, text)) if text else each
                    for text, each in zip(found, inputs_of(node), strict=True)
                ]
                there = [each for each in inputs if each]
                return _over(node, there) if len(there) == len(inputs) else None


def _kept(node: Node, condition: str) -> Where | None:
    """The rows for which a condition is true, if there is room for one more."""
    words, below = length(condition), node
    while isinstance(below, Where | Select):
        words += length(below.condition) if isinstance(below, Where) else 0
        below = below.input
    return Where(node, condition) if words <= ROOM else None


def _below(part: str, node: Node) -> Sequence[str | None]:
    """What a condition over a kernel's rows is over each of its inputs; nothing where it is none there."""
    used = expression.check(part, output_columns(node), "where")
    if not used:
        return ()
    match node:
        case Aggregate(keys=keys) | MapGroups(key=keys):
            return _if(used <= {key.name for key in keys}, expression.substitute(part, _texts(keys)))
        case Over(partition=texts) | Top(per=texts) | Deduplicate(id=texts):
            plain = {(expression.plain_column(text) or "").lower() for text in texts}
            return _if({name.lower() for name in used} <= plain, part)
        case Explode():
            return _if(node.name not in used, part)
        case Windowed():
            return _if(not used & set(WINDOW_COLUMNS), part)
        case Union():
            names = output_columns(node)
            orders = [[expression.quote(name) for name in output_columns(each)] for each in node.inputs]
            return [expression.substitute(part, dict(zip(names, order, strict=True))) for order in orders]
        case Join():
            return _sides(part, used, node)
        case _:
            return ()


def _sides(part: str, used: frozenset[str], node: Join) -> Sequence[str | None]:
    """What a condition over a join is over its sides. One about a key that both share holds for both."""
    merged = {name.lower() for name in node.merged}
    names = {name.lower() for name in used}
    texts = [{each.name: (each.left, each.right)[side] for each in node.on if each.name} for side in (0, 1)]
    if names <= merged:
        return [expression.substitute(part, text) for text in texts]
    for side, (below, null) in enumerate(zip((node.left, node.right), node.nullable, strict=True)):
        there = {name.lower() for name in output_columns(below)}
        if names <= there | merged and not null:
            found = expression.substitute(part, texts[side])
            return (None, found) if side else (found, None)
    return ()


def _if(so: bool, part: str) -> Sequence[str]:
    return (part,) if so else ()


def _texts(columns: Sequence[Named]) -> Mapping[str, str]:
    return {each.name: each.expression for each in columns}


def _over(node: Node, inputs: Sequence[Node]) -> Node:
    """The relation over other inputs."""
    match node:
        case Source():
            return node
        case Join():
            return replace(node, left=inputs[0], right=inputs[1])
        case Union():
            return replace(node, inputs=tuple(inputs))
        case _:
            return replace(node, input=inputs[0])
