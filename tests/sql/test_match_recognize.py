"""MATCH_RECOGNIZE: the same node as ``match`` of Python, and each mistake at its place."""

from __future__ import annotations

import pytest

from millstream import Pipeline, Relation
from millstream.errors import PlanError
from millstream.relation.nodes import Match
from millstream.relation.pattern import Shown, Skip
from millstream.sql.hints import in_sql
from millstream.sql.query import Origin, compile_query

SHOP = Pipeline("shop")
TICKS = SHOP.stream("ticks", "symbol string, price double, pattern string, at timestamp", time="at")
OTHERS = SHOP.stream("others", "symbol string, price double, pattern string, at timestamp", time="at")
ROOMS = SHOP.table("rooms", "id long, warm double, at timestamp", key="id")
FALL = {"DOWN": "price < PREV(price)", "UP": "price > PREV(price)"}


def query(sql: str) -> Relation:
    return compile_query(sql, {"ticks": TICKS, "rooms": ROOMS, "others": OTHERS}, Origin("shop.sql", 1, 1))


def of(clauses: str) -> Relation:
    return query(f"SELECT * FROM ticks MATCH_RECOGNIZE ({clauses})")


def test_all_clauses_say_what_python_says() -> None:
    made = query(
        """
        SELECT * FROM ticks MATCH_RECOGNIZE (
          PARTITION BY symbol
          ORDER BY at ASC, price DESC
          MEASURES STRT.at AS `start`, FINAL LAST(DOWN.price) AS low, count(MOVE.*) AS n
          ONE ROW PER MATCH
          AFTER MATCH SKIP TO LAST UP
          PATTERN (STRT DOWN+ /* then up */ UP+)
          WITHIN INTERVAL 5 MINUTES
          SUBSET MOVE = (DOWN, UP)
          DEFINE DOWN AS price < PREV(price), UP AS price > PREV(price)
        ) AS m
        """
    )
    assert made == TICKS.match(
        "STRT DOWN+ UP+",
        FALL,
        {"start": "STRT.at", "low": "FINAL LAST(DOWN.price)", "n": "count(MOVE.*)"},
        partition="symbol",
        order="at, price DESC",
        skip="to last UP",
        within="5 minutes",
        subset={"MOVE": ["DOWN", "UP"]},
    )


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("", "one"),
        ("ONE ROW PER MATCH", "one"),
        ("ALL ROWS PER MATCH", "all_with_empty"),
        ("ALL ROWS PER MATCH SHOW EMPTY MATCHES", "all_with_empty"),
        ("ALL ROWS PER MATCH OMIT EMPTY MATCHES", "all"),
        ("all rows per match with unmatched rows", "all_with_unmatched"),
    ],
)
def test_which_rows_are_shown(said: str, shown: Shown) -> None:
    node = of(f"ORDER BY at MEASURES A.price AS x {said} PATTERN (A)").node
    assert isinstance(node, Match)
    assert node.searches[0].shown == shown


@pytest.mark.parametrize(
    ("said", "skip"),
    [
        ("PAST LAST ROW", Skip()),
        ("TO NEXT ROW", Skip("next_row")),
        ("TO FIRST B", Skip("first", ("B",))),
        ("TO LAST b", Skip("last", ("B",))),
        ("TO B", Skip("last", ("B",))),
        ("TO U", Skip("last", ("B", "C"))),
    ],
)
def test_where_the_search_goes_on(said: str, skip: Skip) -> None:
    node = of(f"ORDER BY at MEASURES A.price AS x AFTER MATCH SKIP {said} PATTERN (A B C) SUBSET U = (B, C)").node
    assert isinstance(node, Match)
    assert node.searches[0].skip == skip


def test_words_of_the_clause_are_names_elsewhere() -> None:
    made = of(
        "ORDER BY ticks.at MEASURES A.pattern AS define, upper(A.`pattern`) AS measures PATTERN (A B) DEFINE B AS pattern = 'x'"
    )
    assert made.columns == ("define", "measures")
    assert query("SELECT pattern FROM ticks m WHERE m.pattern = 'x'").columns == ("pattern",)


