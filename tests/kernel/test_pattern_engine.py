"""Row patterns where examples say more than chance: time, absence, skips, ids, limits, state, and expressions row by row."""

from __future__ import annotations

import math
import time
from collections import Counter
from decimal import Decimal
from functools import partial
from itertools import permutations, product
from random import Random
from typing import Any

import polars as pl
import pytest

from millstream.errors import PipelineError
from millstream.kernel.operators.match import schema_of
from millstream.kernel.pattern import conditions as conditions_module
from millstream.kernel.pattern import deterministic
from millstream.kernel.pattern.closures import Compute, Unsure, closure
from millstream.kernel.pattern.formulas import Part, computable
from millstream.kernel.state.store import FOREVER, NEVER
from millstream.plan.spec import Horizon, Match, Order
from millstream.relation.pattern import (
    Aggregated,
    Alternatives,
    Anchor,
    Formula,
    MatchId,
    Navigation,
    Pattern,
    Repeated,
    Search,
    Sequential,
    Skip,
    Stage,
    Variable,
)
from tests.kernel.alone import SECOND, TYPES, Alone, Row
from tests.kernel.oracle import stamp
from tests.kernel.test_match import making

A, B, C = map(Variable, "ABC")
COLUMNS = tuple(TYPES)
HERE = Navigation("last", (), "i")
FROM = Formula("since", "v", (("v", Navigation("first", (), "at")),))
TO = Formula("till", "v", (("v", Navigation("last", (), "at")),))
LENGTH = Formula("n", "v", (("v", Aggregated("count", (), ())),))


def when(name: str, sql: str, **slots: Any) -> Formula:
    return Formula(name, sql, tuple({"x": HERE, **slots}.items()))


def is_(name: str, number: int) -> Formula:
    return when(name, f"x = {number}")


def search(*parts: Pattern, conditions: tuple[Formula, ...] = (), **options: Any) -> Search:
    return Search("p", Sequential(parts), conditions, options.pop("measures", (FROM, TO, LENGTH)), **options)


def alone(*searches: Search, emit: Any = "changes", lateness: int = 0, **options: Any) -> Alone:
    return Alone(Match(("k",), COLUMNS, (Order("at"),), searches, Horizon("at", lateness), emit, **options))


def row(at: float, i: int | None = None, **more: Any) -> tuple[Row, int]:
    return {"k": 1, "at": stamp(int(at * SECOND)), "i": i, **more}, 1


def spans(kernel: Alone) -> list[tuple[float, float]]:
    """From when to when the matches are, in seconds."""
    return sorted((each[1].timestamp(), each[2].timestamp()) for each in kernel.rows.elements())


def test_a_match_is_shorter_than_its_bound_in_time() -> None:
    kernel = alone(search(A, B, conditions=(is_("A", 1), is_("B", 2)), within=5 * SECOND))
    kernel.batch([row(0, 1), row(5, 2), row(10, 1), row(14.999999, 2)])
    assert spans(kernel) == [(10, 14.999999)]


def test_absence_is_told_when_the_mark_passes_and_taken_back_by_what_comes_late() -> None:
    absent = search(
        A, Repeated(B, 0, None), Anchor("expiry"), conditions=(is_("A", 1), when("B", "x <> 2")), within=10 * SECOND
    )
    kernel = alone(absent, lateness=30 * SECOND)
    kernel.batch([row(0, 1), row(4, 3)], 9 * SECOND)
    assert not kernel.rows
    kernel.batch([], 10 * SECOND)
    assert spans(kernel) == [(0, 4)]
    kernel.batch([row(7, 2)], 11 * SECOND)
    assert not kernel.rows


def test_a_near_miss_has_the_stage_it_reached_and_goes_when_it_is_completed() -> None:
    stage = Formula("stage", "v", (("v", Stage()),))
    near = search(
        A,
        B,
        C,
        conditions=(is_("A", 1), is_("B", 2), is_("C", 3)),
        within=10 * SECOND,
        near=True,
        measures=(FROM, stage),
    )
    kernel = alone(near, lateness=30 * SECOND)
    kernel.batch([row(0, 1), row(1, 2)], 5 * SECOND)
    assert not kernel.rows
    kernel.batch([], 10 * SECOND)
    assert kernel.rows == Counter([(1, stamp(0), "B")])
    kernel.batch([row(2, 3)], 11 * SECOND)
    assert kernel.rows == Counter([(1, stamp(0), None)])


