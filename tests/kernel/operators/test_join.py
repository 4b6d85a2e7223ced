"""Joins of tables, batch by batch, against all pairs of rows in plain Python."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millstream.errors import ExpressionFailed, PipelineError, PlanError
from millstream.kernel.operators import join
from millstream.kernel.schemas import input_frames
from millstream.plan.build import Chain, ViewPlan, build_chain
from millstream.plan.spec import Top as TopSpec
from millstream.relation.nodes import (
    Aggregate,
    Aggregation,
    Column,
    Equality,
    How,
    Join,
    Named,
    Node,
    Ordering,
    Select,
    Source,
    Top,
    Where,
    output_columns,
)
from tests.kernel import oracle
from tests.kernel.local import Local, Rec, hashable, types_by_name

few = settings(max_examples=4, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
seeds = given(seed=st.integers(0, (1 << 32) - 1))

PARTITIONS = 2
HOWS: tuple[How, ...] = ("inner", "left", "right", "full", "semi", "anti")
TYPES: dict[str, dict[str, Any]] = {
    "orders": {"id": pl.Int64, "user": pl.Float64, "v": pl.String},
    "users": {"uid": pl.Int64, "user": pl.Float64, "w": pl.Float64},
}
ORDERS = Source(
    "table", "orders", "orders", (Column("id", "long"), Column("user", "double"), Column("v", "string")), key=("id",)
)
USERS = Source(
    "table", "users", "users", (Column("uid", "long"), Column("user", "double"), Column("w", "double")), key=("uid",)
)
KEYS = (None, 0.0, -0.0, math.nan, 1.0, 2.0)
Row = dict[str, Any]


def chain_of(*nodes: Node, buckets: int = 2, key: Sequence[str] = ()) -> Chain:
    views = [ViewPlan(f"v{number}", node, "sqlite:x", "changes", tuple(key)) for number, node in enumerate(nodes)]
    return build_chain(views, buckets=buckets, to="sqlite:x")


def local(chain: Chain, seed: int = 0) -> Local:
    return Local(chain, PARTITIONS, types_by_name(chain, TYPES), seed)


def pairs(
    left: Sequence[Row], right: Sequence[Row], on: Sequence[tuple[str, str]], how: How
) -> list[tuple[Row | None, Row | None]]:
    """A join as SQL defines it: all pairs, then those that have none."""

    def equal(one: Row, other: Row) -> bool:
        keys = [(hashable(one[a]), hashable(other[b])) for a, b in on]
        return all(a is not None and b is not None and a == b for a, b in keys)

    if how in ("semi", "anti"):
        return [(one, None) for one in left if any(equal(one, other) for other in right) == (how == "semi")]
    made: list[tuple[Row | None, Row | None]] = [(a, b) for a in left for b in right if equal(a, b)]
    if how in ("left", "full"):
        made += [(a, None) for a in left if not any(equal(a, b) for b in right)]
    if how in ("right", "full"):
        made += [(None, b) for b in right if not any(equal(a, b) for a in left)]
    return made


def script(chance: Random, chain: Chain, keys: Sequence[Any] = KEYS) -> list[list[Rec]]:
    """Upserts and tombstones of both tables, in batches."""
    feeds = {feed.source.name: feed.number for feed in chain.feeds}
    following: Counter[tuple[int, int]] = Counter()
    made = []
    for _ in range(chance.randint(1, 6)):
        records = []
        for _ in range(chance.randint(0, 8)):
            name = chance.choice(sorted(feeds))
            key = "id" if name == "orders" else "uid"
            number = chance.randrange(5)
            values: Row = {key: number}
            deleted = chance.random() < 0.3
            if not deleted:
                values |= {
                    "user": chance.choice(keys),
                    "v": chance.choice(("a", "b", None)),
                    "w": chance.choice((None, 0.5, math.nan)),
                }
            place = feeds[name], number % PARTITIONS
            records.append(Rec(*place, following[place], values=values, deleted=deleted))
            following[place] += 1
        made.append(records)
    return made


def table(records: Sequence[Rec], feed: int, source: Source) -> list[Row]:
    rows = oracle.latest([each for each in records if each.feed == feed], source.key)
    return [{name: row.get(name) for name in output_columns(source)} for row in rows]


def check(chance: Random, how: How, merged: bool = True, buckets: int = 2) -> None:
    """After every batch the view is all pairs of what the tables hold then."""
    right = USERS if merged else Select(USERS, (Named("uid", "uid"), Named("of", "user"), Named("w", "w")))
    node = Join(ORDERS, right, (Equality("user", "user" if merged else "of", "user" if merged else ""),), how)
    chain = chain_of(node, buckets=buckets)
    running, seen = local(chain, chance.randrange(99)), []
    feeds = {feed.source.name: feed.number for feed in chain.feeds}
    for records in script(chance, chain):
        running.batch(records)
        seen += records
        left = table(seen, feeds["orders"], ORDERS)
        users = table(seen, feeds["users"], USERS) if "users" in feeds else []
        names = output_columns(node)
        expected: Counter[Any] = Counter()
        for one, other in pairs(left, users, [("user", "user")], how):
            other = other and {**other, "of": other["user"]}
            if other and not merged:
                del other["user"]
            row = {**dict.fromkeys(names), **{k: v for k, v in (other or {}).items() if k in names}}
            row |= {k: v for k, v in (one or {}).items() if k in names}
            expected[hashable(tuple(row[name] for name in names))] += 1
        assert running.view("v0") == expected


@few
@pytest.mark.parametrize("how", HOWS)
@seeds
def test_a_join_of_tables_is_all_pairs_of_their_rows(how: How, seed: int) -> None:
    check(Random(seed), how)


@few
@pytest.mark.parametrize("how", ["left", "full"])
@seeds
def test_columns_that_are_not_made_one_keep_their_nulls(how: How, seed: int) -> None:
    check(Random(seed), how, merged=False, buckets=3)


@few
@seeds
def test_a_join_does_not_depend_on_batches(seed: int) -> None:
    chance = Random(seed)
    chain = chain_of(Join(ORDERS, USERS, (Equality("user", "user", "user"),), "full"))
    batches = script(chance, chain)
    whole, parts = local(chain), local(chain, 1)
    whole.batch([each for records in batches for each in records])
    for records in batches:
        parts.batch(records)
    assert whole.view("v0") == parts.view("v0")


@few
@seeds
def test_a_table_joins_itself(seed: int) -> None:
    """Rows that are equal but for their key are pairs of each other and of themselves."""
    other = Select(ORDERS, (Named("other", "id"), Named("user", "user")))
    chain = chain_of(Join(ORDERS, other, (Equality("user", "user", "user"),), "left"))
    running, seen = local(chain), []
    assert len(chain.feeds) == 1
    for records in script(Random(seed), chain):
        running.batch(records)
        seen += records
        rows = table(seen, chain.feeds[0].number, ORDERS)
        expected = Counter(
            hashable((one["id"], one["user"], one["v"], other and other["id"]))
            for one, other in pairs(rows, rows, [("user", "user")], "left")
            if one is not None
        )
        assert running.view("v0") == expected


def mixed(chance: Random, batches: int) -> list[list[Rec]]:
    """Auctions and bids of one stream, in batches; some bids come before their auction, some have none."""
    made: list[list[Rec]] = []
    following: Counter[int] = Counter()
    for _ in range(batches):
        records = []
        for _ in range(chance.randint(0, 12)):
            place = chance.randrange(PARTITIONS)
            values = {
                "id": chance.choice((0, 1, 2, 3, None)),
                "user": float(chance.randrange(3)),
                "v": chance.choice("ab"),
            }
            records.append(Rec(0, place, following[place], values=values))
            following[place] += 1
        made.append(records)
    return made


@few
@pytest.mark.parametrize("how", HOWS)
@seeds
def test_streams_of_one_topic_are_joined_row_by_row_for_ever(how: How, seed: int) -> None:
    """Conditions and names on either side; and the same rows on both, which makes each the partner of itself."""
    chance = Random(seed)
    stream = replace(ORDERS, kind="stream", key=())
    bids = Select(Where(stream, "v = 'a'"), (Named("auction", "id"), Named("price", "user")))
    auctions = Select(Where(stream, "v = 'b' AND user > 0"), (Named("id", "id"), Named("seller", "user")))
    twin = Select(stream, (Named("i", "id"), Named("u", "user"), Named("w", "v")))
    joins = [
        Join(bids, auctions, (Equality("auction", "id"),), how),
        Join(stream, twin, (Equality("id", "i"), Equality("v", "w")), how),
    ]
    chain = chain_of(*joins)
    running, seen = local(chain), []
    assert len(chain.feeds) == 1
    assert all(each.stage == 1 for each in chain.operators)
    for records in mixed(chance, 4):
        running.batch(records)
        seen += [record.values for record in records]
        left = [{"auction": row["id"], "price": row["user"]} for row in seen if row["v"] == "a"]
        right = [{"id": row["id"], "seller": row["user"]} for row in seen if row["v"] == "b" and row["user"] > 0]
        twins = [{"i": row["id"], "u": row["user"], "w": row["v"]} for row in seen]
        for name, node, made in (
            ("v0", joins[0], pairs(left, right, [("auction", "id")], how)),
            ("v1", joins[1], pairs(seen, twins, [("id", "i"), ("v", "w")], how)),
        ):
            rows = [{**dict.fromkeys(output_columns(node)), **(one or {}), **(other or {})} for one, other in made]
            assert running.view(name) == Counter(tuple(row[each] for each in output_columns(node)) for row in rows)


@few
@seeds
def test_a_join_from_whose_sides_nothing_is_taken_back_takes_nothing_back(seed: int) -> None:
    """The bids of one topic with auctions of another, and the best of each: it keeps as many rows as there are auctions."""
    stream = replace(ORDERS, kind="stream", key=())
    other = Select(stream, (Named("i", "id"), Named("u", "user"), Named("w", "v")))
    joined = Join(stream, other, (Equality("id", "i"),), "inner")
    chain = chain_of(joined, Top(joined, 1, (Ordering("u", descending=True),), ("i",)))
    running = local(chain)
    top = next(each for each in chain.operators if isinstance(each.spec, TopSpec))
    for records in mixed(Random(seed), 5):
        running.batch(records)
        assert all(count > 0 for count in running.sent[-1].get("v0", Counter()).values())
        best: dict[Any, float] = {}
        for row, _ in running.view("v0").items():
            best[row[3]] = max(row[4], best.get(row[3], 0.0))
        assert {row[3]: row[4] for row in running.view("v1")} == best
        assert sum(held.rows for (number, _), held in running.held.items() if number == top.number) == len(best)


@few
@seeds
def test_an_aggregate_counts_as_a_table_and_a_join_can_be_aggregated(seed: int) -> None:
    spent = Aggregate(
        ORDERS, (Named("user", "user"),), None, (Aggregation("n", "count"), Aggregation("last", "max", ("v",)))
    )
    joined = Join(USERS, spent, (Equality("user", "user", "user"),), "left")
    total = Aggregate(
        joined, (Named("last", "last"),), None, (Aggregation("rows", "count"), Aggregation("all", "sum", ("n",)))
    )
    chain = chain_of(joined, total)
    running, seen = local(chain), []
    feeds = {feed.source.name: feed.number for feed in chain.feeds}
    for records in script(Random(seed), chain, (None, 0.0, 1.0, 2.0)):
        running.batch(records)
        seen += records
        groups: dict[Any, list[Row]] = {}
        for row in table(seen, feeds["orders"], ORDERS):
            groups.setdefault(hashable(row["user"]), []).append(row)
        aggregated = [
            {
                "user": rows[0]["user"],
                "n": len(rows),
                "last": max((r["v"] for r in rows if r["v"] is not None), default=None),
            }
            for rows in groups.values()
        ]
        users = table(seen, feeds["users"], USERS)
        joined_rows = [
            {**one, "n": other and other["n"], "last": other and other["last"]}
            for one, other in pairs(users, aggregated, [("user", "user")], "left")
            if one is not None
        ]
        names = output_columns(joined)
        assert running.view("v0") == Counter(hashable(tuple(row[name] for name in names)) for row in joined_rows)
        measures = (Aggregation("rows", "count"), Aggregation("all", "sum", ("n",)))
        assert running.view("v1") == oracle.reduce(joined_rows, ["last"], measures)


@few
@seeds
def test_what_touches_both_sides_is_computed_behind_the_join(seed: int) -> None:
    joined = Join(ORDERS, USERS, (Equality("user", "user", "user"),), "full")
    shown = Select(
        Where(joined, "id < uid OR uid IS NULL"),
        (Named("label", "coalesce(v, 'none')"), Named("both", "id + uid"), Named("user", "user")),
    )
    total = Aggregate(
        shown, (Named("label", "label"),), None, (Aggregation("n", "count"), Aggregation("s", "sum", ("both * 2",)))
    )
    again = Aggregate(Where(total, "n > 1"), (Named("n", "n % 3"),), None, (Aggregation("m", "sum", ("s + n",)),))
    chain = chain_of(total, again)
    running, seen = local(chain), []
    feeds = {feed.source.name: feed.number for feed in chain.feeds}
    for records in script(Random(seed), chain):
        running.batch(records)
        seen += records
        tables = table(seen, feeds["orders"], ORDERS), table(seen, feeds["users"], USERS)
        rows = []
        for one, other in pairs(*tables, [("user", "user")], "full"):
            a, b = one["id"] if one else None, other["uid"] if other else None
            if b is None or (a is not None and a < b):
                both = None if a is None or b is None else (a + b) * 2
                rows.append({"label": (one and one["v"]) or "none", "both": both})
        first = oracle.reduce(rows, ["label"], (Aggregation("n", "count"), Aggregation("s", "sum", ("both",))))
        assert running.view("v0") == first
        second = [{"n": n % 3, "s": None if s is None else s + n} for _, n, s in first if n > 1]
        assert running.view("v1") == oracle.reduce(second, ["n"], (Aggregation("m", "sum", ("s",)),))


def test_an_expression_that_fails_between_kernels_is_named() -> None:
    joined = Join(ORDERS, USERS, (Equality("user", "user", "user"),))
    chain = chain_of(Aggregate(joined, (Named("x", "id + uid"),), None, (Aggregation("n", "count"),)))
    feeds = {feed.source.name: feed.number for feed in chain.feeds}
    running = local(chain)
    running.batch([Rec(feeds["orders"], 0, 0, values={"id": (1 << 63) - 1, "user": 1.0})])
    with pytest.raises(ExpressionFailed, match=r"`id \+ uid` failed between two kernels, on 1 rows"):
        running.batch([Rec(feeds["users"], 0, 0, values={"uid": 1, "user": 1.0})])


def test_an_expression_that_only_spark_knows_is_refused_before_any_row_comes() -> None:
    joined = Join(ORDERS, USERS, (Equality("user", "user", "user"),))
    chain = chain_of(Aggregate(joined, (Named("x", "soundex(concat(v, uid))"),), None, (Aggregation("n", "count"),)))
    types = {feed.number: local(chain_of(joined)).host.types[feed.number] for feed in chain_of(joined).feeds}
    with pytest.raises(PlanError, match=r"soundex.* lies between two kernels"):
        input_frames(chain, types)


def test_what_is_over_one_side_is_computed_below_the_join_unless_nulls_would_differ() -> None:
    def computed(how: How, *texts: str) -> list[bool]:
        joined = Join(ORDERS, USERS, (Equality("user", "user", "user"),), how)
        keys = tuple(Named(f"x{number}", text) for number, text in enumerate(texts))
        chain = chain_of(Aggregate(joined, keys, None, (Aggregation("n", "count"),)))
        (port,) = next(each.ports for each in chain.operators if each.sides == 2)
        made = {each.name for each in port.computed}
        return [here in made for _, here in port.columns]

    texts = ("id + 1", "uid + 1", "user + 1", "id + uid", "user", "uid")
    assert computed("inner", *texts) == [False, False, False, True, False, False]
    assert computed("left", *texts) == [False, True, False, True, False, False]
    assert computed("right", *texts) == [True, False, False, True, False, False]
    assert computed("full", *texts) == [True, True, True, True, False, False]


def test_state_is_only_what_is_wanted() -> None:
    node = Select(Join(ORDERS, USERS, (Equality("user", "user", "user"),)), (Named("v", "v"),))
    chain = chain_of(node)
    (spec,) = (each.spec for each in chain.operators if each.sides == 2)
    assert (len(spec.left), len(spec.right)) == (1, 0)  # type: ignore[union-attr]


def test_keys_of_types_that_are_never_in_one_bucket_are_refused() -> None:
    chain = chain_of(Join(ORDERS, USERS, (Equality("v", "w"),), "semi"))
    with pytest.raises(PlanError, match=r"1. equality compares String with Float64"):
        local(chain).batch([Rec(chain.feeds[0].number, 0, 0, values={"id": 1, "v": "a"})])


def test_a_key_with_thousands_of_rows_on_both_sides_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "MOST", 50)
    chain = chain_of(Join(ORDERS, USERS, (Equality("user", "user", "user"),)))
    feeds = {feed.source.name: feed.number for feed in chain.feeds}
    records = [Rec(feeds["orders"], 0, i, values={"id": i, "user": 1.0}) for i in range(10)]
    records += [Rec(feeds["users"], 0, i, values={"uid": i, "user": float(i % 10)}) for i in range(20)]
    running = local(chain)
    running.batch(records)
    assert sum(running.view("v0").values()) == 20
    with pytest.raises(PipelineError, match=r"60 pairs .* at most 50 .* The key 1.0 has 10 rows with 6 partners each"):
        running.batch([Rec(feeds["users"], 0, 100 + i, values={"uid": 100 + i, "user": 1.0}) for i in range(6)])


def test_a_host_that_knows_no_types_says_so() -> None:
    running = local(chain_of(Join(ORDERS, USERS, (Equality("user", "user", "user"),))))
    running.host.types = {}
    with pytest.raises(PipelineError, match="needs the types of its input"):
        running.batch([Rec(running.chain.feeds[0].number, 0, 0, values={"id": 1, "user": 1.0})])


def test_only_the_keys_that_are_touched_are_read() -> None:
    chain = chain_of(Join(ORDERS, USERS, (Equality("user", "user", "user"),)), buckets=1)
    feeds = {feed.source.name: feed.number for feed in chain.feeds}
    running = local(chain)
    running.batch([Rec(feeds["orders"], 0, i, values={"id": i, "user": float(i), "v": "x"}) for i in range(500)])
    store = next(store for (stage, _, _), store in running.stores.items() if stage == 2)
    reads: list[int] = []
    usual = store.get
    store.get = lambda numbers: (reads.extend(numbers), usual(numbers))[1]  # type: ignore[method-assign]
    running.batch([Rec(feeds["users"], 0, 0, values={"uid": 1, "user": 7.0})])
    assert len(store.segments) > 20
    assert len(reads) <= 2


def test_two_views_over_one_join_share_it() -> None:
    node = Join(ORDERS, USERS, (Equality("user", "user", "user"),))
    again = replace(node, how="inner")
    chain = chain_of(node, Select(again, (Named("w", "w"),)))
    assert sum(each.sides == 2 for each in chain.operators) == 1
