"""Sealed columns are passed on and not computed with; what is refused is refused in its line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream import Pipeline, Relation, frame, load_pipeline, window
from millstream.errors import PlanError
from millstream.relation.sealed import sealed_columns

ORDERS = "user_id long, email sealed, name sealed string, email_pseudonym string, amount double, at timestamp"
EMAIL, NAME = frozenset({("orders", "email")}), frozenset({("orders", "name")})


@pytest.fixture
def shop() -> Pipeline:
    shop = Pipeline("shop")
    shop.stream("orders", ORDERS, time="at")
    shop.table("users", "id long, mail sealed, city string", key="id", topic="customers")
    return shop


PASSED: list[tuple[Callable[[Relation, Relation], Relation], dict[str, Any]]] = [
    (lambda orders, users: orders, {"email": EMAIL, "name": NAME}),
    (lambda orders, users: orders.select("user_id", "email AS mail", "`NAME` AS who", "amount * 2 AS twice"), {"mail": EMAIL, "who": NAME}),
    (lambda orders, users: orders.where("amount > 1 AND email_pseudonym = 'x'"), {"email": EMAIL, "name": NAME}),
    (
        lambda orders, users: orders.group_by("email_pseudonym").agg(mail="max_by(email, at)", who="min_by(name, amount)", n="count(name)"),
        {"mail": EMAIL, "who": NAME},
    ),
    (lambda orders, users: orders.group_by(window.tumbling("at", "1 hour"), "user_id").agg(n="count(*)"), {}),
    (
        lambda orders, users: orders.over("user_id", "at").add(before="lag(email)", n="row_number()"),
        {"email": EMAIL, "name": NAME, "before": EMAIL},
    ),
    (lambda orders, users: orders.top(3, "amount DESC", "user_id"), {"email": EMAIL, "name": NAME}),
    (lambda orders, users: orders.deduplicate("email_pseudonym"), {"email": EMAIL, "name": NAME}),
    (
        lambda orders, users: orders.join(users, on="user_id = id", as_of="at"),
        {"email": EMAIL, "name": NAME, "mail": frozenset({("customers", "mail")})},
    ),
    (lambda orders, users: orders.join(users, on="user_id = id", how="semi").select("user_id", "email"), {"email": EMAIL}),
    (
        lambda orders, users: orders.select("user_id", "email").union(users.select("id AS user_id", "mail AS email")),
        {"email": EMAIL | {("customers", "mail")}},
    ),
    (lambda orders, users: users.history(), {"mail": frozenset({("customers", "mail")})}),
    (lambda orders, users: orders.unpivot("email", "amount", "what", "much"), {"email": EMAIL}),
    (lambda orders, users: orders.windowed(window.tumbling("at", "1 hour")), {"email": EMAIL, "name": NAME}),
    (
        lambda orders, users: orders.match("A B", {"B": "amount > 1"}, {"mail": "LAST(B.email)", "n": "count(A.*)"}, partition="user_id", order="at"),
        {"mail": EMAIL},
    ),
    (lambda orders, users: orders.match("A B", {}, {"n": "count(A.*)"}, order="at", rows="all").select("email"), {"email": EMAIL}),
]  # fmt: skip


@pytest.mark.parametrize(("build", "sealed"), PASSED)
def test_a_sealed_column_is_passed_on(build: Callable[..., Relation], sealed: dict[str, Any], shop: Pipeline) -> None:
    made = build(shop.streams["orders"], shop.tables["users"])
    assert sealed_columns(made.node) == sealed
    shop.view("made", made, unbounded=True)


REFUSED: list[Callable[[Relation, Relation], Relation]] = [
    lambda orders, users: orders.where("email = 'ann@example.com'"),
    lambda orders, users: orders.where("amount > 1 AND EMAIL IS NOT NULL"),
    lambda orders, users: orders.select("upper(email) AS up"),
    lambda orders, users: orders.select("struct(email, amount) AS both"),
    lambda orders, users: orders.select("email AS mail").where("mail LIKE 'a%'"),
    lambda orders, users: orders.select("CASE WHEN amount > 1 THEN email END AS some"),
    lambda orders, users: orders.group_by("email").agg(n="count(*)"),
    lambda orders, users: orders.group_by("lower(email) AS low").agg(n="count(*)"),
    lambda orders, users: orders.group_by("user_id").agg(n="count(DISTINCT email)"),
    lambda orders, users: orders.group_by("user_id").agg(last="max(email)"),
    lambda orders, users: orders.group_by("user_id").agg(all="collect_list(email)"),
    lambda orders, users: orders.group_by("user_id").agg(x="max_by(amount, email)"),
    lambda orders, users: orders.group_by("user_id").agg(x="count(*) FILTER (WHERE email = 'x')"),
    lambda orders, users: orders.select("user_id", "email").distinct(),
    lambda orders, users: orders.top(1, "email"),
    lambda orders, users: orders.top(1, "amount", "email"),
    lambda orders, users: orders.deduplicate("email"),
    lambda orders, users: orders.over("email", "at").add(n="row_number()"),
    lambda orders, users: orders.over("user_id", "at").add(n="lag(upper(email))"),
    lambda orders, users: orders.over("user_id", "at", frame.rows(2)).add(n="max(email)"),
    lambda orders, users: orders.join(users, on="email = mail"),
    lambda orders, users: orders.select("user_id", "email").join(users.select("id", "mail AS email"), on="email"),
    lambda orders, users: orders.explode("split(email, '@')", "part"),
    lambda orders, users: orders.unpivot("user_id", ["email", "name"], "what", "text"),
    lambda orders, users: orders.match("A B", {"B": "email = PREV(email)"}, {"n": "count(A.*)"}, order="at"),
    lambda orders, users: orders.match("A B", {}, {"up": "upper(LAST(B.email))"}, order="at"),
    lambda orders, users: orders.match("A B", {}, {"n": "count(A.*)"}, partition="email", order="at"),
]


@pytest.mark.parametrize("build", REFUSED)
def test_nothing_is_computed_with_a_sealed_column(build: Callable[..., Relation], shop: Pipeline) -> None:
    made = build(shop.streams["orders"], shop.tables["users"])
    with pytest.raises(PlanError, match=r"test_sealed\.py:\d+: .* is sealed, so nothing can be computed") as caught:
        shop.view("made", made, unbounded=True)
    assert "_pseudonym" in caught.value.hint
    plain = Pipeline("plain")
    plain.stream("orders", ORDERS.replace("sealed string", "string").replace("sealed", "string"), time="at")
    plain.table("users", "id long, mail string, city string", key="id", topic="customers")
    plain.view("made", build(plain.streams["orders"], plain.tables["users"]), unbounded=True)


@pytest.mark.parametrize(
    "build",
    [
        lambda orders: orders.map_batches(lambda batches: batches, "amount double"),
        lambda orders: orders.map_groups(lambda rows: rows, "user_id", "amount double"),
    ],
)
def test_functions_of_whole_rows_get_none_with_a_sealed_column(
    build: Callable[[Relation], Relation], shop: Pipeline
) -> None:
    with pytest.raises(PlanError, match=r"test_sealed\.py:\d+: a function gets whole rows, and email is sealed"):
        shop.view("made", build(shop.streams["orders"]), unbounded=True)
    shop.view("made", build(shop.streams["orders"].select("user_id", "amount")), unbounded=True)


def test_stored_queries_do_not_look_at_sealed_columns(shop: Pipeline) -> None:
    orders, alerts = shop.streams["orders"], shop.table("alerts", "alert string, condition string", key="alert")
    made = orders.percolate(alerts, "condition")
    assert not any(each.name == "email" for each in made.node.columns)  # type: ignore[union-attr]
    assert sealed_columns(made.node) == {"email": EMAIL, "name": NAME}
    shop.view("alarms", made, unbounded=True)
    with pytest.raises(PlanError, match="email is sealed"):
        shop.view("other", orders.percolate(alerts, "condition", "email string"), unbounded=True)


def test_relations_of_which_one_is_sealed_are_not_united(shop: Pipeline) -> None:
    made = shop.streams["orders"].select("email").union(shop.tables["users"].select("city AS email"))
    with pytest.raises(PlanError, match="column email is sealed in one relation and plain in another"):
        shop.view("made", made, unbounded=True)


@pytest.mark.parametrize(
    ("define", "where"),
    [
        (lambda shop: shop.stream("s", "email sealed", key="email"), "key"),
        (lambda shop: shop.table("s", "email sealed, n int", key="email"), "key"),
        (lambda shop: shop.stream("s", "t sealed", time="CAST(t AS timestamp) AS at"), "time"),
        (lambda shop: shop.stream("s", "d sealed, n long", sequence=("d", "n")), "sequence"),
    ],
)
def test_no_source_has_a_sealed_key_time_or_producer(
    define: Callable[[Pipeline], Relation], where: str, shop: Pipeline
) -> None:
    with pytest.raises(PlanError, match=rf"test_sealed\.py:\d+: (stream|table) s: {where}: .* is sealed"):
        define(shop)


def test_no_view_has_a_sealed_key(shop: Pipeline) -> None:
    made = shop.streams["orders"].group_by("user_id").agg(mail="max_by(email, at)")
    with pytest.raises(PlanError, match="view made: key: `mail`: mail is sealed"):
        shop.view("made", made, key="mail")


@pytest.mark.parametrize("schema", ["email sealed long", "email sealed<string>", "email sealed sealed"])
def test_a_sealed_column_is_text(schema: str, shop: Pipeline) -> None:
    with pytest.raises(PlanError, match="expected nothing behind sealed, or string"):
        shop.stream("s", schema)


def test_only_a_source_declares_sealed_columns(shop: Pipeline) -> None:
    with pytest.raises(PlanError, match="expected a Spark type for email"):
        shop.streams["orders"].select("amount").map_batches(lambda batches: batches, "email sealed")


def test_a_column_may_be_called_sealed(shop: Pipeline) -> None:
    made = shop.stream("s", "sealed string, of sealed")
    assert sealed_columns(made.node) == {"of": frozenset({("s", "of")})}
    assert str(made) == "stream s (sealed string, of sealed)"


def test_sealing_a_column_leaves_state_and_checkpoints_as_they_are() -> None:
    def fingerprint(schema: str) -> str:
        shop = Pipeline("shop")
        shop.view("v", shop.stream("orders", schema).select("email", "n"))
        return shop.fingerprint()

    assert fingerprint("email sealed, n long") == fingerprint("email string, n long")
    assert fingerprint("email sealed, n long") != fingerprint("mail string, n long, email string")


SQL = """
CREATE STREAM orders (user_id BIGINT, email SEALED, name SEALED STRING, email_pseudonym STRING, at TIMESTAMP, WATERMARK FOR at AS at);
CREATE VIEW last AS SELECT email_pseudonym, max_by(email, at) AS mail FROM orders GROUP BY email_pseudonym;
"""


def test_sql_declares_them_and_is_refused_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "shop.sql").write_text(f"CREATE PIPELINE shop;{SQL}")
    shop = load_pipeline(tmp_path / "shop.sql")
    assert sealed_columns(shop.views["last"].node) == {"mail": EMAIL}
    for query in (
        "SELECT email, count(*) AS n FROM orders GROUP BY email",
        "SELECT user_id FROM orders WHERE name = 'x'",
    ):
        (tmp_path / "wrong.sql").write_text(f"CREATE PIPELINE wrong;{SQL}\nCREATE VIEW v AS {query};")
        with pytest.raises(PlanError, match=r"wrong\.sql:5:\d+: .* is sealed, so nothing"):
            load_pipeline(tmp_path / "wrong.sql")
