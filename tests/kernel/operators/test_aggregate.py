"""Reductions, batch by batch, against recomputation from scratch in plain Python.

Every check takes a source of chance, so that Hypothesis can look for examples and ``test_mutants`` can fix them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from random import Random
from typing import Any

import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millstream.errors import PipelineError
from millstream.kernel.state import segments
from millstream.plan.build import Chain, ViewPlan, build_chain
from millstream.relation.nodes import Aggregate, Aggregation, Column, EventTime, Late, Named, Source, Tumbling
from tests.kernel import oracle
from tests.kernel.local import STAMP, Local, Rec, retracting

# A seed says all of an example, and a smaller seed is no smaller example: nothing to shrink.
few = settings(max_examples=2, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
seeds = given(seed=st.integers(0, (1 << 32) - 1))

SECOND = 1_000_000
SIZE = 60 * SECOND
PARTITIONS = 2
TYPES: dict[str, Any] = {
    "id": pl.Int64, "k": pl.Int64, "g": pl.String, "i": pl.Int64, "f": pl.Float64,
    "d": pl.Decimal(18, 2), "s": pl.String, "at": STAMP,
}  # fmt: skip
SQL = {
    "id": "long", "k": "long", "g": "string", "i": "long", "f": "double", "d": "decimal(18,2)", "s": "string", "at": "timestamp",
}  # fmt: skip
COLUMNS = tuple(Column(name, kind) for name, kind in SQL.items())

EVERYTHING = (
    Aggregation("n", "count"),
    Aggregation("n_b", "count", ("i",)),
    Aggregation("sum_i", "sum", ("i",)),
    Aggregation("sum_f", "sum", ("f",)),
    Aggregation("sum_d", "sum", ("d",)),
    Aggregation("avg_i", "avg", ("i",)),
    Aggregation("avg_f", "avg", ("f",)),
    Aggregation("avg_d", "avg", ("d",)),
    Aggregation("min_i", "min", ("i",)),
    Aggregation("max_i", "max", ("i",)),
    Aggregation("min_f", "min", ("f",)),
    Aggregation("max_f", "max", ("f",)),
    Aggregation("max_s", "max", ("s",)),
    Aggregation("min_at", "min", ("at",)),
    Aggregation("s_of_least_f", "min_by", ("s", "f")),
    Aggregation("f_of_last", "max_by", ("f", "at")),
    Aggregation("distinct_i", "count_distinct", ("i",)),
    Aggregation("distinct_f", "count_distinct", ("f",)),
    Aggregation("list_f", "collect_list", ("f",)),
    Aggregation("set_s", "collect_set", ("s",)),
    Aggregation("set_f", "collect_set", ("f",)),
)

INTEGERS = (None, 0, 1, -1, 7, 1 << 40, -(1 << 40))
HUGE = (None, 1, -1, 1 << 62, -(1 << 62), (1 << 62) - 1, (1 << 63) - 1)
DOUBLES = (None, 0.0, -0.0, 0.1, 0.2, -0.3, 1.5, 1e16, -1e16)
WILD = (*DOUBLES, 1e300, -1e300, 1.7e308, -1.7e308, 5e-324, 1e-200, math.nan, math.inf, -math.inf)
DECIMALS = (None, Decimal("0.01"), Decimal("-0.02"), Decimal("123456789.12"), Decimal("-3.00"))
STRINGS = (None, "", "a", "b", "Ω", "a long one")
KEYS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "long": (pl.Int64, (None, 0, 1, -1, 1 << 62)),
    "string": (pl.String, (None, "", "x", "ü")),
    "double": (pl.Float64, (None, 0.0, -0.0, math.nan, -math.nan, 1.5, math.inf)),
    "timestamp": (STAMP, (None, oracle.stamp(0), oracle.stamp(-1), oracle.stamp(1_700_000_000_000_001))),
}

Check = Callable[[Random], None]


def row(
    chance: Random, at: int = 0, keys: str = "long", integers: Sequence[Any] = INTEGERS, doubles: Sequence[Any] = WILD
) -> dict[str, Any]:
    """Any row."""
    return {
        "id": chance.randrange(6),
        "k": chance.choice(KEYS[keys][1]),
        "g": chance.choice(("x", "y", None)),
        "i": None if chance.random() < 0.2 else chance.choice(integers),
        "f": None if chance.random() < 0.2 else chance.choice(doubles),
        "d": chance.choice(DECIMALS),
        "s": None if chance.random() < 0.2 else chance.choice(STRINGS),
        "at": oracle.stamp(at + chance.randrange(5) * SECOND),
    }


def batches(chance: Random, make: Callable[[], dict[str, Any]], tombstones: bool = False) -> list[list[Rec]]:
    """Some batches of records over the partitions; a table's key stays in its partition."""
    following = [0] * PARTITIONS
    made = []
    for _ in range(chance.randint(1, 4)):
        records = []
        for _ in range(chance.randint(1, 8)):
            values = make()
            part = values["id"] % PARTITIONS if tombstones else chance.randrange(PARTITIONS)
            deleted = tombstones and chance.random() < 0.3
            kept = {"id": values["id"]} if deleted else values
            records.append(Rec(0, part, following[part], values=kept, deleted=deleted))
            following[part] += chance.choice((1, 1, 3))
        made.append(records)
    return made


