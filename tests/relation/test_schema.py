"""Columns and durations as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import PlanError
from millstream.relation.nodes import Column
from millstream.relation.schema import format_duration, is_timestamp, parse_columns, parse_duration


def test_columns_keep_their_order_names_and_types() -> None:
    assert parse_columns("user_id long, page string, at timestamp, tags array<string>") == (
        Column("user_id", "long"),
        Column("page", "string"),
        Column("at", "timestamp"),
        Column("tags", "array<string>"),
    )


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("BIGINT", "BIGINT"),
        ("decimal( 10,2 )", "decimal(10, 2)"),
        ("decimal", "decimal"),
        ("varchar(3)", "varchar(3)"),
        ("array < array<int>>", "array<array<int>>"),
        ("map<string,double>", "map<string, double>"),
        ("struct<Name:string, `of day` int>", "struct<Name: string, `of day`: int>"),
        ("struct<a array<struct<b map<string,array<int>>>>>", "struct<a: array<struct<b: map<string, array<int>>>>>"),
        ("interval day  to second", "interval day to second"),
        ("interval year", "interval year"),
        ("variant", "variant"),
    ],
)
def test_a_type_stays_as_written_with_regular_spaces(written: str, kept: str) -> None:
    (column,) = parse_columns(f"x {written}")
    assert column == Column("x", kept)
    assert parse_columns(f"x: {kept}") == (column,)


def test_a_name_may_be_quoted_or_a_word_of_sql() -> None:
    names = [column.name for column in parse_columns("`unit price` double, timestamp timestamp, order int, select int")]
    assert names == ["unit price", "timestamp", "order", "select"]


@pytest.mark.parametrize(
    ("ddl", "message", "hint"),
    [
        ("", "at least one column; found none", "user_id long"),
        ("  ", "at least one column; found none", "user_id long"),
        ("a", "expected a Spark type for a; found the end", "types:"),
        ("a strng", "expected a Spark type for a; found 'strng'", "did you mean string?"),
        ("a array<strng>", "expected a Spark type for a; found 'strng'", "did you mean string?"),
        ("a struct<b: lung>", "expected a Spark type for a.b; found 'lung'", "did you mean long?"),
        ("a array", "expected array<…>; found the end", "columns are written like"),
        ("a map<int>", "expected the value's type of map<…>; found '>'", "columns are written like"),
        ("a varchar", "expected a length, varchar(…); found the end", "Spark calls it string"),
        ("a decimal(x)", "expected a whole number; found 'x'", "columns are written like"),
        ("a interval fortnight", "after interval; found 'fortnight'", "columns are written like"),
        ("a int,", "expected a column's name; found the end", "columns are written like"),
        ("a int b int", "expected a comma or the end after column a; found 'b'", "columns are written like"),
        ("a int not null", "expected a comma or the end after column a; found 'not'", "IS NOT NULL"),
        ("1 int", "expected a column's name; found '1'", "columns are written like"),
        ("a 'x", "not a schema", "columns are written like"),
        ("a int, A string", "column A is there twice", ""),
        ("`a``b` int", "a backquote in a name", "rename the column"),
        ("_a int", "names beginning with _ are Millstream's own", "call it a"),
        ("Window_Start timestamp", "reserved for windows", "rename"),
        ("window_end timestamp", "reserved for windows", "rename"),
    ],
)
def test_a_schema_that_is_wrong_says_what_was_found(ddl: str, message: str, hint: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_columns(ddl)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_only_a_timestamp_with_a_zone_is_a_point_in_time() -> None:
    kinds = {column.type: is_timestamp(column) for column in parse_columns("a TIMESTAMP, b timestamp_ntz, c date")}
    assert kinds == {"TIMESTAMP": True, "timestamp_ntz": False, "date": False}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10 seconds", timedelta(seconds=10)),
        ("1 minute", timedelta(minutes=1)),
        ("500 milliseconds", timedelta(milliseconds=500)),
        ("1 hour 30 minutes", timedelta(minutes=90)),
        ("2 Days", timedelta(days=2)),
        ("1 week", timedelta(weeks=1)),
        ("10s", timedelta(seconds=10)),
        ("5m", timedelta(minutes=5)),
        ("500ms", timedelta(milliseconds=500)),
        ("7us", timedelta(microseconds=7)),
        ("2h", timedelta(hours=2)),
        (" 7d ", timedelta(days=7)),
        ("1h30m", timedelta(minutes=90)),
        ("0 seconds", timedelta(0)),
        (timedelta(seconds=3), timedelta(seconds=3)),
    ],
)
def test_a_duration_is_read(text: str | timedelta, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found ''"),
        ("5", "found '5'"),
        ("soon", "found 'soon'"),
        ("-1 second", "found '-1 second'"),
        ("1.5 hours", "found '1.5 hours'"),
        ("10 seconds and", "found '10 seconds and'"),
        ("3 months", "'months' is not always the same length"),
        ("1 year", "'year' is not always the same length"),
        ("5M", "'M' is not always the same length"),
        ("3 fortnights", "'fortnights' is not a unit of time"),
        ("999999999999 days", "too long"),
        (timedelta(seconds=-1), "negative"),
        (10, "found 10"),
        (None, "found None"),
    ],
)
def test_what_is_no_duration_is_refused(text: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_duration(text)
    assert message in caught.value.message


@settings(deadline=None)
@given(st.timedeltas(min_value=timedelta(0)))
def test_a_duration_that_was_written_is_read_as_the_same(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration
