"""Row patterns from end to end: published examples with their published answers, and sequences over several streams."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from millstream import Pipeline, Relation, pattern
from millstream.errors import PlanError
from millstream.testing import Trial

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def after(**span: float) -> datetime:
    return NOON + timedelta(**span)


def day(number: int) -> datetime:
    """A day of April 2011, as in the documents of Oracle."""
    return datetime(2011, 4, number, tzinfo=UTC)


def answer(pipeline: Pipeline, rows: dict[str, list[dict[str, Any]]], view: str = "v") -> list[dict[str, Any]]:
    """What a view has once everything is over, in order."""
    with Trial(pipeline) as trial:
        for name, some in rows.items():
            trial.feed(name, some)
        trial.close()
        found = trial.rows(view)
    return sorted(found, key=lambda row: [str(each) for each in row.values()])


ORACLE = [12, 17, 19, 21, 25, 12, 15, 20, 24, 25, 19, 15, 25, 25, 14, 12, 14, 24, 23, 22]


def oracle(query: str, emit: str = "final") -> list[tuple[Any, ...]]:
    """Rows of a query over the ticker of Oracle's documents."""
    shop = Pipeline("shop")
    shop.stream("ticker", "symbol string, price double, tstamp timestamp", time="tstamp", ahead="9999 days")
    shop.view("v", sql=f"{query} EMIT {emit}", unbounded=True)
    rows = [{"symbol": "ACME", "price": price, "tstamp": day(1 + at)} for at, price in enumerate(ORACLE)]
    return [tuple(row.values()) for row in answer(shop, {"ticker": rows})]


V_SHAPE = """
SELECT start, bottom, top FROM ticker MATCH_RECOGNIZE (
  PARTITION BY symbol ORDER BY tstamp
  MEASURES STRT.tstamp AS start, LAST(DOWN.tstamp) AS bottom, LAST(UP.tstamp) AS top
  ONE ROW PER MATCH AFTER MATCH SKIP TO LAST UP
  PATTERN (STRT DOWN+ UP+)
  DEFINE DOWN AS DOWN.price < PREV(DOWN.price), UP AS UP.price > PREV(UP.price)
)"""


@pytest.mark.parametrize("emit", ["changes", "final"])
def test_v_shapes_of_a_price(emit: str) -> None:
    assert oracle(V_SHAPE, emit) == [
        (day(5), day(6), day(10)),
        (day(10), day(12), day(13)),
        (day(14), day(16), day(18)),
    ]


def test_v_shapes_with_all_their_rows() -> None:
    found = oracle(
        """
        SELECT tstamp, number, class, start, bottom, top, days, price - first AS change FROM ticker MATCH_RECOGNIZE (
          PARTITION BY symbol ORDER BY tstamp
          MEASURES MATCH_NUMBER() AS number, CLASSIFIER() AS class, STRT.tstamp AS start, FINAL LAST(DOWN.tstamp) AS bottom,
            FINAL LAST(UP.tstamp) AS top, RUNNING count(tstamp) AS days, STRT.price AS first
          ALL ROWS PER MATCH AFTER MATCH SKIP TO LAST UP
          PATTERN (STRT DOWN+ UP+)
          DEFINE DOWN AS DOWN.price < PREV(DOWN.price), UP AS UP.price > PREV(UP.price)
        )"""
    )
    assert [(row[0].day, row[1], row[2]) for row in found] == [
        (5, 1, "STRT"), (6, 1, "DOWN"), (7, 1, "UP"), (8, 1, "UP"), (9, 1, "UP"), (10, 1, "UP"),
        (10, 2, "STRT"), (11, 2, "DOWN"), (12, 2, "DOWN"), (13, 2, "UP"),
        (14, 3, "STRT"), (15, 3, "DOWN"), (16, 3, "DOWN"), (17, 3, "UP"), (18, 3, "UP"),
    ]  # fmt: skip
    assert {row[3:6] for row in found} == {
        (day(5), day(6), day(10)),
        (day(10), day(12), day(13)),
        (day(14), day(16), day(18)),
    }
    assert [row[6:] for row in found][:6] == [(1, 0), (2, -13), (3, -10), (4, -5), (5, -1), (6, 0)]