def chain_of(aggregate: Aggregate, key: Sequence[str], emit: Any = "changes", buckets: int = 2) -> Chain:
    return build_chain([ViewPlan("view", aggregate, "sqlite:x", emit, tuple(key))], buckets=buckets, to="sqlite:x")


def types_of(keys: str = "long") -> dict[int, dict[str, Any]]:
    return {0: {**TYPES, "k": KEYS[keys][0]}}


def aggregate_of(
    source: Any, keys: Sequence[str], measures: Sequence[Aggregation] = EVERYTHING, size: int | None = None
) -> Aggregate:
    window = Tumbling("at", timedelta(microseconds=size)) if size else None
    return Aggregate(source, tuple(Named(name, name) for name in keys), window, tuple(measures))


def stored_by(chain: Chain, keys: Sequence[str], retract: bool) -> Chain:
    # Without keys the sink counts rows, and must always be told what to take back.
    return retracting(chain, retract or not keys)


def check_groups(
    chance: Random,
    keys: Sequence[str] = ("k",),
    kind: str = "long",
    table: bool = False,
    retract: bool = True,
    integers: Sequence[Any] = INTEGERS,
    measures: Sequence[Aggregation] | None = None,
) -> None:
    """After every batch a view is what recomputation gives, and one big batch gives the same."""
    measures = measures or chance.sample(EVERYTHING, 5)
    source = Source("table" if table else "stream", "t", "t", COLUMNS, key=("id",) if table else ())
    # Without a key the view counts rows, so that every row that is taken back must have been there.
    chain = stored_by(chain_of(aggregate_of(source, keys, measures), () if retract else keys), keys, retract)
    script = batches(chance, lambda: row(chance, keys=kind, integers=integers), table)
    seen: list[Rec] = []
    local = Local(chain, PARTITIONS, types_of(kind), seed=chance.randrange(100))
    for records in script:
        seen += records
        rows = oracle.latest(seen, ("id",)) if table else [record.values for record in seen]
        try:
            expected = oracle.reduce(rows, keys, measures)
        except oracle.Overflow:
            with pytest.raises(PipelineError, match="does not fit"):
                local.batch(records)
            return
        again = local.copy() if len(seen) % 3 == 0 else None
        local.batch(records)
        assert local.view("view") == expected
        if again is not None:
            again.batch(records)
            assert again.sent[-1] == local.sent[-1], "a batch that runs again gives other changes"
    whole = Local(chain, PARTITIONS, types_of(kind))
    whole.batch(sorted(seen, key=lambda record: (record.partition, record.offset)))
    assert whole.view("view") == local.view("view")


