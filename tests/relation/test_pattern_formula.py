"""What DEFINE and MEASURES say: slots, and an expression over them; what cannot be meant is refused."""

from __future__ import annotations

import pytest

from millstream.errors import PlanError
from millstream.relation.pattern import (
    Aggregated,
    Classifier,
    Formula,
    MatchId,
    MatchNumber,
    Navigation,
    Slot,
    Stage,
)
from millstream.relation.pattern_formula import PatternScope, condition, measure

SCOPE = PatternScope(
    ("symbol", "at", "price", "n", "ok", "deep", "_offset"), {"a": ("A",), "b": ("B",), "u": ("A", "B")}
)


def slots(formula: Formula) -> list[Slot]:
    assert [name for name, _ in formula.slots] == [f"_s{at}" for at in range(len(formula.slots))]
    return [slot for _, slot in formula.slots]


def last(argument: str, *variables: str, steps: int = 0, away: int = 0, final: bool = False) -> Navigation:
    return Navigation("last", variables, argument, steps, away, final)


CONDITIONS: list[tuple[str, str, list[Slot]]] = [
    ("price > 10", "_s0", [last("price > 10")]),
    ("A.price > 10 AND soundex(A.symbol) = 'x'", "_s0", [last("price > 10 AND soundex(symbol) = 'x'")]),
    (
        "n <> 0 AND PREV(n) > 1 AND price / n > 1",
        "_s0 AND _s1 > 1",
        [last("n <> 0 AND price / n > 1"), last("n", away=-1)],
    ),
    ("(n > 1 OR ok) AND LAST(B.n) > n", "_s0 AND _s1 > _s2", [last("(n > 1 OR ok)"), last("n", "B"), last("n")]),
    ("A.price BETWEEN 1 AND n", "_s0", [last("price BETWEEN 1 AND n")]),
    ("price < PREV(price)", "_s1 < _s0", [last("price", away=-1), last("price")]),
    ("A.price > LAST(B.price)", "_s1 > _s0", [last("price", "B"), last("price")]),
    ("A.price > B.price OR ok", "_s0 > _s1 OR _s2", [last("price"), last("price", "B"), last("ok")]),
    ("ok AND NEXT(A.price, 2) IS NULL", "_s0 AND _s1 IS NULL", [last("ok"), last("price", away=2)]),
    ("U.price > 1", "_s0", [last("price > 1")]),
    ("LAST(A.price, 1) > 1", "_s0 > 1", [last("price", "A", steps=1)]),
    ("PREV(LAST(B.price + B.n, 1), 2) > 1", "_s0 > 1", [last("price + n", "B", steps=1, away=-2)]),
    ("PREV(FIRST(price)) > 1", "_s0 > 1", [Navigation("first", (), "price", away=-1)]),
    ("RUNNING sum(A.price) > 1", "_s0 > 1", [Aggregated("sum", ("A",), ("price",))]),
    ("count(*) < 3 AND count(B.*) < 3", "_s0 < 3 AND _s1 < 3", [Aggregated("count", ()), Aggregated("count", ("B",))]),
    ("avg(U.price) > A.price", "_s0 > _s1", [Aggregated("avg", ("A", "B"), ("price",)), last("price")]),
    ("PREV(CLASSIFIER()) = 'B'", "_s0 = 'B'", [Classifier(away=-1)]),
    ("A.deep.low > B.deep.low", "_s0 > _s1", [last("deep.low"), last("deep.low", "B")]),
    ("exists(array(price), p -> p > n)", "_s0", [last("exists(array(price), p -> p > n)")]),
    ("a.PRICE > b.price", "_s0 > _s1", [last("price"), last("price", "B")]),
    ("true", "true", []),
    ("_offset > 3", "_s0", [last("_offset > 3")]),
]


@pytest.mark.parametrize(("text", "sql", "expected"), CONDITIONS, ids=[text for text, *_ in CONDITIONS])
def test_a_condition_is_cut_into_slots(text: str, sql: str, expected: list[Slot]) -> None:
    made = condition("A", text, SCOPE)
    assert (made.name, made.expression, slots(made), made.written) == ("A", sql, expected, text)


