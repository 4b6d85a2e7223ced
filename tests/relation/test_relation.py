"""Relations: what is built, what is refused, and where errors point."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import re
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import polars as pl
import pytest

from millstream import Pipeline
from millstream.errors import PlanError
from millstream.relation.grouped import Grouped
from millstream.relation.nodes import (
    Aggregate,
    Aggregation,
    Column,
    EventTime,
    Named,
    Place,
    Select,
    Source,
    Tumbling,
    Where,
)
from millstream.relation.properties import event_time, has_window, natural_key
from millstream.relation.relation import Relation
from millstream.relation.source_location import here, placed
from millstream.window import tumbling

COLUMNS = (Column("Country", "string"), Column("page", "string"), Column("amount", "double"), Column("at", "timestamp"))
CLICKS = Relation(Source("stream", "clicks", "clicks", COLUMNS, time=EventTime("at")))
PLAIN = Relation(Source("stream", "plain", "plain", COLUMNS))
USERS = Relation(Source("table", "users", "users", (*COLUMNS, Column("id", "long")), key=("id", "page")))
ONE = Relation(Source("table", "one", "one", (*COLUMNS, Column("id", "long")), key=("id",)))
OTHERS = USERS.select("id AS other", "page AS where_at")
BY_PAGE = CLICKS.group_by("page").agg(n="count(*)")
HOURLY = CLICKS.group_by("page", tumbling("at", "1 hour")).agg(n="count(*)", total="sum(amount)")


def line() -> int:
    """The line of the caller."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_a_where_keeps_the_text_of_its_condition() -> None:
    assert CLICKS.where("page  <> '/'").node == Where(CLICKS.node, "page  <> '/'")


def test_a_select_names_its_columns_as_they_were_declared() -> None:
    made = CLICKS.select("COUNTRY", "amount * 2 AS twice", "Page AS p")
    assert made.node == Select(
        CLICKS.node, (Named("Country", "Country"), Named("twice", "amount * 2"), Named("p", "page"))
    )
    assert made.columns == ("Country", "twice", "p")


def test_a_star_is_all_columns_and_no_more() -> None:
    assert CLICKS.select("*").columns == CLICKS.columns
    assert CLICKS.select(" * ", "amount * 2 AS twice").columns == (*CLICKS.columns, "twice")
    odd = Relation(Source("stream", "odd", "odd", (Column("unit price", "double"), Column("values", "int"))))
    assert odd.select("*").select("*").columns == ("unit price", "values")


def test_what_a_record_has_besides_its_columns_is_there_until_a_select() -> None:
    kept = CLICKS.where("_offset > 3").select("*", "_append_time AS appended").where("appended > at")
    assert kept.columns == (*CLICKS.columns, "appended")
    with pytest.raises(PlanError, match="no column _append_time"):
        kept.where("_append_time > at")
    with pytest.raises(PlanError, match="no column _offset"):
        HOURLY.where("_offset > 1")


def test_an_aggregate_has_keys_window_and_aggregates_in_that_order() -> None:
    made = CLICKS.group_by("country", "lower(page) AS page", tumbling("AT", "1 minute")).agg(
        n="count(*)", m="max(amount)"
    )
    assert made.node == Aggregate(
        CLICKS.node,
        (Named("Country", "Country"), Named("page", "lower(page)")),
        Tumbling("at", timedelta(minutes=1)),
        (Aggregation("n", "count"), Aggregation("m", "max", ("amount",))),
    )
    assert made.columns == ("Country", "page", "window_start", "window_end", "n", "m")


def test_rows_may_be_one_group() -> None:
    assert CLICKS.group_by().agg(n="count(*)").columns == ("n",)


def test_two_relations_that_say_the_same_are_equal_wherever_they_are_said() -> None:
    one = CLICKS.where("amount > 1")
    two = CLICKS.where("amount > 1")
    assert one == two
    assert hash(one) == hash(two)
    assert one.node.place != two.node.place
    assert one != CLICKS.where("amount > 2")


def test_a_relation_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        CLICKS.node = USERS.node  # type: ignore[misc]