@pytest.mark.parametrize("retract", [True, False], ids=["retracting", "by key"])
@pytest.mark.parametrize("table", [False, True], ids=["stream", "table"])
@seeds
@few
def test_groups_by_one_key_are_what_recomputation_gives(table: bool, retract: bool, seed: int) -> None:
    check_groups(Random(seed), table=table, retract=retract)


@pytest.mark.parametrize("table", [False, True], ids=["stream", "table"])
@pytest.mark.parametrize("kind", ["string", "double", "timestamp"])
@seeds
@few
def test_keys_of_every_type_nulls_and_both_zeros_and_nan_included_make_one_group_each(
    kind: str, table: bool, seed: int
) -> None:
    check_groups(Random(seed), keys=("k", "g"), kind=kind, table=table, retract=seed % 2 == 0, measures=EVERYTHING[:3])


@pytest.mark.parametrize("table", [False, True], ids=["stream", "table"])
@seeds
@few
def test_without_keys_all_rows_are_one_group(table: bool, seed: int) -> None:
    check_groups(Random(seed), keys=(), table=table)


@pytest.mark.parametrize("table", [False, True], ids=["stream", "table"])
@seeds
@few
def test_rows_are_counted_where_no_column_of_them_is_wanted(table: bool, seed: int) -> None:
    check_groups(Random(seed), keys=(), table=table, measures=EVERYTHING[:1])


@pytest.mark.parametrize("table", [False, True], ids=["stream", "table"])
@seeds
@few
def test_a_sum_of_longs_is_exact_or_refused_and_an_average_always_there(table: bool, seed: int) -> None:
    check_groups(
        Random(seed), integers=HUGE, table=table, measures=(Aggregation("s", "sum", ("i",)), Aggregation("n", "count"))
    )
    check_groups(Random(seed), integers=HUGE, table=table, measures=(Aggregation("a", "avg", ("i",)),))


TWICE = (
    Aggregation("one", "collect_list", ("i",)),
    Aggregation("two", "collect_list", ("i",)),
    Aggregation("best", "max_by", ("s", "i")),
    Aggregation("also_best", "max_by", ("s", "i")),
    Aggregation("least", "min", ("i",)),
    Aggregation("also_least", "min", ("i",)),
    Aggregation("least_by_itself", "min_by", ("i", "i")),
    Aggregation("distinct", "count_distinct", ("i",)),
    Aggregation("also_distinct", "count_distinct", ("i",)),
)


@pytest.mark.parametrize("table", [False, True], ids=["stream", "table"])
@seeds
@few
def test_an_aggregate_that_is_asked_for_twice_is_the_same_twice(table: bool, seed: int) -> None:
    check_groups(Random(seed), table=table, measures=TWICE)


SHADOWED = (
    Aggregation("n", "sum", ("i",)), Aggregation("n_b", "max", ("s",)), Aggregation("n_b_b", "count", ("f",)),
    Aggregation("g_b", "count_distinct", ("s",)),
)  # fmt: skip


@pytest.mark.parametrize("table", [False, True], ids=["stream", "table"])
@seeds
@few
def test_names_that_look_like_our_own_are_only_names(table: bool, seed: int) -> None:
    check_groups(Random(seed), keys=("k", "g"), table=table, measures=SHADOWED)


