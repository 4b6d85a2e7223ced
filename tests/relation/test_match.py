"""`match` and `match_any`: what they are made of, what is said of their rows, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from millstream import Pipeline, Relation
from millstream.errors import PlanError
from millstream.relation.nodes import Match, Node
from millstream.relation.operators.match import not_final
from millstream.relation.pattern import Skip
from millstream.relation.properties import event_time, is_bounded, is_insert_only, natural_key, settled

FALL = {"DOWN": "price < PREV(price)"}


@pytest.fixture
def shop() -> Pipeline:
    return Pipeline("shop")


@pytest.fixture
def ticks(shop: Pipeline) -> Relation:
    return shop.stream("ticks", "symbol string, price double, n int, at timestamp", time="at")


@pytest.fixture
def corrected(shop: Pipeline) -> Relation:
    return shop.stream("fixed", "k long, at timestamp", time="at", late="correct", lateness="1 hour")


def found(relation: Relation) -> Match:
    assert isinstance(relation.node, Match)
    return relation.node


def test_one_row_per_match_has_the_partition_and_the_measures(ticks: Relation) -> None:
    made = ticks.match("A DOWN+", FALL, {"low": "LAST(DOWN.price)"}, partition=["symbol", "n AS lot"], order="at")
    assert made.columns == ("symbol", "lot", "low")
    assert str(made).endswith(
        "match partition symbol, n AS lot order at: (A DOWN+) where DOWN as price < PREV(price): low = LAST(DOWN.price)"
    )


def test_all_rows_have_the_columns_of_the_input_too(ticks: Relation) -> None:
    made = ticks.match("A", None, {"c": "CLASSIFIER()"}, partition="symbol", order="at", rows="all_with_unmatched")
    assert made.columns == ("symbol", "price", "n", "at", "c")
    assert ticks.match("A", order="at", rows="all").columns == ticks.columns


def test_several_patterns_say_which_one_was_found(ticks: Relation) -> None:
    one = {"pattern": "A DOWN+", "define": FALL, "measures": {"to": "LAST(DOWN.price)"}}
    two = {"pattern": "A B", "measures": {"to": "B.price"}, "within": "1 minute", "skip": "to next row"}
    made = ticks.match_any({"falls": one, "pairs": two}, partition="symbol", order="at")
    assert made.columns == ("symbol", "pattern", "to")
    assert [(each.name, each.within, each.skip.to) for each in found(made).searches] == [
        ("falls", None, "past_last"),
        ("pairs", 60_000_000, "next_row"),
    ]


def test_what_is_said_of_the_rows_of_matches(ticks: Relation, corrected: Relation) -> None:
    timed = {"id": "MATCH_ID()", "first": "FIRST(A.at)", "then": "LAST(B.at)", "before": "PREV(A.at)", "n": "count(*)"}
    made = ticks.match("A B+", None, timed, partition="symbol", order="at", within="5 minutes").node
    assert natural_key(made) == ("symbol", "id")
    assert settled(made) == {"first": timedelta(minutes=5), "then": timedelta(minutes=5)}
    assert event_time(made) is None
    assert (is_insert_only(made), is_insert_only(made, "final")) == (False, True)
    late = corrected.match("A B", None, timed, partition="k", order="at", within="5 minutes").node
    assert settled(late)["first"] == timedelta(minutes=65)
    assert not is_insert_only(late, "final")
    shown = ticks.match("A B", None, {"id": "MATCH_ID()"}, order="at", within="5 minutes", rows="all").node
    assert settled(shown) == {"at": timedelta(minutes=5)}
    assert natural_key(shown) == ()
    assert natural_key(ticks.match("A B", None, {"n": "count(*)"}, order="at").node) == ()
    assert settled(ticks.match("A B", None, timed, order="price").node) == {}


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda it: it.match("A B+", None, {"n": "count(*)"}, order="at", within="1 hour"), True),
        (lambda it: it.match("A B+", None, {"n": "count(*)"}, order="at"), False),
        (lambda it: it.match("A B+", None, {"n": "count(*)"}, order="at DESC"), False),
        (lambda it: it.match("A B+", FALL | {}, {"n": "PREV(A.price)"}, order="at", within="1 hour"), None),
        (lambda it: it.match("A B+", None, {"n": "MATCH_NUMBER()"}, order="at", within="1 hour"), False),
        (lambda it: it.match("^ A B+", None, {"n": "count(*)"}, order="at", within="1 hour"), False),
        (lambda it: it.match("A", None, {"n": "PREV(A.price)"}, order="at", within="1 hour"), False),
    ],
)
def test_a_pattern_is_bounded_by_time_and_what_it_keeps_of_a_key(
    make: Callable[[Relation], Relation], expected: bool | None, ticks: Relation
) -> None:
    if expected is None:
        with pytest.raises(PlanError, match="the pattern has no such variable; there are A, B"):
            make(ticks)
    else:
        assert is_bounded(make(ticks).node) is expected


@pytest.mark.parametrize(
    ("pattern", "within", "why"),
    [
        ("A B C", None, ""),
        ("A DOWN+", None, ""),
        ("A B*", "1 hour", ""),
        ("A B $", "1 hour", ""),
        ("A B*?", None, ""),
        ("A B{2,3}", None, ""),
        ("A B*", None, "B*"),
        ("A (DOWN | B)+", None, "(DOWN | B)+"),
        ("A (B+ DOWN*)", None, "B+"),
        ("A B $", None, "$"),
        ("A (B C*){2}", None, "C*"),
    ],
)
def test_a_match_whose_end_is_never_known_cannot_be_final(
    pattern: str, within: str | None, why: str, ticks: Relation, shop: Pipeline
) -> None:
    define = FALL if "DOWN" in pattern else None
    made = ticks.match(pattern, define, {"n": "count(*)"}, order="at", within=within)
    error = not_final(made.select("n").node)
    assert (error.message if error else "").startswith(f'emit="final": a match of {why} at the end' if why else "")
    assert (error is None) is (not why)
    if why:
        with pytest.raises(PlanError, match=r"test_match.py:\d+: view v: emit=\"final\": a match of") as caught:
            shop.view("v", made, emit="final", unbounded=True)
        assert 'within="5 minutes"' in caught.value.hint


def test_what_is_not_in_the_order_of_time_cannot_be_final(ticks: Relation, shop: Pipeline) -> None:
    made = ticks.match("A B", None, {"n": "count(*)"}, order="price")
    with pytest.raises(PlanError, match="in the order of the event time alone") as caught:
        shop.view("v", made, emit="final", unbounded=True)
    assert 'order="at"' in caught.value.hint


def test_skips_are_read_with_their_variables(ticks: Relation) -> None:
    def skip(text: str) -> Skip:
        made = ticks.match("A (B | C)+ D", None, {"n": "count(*)"}, order="at", skip=text, subset={"U": ["C", "B"]})
        return found(made).searches[0].skip

    assert skip("PAST LAST ROW") == Skip()
    assert skip("to next row") == Skip("next_row")
    assert skip("to first b") == Skip("first", ("B",))
    assert skip("to last U") == Skip("last", ("C", "B"))
    assert skip("to D") == Skip("last", ("D",))


def test_a_near_miss_has_its_stage(ticks: Relation) -> None:
    made = ticks.match("A B", None, {"at": "A.at"}, order="at", within="1 minute", near=True)
    assert made.columns == ("at", "stage")
    own = ticks.match("A B", None, {"came_to": "lower(STAGE())"}, order="at", within="1 minute", near=True)
    assert own.columns == ("came_to",)


N = {"n": "count(*)"}
REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda it: it.match("A B", None, N), "match: a pattern needs an order"),
    (lambda it: it.match("A |", None, N, order="at"), "match: pattern `A |`, character 4: expected a variable; found the end"),
    (lambda it: it.match(3, None, N, order="at"), "match: expected a pattern as text; found 3"),
    (lambda it: it.match("A", {"B": "price > 1"}, N, order="at"), "define B: the pattern has no such variable; there are A"),
    (lambda it: it.match("A", {"A": "price > 1", "a": "n > 1"}, N, order="at"), "define a: it is defined twice"),
    (lambda it: it.match("A", {"A": 3}, N, order="at"), "define A: expected an expression as text; found 3"),
    (lambda it: it.match("A", None, {"x": "A.prise"}, order="at"), "measure x: no column A.prise"),
    (lambda it: it.match("A", order="at"), "match: expected at least one measure; found none"),
    (lambda it: it.match("A", None, {"_x": "A.n"}, order="at"), "names beginning with _ are Millstream's own"),
    (lambda it: it.match("A", None, {"window_end": "A.n"}, order="at"), "window_end is reserved for windows"),
    (lambda it: it.match("A", None, {"symbol": "A.n"}, partition="symbol", order="at"), "the column symbol is there twice"),
    (lambda it: it.match("A", None, {"price": "A.n"}, order="at", rows="all"), "the column price is there twice"),
    (lambda it: it.match("A", None, N, order="at", partition="upper(symbol)"), "expected a column or an expression with a name"),
    (lambda it: it.match("A", None, N, order="at", rows="some"), "expected rows to be one of one, all, all_with_empty"),
    (lambda it: it.match("A", None, N, order="at", skip="on"), "expected skip to be one of"),
    (lambda it: it.match("A B", None, N, order="at", skip="to last C"), "skip: C is no variable of the pattern; there are A, B"),
    (lambda it: it.match("A B", None, N, order="at", skip="to first A"), "skip to first A: that is the first row of every match"),
    (lambda it: it.match("A+ B", None, N, order="at", skip="to first A"), "skip to first A: that is the first row"),
    (lambda it: it.match("A B", None, N, order="at", skip="to last A"), "skip to last A: that is the first row"),
    (lambda it: it.match("A B", None, N, order="at", subset={"B": ["A"]}), "subset B: there is a variable or a subset"),
    (lambda it: it.match("A B", None, N, order="at", subset={"U": ["A", "C"]}), "subset U: expected variables of the pattern, A, B; found C"),
    (lambda it: it.match("A B", None, N, order="at", subset={"U": []}), "subset U: expected variables of the pattern, A, B; found none"),
    (lambda it: it.match("A {- B -}", None, N, order="at"), "one row per match shows none of its rows"),
    (lambda it: it.match("A {- B -}", None, N, order="at", rows="all_with_unmatched"), "with unmatched rows every row is shown"),
    (lambda it: it.match("A B", None, N, order="at", near=True), "near=True needs within="),
    (lambda it: it.match("A B", None, N, order="at", near=True, within="1 hour", rows="all"), "near=True needs within=, and one row per match"),
    (lambda it: it.match("A B", None, N, order="price", near=True, within="1 hour"), "near=True needs an order that begins with the event time"),
    (lambda it: it.match("A B", None, N, order="at DESC", within="1 hour"), "within= needs an order that begins with the event time, ascending"),
    (lambda it: it.match("A B", None, N, order="at", within="soon"), "soon"),
    (lambda it: it.match("A", None, N, order="at", name=""), "expected a name as text"),
    (lambda it: it.match_any({}, order="at"), "match_any: expected patterns by their names"),
    (lambda it: it.match_any({"a": {"measures": N}}, order="at"), "match_any a: expected pattern, define"),
    (lambda it: it.match_any({"a": {"pattern": "A", "order": "at"}}, order="at"), "match_any a: expected pattern, define"),
    (lambda it: it.match_any({"a": {"pattern": "A", "measures": N}, "b": {"pattern": "A", "measures": {"m": "A.n"}}}, order="at"), "a and b: expected measures of the same names; found n and m"),
    (lambda it: it.match_any({"a": {"pattern": "A", "measures": N}, "b": {"pattern": "A", "measures": N, "rows": "all"}}, order="at"), "expected the same rows="),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[f"{at}" for at, _ in enumerate(REFUSED)])
def test_what_does_not_hold_together_is_refused_in_its_line(
    make: Callable[[Any], Any], message: str, ticks: Relation
) -> None:
    with pytest.raises(PlanError, match=r"^tests/relation/test_match.py:\d+: ") as caught:
        make(ticks)
    assert message in caught.value.message


def test_two_that_say_the_same_are_equal_whatever_their_spaces(ticks: Relation) -> None:
    def made(text: str) -> Node:
        return ticks.match(text, FALL, {"low": "LAST(DOWN.price)"}, order="at").node

    assert made("A DOWN+") == made(" A  ( DOWN ) + ")
    assert made("A DOWN+") != made("A DOWN*")