def test_every_node_remembers_its_line() -> None:
    first = line() + 1
    where = CLICKS.where("amount > 1")
    select = CLICKS.select("page")
    grouped = CLICKS.group_by("page")
    made = grouped.agg(n="count(*)")
    assert [each.node.place.line for each in (where, select, made)] == [first, first + 1, first + 3]
    assert os.path.abspath(where.node.place.file) == os.path.abspath(__file__)


def test_a_chain_over_several_lines_remembers_each() -> None:
    first = line() + 2
    made = (
        CLICKS.where("amount > 1")
        .where("page <> '/'")
        .select("page")
    )  # fmt: skip
    assert isinstance(made.node, Select)
    assert isinstance(made.node.input, Where)
    assert [made.node.input.input.place.line, made.node.input.place.line, made.node.place.line] == [
        first,
        first + 1,
        first + 2,
    ]


def big_ones(relation: Relation) -> Relation:
    return relation.where("amount > 1000")


def test_a_place_is_the_line_of_a_function_in_the_users_file() -> None:
    first = inspect.getsourcelines(big_ones)[1]
    assert big_ones(CLICKS).node.place.line == first + 1


def test_a_file_below_the_working_directory_is_named_from_there(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, outside = tmp_path / "work" / "sub", tmp_path / "other"
    inside.mkdir(parents=True)
    outside.mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def place(file: str) -> Place:
        names: dict[str, Any] = {"here": here}
        exec(compile("\n\nplace = here()", file, "exec"), names)
        found = names["place"]
        assert isinstance(found, Place)
        return found

    assert place(str(inside / "shop.py")) == Place("sub/shop.py", 3)
    assert place(str(outside / "shop.py")) == Place(str(outside / "shop.py"), 3)
    assert place("<notebook>") == Place("<notebook>", 3)


def test_an_error_begins_with_its_place() -> None:
    with pytest.raises(PlanError) as caught, placed(Place("shop.py", 7)):
        raise PlanError("it is wrong", hint="mend it")
    assert str(caught.value) == "shop.py:7: it is wrong\n  hint: mend it"


BIG = CLICKS.select("page", "at AS happened")
CHANGED = CLICKS.select("page", "at + INTERVAL 1 DAY AS at")


@pytest.mark.parametrize(
    ("build", "message", "hint"),
    [
        (lambda: CLICKS.where("amuont > 1"), "where `amuont > 1`: no column amuont; there are Country, page", "amount?"),
        (lambda: CLICKS.where("sum(amount) > 1"), "where `sum(amount) > 1`: expected a value of one row", "group_by"),
        (lambda: CLICKS.select(), "select: expected at least one column; found none", ""),
        (lambda: CLICKS.select("amount + 1"), "column `amount + 1`: expected a column or", "amount + 1 AS name"),
        (lambda: CLICKS.select("pgae"), "select `pgae`: no column pgae", "did you mean page?"),
        (lambda: CLICKS.select("page", "PAGE"), "select: the column page is there twice", "rename one with AS"),
        (lambda: CLICKS.select("*", "amount AS At"), "select: the column At is there twice", "rename one with AS"),
        (lambda: CLICKS.select("page AS window_start"), "window_start is reserved for windows", ""),
        (lambda: CLICKS.select("_append_time"), "names beginning with _", "_append_time AS append_time"),
        (lambda: CLICKS.select("page AS _p"), "names beginning with _", "page AS p"),
        (lambda: CLICKS.select(3), "column: expected a Spark SQL expression as text; found 3", ""),  # type: ignore[arg-type]
        (lambda: CLICKS.group_by("lower(page)"), "column `lower(page)`: expected a column or", "lower(page) AS name"),
        (lambda: CLICKS.group_by("page", "country AS page"), "group_by: the column page is there twice", "AS"),
        (lambda: CLICKS.group_by("explode(page) AS page"), "explode, which makes rows", ""),
        (
            lambda: CLICKS.group_by(tumbling("at", "1m"), tumbling("at", "2m")),
            "group_by: expected at most one window; found 2",
            "",
        ),
        (lambda: tumbling("at", "1 month"), "'month' is not always the same length", "a duration is like"),
        (lambda: tumbling("at", "0s"), "tumbling: expected a size above zero; found '0s'", ""),
        (lambda: tumbling("at + 1", "1m"), "tumbling: expected the stream's time column; found 'at + 1'", ""),
        (lambda: tumbling(3, "1m"), "tumbling: expected the stream's time column; found 3", ""),  # type: ignore[arg-type]
        (lambda: CLICKS.group_by(tumbling("amount", "1m")), "expected at, which is the event time", 'tumbling("at"'),
        (lambda: PLAIN.group_by(tumbling("at", "1m")), "stream plain has no event time", 'windows need event time: stream("plain"'),
        (lambda: USERS.group_by(tumbling("at", "1m")), "table users; tables have no windows", ""),
        (lambda: BIG.group_by(tumbling("at", "1m")), "expected happened, which is the event time", 'tumbling("happened"'),
        (lambda: CLICKS.select("page").group_by(tumbling("at", "1m")), "a select has left out or changed", 'select("at"'),
        (lambda: CHANGED.group_by(tumbling("at", "1m")), "a select has left out or changed", ""),
        (lambda: HOURLY.group_by(tumbling("window_start", "1d")), "on top of an aggregate", "window_start and window_end"),
        (lambda: CLICKS.group_by("page").agg(), "agg: expected at least one aggregate", 'n="count(*)"'),
        (lambda: CLICKS.group_by("page").agg(n="first(amount)"), "aggregate n `first(amount)`", "say the order"),
        (lambda: CLICKS.group_by("page").agg(n=3), "aggregate n: expected a Spark SQL", ""),  # type: ignore[arg-type]
        (lambda: CLICKS.group_by("page").agg(Page="count(*)"), "agg: the column Page is there twice", ""),
        (lambda: CLICKS.group_by("page").agg(n="count(*)", N="count(*)"), "agg: the column N is there twice", ""),
        (lambda: CLICKS.group_by("page").agg(window_end="count(*)"), "window_end is reserved for windows", ""),
        (lambda: CLICKS.group_by("page").agg(_n="count(*)"), "names beginning with _", ""),
        (lambda: CLICKS.group_by("page").agg("count(*)"), "agg: 'count(*)' has no name", 'agg(n="count(*)")'),
        (lambda: CLICKS.select("page AS `a``b`"), "a backquote in a name", ""),
        (lambda: CLICKS["page"], "a relation has no ['page']", "expressions are text"),
        (lambda: CLICKS.top(1, "at", "page").group_by(tumbling("at", "1m")), "of the first rows of clicks", "deduplicate("),
        (lambda: ONE.join(USERS, "id", how="innr"), "found 'innr'", 'did you mean how="inner"?'),  # type: ignore[arg-type]
        (lambda: ONE.join(USERS.group_by("id"), "id"), "expected a relation", "after group_by comes .agg(…)"),  # type: ignore[arg-type]
        (lambda: ONE.join(pl.DataFrame(), "id"), "expected a relation", "pipeline.table(…)"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_what_does_not_hold_together_is_refused_in_its_line(build: Any, message: str, hint: str) -> None:
    with pytest.raises(PlanError) as caught:
        build()
    place, _, said = caught.value.message.partition(": ")
    assert place.endswith(f"test_relation.py:{place.rpartition(':')[2]}")
    assert build.__code__.co_firstlineno <= int(place.rpartition(":")[2]) <= build.__code__.co_firstlineno + 3
    assert message in said
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("groupBy", "group_by(…).agg(…)"),
        ("filter", "where("),
        ("withColumn", 'select("*", '),
        ("drop", "select("),
        ("limit", "top("),
        ("show", "view.to_polars()"),
        ("dropDuplicates", "deduplicate("),
        ("withWatermark", 'delay="10 seconds"'),
        ("page", 'select("page")'),
        ("nonsense", "a relation has no nonsense"),
    ],
)
def test_a_name_of_pyspark_is_told_with_ours(name: str, ours: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(ours)):
        getattr(CLICKS, name)
    assert not hasattr(CLICKS, name)
    assert pickle.loads(pickle.dumps(CLICKS)) == copy.copy(CLICKS) == CLICKS


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("count", 'group_by(…) has no count: it is agg(n="count(*)") here'),
        ("mean", 'agg(x="avg(column)")'),
        ("pivot", "FILTER (WHERE "),
        ("applyInPandas", "map_groups("),
        ("select", "group_by(…) has no select: after it comes agg(…)"),
    ],
)
def test_what_pyspark_does_with_groups_is_told_with_ours(name: str, ours: str) -> None:
    groups = CLICKS.group_by("page")
    with pytest.raises(AttributeError, match=re.escape(ours)):
        getattr(groups, name)
    assert not hasattr(groups, name)
    assert pickle.loads(pickle.dumps(groups)) == copy.copy(groups) == groups