def test_a_match_is_final_as_soon_as_no_row_can_change_it() -> None:
    kernel = alone(search(A, Repeated(B, 1, None), conditions=(is_("A", 1), is_("B", 2))), emit="final")
    kernel.batch([row(0, 1), row(1, 2), row(2, 2)], 3 * SECOND)
    assert not kernel.rows, "one more row may make it longer"
    kernel.batch([row(3, 5)], 3 * SECOND)
    assert not kernel.rows, "one may come before that"
    kernel.batch([], 3 * SECOND + 1)
    assert spans(kernel) == [(0, 2)]
    kernel.batch([row(4, 1), row(5, 2)], 6 * SECOND)
    kernel.batch([], FOREVER)
    assert spans(kernel) == [(0, 2), (4, 5)]


@pytest.mark.parametrize(
    ("skip", "message"),
    [
        (
            Skip("first", ("A",)),
            r"pattern p, k = 1: AFTER MATCH SKIP TO FIRST A: that is the first row of the match itself, row 2",
        ),
        (Skip("last", ("C",)), r"SKIP TO LAST C: the match that begins in row 2 of those at hand has no such row"),
    ],
)
def test_a_skip_that_leads_nowhere_is_an_error_with_key_and_row(skip: Skip, message: str) -> None:
    some = search(A, B, Repeated(C, 0, 1), conditions=(is_("A", 1), is_("B", 2), is_("C", 3)), skip=skip)
    with pytest.raises(PipelineError, match=message):
        alone(some).batch([row(0, 7), row(1, 1), row(2, 2), row(3, 4)])


def test_where_spark_would_fail_is_an_error_if_the_search_comes_there() -> None:
    divided = when("B", "12 / x > 3")
    found = search(A, B, conditions=(is_("A", 1), divided))
    kernel = alone(found)
    kernel.batch([row(0, 0), row(1, 1), row(2, 2)])
    assert spans(kernel) == [(1, 2)]
    with pytest.raises(PipelineError, match=r"pattern p, k = 1: the condition of B has no value in row 5 of the key"):
        kernel.batch([row(3, 1), row(4, 0)])
    back = when("B", "12 / (x - m) > 3", m=Aggregated("max", ("A",), ("i",)))
    with pytest.raises(PipelineError, match=r"the condition of B has no value in row 2"):
        alone(search(A, B, conditions=(back,))).batch([row(0, 1), row(1, 1)])
    measured = Formula("m", "1 / n", (("n", Navigation("last", (), "i")),))
    with pytest.raises(PipelineError, match=r"pattern p, k = 1: the measure m has no value"):
        alone(search(A, measures=(measured,))).batch([row(0, 0)])


ID = Formula("id", "v", (("v", MatchId()),))


def test_ids_tell_all_matches_apart_and_do_not_depend_on_batches() -> None:
    some = search(
        A,
        Repeated(B, 0, None, greedy=False),
        C,
        conditions=(when("A", "x > 0"),),
        measures=(ID,),
        skip=Skip("next_row"),
    )
    for seed in range(10):
        chance = Random(seed)
        rows = [(making(chance, chance.randrange(8) * SECOND), 1) for _ in range(30)]
        ids = []
        for size in (30, 7, 1):
            kernel = alone(some)
            for begin in range(0, 30, size):
                kernel.batch(rows[begin : begin + size])
            assert set(kernel.rows.values()) == {1}
            ids.append(kernel.rows)
        forgetful = alone(some, emit="final")
        rows.sort(key=lambda each: each[0]["at"])
        for begin in range(0, 30, 5):
            forgetful.batch(rows[begin : begin + 5], int(rows[begin][0]["at"].timestamp()) * SECOND)
        forgetful.batch([], FOREVER)
        assert ids[0] == ids[1] == ids[2] == forgetful.rows


def test_a_row_taken_back_takes_its_match_along() -> None:
    kernel = alone(search(A, B, conditions=(is_("A", 1), is_("B", 2))), insert_only=False)
    kernel.batch([row(0, 1), row(1, 2), row(2, 1), row(3, 2)], 100 * SECOND)
    (gone, _) = row(1, 2)
    kernel.batch([(gone, -1)], 200 * SECOND)
    assert spans(kernel) == [(2, 3)]


def test_many_searches_find_what_each_finds_alone() -> None:
    chance = Random(5)
    searches = [
        Search(f"p{at}", Sequential((A, Repeated(B, 1, None))), (is_("A", at % 4), when("B", f"x >= {at % 3}")), (FROM, LENGTH), within=(at % 7 + 1) * SECOND)
        for at in range(70)
    ]  # fmt: skip
    single = [alone(each) for each in searches]
    together = alone(*searches)
    for batch in range(6):
        rows = [(making(chance, (batch * 5 + chance.randrange(5)) * SECOND), 1) for _ in range(12)]
        for kernel in (together, *single):
            kernel.batch(rows, batch * 5 * SECOND)
        wanted = Counter((k, f"p{at}", *rest) for at, each in enumerate(single) for k, *rest in each.rows.elements())
        assert together.rows == wanted
        assert wanted


