"""Windows, frames and operations on neighbours: what may be said, what is refused, and what it is laid out as."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import polars as pl
import pytest

from millstream.errors import PlanError
from millstream.frame import rows, span
from millstream.pipeline import Pipeline
from millstream.plan.build import Chain, ViewPlan, build_chain
from millstream.plan.spec import Deduplicate, Groups, Hold, Horizon, Order, Over, Pass, Reduce, Spec, TableJoin, Top
from millstream.plan.spec import Session as SessionSpec
from millstream.relation.nodes import Frame, Hopping, Session, Sliding
from millstream.relation.properties import event_time, is_bounded, is_insert_only, natural_key, settled
from millstream.relation.relation import Relation
from millstream.relation.source import Clock
from millstream.window import hopping, session, sliding, tumbling

MINUTE = timedelta(minutes=1)


@pytest.fixture
def shop() -> Pipeline:
    return Pipeline("shop")


@pytest.fixture
def clicks(shop: Pipeline) -> Relation:
    return shop.stream(
        "clicks", "k long, page string, n long, tags array<string>, at timestamp", time="at", late="correct", lateness="5 seconds"
    )  # fmt: skip


@pytest.fixture
def users(shop: Pipeline) -> Relation:
    return shop.table("users", "id long, country string, age int", key="id")


def spec_of(relation: Relation, emit: Any = "changes") -> Spec:
    """The spec of the last kernel."""
    view = ViewPlan("v", relation.node, "sqlite:x", emit, natural_key(relation.node))
    return build_chain([view], buckets=2, to="sqlite:x").operators[-1].spec


def test_windows_are_plain_values() -> None:
    assert hopping("at", "5 minutes", "1 minute") == Hopping("at", 5 * MINUTE, MINUTE)
    assert session("at", "30 minutes") == Session("at", 30 * MINUTE)
    assert sliding("at", timedelta(minutes=10)) == Sliding("at", 10 * MINUTE)
    assert (rows(2, 1), rows(), span("1 second", None)) == (
        Frame("rows", 2, 1), Frame("rows", None, 0), Frame("range", 1_000_000, None),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hopping("at", "1 minute", "2 minutes"), "leaves events out"),
        (lambda: hopping("at", "1 day", "1 second"), "more than 1,000 windows"),
        (lambda: hopping("at", "1 minute", "0 seconds"), "an? every above zero"),
        (lambda: session("at", "0 seconds"), "a gap above zero"),
        (lambda: sliding("at + 1", "1 minute"), "expected the stream's time column"),
        (lambda: rows(-1), "how many rows"),
        (lambda: span(1.5), "a duration, a whole number or None"),  # type: ignore[arg-type]
    ],
)
def test_windows_that_make_no_sense_are_refused_in_their_line(make: Any, message: str) -> None:
    with pytest.raises(PlanError, match=f"test_window.py:.*{message}"):
        make()


def test_hopping_windows_are_laid_out_with_their_hop(clicks: Relation) -> None:
    spec = spec_of(clicks.group_by("k", hopping("at", "5 minutes", "2 minutes")).agg(n="count(*)"), "final")
    assert isinstance(spec, Reduce)
    assert (spec.size, spec.every, spec.emit, spec.lateness) == (300_000_000, 120_000_000, "final", 5_000_000)


def test_a_session_is_known_by_its_key_and_its_start(clicks: Relation) -> None:
    made = clicks.group_by("k", session("AT", "30 minutes")).agg(n="count(*)", late="max(at)")
    assert made.columns == ("k", "window_start", "window_end", "n", "late")
    assert natural_key(made.node) == ("k", "window_start")
    spec = spec_of(made)
    assert isinstance(spec, SessionSpec)
    assert (spec.gap, spec.lateness, spec.insert_only) == (1_800_000_000, 5_000_000, True)
    assert "session(at, 30 minutes)" in str(made)


def test_a_sliding_window_has_a_row_for_each_event_and_so_no_key(clicks: Relation) -> None:
    made = clicks.group_by("k", sliding("at", "10 minutes")).agg(n="count(*)")
    assert natural_key(made.node) == ()
    spec = spec_of(made, "final")
    assert isinstance(spec, Over)
    assert (spec.window, spec.emit, spec.looks[0].frame) == (600_000_000, "final", Frame("range", 600_000_000, 0))


def test_windows_by_processing_time_are_over_the_append_time(shop: Pipeline) -> None:
    stream = shop.stream("s", "k long", time="_append_time")
    made = stream.where("k > 0").group_by(tumbling("_append_time", "1 minute")).agg(n="count(*)")
    assert made.columns == ("window_start", "window_end", "n")
    view = ViewPlan("v", made.node, "sqlite:x", "final", ("window_start",))
    (feed,) = build_chain([view], buckets=2, to="sqlite:x").feeds
    assert "_append_time" in {each.expression for each in feed.expressions}
    with pytest.raises(PlanError, match="clock corrects"):
        shop.stream("t", "k long, sent timestamp", time="_append_time", clock=Clock("sent"))


def test_percentiles_are_read_with_their_fraction(clicks: Relation) -> None:
    spec = spec_of(clicks.group_by("k").agg(half="median(n)", high="percentile(n, 0.9) FILTER (WHERE n > 0)"))
    assert isinstance(spec, Reduce)
    assert [(each.function, each.fraction) for each in spec.measures] == [("percentile", 0.5), ("percentile", 0.9)]
    with pytest.raises(PlanError, match="a number from 0 to 1; found 90"):
        clicks.group_by("k").agg(high="percentile(n, 90)")


def test_distinct_rows_are_known_by_all_their_columns(users: Relation) -> None:
    made = users.select("country", "age").distinct()
    assert natural_key(made.node) == ("country", "age")
    assert isinstance(spec_of(made), Reduce)


def test_the_first_rows_of_each_window_are_forgotten_with_it(clicks: Relation) -> None:
    counted = clicks.group_by("page", tumbling("at", "1 minute")).agg(n="count(*)")
    made = counted.top(10, by="n DESC, page", per="window_start")
    assert spec_of(made) == Top(
        ("window_start",),
        ("page", "window_start", "window_end", "n"),
        (Order("n", True), Order("page")),
        10,
        Horizon("window_start", 65_000_000),
        insert_only=False,
        retract=False,
    )
    assert is_bounded(made.node)
    assert natural_key(made.node) == ("page", "window_start")
    assert not is_bounded(counted.top(10, by="n DESC").node)


def test_final_windows_are_never_taken_back_unless_late_ones_amend_them(clicks: Relation, users: Relation) -> None:
    prompt = Pipeline("prompt").stream("c", "page string, n long, at timestamp", time="at")
    for stream, final in ((prompt, True), (clicks, False)):
        counted = stream.group_by("page", tumbling("at", "1 minute")).agg(n="count(*)")
        for relation in (
            counted,
            counted.where("n > 1").select("page", "window_end", "n"),
            counted.join(counted.select("page", "n AS m"), "page"),
        ):
            assert is_insert_only(relation.node, "final") is final
            assert not is_insert_only(relation.node)
            for emit in ("changes", "final"):
                spec = spec_of(relation.top(1, by="n DESC", per="page"), emit)
                assert isinstance(spec, Top)
                assert spec.insert_only is (final and emit == "final")
        assert not is_insert_only(counted.join(users, "page = country", "left").node, "final")
        assert not is_insert_only(stream.group_by("page").agg(n="count(*)").node, "final")
        assert is_insert_only(stream.deduplicate("page").node, "final") is final


def test_a_join_of_windows_lets_go_of_them_when_neither_side_can_change(clicks: Relation, users: Relation) -> None:
    pages = clicks.group_by("page", tumbling("at", "1 minute")).agg(n="count(*)")
    people = clicks.group_by("k AS user_id", hopping("at", "5 minutes", "1 minute")).agg(m="count(*)")
    slow = people.select("user_id", "window_start AS since", "m")
    joined = pages.join(slow, on="n = user_id AND window_start = since")
    spec = spec_of(joined)
    assert isinstance(spec, TableJoin)
    assert spec.horizon == Horizon("_k1", 305_000_000)  # the longer of both, and how late a click may be
    assert settled(joined.node) == {"window_start": timedelta(seconds=305), "since": timedelta(seconds=305)}
    assert is_bounded(joined.node)
    left = pages.join(slow, on="n = user_id AND window_start = since", how="left")
    assert settled(left.node) == {"window_start": timedelta(seconds=305)}
    semi = pages.alias("p").join(people.alias("q"), on="p.window_start = q.window_end", how="semi")
    assert list(settled(semi.node)) == ["window_start"]
    same = pages.join(people, on=["window_start", "window_end"], how="full")
    assert list(settled(same.node)) == ["window_start", "window_end"]
    for unbounded in (pages.join(slow, on="n = user_id"), pages.join(users.select("id", "age"), on="n = id")):
        found = spec_of(unbounded)
        assert isinstance(found, TableJoin)
        assert found.horizon is None
        assert (settled(unbounded.node), is_bounded(unbounded.node)) == ({}, False)


def test_neighbours_are_found_in_the_order_of_time(clicks: Relation) -> None:
    counted = clicks.group_by("k", tumbling("at", "1 minute")).agg(n="count(*)")
    made = counted.over("k", "window_start").add(before="lag(n)", rank="row_number()", sofar="sum(n)")
    spec = spec_of(made)
    assert isinstance(spec, Over)
    assert spec.horizon == Horizon("window_start", 65_000_000)
    assert [each.frame for each in spec.looks] == [None, None, Frame("range", None, 0)]
    assert made.columns == (*counted.columns, "before", "rank", "sofar")
    assert "over partition k order window_start: before = lag(n, 1)" in str(made)
    whole = spec_of(counted.over("k").add(total="sum(n)"))
    assert isinstance(whole, Over)
    assert whole.looks[0].frame == Frame("rows", None, None)


def test_rows_over_a_stream_are_final_when_they_look_back_in_time_alone(shop: Pipeline, clicks: Relation) -> None:
    back = clicks.over("k", "at", span("1 minute")).add(total="sum(n)")
    assert shop.view("back", back, emit="final").key == ()
    assert settled(back.node) == {"at": timedelta(seconds=5)}
    assert is_bounded(back.node)
    for ahead in (
        clicks.over("k", "at").add(after="lead(n)"),
        clicks.over("k", "at DESC").add(before="lag(n)"),
        clicks.over("k", "n").add(rank="rank()"),
    ):
        assert settled(ahead.node) == {}
        with pytest.raises(PlanError, match="needs an end to wait for"):
            shop.view("ahead", ahead, emit="final")


def test_repeats_need_an_event_time(shop: Pipeline, clicks: Relation, users: Relation) -> None:
    made = clicks.deduplicate("k", within="1 hour")
    assert isinstance(spec_of(made, "final"), Deduplicate)
    assert settled(made.node) == {"at": timedelta(seconds=5)}
    made.group_by(tumbling("at", "1 minute")).agg(n="count(*)")  # windows over it are allowed
    assert is_bounded(made.node)
    assert not is_bounded(clicks.deduplicate("k").node)
    with pytest.raises(PlanError, match="a matter of event time, and users has none"):
        users.deduplicate("id")


def test_a_union_has_the_same_columns_and_one_level(clicks: Relation, users: Relation) -> None:
    one, two = clicks.select("k", "page"), users.select("id AS k", "country AS page")
    made = one.union(two).union(one)
    assert isinstance(spec_of(made), Pass)
    assert len(made.node.inputs) == 3  # type: ignore[union-attr]
    with pytest.raises(PlanError, match="expected the same columns; found k, page and id, country, age"):
        one.union(users)


def test_an_exploded_array_is_one_more_column(clicks: Relation) -> None:
    made = clicks.explode("tags", as_="tag")
    assert made.columns[-1] == "tag"
    assert settled(made.node) == {"at": timedelta(seconds=5)}
    with pytest.raises(PlanError, match="the column page is there twice"):
        clicks.explode("tags", as_="page")


def test_unpivoted_columns_are_rows_with_a_name_and_a_value(clicks: Relation, users: Relation) -> None:
    made = clicks.unpivot(["k", "at AS seen"], ["n", "n * 2 AS twice"], "name", "value")
    assert made.columns == ("k", "seen", "name", "value")
    assert event_time(made.node) == "seen"
    assert settled(made.node) == {"seen": timedelta(seconds=5)}
    assert is_insert_only(made.node)
    assert settled(clicks.unpivot("k", "n", "name", "value").node) == {}
    assert natural_key(users.unpivot("id", "country", "name", "value").node) == ("id", "name")
    assert natural_key(users.unpivot("age", "country", "name", "value").node) == ()
    assert str(made).endswith("unpivot n, n * 2 AS twice as name, value of each k, at AS seen")


def test_all_columns_but_the_ids_are_unpivoted_where_none_are_named(users: Relation) -> None:
    made = users.unpivot("ID", None, "name", "value")
    assert [each.name for each in made.node.values] == ["country", "age"]  # type: ignore[union-attr]
    assert made.columns == ("id", "name", "value")
    assert users.unpivot([], "age", "name", "value").columns == ("name", "value")
    with pytest.raises(PlanError, match="at least one value column"):
        users.unpivot(["id", "country", "age"], None, "name", "value")
    with pytest.raises(AttributeError, match="it is unpivot"):
        users.melt("id", None, "name", "value")  # type: ignore[attr-defined]


def test_a_function_of_groups_says_what_it_gives(shop: Pipeline, clicks: Relation) -> None:
    def longest(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.select("n")

    made = clicks.map_groups(longest, "k", "n long")
    assert made.columns == ("k", "n")
    assert isinstance(spec_of(made), Groups)
    assert made == clicks.map_groups(longest, "k", "n long")
    assert made != clicks.map_groups(lambda frame: frame, "k", "n long")
    shop.view("made", made, unbounded=True)
    assert shop.fingerprint() == shop.fingerprint()
    with pytest.raises(PlanError, match="cannot give m map<string, int>"):
        clicks.map_groups(longest, "k", "m map<string, int>")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda it: it.top(0, by="n"), "above zero; found 0"),
        (lambda it: it.top(1, by="n", ties="row_number"), "rank or dense_rank; found 'row_number'"),
        (lambda it: it.top(1, by="nn"), "no column nn"),
        (lambda it: it.top(1, by="n NULLS LAST"), "nulls come first"),
        (lambda it: it.over("k").add(n2="lag(n)"), "lag needs an order"),
        (lambda it: it.over("k", "n").add(x="lag(n, -1)"), "how many rows away"),
        (lambda it: it.over("k", "n").add(x="rank(n)"), "takes no argument"),
        (lambda it: it.over("k", "n").add(n="rank()"), "the column n is there twice"),
        (lambda it: it.over("k", "n").add(), "at least one column"),
        (lambda it: it.over("k", frame=rows(1)).add(x="sum(n)"), "a frame needs an order"),
        (lambda it: it.over("k", "n, at", span(1)).add(x="sum(n)"), "an order by one column"),
        (lambda it: it.deduplicate([]), "found none"),
        (lambda it: it.union("x"), "expected relations"),
        (lambda it: it.explode("tags", as_="a b"), "name of the element"),
        (lambda it: it.unpivot("k", [], "a", "b"), "at least one value column; found none"),
        (lambda it: it.unpivot("k", ["n", "N"], "a", "b"), "the column n is there twice"),
        (lambda it: it.unpivot("k", "n", "k", "b"), "the column k is there twice"),
        (lambda it: it.unpivot("k", "n", "a", "A"), "the column A is there twice"),
        (lambda it: it.unpivot("k", "n", "a b", "c"), "expected the name of a column; found 'a b'"),
        (lambda it: it.unpivot("k", "n", "a", None), "expected the name of a column; found None"),
        (lambda it: it.unpivot("k", "n", "window_end", "b"), "window_end is reserved for windows"),
        (lambda it: it.unpivot("k", "nn", "a", "b"), "no column nn"),
        (lambda it: it.map_groups(1, "k", "n long"), "expected a function"),
        (lambda it: it.windowed(session("at", "1 minute")), "the same for all rows"),
        (lambda it: it.windowed(tumbling("n", "1 minute")), "windowed: a window over n; expected at"),
        (lambda it: it.windowed(tumbling("at", "1 minute")).windowed(tumbling("at", "1 hour")), "of windows already"),
        (lambda it: it.windowed(tumbling("at", "1 minute")).deduplicate("k"), "matter of event time"),
    ],
)
def test_what_does_not_hold_together_is_refused_in_its_line(clicks: Relation, make: Any, message: str) -> None:
    with pytest.raises(PlanError, match=f"test_window.py:.*{message}"):
        make(clicks)


def test_rows_with_their_windows_are_facts_that_tell_when_they_are_over(clicks: Relation) -> None:
    made = clicks.windowed(hopping("at", "5 minutes", "1 minute"))
    late = timedelta(seconds=5)
    assert made.columns == (*clicks.columns, "window_start", "window_end")
    assert settled(made.node) == {"window_start": 5 * MINUTE + late, "window_end": late}
    assert settled(made.select("window_end AS over", "n").node) == {"over": late}
    assert settled(made.group_by("window_end AS over", "k").agg(x="count(*)").node) == {"over": late}
    assert settled(made.over(["k", "window_end"], order="n").add(x="lag(n)").node) == {"window_end": late}
    assert (is_insert_only(made.node), event_time(made.node), natural_key(made.node)) == (True, None, ())


def test_windows_side_by_side_need_no_kernel_and_a_top_of_them_gets_the_first_alone(clicks: Relation) -> None:
    made = clicks.windowed(tumbling("at", "1 minute"))
    assert not chain_of(made, "changes").operators
    best = made.where("n > 3").select("n", "window_start AS s").top(1, by="n DESC", per="s")
    for emit in ("changes", "final"):
        chain = chain_of(best, emit)
        (operator,) = chain.operators
        late = 5_000_000 if emit == "final" else 0
        horizon = Horizon("s", 65_000_000)
        assert operator.spec == Top(("s",), ("n", "s"), (Order("n", True),), 1, horizon, emit=emit, lateness=late)
        assert [port.first for port in chain.feeds[0].ports] == [replace(operator.spec, retract=True)]


def test_final_rows_of_windows_wait_where_nothing_else_does(clicks: Relation) -> None:
    made = clicks.select("k", "at").windowed(tumbling("at", "1 minute"))
    names = ("k", "at", "window_start", "window_end")
    assert spec_of(made, "final") == Hold(("at",), names, "window_end", retract=True)
    kinds = [type(each.spec) for each in chain_of(made.top(1, by="k"), "final").operators]
    assert kinds == [Hold, Top]
    kinds = [type(each.spec) for each in chain_of(made.group_by("window_end").agg(n="count(*)"), "final").operators]
    assert kinds == [Hold, Reduce]


def chain_of(relation: Relation, emit: Any) -> Chain:
    return build_chain([ViewPlan("v", relation.node, "sqlite:x", emit, ())], buckets=2, to="sqlite:x")


def test_a_renamed_event_time_is_still_the_event_time() -> None:
    clicks = Pipeline("p", log="sqlite:never.db").stream("clicks", "user_id long, at timestamp", time="at")
    renamed = clicks.select("user_id", "at AS happened")
    counted = renamed.group_by(tumbling("happened", "1 minute")).agg(n="count(*)")
    assert counted.columns == ("window_start", "window_end", "n")