@pytest.mark.parametrize(
    ("how", "ours"),
    [
        ("outer", "full"), ("full_outer", "full"), ("FullOuter", "full"), ("left_outer", "left"), ("leftouter", "left"),
        ("right_outer", "right"), ("leftsemi", "semi"), ("left_semi", "semi"), ("leftanti", "anti"), ("left_anti", "anti"),
    ],
)  # fmt: skip
def test_a_kind_of_join_may_have_the_name_that_spark_gives_it(how: Any, ours: Any) -> None:
    assert ONE.select("id").join(OTHERS, "id = other", how=how) == ONE.select("id").join(OTHERS, "id = other", how=ours)


@pytest.mark.parametrize(
    "build",
    [
        lambda column: CLICKS.where(column),
        lambda column: CLICKS.select("page", column),
        lambda column: CLICKS.group_by(column),
        lambda column: CLICKS.group_by("page").agg(n=column),
        lambda column: CLICKS.top(3, column),
        lambda column: CLICKS.top(3, "at", per=column),
        lambda column: CLICKS.deduplicate(column),
        lambda column: CLICKS.over(column, "at").add(n="row_number()"),
        lambda column: CLICKS.over("page", column).add(n="row_number()"),
        lambda column: USERS.join(USERS, on=column),
        lambda column: USERS.join(USERS, on=[column]),
        lambda column: Pipeline("shop").table("t", "a string", key=column),
        lambda column: Pipeline("shop").stream("s", "a string, at timestamp", time=column),
    ],
)
def test_a_column_of_pyspark_is_answered_with_text(build: Any) -> None:
    with pytest.raises(PlanError, match="Column<'a'>") as caught:
        build(type("Column", (), {"__module__": "pyspark.sql.classic.column", "__repr__": lambda _: "Column<'a'>"})())
    assert "expressions are text, as in selectExpr" in caught.value.hint


