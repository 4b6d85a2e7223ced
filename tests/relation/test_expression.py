"""Expressions are read, checked and rewritten, and stay the user's own text."""

from __future__ import annotations

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import PlanError
from millstream.relation.expression import check, parse_aggregate, parse_named, plain_column, quote, substitute
from millstream.relation.nodes import Aggregation, Named

COLUMNS = ("user_id", "page", "at", "amount", "tags", "device", "unit price", "_append_time")


@pytest.mark.parametrize(
    ("sql", "used"),
    [
        ("page", {"page"}),
        ("1", set()),
        ("PAGE = 'a' AND User_Id > 3", {"page", "user_id"}),
        ("device.os.version", {"device"}),
        ("tags[0].name", {"tags"}),
        ("device.a.b.c.d.e", {"device"}),
        ("`unit price` * amount", {"unit price", "amount"}),
        ("transform(tags, x -> x + amount)", {"tags", "amount"}),
        ("transform(tags, X -> x + 1)", {"tags"}),
        ("aggregate(tags, 0, (sum_, x) -> sum_ + x.page, s -> s * amount)", {"tags", "amount"}),
        ("transform(tags, page -> page)", {"tags"}),
        ("transform(tags, t -> exists(t.inner, u -> u = t.x AND u = page))", {"tags", "page"}),
        ("my_own_function(page, 3)", {"page"}),
        ("db.my_own_function(page)", {"page"}),
        ("CASE WHEN amount > 0 THEN page ELSE 'x' END", {"amount", "page"}),
        ("cast(amount AS decimal(10, 2))", {"amount"}),
        ("amount::int", {"amount"}),
        ("struct(page, amount AS a, device.os)", {"page", "amount", "device"}),
        ("named_struct('page', amount)", {"amount"}),
        ("page LIKE ANY ('a%', 'b%')", {"page"}),
        ("extract(hour FROM at)", {"at"}),
        ("datediff(day, at, _append_time)", {"at", "_append_time"}),
        ("unix_timestamp(at)", {"at"}),
        ("at + INTERVAL 1 DAY", {"at"}),
        ("date_trunc('hour', at)", {"at"}),
        ("'now()' || page", {"page"}),
        ("'🙂' || page -- rand()", {"page"}),
        ("filter(tags, t -> t > 'a')", {"tags"}),
        ("reduce(tags, 0, (a, b) -> a + b)", {"tags"}),
        ("array_max(tags)", {"tags"}),
        ("device.rand", {"device"}),
        ("page IN ('a', 'b')", {"page"}),
    ],
)
def test_the_columns_of_an_expression_are_given_as_declared(sql: str, used: set[str]) -> None:
    assert check(sql, COLUMNS, "where") == used


def test_a_column_may_be_named_like_a_word_of_sql() -> None:
    names = (
        "comment",
        "show",
        "set",
        "timestamp",
        "date",
        "user",
        "order",
        "end",
        "first",
        "count",
        "left",
        "key",
        "value",
    )
    assert check(" || ".join(names), names, "where") == set(names)
    assert all(check(name, [name], "where") == {name} for name in names)


