"""Planted bugs: each changes one line of a kernel, and the check of that mechanism must notice.

A check that no bug can fail proves nothing. A mutant is a function with some text replaced; if the text is no longer
there, the test says so. The example that shows the bug must pass without it.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from types import FunctionType
from typing import Any

import pytest

from millstream.errors import PipelineError
from millstream.kernel import host, zset
from millstream.kernel.admission import gate, repeats
from millstream.kernel.admission import verdicts as judging
from millstream.kernel.aggregates import accumulators, sum_integer
from millstream.kernel.aggregates import preaggregate as partial_sums
from millstream.kernel.aggregates.accumulators import Linear
from millstream.kernel.aggregates.preaggregate import Adder
from millstream.kernel.exchange import chunk
from millstream.kernel.host import Host
from millstream.kernel.operators import join
from millstream.kernel.operators.aggregate import ReduceKernel
from millstream.kernel.operators.asof_join import AsOfJoinKernel
from millstream.kernel.operators.changelog import ChangelogKernel
from millstream.kernel.operators.interval_join import IntervalJoinKernel
from millstream.kernel.operators.join import TableJoinKernel
from millstream.kernel.state import segments
from millstream.kernel.state.segments import Table
from millstream.relation.nodes import Aggregation
from tests.kernel import test_admission, test_repeats
from tests.kernel.aggregates import test_preaggregate
from tests.kernel.operators import test_aggregate, test_asof_join, test_changelog, test_interval_join, test_join
from tests.kernel.state import test_segments

SEEDS = 12

verdicts = test_admission.check_verdicts
routed = partial(verdicts, late="route")
corrected = partial(verdicts, late="correct")
replays = test_repeats.check_replays
upserts = test_changelog.check_table
places = test_segments.check_place
expiry = test_segments.check_expiry
windows = test_aggregate.check_windows
amended = partial(windows, late="correct")
tables = partial(test_join.check, how="inner")
near = partial(test_interval_join.check, how="inner")
pairs_only = partial(near, windows=False)
then = test_asof_join.check
endless = test_asof_join.check_endless


def groups(*names: str, **options: Any) -> Callable[[Random], None]:
    """The check of groups with these aggregates of the usual ones."""
    chosen = tuple(each for each in test_aggregate.EVERYTHING if each.name in names)
    return partial(test_aggregate.check_groups, measures=chosen, **options)


def small_segments(chance: Random) -> None:
    """The check of a table, with segments of a few rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "LIMIT", 1024)
        test_segments.check_table(chance)


@dataclass(frozen=True)
class Mutant:
    """A function with ``old`` replaced by ``new``, and the check that must fail then."""

    name: str
    function: Any
    old: str
    new: str
    check: Callable[[Random], None]
    raises: type[Exception] | tuple[type[Exception], ...] = AssertionError
    seed: int = 0
    """Where to begin: examples before it are known not to show the bug."""


