"""What keeps something of every event for ever is refused, in the line that says it, unless it is meant; what grows with keys is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millstream import Pipeline, Relation
from millstream.errors import PlanError
from millstream.explain.explain import explain
from millstream.frame import rows, span
from millstream.plan.lineage import Lineage
from millstream.runtime.setup import chain_of
from millstream.window import hopping, tumbling

Sources = dict[str, Relation]
Make = Callable[[Sources], Relation]


def sources(pipeline: Pipeline) -> Sources:
    return {
        "clicks": pipeline.stream("clicks", "user long, page string, amount double, at timestamp", time="at"),
        "sales": pipeline.stream("sales", "buyer long, price double, sold timestamp", time="sold"),
        "words": pipeline.stream("words", "word string"),
        "users": pipeline.table("users", "id long, country string", key="id"),
    }


def same(frame: Any) -> Any:
    return frame


def outer(it: Sources) -> Relation:
    """A stream whose rows may be taken back."""
    return it["clicks"].join(it["sales"], on="user = buyer", how="left", within="1 hour")


def mixed(it: Sources) -> Relation:
    """A table and a stream as one: no stream, but without end."""
    return it["users"].select("id", "country AS name").union(it["clicks"].select("user AS id", "page AS name"))


def windows(stream: Relation, key: str) -> Relation:
    return stream.group_by(key, tumbling("at", "1 day")).agg(**{f"n_{key}": "count(*)"})


ENDLESS: dict[str, tuple[Make, str, str]] = {
    "list": (lambda it: it["clicks"].group_by("page").agg(all="collect_list(user)"), "every user", "tumbling"),
    "array": (lambda it: it["words"].group_by().agg(all="array_agg(word)"), "every word", "tumbling"),
    "last of an outer join": (lambda it: outer(it).group_by("page").agg(x="last(price, at)"), "every price and at", "tumbling"),
    "group of each time": (lambda it: it["clicks"].group_by("page", "at AS then").agg(n="count(*)"), "then", "tumbling"),
    "group of each offset": (lambda it: it["words"].group_by("_offset AS o").agg(n="count(*)"), "one row for each o", "tumbling"),
    "distinct": (lambda it: it["clicks"].distinct(), "at", "tumbling"),
    "distinct behind a join": (lambda it: outer(it).select("user", "at").distinct(), "at", "tumbling"),
    "distinct by the time of its right": (lambda it: outer(it).select("buyer", "sold").distinct(), "sold", "tumbling"),
    "first": (lambda it: it["clicks"].deduplicate("user"), "the first row of each user", "within="),
    "rank": (lambda it: it["clicks"].over("user", order="amount").add(n="rank()"), "every row", "span"),
    "running total": (lambda it: it["clicks"].over("user", order="at").add(n="sum(amount)"), "every row", "span"),
    "top of an outer join": (lambda it: outer(it).top(3, by="price DESC"), "every row", "tumbling"),
    "function": (lambda it: it["clicks"].map_groups(same, key="user", schema="z long"), "every row of each user", "tumbling"),
    "join": (lambda it: mixed(it).join(it["users"].select("id AS other"), on="id = other"), "every row of both", "within="),
    "join of streams": (lambda it: it["clicks"].join(it["sales"], on="user = buyer"), "every row of both", 'within="1 hour"'),
    "join with a table": (lambda it: it["clicks"].join(it["users"], on="user = id"), "every row of both", "as_of= its time or latest=True"),
    "match": (lambda it: it["clicks"].match("A B", None, {"n": "B.page"}, partition="user", order="at"), "rows from the first one", "within="),
    "match in another order": (lambda it: it["clicks"].match("A B", None, {"n": "B.page"}, partition="user", order="amount"), "every row", "within="),
    "match behind an outer join": (lambda it: outer(it).match("A B", None, {"n": "B.page"}, partition="user", order="at", within="1 hour"), "every row, because", "within="),
    "list of a history": (lambda it: it["users"].history().group_by("country").agg(all="collect_list(valid_from)"), "valid_from", "tumbling"),
    "join of a history": (lambda it: it["users"].history().join(it["users"].select("id AS other"), on="id = other"), "every row of both", "aggregate"),
    "join of a table": (lambda it: it["users"].join(it["clicks"], on="user = id", how="anti"), "every row of both", "aggregate the stream"),
    "latest": (lambda it: it["clicks"].join(mixed(it), on="user = id", latest=True), "every row of the table", "within="),
    "below another": (lambda it: it["clicks"].deduplicate("user").group_by("page").agg(n="count(*)"), "first row", "within="),
}  # fmt: skip
KEYS: dict[str, Make] = {
    "group": lambda it: it["clicks"].group_by("page").agg(n="count(*)", who="count(distinct user)", m="median(amount)"),
    "set": lambda it: it["clicks"].group_by("page").agg(who="collect_set(user)", last="last(user, at)"),
    "day": lambda it: it["clicks"].group_by("date_trunc('DAY', at) AS day").agg(n="count(*)"),
    "distinct": lambda it: it["clicks"].select("page").distinct(),
    "words": lambda it: it["words"].distinct(),
    "lag": lambda it: it["clicks"].over("user", order="at").add(p="lag(amount)"),
    "rows": lambda it: it["clicks"].over("user", order="at", frame=rows(2)).add(p="sum(amount)"),
    "top": lambda it: it["clicks"].top(3, by="amount", per="user"),
    "table": lambda it: it["users"].where("id > 3"),
    "history": lambda it: it["users"].history().group_by("country").agg(n="count(*)"),
    "list of a table": lambda it: it["users"].group_by("country").agg(all="collect_list(id)"),
    "rank of a table": lambda it: it["users"].over("country", order="id").add(n="rank()"),
    "function of a table": lambda it: it["users"].map_groups(same, key="country", schema="z long"),
    "tables": lambda it: it["clicks"].group_by("user").agg(n="count(*)").join(it["users"], on="user = id"),
    "match that looks before it": lambda it: it["clicks"].match(
        "A B+", {"B": "amount < PREV(amount)"}, {"n": "count(*)"}, partition="user", order="at", within="1 hour"
    ),
    "match of a table": lambda it: it["users"].match("A B", None, {"c": "B.country"}, order="id"),
    "best windows": lambda it: it["clicks"].group_by(tumbling("at", "1 day")).agg(n="count(*)").top(3, by="n DESC"),
    "ever": lambda it: it["users"].join(it["clicks"].select("user").distinct(), on="user = id", how="semi"),
    "latest": lambda it: it["clicks"].join(it["users"], on="user = id", latest=True),
    "as of": lambda it: it["clicks"].join(it["users"], on="user = id", as_of="at"),
}
BOUNDED: dict[str, Make] = {
    "plain": lambda it: it["clicks"],
    "list": lambda it: it["clicks"].group_by(tumbling("at", "1 day")).agg(all="collect_list(user)"),
    "soon": lambda it: it["clicks"].deduplicate("user", within="1 hour"),
    "span": lambda it: it["clicks"].over("user", order="at", frame=span("1 hour")).add(n="sum(amount)"),
    "near": outer,
    "windows": lambda it: windows(it["clicks"], "user").join(
        windows(it["clicks"], "page"), ["window_start", "window_end"]
    ),
    "rank in windows": lambda it: (
        it["clicks"].windowed(tumbling("at", "1 day")).over("window_start", order="amount").add(n="rank()")
    ),
    "list of windows": lambda it: (
        it["clicks"].windowed(tumbling("at", "1 day")).group_by("window_end").agg(all="collect_list(user)")
    ),
    "groups of windows": lambda it: windows(it["clicks"], "page").group_by("window_start").agg(m="median(n_page)"),
    "in one window": lambda it: (
        it["clicks"]
        .windowed(tumbling("at", "1 day"))
        .join(it["sales"].windowed(tumbling("sold", "1 day")), ["window_start", "window_end"])
    ),
    "of one time": lambda it: it["clicks"].join(it["sales"], on="user = buyer AND at = sold"),
    "exploded windows": lambda it: (
        it["clicks"]
        .windowed(tumbling("at", "1 day"))
        .explode("array(page, 'all')", "word")
        .group_by("window_start", "word")
        .agg(n="count(*)")
    ),
    "unpivoted windows": lambda it: (
        it["clicks"]
        .windowed(hopping("at", "1 day", "6 hours"))
        .unpivot("window_start", ["user", "user * 2 AS twice"], "name", "value")
        .group_by("window_start", "name")
        .agg(n="max(value)")
    ),
    "match": lambda it: it["clicks"].match(
        "A B+", {"B": "B.amount > A.amount"}, {"n": "count(*)"}, partition="user", order="at", within="1 hour"
    ),
    "union": lambda it: it["clicks"].select("at").union(it["sales"].select("sold AS at")),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_keeps_something_of_every_event_is_refused_in_its_line_and_taken_with_the_word(name: str) -> None:
    make, keeps, bound = ENDLESS[name]
    pipeline = Pipeline("shop")
    relation = make(sources(pipeline))
    with pytest.raises(PlanError, match=r"test_growth.py:\d+: view v: .* keeps something of every event") as caught:
        pipeline.view("v", relation)
    assert keeps in caught.value.message.split("for ever: ")[1]
    assert bound in caught.value.hint
    assert "unbounded=True" in caught.value.hint
    assert not pipeline.views
    plain = Pipeline("shop").fingerprint()
    assert pipeline.view("v", relation, unbounded=True).unbounded
    assert pipeline.fingerprint() != plain
    (view,) = explain(pipeline).views
    assert len(view.unbounded) == 1
    assert "note     unbounded: it keeps something of every event for ever" in str(explain(pipeline))


@pytest.mark.parametrize("name", [*KEYS, *BOUNDED])
def test_what_grows_with_keys_or_not_at_all_needs_no_word(name: str) -> None:
    for makes, grows in ((KEYS, True), (BOUNDED, False)):
        if name in makes:
            pipeline = Pipeline("shop")
            pipeline.view("v", makes[name](sources(pipeline)))
            (view,) = explain(pipeline).views
            assert (view.unbounded, bool(view.growing)) == ((), grows)


@pytest.mark.parametrize("name", [*KEYS, *BOUNDED])
def test_marks_reach_all_that_pass_them_on(name: str) -> None:
    pipeline = Pipeline("shop")
    makes = KEYS if name in KEYS else BOUNDED
    pipeline.view("v", makes[name](sources(pipeline)))
    chain = chain_of(pipeline)
    lineage = Lineage(chain)
    marked = [operator for operator in chain.operators if any(port.marks for port in operator.ports)]
    assert [each.spec for each in marked if not any(port.marks for _, port in lineage.ports_to(each.number))] == []