@pytest.mark.parametrize(
    ("sql", "message", "hint"),
    [
        ("", "where: expected a Spark SQL expression; found nothing", ""),
        ("-- nothing", "found nothing", ""),
        ("page = ", "this is not Spark SQL; it stops making sense at '='", ""),
        ("(page", "this is not Spark SQL", ""),
        ("page)", "this is not Spark SQL; it stops making sense at ')'", ""),
        ("page = 'a", "a quote or comment left open", ""),
        ("page, amount", "expected one expression; found a list", ""),
        ("page,", "expected one expression; found a list", ""),
        ("page FROM clicks", "expected one expression; found from", ""),
        ("DISTINCT page", "expected one expression; found distinct", ""),
        ("page; DROP TABLE x", "expected one expression; found another statement", ""),
        ("page UNION SELECT 1", "expected one expression; found another statement", ""),
        ("page AS p", "found one with a name", "leave out the AS"),
        (
            "pgae = 'a'",
            "no column pgae; there are user_id, page, at, amount, tags, device, unit price",
            "did you mean page?",
        ),
        ("transform(tags, x -> y)", "no column y", ""),
        ("x + transform(tags, x -> x)[0]", "no column x", ""),
        ("clicks.page", "no column clicks", ""),
        ("_offset", "no column _offset", "select('*', '_offset AS offset')"),
        ("amount > (SELECT 1)", "found a subquery", ""),
        ("amount IN (SELECT 1)", "found a subquery", ""),
        ("EXISTS (SELECT 1)", "found a subquery", ""),
        ("sum(amount) > 3", "found the aggregate sum", "group_by(…).agg(…)"),
        ("count(*)", "found the aggregate count", ""),
        ("struct(*)", "found *", ""),
        ("max_by(page, at)", "found the aggregate max_by", "group_by"),
        ("mean(amount)", "found the aggregate mean", "group_by"),
        ("every(amount > 1)", "found the aggregate every", "group_by"),
        ("percentile(amount, 0.5)", "found the aggregate percentile", "group_by"),
        ("`sum` (amount)", "found the aggregate sum", "group_by"),
        ("max(amount) OVER (PARTITION BY page)", "a window function (OVER)", "group_by"),
        ("row_number()", "the window function row_number", "group_by"),
        ("window(at, '1 hour')", "the function window", "tumbling"),
        ("explode(tags)", "explode, which makes rows", ""),
        ("posexplode_outer(tags)", "posexplode_outer, which makes rows", ""),
        ("inline(tags)", "inline, which makes rows", ""),
        ("stack(2, 1, 2)", "stack, which makes rows", ""),
        (":p", "found a parameter", ""),
        ("page = ?", "found a parameter", ""),
    ],
)
def test_what_is_not_a_scalar_expression_is_refused(sql: str, message: str, hint: str) -> None:
    with pytest.raises(PlanError) as caught:
        check(sql, COLUMNS, "where")
    assert message in caught.value.message
    assert caught.value.message.startswith("where")
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "sql",
    [
        "rand()", "rand(42)", "random()", "randn()", "uuid()", "now()", "current_timestamp", "current_timestamp()",
        "CURRENT_DATE", "current_date()", "curdate()", "localtimestamp", "localtimestamp()", "current_time", "unix_timestamp()",
        "monotonically_increasing_id()", "shuffle(tags)", "input_file_name()", "spark_partition_id()", "current_user()",
        "current_timezone()", "reflect('java.util.UUID', 'randomUUID')", "amount + `rand`()",
        "transform(tags, t -> t || uuid())", "date_diff(now(), at)",
    ],
)  # fmt: skip
def test_what_is_not_the_same_at_a_replay_is_refused(sql: str) -> None:
    with pytest.raises(PlanError) as caught:
        check(sql, COLUMNS, "select")
    assert "a replay must give the same answer" in caught.value.hint


def test_an_expression_that_is_not_text_is_refused() -> None:
    with pytest.raises(PlanError, match="expected a Spark SQL expression as text; found 3"):
        check(3, COLUMNS, "where")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "sql",
    [
        "page",
        "  PAGE ||  'x'  -- why",
        "/* a */ transform( tags , x->x )",
        "to_timestamp(page)",
        "`page`::int",
        "first",
    ],
)
def test_where_every_column_stands_for_itself_the_text_is_untouched(sql: str) -> None:
    same = {name: quote(name) for name in (*COLUMNS, "first")}
    assert substitute(sql, same) == sql
    assert substitute(sql, {}) == sql