def test_a_w_shape_of_a_price() -> None:
    found = oracle(
        """
        SELECT start, top FROM ticker MATCH_RECOGNIZE (
          PARTITION BY symbol ORDER BY tstamp
          MEASURES STRT.tstamp AS start, UP.tstamp AS top
          AFTER MATCH SKIP TO LAST UP
          PATTERN (STRT DOWN+ UP+ DOWN+ UP+)
          DEFINE DOWN AS DOWN.price < PREV(DOWN.price), UP AS UP.price > PREV(UP.price)
        )"""
    )
    assert found == [(day(5), day(13))]


def seconds(prices: Iterable[float]) -> list[dict[str, Any]]:
    return [{"symbol": "ACME", "price": price, "at": after(seconds=at)} for at, price in enumerate(prices)]


def ticks(shop: Pipeline) -> Relation:
    return shop.stream("ticks", "symbol string, price double, at timestamp", time="at")


def test_a_falling_price_by_conditions_on_what_was_matched() -> None:
    shop = Pipeline("shop")
    ticks(shop)
    shop.view(
        "v",
        sql="""
        SELECT * FROM ticks MATCH_RECOGNIZE (
          PARTITION BY symbol ORDER BY at
          MEASURES START_ROW.at AS start, LAST(PRICE_DOWN.at) AS bottom, LAST(PRICE_UP.at) AS ended
          ONE ROW PER MATCH AFTER MATCH SKIP TO LAST PRICE_UP
          PATTERN (START_ROW PRICE_DOWN+ PRICE_UP) WITHIN INTERVAL 1 HOUR
          DEFINE
            PRICE_DOWN AS (LAST(PRICE_DOWN.price, 1) IS NULL AND PRICE_DOWN.price < START_ROW.price)
              OR PRICE_DOWN.price < LAST(PRICE_DOWN.price, 1),
            PRICE_UP AS PRICE_UP.price > LAST(PRICE_DOWN.price, 1)
        ) EMIT FINAL""",
    )
    (found,) = answer(shop, {"ticks": seconds([12, 17, 19, 21, 25, 18, 15, 14, 24, 25, 19])})
    assert found == {"symbol": "ACME", "start": after(seconds=4), "bottom": after(seconds=7), "ended": after(seconds=8)}


def test_the_longest_times_of_a_low_average() -> None:
    shop = Pipeline("shop")
    made = ticks(shop).match(
        "A+ B",
        {"A": "avg(A.price) < 15"},
        {"first": "FIRST(A.at)", "last": "LAST(A.at)", "mean": "avg(A.price)"},
        partition="symbol",
        order="at",
        within="1 hour",
    )
    shop.view("v", made, emit="final")
    found = answer(shop, {"ticks": seconds([12, 17, 13, 16, 25, 2, 4, 10, 15, 25, 25, 30])})
    assert [(row["first"], row["last"], row["mean"]) for row in found] == [
        (after(seconds=0), after(seconds=3), 14.5),
        (after(seconds=5), after(seconds=10), 13.5),
    ]


def test_sessions_of_users() -> None:
    shop = Pipeline("shop")
    shop.stream("events", "user string, tstamp long, at timestamp", time="at")
    shop.view(
        "v",
        sql="""
        SELECT user, number, start, n, length FROM events MATCH_RECOGNIZE (
          PARTITION BY user ORDER BY at
          MEASURES MATCH_NUMBER() AS number, count(*) AS n, FIRST(tstamp) AS start, LAST(tstamp) - FIRST(tstamp) AS length
          PATTERN (b s*)
          DEFINE s AS s.tstamp - PREV(s.tstamp) <= 10
        )""",
        unbounded=True,
    )
    said = {"Mary": [1, 11, 23, 34, 44, 53, 63], "Sam": [2, 12, 22, 32, 43, 47, 48, 59, 60, 68]}
    rows = sorted((at, user) for user, times in said.items() for at in times)
    found = answer(shop, {"events": [{"user": user, "tstamp": at, "at": after(seconds=at)} for at, user in rows]})
    assert [tuple(row.values()) for row in found] == [
        ("Mary", 1, 1, 2, 10),
        ("Mary", 2, 23, 1, 0),
        ("Mary", 3, 34, 4, 29),
        ("Sam", 1, 2, 4, 30),
        ("Sam", 2, 43, 3, 5),
        ("Sam", 3, 59, 3, 9),
    ]


