"""Conditions moved down: views stay the same, less is kept, and nothing that can fail or is shared is moved."""

from __future__ import annotations

from collections import Counter
from random import Random

import polars as pl
import pytest

from millstream import Pipeline, Relation
from millstream.plan import build as chains
from millstream.plan.build import Chain, ViewPlan, build_chain
from millstream.plan.pushdown import pushed
from millstream.relation.kinds import Kinds
from millstream.relation.nodes import Join, Node, Where, inputs_of
from millstream.relation.predicate import is_safe, kinds_of, parts
from millstream.scalar.compile import compile_scalar
from millstream.window import tumbling
from tests.kernel import oracle
from tests.kernel.local import Rec
from tests.kernel.random_plan import SECOND, Run, condition, random_records, random_relation, renumbered, sources

SEEDS = 25


def plans(*relations: Relation) -> list[ViewPlan]:
    return [ViewPlan(f"v{number}", each.node, "sqlite:x", "changes", ()) for number, each in enumerate(relations)]


def unpushed(views: list[ViewPlan], buckets: int) -> Chain:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "pushed", lambda views: views)
        return build_chain(views, buckets=buckets, to="sqlite:x")


def check(chance: Random) -> tuple[int, int]:
    """Run random views with and without; give how many rows were kept by either in the end. Nothing moved: (0, 0)."""
    it = sources()
    relations = []
    for _ in range(chance.randint(1, 3)):
        found = random_relation(chance, it, chance.randint(1, 4))
        relations.append(found.where(condition(chance, found)))
        if chance.random() < 0.3:
            relations.append(found.where(condition(chance, found)).distinct())
    views, buckets = plans(*relations), chance.choice((1, 3))
    if pushed(views) == views:
        return 0, 0
    partitions = chance.randint(1, 2)
    runs = [Run(made, partitions) for made in (unpushed(views, buckets), build_chain(views, buckets=buckets, to="x"))]
    plain, moved = runs
    for batch in random_records(chance, plain.chain, partitions):
        plain.local.batch(batch)
        moved.local.batch(renumbered(batch, plain.chain, moved.chain))
        assert moved.views() == plain.views()
    for each in runs:
        each.local.close()
    assert moved.views() == plain.views()
    return plain.local.state_rows, moved.local.state_rows


@pytest.mark.parametrize("part", range(2))
def test_views_are_the_same_wherever_conditions_are_computed(part: int) -> None:
    kept: Counter[str] = Counter()
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        plain, moved = check(Random(seed))
        kept["plain"] += plain
        kept["moved"] += moved
        kept["times"] += bool(plain)
    assert kept["times"] > SEEDS / 10
    assert kept["moved"] < kept["plain"]


def conditions(node: Node, above: str = "") -> dict[str, str]:
    """Each condition, and under what it stands: the nodes above it, without selects and conditions."""
    found = {}
    if isinstance(node, Where):
        found[node.condition] = above
    kernel = (
        "" if isinstance(node, Where) or not inputs_of(node) or type(node).__name__ == "Select" else type(node).__name__
    )
    for side, each in enumerate(inputs_of(node)):
        name = f"{above}/{kernel}{side if len(inputs_of(node)) > 1 else ''}" if kernel else above
        found |= conditions(each, name)
    return found


def moved(relation: Relation, *others: Relation) -> dict[str, str]:
    return conditions(pushed(plans(relation, *others))[0].node)


