"""`percolate` as it is said: its columns, its time, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream import Pipeline, Relation
from millstream.errors import PlanError
from millstream.explain.explain import explain
from millstream.relation.nodes import Percolate
from millstream.relation.properties import event_time, is_insert_only, is_stream, natural_key
from millstream.runtime.setup import chain_of
from millstream.window import tumbling

SHOP = Pipeline("shop")
OFFERS = SHOP.stream(
    "offers", "id long, price decimal(9, 2), Title string, tags array<string>, at timestamp", time="at"
)
ALERTS = SHOP.table("alerts", "alert string, level int, text string", key="alert")


def test_it_has_the_columns_of_both_but_for_the_condition() -> None:
    made = OFFERS.percolate(ALERTS, "TEXT").node
    assert isinstance(made, Percolate)
    assert made.output_columns() == ("id", "price", "Title", "tags", "at", "alert", "level")
    assert [(each.name, each.type) for each in made.columns] == [
        ("id", "long"),
        ("Title", "string"),
        ("at", "timestamp"),
    ]
    assert (event_time(made), is_stream(made), is_insert_only(made), natural_key(made)) == ("at", True, False, ())
    assert str(OFFERS.percolate(ALERTS, "text", "title string")).endswith(
        "percolate text over Title of\n    table alerts (alert string, level int, text string) key alert"
    )


def test_a_condition_about_events_goes_below_it_and_one_about_queries_does_not() -> None:
    pipeline = Pipeline("shop")
    offers = pipeline.stream("offers", "id long, at timestamp", time="at")
    alerts = pipeline.table("alerts", "alert string, text string", key="alert")
    pipeline.view("v", offers.percolate(alerts, "text").where("id > 3 AND alert = 'a'").select("id"))
    chain = chain_of(pipeline)
    keeps = {feed.source.name: [port.said for port in feed.ports] for feed in chain.feeds}
    assert keeps == {"offers": ["id > 3"], "alerts": [""]}


def test_what_follows_it_has_buckets_of_its_own() -> None:
    for keys in ([], ["id"], ["at"]):
        pipeline = Pipeline("shop")
        offers = pipeline.stream("offers", "id long, at timestamp", time="at")
        alerts = pipeline.table("alerts", "alert string, text string", key="alert")
        met = offers.percolate(alerts, "text")
        pipeline.view("v", met.group_by(*keys, tumbling("at", "1 minute")).agg(n="count(*)"))
        found = {each.spec.tag: (each.stage, each.step) for each in chain_of(pipeline).operators}
        assert found["Percolate"] == (1, None)
        assert found["Reduce"] == (2, None)


def test_explain_says_what_is_kept_where() -> None:
    pipeline = Pipeline("shop")
    offers = pipeline.stream("offers", "id long, at timestamp", time="at", late="correct", lateness="1 minute")
    alerts = pipeline.table("alerts", "alert string, text string", key="alert")
    pipeline.view("v", offers.percolate(alerts, "text"))
    shown = str(explain(pipeline))
    assert (
        "percolate: each event with the queries whose text it meets, as of at; a condition may use id and at" in shown
    )
    assert "in every bucket, of each query the last record before the mark, and those after it" in shown
    assert (
        "events when the mark is beyond at + 1 minute; a query when it is deleted; else never: it grows with the queries"
        in shown
    )


REFUSED: list[tuple[Callable[[], Relation], str]] = [
    (lambda: ALERTS.percolate(ALERTS, "text"), "expected a stream with event time"),
    (lambda: OFFERS.select("id").percolate(ALERTS, "text"), "expected a stream with event time"),
    (lambda: OFFERS.percolate(OFFERS, "Title"), "expected the queries in a table that is a topic"),
    (lambda: OFFERS.percolate(ALERTS.group_by("alert").agg(text="max(text)"), "text"), "a table that is a topic"),
    (lambda: OFFERS.percolate(ALERTS.select("text"), "text"), r"left out the key of table alerts \(alert\)"),
    (lambda: OFFERS.percolate(ALERTS, "level"), "as text; found 'level'"),
    (lambda: OFFERS.percolate(ALERTS, "nothing"), "as text; found 'nothing'"),
    (lambda: OFFERS.percolate(ALERTS, 3), "as text; found 3"),  # type: ignore[arg-type]
    (lambda: OFFERS.percolate(ALERTS, "alert"), "alert is the key of the queries"),
    (lambda: OFFERS.percolate("alerts", "text"), "expected a relation; found 'alerts'"),  # type: ignore[arg-type]
    (lambda: OFFERS.percolate(ALERTS.select("alert", "level AS ID", "text"), "text"), "both have a column id"),
    (lambda: OFFERS.percolate(ALERTS, "text", "price double, colour string"), "no column colour; the events have id, price"),
    (lambda: OFFERS.percolate(ALERTS, "text", "tags array<string>"), "conditions cannot use tags array<string>"),
    (lambda: OFFERS.percolate(ALERTS, "text", "price decimal(19, 2)"), r"conditions cannot use price decimal\(19, 2\)"),
    (lambda: OFFERS.select("tags", "CAST(at AS timestamp) AS at").percolate(ALERTS, "text"), "expected a stream with event time"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_cannot_be_is_refused_where_it_is_said(make: Callable[[], Relation], message: str) -> None:
    with pytest.raises(PlanError, match=message) as caught:
        make()
    assert "test_percolate.py:" in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("price double", r"told that price is double; it is Decimal"),
        ("price decimal(9, 1)", r"told that price is decimal\(9, 1\)"),
        ("Title int", "told that Title is int; it is String"),
    ],
)
def test_types_that_conditions_are_told_are_those_of_the_events(columns: str, message: str) -> None:
    pipeline = Pipeline("shop")
    offers = pipeline.stream("offers", "price decimal(9, 2), Title string, at timestamp", time="at")
    alerts = pipeline.table("alerts", "alert string, text string", key="alert")
    made = offers.percolate(alerts, "text", columns)
    with pytest.raises(PlanError, match=message):
        pipeline.view("v", made)