MEASURES: list[tuple[str, str, list[Slot]]] = [
    ("A.price", "_s0", [last("price", "A")]),
    ("price", "_s0", [last("price")]),
    ("FINAL LAST(A.price)", "_s0", [last("price", "A", final=True)]),
    ("RUNNING LAST(A.price)", "_s0", [last("price", "A")]),
    (
        "LAST(U.price) - FIRST(A.price, 2)",
        "_s0 - _s1",
        [last("price", "A", "B"), Navigation("first", ("A",), "price", 2)],
    ),
    ("PREV(FINAL LAST(A.price), 2)", "_s0", [last("price", "A", away=-2, final=True)]),
    ("upper(A.symbol)", "upper(_s0)", [last("symbol", "A")]),
    ("LAST(upper(A.symbol))", "_s0", [last("upper(symbol)", "A")]),
    ("sum(price) / count(*)", "_s0 / _s1", [Aggregated("sum", (), ("price",)), Aggregated("count", ())]),
    ("FINAL count(B.*)", "_s0", [Aggregated("count", ("B",), final=True)]),
    ("count(B.*) FILTER (WHERE B.ok)", "_s0", [Aggregated("count", ("B",), ("CASE WHEN ok THEN 1 END",))]),
    ("count(DISTINCT A.price)", "_s0", [Aggregated("count_distinct", ("A",), ("price",))]),
    ("percentile(A.price, 0.9)", "_s0", [Aggregated("percentile", ("A",), ("price",), 0.9)]),
    ("max_by(A.price, A.at)", "_s0", [Aggregated("max_by", ("A",), ("price", "at"))]),
    ("CLASSIFIER()", "_s0", [Classifier()]),
    ("FIRST(CLASSIFIER(U), 1)", "_s0", [Classifier("first", ("A", "B"), 1)]),
    ("concat(MATCH_ID(), CLASSIFIER(u))", "concat(_s0, _s1)", [MatchId(), Classifier("last", ("A", "B"))]),
    ("match_number() + 1", "_s0 + 1", [MatchNumber()]),
    ("STAGE()", "_s0", [Stage()]),
    ("A.price + A.price", "_s0 + _s0", [last("price", "A")]),
]


@pytest.mark.parametrize(("text", "sql", "expected"), MEASURES, ids=[text for text, *_ in MEASURES])
def test_a_measure_is_cut_into_slots(text: str, sql: str, expected: list[Slot]) -> None:
    made = measure("m", text, SCOPE, all_rows=True)
    assert (made.expression, slots(made)) == (sql, expected)


def test_of_one_row_per_match_everything_is_final() -> None:
    made = measure("m", "FINAL LAST(A.price) - RUNNING LAST(A.price)", SCOPE, all_rows=False)
    assert (made.expression, slots(made)) == ("_s0 - _s0", [last("price", "A")])


REFUSED = [
    ("FINAL LAST(A.price) > 1", "DEFINE is always RUNNING", "leave out FINAL"),
    ("avg(A.price + B.n) > 1", "columns of A and B in one call", "SUBSET"),
    ("LAST(A.price + n) > 1", "columns of A and no variable in one call", ""),
    ("MATCH_NUMBER() > 1", "`MATCH_NUMBER()`: a condition cannot ask for it", ""),
    ("MATCH_ID() = 'x'", "a condition cannot ask for it", ""),
    ("A > 1", "A is a variable; expected a column of it", "A.symbol"),
    ("C.price > 1", "no column C.price; there are symbol, at", "the variables are A, B"),
    ("A.prise > 1", "no column A.prise", "did you mean price?"),
    ("FIRST(PREV(price)) > 1", "expected columns inside; found `PREV(price)`", "PREV(LAST(A.x, 1), 2)"),
    ("PREV(PREV(price)) > 1", "expected columns, FIRST or LAST inside", "PREV(LAST(A.x, 1), 2)"),
    ("PREV(price + LAST(A.n)) > 1", "expected columns, FIRST or LAST inside", ""),
    ("sum(LAST(A.price)) > 1", "a call over rows inside another", ""),
    ("PREV(3) > 1", "expected a column inside; found `3`", ""),
    ("LAST(A.price, n) > 1", "a whole number of rows or none", "LAST(A.x, 2)"),
    ("lag(price) > 1", "lag is no function of patterns", "PREV(A.x, 1)"),
    ("price > (SELECT 1)", "define A `price > (SELECT 1)`: expected a value of one row; found a subquery", ""),
    ("LAST(B.price) > rand()", "define A `LAST(B.price) > rand()`: expected a value of one row", ""),
    ("A.price >", "define A `A.price >`: this is not Spark SQL", ""),
    ("CLASSIFIER(X) = 'A'", "expected CLASSIFIER(), or one variable", ""),
    ("count(X.*) > 1", "X is no variable of the pattern", ""),
    ("stddev(A.price) > 1", "expected one of count", ""),
    ("approx_count_distinct(A.price) > 1", "saves nothing over a match", "count(DISTINCT e)"),
    ("row_number() > 1", "the window function row_number", ""),
    ("RUNNING A.price", "RUNNING goes before FIRST, LAST or an aggregate", ""),
]


@pytest.mark.parametrize(("text", "message", "hint"), REFUSED, ids=[text for text, *_ in REFUSED])
def test_what_a_condition_cannot_say_is_refused(text: str, message: str, hint: str) -> None:
    with pytest.raises(PlanError) as caught:
        condition("A", text, SCOPE)
    assert caught.value.message.startswith("define A")
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert "_s0" not in caught.value.message
