"""Planted bugs in the kernels of windows and neighbours; each must be noticed by the check of that kernel."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from millstream.kernel import zset
from millstream.kernel.aggregates import accumulators, sum_double, time_windows, window_functions
from millstream.kernel.aggregates import preaggregate as partial_sums
from millstream.kernel.aggregates.window_functions import Layout
from millstream.kernel.exchange import top_prefilter
from millstream.kernel.operators import top
from millstream.kernel.operators.deduplicate import DeduplicateKernel
from millstream.kernel.operators.hold_until_close import HoldKernel
from millstream.kernel.operators.keyed_rows import Keyed
from millstream.kernel.operators.map_groups import GroupsKernel
from millstream.kernel.operators.over import OverKernel
from millstream.kernel.operators.passthrough import PassKernel
from millstream.kernel.operators.session import SessionKernel
from millstream.kernel.operators.top import Ranks, TopKernel
from millstream.plan.spec import Order
from millstream.relation.nodes import Frame, Look
from tests.kernel import test_final
from tests.kernel.aggregates import test_time_windows
from tests.kernel.alone import SECOND
from tests.kernel.exchange import test_top_prefilter
from tests.kernel.operators import test_deduplicate, test_over, test_session, test_top
from tests.kernel.test_mutants import Mutant, mutated

SEEDS = 25
LATE = 45 * SECOND

sessions = test_session.check
final = partial(sessions, emit="final")
cut = partial(sessions, deletes=True)
tops = test_top.check
dedup = test_deduplicate.check
by_time = test_over.check_forgetting
hops = partial(test_time_windows.check, name="hopping")
UP = (Order("i"),)
NEAR = Frame("range", 6, 1)


def ranks(chance: Random) -> None:
    """The check of ranks and neighbours."""
    test_over.check(chance, test_over.RANKS, UP, deletes=True)


def frames(chance: Random, *names: str, over: Frame = NEAR) -> None:
    """The check of aggregates over a frame."""
    looks = tuple(
        Look(name, function, arguments, over, fraction=0.5)  # type: ignore[arg-type]
        for name, function, arguments in test_over.AGGREGATES
        if name in names
    )
    test_over.check(chance, looks, UP, deletes=True)


def summed(chance: Random) -> None:
    """Sums of numbers large and small over a frame."""
    frames(chance, "sum", over=Frame("rows", 2, 0))


MUTANTS = [
    # windows that overlap
    Mutant("a row is in the last window alone", time_windows.windows_of, "np.arange(-(-size // every))", "np.arange(1)", hops),
    Mutant("a row is in a window that ends with it", time_windows.windows_of, "starts + size > found", "starts + size >= found", partial(test_time_windows.check, name="hopping by no divisor")),
    Mutant("a pane is as long as a step", partial_sums.Adder.__init__, "math.gcd(spec.size, spec.every or spec.size)", "(spec.every or spec.size)", partial(test_time_windows.check, name="hopping by no divisor")),
    # keys and timers
    Mutant("timers do not ring", Keyed._due, "pl.col(_DUE) <= self._state.after).select", "pl.col(_DUE) < self._state.before).select", final),
    Mutant("timers that have not rung are lost", Keyed._due, "timers.save(loaded.filter(pl.col(_DUE) > self._state.after))", "timers.save(loaded.clear())", final),
    Mutant("a later time does not wait for the timer before it", Keyed.close, "pl.col(_DUE).is_null() | (pl.col(WAKE) < pl.col(_DUE))", "pl.col(_DUE).is_null() & (pl.col(WAKE) < pl.col(_DUE))", final),
    Mutant("what goes is not taken back", zset.signed, "pl.lit(-1, pl.Int64)", "pl.lit(0, pl.Int64)", sessions),
    # sessions
    Mutant("rows a gap apart are apart", SessionKernel._in_sessions, "> reach + self.spec.gap", ">= reach + self.spec.gap", sessions),
    Mutant("the last atom says how far a session reaches", SessionKernel._in_sessions, ".cum_max()", "", test_session.check_reach),
    Mutant("a session closes at its end", SessionKernel._made, "pl.col(_LAST) < mark", "pl.col(_LAST) <= mark", partial(final, deletes=True), seed=11),
    Mutant("a session is forgotten while rows may be late", SessionKernel._kept, "+ self.spec.lateness", "", partial(sessions, lateness=LATE)),
    Mutant("moments without rows hold a session together", SessionKernel.step, "atoms.filter(pl.col(ROWS) != 0)", "atoms", cut),
    Mutant("values stay under the atom they came with", SessionKernel._bag, "stay.with_columns(pl.col(_START).alias(_FROM))", "stay", sessions),
    Mutant("values are counted atom by atom", SessionKernel._bag, "of_session = [*self.group, *values]", "of_session = [*self.group, *values, _FROM]", cut),
    # the first rows
    Mutant("one more than there is room for", Ranks.shown, "room > 0", "room > -1", tops),
    Mutant("equal rows need one place", Ranks.shown, "np.minimum(weights, room)", "weights", partial(tops, deletes=True)),
    Mutant("ties are broken by who came first", TopKernel._line, ", *(Order(name) for name in other)", "", tops),
    Mutant("a frame's ties are broken by who came first", top.in_order, "*first, *rest], keys)[_AT]", "*first], keys)[_AT]", ranks),
    Mutant("only the first rows are kept though some go", TopKernel.step, "after if self.spec.insert_only else weights", "after", partial(tops, deletes=True)),
    Mutant("rows of one rank push each other out", Ranks.ahead, "_first(before, self.peers)", "before", tops),
    Mutant("an order that went has a rank", Ranks.ahead, "weights > 0", "weights >= 0", partial(tops, deletes=True)),
    Mutant("one is left out for those that tie with it", TopKernel._promising, 'self.spec.ties or "rank"', "None", partial(tops, order=UP)),
    Mutant("groups are forgotten too early", Keyed.close_until, "end >= self._state.after", "end >= self._state.after + 30_000_000", test_top.check_forgetting),
    Mutant("a top shows a window that is open", TopKernel.step, "closes <= state.after", "closes <= state.after + 5_000_000", test_final.check_top),
    Mutant("a top does not wake when a window is over", Keyed.close_until, ".then(end - early)", ".then(end + 1)", partial(test_final.check_top, lateness=LATE)),
    Mutant("what ties with the best is not sent", top_prefilter.promising, '"dense" if spec.ties == "dense_rank" else "min"', '"ordinal"', test_top_prefilter.check),
    Mutant("the worst is sent", top_prefilter.promising, "value.max() if order.descending else value.min()", "value.min() if order.descending else value.max()", test_top_prefilter.check),
    Mutant("what is no number is compared", top_prefilter.promising, "is_nan().any()", "is_null().all()", test_top_prefilter.check, seed=142),
    Mutant("nulls are not sent", top_prefilter.promising, "fill_null(True)", "fill_null(False)", test_top_prefilter.check),
    # rows that wait
    Mutant("rows of open windows go on", HoldKernel.step, "over = came[_ENDS] <= state.after", "over = came[_ENDS] > 0", test_final.check_hold),
    Mutant("rows that wait are forgotten", HoldKernel.step, "pl.concat([waiting, old.filter(~due)])", "waiting", test_final.check_hold),
    # ranks and frames
    Mutant("peers are ranked by their place", window_functions.called, "layout.peers_first - layout.first + 1", "at - layout.first + 1", ranks),
    Mutant("the row before is of another group", window_functions.called, "(other >= layout.first) & (other < layout.end)", "(other >= 0) & (other < len(at))", ranks),
    Mutant("a frame leaves out its last row", Layout.frames, "at + frame.after + 1", "at + frame.after", partial(by_time, calls=(Look("n", "count", (), Frame("rows", 1, 1)),))),
    Mutant("a distance leaves out its end", Layout._ranges, "frame.after + 1", "frame.after", lambda chance: frames(chance, "n", "whole"), seed=7),
    Mutant("what is far too large leaves traces", sum_double.between, "zip(running[i], running[j], strict=True)", "zip(running[0], running[j], strict=True)", summed, seed=7),
    Mutant("the least is the greatest", window_functions._extreme, "sign = 1 if greatest else -1", "sign = 1", lambda chance: frames(chance, "least")),
    Mutant("runs of doubling length do not cover a frame", window_functions._extreme, "best[high[here] - level]", "best[low[here]]", lambda chance: frames(chance, "most", "least"), seed=7),
    Mutant("a percentile is never between two values", accumulators._percentiles, "low, high = at.floor(), at.ceil()", "low, high = at.floor(), at.floor()", lambda chance: frames(chance, "middle")),
    Mutant("neighbours are forgotten", OverKernel._kept, "pl.col(\"_earliest\") - before", "pl.col(\"_earliest\")", by_time, seed=21),
    Mutant("rows that come late find their neighbours gone", OverKernel._kept, "limit = mark - self.spec.horizon.span", "limit = mark", partial(by_time, lateness=LATE)),
    Mutant("open rows are shown", OverKernel._made, "self._time() < mark", "self._time() <= mark", partial(by_time, emit="final", deletes=True)),
    # repeats
    Mutant("none counts after the first", DeduplicateKernel._judged, "time > until[key]", "False", dedup),
    Mutant("who counts is forgotten early", DeduplicateKernel._kept, "self.time + self.spec.within >= limit", "self.time >= limit", dedup),
    Mutant("who is a repeat is forgotten early", DeduplicateKernel._kept, "(self.time >= limit) | ", "", partial(dedup, lateness=LATE)),
    # functions of groups, and rows that pass through
    Mutant("the function is asked about what was alone", GroupsKernel.step, "self._made(new)", "self._made(came)", partial(test_time_windows.check_tables, name="map_groups")),
    Mutant("rows of another input have no weight", PassKernel.through, "pl.lit(1, pl.Int64)", "pl.lit(0, pl.Int64)", partial(test_time_windows.check_tables, name="union with an aggregate")),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    for seed in range(mutant.seed, mutant.seed + SEEDS):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mutant.function, "__code__", mutated(mutant).__code__)
            try:
                mutant.check(Random(seed))
            except mutant.raises:
                break
    else:
        pytest.fail(f"no example of {SEEDS} shows that {mutant.name}")
    mutant.check(Random(seed))