def check_stacked(chance: Random, outer: Sequence[str] = (), table: bool = False) -> None:
    """An aggregate of an aggregate is what recomputation of both gives."""
    source = Source("table" if table else "stream", "t", "t", COLUMNS, key=("id",) if table else ())
    below = (Aggregation("i", "count"), Aggregation("f", "sum", ("f",)), Aggregation("s", "max", ("s",)))
    above = (
        Aggregation("total", "sum", ("i",)),
        Aggregation("rows", "count"),
        Aggregation("most", "max", ("i",)),
        Aggregation("sum_f", "sum", ("f",)),
        Aggregation("distinct", "count_distinct", ("i",)),
        Aggregation("list", "collect_list", ("i",)),
        Aggregation("top", "max_by", ("s", "i")),
    )
    chain = chain_of(aggregate_of(aggregate_of(source, ("k", "g"), below), outer, above), outer)
    if not outer:
        chain = retracting(chain, True)
    local = Local(chain, PARTITIONS, types_of(), seed=chance.randrange(100))
    seen: list[Rec] = []
    for records in batches(chance, lambda: row(chance, doubles=WILD if chance.random() < 0.2 else DOUBLES), table):
        seen += records
        local.batch(records)
        rows = oracle.latest(seen, ("id",)) if table else [record.values for record in seen]
        inner = [
            dict(zip(("k", "g", "i", "f", "s"), each, strict=True)) for each in oracle.reduce(rows, ("k", "g"), below)
        ]
        for each in inner:
            each["f"] = math.nan if each["f"] == "NaN" else each["f"]
        assert local.view("view") == oracle.reduce(inner, outer, above)


@pytest.mark.parametrize("outer", [(), ("g",)], ids=["of everything", "by key"])
@pytest.mark.parametrize("table", [False, True], ids=["stream", "table"])
@seeds
@few
def test_an_aggregate_of_an_aggregate_is_what_recomputation_gives(table: bool, outer: Sequence[str], seed: int) -> None:
    check_stacked(Random(seed), outer, table)


# windows

DELAY, LATENESS = 10 * SECOND, 150 * SECOND
WINDOWED = tuple(EVERYTHING[index] for index in (0, 3, 8, 15, 16, 18))


