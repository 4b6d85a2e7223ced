"""Neighbours fused: views stay the same in every batch, and what needs no shuffle has none."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from millstream import Pipeline, Relation
from millstream.explain.explain import explain_chain
from millstream.frame import rows, span
from millstream.plan import build as chains
from millstream.plan.build import Chain, ViewPlan, build_chain
from millstream.plan.chain import Feed, Operator
from millstream.plan.spec import Reduce
from millstream.plan.state_layout import layout
from millstream.relation.properties import has_window
from millstream.window import tumbling
from tests.kernel.random_plan import Run, condition, random_records, random_relation, sources

SEEDS = 25


def plans(*relations: Relation, emit: Any = "changes") -> list[ViewPlan]:
    return [
        ViewPlan(f"v{number}", each.node, "sqlite:x", emit if has_window(each.node) else "changes", ())
        for number, each in enumerate(relations)
    ]


def fused(*relations: Relation, emit: Any = "changes", buckets: int = 4) -> Chain:
    return build_chain(plans(*relations, emit=emit), buckets=buckets, to="sqlite:x")


def unfused(views: list[ViewPlan], buckets: int, tasks: int) -> Chain:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "fuse", lambda chain: chain)
        return build_chain(views, buckets=buckets, to="sqlite:x", tasks=tasks)


def random_views(chance: Random) -> list[Relation]:
    it = sources()
    relations = [random_relation(chance, it, chance.randint(2, 5)) for _ in range(chance.randint(1, 3))]
    return [each.where(condition(chance, each)) if chance.random() < 0.3 else each for each in relations]


def check(chance: Random, relations: list[Relation]) -> bool:
    """Run random views with and without, and say whether anything was fused by key."""
    views, buckets = plans(*relations, emit=chance.choice(("changes", "final"))), chance.choice((1, 3))
    partitions, tasks = chance.randint(1, 2), chance.randint(1, 2)
    one, other = unfused(views, buckets, tasks), build_chain(views, buckets=buckets, to="sqlite:x", tasks=tasks)
    if all(each.step is None for each in other.operators):
        return False
    plain, near = Run(one, partitions), Run(other, partitions)
    for batch in random_records(chance, one, partitions):
        plain.local.batch(batch)
        near.local.batch(batch)
        assert near.views() == plain.views()
        if (
            buckets == 1
        ):  # what lies in a segment with newer rows is forgotten with these, and buckets are cut otherwise
            assert near.local.state_rows == plain.local.state_rows
    plain.local.close()
    near.local.close()
    assert near.views() == plain.views()
    return True


@pytest.mark.parametrize("part", range(2))
def test_views_are_the_same_in_every_batch(part: int) -> None:
    assert (
        sum(check(chance := Random(seed), random_views(chance)) for seed in range(part * SEEDS, (part + 1) * SEEDS))
        > SEEDS / 10
    )


A, B, T = sources().values()
PER_K = A.group_by("k").agg(n="count(*)")
WINDOWS = A.group_by("k", tumbling("at", "1 minute")).agg(n="count(*)")
NEAR = A.join(B.select("k AS j", "w", "at AS bt"), "k = j", within="5 seconds")
LEFT = A.join(B.select("k AS j", "w", "at AS bt"), "k = j", "left", within="5 seconds")
SAME: dict[str, Relation] = {
    "the same key": WINDOWS.over("k", order="window_start", frame=rows(2)).add(s="sum(n)"),
    "the key under another name": PER_K.select("k AS x", "n").group_by("x").agg(s="sum(n)"),
    "more than the key": PER_K.group_by("n", "k").agg(c="count(*)"),
    "top": WINDOWS.top(1, by="n DESC", per="k"),
    "nothing": A.top(3, by="v").group_by().agg(n="count(*)"),
    "behind deduplicate": A.deduplicate("k", "1 minute").group_by("k").agg(n="count(*)"),
    "a key of a join": NEAR.group_by("k").agg(n="count(*)"),
    "the key of its right": NEAR.group_by("j").agg(n="count(*)"),
    "the key of an outer join": LEFT.group_by("k").agg(n="count(*)"),
    "a table's with itself": PER_K.join(PER_K.select("k AS j", "n AS m"), "k = j"),
}
APART: dict[str, Relation] = {
    "another key": PER_K.group_by("n").agg(c="count(*)"),
    "less than the key": A.group_by("k", "g").agg(n="count(*)").group_by("k").agg(c="count(*)"),
    "a key that is computed": PER_K.group_by("k + 0 AS k").agg(c="count(*)"),
    "a key that was computed": A.over("k + 1", order="at").add(p="lag(v)").group_by("k").agg(c="count(*)"),
    "the null side of a join": LEFT.group_by("j").agg(n="count(*)"),
    "everything": PER_K.group_by().agg(c="count(*)"),
    "apart after everything": A.top(3, by="v").group_by("k").agg(n="count(*)"),
}


PER_KG = A.group_by("k", "g").agg(n="count(*)", s="sum(v)")
PER_J = B.group_by("k AS j").agg(m="count(*)")
STARTS = A.windowed(tumbling("at", "20 seconds")).group_by("k", "g", "window_start").agg(n="count(*)")
ENDS = B.windowed(tumbling("at", "20 seconds")).group_by("k AS j", "window_start AS ws").agg(m="count(*)")
TURNED = B.windowed(tumbling("at", "20 seconds")).group_by("window_start AS ws", "k AS j").agg(m="count(*)")
NAMES = T.select("id", "name")
PAIRS = A.group_by("k", "g", "k % 2 AS l").agg(n="count(*)")
MEET: dict[str, Relation] = {
    "groups of the same key": PER_K.join(PER_J, "k = j"),
    "a stream and a table": A.join(NAMES, "k = id"),
    "a stream and the table as it is": A.join(NAMES, "k = id", latest=True),
    "a table and a stream": NAMES.join(A, "id = k", "left"),
    "a group and a table": PER_K.join(NAMES, "k = id", "full"),
    "a stream and groups": A.join(PER_J, "k = j", "anti"),
    "a join and a table": A.join(B.select("k AS j", "w", "at AS bt"), "k = j", within="5 seconds").join(
        NAMES, "j = id"
    ),
    "groups of more than the join is on": PER_KG.join(PER_J, "k = j"),
    "groups of more on both sides": PER_KG.join(B.group_by("k AS j", "w").agg(m="count(*)"), "k = j", "right"),
    "groups in windows": STARTS.join(ENDS, "k = j AND window_start = ws"),
    "keys in another order": STARTS.join(ENDS, "window_start = ws AND k = j"),
    "a key that both have": PER_K.join(B.group_by("k").agg(m="count(*)"), "k"),
    "keys in two orders": STARTS.join(TURNED, "k = j AND window_start = ws"),
    "a stream and groups of two keys": A.join(B.group_by("w", "k AS j").agg(m="count(*)"), "k = j AND v = w", "left"),
    "a key that is two of the other's": PER_K.join(PAIRS.select("k AS j", "l"), "k = j AND k = l"),
    "more than one side goes by": A.join(B.group_by("k AS j").agg(m="min(w)"), "k = j AND v = m"),
    "a union and a table": A.select("k").union(B.select("k")).join(NAMES, "k = id"),
    "three": PER_K.join(PER_J, "k = j").join(NAMES, "j = id"),
}
ALONE: dict[str, Relation] = {
    "windows alone": STARTS.join(ENDS, "window_start = ws"),
    "a part of what is first": A.top(1, by="v", per=("k", "g")).join(PER_J, "k = j"),
    "a part of what is first, twice": A.top(1, by="v", per=("k", "g")).join(
        PAIRS.select("k AS j", "l"), "k = j AND k = l"
    ),
    "a part of what does not add up": A.group_by("k", "g").agg(n="median(v)").join(PER_J, "k = j"),
    "a key that is computed": PER_K.join(PER_J, "k + 1 = j"),
    "a value, not a key": PER_K.join(PER_J, "n = m"),
    "a key of one alone": PER_K.join(PER_J, "k = m"),
    "two keys of one group": PAIRS.join(PAIRS.select("k AS j", "l AS h", "n AS m"), "k = h"),
    "a union of what it makes": PER_K.union(PER_K).join(PER_J, "k = j"),
}


@pytest.mark.parametrize("name", MEET)
def test_a_join_runs_beside_its_sides(name: str) -> None:
    made = fused(MEET[name])
    join = made.operators[-1]
    kernels = [each for each in made.operators if not each.passes]
    assert {(each.stage, each.leader) for each in kernels} == {(1, kernels[0].number)}
    assert join.step == kernels[0].number
    makers: list[Feed | Operator] = [*made.feeds, *made.operators]
    for maker in makers:
        for port in maker.ports:
            if port.target in {each.number for each in kernels} and maker not in kernels:
                assert (port.leader, port.buckets) == (join.step, 4)
                spec = next(each.spec for each in kernels if each.number == port.target)
                assert port.sums == (spec if isinstance(spec, Reduce) else None)
    for seed in range(4):
        assert check(Random(seed), [MEET[name]])


@pytest.mark.parametrize("name", ALONE)
def test_a_join_that_cannot_is_in_the_next_stage(name: str) -> None:
    made = fused(ALONE[name])
    assert made.operators[-1].stage == 2
    assert made.operators[-1].step is None


@pytest.mark.parametrize("part", range(2))
def test_joins_that_share_their_sides_are_the_same_in_every_batch(part: int) -> None:
    relations = [*MEET.values(), *ALONE.values(), STARTS, ENDS.group_by("j", "ws").agg(m="sum(m)"), NEAR]
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        chance = Random(seed)
        check(chance, chance.sample(relations, chance.randint(2, 4)))


def test_who_joins_one_of_two_that_have_met_runs_beside_both() -> None:
    made = fused(PER_K.join(PER_J, "k = j"), PER_J.join(NAMES, "j = id"))
    assert {each.leader for each in made.operators} == {made.operators[0].number}
    assert made.stages == (0, 1)


def test_sides_that_come_one_stage_apart_meet_in_the_later_one() -> None:
    made = fused(PER_K.group_by("n").agg(c="count(*)").join(PER_J, "n = j"))
    assert [(each.stage, each.step) for each in made.operators] == [(1, None), (2, None), (1, None), (2, 2)]
    assert made.operators[2].ports[0].leader == made.operators[1].number


def test_a_table_is_spread_by_the_part_of_its_key_that_a_join_is_on() -> None:
    pipeline = Pipeline("p")
    prices = pipeline.table("prices", "item long, shop string, price double", key=("item", "shop"))
    made = fused(pipeline.stream("sales", "item long").select("item AS i").join(prices, "i = item", latest=True))
    assert {each.stage for each in made.operators} == {1}
    assert {port.spread for feed in made.feeds for port in feed.ports} == {("item",), ("_k0",)}


def test_a_second_join_on_another_key_is_in_the_next_stage() -> None:
    made = fused(A.join(NAMES, "k = id").join(B.group_by("w").agg(m="count(*)"), "v = w"))
    assert [each.stage for each in made.operators] == [1, 1, 1, 2]


@pytest.mark.parametrize("name", SAME)
def test_a_kernel_whose_key_has_the_key_before_it_runs_in_its_step(name: str) -> None:
    made = fused(SAME[name])
    *_, first, second = made.operators
    assert (second.step, second.stage, second.leader) == (first.number, first.stage, first.number)
    assert made.stages[-1] == first.stage
    assert all((port.buckets, port.spread) == (1, ()) for port in first.ports if port.target == second.number)
    assert "in the same step as " in str(explain_chain("shop", made))
    assert f"with {first.number} (" in layout(made)[str(second.number)]


@pytest.mark.parametrize("name", APART)
def test_any_other_is_in_a_stage_of_its_own(name: str) -> None:
    made = fused(APART[name])
    assert all(each.step is None for each in made.operators)
    assert made.operators[-1].stage == made.operators[0].stage + 1
    assert "same step" not in str(explain_chain("shop", made))


def test_a_step_may_have_many_and_a_stage_follows_it() -> None:
    last = WINDOWS.over("k", order="window_start").add(p="lag(n)").top(1, by="n", per="k")
    made = fused(last.group_by("n").agg(c="count(*)"))
    leader = made.operators[0].number
    assert [each.step for each in made.operators] == [None, leader, leader, None]
    assert [each.stage for each in made.operators] == [1, 1, 1, 2]
    assert made.stages == (0, 1, 2)


def test_an_unpivot_runs_where_its_rows_are_made() -> None:
    made = fused(WINDOWS.unpivot("window_start", ["k", "n"], "name", "value").group_by("name").agg(c="count(*)"))
    assert made.stages == (0, 1, 2)
    assert (
        "each row once for each of k and n: its name as name, its value as value  [stage 1, in the same step as"
        in str(explain_chain("shop", made))
    )


def test_matches_run_beside_kernels_of_their_partition() -> None:
    sums = A.over("k", order="at", frame=span("1 minute")).add(s="sum(v)")
    matches = sums.match("X Y", {"Y": "Y.s > X.s"}, {"s": "Y.s"}, partition="k", order="at", within="1 minute")
    assert fused(matches).stages == (0, 1)
    assert fused(matches.group_by("k").agg(n="count(*)")).stages == (0, 1)
    assert fused(matches.group_by("s").agg(n="count(*)")).stages == (0, 1, 2)


def test_union_and_explode_have_no_stage_of_their_own() -> None:
    both = A.select("k", "at").union(B.select("k", "at"))
    made = fused(both.group_by("k", tumbling("at", "1 minute")).agg(n="count(*)"))
    assert made.stages == (0, 1)
    made = fused(WINDOWS.select("k", "n").union(WINDOWS.select("k", "n + 1 AS n")).group_by("n").agg(c="count(*)"))
    assert made.stages == (0, 1, 2)
    made = fused(A.explode("tags", as_="tag"), T.select("id").union(T.select("id")))
    assert made.stages == (0, 1)
    text = str(explain_chain("shop", made))
    assert "as tag  [admission, in the same step as stream a]" in text
    assert "the rows of all inputs  [stage 1, in the same step as table]" in text


def test_marks_come_out_of_a_step_in_the_buckets_of_its_leader() -> None:
    first = A.deduplicate("k", "1 second").over("k", order="at", frame=span("5 seconds")).add(s="count(*)")
    last = first.group_by("s", tumbling("at", "1 minute")).agg(n="count(*)")
    made = build_chain(plans(last, emit="final"), buckets=3, to="sqlite:x", tasks=2)
    leader, follower, _ = made.operators
    assert (follower.step, made.stages) == (leader.number, (0, 1, 2))
    ran = Run(made, 1)
    for batch in random_records(Random(3), made, 1):
        ran.local.batch(batch)
    ran.local.close()
    assert sum(n for *_, n in ran.views()["v0"]) > 3


def test_kernels_of_a_step_are_restarted_from_one_store() -> None:
    chance = Random(7)
    made = fused(SAME["the same key"], SAME["top"], buckets=2)
    straight, copied = Run(made, 1), Run(made, 1)
    for batch in random_records(chance, made, 1):
        straight.local.batch(batch)
        copied.local = copied.local.copy()
        copied.local.host = type(copied.local.host)(made, copied.local.host.partitions, copied.local.host.types)
        copied.local.batch(batch)
        assert copied.views() == straight.views()
    kernels = {target for (stage, target, _), store in straight.local.stores.items() if stage and store.meta()}
    assert kernels == {made.operators[0].number}