# sequences over several streams


def two(shop: Pipeline, **more: Any) -> tuple[Relation, Relation]:
    logins = shop.stream("logins", "user long, country string, at timestamp", time="at", **more)
    orders = shop.stream("orders", "user long, country string, amount double, paid timestamp", time="paid", **more)
    return logins, orders


def login(user: int, country: str, **span: float) -> dict[str, Any]:
    return {"user": user, "country": country, "at": after(**span)}


def order(user: int, country: str, amount: float, **span: float) -> dict[str, Any]:
    return {"user": user, "country": country, "amount": amount, "paid": after(**span)}


def moved(logins: Relation, orders: Relation) -> Relation:
    made = pattern(login=logins, purchase=orders, on="user").then("login").followed_by("purchase").within("5 minutes")
    return made.where(purchase="purchase.country <> login.country").select(
        home="login.country", away="purchase.country", amount="purchase.amount", then="purchase.paid"
    )


@pytest.mark.parametrize("emit", ["changes", "final"])
def test_a_login_and_a_purchase_from_two_countries_within_five_minutes(emit: Any) -> None:
    shop = Pipeline("shop")
    shop.view("v", moved(*two(shop)), emit=emit)
    found = answer(
        shop,
        {
            "logins": [
                login(1, "de", minutes=0),
                login(2, "de", minutes=1),
                login(3, "fr", minutes=2),
                login(4, "fr", minutes=3),
            ],
            "orders": [
                order(1, "de", 1, minutes=1),
                order(1, "us", 2, minutes=4),
                order(2, "us", 3, minutes=6),  # exactly five minutes are too long
                order(3, "fr", 4, minutes=6),
                order(4, "us", 5, minutes=7),
                order(5, "us", 6, minutes=8),
            ],
        },
    )
    assert [tuple(row.values()) for row in found] == [
        (1, "de", "us", 2, after(minutes=4)),
        (4, "fr", "us", 5, after(minutes=7)),
    ]


def test_an_event_that_comes_late_makes_a_match_and_takes_one_back() -> None:
    shop = Pipeline("shop")
    logins, orders = two(shop, late="correct", lateness="10 minutes")
    shop.view("v", moved(logins, orders))
    calm = (
        pattern(login=logins, purchase=orders, on="user").then("login").not_followed_by("purchase", within="5 minutes")
    )
    shop.view("calm", calm.select(at="login.at"))
    with Trial(shop) as trial:
        trial.feed("logins", [login(1, "de", minutes=0)])
        trial.feed("orders", [order(9, "de", 1, minutes=8)])
        trial.feed("logins", [login(9, "de", minutes=8)])
        assert trial.rows("v") == []
        assert [row["user"] for row in trial.rows("calm")] == [1]
        trial.feed("orders", [order(1, "us", 7, minutes=2)])
        assert [(row["user"], row["amount"]) for row in trial.rows("v")] == [(1, 7)]
        assert trial.rows("calm") == []


def test_an_absence_is_told_when_its_time_is_over() -> None:
    shop = Pipeline("shop")
    logins, orders = two(shop)
    made = (
        pattern(login=logins, purchase=orders, on="user").then("login").not_followed_by("purchase", within="5 minutes")
    )
    shop.view("v", made.select(at="login.at"), emit="final")
    with Trial(shop) as trial:
        trial.feed("logins", [login(1, "de", minutes=0), login(1, "de", minutes=1), login(2, "de", minutes=2)])
        trial.feed("orders", [order(2, "de", 1, minutes=4)])
        assert trial.rows("v") == []
        trial.advance("10 minutes")
        assert sorted((row["user"], row["at"]) for row in trial.rows("v")) == [
            (1, after(minutes=0)),
            (1, after(minutes=1)),
        ]


