"""Joins as they are said: what is taken, what is refused and how, and how they lie in a chain."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from millstream import Pipeline, Relation
from millstream.errors import PlanError
from millstream.plan.build import Chain, Port, ViewPlan, build_chain
from millstream.plan.chain import Feed, Operator
from millstream.plan.spec import AsOfJoin, IntervalJoin, LatestJoin, Reduce, TableJoin, Top
from millstream.relation.fingerprint import fingerprint
from millstream.relation.nodes import Equality, Join
from millstream.relation.properties import event_time, is_insert_only, is_stream, lateness, natural_key
from millstream.window import tumbling

SHOP = Pipeline("shop")
VIEWS = SHOP.stream("views", "user_id long, page string, at timestamp", time="at", delay="10 seconds")
SALES = SHOP.stream(
    "sales", "buyer long, amount double, sold timestamp", time="sold", late="correct", lateness="1 minute"
)
PLAIN = SHOP.stream("plain", "user_id long, x string")
USERS = SHOP.table("users", "id long, country string", key="id")
ORDERS = SHOP.table("orders", "id long, user_id long, total double", key="id")
SPENT = ORDERS.group_by("user_id").agg(spent="sum(total)")
HOUR = timedelta(hours=1)


def join_of(relation: Relation) -> Join:
    assert isinstance(relation.node, Join)
    return relation.node


def chain_of(relation: Relation, emit: Any = "changes") -> Chain:
    return build_chain([ViewPlan("view", relation.node, "sqlite:x", emit, ())], buckets=4, to="sqlite:x")


def port_to(chain: Chain, target: int, side: int) -> Port:
    makers: list[Feed | Operator] = [*chain.feeds, *chain.operators]
    return next(port for each in makers for port in each.ports if (port.target, port.side) == (target, side))


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        ("user_id = id", [Equality("user_id", "id")]),
        ("id = user_id", [Equality("user_id", "id")]),
        ("USER_ID = Id", [Equality("USER_ID", "Id")]),
        ("views.user_id = users.id", [Equality("user_id", "id")]),
        ("lower(page) = country AND user_id + 1 = id", [Equality("lower(page)", "country"), Equality("user_id + 1", "id")]),
        ("CASE WHEN page = 'a' AND user_id = 1 THEN 1 END = id", [Equality("CASE WHEN page = 'a' AND user_id = 1 THEN 1 END", "id")]),
        (["user_id = id", "page = country"], [Equality("user_id", "id"), Equality("page", "country")]),
        ("_key = id", None),
    ],
)  # fmt: skip
def test_an_equality_has_an_expression_of_each_side(on: Any, expected: list[Equality] | None) -> None:
    if expected is None:
        with pytest.raises(PlanError, match="both sides have _key"):
            VIEWS.join(USERS, on=on, latest=True)
    else:
        assert list(join_of(VIEWS.join(USERS, on=on, latest=True)).on) == expected


def test_a_name_of_both_is_one_column() -> None:
    for on in ("user_id", ["user_id"], "user_id = user_id", "orders.user_id = user_id", "user_id = USER_ID"):
        if on == "orders.user_id = user_id":
            with pytest.raises(PlanError, match="both sides have user_id"):
                ORDERS.join(SPENT, on=on)
            continue
        joined = ORDERS.join(SPENT, on=on)
        assert join_of(joined).on[0].name == "user_id"
        assert joined.columns == ("id", "user_id", "total", "spent")


def test_a_relation_can_be_named_to_be_joined_with_itself() -> None:
    other = USERS.select("id AS other", "country AS c").alias("r")
    assert USERS.alias("l").join(other, on="l.country = r.c").columns == ("id", "country", "other", "c")
    with pytest.raises(PlanError, match="both sides are called users"):
        USERS.join(USERS.select("id AS other", "country AS c"), on="users.country = users.c")
    with pytest.raises(PlanError, match="expected a name"):
        USERS.alias("a b c")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: VIEWS.join(USERS, on="user_id = id", as_of="at", latest=True), "found as_of, latest"),
        (lambda: VIEWS.join(USERS, on="user_id = id", as_of="page"), "expected at, which is the event time"),
        (lambda: PLAIN.join(USERS, on="user_id = id", as_of="x"), "expected a stream with event time"),
        (lambda: VIEWS.join(USERS, on="user_id = id", how="full", as_of="at"), '"inner" or "left"; found \'full\''),
        (lambda: VIEWS.join(USERS, on="page = country", as_of="at"), r"by its whole key \(id\); found country"),
        (lambda: VIEWS.join(USERS.select("country"), on="page = country", as_of="at"), "which a select left out"),
        (lambda: VIEWS.join(SPENT.select("user_id AS u", "spent"), on="user_id = u", as_of="at"), "found an aggregate or a join"),
        (lambda: USERS.join(VIEWS, on="user_id = id", latest=True), "expected the stream first"),
        (lambda: VIEWS.join(SALES, on="user_id = buyer", latest=True), "two streams take within="),
        (lambda: VIEWS.join(USERS, on="user_id = id", within="1 hour"), "takes as_of= or latest=True, one of them; found within"),
        (lambda: VIEWS.join(SALES, on="user_id = buyer", within="1 hour", as_of="at"), "neither as_of= nor latest="),
        (lambda: VIEWS.join(PLAIN, on="page = x", within="1 hour"), "the right stream has no event time"),
        (lambda: VIEWS.select("user_id").join(SALES, on="user_id = buyer", within="1 hour"), "the left stream has no event time"),
        (lambda: VIEWS.join(SALES, on="user_id = buyer", how="semi", within="1 hour"), "is for two tables, or for streams without within="),
        (lambda: VIEWS.join(SALES, on="user_id = buyer", within=("1 hour", "0s")), "the first of within to be the lower"),
        (lambda: VIEWS.join(SALES, on="user_id = buyer", within=("1 hour",)), "a duration or two of them"),  # type: ignore[arg-type]
        (lambda: ORDERS.join(SPENT, on="user_id", within="1 hour"), "two tables .* found within"),
        (lambda: USERS.join(ORDERS, on="users.id = user_id", how="outside"), "one of inner, left"),  # type: ignore[arg-type]
        (lambda: USERS.join(ORDERS, on="users.id = user_id"), "both sides have a column id"),
        (lambda: USERS.join(SPENT, on="id > user_id"), "found `id > user_id`"),
        (lambda: USERS.join(SPENT, on="id = user_id OR id = 3"), "found `id = user_id OR id = 3`"),
        (lambda: USERS.join(SPENT, on="NOT id = user_id"), "expected equalities"),
        (lambda: USERS.join(SPENT, on="id = user_id AND spent"), "both of the right"),
        (lambda: USERS.join(SPENT, on="id + spent = user_id"), "is of both sides"),
        (lambda: USERS.join(SPENT, on="id = 3"), "`3` has no column"),
        (lambda: USERS.join(SPENT, on="id = country"), "are both of the left"),
        (lambda: USERS.join(SPENT, on="id = nothing"), "no column nothing"),
        (lambda: USERS.join(SPENT, on="id = "), "expected equalities"),
        (lambda: USERS.join(SPENT, on=""), "expected equalities"),
        (lambda: USERS.join(SPENT, on=[]), "at least one equality"),
        (lambda: USERS.join(SPENT, on=3), "text or a list of texts; found 3"),  # type: ignore[arg-type]
        (lambda: USERS.join(SPENT, on=[3]), "on to be text; found 3"),  # type: ignore[list-item]
        (lambda: USERS.join("spent", on="id"), "expected a relation"),  # type: ignore[arg-type]
        (lambda: VIEWS.join(USERS, on="user_id = id", as_of="at").join(USERS.select("id AS i"), on="user_id = i", latest=True), "may be taken back"),
    ],
)  # fmt: skip
def test_what_cannot_be_joined_is_refused_with_its_place(build: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message) as caught:
        build()
    assert "test_join.py:" in caught.value.message


def test_one_duration_bounds_both_ways_and_two_are_right_less_left() -> None:
    assert join_of(VIEWS.join(SALES, on="user_id = buyer", within="1 hour")).within == (-HOUR, HOUR)
    both = join_of(VIEWS.join(SALES, on="user_id = buyer", within=("-5 minutes", "1 hour"))).within
    assert both == (timedelta(minutes=-5), HOUR)
    assert join_of(VIEWS.join(SALES, on="user_id = buyer", within=(-HOUR, timedelta(0)))).within == (
        -HOUR,
        timedelta(0),
    )


def test_what_is_known_of_a_join() -> None:
    near = VIEWS.join(SALES, on="user_id = buyer", within="1 hour").node
    assert (is_stream(near), is_insert_only(near), event_time(near), natural_key(near)) == (True, True, "at", ())
    assert lateness(near) == timedelta(minutes=1)
    outer = {
        how: VIEWS.join(SALES, on="user_id = buyer", within="1 hour", how=how).node for how in ("left", "right", "full")
    }
    assert [event_time(node) for node in outer.values()] == ["at", "sold", None]
    assert not any(map(is_insert_only, outer.values()))
    then = VIEWS.join(USERS, on="user_id = id", as_of="AT")
    assert (join_of(then).as_of, is_insert_only(then.node), event_time(then.node)) == ("at", False, "at")
    now = VIEWS.join(USERS, on="user_id = id", latest=True)
    assert (is_insert_only(now.node), join_of(now).replayable, join_of(then).replayable) == (True, False, True)
    assert natural_key(ORDERS.join(SPENT, on="user_id").node) == ("id", "user_id")
    assert natural_key(ORDERS.join(SPENT, on="user_id", how="semi").node) == ("id",)
    assert natural_key(USERS.join(ORDERS.select("user_id", "total"), on="id = user_id").node) == ()


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
@pytest.mark.parametrize("sides", ["streams", "stream and table", "table and stream", "tables"])
def test_a_join_that_no_time_bounds_is_of_all_rows_and_has_no_time(how: Any, sides: str) -> None:
    left = VIEWS if sides.startswith("stream") else USERS
    right = SALES if sides.endswith("stream") or sides == "streams" else SPENT.select("user_id AS buyer", "spent")
    node = left.join(right, on="user_id = buyer" if left is VIEWS else "id = buyer", how=how).node
    assert isinstance(node, Join)
    assert node.regular
    chain = chain_of(Relation(node))
    operator = next(each for each in chain.operators if each.sides == 2)
    assert isinstance(operator.spec, TableJoin)
    assert not any(name == "_t" for side in (0, 1) for name, _ in port_to(chain, operator.number, side).columns)
    assert event_time(node) is None
    only_left = how in ("semi", "anti")
    assert is_stream(node) == (left is VIEWS or (right is SALES and not only_left))
    assert is_insert_only(node) == (sides == "streams" and how in ("inner", "semi"))
    keys = {"tables": ("id",) if only_left else ("id", "buyer"), "table and stream": ("id",) if only_left else ()}
    assert natural_key(node) == keys.get(sides, ())


def test_a_top_behind_a_join_of_streams_keeps_the_best_and_no_column_that_nobody_wants() -> None:
    """A bid and its auction, of one stream: neither side keeps the columns of the other, nor what the view leaves out."""
    shop = Pipeline("auctions")
    events = shop.stream("events", "kind long, id long, name string, price long, extra string, at timestamp", time="at")
    bids = events.where("kind = 2").select("id AS auction", "price", "extra", "at AS bid_at")
    auctions = events.where("kind = 1").select("id", "name", "extra AS more", "at AS opened")
    joined = bids.join(auctions, on="auction = id").where("bid_at >= opened AND name <> 'x'")
    best = joined.select("id", "name", "price").top(1, by="price DESC", per="id")
    chain = chain_of(best)
    (feed,) = chain.feeds
    join, top = (each.spec for each in chain.operators)
    assert isinstance(join, TableJoin)
    assert isinstance(top, Top)
    assert top.insert_only
    texts = {each.name: each.expression for each in feed.expressions}
    sent = [
        sorted(texts[here] for _, here in port_to(chain, chain.operators[0].number, side).columns) for side in (0, 1)
    ]
    assert sent == [["at", "id", "price"], ["at", "id", "id", "name"]]


def test_windows_are_over_the_time_of_a_join() -> None:
    then = VIEWS.join(USERS, on="user_id = id", as_of="at")
    made = then.group_by("country", tumbling("at", "1 minute")).agg(n="count(*)")
    assert made.columns == ("country", "window_start", "window_end", "n")
    with pytest.raises(PlanError, match="full join"):
        VIEWS.join(SALES, on="user_id = buyer", within="1h", how="full").group_by(tumbling("at", "1m")).agg(
            n="count(*)"
        )
    with pytest.raises(PlanError, match="expected sold"):
        VIEWS.join(SALES, on="user_id = buyer", within="1h", how="right").group_by(tumbling("at", "1m")).agg(
            n="count(*)"
        )
    for regular in (VIEWS.join(SALES, on="user_id = buyer"), USERS.join(VIEWS, on="id = user_id")):
        with pytest.raises(PlanError, match="behind a join of all rows"):
            regular.group_by(tumbling("at", "1m")).agg(n="count(*)")
    with pytest.raises(PlanError, match="tables have no windows"):
        ORDERS.join(SPENT, on="user_id").group_by(tumbling("at", "1m")).agg(n="count(*)")


def test_a_join_is_shown_with_both_its_sides() -> None:
    then = VIEWS.join(USERS.where("id > 1"), on="user_id = id", as_of="at").select("page")
    assert str(then).split("\n") == [
        "stream views (user_id long, page string, at timestamp)",
        "  inner join on user_id = id as of at with",
        "    table users (id long, country string) key id",
        "      where id > 1",
        "    select page",
    ]


def test_joins_that_say_the_same_are_equal_and_have_one_fingerprint() -> None:
    one, other = (VIEWS.alias("v").join(USERS, on="user_id = id", as_of="at") for _ in range(2))
    assert one == other
    assert fingerprint(one.node) == fingerprint(other.node)
    assert fingerprint(one.node) != fingerprint(VIEWS.join(USERS, on="user_id = id", latest=True).node)


def test_holds_are_what_a_side_may_make_of_the_time_before_its_mark() -> None:
    def hold(relation: Relation) -> Any:
        return next(each.hold for each in chain_of(relation).operators if each.sides == 2)

    minute = 60_000_000
    near = {"on": "user_id = buyer", "within": ("-1 minute", "5 minutes")}
    assert hold(VIEWS.join(SALES, **near)) == (0, 5 * minute)  # type: ignore[arg-type]
    assert hold(VIEWS.join(SALES, how="right", **near)) == (minute, 0)  # type: ignore[arg-type]
    assert hold(VIEWS.join(USERS, on="user_id = id", as_of="at")) == (0, None)


def test_a_window_behind_joins_has_marks_all_the_way_and_the_most_lateness() -> None:
    then = VIEWS.join(USERS, on="user_id = id", as_of="at")
    near = then.join(SALES, on="user_id = buyer", within="1 hour")
    chain = chain_of(near.group_by("country", tumbling("at", "1 minute")).agg(n="count(*)"), "final")
    as_of, interval, window = chain.operators
    assert (type(as_of.spec), type(interval.spec), type(window.spec)) == (AsOfJoin, IntervalJoin, Reduce)
    assert [each.stage for each in chain.operators] == [1, 1, 2]
    assert interval.step == as_of.number
    makers: list[Feed | Operator] = [*chain.feeds, *chain.operators]
    marks = {(port.target, port.side): port.marks for each in makers for port in each.ports}
    assert marks[as_of.number, 0]
    assert not marks[as_of.number, 1]
    assert marks[interval.number, 0]
    assert marks[interval.number, 1]
    assert marks[window.number, 0]
    assert isinstance(window.spec, Reduce)
    assert window.spec.lateness == 60_000_000
    assert not window.spec.insert_only


def test_a_latest_join_wants_marks_only_for_who_comes_after_it() -> None:
    now = VIEWS.join(USERS, on="user_id = id", latest=True)
    for relation, wanted in ((now, False), (now.group_by(tumbling("at", "1 minute")).agg(n="count(*)"), True)):
        chain = chain_of(relation)
        join = next(each for each in chain.operators if isinstance(each.spec, LatestJoin))
        assert port_to(chain, join.number, 0).marks is wanted


def test_a_table_as_of_a_time_is_read_as_its_records_say_it() -> None:
    chain = chain_of(VIEWS.join(USERS.where("country <> 'x'"), on="user_id = id", as_of="at").select("page", "country"))
    (operator,) = chain.operators
    users = next(feed for feed in chain.feeds if feed.source.name == "users")
    port = port_to(chain, operator.number, 1)
    texts = {each.name: each.expression for each in users.expressions}
    assert {there: texts[here] for there, here in port.columns} == {
        "_k0": "id", "_r0": "country", "_v": "unix_micros(_timestamp)", "_keep": "coalesce((country <> 'x'), false)",
    }  # fmt: skip
    assert port.keep is None


def test_a_view_over_a_join_that_only_names_columns_needs_no_spark_after_it() -> None:
    (output,) = chain_of(ORDERS.join(SPENT, on="user_id", how="left").select("user_id", "total * 2 AS twice")).outputs
    assert output.plain
    assert output.columns == ("user_id", "twice")
    (output,) = chain_of(
        ORDERS.join(SPENT, on="user_id", how="left").where("spent > 3").select("total / spent AS part")
    ).outputs
    assert (output.columns, output.where) == (("total", "spent"), ("spent > 3",))
    assert [each.expression for each in output.select] == ["total / spent"]


def test_an_aggregate_is_a_table_of_changes() -> None:
    chain = chain_of(ORDERS.join(SPENT, on="user_id"))
    operator = next(each for each in chain.operators if each.sides == 2)
    assert isinstance(operator.spec, TableJoin)
    assert all(each.spec.retract for each in chain.operators if each.sides == 1)  # type: ignore[union-attr]