@pytest.mark.parametrize(
    ("sql", "mapping", "expected"),
    [
        ("a", {"a": "x + 1"}, "x + 1"),
        ("a * 2", {"a": "x + 1"}, "(x + 1) * 2"),
        ("A*2", {"a": "x"}, "x*2"),
        ("-a", {"a": "-1"}, "-(-1)"),
        ("f(a)", {"a": "x -- c"}, "f(x)"),
        ("f(a, b)", {"a": "x + 1", "b": "y OR z"}, "f(x + 1, y OR z)"),
        ("a + b", {"a": "b", "b": "a"}, "b + a"),
        ("a.os", {"a": "device"}, "device.os"),
        ("a.os", {"a": "x.y"}, "x.y.os"),
        ("a.os", {"a": "from_json(x, 's')"}, "from_json(x, 's').os"),
        ("a.os", {"a": "coalesce(x, y)[0]"}, "(coalesce(x, y)[0]).os"),
        ("a::int", {"a": "x::long"}, "(x::long)::int"),
        ("a IS NULL", {"a": "f(x) + g(y)"}, "(f(x) + g(y)) IS NULL"),
        ("NOT a", {"a": "x = 1"}, "NOT (x = 1)"),
        ("a + 1", {"a": "(x)"}, "(x) + 1"),
        ("a + 1", {"a": "(x) + (y)"}, "((x) + (y)) + 1"),
        ("a + 1", {"a": "not(x)"}, "(not(x)) + 1"),
        ("a + 1", {"a": "CASE WHEN x THEN y END"}, "(CASE WHEN x THEN y END) + 1"),
        ("a = 1", {"a": "/* c */ x - 1 -- c"}, "(x - 1) = 1"),
        ("cast(a AS int)", {"a": "x + 1"}, "cast((x + 1) AS int)"),
        ("transform(t, x -> x + a)", {"a": "y * 2", "x": "z"}, "transform(t, x -> x + (y * 2))"),
        ("transform(a, a -> a + 1)", {"a": "y"}, "transform(y, a -> a + 1)"),
        ("struct(a, b)", {"a": "x + 1"}, "struct(x + 1 AS a, b)"),
        ("struct(a.os, a AS q)", {"a": "x"}, "struct(x.os AS os, x AS q)"),
        ("named_struct('a', a)", {"a": "x"}, "named_struct('a', x)"),
        ("`unit price` || 'unit price'", {"unit price": "x"}, "x || 'unit price'"),
        ("'🙂' || a || b", {"a": "x", "b": "`🙂`"}, "'🙂' || x || `🙂`"),
        ("first(a)", {"first": "x", "a": "y"}, "first(y)"),
        ("b.a", {"a": "x"}, "b.a"),
    ],
)
def test_a_column_is_replaced_where_it_stands(sql: str, mapping: dict[str, str], expected: str) -> None:
    assert substitute(sql, mapping) == expected


def test_a_column_is_not_caught_by_a_lambda_variable_of_its_name() -> None:
    with pytest.raises(PlanError) as caught:
        substitute("transform(t, x -> x + a)", {"a": "X * 2"})
    assert "a stands for `X * 2`, whose column X is hidden" in caught.value.message
    assert "call the lambda variable something else" in caught.value.hint


def expressions(*names: str) -> st.SearchStrategy[str]:
    """Arithmetic that SQLite and Spark both read, brackets only now and then."""
    leaf = st.sampled_from(
        [*names, *(name.upper() for name in names), *(f"`{name}`" for name in names), "2", "7", "NULL"]
    )

    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        operator = st.sampled_from(["+", "-", "*", "/", "%", "<", "=", "AND", "OR"])
        return st.one_of(
            st.builds("{} {} {}".format, inner, operator, inner),
            st.builds("({})".format, inner),
            st.builds("- {}".format, inner),
            st.builds("abs({})".format, inner),
            st.builds("coalesce({}, {})".format, inner, inner),
            st.builds("CASE WHEN {} THEN {} ELSE {} END".format, inner, inner, inner),
            st.builds("/* a, b */ {} -- c\n".format, inner),
        )

    return st.recursive(leaf, larger, max_leaves=6)


