"""Planted bugs, in plans and in kernels, that random plans must notice; each with the seed that shows it."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from millstream.kernel.exchange import chunk
from millstream.kernel.operators.aggregate import ReduceKernel
from millstream.kernel.operators.asof_join import AsOfJoinKernel
from millstream.kernel.operators.deduplicate import DeduplicateKernel
from millstream.kernel.operators.history import HistoryKernel
from millstream.kernel.operators.interval_join import IntervalJoinKernel
from millstream.kernel.operators.join import TableJoinKernel
from millstream.kernel.operators.map_groups import GroupsKernel
from millstream.kernel.operators.percolate import PercolateKernel
from millstream.kernel.operators.session import SessionKernel
from millstream.kernel.operators.unpivot import UnpivotKernel
from millstream.plan import build
from millstream.plan.operators import match, passthrough
from millstream.plan.spec import IntervalJoin
from millstream.relation.operators import contract
from tests.kernel.test_mutants import Mutant, mutated
from tests.kernel.test_plans import check

several = partial(check, few=True)
windows = partial(check, windows=True)

MUTANTS = [
    # what is known of a plan
    Mutant("a join holds no mark back", IntervalJoin.hold, "(-self.low, 0) if self.how == \"right\" else (0, self.high)", "(0, 0)", several, seed=116),
    Mutant("rows of windows do not wait", build._Builder._rows, 'emit == "changes" or early', "True", windows, seed=1),
    Mutant("rows of windows have one window", passthrough.lay_windows, "micros(getattr(node.window, \"every\", node.window.size))", "micros(node.window.size)", windows, seed=1),
    Mutant("groups of windows are forgotten when those open", contract.settled_by_windows, "{WINDOW_COLUMNS[0]: window.size + late, WINDOW_COLUMNS[1]: late}", "{WINDOW_COLUMNS[0]: late, WINDOW_COLUMNS[1]: late}", windows, seed=1),
    # between stages
    Mutant("only the first piece is sent", chunk.pieces, "rows.iter_slices(max(1, rows.height * PIECE // max(int(rows.estimated_size()), 1)))", "[rows.head(max(1, rows.height * PIECE // max(int(rows.estimated_size()), 1)))]", check, seed=106),
    Mutant("marks reach the first bucket alone", chunk.mark, "labels(port.leader, port.buckets, port.tasks)", "labels(port.leader, port.buckets, port.tasks)[:1]", check, seed=92),
    # kernels
    Mutant("a window closes a moment late", ReduceKernel.step, "(ends <= state.after)", "(ends < state.after)", check, seed=341),
    Mutant("rows a gap apart are apart", SessionKernel._in_sessions, "> reach + self.spec.gap", ">= reach + self.spec.gap", check, seed=5),
    Mutant("a row without a partner is shown too early", IntervalJoinKernel._alone, "(end < other.after)", "(end <= other.after)", check, seed=257),
    Mutant("answers are not corrected", AsOfJoinKernel.step, "| (pl.col(_TIME) >= pl.col(_VALID))", "| pl.lit(False)", check, seed=363),
    Mutant("a table that comes late reaches back", AsOfJoinKernel._said, "pl.max_horizontal(_VALID, open_since)", "pl.col(_VALID)", check, seed=193),
    Mutant("what comes on both sides meets twice", TableJoinKernel.step, "pairs(olds[0], known[1], self.on)", "pairs(news[0], known[1], self.on)", check, seed=0),
    Mutant("the function is asked about what came alone", GroupsKernel.step, "self._made(new)", "self._made(came)", several, seed=21),
    Mutant("a value has the name of another column", UnpivotKernel.through, "pl.lit(label, pl.String)", "pl.lit(spec.labels[0], pl.String)", partial(check, newer=True), seed=28),
    Mutant("a row of no time is there", HistoryKernel._shown, "| (pl.col(_TO) > pl.col(_FROM))", "| (pl.col(_TO) >= pl.col(_FROM))", partial(check, newer=True), seed=99),
    Mutant("queries are not asked again", PercolateKernel._kept, "if loaded is None or since is None:", "if True:", partial(check, newer=True), seed=20),
    Mutant("an order is laid the other way round", match.lay, "order = names.order(node.order)", "order = names.order(node.order[::-1])", partial(check, newer=True), seed=1),
    Mutant("who counts is forgotten early", DeduplicateKernel._kept, "self.time + self.spec.within >= limit", "self.time >= limit", check, seed=235),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    code = mutated(mutant).__code__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mutant.function, "__code__", code)
        with pytest.raises(mutant.raises):
            mutant.check(Random(mutant.seed))
    mutant.check(Random(mutant.seed))
