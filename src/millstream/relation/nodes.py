"""The nodes of a plan: frozen, comparable, made without Spark.

A relation is a source with operations on it. Two nodes that say the same are equal, wherever they were written, so what two views
share is computed once. What nodes are made of is in :mod:`millstream.relation.clauses`.
"""

from __future__ import annotations

from typing import TypeAlias

from millstream.relation.clauses import (
    META_COLUMNS,
    NOWHERE,
    WINDOW_COLUMNS,
    Aggregation,
    Column,
    Emit,
    Equality,
    EventTime,
    Frame,
    Function,
    Hopping,
    How,
    Late,
    Look,
    Named,
    Ordering,
    Place,
    Policy,
    Ranking,
    Sequence,
    Session,
    Sliding,
    Ties,
    Tumbling,
    Window,
)
from millstream.relation.operators.aggregate import Aggregate
from millstream.relation.operators.contract import sources_of
from millstream.relation.operators.deduplicate import Deduplicate
from millstream.relation.operators.explode import Explode
from millstream.relation.operators.history import History
from millstream.relation.operators.join import Join
from millstream.relation.operators.map_batches import MapBatches
from millstream.relation.operators.map_groups import MapGroups
from millstream.relation.operators.match import Match
from millstream.relation.operators.over import Over
from millstream.relation.operators.percolate import Percolate
from millstream.relation.operators.select import Select
from millstream.relation.operators.source import Source
from millstream.relation.operators.top import Top
from millstream.relation.operators.union import Union
from millstream.relation.operators.unpivot import Unpivot
from millstream.relation.operators.where import Where
from millstream.relation.operators.windowed import Windowed

__all__ = [
    "META_COLUMNS",
    "NOWHERE",
    "WINDOW_COLUMNS",
    "Aggregate",
    "Aggregation",
    "Column",
    "Deduplicate",
    "Emit",
    "Equality",
    "EventTime",
    "Explode",
    "Frame",
    "Function",
    "History",
    "Hopping",
    "How",
    "Join",
    "Late",
    "Look",
    "MapBatches",
    "MapGroups",
    "Match",
    "Named",
    "Node",
    "Ordering",
    "Over",
    "Percolate",
    "Place",
    "Policy",
    "Ranking",
    "Select",
    "Sequence",
    "Session",
    "Sliding",
    "Source",
    "Ties",
    "Top",
    "Tumbling",
    "Union",
    "Unpivot",
    "Where",
    "Window",
    "Windowed",
    "inputs_of",
    "output_columns",
    "source_of",
    "sources_of",
]


Node: TypeAlias = (
    Source
    | Where
    | Select
    | Aggregate
    | Windowed
    | Join
    | Over
    | Top
    | Deduplicate
    | Union
    | Explode
    | Unpivot
    | MapBatches
    | MapGroups
    | Match
    | History
    | Percolate
)


def output_columns(node: Node) -> tuple[str, ...]:
    """The names of a relation's columns, in order."""
    return node.output_columns()


def inputs_of(node: Node) -> tuple[Node, ...]:
    """The relations that a relation is made of; none for a source."""
    return node.input_nodes()


def source_of(node: Node) -> Source:
    """The source at the bottom of a relation; the leftmost one if there are several."""
    return sources_of(node)[0]