def test_conditions_in_brackets_end_where_they_end() -> None:
    made = of("ORDER BY at MEASURES A.at AS x PATTERN (A B) DEFINE A AS (price > 1) OR price < -1, B AS (price > 2)")
    define = {"A": "(price > 1) OR price < -1", "B": "(price > 2)"}
    assert made == TICKS.match("A B", define, {"x": "A.at"}, order="at")
    case = of("ORDER BY at MEASURES CASE WHEN A.price > 1 THEN 'a' ELSE 'b' END AS x PATTERN (A)")
    assert case == TICKS.match("A", None, {"x": "CASE WHEN A.price > 1 THEN 'a' ELSE 'b' END"}, order="at")


def test_it_stands_wherever_a_table_does() -> None:
    clause = "MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY at MEASURES A.price AS x, B.price AS y PATTERN (A B))"
    expected = ("symbol", "x")
    assert query(f"SELECT m.symbol, m.x FROM ticks t {clause} AS m WHERE m.y > 3").columns == expected
    assert (
        query(f"SELECT symbol, x FROM (SELECT * FROM ticks UNION ALL SELECT * FROM others) {clause}").columns
        == expected
    )
    assert (
        query(f"WITH t AS (SELECT * FROM ticks WHERE price > 1) SELECT symbol, x FROM t {clause} m").columns == expected
    )
    assert query(f"SELECT a, b FROM ticks {clause} AS m(a, b, c)").columns == ("a", "b")
    assert query(f"SELECT symbol, max(x) AS x FROM ticks {clause} GROUP BY symbol").columns == expected
    assert query(f"SELECT m.symbol, m.x FROM ticks {clause} m JOIN rooms r ON m.y = r.warm").columns == expected
    again = "MATCH_RECOGNIZE (ORDER BY x MEASURES C.y AS z PATTERN (C))"
    assert query(f"SELECT * FROM ticks {clause} {again}").columns == ("z",)
    assert query("SELECT * FROM rooms MATCH_RECOGNIZE (ORDER BY id MEASURES A.warm AS w PATTERN (A))").columns == ("w",)
    windows = f"SELECT symbol, x FROM tumble(TABLE ticks, at, INTERVAL 1 HOUR) {clause}"
    assert query(windows).columns == expected


def test_a_view_is_refused_with_what_to_write_in_sql() -> None:
    shop = Pipeline("shop")
    shop.stream("ticks", "price double, at timestamp", time="at")
    clause = "SELECT * FROM ticks MATCH_RECOGNIZE (ORDER BY at MEASURES A.price AS x PATTERN (A B*))"
    with pytest.raises(PlanError, match="keeps something of every event for ever") as caught:
        shop.view("v", sql=clause)
    assert caught.value.hint.startswith("a bound in time lets go of it: WITHIN INTERVAL … behind PATTERN")
    with pytest.raises(PlanError, match=r"B\* at the end of a pattern is never known to be the longest") as caught:
        shop.view("v", sql=f"{clause} EMIT FINAL")
    assert "WITHIN INTERVAL 5 MINUTES behind PATTERN" in caught.value.hint