@settings(deadline=None)
@given(
    expressions("a", "b", "c"),
    st.fixed_dictionaries({name: expressions("x", "y", "a") for name in ("a", "b", "c")}),
    st.tuples(*[st.integers(-9, 9)] * 3),
)
def test_an_expression_gives_the_same_before_and_after_substitution(
    sql: str, mapping: dict[str, str], row: tuple[int, int, int]
) -> None:
    source = "(SELECT {} AS x, {} AS y, {} AS a)".format(*row)
    columns = ", ".join(f"{text}\n AS {name}" for name, text in mapping.items())
    db = apsw.Connection(":memory:")
    before = db.execute(f"SELECT {sql}\n FROM (SELECT {columns} FROM {source})").fetchall()
    after = db.execute(f"SELECT {substitute(sql, mapping)}\n FROM {source}").fetchall()
    assert after == before


@settings(deadline=None)
@given(expressions("a", "b"))
def test_substituting_nothing_changes_nothing(sql: str) -> None:
    assert substitute(sql, {"a": "a", "B": "`b`", "c": "d"}) == sql


@settings(deadline=None)
@given(expressions("a", "b"), st.fixed_dictionaries({name: expressions("x", "y") for name in ("a", "b")}))
def test_the_columns_after_substitution_are_those_of_what_was_put_in(sql: str, mapping: dict[str, str]) -> None:
    used = check(sql, ("a", "b"), "expression")
    expected = frozenset().union(*(check(mapping[name], ("x", "y"), "expression") for name in used))
    assert check(substitute(sql, mapping), ("x", "y"), "expression") == expected


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("page", Named("page", "page")),
        (" `unit price` ", Named("unit price", "`unit price`")),
        ("amount * 2 AS twice", Named("twice", "amount * 2")),
        ("amount  *  2 twice", Named("twice", "amount  *  2")),
        ("a.b AS c", Named("c", "a.b")),
        ("page as `my page`", Named("my page", "page")),
        ("cast(a AS int) AS a -- as an int", Named("a", "cast(a AS int)")),
        ("struct(a AS b) AS c", Named("c", "struct(a AS b)")),
        ("CASE WHEN a THEN b END AS c", Named("c", "CASE WHEN a THEN b END")),
        ("to_timestamp(x) AS at", Named("at", "to_timestamp(x)")),
    ],
)
def test_a_column_with_a_name_is_read(text: str, named: Named) -> None:
    assert parse_named(text) == named