def test_a_gap_of_a_sensor() -> None:
    shop = Pipeline("shop")
    readings = shop.stream("readings", "sensor string, degrees double, at timestamp", time="at")
    made = (
        pattern(reading=readings, next=readings, on="sensor").then("reading").not_followed_by("next", within="1 minute")
    )
    shop.view("v", made.select(since="reading.at", degrees="reading.degrees"), emit="final")
    with Trial(shop) as trial:
        trial.feed(
            "readings", [{"sensor": "a", "degrees": at, "at": after(seconds=at)} for at in (0, 30, 60, 170, 200)]
        )
        trial.feed("readings", [{"sensor": "b", "degrees": at, "at": after(seconds=at)} for at in (200, 250)])
        assert [(row["sensor"], row["since"]) for row in trial.rows("v")] == [("a", after(seconds=60))]
        trial.advance("5 minutes")
        assert sorted((row["sensor"], row["degrees"]) for row in trial.rows("v")) == [("a", 60), ("a", 200), ("b", 250)]


def test_two_roles_of_one_stream_share_its_rows() -> None:
    shop = Pipeline("shop")
    payments = shop.stream("payments", "card long, amount double, at timestamp", time="at")
    small, large = payments.where("amount < 1"), payments.where("amount > 100")
    made = pattern(small=small, large=large, on="card").then("small").times(2, math.inf).then("large").within("1 hour")
    shop.view("v", made.select(n="count(small.*)", amount="large.amount", first="FIRST(small.at)"), emit="final")
    amounts = [0.5, 0.2, 7, 0.3, 500, 0.9, 900]
    rows = [{"card": 1, "amount": amount, "at": after(minutes=at)} for at, amount in enumerate(amounts)]
    (found,) = answer(shop, {"payments": rows})
    assert found == {"card": 1, "n": 3, "amount": 500, "first": NOON}


def test_what_must_not_lie_between_two_events() -> None:
    shop = Pipeline("shop")
    steps = shop.stream("steps", "user long, kind string, at timestamp", time="at")
    roles = {name: steps.where(f"kind = '{name}'") for name in ("add", "pay", "leave")}
    made = pattern(**roles, on="user").then("add").not_followed_by("leave").followed_by("pay").within("1 hour")
    shop.view("v", made.select(first="add.at", then="pay.at"))
    kinds = ["add", "leave", "pay", "add", "add", "pay", "pay"]
    rows = [{"user": 1, "kind": kind, "at": after(minutes=at)} for at, kind in enumerate(kinds)]
    (found,) = answer(shop, {"steps": rows})
    assert (found["first"], found["then"]) == (after(minutes=3), after(minutes=5))


def test_a_near_miss_is_told_with_its_stage_and_taken_back_when_it_is_completed() -> None:
    shop = Pipeline("shop")
    logins, orders = two(shop, late="correct", lateness="10 minutes")
    made = (
        pattern(login=logins, purchase=orders, on="user")
        .then("login")
        .followed_by("purchase")
        .within("5 minutes")
        .near()
    )
    shop.view("v", made.select(at="login.at", amount="purchase.amount"))
    with Trial(shop) as trial:
        trial.feed("logins", [login(1, "de", minutes=0), login(1, "de", minutes=1), login(2, "de", minutes=1)])
        trial.feed("orders", [order(2, "de", 3, minutes=2)])
        trial.advance("8 minutes")
        assert sorted((row["user"], row["stage"], row["amount"]) for row in trial.rows("v")) == [
            (1, "login", None),
            (2, None, 3),
        ]
        trial.feed("orders", [order(1, "de", 4, minutes=3)])
        assert sorted((row["user"], row["stage"], row["amount"]) for row in trial.rows("v")) == [
            (1, None, 4),
            (2, None, 3),
        ]


# more