A, B, T = sources().values()
U = T.select("id AS k", "name")
PER_K = A.group_by("k").agg(n="count(*)", m="max(v)")
OTHER = B.select("k AS j", "w", "at AS bt")
NEAR = ("0 seconds", "5 seconds")
PLACES: dict[str, tuple[Relation, dict[str, str]]] = {
    "a key": (PER_K.where("k > 1 AND n > 2"), {"n > 2": "", "k > 1": "/Aggregate"}),
    "a key under another name": (A.group_by("k AS x", "g").agg(n="count(*)").where("x > 1"), {"k > 1": "/Aggregate"}),
    "a computed key": (A.group_by("k + 1 AS x").agg(n="count(*)").where("x > 1"), {"x > 1": ""}),
    "a key through a select": (PER_K.select("k AS x", "n").where("x > 1"), {"k > 1": "/Aggregate"}),
    "a key below a condition": (PER_K.where("n > 1").where("k > 1"), {"n > 1": "", "k > 1": "/Aggregate"}),
    "two aggregates": (PER_K.group_by("k").agg(s="sum(n)").where("k = 1"), {"k = 1": "/Aggregate/Aggregate"}),
    "a window": (A.group_by("k", tumbling("at", "1 minute")).agg(n="count(*)").where("k = 1 AND window_start < window_end"),
                 {"window_start < window_end": "", "k = 1": "/Aggregate"}),
    "all of distinct": (A.select("k", "g").distinct().where("k = 1 AND g = 'a'"), {"k = 1": "/Aggregate", "g = 'a'": "/Aggregate"}),
    "each side": (A.join(OTHER, "k = j", within=NEAR).where("g = 'a' AND w > 1 AND v > w"),
                  {"v > w": "", "g = 'a'": "/Join0", "w > 1": "/Join1"}),
    "left": (A.join(OTHER, "k = j", "left", within=NEAR).where("g = 'a' AND w > 1"), {"w > 1": "", "g = 'a'": "/Join0"}),
    "right": (A.join(OTHER, "k = j", "right", within=NEAR).where("g = 'a' AND w > 1"), {"g = 'a'": "", "w > 1": "/Join1"}),
    "full": (PER_K.join(T, "k = id", "full").where("k = 1 AND id = 1"), {"k = 1 AND id = 1": ""}),
    "anti": (PER_K.join(T, "k = id", "anti").where("k = 1"), {"k = 1": "/Join0/Aggregate"}),
    "a shared key": (PER_K.join(U, "k", "inner").where("k = 1"), {"k = 1": "/Join1"}),
    "as of": (A.join(T, "k = id", as_of="at").where("name = 'a'"), {"name = 'a'": "/Join1"}),
    "as of, left": (A.join(T, "k = id", "left", as_of="at").where("name = 'a'"), {"name = 'a'": ""}),
    "a union": (PER_K.select("k").union(B.select("k")).where("k = 1"), {"k = 1": "/Union1"}),
    "explode": (A.explode("tags", as_="tag").where("tag = 'x' AND k = 1"), {"tag = 'x'": "", "k = 1": "/Explode"}),
    "unpivot": (A.unpivot(["k AS x", "at"], ["k", "v"], "name", "value").where("x = 1 AND name = 'v' AND value > 1"),
                {"name = 'v' AND value > 1": "", "k = 1": "/Unpivot"}),
    "top": (A.top(2, by="v", per="k").where("k = 1 AND g = 'a'"), {"g = 'a'": "", "k = 1": "/Top"}),
    "top of all": (A.top(2, by="v").where("k = 1"), {"k = 1": ""}),
    "over": (A.over("k", order="at").add(p="lag(v)").where("k = 1 AND g = 'a'"), {"g = 'a'": "", "k = 1": "/Over"}),
    "deduplicate": (A.deduplicate("k", "1 minute").where("k = 1 AND g = 'a'"), {"g = 'a'": "", "k = 1": "/Deduplicate"}),
    "match": (A.match("X Y", None, {"n": "Y.v"}, partition=["k AS user"], order="at").where("user = 1 AND n = 2"), {"n = 2": "", "k = 1": "/Match"}),
    "no column": (PER_K.where("true"), {"true": ""}),
    "one that can fail": (PER_K.where("1 / k > 1 AND k = '1' AND k = 2"), {"1 / k > 1 AND k = '1'": "", "k = 2": "/Aggregate"}),
    "or": (PER_K.where("k = 1 OR n = 2 AND k = 3"), {"k = 1 OR n = 2 AND k = 3": ""}),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_a_condition_goes_where_it_is_about_the_same_rows(name: str) -> None:
    relation, expected = PLACES[name]
    assert moved(relation) == expected
    build_chain(plans(relation), buckets=2, to="sqlite:x")


def test_a_key_that_both_sides_share_keeps_rows_of_both_out() -> None:
    (view,) = pushed(plans(PER_K.join(U, "k", "full").where("k = 1")))
    assert isinstance(view.node, Join)
    assert view.node.left == A.where("k = 1").group_by("k").agg(n="count(*)", m="max(v)").node
    assert view.node.right == U.where("k = 1").node


def test_a_key_of_which_the_sides_have_other_types_stays() -> None:
    other = B.group_by("w AS k").agg(m="count(*)")
    assert moved(PER_K.select("k", "n").join(other, "k").where("k = 1")) == {"k = 1": ""}


def test_every_part_of_a_union_is_kept_small() -> None:
    (view,) = pushed(plans(A.select("k", "g").union(B.select("k AS K", "'x' AS g")).where("k = 1")))
    assert view.node == A.select("k", "g").where("k = 1").union(B.select("k AS K", "'x' AS g").where("k = 1")).node


def test_what_two_use_is_not_split() -> None:
    condition = {"k = 1": ""}
    assert moved(PER_K.where("k = 1"), PER_K) == condition
    assert moved(PER_K.where("k = 1"), PER_K.where("k = 2")) == condition
    assert moved(PER_K.select("k").where("k = 1"), PER_K.select("k")) == condition
    assert moved(PER_K.where("k = 1"), PER_K.group_by("n").agg(c="count(*)")) == condition
    twice = PER_K.join(PER_K.select("k AS j", "n AS other"), "k = j").where("k = 1")
    assert moved(twice) == {"k = 1": "/Join0"}
    itself = PER_K.join(PER_K, "k", "semi").where("k = 1")
    assert moved(itself) == {"k = 1": "/Join1"}  # on both sides, above what they share
    for relation in (twice, itself):
        made = build_chain(plans(relation), buckets=2, to="sqlite:x")
        assert len(made.operators) == 2


def test_two_views_of_one_condition_share_what_is_below_it() -> None:
    made = build_chain(plans(PER_K.where("k = 1"), PER_K.where("k = 1").select("n")), buckets=2, to="sqlite:x")
    assert len(made.operators) == 1
    assert made.feeds[0].ports[0].keep is not None


def test_there_is_room_for_so_many_words_between_kernels() -> None:
    long = PER_K.join(T, "k = id").where(" AND ".join(f"n <> {number}" for number in range(60)))
    (view,) = pushed(plans(long))
    below = [text for text, place in conditions(view.node).items() if place]
    assert 5 < len(below) < 60
    Run(build_chain(plans(long.group_by("n").agg(c="count(*)")), buckets=2, to="sqlite:x"), 1)


def test_a_condition_that_fails_meets_only_the_rows_it_was_written_for() -> None:
    joined = A.join(T, "k = id", as_of="at").where("10 / k > 1").group_by("g").agg(n="count(*)")
    made = Run(build_chain(plans(joined), buckets=1, to="sqlite:x"), 1)
    feeds = {feed.source.name: feed.number for feed in made.chain.feeds}
    rows = [{"k": k, "g": "a", "v": 1.0, "tags": None, "at": oracle.stamp(1000 * SECOND)} for k in (0, 1)]
    made.local.batch([Rec(feeds["t"], 0, 0, 0, {"id": 1, "name": "x"}, stamp=0)])
    made.local.batch([Rec(feeds["a"], 0, place, 2000 * SECOND, row) for place, row in enumerate(rows)])
    assert made.views() == {"v0": Counter({("a", 1): 1})}


# conditions


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", ("a",)),
        ("a AND b", ("a", "b")),
        ("a and (b AND c) AND NOT d", ("a", "(b AND c)", "NOT d")),
        ("a BETWEEN 1 AND 2 AND b NOT BETWEEN 3 AND 4", ("a BETWEEN 1 AND 2", "b NOT BETWEEN 3 AND 4")),
        ("CASE WHEN a AND b THEN c END AND d", ("CASE WHEN a AND b THEN c END", "d")),
        ("a AND b OR c", ("a AND b OR c",)),
        ("exists(x, y -> y AND z) AND a -- AND\n AND b", ("exists(x, y -> y AND z)", "a", "b")),
    ],
)
def test_a_condition_is_cut_at_and(text: str, expected: tuple[str, ...]) -> None:
    assert parts(text) == expected


