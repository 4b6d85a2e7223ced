"""A table's changelog against a dictionary of the latest row of each key."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millstream.plan.build import Chain, ViewPlan, build_chain
from millstream.relation.nodes import Aggregate, Aggregation, Column, Named, Source, Where
from tests.kernel import oracle
from tests.kernel.local import Local, Rec, hashable, retracting

few = settings(max_examples=4, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
seeds = given(seed=st.integers(0, (1 << 32) - 1))

PARTITIONS = 3
COLUMNS = (Column("k", "double"), Column("l", "string"), Column("v", "double"), Column("n", "long"))
TYPES: dict[int, dict[str, Any]] = {0: {"k": pl.Float64, "l": pl.String, "v": pl.Float64, "n": pl.Int64}}
TABLE = Source("table", "prices", "prices", COLUMNS, key=("k", "l"))
KEYS = ((0.0, "a"), (-0.0, "a"), (math.nan, "a"), (-math.nan, "a"), (None, "a"), (1.0, None), (1.0, ""), (1.0, "b"))
VALUES = (None, 0.0, -0.0, math.nan, 1.5, -1e300)


def views_of(*views: ViewPlan) -> Chain:
    return build_chain(views, buckets=2, to="sqlite:x")


def view(node: Any, key: Sequence[str], name: str = "view") -> ViewPlan:
    return ViewPlan(name, node, "sqlite:x", "changes", tuple(key))


def upsert(partition: int, offset: int, key: tuple[Any, Any], v: Any = None, n: Any = None) -> Rec:
    return Rec(0, partition, offset, values={"k": key[0], "l": key[1], "v": v, "n": n})


def tombstone(partition: int, offset: int, key: tuple[Any, Any]) -> Rec:
    return Rec(0, partition, offset, values={"k": key[0], "l": key[1]}, deleted=True)


def script(chance: Random) -> list[list[Rec]]:
    """Upserts and tombstones; a key keeps to its partition, however its zero and its NaN are spelled."""
    following, made = [0] * PARTITIONS, []
    for _ in range(chance.randint(1, 6)):
        records = []
        for _ in range(chance.randint(1, 8)):
            key = chance.choice(KEYS)
            part = [hashable(each) for each in KEYS].index(hashable(key)) % PARTITIONS
            if chance.random() < 0.3:
                records.append(tombstone(part, following[part], key))
            else:
                records.append(
                    upsert(part, following[part], key, chance.choice(VALUES), chance.choice((None, 0, 1, 5)))
                )
            following[part] += chance.choice((1, 1, 7))
        made.append(records)
    return made


def rows_of(seen: Sequence[Rec]) -> Counter[tuple[Any, ...]]:
    return Counter(
        hashable(tuple(row[name] for name in ("k", "l", "v", "n"))) for row in oracle.latest(seen, ("k", "l"))
    )


def check_table(chance: Random, retract: bool = True, key: Sequence[str] = ("k", "l")) -> None:
    """A view of a table is the latest row of each key, and a batch that runs again says the same."""
    local = Local(retracting(views_of(view(TABLE, key)), retract), PARTITIONS, TYPES, chance.randrange(100))
    seen: list[Rec] = []
    for records in script(chance):
        before = rows_of(seen)
        seen += records
        again = local.copy()
        local.batch(records)
        again.batch(records)
        assert local.view("view") == rows_of(seen)
        sent = local.sent[-1].get("view", Counter())
        assert again.sent[-1].get("view", Counter()) == sent
        if retract:  # what is taken back was there, what is added was not: the difference, and nothing besides
            assert {row: n for row, n in sent.items() if n > 0} == dict(rows_of(seen) - before)
            assert {row: -n for row, n in sent.items() if n < 0} == dict(before - rows_of(seen))


@pytest.mark.parametrize(("retract", "key"), [(True, ("k", "l")), (True, ()), (False, ("k", "l"))])
@seeds
@few
def test_a_view_of_a_table_is_the_latest_row_of_each_key(retract: bool, key: Sequence[str], seed: int) -> None:
    check_table(Random(seed), retract, key)


def check_counted(chance: Random) -> None:
    """What a filter and an aggregate make of the changes is what they make of the table."""
    measures = (Aggregation("rows", "count"), Aggregation("v", "sum", ("v",)), Aggregation("least", "min", ("v",)))
    grouped = Aggregate(Where(TABLE, "n > 0"), (Named("l", "l"),), None, measures)
    local = Local(views_of(view(grouped, ("l",)), view(Where(TABLE, "n > 0"), ("k", "l"), "some")), PARTITIONS, TYPES)
    seen: list[Rec] = []
    for records in script(chance):
        seen += records
        local.batch(records)
        rows = [row for row in oracle.latest(seen, ("k", "l")) if (row["n"] or 0) > 0]
        assert local.view("view") == oracle.reduce(rows, ("l",), measures)
        assert local.view("some") == Counter(
            hashable(tuple(row[name] for name in ("k", "l", "v", "n"))) for row in rows
        )


@seeds
@few
def test_an_aggregate_over_a_filtered_table_is_what_recomputation_gives(seed: int) -> None:
    check_counted(Random(seed))


def sent_by(*batches: Sequence[Rec], retract: bool = True) -> list[dict[Any, int]]:
    local = Local(retracting(views_of(view(TABLE, ("k", "l"))), retract), PARTITIONS, TYPES)
    for batch in batches:
        local.batch(batch)
    return [dict(sent.get("view", {})) for sent in local.sent]


KEY = (1.0, "a")


@pytest.mark.parametrize("retract", [True, False])
@pytest.mark.parametrize("value", [None, 1.5, math.nan])
def test_an_upsert_that_changes_nothing_says_nothing(value: float | None, retract: bool) -> None:
    first, second = sent_by([upsert(0, 0, KEY, value, 1)], [upsert(0, 1, KEY, value, 1)], retract=retract)
    assert list(first.values()) == [1]
    assert second == {}


def test_an_update_takes_back_the_old_row_only_where_it_is_asked_to() -> None:
    old, new = (1.0, "a", 1.5, 1), (1.0, "a", 2.5, 1)
    batches = [upsert(0, 0, KEY, 1.5, 1)], [upsert(0, 1, KEY, 2.5, 1)]
    assert sent_by(*batches)[1] == {old: -1, new: 1}
    assert sent_by(*batches, retract=False)[1] == {new: 1}


@pytest.mark.parametrize("retract", [True, False])
def test_a_tombstone_takes_back_the_row_and_a_second_one_nothing(retract: bool) -> None:
    batches = [upsert(0, 0, KEY, 1.5, 1)], [tombstone(0, 1, KEY)], [tombstone(0, 2, KEY)]
    assert sent_by(*batches, retract=retract)[1:] == [{(1.0, "a", 1.5, 1): -1}, {}]


def test_of_several_upserts_in_one_batch_the_last_one_counts() -> None:
    batch = [upsert(0, 0, KEY, 1.0), tombstone(0, 1, KEY), upsert(0, 2, KEY, 3.0), upsert(0, 3, KEY, 2.0)]
    assert sent_by(batch) == [{(1.0, "a", 2.0, None): 1}]


def test_a_row_that_comes_and_goes_in_one_batch_was_never_there() -> None:
    assert sent_by([upsert(0, 0, KEY, 1.0), tombstone(0, 1, KEY)]) == [{}]
