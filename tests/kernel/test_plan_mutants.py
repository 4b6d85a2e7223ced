"""Planted bugs, in plans and in kernels, that random plans must notice; each with the seed that shows it."""

from __future__ import annotations

from random import Random
from types import FunctionType

import pytest
from tests.kernel.test_mutants import Mutant, mutated
from tests.kernel.test_plans import check

from millstream.kernel import chunk
from millstream.kernel.asof import AsOfJoinKernel
from millstream.kernel.dedup import DeduplicateKernel
from millstream.kernel.groups import GroupsKernel
from millstream.kernel.interval import IntervalJoinKernel
from millstream.kernel.join import TableJoinKernel
from millstream.kernel.keyed import Keyed
from millstream.kernel.over import OverKernel
from millstream.kernel.reduce import ReduceKernel
from millstream.kernel.session import SessionKernel
from millstream.kernel.top import TopKernel
from millstream.plan import chain, facts

MUTANTS = [
    # what is known of a plan
    Mutant("a row that looks ahead is final in time", facts._in_time, "each.frame.after == 0", "True", check),
    Mutant("a join holds no mark back", chain._Builder._join, "(-low, 0) if node.how == \"right\" else (0, high)", "(0, 0)", check, seed=327),
    Mutant("rows without a partner are computed where they come from", chain._Sides.below, "not (null and expression.plain_column(sql) is None)", "True", check),
    # between stages
    Mutant("lists are sent as Polars has them", chunk.to_arrow, "if any(kind.is_nested() for kind in rows.dtypes)", "if False", check, raises=Exception, seed=367),
    Mutant("of a piece only the first row is sent", chunk.send, "_packed(piece, port, bucket)", "_packed(piece.head(1), port, bucket)", check, seed=106),
    Mutant("marks reach the first bucket alone", chunk.mark, "labels(port.target, port.buckets, port.tasks)", "labels(port.target, port.buckets, port.tasks)[:1]", check, seed=92),
    # kernels
    Mutant("a window closes a moment late", ReduceKernel.step, "(ends <= state.after)", "(ends < state.after)", check, seed=341),
    Mutant("state goes before lateness is over", ReduceKernel._expire, "expire(state.after)", "expire(state.after + self.spec.lateness)", check),
    Mutant("rows a gap apart are apart", SessionKernel._in_sessions, "> reach + self.spec.gap", ">= reach + self.spec.gap", check, seed=375),
    Mutant("a row without a partner is shown too early", IntervalJoinKernel._alone, "(end < other.after)", "(end <= other.after)", check, seed=257),
    Mutant("answers are not corrected", AsOfJoinKernel.step, "| (pl.col(_TIME) >= pl.col(_VALID))", "| pl.lit(False)", check, seed=363),
    Mutant("what comes on both sides meets twice", TableJoinKernel.step, "pairs(olds[0], known[1], self.on)", "pairs(news[0], known[1], self.on)", check, seed=143),
    Mutant("only the first rows are kept though some go", TopKernel.step, "if self.spec.insert_only:", "if True:", check),
    Mutant("neighbours are forgotten", OverKernel._kept, "pl.col(\"_earliest\") - before", "pl.col(\"_earliest\")", check),
    Mutant("who counts is forgotten early", DeduplicateKernel._kept, "self.time + self.spec.within >= limit", "self.time >= limit", check),
    Mutant("groups of a function are forgotten early", Keyed.close_until, "end >= self._state.after", "end > self._state.after + 20_000_000", check),
    Mutant("the function is asked about what came alone", GroupsKernel.step, "self._made(new)", "self._made(came)", check),
]  # fmt: skip


def planted(mutant: Mutant) -> None:
    """Check one plan with the bug in it."""
    function: FunctionType = mutant.function
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(function, "__code__", mutated(mutant).__code__)
        mutant.check(Random(mutant.seed))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    with pytest.raises(mutant.raises):
        planted(mutant)
    mutant.check(Random(mutant.seed))
