"""How a kernel does what a node says: its spec, the columns it wants of the rows below, and what cuts them apart.

Expressions stay text over the relation below; who lays the chain says where they are computed.
"""

from __future__ import annotations

from typing import TypeAlias

from millstream.plan.chain import WindowBound
from millstream.plan.operators import (
    aggregate,
    asof_join,
    deduplicate,
    history,
    interval_join,
    join,
    map_batches,
    map_groups,
    match,
    over,
    passthrough,
    top,
    unpivot,
)
from millstream.plan.operators.clauses import micros
from millstream.plan.operators.contract import Laid
from millstream.plan.spec import JoinSpec
from millstream.relation.nodes import (
    WINDOW_COLUMNS,
    Aggregate,
    Deduplicate,
    Emit,
    Explode,
    History,
    Join,
    MapBatches,
    MapGroups,
    Match,
    Over,
    Top,
    Tumbling,
    Union,
    Unpivot,
    Windowed,
)

OneInput: TypeAlias = (
    Aggregate
    | Windowed
    | Over
    | Top
    | Deduplicate
    | Union
    | Explode
    | Unpivot
    | MapBatches
    | MapGroups
    | History
    | Match
)
"""What a kernel with one input does; several relations may flow into it."""


def lay(node: OneInput, emit: Emit, insert_only: bool) -> Laid:
    """Say how a kernel does what a node says."""
    match node:
        case Aggregate():
            return aggregate.lay(node, emit, insert_only)
        case Over():
            return over.lay(node, emit, insert_only)
        case Top():
            return top.lay(node, emit, insert_only)
        case Deduplicate():
            return deduplicate.lay(node, emit, insert_only)
        case MapBatches():
            return map_batches.lay(node)
        case MapGroups():
            return map_groups.lay(node)
        case Match():
            return match.lay(node, emit, insert_only)
        case Windowed():
            return passthrough.lay_windows(node)
        case Union():
            return passthrough.lay_union(node)
        case Explode():
            return passthrough.lay_explode(node)
        case Unpivot():
            return unpivot.lay(node)
        case History():
            return history.lay(node)


def lay_join(node: Join, insert_only: bool) -> tuple[JoinSpec, tuple[int | None, ...]]:
    """Say how a kernel joins, and how far it holds back the mark of each side; ``insert_only`` is true if both sides only grow."""
    if node.within:
        spec = interval_join.lay(node, node.within)
        return spec, spec.hold()
    if node.regular:
        return join.lay(node, insert_only), ()
    return asof_join.lay(node), (0, None)  # a table has no event time, so it holds no mark back


def bounds(window: Tumbling, time: str) -> tuple[WindowBound, ...]:
    """The columns of windows side by side, over the text of a time. The texts are in layouts, so they stay as they are."""
    size, at = micros(window.size), f"unix_micros({time})"
    start = f"{at} - pmod({at}, {size})"
    texts = f"timestamp_micros({start})", f"timestamp_micros({start} + {size})"
    return tuple(WindowBound(text, name, time, size) for text, name in zip(texts, WINDOW_COLUMNS, strict=True))