def test_errors_of_python_name_a_class_that_is_public() -> None:
    orders = Pipeline("shop").stream("orders", "amount double")
    with pytest.raises(TypeError, match="'Relation' and 'int'"):
        _ = orders > 3  # type: ignore[operator]


def test_an_error_in_a_column_of_sql_keeps_its_cause() -> None:
    with pytest.raises(PlanError) as caught:
        CLICKS.where("amount > ")
    assert type(caught.value.__cause__).__name__ == "ParseError"


def test_the_event_time_survives_what_leaves_it_alone() -> None:
    kept = CLICKS.where("amount > 1").select("AT", "page").select("*")
    assert event_time(kept.node) == "at"
    assert kept.group_by(tumbling("at", "1m")).agg(n="count(*)").columns == ("window_start", "window_end", "n")
    assert event_time(CLICKS.select("page").node) is None
    assert event_time(CLICKS.select("amount AS at").node) is None
    assert event_time(HOURLY.node) is None


def test_an_aggregate_of_an_aggregate_may_select_and_rename_between() -> None:
    renamed = HOURLY.select("window_start", "window_end AS ends", "n AS clicks")
    made = renamed.group_by("window_start", "ends AS until").agg(most="max(clicks)", pages="count(*)", one="count(1)")
    assert made.columns == ("window_start", "until", "most", "pages", "one")
    assert HOURLY.group_by("window_start", "window_end").agg(n="sum(n)").columns == ("window_start", "window_end", "n")


def test_between_two_aggregates_columns_can_be_computed() -> None:
    made = (
        HOURLY.where("n > 3")
        .select("n * 2 AS n", "page")
        .group_by("n % 4 AS odd")
        .agg(m="sum(n + 1) FILTER (WHERE n > 1)")
    )
    assert made.columns == ("odd", "m")
    with pytest.raises(PlanError, match="no column amount"):
        HOURLY.group_by("amount").agg(m="count(*)")


