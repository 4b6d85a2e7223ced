"""Days moved by spans, parts of days, and SQL's own ways of writing a call."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

from tests.scalar.test_compile import compiled, compute

DAYS = [date(2024, 2, 29), date(1969, 12, 31), date(1, 1, 1), date(9999, 12, 31), None]
TEXTS = ["abc", " a ", "", "é😀", None]


@pytest.mark.parametrize(
    ("sql", "same"),
    [
        ("extract(YEAR FROM d)", "year(d)"), ("extract(mons FROM d)", "month(d)"), ("extract(D FROM d)", "day(d)"),
        ("extract(QTR FROM d)", "quarter(d)"), ("extract(W FROM d)", "weekofyear(d)"), ("extract(DOW FROM d)", "dayofweek(d)"),
        ("extract(DOY FROM d)", "dayofyear(d)"), ("date_part('Year', d)", "year(d)"), ("datepart('days', d)", "day(d)"),
        ("substring(s FROM 1 FOR 2)", "substring(s, 1, 2)"), ("substr(s FROM 2)", "substring(s, 2)"),
        ("trim(BOTH FROM s)", "trim(s)"), ("trim(LEADING FROM s)", "ltrim(s)"), ("trim(TRAILING FROM s)", "rtrim(s)"),
        ("trim('a' FROM s)", "trim(BOTH 'a' FROM s)"), ("trim(BOTH '' FROM s)", "s"),
        ("s IS NOT DISTINCT FROM NULL", "s IS NULL"), ("s IS DISTINCT FROM 'abc'", "NOT s <=> 'abc'"), ("s ILIKE 'A%'", "lower(s) LIKE 'a%'"),
        ("d >= '1994-01-01'", "d >= DATE '1994-01-01'"), ("d BETWEEN '1969-01-01' AND '1970-01-01'", "year(d) = 1969"),
        ("d - INTERVAL '90' DAY < DATE '2024-01-01'", "date_sub(d, 90) < DATE '2024-01-01'"),
        ("DATE '2024-05-29' - INTERVAL '90' DAY = d", "DATE '2024-02-29' = d"), ("DATE '2024-02-29' + INTERVAL 1 YEAR > d", "DATE '2025-02-28' > d"),
    ],
)  # fmt: skip
def test_two_spellings_are_one(sql: str, same: str) -> None:
    columns: dict[str, list[Any]] = {"d": DAYS, "s": TEXTS}
    found = compute(sql, **columns)
    assert found == compute(same, **columns)
    assert any(found)
    assert compiled(sql).dtype == compiled(same).dtype


def test_a_literal_day_that_is_moved_is_a_literal() -> None:
    assert compute("d IN (DATE '1998-12-01' - INTERVAL '90' DAY, DATE '2024-03-01' - 1)", d=DAYS) == [
        True,
        False,
        False,
        False,
        None,
    ]


def test_days_and_times_are_moved_by_spans() -> None:
    assert compute("d + INTERVAL '1' DAY", d=DAYS[:3]) == [date(2024, 3, 1), date(1970, 1, 1), date(1, 1, 2)]
    assert compute("d - INTERVAL '1' MONTH", d=DAYS[:2]) == [date(2024, 1, 29), date(1969, 11, 30)]
    assert compute("INTERVAL 1 YEAR + d", d=DAYS[:2]) == [date(2025, 2, 28), date(1970, 12, 31)]
    assert compute("d + INTERVAL 1 WEEK", d=[None, DAYS[0]]) == [None, date(2024, 3, 7)]
    assert compute("add_months(d, -2) + 1", d=DAYS[:2]) == [date(2023, 12, 30), date(1969, 11, 1)]
    assert compute("at - INTERVAL 13 MONTHS", at=[datetime(2024, 3, 31, 5, tzinfo=UTC), None]) == [
        datetime(2023, 2, 28, 5, tzinfo=UTC),
        None,
    ]
    assert compute("datediff(d, DATE '2024-01-01')", d=DAYS[:2]) == [59, -19724]
    assert compute("date_add(d, i)", d=DAYS[:2] * 2, i=[1, -1, 2**31 - 1, None]) == [
        date(2024, 3, 1),
        date(1969, 12, 30),
        ...,
        None,
    ]


def test_parts_of_days() -> None:
    days = [date(2024, 12, 30), date(1969, 12, 28), date(2000, 2, 29)]
    assert compute("weekofyear(d)", d=days) == [1, 52, 9]
    assert compute("dayofweek(d)", d=days) == [2, 1, 3]
    assert compute("weekday(d)", d=days) == [0, 6, 1]
    assert compute("dayofyear(d)", d=days) == [365, 362, 60]
    assert compute("quarter(d)", d=days) == [4, 4, 1]


def test_the_greatest_and_the_least_look_past_nulls() -> None:
    assert compute("greatest(i, j)", i=[1, None, None], j=[2, 3, None]) == [2, 3, None]
    assert compute("least(s, t, 'b')", s=["a", None], t=["é", "c"]) == ["a", "b"]
    nan = float("nan")
    assert repr(compute("greatest(x, z)", x=[nan, 0.0, -0.0, None], z=[1.0, -0.0, 0.0, 2.0])) == "[nan, 0.0, -0.0, 2.0]"
    assert compute("least(x, z)", x=[nan, 1.0], z=[1.0, None]) == [1.0, 1.0]
