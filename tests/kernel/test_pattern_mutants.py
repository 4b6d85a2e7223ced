"""Planted bugs in the search for row patterns and in its kernel; each must be noticed by the check against all mappings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from millstream.kernel.operators.match import MatchKernel
from millstream.kernel.pattern import automaton, conditions, deterministic, formulas, history, measures, runs, scan
from millstream.kernel.pattern.layout import Layout
from millstream.relation.pattern import (
    Aggregated,
    Alternatives,
    Anchor,
    Classifier,
    Formula,
    MatchNumber,
    Navigation,
    Pattern,
    Repeated,
    Search,
    Sequential,
    Skip,
    Variable,
)
from tests.kernel import test_match
from tests.kernel.alone import SECOND
from tests.kernel.pattern_oracle import Means, Meant
from tests.kernel.random_search import compare
from tests.kernel.test_mutants import Mutant, mutated

SEEDS = 40
LATE = 45 * SECOND

A, B, C = map(Variable, "ABC")
HERE = Navigation("last", (), "i")
BEFORE = Navigation("last", (), "i", away=-1)
FALLS = ("x < p", {"x": HERE, "p": BEFORE}, compare(lambda a, b: a < b))
RISES = ("x > p", {"x": HERE, "p": BEFORE}, compare(lambda a, b: a > b))
SOME = ("x > 0", {"x": HERE}, lambda v: None if v["x"] is None else v["x"] > 0)
ABOVE = ("x >= y", {"x": HERE, "y": Navigation("first", ("A",), "i")}, compare(lambda a, b: a >= b))
BELOW = ("x < y - 1", {"x": HERE, "y": Navigation("first", ("A",), "i")}, compare(lambda a, b: a < b - 1))
TURNED = ("y <= x", {"y": Navigation("first", ("A",), "i"), "x": HERE}, compare(lambda a, b: a <= b))
NEW = ("x > m", {"x": HERE, "m": Navigation("last", ("B",), "i", 1)}, compare(lambda a, b: a > b))
MEAN = (
    "m >= 0.1D",
    {"m": Aggregated("avg", ("B",), ("f",))},
    lambda v: None if v["m"] is None else v["m"] != v["m"] or v["m"] >= 0.1,
)
SHOWS: dict[str, Any] = {
    "since": Navigation("first", (), "at"), "till": Navigation("last", (), "at"), "last_b": Navigation("last", ("B",), "s"),
    "n": Aggregated("count", ("B",), ()), "least": Aggregated("min", ("B", "C"), ("i",)), "number": MatchNumber(),
    "as": Classifier(), "second": Navigation("first", ("B",), "f", 1), "was": Navigation("first", (), "s", away=-1),
}  # fmt: skip


def meant(
    *parts: Pattern, conditions: dict[str, Any] | None = None, shows: dict[str, Any] | None = None, **options: Any
) -> Meant:
    """A search that shows much of its matches."""
    told, shows = conditions or {}, shows or SHOWS
    made = Search(
        "p",
        Sequential(parts),
        tuple(Formula(name, sql, tuple(slots.items())) for name, (sql, slots, _) in told.items()),
        tuple(Formula(name, "v", (("v", slot),)) for name, slot in shows.items()),
        **options,
    )
    means: tuple[Means, ...] = tuple(lambda values: values["v"] for _ in shows)
    return Meant(made, {name: each for name, (_, _, each) in told.items()}, means)


def check(
    *parts: Pattern, conditions: dict[str, Any] | None = None, run: dict[str, Any] | None = None, **options: Any
) -> Callable[[Random], None]:
    """The check of one search."""
    return partial(test_match.check, meant=meant(*parts, conditions=conditions, **options), **(run or {}))


def far(*parts: Pattern, **conditions: Any) -> Callable[[Random], None]:
    """The check of a search whose starts go far: rows that leave it where it is are looked at together."""

    def checked(chance: Random) -> None:
        with test_match.short_runs():
            check(A, Repeated(B, 0, None), *parts, conditions=conditions)(chance)

    return checked


PLUS = Repeated(B, 1, None)
SHAPE: dict[str, Any] = {"B": FALLS, "C": RISES}
FINAL: dict[str, Any] = {"final": True}
valley = check(A, PLUS, C, conditions=SHAPE)
chained = check(A, PLUS, C, conditions=SHAPE, skip=Skip("last", ("C",)))
settled = check(A, PLUS, C, conditions=SHAPE, run=FINAL)
longest = check(A, PLUS, conditions={"B": SOME}, run=FINAL)
within = check(A, PLUS, conditions={"B": SOME}, within=11 * SECOND)
final = check(A, PLUS, conditions={"B": SOME}, within=11 * SECOND, run=FINAL)
unbounded = check(A, B, conditions={"A": SOME, "B": FALLS}, run=FINAL)
lazy = check(A, Repeated(B, 0, None, greedy=False), C, conditions={"C": SOME})
optional = check(A, Repeated(B, 0, 2), Repeated(A, 0, 1))
hollow = check(A, Repeated(Alternatives((Sequential(), B)), 0, None))
near = check(A, B, C, conditions={"A": SOME, "B": RISES, "C": FALLS}, within=20 * SECOND, near=True)
absent = check(A, Repeated(B, 0, None), Anchor("expiry"), conditions={"A": SOME, "B": FALLS}, within=20 * SECOND)
absent_late = check(A, Anchor("expiry"), within=20 * SECOND, run={"lateness": LATE})
begins = check(Anchor("start"), A, B, shows={"till": SHOWS["till"]}, run=FINAL)
every = check(A, B, conditions={"A": SOME, "B": FALLS}, shown="all_with_unmatched", run=FINAL)
rows = check(A, PLUS, C, conditions=SHAPE, shown="all", skip=Skip("next_row"))
highest = check(A, PLUS, C, conditions={"B": ABOVE, "C": NEW})
means = check(Repeated(B, 1, None), C, conditions={"B": MEAN})
from_first = check(A, PLUS, conditions={"B": ABOVE})

MUTANTS = [
    # the resume place
    Mutant("the resume place is forgotten", MatchKernel._wheres, "resume = layout.first + _counts(layout, ahead)", "resume = layout.first", settled),
    Mutant("a start that is open is passed over", scan.Scanner._resume, "np.minimum(np.maximum(reached, where.resume), opened)", "np.maximum(reached, where.resume)", within),
    Mutant("a key resumes in the middle of what is settled", scan._Run.all, "self.kept_done[group], self.number_kept[group], self.told_kept[group] = position,", "self.kept_done[group], self.number_kept[group], self.told_kept[group] = start + 1,", valley),
    Mutant("PREV reaches a row less far than is kept", MatchKernel._first_kept, "resume - scanner.before", "resume - scanner.before + 1", chained),
    Mutant("what is kept is taken for all there was", MatchKernel._kept, "wheres[0].begun | (first > layout.first)", "wheres[0].begun", begins),
    Mutant("matches are counted from where a key resumes", MatchKernel._wheres, 'numbers.get(f"_n{at}", none)', "none", valley),
    Mutant("ties are broken by arrival", MatchKernel._layout, "[*self.columns, *self.behind, *self.untold]", "[]", valley),
    Mutant("what was told is told again", MatchKernel._wheres, "told = layout.first + _counts(", "told = resume + 0 * _counts(", near),
    Mutant("keys are not looked at when their time comes", MatchKernel._wake, "over[over > mark])", "over[over > mark] * 0 + _LATEST + 1)", absent_late),
    Mutant("a row is certain too late", MatchKernel._wake, "times[later] + 1)", "times[later] + 20_000_000)", unbounded),
    # what is certain
    Mutant("a row at the edge is certain", scan._certain, "reached < limits.rows[at]", "reached <= limits.rows[at]", longest),
    Mutant("time runs out too early", scan.Scanner._limits, "self.search.within <= time", "self.search.within // 2 <= time", final),
    Mutant("where the partition ends is thought to be known", scan.Scanner._limits, "bounds + self.automaton.reads_end <= rows[group]", "bounds <= rows[group] + 1", check(A, Repeated(B, 0, None), Anchor("end"), conditions={"B": SOME}, within=11 * SECOND, run=FINAL)),
    Mutant("rows of a future match are told to be in none", scan.Scanner.scan, "run, mark, shown=True) if final", "run, mark + 20_000_000, shown=True) if final", every),
    # the search
    Mutant("greedy is reluctant", automaton._Program._repeated, "if repeated.greedy else", "if not repeated.greedy else", lazy),
    Mutant("the last alternative is preferred", automaton.Automaton._reached, "(step.other, begun), (step.one, begun)", "(step.one, begun), (step.other, begun)", optional),
    Mutant("an empty iteration begins another", automaton.Automaton._reached, "step.other if entered in begun else at + 1", "at + 1", hollow),
    Mutant("the least number is one less", automaton._Program._repeated, "range(repeated.least)", "range(repeated.least - 1)", valley),
    Mutant("less preferred ways go on", deterministic.Table.behind, "if accepted >= 0:", "if accepted > 99:", lazy),
    Mutant("a skip goes a row too far", scan._Run._target, "return start + at", "return start + at + 1", chained),
    Mutant("the search goes on in the last row", scan._Run.all, "position = end if", "position = end - 1 if", check(A, B, conditions={"A": SOME})),
    Mutant("a bound in time is met", scan.Scanner._bounds, "times[middle] < wanted", "times[middle] <= wanted", within),
    Mutant("a row of another key is the next", scan.Scanner._candidates, "layout.group[1:] == layout.group[:-1]", "layout.group[1:] != layout.group[:-1]", valley),
    Mutant("a long way goes on where another one ended", deterministic.Deterministic._go_on, "known[met] == state", "known[met] != state", lazy),
    Mutant("a run goes over the row that leaves", deterministic.Deterministic._stay, "at += stays", "at += stays + (stays < len(bits))", far(C, B=ABOVE, C=BELOW), raises=(AssertionError, IndexError)),
    Mutant("a run knows no bounds", runs.Runs.bits, "each.row.values[begin:end]", "each.row.values[begin + 1 : end + 1]", far(C, B=ABOVE, C=BELOW), raises=(AssertionError, ValueError)),
    Mutant("where there is no value is zero", runs.Runs.bits, "each.row.known[begin:end] & each.start.known[start]", "True", far(B=ABOVE), raises=(AssertionError, IndexError)),
    Mutant("a comparison is turned around", runs._comparison, "test(start, row)", "test(row, start)", far(C, B=TURNED, C=BELOW), raises=(AssertionError, IndexError)),
    Mutant("an anchor is met anywhere", automaton.Automaton._reached, "if where & step.one:", "if True:", begins),
    Mutant("near misses are told inside of others", scan._Run.all, "start >= told and", "", near),
    Mutant("near misses are told before their time", scan._Run.all, "and self._is_over(start)", "", near),
    Mutant("time is over before it is", scan._Run._is_over, "<= self.mark", "<= self.mark + 10_000_000", absent),
    # conditions and measures
    Mutant("the row behind is the row before", Layout.value, "rows + away", "rows - away", valley),
    Mutant("a neighbour is of another key", Layout.value, "(other >= self.first[group])", "(other >= 0)", valley),
    Mutant("a row taken back stays", history.Count.pop, "self._counts.pop()", "pass", check(Repeated(B, 1, None), C, conditions={"B": SOME, "C": ("n < 2", {"n": Aggregated("count", ("B",), ())}, lambda v: v["n"] < 2)})),
    Mutant("a mean is a sum", history.Total.value, "total / count if self._mean", "total if self._mean", means),
    Mutant("the last but one is the last", conditions.Conditions._slot, "-1 - steps", "-1", highest),
    Mutant("the first row is the row itself", formulas._reads, 'return "start"', 'return "row"', from_first, raises=(AssertionError, KeyError, AttributeError)),
    Mutant("a running measure sees the whole match", measures._Teller._runs, "if final else", "if True else", rows),
    Mutant("the first is the second", measures._Teller._at, "low + slot.steps", "low + 1 + slot.steps", valley),
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
