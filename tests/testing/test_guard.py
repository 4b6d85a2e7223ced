"""A filter guards what is computed after it: no row that it removes is an error, or needs Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millstream import Pipeline, Relation
from millstream.errors import ExpressionFailed, NeedsSpark
from millstream.plan.build import build_chain
from millstream.plan.chain import ViewPlan
from millstream.testing import Trial

Begin = Callable[..., Trial]
ROWS: list[dict[str, Any]] = [{"id": 1, "n": 5}, {"id": 2, "n": 0}, {"id": 3, "n": None}, {"id": 4, "n": 2}]
Q = [{"id": 1, "q": 2.0}, {"id": 4, "q": 5.0}]


def of_stream(define: Callable[[Relation, Relation], Relation]) -> Pipeline:
    made = Pipeline("g")
    stream, table = made.stream("s", "id int, n int"), made.table("t", "id int, n int, x double", key="id")
    made.view("v", define(stream, table), unbounded=True)
    return made


SHAPES: dict[str, Callable[[Relation, Relation], Relation]] = {
    "select": lambda s, t: s.where("n <> 0").select("id", "10 / n AS q"),
    "key": lambda s, t: s.where("n <> 0").group_by("id", "10 / n AS q").agg(k="count(*)").select("id", "q"),
    "aggregate": lambda s, t: s.where("n <> 0").group_by("id").agg(q="sum(10 / n)"),
    "inside": lambda s, t: s.where("n <> 0").select("id", "n").select("id", "10 / n AS q").where("q > 1"),
    "in turn": lambda s, t: s.where("n <> 0").where("10 / n > 1").select("id", "10 / n AS q"),
    "table": lambda s, t: t.where("n <> 0").select("id", "10 / n AS q"),
    "table's aggregate": lambda s, t: t.where("n <> 0").group_by("id").agg(q="sum(10 / n)"),
    "join, below": lambda s, t: s.where("n <> 0").select("id", "n AS m").join(t, on="id").select("id", "10 / m AS q"),
    "join, above": lambda s, t: s.select("id", "n AS m").join(t, on="id").where("abs(m) > 0").select("id", "10 / m AS q"),
    "join, of both sides": lambda s, t: s.select("id", "n AS m")
    .join(t, on="id")
    .where("abs(m) + abs(n) > 0")
    .group_by("id")
    .agg(q="max(10 / m)"),
    "between kernels": lambda s, t: s.group_by("id").agg(m="max(n)").where("m <> 0").group_by("id").agg(q="max(10 / m)"),
    "at the end": lambda s, t: s.group_by("id").agg(m="max(n)").where("m <> 0").select("id", "10 / m AS q"),
    "sql": lambda s, t: s,
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_a_filter_guards_what_follows_it(trial: Begin, shape: str) -> None:
    pipeline = of_stream(SHAPES[shape])
    if shape == "sql":
        pipeline = of_stream(lambda s, t: s.where("false"))
        pipeline.view("w", sql="SELECT id, 10 / n AS q FROM (SELECT id, n FROM s WHERE n > 0) WHERE id < 10")
    ours = trial(pipeline)
    ours.feed("t", ROWS)
    ours.feed("s", ROWS)
    assert [{"id": row["id"], "q": row["q"]} for row in ours.rows("w" if shape == "sql" else "v")] == Q
    assert ours.rejected("s") == ours.rejected("t") == []


def test_two_views_want_the_same_under_different_guards(trial: Begin) -> None:
    made = Pipeline("g")
    stream = made.stream("s", "id int, n int")
    made.view("positive", stream.where("n > 0").select("id", "10 / n AS q"))
    made.view("negative", stream.where("n < 0").select("id", "10 / n AS q"))
    ours = trial(made)
    ours.feed("s", [{"id": 1, "n": 5}, {"id": 2, "n": 0}, {"id": 3, "n": -5}])
    assert ours.rows("positive") == [{"id": 1, "q": 2.0}]
    assert ours.rows("negative") == [{"id": 3, "q": -2.0}]


def test_what_no_filter_guards_still_needs_spark(trial: Begin) -> None:
    ours = trial(of_stream(lambda s, t: s.where("id > 0").select("id", "10 / n AS q")))
    with pytest.raises(NeedsSpark):
        ours.feed("s", ROWS)


def test_what_cannot_fail_is_computed_once_whatever_the_filters() -> None:
    made = Pipeline("g")
    stream = made.stream("s", "id int, n int, page string")
    views = [
        ViewPlan(f"v{low}", stream.where(f"n > {low}").select("id", "upper(page) AS p").node, "sqlite:x", "changes", ())
        for low in range(3)
    ]
    (feed,) = build_chain(views, buckets=1, to="sqlite:x").feeds
    texts = [each.expression for each in feed.expressions]
    assert texts.count("upper(page)") == 1
    assert not any(each.guard for each in feed.expressions)


def test_an_error_between_kernels_shows_what_was_written(trial: Begin) -> None:
    shape = of_stream(
        lambda s, t: s.group_by("id").agg(m="max(n)").where("10 / m > 1").group_by("id").agg(k="count(*)")
    )
    with pytest.raises(ExpressionFailed, match=r"^view v: `10 / m > 1` failed"):
        trial(shape).feed("s", ROWS)


def test_what_is_unsure_between_kernels_is_computed_by_another_way(trial: Begin) -> None:
    made = Pipeline("g")
    table = made.table("t", "id int, g string, city string, i long", key="id")
    groups = table.group_by("g").agg(city="max(city)", i="max(i)")
    made.view(
        "v", groups.group_by("upper(city) AS city", "i + i - i AS i", "city RLIKE 'm.$' AS ends").agg(n="count(*)")
    )
    ours = trial(made)
    ours.feed(
        "t", [{"id": 1, "g": "a", "city": "Malmö\n", "i": 2**62 - 1}, {"id": 2, "g": "b", "city": "Oslo", "i": 1}]
    )
    assert ours.rows("v") == [
        {"city": "MALMÖ\n", "i": 2**62 - 1, "ends": True, "n": 1},
        {"city": "OSLO", "i": 1, "ends": False, "n": 1},
    ]
    with pytest.raises(ExpressionFailed, match="i \\+ i - i"):
        ours.feed("t", [{"id": 3, "g": "c", "city": "Bergen", "i": 2**62}])
