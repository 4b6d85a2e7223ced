"""`pattern`: the steps it is said in, the rows it is laid over, and what is refused in its line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from millstream import Pipeline, Relation, pattern
from millstream.errors import PlanError
from millstream.event_pattern import EventPattern
from millstream.relation.nodes import Match, Select, Union, Where
from millstream.relation.pattern import Skip
from millstream.relation.pattern_text import written

SHOP = Pipeline("shop")
LOGINS = SHOP.stream("logins", "user long, country string, device string, at timestamp", time="at")
ORDERS = SHOP.stream("orders", "user long, country string, amount double, paid timestamp", time="paid")
USERS = SHOP.table("users", "user long, at timestamp", key="user")
NONE: Any = 3
BOTH = pattern(login=LOGINS, purchase=ORDERS, on="user")


def found(relation: Relation) -> Match:
    assert isinstance(relation.node, Match)
    return relation.node


def conditions(relation: Relation) -> dict[str, str]:
    return {each.name: each.written for each in found(relation).searches[0].conditions}


SAID: list[tuple[EventPattern, str]] = [
    (BOTH.then("login").then("purchase"), "login purchase"),
    (BOTH.then("login").followed_by("purchase"), "login after_login*? purchase"),
    (BOTH.followed_by("login"), "login"),
    (BOTH.then("login", "purchase").then("login"), "(login | purchase) login"),
    (BOTH.then("login").any_of("login", "purchase"), "login after_login*? (login | purchase)"),
    (BOTH.then("login").times(3), "login login{2}"),
    (BOTH.then("login").times(1, math.inf), "login login*"),
    (BOTH.then("login").times(2, 4).then("purchase"), "login login{1,3} purchase"),
    (BOTH.then("login").times(1).then("purchase"), "login purchase"),
    (BOTH.then("purchase").followed_by("login").times(2), "purchase after_purchase*? login (after_login*? login)"),
    (BOTH.then("login").not_followed_by("login").followed_by("purchase"), "login after_login_no_login*? purchase"),
    (
        BOTH.then("login").not_followed_by("purchase", within="1 hour"),
        "login after_login_no_purchase* until time runs out",
    ),
]


@pytest.mark.parametrize(("said", "expected"), SAID, ids=[text for _, text in SAID])
def test_steps_are_a_pattern(said: EventPattern, expected: str) -> None:
    search = found(said.select(n="count(*)")).searches[0]
    assert written(search.pattern).replace("{1}", "") == expected


def test_conditions_across_variables_and_absences() -> None:
    said = (
        BOTH.then("login")
        .not_followed_by("login")
        .followed_by("purchase")
        .where(
            purchase="purchase.country <> login.country AND purchase.amount > 10",
            login="login.device = 'a' OR login.country IS NULL",
        )
    )
    assert conditions(said.select(n="count(*)")) == {
        "login": "is_login AND (login.device = 'a' OR login.country IS NULL)",
        "after_login_no_login": "NOT coalesce(is_login AND (login.device = 'a' OR login.country IS NULL), false)",
        "purchase": "is_purchase AND purchase.country <> login.country AND purchase.amount > 10",
    }


def test_only_the_columns_that_are_named_are_laid_together() -> None:
    made = BOTH.then("login").followed_by("purchase").select(amount="purchase.amount", then="purchase.paid")
    union = found(made).input
    assert isinstance(union, Union)
    assert union.output_columns() == ("at", "user", "amount", "is_login", "is_purchase")
    assert union.event_time() == "at"
    assert made.columns == ("user", "amount", "then")


def test_variables_over_one_stream_have_its_rows_once() -> None:
    small, large = ORDERS.where("amount < 1"), ORDERS.where("amount > 100").where("country = 'de'")
    made = found(pattern(small=small, large=large, on="user").then("small").then("large").select(n="count(*)"))
    assert isinstance(made.input, Select)
    assert isinstance(made.input.input, Where)
    assert made.input.input.condition == "((amount < 1)) OR ((amount > 100) AND (country = 'de'))"
    assert made.output_columns() == ("user", "n")
    whole = found(pattern(a=LOGINS, b=LOGINS, on="user").then("a").then("b").select(n="count(*)"))
    assert whole.input.output_columns() == ("at", "user")
    assert whole.searches[0].conditions == ()


def test_without_measures_there_are_the_columns_of_on() -> None:
    assert BOTH.then("login").select().columns == ("user",)


def test_where_the_search_goes_on() -> None:
    def skip(said: EventPattern) -> Skip:
        return found(said.select(n="count(*)")).searches[0].skip

    calm = BOTH.then("login").not_followed_by("purchase", within="1 hour")
    assert skip(BOTH.then("login")) == Skip()
    assert skip(calm) == Skip("next_row")
    assert skip(calm.skip("past last row")) == Skip()
    assert skip(BOTH.then("login").then("purchase").skip("to last purchase")) == Skip("last", ("purchase",))


def test_a_near_miss_between_two_steps_has_come_to_the_first() -> None:
    said = BOTH.then("login").followed_by("purchase").within("1 hour").near()
    made = said.select(at="login.at")
    assert made.columns == ("user", "at", "stage")
    assert found(made).searches[0].measures[-1].expression == "CASE WHEN _s0 = 'after_login' THEN 'login' ELSE _s0 END"
    assert said.select(stage="STAGE()").columns == ("user", "stage")


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: pattern(on="user"), "expected relations by the names of variables; found none"),
    (lambda: pattern(a=NONE, on="user"), "expected relations by the names of variables; found a=3"),
    (lambda: BOTH.then("logout"), "no variable logout; there are login, purchase"),
    (lambda: BOTH.then(), "expected a variable for the step; found none"),
    (lambda: BOTH.where(logout="true"), "no variable logout"),
    (lambda: BOTH.select(n="count(*)"), "expected an event to begin with"),
    (lambda: BOTH.not_followed_by("login").followed_by("login").select(n="count(*)"), "expected an event to begin with"),
    (lambda: BOTH.then("login").not_followed_by("purchase").then("login"), "login is to come at once, so nothing can come before it"),
    (lambda: BOTH.then("login").not_followed_by("purchase").select(n="count(*)"), "an absence at the end needs a time"),
    (lambda: BOTH.then("login").within("1 hour").not_followed_by("purchase", within="2 hours"), "it is 1:00:00 already; found 2:00:00"),
    (lambda: BOTH.times(2), "times: expected a step before it"),
    (lambda: BOTH.then("login").times(0), "at least once and the smaller number first; found 0"),
    (lambda: BOTH.then("login").times(3, 2), "the smaller number first; found 3, 2"),
    (lambda: BOTH.then("login").within("soon"), "soon"),
    (lambda: BOTH.then("login").near().select(n="count(*)"), "near=True needs within="),
    (lambda: BOTH.then("login").select(n="login.amont"), "measure n: no column login.amont"),
    (lambda: pattern(login=LOGINS, user=USERS, on="user").then("login").select(n="count(*)"), "user has no event time"),
    (lambda: pattern(login=LOGINS, purchase=ORDERS, on="device").then("login").select(n="count(*)"), "on device: purchase has no such column"),
    (
        lambda: pattern(a=LOGINS, b=ORDERS.select("user", "amount AS country", "paid"), on="user").then("a").select(n="a.country"),
        "country is string of a and double of b; expected one type",
    ),
    (
        lambda: pattern(a=LOGINS, b=ORDERS.select("user", "amount AS at", "paid"), on="user").then("a").select(n="b.at"),
        "at is the event time of another stream, and a column of b",
    ),
    (
        lambda: pattern(a=LOGINS, b=ORDERS.select("user", "paid", "my_own(amount) AS mine"), on="user").then("b").select(n="b.mine"),
        "the type of mine is not known before Spark runs",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_does_not_hold_together_is_refused_in_its_line(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(PlanError, match=r"^tests/test_event_pattern.py:\d+: ") as caught:
        make()
    assert message in caught.value.message
