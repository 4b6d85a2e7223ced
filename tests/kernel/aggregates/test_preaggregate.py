"""Partial sums: however rows are cut, and whatever of them was added up before, they come to the same."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millstream.kernel.aggregates.accumulators import ROWS, Linear
from millstream.kernel.aggregates.preaggregate import AT, ONE, Adder, Sums, together
from millstream.kernel.arrow import from_bytes, to_bytes
from millstream.kernel.exchange.chunk import Kind
from millstream.kernel.exchange.send import send
from millstream.kernel.kernel import State
from millstream.kernel.operators.aggregate import ReduceKernel
from millstream.kernel.state.store import NEVER, Memory, Meta
from millstream.kernel.zset import WEIGHT, weigh
from millstream.plan.spec import Measure, Reduce
from millstream.relation.nodes import WINDOW_COLUMNS, Aggregation, EventTime, Source
from tests.kernel import oracle
from tests.kernel.operators import test_aggregate
from tests.kernel.operators.test_aggregate import COLUMNS, SECOND, TYPES, aggregate_of, chain_of

few = settings(max_examples=15, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
seeds = given(seed=st.integers(0, (1 << 32) - 1))

START = WINDOW_COLUMNS[0]
WINDOWS = ((None, None), (60, None), (60, 20), (25, 10), (10, 30), (7, 3))
MEASURES = (
    Measure("n", "count", ()),
    Measure("some", "count", ("s",)),
    Measure("sum_i", "sum", ("i",)),
    Measure("sum_f", "sum", ("f",)),
    Measure("avg_d", "avg", ("d",)),
    Measure("values", "count_distinct", ("f",)),
    Measure("texts", "count_distinct", ("s",)),
)
EXTREMES = (Measure("least", "min", ("i",)), Measure("most", "max", ("s",)))


def check_sums(chance: Random) -> None:
    """Sums of sums are the sums of all rows, each put into its windows one by one."""
    size, every = (span and span * SECOND for span in chance.choice(WINDOWS))
    weighted = chance.random() < 0.5
    measures = tuple(chance.sample(MEASURES if weighted else MEASURES + EXTREMES, 4))
    spec = Reduce(chance.choice(((), ("k",), ("g", "k"))), measures, size, insert_only=not weighted, every=every)
    made = [test_aggregate.row(chance, -SECOND, integers=test_aggregate.HUGE) for _ in range(chance.randint(1, 40))]
    rows = pl.DataFrame(made, schema=TYPES).with_columns(pl.col("at").alias(START))
    if weighted:
        rows = rows.with_columns(pl.Series(WEIGHT, [chance.choice((-2, -1, 1, 3)) for _ in made], dtype=pl.Int64))
    adder = Adder(spec, rows.schema)

    parts, at = [], 0
    while at < rows.height:
        piece = rows.slice(at, chance.randint(1, rows.height))
        at += piece.height
        sums = adder.add_rows(piece)
        parts.append(adder.unpack(from_bytes(to_bytes(adder.pack(sums)))) if chance.random() < 0.7 else sums)
    chance.shuffle(parts)
    whole = parts[0]
    for part in parts[1:]:
        whole = together(whole, part)
    found = adder.in_windows(adder.add(whole))

    alone = in_windows(rows, spec).with_columns(pl.lit(0, pl.Int8).alias(ONE))
    group, linear = adder.group, Linear(spec, rows.schema)
    assert same(found.groups, linear.delta(alone, group))
    for name in linear.distinct:
        values = found.groups.select(group)[found.values[name][AT]].hstack(found.values[name].drop(AT))
        assert same(values, weigh(alone.drop_nulls(name), [*group, name], ROWS))


def in_windows(rows: pl.DataFrame, spec: Reduce) -> pl.DataFrame:
    """Each row once for each window, found by looking at all that could be."""
    if not spec.size:
        return rows
    size, every = spec.size, spec.every or spec.size
    found: list[dict[str, Any]] = []
    for row in rows.to_dicts():
        time = oracle.moment(row["at"])
        first = (time - size) // every * every
        starts = range(first, time + every, every)
        found += [{**row, START: oracle.stamp(start)} for start in starts if start <= time < start + size]
    return pl.DataFrame(found, schema=rows.schema)


def same(one: pl.DataFrame, other: pl.DataFrame) -> bool:
    """Whether two frames have the same rows, in whatever order; -0.0 is 0.0."""
    texts = []
    for frame in (one, other):
        texts.append(sorted(repr([0.0 if value == 0 else value for value in row]) for row in frame.rows()))
        assert sorted(frame.columns) == sorted(one.columns)
    return one.columns == other.columns and texts[0] == texts[1]


@seeds
@few
def test_sums_of_sums_are_the_sums_of_all_rows(seed: int) -> None:
    check_sums(Random(seed))


def test_a_million_sums_and_more_do_not_wrap() -> None:
    spec = Reduce((), (Measure("s", "sum", ("i",)),))
    adder = Adder(spec, pl.Schema({"i": pl.Int64}))
    one = adder.add_rows(pl.DataFrame({"i": [(1 << 42) - 1]}))
    many = 1 << 21 | 8
    total = adder.add(Sums(pl.concat([one.groups] * 8).select(pl.all().repeat_by(many // 8).explode()), {}))
    low, high = total.groups.row(0, named=True)["i_s_l0"], total.groups.row(0, named=True)["i_s_l1"]
    assert (high << 42) + low == many * ((1 << 42) - 1)


def sent(keys: int, *measures: Aggregation, rows: int = 2_000) -> list[Any]:
    """What a feed sends of rows with so many keys."""
    source = Source("stream", "t", "t", COLUMNS, time=EventTime("at", timedelta(0)))
    chain = chain_of(aggregate_of(source, ("k",), measures, 10 * SECOND), ())
    names = {each.expression: each.name for each in chain.feeds[0].expressions}
    times = [oracle.stamp(at * 10_000) for at in range(rows)]
    frame = pl.DataFrame(
        {names["k"]: [at % keys for at in range(rows)], names["at"]: pl.Series(times, dtype=TYPES["at"])}
    )
    for name in names.keys() & {"i", "f"}:
        frame = frame.with_columns(pl.Series(names[name], range(rows), dtype=TYPES[name]))
    return list(send(frame, chain.feeds[0].ports[0]))


COUNT, DISTINCT = Aggregation("n", "count"), Aggregation("d", "count_distinct", ("i",))


def test_few_groups_go_as_sums() -> None:
    chunks = sent(10, COUNT)
    assert {each.kind for each in chunks} == {Kind.SUMS}
    sums = pl.concat([from_bytes(each.data) for each in chunks])
    assert sums.height == 20  # ten keys in two windows
    assert sums["_n"].to_list() == [100] * 20


@pytest.mark.parametrize(
    ("keys", "measures"),
    [(2_000, (COUNT,)), (10, (COUNT, DISTINCT)), (10, (COUNT, Aggregation("all", "collect_list", ("i",))))],
    ids=["a group for each row", "a value for each row", "values are wanted as they are"],
)
def test_rows_go_where_sums_would_be_no_less(keys: int, measures: tuple[Aggregation, ...]) -> None:
    assert {each.kind for each in sent(keys, *measures)} == {Kind.CHANGES}


def test_a_kernel_takes_rows_and_sums_of_one_batch_and_of_one_after_the_other() -> None:
    spec = Reduce(
        ("k",), (Measure("n", "count", ()), Measure("d", "count_distinct", ("i",)), Measure("m", "max", ("i",)))
    )
    rows = pl.DataFrame({"k": [1, 1, 2, 2, 1, 2], "i": [5, 6, 7, 7, 5, 9]})
    adder, state = Adder(spec, rows.schema), State(Memory(), Meta(), NEVER, NEVER, rows.schema)
    sums = adder.pack(adder.add_rows(rows[2:5]))
    first = ReduceKernel(spec).step(state, rows[:2], sums)
    assert first is not None
    assert sorted(first.rows()) == [(1, 3, 2, 6, 1), (2, 2, 1, 7, 1)]
    state.tables.clear()
    second = ReduceKernel(spec).step(state, None, adder.pack(adder.add_rows(rows[5:])))
    assert second is not None
    assert sorted(second.rows()) == [(2, 2, 1, 7, -1), (2, 3, 2, 9, 1)]