def test_after_the_last_aggregate_anything_scalar_goes() -> None:
    daily = HOURLY.group_by("page").agg(total="sum(n)")
    assert daily.where("total > 3").select("page", "total / 2 AS half").columns == ("page", "half")


@pytest.mark.parametrize(
    ("relation", "key"),
    [
        (CLICKS, ()),
        (CLICKS.select("page"), ()),
        (USERS, ("id", "page")),
        (USERS.where("id > 3").select("amount", "PAGE AS p", "Id"), ("id", "p")),
        (USERS.select("id", "amount"), ()),
        (USERS.select("id", "lower(page) AS page"), ()),
        (HOURLY, ("page", "window_start")),
        (HOURLY.where("n > 1").select("window_start AS hour", "page", "n"), ("page", "hour")),
        (HOURLY.select("page", "n"), ()),
        (HOURLY.select("page AS a", "page AS b", "window_start", "n"), ("a", "window_start")),
        (HOURLY.group_by("window_start").agg(n="count(*)"), ("window_start",)),
        (CLICKS.group_by().agg(n="count(*)"), ()),
        (
            USERS.select("id", "page").join(OTHERS, "id = other AND page = where_at", "full"),
            ("id", "page", "other", "where_at"),
        ),
        (
            USERS.select("id", "page").join(OTHERS.select("other AS id", "where_at AS page"), ["id", "page"], "full"),
            ("id", "page"),
        ),
        (USERS.join(OTHERS.select("other AS id", "where_at"), "id", "full"), ("id", "page", "where_at")),
        (ONE.join(ONE.select("id", "amount"), ["id", "amount"], "full"), ()),
        (ONE.join(ONE.select("id", "amount"), ["id", "amount"]), ("id",)),
        (BY_PAGE.join(BY_PAGE.select("page", "n AS m"), "page", "full"), ()),
        (BY_PAGE.join(BY_PAGE.select("page AS p", "n AS m"), "page = p", "full"), ()),
        (BY_PAGE.join(BY_PAGE.select("page AS p", "n AS m"), "page = p", "left"), ("page", "p")),
        (BY_PAGE.join(ONE.select("id", "page AS p"), "page = p", "full"), ("page", "id")),
        (HOURLY.join(HOURLY.select("page", "window_start", "n AS m"), ["page", "window_start"], "full"), ()),
        (
            HOURLY.join(HOURLY.select("page AS p", "window_start AS w", "n AS m"), "page = p", "full"),
            ("page", "window_start", "p", "w"),
        ),
        (
            ONE.select("id")
            .join(ONE.select("id", "page"), "id", "full")
            .join(ONE.select("id", "amount"), "id", "full"),
            ("id",),
        ),
    ],
)
def test_the_key_follows_its_columns(relation: Relation, key: tuple[str, ...]) -> None:
    assert natural_key(relation.node) == key


def test_a_window_is_found_however_deep() -> None:
    assert has_window(HOURLY.group_by("page").agg(n="count(*)").select("n").node)
    assert not has_window(CLICKS.group_by("page").agg(n="count(*)").node)


def test_a_relation_is_shown_one_line_for_each_node() -> None:
    made = (
        CLICKS.where("amount > 1")
        .group_by("page", tumbling("at", "90s"))
        .agg(n="count(*)", people="count(DISTINCT country)", latest="last(page, at)")
    )
    assert str(made.select("*", "n * 2 AS twice")).splitlines() == [
        "stream clicks (Country string, page string, amount double, at timestamp)",
        "  where amount > 1",
        "    group by page, tumbling(at, 1 minute 30 seconds):"
        " n = count(*), people = count(DISTINCT country), latest = max_by(page, at)",
        "      select page, window_start, window_end, n, people, latest, n * 2 AS twice",
    ]
    assert str(USERS).endswith("key id, page")
    assert "group by nothing: n = count(*)" in repr(CLICKS.group_by().agg(n="count(*)"))


def test_what_is_grouped_is_nothing_until_it_is_aggregated() -> None:
    assert isinstance(CLICKS.group_by("page"), Grouped)