@pytest.mark.parametrize("text", ["amount * 2", "a.b", "lower(page)", "1", "'x'", "a AS (b, c)"])
def test_an_expression_without_a_name_is_refused(text: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_named(text)
    assert f"column `{text}`: expected a column or an expression with a name" in caught.value.message
    assert caught.value.hint == f"write {text} AS name"


def test_all_columns_are_not_one() -> None:
    with pytest.raises(PlanError, match="expected one column; found all of them"):
        parse_named("*")


@pytest.mark.parametrize("name", ["page", "unit price", "values", "a`b", "current_date", "ü", "1st", "any", "Page"])
def test_a_quoted_name_reads_as_that_column(name: str) -> None:
    assert plain_column(quote(name)) == name
    assert check(quote(name), [name], "select") == {name}


@pytest.mark.parametrize(
    ("text", "function", "arguments"),
    [
        ("count(*)", "count", ()),
        ("COUNT( * )", "count", ()),
        ("count(1)", "count", ()),
        ("count(page)", "count", ("page",)),
        ("count(distinct page)", "count_distinct", ("page",)),
        ("count(DISTINCT struct(page, at))", "count_distinct", ("struct(page, at)",)),
        ("sum(amount * 2)", "sum", ("amount * 2",)),
        ("sum ( Amount  )", "sum", ("Amount",)),
        ("avg(amount)", "avg", ("amount",)),
        ("mean(amount)", "avg", ("amount",)),
        ("min(amount)", "min", ("amount",)),
        ("max(amount)", "max", ("amount",)),
        ("min_by(page, at)", "min_by", ("page", "at")),
        ("first(page, at)", "min_by", ("page", "at")),
        ("max_by(page, struct(at, amount))", "max_by", ("page", "struct(at, amount)")),
        ("last(coalesce(page, 'x'), at)", "max_by", ("coalesce(page, 'x')", "at")),
        ("collect_list(page)", "collect_list", ("page",)),
        ("array_agg(page)", "collect_list", ("page",)),
        ("collect_set(tags[0])", "collect_set", ("tags[0]",)),
        ("sum(amount) FILTER (WHERE page = 'a')", "sum", ("CASE WHEN page = 'a' THEN amount END",)),
        ("count(*) filter(where amount > 1 )", "count", ("CASE WHEN amount > 1 THEN 1 END",)),
        ("count(page) FILTER (WHERE amount > 1)", "count", ("CASE WHEN amount > 1 THEN page END",)),
        ("count(DISTINCT page) FILTER (WHERE amount > 1)", "count_distinct", ("CASE WHEN amount > 1 THEN page END",)),
        (
            "last(page, at) FILTER (WHERE amount > 1)",
            "max_by",
            ("CASE WHEN amount > 1 THEN page END", "CASE WHEN amount > 1 THEN at END"),
        ),
        ("sum(amount) -- all", "sum", ("amount",)),
        ("sum(map(1, 2)[amount])", "sum", ("map(1, 2)[amount]",)),
    ],
)
def test_an_aggregate_is_read(text: str, function: str, arguments: tuple[str, ...]) -> None:
    assert parse_aggregate("it", text, COLUMNS) == Aggregation("it", function, arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "found nothing", ""),
        ("page", "found another expression", "compute with their results"),
        ("sum(amount", "not Spark SQL", ""),
        ("stddev(amount)", "expected one of count, sum, avg, mean, min, max, min_by, first, max_by, last", ""),
        ("lower(page)", "found 'lower'", ""),
        ("any_value(page)", "found 'any_value'", ""),
        ("sum(amount) + 1", "found '+ 1' after it", "in a select() after"),
        ("(sum(amount))", "found another expression", ""),
        ("sum(amount) OVER (PARTITION BY page)", "found 'OVER (PARTITION BY page)' after it", ""),
        ("first(page) IGNORE NULLS", "found 'IGNORE NULLS' after it", ""),
        ("first(page)", "first needs an order", "say the order: first(page, at)"),
        ("last(page)", "last needs an order", "say the order: last(page, at)"),
        ("count(page, at)", "count takes 1 argument; found 2", "struct(a, b)"),
        ("count(DISTINCT page, at)", "expected one expression to count; found 2", "struct(a, b)"),
        ("count()", "count takes 1 argument; found 0", "count(*) counts rows"),
        ("min_by(page)", "min_by takes 2 arguments; found 1", ""),
        ("sum(DISTINCT amount)", "only count has DISTINCT", ""),
        ("collect_list(DISTINCT page)", "only count has DISTINCT", "collect_set"),
        ("array_agg(page ORDER BY at)", "`page ORDER BY at`: expected one expression; found order", ""),
        ("sum(*)", "found *", ""),
        ("sum(amuont)", "no column amuont", "did you mean amount?"),
        ("sum(amount) FILTER (WHERE pgae = 'a')", "no column pgae", "did you mean page?"),
        ("sum(max(amount))", "found the aggregate max", ""),
        ("sum(amount * rand())", "found rand", "a replay must"),
        ("sum(amount) AS s", "found 'AS s' after it", ""),
    ],
)
def test_what_is_not_an_aggregate_is_refused(text: str, message: str, hint: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_aggregate("it", text, COLUMNS)
    assert caught.value.message.startswith("aggregate it")
    assert message in caught.value.message
    assert hint in caught.value.hint
