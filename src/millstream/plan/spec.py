"""All specs, and what they are made of, under one name. A spec says what a kernel does; each is in a file of ``operators/``.

A ``tag`` is what a class is called in checkpoints: classes may be renamed, tags never (:mod:`millstream.relation.fingerprint`).
"""

from __future__ import annotations

from typing import TypeAlias

from millstream.plan.operators.aggregate import Reduce
from millstream.plan.operators.asof_join import AsOfJoin, LatestJoin
from millstream.plan.operators.changelog import Changelog
from millstream.plan.operators.clauses import Horizon, Measure, Order
from millstream.plan.operators.deduplicate import Deduplicate
from millstream.plan.operators.history import History
from millstream.plan.operators.hold_until_close import Hold
from millstream.plan.operators.interval_join import IntervalJoin
from millstream.plan.operators.join import TableJoin
from millstream.plan.operators.map_batches import Batches
from millstream.plan.operators.map_groups import Groups
from millstream.plan.operators.match import Match
from millstream.plan.operators.over import Over
from millstream.plan.operators.passthrough import Pass
from millstream.plan.operators.percolate import Percolate
from millstream.plan.operators.session import Session
from millstream.plan.operators.top import Top
from millstream.plan.operators.unpivot import Unpivot

__all__ = [
    "AsOfJoin",
    "Batches",
    "Changelog",
    "Deduplicate",
    "Groups",
    "History",
    "Hold",
    "Horizon",
    "IntervalJoin",
    "JoinSpec",
    "LatestJoin",
    "Match",
    "Measure",
    "Order",
    "Over",
    "Pass",
    "Percolate",
    "Reduce",
    "Session",
    "Spec",
    "TableJoin",
    "Top",
    "Unpivot",
]

JoinSpec: TypeAlias = TableJoin | IntervalJoin | AsOfJoin | LatestJoin
Spec: TypeAlias = (
    Changelog
    | Reduce
    | Session
    | Top
    | Over
    | Match
    | Deduplicate
    | Pass
    | Unpivot
    | Hold
    | Batches
    | Groups
    | History
    | Percolate
    | JoinSpec
)