def test_the_first_row_of_a_key_stays_that_while_any_search_needs_it() -> None:
    first = search(Anchor("start"), Repeated(B, 1, None), C, conditions=(is_("B", 1), is_("C", 2)))
    other = Search("q", A, (is_("A", 9),), (FROM, TO, LENGTH))
    kernel = alone(other, first, emit="final")
    for at in range(4):
        kernel.batch([row(at, 1)], at * SECOND)
    assert kernel.held
    kernel.batch([row(5, 2), row(6, 1), row(7, 2)], 20 * SECOND)
    assert kernel.rows == Counter([(1, "p", stamp(0), stamp(5 * SECOND), 5)])


def test_all_permutations_of_eight_are_found() -> None:
    names = "ABCDEFGH"
    every = Alternatives(tuple(Sequential(tuple(map(Variable, order))) for order in permutations(names)))
    some = search(every, conditions=tuple(is_(name, at) for at, name in enumerate(names)))
    kernel = alone(some)
    kernel.batch([row(at, number) for at, number in enumerate((9, 3, 1, 2, 0, 7, 5, 6, 4, 4))])
    assert spans(kernel) == [(1, 8)]


@pytest.mark.parametrize(
    "parts",
    [
        (Repeated(Alternatives((A, Sequential((A,)), C)), 0, None), B),
        (Repeated(Repeated(A, 0, None), 0, None), B),
        (
            Repeated(Repeated(Sequential((A, A)), 0, None), 1, None),
            Repeated(Alternatives((A, Sequential())), 0, None),
            B,
        ),
        (*[Repeated(A, 0, 1)] * 30, *[A] * 30, B),
    ],
)
def test_patterns_with_many_ways_are_searched_in_one_pass(parts: tuple[Pattern, ...]) -> None:
    kernel = alone(search(*parts, conditions=(is_("B", 2),)))
    begin = time.process_time()
    kernel.batch([row(at / 1_000, 1) for at in range(5_000)])
    kernel.batch([row(9, 2)])
    assert time.process_time() - begin < 20
    assert len(spans(kernel)) == 1


def test_a_pattern_that_asks_without_end_is_an_error_with_pattern_and_key() -> None:
    back = when("B", "x > m + 100", m=Aggregated("avg", ("A",), ("i",)))
    some = search(Repeated(Alternatives((A, C)), 0, None), B, conditions=(back,))
    begin = time.process_time()
    with pytest.raises(PipelineError, match="pattern p, k = 1: more than 5,000,000 steps for one key in one batch"):
        alone(some).batch([row(at, 1) for at in range(40)])
    assert time.process_time() - begin < 120


def test_a_pattern_too_large_to_be_written_out_is_refused() -> None:
    for pattern in (Repeated(A, 1_000_000, None), Repeated(Repeated(Repeated(A, 0, 1_000), 0, 1_000), 0, None)):
        with pytest.raises(PipelineError, match="the pattern is too large"):
            alone(search(pattern))
    alone(search(Repeated(Repeated(Sequential(), 1_000_000, None), 1_000_000, None), A)).batch([row(0)])


ENDLESS = {
    "no match": search(A, B, conditions=(is_("A", 9),), within=20 * SECOND),
    "no end": search(A, Repeated(B, 0, None), C, conditions=(is_("C", 9),), within=20 * SECOND),
    "matches": search(A, Repeated(B, 1, None), conditions=(is_("A", 1), when("B", "x > 1")), within=20 * SECOND),
    "of the start": search(A, Repeated(B, 1, None), C, conditions=(when("C", "x > s", s=Navigation("first", (), "i")),), within=20 * SECOND),
    "of the match": search(A, Repeated(B, 1, None), C, conditions=(when("C", "x > m", m=Aggregated("avg", (), ("i",))),), within=20 * SECOND),
    "near misses": search(A, B, C, conditions=(is_("A", 1), is_("C", 9)), within=20 * SECOND, near=True),
    "all rows": search(A, B, conditions=(is_("A", 1),), within=20 * SECOND, shown="all_with_unmatched", skip=Skip("next_row")),
    "the row before": search(A, B, conditions=(when("B", "x > p", p=Navigation("last", (), "i", away=-1)),), within=20 * SECOND),
}  # fmt: skip