def test_several_patterns_in_one_pass() -> None:
    shop = Pipeline("shop")
    falls = {"pattern": "A DOWN+", "define": {"DOWN": "price < PREV(price)"}, "measures": {"to": "LAST(DOWN.price)"}}
    high = {"pattern": "A", "define": {"A": "price > 50"}, "measures": {"to": "A.price"}}
    made = ticks(shop).match_any({"falls": falls, "high": high}, partition="symbol", order="at")
    shop.view("v", made, unbounded=True)
    found = answer(shop, {"ticks": seconds([10, 60, 40, 30, 70])})
    assert [(row["pattern"], row["to"]) for row in found] == [("falls", 30), ("high", 60), ("high", 70)]


def test_rows_of_a_table_may_be_taken_back() -> None:
    shop = Pipeline("shop")
    rooms = shop.table("rooms", "id long, floor long, warm double", key="id")
    shop.view(
        "v", rooms.match("A B", {"B": "B.warm > A.warm"}, {"from": "A.id", "to": "B.id"}, partition="floor", order="id")
    )
    with Trial(shop) as trial:
        trial.feed("rooms", [{"id": at, "floor": 0, "warm": warm} for at, warm in enumerate([5, 6, 4, 3])])
        assert [(row["from"], row["to"]) for row in trial.rows("v")] == [(0, 1)]
        trial.feed("rooms", [{"id": 0, "floor": 0, "warm": 7}, {"id": 2, "floor": 0, "warm": 8}])
        assert [(row["from"], row["to"]) for row in trial.rows("v")] == [(1, 2)]
        trial.delete("rooms", [{"id": 1}])
        assert [(row["from"], row["to"]) for row in trial.rows("v")] == [(0, 2)]


def test_a_match_has_one_id_whatever_becomes_of_the_process() -> None:
    def shop() -> Pipeline:
        made = Pipeline("shop")
        matches = ticks(made).match(
            "A B", {"B": "B.price > A.price"}, {"id": "MATCH_ID()", "n": "B.price"}, order="at", within="1 hour"
        )
        made.view("v", matches, emit="final")
        return made

    rows = seconds([1, 2, 1, 3, 1, 4])
    once = {row["n"]: row["id"] for row in answer(shop(), {"ticks": rows})}
    with Trial(shop()) as trial:
        for row in rows:
            trial.feed("ticks", [row])
            trial.crash()
        trial.close()
        assert {row["n"]: row["id"] for row in trial.rows("v")} == once
    assert len(set(once.values())) == 3


def test_a_part_of_a_condition_guards_those_behind_it() -> None:
    shop = Pipeline("shop")
    rows = shop.stream("rows", "n int, m int, at timestamp", time="at")
    shop.view(
        "v", rows.match("A B", {"B": "n <> 0 AND PREV(m) > 0 AND m / n > 1"}, {"m": "B.m"}, order="at", within="1 hour")
    )
    said = [(1, 1), (0, 5), (1, 3), (2, 9)]
    with Trial(shop) as trial:
        trial.feed("rows", [{"n": n, "m": m, "at": after(seconds=at)} for at, (n, m) in enumerate(said)])
        assert trial.counts("rows")["malformed"] == 0
        assert [row["m"] for row in trial.rows("v")] == [3]


def test_what_cannot_be_computed_over_a_match_is_refused_with_what_to_write() -> None:
    shop = Pipeline("shop")
    made = ticks(shop).match("A B", None, {"x": "soundex(A.symbol)"}, order="at", within="1 hour")
    with pytest.raises(PlanError, match=r"measure x `soundex\(A.symbol\)`: kernels cannot compute this") as caught:
        shop.view("v", made)
    assert "LAST(soundex(A.name))" in caught.value.hint
    with pytest.raises(PlanError, match=r"define B `B.price \+ A.price`: expected a condition; found double"):
        shop.view(
            "v",
            ticks(Pipeline("other")).match(
                "A B", {"B": "B.price + A.price"}, {"x": "A.at"}, order="at", within="1 hour"
            ),
        )