REFUSED = [
    ("PATTERN (A B)", "MATCH_RECOGNIZE", "MATCH_RECOGNIZE without ORDER BY", "ORDER BY at"),
    ("ORDER BY at PATTERN (A |)", "))", "expected a variable; found the end", "()"),
    ("ORDER BY at PATTERN (A\n B+ *)", "*)", "expected one quantifier; found `*`", "(A+)*"),
    ("ORDER BY at MEASURES price PATTERN (A)", "price PATTERN", "measure `price` has no name", "price AS name"),
    ("ORDER BY at MEASURES A.price AS x, PATTERN (A)", "A.price", "beside the comma", ""),
    (
        "ORDER BY at MEASURES A.price AS x, A.prise AS y PATTERN (A)",
        "A.prise",
        "measure y: no column A.prise",
        "did you mean price?",
    ),
    ("ORDER BY at PATTERN (A) DEFINE B AS price > 1", "price > 1", "the pattern has no such variable; there are A", ""),
    ("ORDER BY at PATTERN (A) DEFINE A AS FINAL LAST(A.price) > 1", "FINAL", "DEFINE is always RUNNING", ""),
    (
        "ORDER BY at PATTERN (A B) DEFINE A AS price > 1, B price > 2",
        "price > 2",
        "expected AS; found `price`",
        "DEFINE A AS",
    ),
    ("ORDER BY at AFTER MATCH SKIP TO FIRST A PATTERN (A B)", "AFTER", "first row of every match", "next row"),
    ("ORDER BY at AFTER MATCH SKIP TO C PATTERN (A B)", "AFTER", "C is no variable of the pattern", ""),
    ("ORDER BY at AFTER MATCH SKIP ON PATTERN (A B)", "ON PATTERN", "expected TO; found `ON`", "TO NEXT ROW"),
    ("ORDER BY at PATTERN (A {- B -})", "A {-", "one row per match shows none of its rows", "ALL ROWS PER MATCH"),
    ("ORDER BY at PATTERN (A B) SUBSET U = (A, C)", "U = ", "expected variables of the pattern, A, B; found C", ""),
    ("ORDER BY at PATTERN (A B) SUBSET U (A)", "(A)", "expected =; found `(`", "SUBSET U = (A, B)"),
    ("ORDER BY at DEFINE A AS price > 1", "DEFINE", "expected PATTERN; found `DEFINE`", "this order"),
    ("ORDER BY at PATTERN (A) MEASURES A.price AS x", "MEASURES", "expected ); found `MEASURES`", "this order"),
    (
        "ORDER BY at DESC MEASURES A.price AS x PATTERN (A) WITHIN INTERVAL 1 HOUR",
        "INTERVAL",
        "an order that begins with the event time",
        "ORDER BY at",
    ),
    ("ORDER BY at PATTERN (A) WITHIN 3", "3)", "expected a span of time; found `3`", "INTERVAL"),
    ("PARTITION BY sym ORDER BY at PATTERN (A)", "sym ", "no column sym", "did you mean symbol?"),
    ("PARTITION BY upper(symbol) ORDER BY at PATTERN (A)", "upper", "expected a column", ""),
    ("ORDER BY at NULLS LAST PATTERN (A)", "at NULLS", "NULLS LAST is not taken", ""),
    ("ORDER BY at PATTERN (A)", "MATCH_RECOGNIZE", "at least one measure", "MEASURES count(*) AS n"),
    ("ORDER BY at MEASURES A.price AS x, A.at AS x PATTERN (A)", "MATCH_RECOGNIZE", "the column x is there twice", ""),
    ("ORDER BY at ALL ROWS PER MATCHES PATTERN (A)", "MATCHES", "expected MATCH; found `MATCHES`", ""),
    ("ORDER BY at PATTERN (A B", "", "expected ); found the end", ""),
]


@pytest.mark.parametrize(("clauses", "at", "message", "hint"), REFUSED, ids=[clauses for clauses, *_ in REFUSED])
def test_a_mistake_is_refused_at_its_place(clauses: str, at: str, message: str, hint: str) -> None:
    sql = f"SELECT * FROM ticks MATCH_RECOGNIZE ({clauses})"
    sql = sql[:-1] if "found the end" in message and at == "" else sql
    where = sql.rindex(at) if at else len(sql)
    line, column = sql.count("\n", 0, where) + 1, where - sql.rfind("\n", 0, where)
    with pytest.raises(PlanError) as caught:
        compile_query(sql, {"ticks": TICKS}, Origin("shop.sql", 1, 1))
    assert caught.value.message.startswith(f"shop.sql:{line}:{column}: "), caught.value.message
    assert message in caught.value.message
    assert hint in in_sql(caught.value.hint)