def events(chance: Random) -> list[list[Rec]]:
    """Batches of events whose time goes on, with some far behind, some heartbeats, and some from the future."""
    now = chance.choice((0, -5 * SIZE, 1_700_000_000_500_000))
    following = [0] * PARTITIONS
    made = []
    for _ in range(chance.randint(1, 6)):
        records = []
        for _ in range(chance.randint(1, 8)):
            part = chance.randrange(PARTITIONS)
            now += chance.choice((0, SECOND, 20 * SECOND, SIZE // 2 + 1))
            at = now - chance.choice(
                (0, 0, 5 * SECOND, DELAY, DELAY + 1, 30 * SECOND, 100 * SECOND, LATENESS + DELAY, 4 * SIZE)
            )
            at = at // SIZE * SIZE - chance.randrange(2) if chance.random() < 0.2 else at
            if chance.random() < 0.1:
                records.append(Rec(0, part, following[part], now, beat=at))
            else:
                append = at - 7_200 * SECOND if chance.random() < 0.05 else now
                values = {**row(chance), "at": oracle.stamp(at)}
                records.append(Rec(0, part, following[part], append, values))
            following[part] += 1
        made.append(records)
    return made


def windowed_source(late: Late, lateness: int) -> Source:
    time = EventTime("at", timedelta(microseconds=DELAY), timedelta(microseconds=lateness), late)
    return Source("stream", "t", "t", COLUMNS, time=time)


def check_windows(chance: Random, late: Late = "drop", keys: Sequence[str] = ("k",), retract: bool = True) -> None:
    """Final rows appear when the mark reaches a window's end, once if nothing is late; changes and final end up the same."""
    lateness = LATENESS if late == "correct" else 0
    source = windowed_source(late, lateness)
    aggregate = aggregate_of(source, keys, WINDOWED, SIZE)
    key = () if retract else (*keys, "window_start")
    final = Local(retracting(chain_of(aggregate, key, "final"), retract), PARTITIONS, types_of(), chance.randrange(100))
    changes = Local(retracting(chain_of(aggregate, key), retract), PARTITIONS, types_of(), chance.randrange(100))
    judge = oracle.Judge(source, PARTITIONS)
    for records in events(chance):
        judge.batch(records)
        again = final.copy() if len(records) % 3 == 0 else None
        final.batch(records)
        if again is not None:
            again.batch(records)
            assert again.sent[-1] == final.sent[-1], "a batch that runs again gives other changes"
        changes.batch(records)
        admitted = [record.values for record in judge.admitted]
        assert final.view("view") == oracle.reduce(admitted, keys, WINDOWED, SIZE, until=judge.mark)
        assert changes.view("view") == oracle.reduce(admitted, keys, WINDOWED, SIZE)
    for local in (final, changes):
        local.close()
        assert local.view("view") == oracle.reduce([record.values for record in judge.admitted], keys, WINDOWED, SIZE)
        assert local.state_rows == 0
        assert local.kept_segments == 0
    if not lateness:
        said: Counter[Any] = Counter()
        for sent in final.sent:
            for found, weight in sent.get("view", Counter()).items():
                assert weight == 1, ("taken back", found)
                said[found[: len(keys) + 1]] += 1
        assert all(times == 1 for times in said.values()), said


@pytest.mark.parametrize("retract", [True, False], ids=["retracting", "by key"])
@pytest.mark.parametrize("late", ["drop", "correct"])
@seeds
@few
def test_windows_close_when_the_mark_reaches_their_end_and_all_state_goes(late: Late, retract: bool, seed: int) -> None:
    check_windows(Random(seed), late, retract=retract)


@pytest.mark.parametrize("late", ["drop", "correct"])
@seeds
@few
def test_windows_without_keys_close_too(late: Late, seed: int) -> None:
    check_windows(Random(seed), late, keys=())


def check_endless(chance: Random, count: int = 200, emit: Any = "final") -> None:
    """State of an endless windowed stream stops growing, however long it goes on."""
    measures = (EVERYTHING[0], EVERYTHING[16 if emit == "changes" else 18])
    aggregate = aggregate_of(windowed_source("drop", 0), ("k",), measures, SIZE)
    local = Local(chain_of(aggregate, ("k", "window_start"), emit, buckets=1), PARTITIONS, types_of())
    local.limit = segments.LIMIT
    held = []
    for number in range(count):
        now = number * SIZE // 2
        records = [
            Rec(0, part, number * 20 + i, now, {**row(chance, now), "k": chance.randrange(40)})
            for part in range(PARTITIONS)
            for i in range(20)
        ]
        local.batch(records)
        values = local.held.values()
        held.append(
            (
                sum(each.rows for each in values),
                sum(each.bytes for each in values),
                sum(each.segments for each in values),
            )
        )
        assert sum(each.segments for each in values) == local.kept_segments
    # A segment keeps what has expired until it is full, so state grows at first; what grows for ever would double.
    for early, late in zip(zip(*held[: count // 2], strict=True), zip(*held[count // 2 :], strict=True), strict=True):
        assert max(late) <= 1.25 * max(early), (max(early), max(late))


@pytest.mark.parametrize("emit", ["changes", "final"])
def test_an_endless_stream_of_windows_keeps_no_more_state_as_it_goes_on(emit: str) -> None:
    check_endless(Random(1), 200 if emit == "final" else 80, emit)


def test_nan_is_one_group_also_alone_in_a_batch() -> None:
    """Polars finds no NaN by one column of doubles where there is one row on each side."""
    source = Source("stream", "numbers", "numbers", (Column("x", "double"),))
    counted = Aggregate(source, (Named("x", "x"),), None, (Aggregation("n", "count"),))
    chain = build_chain([ViewPlan("counted", counted, "sqlite:x", "changes", ("x",))], buckets=1, to="sqlite:x")
    local = Local(chain, 1, {0: {"x": pl.Float64}})
    for offset in range(3):
        local.batch([Rec(0, 0, offset, values={"x": math.nan})])
    # the sink, which has one NaN as a key, is not part of this: look at what came last
    assert [sorted(n for (_, n), weight in changes["counted"].items() if weight > 0) for changes in local.sent] == [
        [1],
        [2],
        [3],
    ]