@pytest.mark.parametrize("emit", ["changes", "final"])
@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_stream_of_one_key_keeps_no_more_state_as_it_goes_on(name: str, emit: Any) -> None:
    chance, held = Random(1), []
    kernel = alone(ENDLESS[name], emit=emit, lateness=5 * SECOND)
    for number in range(60):
        rows = [making(chance, number * 5 * SECOND + chance.randrange(5 * SECOND)) | {"k": 1} for _ in range(8)]
        kernel.batch([(each, 1) for each in rows], number * 5 * SECOND)
        held.append(kernel.held)
    assert max(held[30:]) <= 1.25 * max(held[:30]), held
    assert max(held) < 120
    assert Match(("k",), COLUMNS, (Order("at"),), (ENDLESS[name],), Horizon("at")).is_bounded() == (
        name != "the row before"
    )
    kernel.batch([], 1_000 * SECOND)
    assert kernel.held <= (1 if name == "the row before" else 0)


def test_the_types_of_the_output_are_known_before_there_are_rows() -> None:
    measures = (FROM, LENGTH, ID, Formula("half", "a / 2", (("a", Aggregated("avg", ("A",), ("i",))),)))
    spec = Match(
        ("k",), COLUMNS, (Order("at"),), (search(A, measures=measures, shown="all"),), Horizon("at"), named=True
    )
    kernel = Alone(spec)
    kernel.batch([row(0)], NEVER)
    expected = {**TYPES, "since": TYPES["at"], "n": pl.Int64, "id": pl.String, "half": pl.Float64}
    found = schema_of(spec, pl.Schema(TYPES))
    assert dict(found) == dict(pl.Schema({"k": expected.pop("k"), "pattern": pl.String, **expected}))
    assert len(next(iter(kernel.rows))) == len(found)


def test_what_takes_spark_is_not_computable() -> None:
    types = pl.Schema(TYPES)
    assert computable(when("A", "x > 1"), types)
    assert computable(when("A", "m", m=Aggregated("collect_list", (), ("s",))), types)
    assert not computable(when("A", "rand() > x"), types)
    assert not computable(when("A", "sha2(s, 256) = 'a'", s=Navigation("last", (), "s")), types)
    with pytest.raises(PipelineError, match=r"A: rand\(\) > x is not an expression that a pattern can compute"):
        alone(search(A, conditions=(when("A", "rand() > x"),))).batch([row(0)])


VALUES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "i": (pl.Int64(), (None, 0, -1, 7, (1 << 63) - 1, -(1 << 63), 1 << 53, (1 << 53) + 1)),
    "n": (pl.Int32(), (None, 0, 3, -5, (1 << 31) - 1)),
    "f": (pl.Float64(), (None, 0.0, -0.0, 0.1, 1e300, math.nan, math.inf, -math.inf)),
    "s": (pl.String(), (None, "", "a", "é", "\U0001f600")),
    "d": (pl.Decimal(10, 2), (None, Decimal("0.00"), Decimal("1.50"), Decimal("-99999999.99"))),
    "b": (pl.Boolean(), (None, True, False)),
    "t": (TYPES["at"], (None, 0, 60_000_000, -1)),
}
TEXTS = (
    "i > n", "i + n > 3", "i * n < 10", "i - n <> 0 OR b", "i / n >= 0.5D", "i % 3 = 1", "n % 2 = 1 AND NOT b", "abs(i) < 5", "i < f",
    "f = f", "f <> 0", "f >= 0.1D", "f < i", "f * 2 > 1", "f / i < 1", "abs(f) <= 0.1D", "f - 0.1D <= i", "f BETWEEN 0 AND i",
    "s = 'a'", "s < 'b'", "s >= 'é'", "s IN ('a', '')", "s NOT IN ('a', 'é')", "s IS NULL OR s <> 'a'", "NOT (s IS NOT NULL AND b)",
    "d > 1", "d * 2 > n", "d + 0.5 <= 2.00", "i * 0.9 > n", "i * 0.9 >= d", "n > 1.5", "d = f", "d - i < 0", "-1 < i", "i IN (7, 0)",
    "b = true", "b OR i > 0", "b AND f > 0", "(i > 0) = b", "t + INTERVAL 1 MINUTE > t", "t - INTERVAL '10' SECOND < t", "i NOT BETWEEN n AND 7",
    "n + n > 0", "n * n > 0", "i > 0 = (n > 0)", "d / f > 0", "i <= 9007199254740992D", "f IS NULL", "n <> f AND d <> i",
)  # fmt: skip


def _read(current: dict[str, Any], name: str, _row: int, _start: int) -> Any:
    return current[name]


