"""Which kernel does what a spec says."""

from __future__ import annotations

from millstream.kernel.kernel import Kernel
from millstream.kernel.operators.aggregate import ReduceKernel
from millstream.kernel.operators.asof_join import AsOfJoinKernel, LatestJoinKernel
from millstream.kernel.operators.changelog import ChangelogKernel
from millstream.kernel.operators.deduplicate import DeduplicateKernel
from millstream.kernel.operators.history import HistoryKernel
from millstream.kernel.operators.hold_until_close import HoldKernel
from millstream.kernel.operators.interval_join import IntervalJoinKernel
from millstream.kernel.operators.join import TableJoinKernel
from millstream.kernel.operators.map_batches import BatchesKernel
from millstream.kernel.operators.map_groups import GroupsKernel
from millstream.kernel.operators.match import MatchKernel
from millstream.kernel.operators.over import OverKernel
from millstream.kernel.operators.passthrough import PassKernel
from millstream.kernel.operators.percolate import PercolateKernel
from millstream.kernel.operators.session import SessionKernel
from millstream.kernel.operators.top import TopKernel
from millstream.kernel.operators.unpivot import UnpivotKernel
from millstream.plan.spec import (
    AsOfJoin,
    Batches,
    Changelog,
    Deduplicate,
    Groups,
    History,
    Hold,
    IntervalJoin,
    LatestJoin,
    Match,
    Over,
    Pass,
    Percolate,
    Reduce,
    Session,
    Spec,
    TableJoin,
    Top,
    Unpivot,
)  # fmt: skip


def kernel_of(spec: Spec) -> Kernel:
    """The kernel that does what a spec says."""
    match spec:
        case Changelog():
            return ChangelogKernel(spec)
        case Reduce():
            return ReduceKernel(spec)
        case Session():
            return SessionKernel(spec)
        case Top():
            return TopKernel(spec)
        case Over():
            return OverKernel(spec)
        case Match():
            return MatchKernel(spec)
        case Deduplicate():
            return DeduplicateKernel(spec)
        case Pass():
            return PassKernel(spec)
        case Unpivot():
            return UnpivotKernel(spec)
        case Hold():
            return HoldKernel(spec)
        case Batches():
            return BatchesKernel(spec)
        case Groups():
            return GroupsKernel(spec)
        case History():
            return HistoryKernel(spec)
        case Percolate():
            return PercolateKernel(spec)
        case TableJoin():
            return TableJoinKernel(spec)
        case IntervalJoin():
            return IntervalJoinKernel(spec)
        case AsOfJoin():
            return AsOfJoinKernel(spec)
        case LatestJoin():
            return LatestJoinKernel(spec)
