"""The expressions of a node, as they were written."""

from __future__ import annotations

from millstream.relation.nodes import (
    Aggregate,
    Deduplicate,
    Explode,
    Join,
    MapGroups,
    Node,
    Over,
    Select,
    Top,
    Where,
)


def texts_of(node: Node, side: int | None = None) -> list[str]:
    """The expressions of a node over its input; of a join those over one side, or over both."""
    match node:
        case Where():
            return [node.condition]
        case Select():
            return [each.expression for each in node.columns]
        case Aggregate():
            return [each.expression for each in node.keys] + [
                text for each in node.aggregates for text in each.arguments
            ]
        case Over():
            looks = [text for each in node.looks for text in each.arguments]
            return [*node.partition, *(each.expression for each in node.order), *looks]
        case Top():
            return [*node.per, *(each.expression for each in node.order)]
        case Deduplicate():
            return list(node.id)
        case Join():
            return [text for each in node.on for at, text in enumerate((each.left, each.right)) if side in (None, at)]
        case MapGroups():
            return [each.expression for each in node.key]
        case Explode():
            return [node.array]
        case _:
            return []