KINDS: Kinds = {
    "i": "integer", "j": "integer", "d": "double", "s": "text", "t": "text", "b": "boolean", "on day": "date", "at": "timestamp",
}  # fmt: skip
DTYPES = {
    "integer": pl.Int64(), "double": pl.Float64(), "text": pl.String(), "boolean": pl.Boolean(), "date": pl.Date(),
    "timestamp": pl.Datetime("us", "UTC"),
}  # fmt: skip
POLARS = {
    "i": pl.Int8(), "j": pl.Int64(), "d": pl.Float64(), "s": pl.String(), "t": pl.String(), "b": pl.Boolean(), "on day": pl.Date(),
    "at": pl.Datetime("us", "UTC"), "_x": pl.Decimal(10, 2), "m": pl.Int64(),
}  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["i = 1", "i <> -1", "1 < j", "I <= J", "d > 1.5", "d = 2", "i < d", "s = t", "s >= 'a'", "b", "NOT b", "b = true", "at < at",
     "`on day` IS NULL", "`on day` = `on day`", "d IS NOT NULL", "i BETWEEN 1 AND j", "s NOT BETWEEN 'a' AND 'b'", "i IN (1, -2)",
     "s NOT IN ('a')", "(i = 1 OR NOT (s = 'a' AND b)) AND d < 3", "i <=> 3"],
)  # fmt: skip
def test_a_condition_that_is_safe_has_an_answer_for_every_row_between_kernels_too(text: str) -> None:
    assert is_safe(text, KINDS)
    scalar = compile_scalar(text, POLARS)
    assert scalar is not None
    assert scalar.unsure is None