MUTANTS = [
    # admission
    Mutant("the watermark is a record behind", judging.judge, "course, watermark = highest[:-1]", "course, watermark = np.append(highest[:1], highest[:-2])", verdicts, seed=1),
    Mutant("the delay counts twice", judging.judge, "times - micros(time.delay)", "times - 2 * micros(time.delay)", verdicts),
    Mutant("the future moves the watermark", judging.judge, "np.where(codes == ADMITTED, times", "np.where(codes != DUPLICATE, times", verdicts),
    Mutant("lateness is not allowed", judging.judge, "met - micros(time.lateness)", "met", corrected),
    Mutant("heartbeats are not heard", judging.judge, "np.where(beat, beats", "np.where(beat & False, beats", verdicts),
    Mutant("what is malformed moves the watermark", judging.judge, "raised = np.where(bad, NEVER, raised)", "pass", verdicts, seed=6),
    Mutant("the last number again is no repeat", repeats.repeats_of, '(pl.col("_nth") <= before)', '(pl.col("_nth") < before)', verdicts),
    Mutant("every batch starts without a watermark", gate.admit, 'Gate(meta.facts.get("watermark", NEVER), beats)', "Gate(NEVER, beats)", verdicts),
    Mutant("numbers of earlier batches are forgotten", repeats.repeats_of, 'pl.max_horizontal(pl.col("_kept").fill_null(NEVER), running)', "running", verdicts),
    Mutant("numbers within a batch are forgotten", repeats.repeats_of, "fill_null(NEVER), running)", "fill_null(NEVER), pl.lit(NEVER))", verdicts),
    Mutant("a tombstone is always admitted", repeats.repeats_of, 'pl.coalesce(last, "_was", pl.lit(False))', "pl.coalesce(_AGAIN, pl.lit(False))", replays),
    Mutant("what the last record was is forgotten with the batch", repeats.repeats_of, 'pl.coalesce(last, "_was", pl.lit(False))', "pl.coalesce(last, pl.lit(False))", replays),
    Mutant("the side view gets every reject", judging.outcome, "rows.filter(codes == LATE)", "rows.filter(codes != ADMITTED)", routed),
    # segments
    Mutant("a split loses the last row", Table._cut, "batch.slice(low, end - low)", "batch.slice(low, end - low - (index > 0))", small_segments),
    Mutant("a place is cut apart", segments._cuts, "np.unique(np.searchsorted(places, wanted))", "np.unique(np.arange(count) * len(places) // count)", places),
    Mutant("a merge drops the neighbour", Table.save, "places, self._starts[last + 1])) if more", "places, self._starts[last])) if more", small_segments),
    Mutant("segments that are done with stay", Table.save, "for number in emptied", "for number in ()", small_segments),
    Mutant("what lies before the first segment has no home", Table._keep, "starts[0] = 0", "pass", small_segments, seed=2),
    Mutant("a number is given twice", Table._next, "self._known.next += 1", "self._known.next |= 1", small_segments),
    Mutant("rows that were not asked for are lost", Table.save, "self._rest is not None and self._rest.height", "False", small_segments),
    Mutant("rows come that were not asked for", Table.load, "np.isin(there, places)", "np.ones(len(there), bool)", small_segments),
    Mutant("everything is read", Table.load, "wanted[self._at(places)] = True", "wanted[:] = True", small_segments),
    Mutant("a segment packed anew loses its last row", Table._repack, "batch.slice(low, count)", "batch.slice(low, max(1, count - 1))", small_segments),
    Mutant("a segment packed anew has its old count", Table._repack, "self._rows[at], self._sizes[at] = count, len(data)", "pass", small_segments),
    Mutant("a large segment is not cut", Table._repack, "(counts <= limit) & ", "", test_segments.check_growth),
    Mutant("small neighbours are not merged", Table._repack, "(counts >= least)", "(counts >= 1)", test_segments.check_growth),
    Mutant("nothing ever splits", segments._cuts, "sizes.max() > limit", "False", test_segments.check_growth),
    Mutant("nothing ever merges", segments._cuts, "len(sizes) > 1 and", "False and", test_segments.check_growth),
    Mutant("a span ends with the first place of its last second", Table.load, "first_place(span[0]), first_place(span[1]) | _LOW", "first_place(span[0]), first_place(span[1])", test_segments.check_span),
    Mutant("expiry is a second early", Table.expire, "first_place(micros)", "first_place(micros + _SECOND)", expiry),
    Mutant("nothing expires", Table.expire, "if gone:", "if False:", windows),
    Mutant("an emptied run of segments fails", Table._cut, "strict=False", "strict=True", upserts, raises=ValueError, seed=11),
    # changelog
    Mutant("the first upsert of a batch counts", ChangelogKernel.step, 'keep="last"', 'keep="first"', upserts),
    Mutant("upserts count in the order they arrive", ChangelogKernel.step, 'rows.sort("_offset")', "rows", upserts),
    Mutant("tombstones are rows", ChangelogKernel.step, 'exists = ~both["_deleted"]', "exists = had | True", upserts),
    Mutant("an update takes nothing back", ChangelogKernel.step, "gone = had & changed if", "gone = had & ~exists if", partial(upserts, key=())),
    Mutant("a null is like anything", zset.differing, "both[name].ne_missing(both", "(both[name] != both", upserts),
    # reductions
    Mutant("weights are ignored", Linear._delta, "weighted = WEIGHT in rows.columns", "weighted = False", groups("n", table=True)),
    Mutant("what was there is forgotten", Linear.combine, '+ pl.col(f"{name}_b").fill_null(0)', "", groups("n", "sum_i")),
    Mutant("the least is the greatest", Linear.combine, "new < old", "new > old", groups("min_i")),
    Mutant("NaN and the infinities of before are forgotten", Linear.combine, 'f"{name}_f_rest", f"{name}_f_rest_b"', 'f"{name}_f_rest"', groups("sum_f")),
    Mutant("distinct values are counted batch by batch", ReduceKernel._count_distinct, 'pl.col("_before").fill_null(0))', 'pl.lit(0, pl.Int64).alias("_before"))', groups("distinct_i")),
    # sums of rows
    Mutant("values are those of another group", Adder.add, "numbers.gather(each[AT])", "numbers.gather(each[AT]).reverse()", test_preaggregate.check_sums),
    Mutant("a value counts once for each part", Adder.add, "agg(pl.col(ROWS).sum())", "agg(pl.col(ROWS).first())", test_preaggregate.check_sums),
    Mutant("lists lose their first value", partial_sums._lists, "np.append(0, ends)", "np.append(0, ends - 1).clip(0)", test_preaggregate.check_sums),
    Mutant("values of the second part are the first one's", partial_sums.together, "pl.col(AT) + one.groups.height", "pl.col(AT)", test_preaggregate.check_sums),
    Mutant("times are not brought to their pane", Adder.add_rows, "times - times % self.pane", "times", test_preaggregate.check_sums),
    Mutant("a value is sent once however often it was there", Adder.pack, 'each[ROWS], ends', 'each[ROWS].sign(), ends', test_preaggregate.check_sums),
    Mutant("sums are overheard", ReduceKernel.step, "if sums is not None:", "if False:", groups("n")),
    Mutant("nothing is taken back", ReduceKernel.step, "gone = had & changed if", "gone = had & ~exists if", groups("n", "list_f")),
    Mutant("a group that is empty stays", ReduceKernel.step, "exists = touched[ROWS] > 0", "exists = touched[ROWS] >= 0", groups("n", table=True)),
    Mutant("a bag is looked at only where values came", ReduceKernel._bag, "table.load(places, closing)", "table.load(came[PLACE].to_numpy(), closing)", groups("set_s", "s_of_least_f"), seed=4),
    Mutant("two equal aggregates fill one bag twice", accumulators.bags, "_distinct(", "list(", partial(test_aggregate.check_groups, measures=test_aggregate.TWICE[:2])),
    Mutant("a list has each value once", accumulators.look, "repeat_by(pl.col(ROWS))", "repeat_by(pl.lit(1))", groups("list_f"), seed=6),
    Mutant("the last is the first", accumulators.best, 'bag.function == "max_by"', "False", groups("f_of_last")),
    Mutant("NaN is no greatest", accumulators._extreme, "column.nan_max() if dtype.is_float() else column.max()", "column.max()", groups("max_f"), seed=8),
    Mutant("a mean needs a sum that is a long", Linear._whole_sum, 'measure.function == "avg"', "False", partial(test_aggregate.check_groups, measures=(Aggregation("a", "avg", ("i",)),), integers=test_aggregate.HUGE), raises=PipelineError),
    Mutant("sums do not carry", sum_integer.carry, "high += low >> bits", "high += 0", groups("sum_i", integers=test_aggregate.HUGE), seed=6),
    # windows and marks
    Mutant("a window closes a window late", ReduceKernel.step, "(ends <= state.after)", "(ends + (self.spec.size or 0) <= state.after)", windows, seed=1),
    Mutant("a window closes again and again", ReduceKernel.step, "(ends > state.before) & ", "", amended, seed=1),
    Mutant("open windows are shown", ReduceKernel.step, "changed = changed & (ends <= state.before)", "pass", windows),
    Mutant("closed windows are not amended", ReduceKernel.step, "changed = changed & (ends <= state.before)", "changed = changed & False", amended, seed=1),
    Mutant("windows that got no rows do not close", ReduceKernel._closing, "return state.before + self.spec.lateness", "return state.after + self.spec.lateness", windows),
    Mutant("state goes before lateness is over", ReduceKernel._expire, "expire(state.after)", "expire(state.after + self.spec.lateness)", partial(amended, keys=()), seed=2),
    Mutant("the mark is that of the fastest partition", Host._mark, "return min((meta", "return max((meta", windows),
    Mutant("the mark is forgotten", Host._run_kernel, "meta.mark = after", "meta.mark = before", amended, seed=1),
    # joins of tables
    Mutant("pairs that go do not go", join.pairs, "(pl.col(WEIGHT) * pl.col(OTHER)).alias(WEIGHT)", "(pl.col(WEIGHT) * pl.col(OTHER)).abs().alias(WEIGHT)", tables),
    Mutant("what comes on both sides meets twice", TableJoinKernel.step, "pairs(olds[0], known[1], self.on)", "pairs(news[0], known[1], self.on)", tables),
    Mutant("rows without a partner stay when one comes", TableJoinKernel.step, "self._alone(olds).with_columns(-pl.col(WEIGHT))", "self._alone(olds).with_columns(pl.col(WEIGHT) * 0)", partial(tables, how="left")),
    Mutant("rows whose key is null are lost", TableJoinKernel.step, "made = [self._alone(unknown, self.keys), ", "made = [", partial(tables, how="full")),
    Mutant("a NaN is found only among others", TableJoinKernel.__init__, "[*self.keys, PLACE]", "self.keys", tables, raises=Exception),
    # joins within an interval
    Mutant("an interval is open at its end", IntervalJoinKernel._pairs, "apart.is_between(self.spec.low, self.spec.high)", "apart.is_between(self.spec.low, self.spec.high, closed='left')", pairs_only, seed=12),
    Mutant("partners are looked for in one step only", IntervalJoinKernel._partners, "// self.step_size + 2", "// self.step_size * 0 + 1", test_interval_join.check_far),
    Mutant("rows of the right are seen in one slot", IntervalJoinKernel._slotted, "rows.filter(first != last)", "rows.clear()", pairs_only),
    Mutant("a row without a partner is shown too early", IntervalJoinKernel._alone, "(end < other.after)", "(end <= other.after + 9_000_000)", partial(pairs_only, how="left")),
    Mutant("a row without a partner is shown again", IntervalJoinKernel._alone, "& (end < other.before)", "& (end > other.before)", partial(pairs_only, how="left")),
    Mutant("partners that are gone do not count", IntervalJoinKernel._counted, "before = pl.col(_PARTNERS).fill_null(pl.col(\"_had\"))", "before = pl.col(\"_had\")", partial(pairs_only, how="full")),
    Mutant("partners that come are not counted", IntervalJoinKernel._counted, "(before + pl.col(\"_gained\"))", "before", partial(pairs_only, how="left", correct=True)),
    Mutant("rows go before allowed lateness is over", IntervalJoinKernel._until, " + self.spec.lateness[1 - side]", "", test_interval_join.check_late),
    Mutant("rows that are over are kept", IntervalJoinKernel._expire, "self._moved(state, side)", "False", pairs_only),
    Mutant("a join holds nothing back", host._least, "mark - (lowered or 0)", "mark", near),
    # joins with a table
    Mutant("the table is as it was before the batch", AsOfJoinKernel.step, "pl.col(_CAME)).alias(WEIGHT)), new)", "pl.col(_CAME)).alias(WEIGHT)), old)", then),
    Mutant("answers are not corrected", AsOfJoinKernel.step, "| (pl.col(_TIME) >= pl.col(_VALID))", "| pl.lit(False)", then),
    Mutant("a deleted row still answers", AsOfJoinKernel._answered, "~pl.col(_GONE).fill_null(True)", "pl.col(_GONE).is_not_null()", then),
    Mutant("a record takes over before the one that came before it", AsOfJoinKernel._history, "pl.col(_VALID).cum_max().over(_KEY)", "pl.col(_VALID)", then),
    Mutant("of two at one time the first answers", AsOfJoinKernel._history, 'keep="last"', 'keep="first"', then),
    Mutant("history goes while events may see it", AsOfJoinKernel._history, "state.after - self.spec.lateness", "state.after + 30_000_000", partial(then, correct=True)),
    Mutant("events are kept for ever", AsOfJoinKernel._expire, "if state.after > state.before", "if False", endless),
    # between stages
    Mutant("rows are dealt out whatever their key", chunk.cut, "(hash_columns([piece[name] for name in port.spread]) % port.buckets)", "(np.arange(piece.height) % port.buckets)", groups("n")),
    Mutant("rows of no columns are no rows", chunk.shaped, "if not port.columns and not extra:", "if False:", groups("n", keys=())),
    Mutant("a condition is not asked", chunk.shaped, "rows = rows.filter(pl.col(name))", "pass", test_changelog.check_counted),
]  # fmt: skip


def mutated(mutant: Mutant) -> FunctionType:
    source = textwrap.dedent(inspect.getsource(mutant.function))
    assert source.count(mutant.old) == 1, f"{mutant.old!r} is there {source.count(mutant.old)} times; expected once"
    made: dict[str, Any] = {}
    exec(compile(source.replace(mutant.old, mutant.new), "mutant", "exec"), mutant.function.__globals__, made)
    return made[mutant.function.__name__]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    for seed in range(mutant.seed, mutant.seed + SEEDS):
        with pytest.MonkeyPatch.context() as patch:
            # The code, not the name: others have imported the function already.
            patch.setattr(mutant.function, "__code__", mutated(mutant).__code__)
            try:
                mutant.check(Random(seed))
            except mutant.raises:
                break
    else:
        pytest.fail(f"no example of {SEEDS} shows that {mutant.name}")
    mutant.check(Random(seed))