@pytest.mark.parametrize("sql", TEXTS)
def test_a_condition_row_by_row_is_what_it_is_as_a_column(sql: str) -> None:
    types: dict[str, tuple[pl.DataType, Compute]] = {
        name: (dtype, lambda *_: None) for name, (dtype, _) in VALUES.items()
    }
    used = [name for name in VALUES if closure(sql, {each: types[each] for each in types if each != name}) is None]
    current: dict[str, Any] = {}
    slots: dict[str, tuple[pl.DataType, Compute]] = {
        name: (VALUES[name][0], partial(_read, current, name)) for name in used
    }
    alone_ = closure(sql, slots)
    assert alone_ is not None, "it is computed as frames of one row"
    framed = conditions_module._framed(Part("A", sql, (), "match"), slots)
    for values in product(*(VALUES[name][1] for name in used)):
        current.update(zip(used, values, strict=True))
        found = []
        for compute in (alone_, framed):
            try:
                found.append(compute(0, 0))
            except Unsure:
                found.append("unsure")
        # Nothing by zero is nothing to Spark; as a column nobody is sure of it.
        assert found[0] == found[1] or ("/" in sql and found == [None, "unsure"]), (sql, current)


FIRST = Navigation("first", (), "i")
NUMBER, OTHER = Navigation("last", (), "f"), Navigation("first", (), "f")
COMPARED = {
    "whole numbers": (when("B", "x >= s - 1", s=FIRST), when("C", "x < s - 1", s=FIRST)),
    "turned around": (when("B", "s <= x", s=FIRST), when("C", "s > x + 2", s=FIRST)),
    "with neighbours": (when("B", "p >= s", p=Navigation("last", (), "i", away=-1), s=Navigation("first", (), "i", away=1)),),
    "a row condition besides": (when("B", "x <> 2 AND x >= s", s=FIRST),),
    "times": (when("B", "t < s + INTERVAL 40 SECONDS", t=Navigation("last", (), "at"), s=Navigation("first", (), "at")),),
    "doubles": (when("B", "f >= s", f=NUMBER, s=OTHER), when("C", "f < s", f=NUMBER, s=OTHER)),
    "of two kinds": (when("B", "f >= s", f=NUMBER, s=FIRST),),
    "text": (when("B", "t = s", t=Navigation("last", (), "s"), s=Navigation("first", (), "s")),),
    "more than a comparison": (when("B", "x >= s OR x = 0", s=FIRST),),
}  # fmt: skip


@pytest.mark.parametrize("nan", [False, True], ids=["numbers", "NaN too"])
@pytest.mark.parametrize("name", COMPARED)
def test_what_is_compared_with_the_first_row_is_the_same_for_many_rows_at_once(
    name: str, nan: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = Random(name)
    rows = [(making(chance, at * SECOND) | {"k": 1}, 1) for at in range(300)]
    for each, _ in rows:
        each["f"] = each["f"] if nan or each["f"] == each["f"] else 7.0
    searches = [
        search(A, Repeated(B, 0, None), *end, conditions=COMPARED[name], skip=Skip("next_row"), within=within)
        for end in ((), (C,))
        for within in (None, 100 * SECOND)
    ]
    found = []
    for still, run in ((1 << 60, 0), (0, 2), (3, 64)):
        monkeypatch.setattr(deterministic, "_STILL", still)
        monkeypatch.setattr(deterministic, "_RUN", run)
        kernels = [alone(each) for each in searches]
        for kernel in kernels:
            kernel.batch(rows)
        found.append([kernel.rows for kernel in kernels])
    assert found[0] == found[1] == found[2]
    assert any(found[0])


def test_a_number_too_large_is_told_of_the_row_where_it_is() -> None:
    most = 9_223_372_036_854_775_807
    some = search(A, Repeated(B, 0, None), C, conditions=(is_("A", 1), when("B", "x + 1 >= s", s=FIRST), is_("C", 9)))
    rows = [row(at, 1 if at == 0 else 5) for at in range(1_000)]
    alone(some).batch(rows)
    rows[700] = row(700, most)
    with pytest.raises(PipelineError, match="the condition of B has no value in row 701 of the key"):
        alone(some).batch(rows)


def test_a_key_with_many_rows_in_a_short_time_is_searched() -> None:
    chance = Random(1)
    drop = search(
        A, Repeated(B, 0, None), C, conditions=(when("B", "x >= s - 50", s=FIRST), when("C", "x < s - 50", s=FIRST)),
        within=5 * SECOND,
    )  # fmt: skip
    rows = [row(at / 4_000, int(10 ** chance.uniform(0, 6))) for at in range(20_000)]
    kernel = alone(drop)
    kernel.batch(rows)
    assert len(spans(kernel)) > 1_000