@pytest.mark.parametrize(
    "text",
    ["i = '1'", "s = 1", "i + 1 = 2", "1 / i > 0", "-i > 0", "cast(s AS int) = 1", "s::int = 1", "length(s) > 1", "s LIKE 'a%'", "i",
     "i = 1.5", "1.5 = 1.5", "d IN (0, 1)", "i IN (1, j)", "i IN (1, `j`)", "i IN (1, 'a')", "i IN (1, NULL)", "i = NULL", "_x > 1", "m = 1", "i = 1 -- x",
     "s = 'it''s'", r"s = 'a\\'", "i = 1L", "i = 99999999999999999999", "at > '2024-01-01'", "`on day` < at", "b = 1", "i = 1 = b",
     "i NOT = 1", "(i = 1", "i.x = 1", "i(1)", "", "i BETWEEN 1 AND", "i IN (", "NOT", "b AND"],
)  # fmt: skip
def test_any_other_condition_is_not(text: str) -> None:
    assert not is_safe(text, KINDS)


NESTED = Pipeline("nested").stream(
    "n",
    "k int, bid struct<Price: bigint, deep: struct<`on`: string, page: string>, `a.b`: int, m: map<string, int>, end: int>",
)


@pytest.mark.parametrize(
    "text",
    ["bid.price = 10", "BID.Price > 1", "bid.deep.page = 'x'", "`bid`.`deep`.`on` <> 'x'", "bid.price IN (1, 2)", "bid.price = k", "bid.end < 2"],
)  # fmt: skip
def test_fields_of_a_struct_have_the_types_that_were_declared(text: str) -> None:
    kinds = kinds_of(NESTED.node)
    assert is_safe(text, kinds)
    scalar = compile_scalar(text, {name: DTYPES[kind] for name, kind in kinds.items()})
    assert scalar is not None
    assert scalar.unsure is None
    (feed,) = build_chain(plans(NESTED.where("k > 0").where(text)), buckets=2, to="sqlite:x").feeds
    assert [each.guard for each in feed.expressions if text in each.expression] == [""]


@pytest.mark.parametrize(
    "text",
    ["bid.price = '1'", "bid.nope = 1", "bid = 1", "bid.deep = 1", "bid.`a.b` = 1", "bid.m = 1", "bid.price[0] = 1",
     "bid.price.x = 1", "bid.price::int = 1", "bid. = 1", "`bid.price` = 1.5"],
)  # fmt: skip
def test_anything_else_behind_a_dot_is_not_known(text: str) -> None:
    assert not is_safe(text, kinds_of(NESTED.node))


def test_a_condition_on_a_field_goes_to_the_feed_and_never_between_two_kernels() -> None:
    bids = NESTED.select("k", "bid.price AS price")
    assert moved(bids.join(T, "k = id", latest=True).where("price = 10")) == {"price = 10": "/Join0"}
    assert moved(NESTED.top(2, by="k", per="bid").where("bid.price = 10")) == {"bid.price = 10": ""}


def test_random_conditions_are_safe_and_can_be_computed_between_kernels() -> None:
    chance = Random(1)
    found = 0
    for _ in range(300):
        relation = random_relation(chance, sources(), 1)
        text, kinds = condition(chance, relation), kinds_of(relation.node)
        if is_safe(text, kinds) and kinds:
            found += 1
            scalar = compile_scalar(text, {name: DTYPES[kind] for name, kind in kinds.items()})
            assert scalar is not None
            assert scalar.unsure is None
    assert found > 200
