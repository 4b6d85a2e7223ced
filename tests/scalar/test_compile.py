"""Scalar Spark SQL in Polars, without Spark: what is in the subset, what is unsure, what is refused."""

from __future__ import annotations

import math
import operator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.scalar.compile import Scalar, compile_scalar

# A busy machine is not a failure.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

TIMESTAMP = pl.Datetime("us", "UTC")
INT8, INT32, INT64, DOUBLE, TEXT, BOOLEAN = (
    pl.Int8(), pl.Int32(), pl.Int64(), pl.Float64(), pl.String(), pl.Boolean()
)  # fmt: skip
COLUMNS: dict[str, pl.DataType] = {
    "y": INT8, "i": INT32, "j": INT32, "n": INT64, "m": INT64, "x": DOUBLE, "z": DOUBLE, "s": TEXT, "t": TEXT,
    "b": BOOLEAN, "c": BOOLEAN, "at": TIMESTAMP, "due": TIMESTAMP, "d": pl.Date(), "local": pl.Datetime("us"),
    "price": pl.Decimal(10, 2), "tall": pl.Decimal(38, 4), "fine": pl.Decimal(30, 10), "real": pl.Float32(), "tags": pl.List(TEXT), "who": pl.Struct({"id": INT64}),
    "raw": pl.Binary(),
}  # fmt: skip
LEAST, MOST = -(2**63), 2**63 - 1


def compiled(sql: str) -> Scalar:
    scalar = compile_scalar(sql, COLUMNS, utc=True)
    assert scalar is not None, f"{sql} is not in the subset"
    return scalar


def compute(sql: str, **columns: list[Any]) -> list[Any]:
    """The value in every row, and ``...`` where only Spark knows; the rows are computed together and one by one."""
    scalar = compiled(sql)
    frame = pl.DataFrame(columns, schema={name: COLUMNS[name] for name in columns})
    unsure = pl.lit(False) if scalar.unsure is None else scalar.unsure

    def rows(part: pl.DataFrame) -> list[Any]:
        found = part.with_columns(_value=scalar.value, _unsure=unsure.fill_null(False))
        assert found.get_column("_value").dtype == scalar.dtype
        sure = found.select(pl.when(~pl.col("_unsure")).then("_value"), "_unsure")  # what is not sure may be anything
        return [... if hidden else value for value, hidden in sure.iter_rows()]

    together = rows(frame)
    alone = [row for part in frame.iter_slices(1) for row in rows(part)]
    assert repr(alone) == repr(together), "a row's answer depends on the rows around it"
    return together


def micros(time: datetime) -> int:
    return int((time - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * 1_000_000 + time.microsecond


def test_the_start_of_a_window_is_found_before_and_after_1970() -> None:
    sql = "timestamp_micros(unix_micros(at) - pmod(unix_micros(at), 60000000))"
    times = [
        datetime(2026, 7, 31, 12, 34, 56, 789, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC),
        None,
    ]
    assert compute(sql, at=times) == [
        datetime(2026, 7, 31, 12, 34, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, tzinfo=UTC), None
    ]  # fmt: skip
    far = pl.Series("at", [LEAST, LEAST + 2**50, MOST]).cast(TIMESTAMP).to_frame()
    unsure = compiled(sql).unsure
    assert unsure is not None
    assert far.select(unsure).to_series().to_list() == [True, False, False]


@pytest.mark.parametrize(
    ("sql", "dtype"),
    [
        ("1", INT32), ("-2147483648", INT32), ("2147483648", INT64), ("-(2147483648)", INT64), ("1L", INT64),
        ("-128Y", INT8), ("1e3", DOUBLE), ("1.5D", DOUBLE), ("y + y", INT8), ("y + i", INT32), ("y + 1", INT32),
        ("i * 1L", INT64), ("i / j", DOUBLE), ("x + 1.5", DOUBLE), ("i + x", DOUBLE), ("pmod(y, 7)", INT32),
        ("y::bigint", INT64), ("cast(i AS string)", TEXT), ("coalesce(y, i, n)", INT64), ("if(b, i, x)", DOUBLE),
        ("CASE WHEN b THEN y WHEN c THEN 1 END", INT32), ("nullif(i, n)", INT32), ("length(s)", INT32),
        ("floor(x)", INT64),
        ("unix_seconds(at)", INT64), ("timestamp_seconds(i)", TIMESTAMP), ("DATE '2024-02-29'", pl.Date()),
        ("i > x", BOOLEAN),
        ("price", pl.Decimal(10, 2)), ("tags", pl.List(TEXT)), ("who", pl.Struct({"id": INT64})),
        ("real", pl.Float32()),
        ("1.5", pl.Decimal(2, 1)), ("0.05", pl.Decimal(2, 2)), ("0.908 * n", pl.Decimal(24, 3)), ("i * 0.908", pl.Decimal(14, 3)),
        ("price + n", pl.Decimal(23, 2)), ("price - 1.555", pl.Decimal(12, 3)), ("coalesce(0.908 * n, 0)", pl.Decimal(24, 3)),
        ("if(b, price, n)", pl.Decimal(22, 2)), ("nullif(price, 0)", pl.Decimal(10, 2)), ("CASE WHEN b THEN 1 ELSE 1.5 END", pl.Decimal(11, 1)),
        ("price + 1", pl.Decimal(11, 2)), ("1 - price", pl.Decimal(11, 2)), ("price + cast(1 AS int)", pl.Decimal(13, 2)), ("(100) * price", pl.Decimal(14, 2)),
        ("price * (1 - price)", pl.Decimal(22, 4)), ("price * (1 - price) * (1 + price)", pl.Decimal(34, 6)), ("tall * price", pl.Decimal(38, 6)),
        ("tall * 0.01", pl.Decimal(38, 6)), ("n * 12345678901234567.1", pl.Decimal(38, 1)), ("1.5 + 1", pl.Decimal(3, 1)), ("0.06 - 0.01", pl.Decimal(3, 2)),
        ("0.06 * 0.01", pl.Decimal(5, 4)), ("-(1.5)", pl.Decimal(2, 1)), ("-price", pl.Decimal(10, 2)), ("abs(price)", pl.Decimal(10, 2)), ("price * x", DOUBLE),
        ("price > x", BOOLEAN), ("price IN (1, 2.5)", BOOLEAN), ("i IN (1.5)", BOOLEAN), ("cast(price AS double)", DOUBLE), ("cast(price AS bigint)", INT64),
        ("cast(price AS string)", TEXT), ("s || price", TEXT), ("CASE WHEN b THEN price ELSE x END", DOUBLE), ("cast(i AS decimal(10, 2))", pl.Decimal(10, 2)),
        ("price::dec(5)", pl.Decimal(5, 0)), ("cast(x AS numeric)", pl.Decimal(10, 0)), ("round(x, 2)", DOUBLE), ("round(i)", INT32), ("round(price, 1)", pl.Decimal(10, 1)),
        ("round(price, 5)", pl.Decimal(11, 2)), ("round(tall, 2)", pl.Decimal(37, 2)), ("greatest(i, n)", INT64), ("least(price, i)", pl.Decimal(12, 2)),
        ("extract(YEAR FROM d)", INT32), ("d + INTERVAL 1 DAY", pl.Date()), ("d - INTERVAL '1' MONTH", pl.Date()), ("d + 1", pl.Date()), ("datediff(d, at)", INT32),
        ("at + INTERVAL 1 YEAR", TIMESTAMP), ("d = '2024-01-01'", BOOLEAN), ("i IS NOT DISTINCT FROM n", BOOLEAN),
        ("hour(at)", INT32), ("year(d)", INT32), ("to_date(at)", pl.Date()), ("at + INTERVAL 1 DAY", TIMESTAMP),
        ("split(s, '/')", pl.List(TEXT)), ("tags[0]", TEXT), ("date_format(at, 'yyyy')", TEXT), ("round(x)", DOUBLE),
        ("tags IS NULL", BOOLEAN), ("raw", pl.Binary()), ("CASE WHEN b THEN NULL ELSE s END", TEXT), ("abs(y)", INT8),
    ],
)  # fmt: skip
def test_a_result_has_the_type_that_spark_gives_it(sql: str, dtype: pl.DataType) -> None:
    assert compiled(sql).dtype == dtype


@pytest.mark.parametrize(
    "sql",
    [
        # no such column, or not clear which
        "nobody", "who.id", "tags[i]", "tags[-1]", "get(tags, -1)", "get(tags, i)", "get(s, 0)", "get(tags)", "tags[true]", "tags['a']", "who[0]", "element_at(tags, 0)", "s[0]", "`i", "i.i",
        # types
        "price / 2", "price / price", "price % 2", "price + 1Y", "tall * tall", "-tall", "abs(tall)", "tall > fine", "1.5 + (1 + 1)",
        "cast(s AS decimal(10, 2))", "cast(price AS decimal(39, 2))", "cast(price AS decimal(2, 3))", "cast(x AS decimal(38, 18))",
        "cast(fine AS string)", "floor(price)", "round(price, -1)", "round(x, i)", "round(x, -2)", "round(x, 20)", "round(s)", "round(1.5)",
        "i < 9223372036854775808.0", "price IS TRUE", "real + 1", "tags = tags", "who = who", "raw = raw", "NULL",
        "i / 2.0", "i = b", "s = 1", "at > '2024-01-01'", "at > d", "d = '2024-1-1'", "d = s", "d IN ('2024-01-01')", "d + 1L", "1 - d", "d + d",
        "d - d", "d + x", "at + INTERVAL 1 DAY", "at + INTERVAL 1 MONTH", "i AND b",
        "NOT i", "if(i, 1, 2)", "coalesce(i, s)", "coalesce(NULL, NULL)", "i + NULL", "b + b", "-s", "greatest(i)", "greatest(b, c)",
        "greatest(x, z, x)", "greatest(i, s)", "least(tags, tags)", "s || x", "local = at", "i IN (1, 'a')", "b IS UNKNOWN",
        "i IS TRUE", "i IS DISTINCT j", "i IS DISTINCT FROM s",
        # what depends on a time zone, or on the clock
        "date_trunc('minute', at)", "cast(at AS string)", "cast(at AS date)", "TIMESTAMP '2024-01-01 00:00:00'",
        "hour(at)", "year(at)", "to_date(at)", "date_format(at, 'yyyy')", "at - INTERVAL 24 HOURS", "unix_micros(local)",
        "current_timestamp", "cast(s AS timestamp)", "unix_micros(d)",
        # what is not Spark's way of writing, or is settled by a setting of Spark's
        r"'a\n'", "r'a'", "'${x}'", "i -- 1", "i /* + 1 */", "i +", "(i", "i)", "i i", "",
        "i AS k", "*", "iff(b, 1, 2)",
        # casts that are more than a change of width
        "cast(s AS int)", "cast(x AS string)", "cast(s AS varchar(3))", "try_cast(i AS tinyint)",
        "cast(i AS decimal(10, 2, 1))", "cast(i AS boolean)",
        "cast('2024-02-30' AS date)", "cast('2024-2-3' AS date)", "cast(s AS date)", "1.5BD", "1F", "128Y",
        "99999999999999999999", "1e400",
        # functions and forms beyond the subset
        "pmod(n, 0)", "pmod(n, -3)", "pmod(n, m)", "n % m", "x % 2", "i DIV 2", "i & 1", "~i", "+i", "sqrt(x)",
        "floor(i)", "lower(i)",
        "lower(s, t)", "substring(s, i, 1)", "trim(BOTH t FROM s)", "trim('x', s)", "trim(BOTH s)", "substring(s FROM i)", "substring(s FROM 1, 2)", "extract(YEAR, d)",
        "extract(SECOND FROM at)", "extract('YEAR' FROM d)", "extract(EPOCH FROM d)", "extract(HOUR FROM d)", "date_part(s, d)", "s LIKE t", "s LIKE 'a' ESCAPE '/'",
        "s ILIKE t", "s ILIKE 'é'", "s RLIKE t", "s RLIKE 'a' = b", "s LIKE ANY ('a')", f"s LIKE '{'_' * 300}'",
        "i IN (j)", "i IN ()", "i IN (NULL)", "x IN (0, 1)", "transform(tags, t -> t)",
        "count(*)", "-0.0D", "-0e0",
        # where sqlglot and Spark read differently, or Spark does not read at all
        "i IS NULL = b", "i IS NULL IS NULL", "i NOT", "b = NOT c", "i BETWEEN 1 AND 2 = b", "case",
    ],
)  # fmt: skip
def test_what_is_not_in_the_subset_is_refused(sql: str) -> None:
    assert compile_scalar(sql, COLUMNS) is None


@pytest.mark.parametrize(
    "sql",
    [
        "date_format(at, t)", "date_format(at, '')", "date_format(d, 'yyyy')", "date_format(s, 'yyyy')", "date_format(local, 'yyyy')",
        "date_format(at, 'yy')", "date_format(at, 'MMM')", "date_format(at, 'MMMM')", "date_format(at, 'SSSSSS')", "date_format(at, 'E')",
        "date_format(at, 'hh')", "date_format(at, 'yyyy-[MM]')", "date_format(at, 'yyyyT')", "date_format(at, 'yyyyyy')",
        "date_trunc('century', at)", "date_trunc(s, at)", "date_trunc('day', d)", "date_trunc('day', local)", "hour(s)", "hour(d)",
        "hour(local)", "year(s)", "year(local)", "to_date(s)", "cast(local AS date)", "cast(i AS date)",
        "d + INTERVAL 24 HOURS", "d + INTERVAL 1 DAY 0 HOURS", "d + INTERVAL 1 MONTH 1 DAY", "d + INTERVAL 1 QUARTER", "d + INTERVAL '1-2' YEAR TO MONTH",
        "d + INTERVAL 100000 YEARS", "DATE '0001-01-01' - INTERVAL 1 DAY", "DATE '9999-12-31' + INTERVAL 1 MONTH", "date_add(d, n)", "date_add(s, 1)",
        "datediff(d, s)", "add_months(d, i)", "local + INTERVAL 1 DAY", "local + INTERVAL 1 MONTH", "at * INTERVAL 1 DAY",
        "INTERVAL 1 DAY - at", "at + INTERVAL i DAYS", "at + INTERVAL '1.5' SECOND", "at + INTERVAL '1:30' MINUTE TO SECOND",
        "at + INTERVAL 1 DAY * 2", "INTERVAL 1 DAY", "INTERVAL 1 DAY > INTERVAL 1 HOUR", "at + 1", "at - due", "at + INTERVAL",
        "at + INTERVAL '1 day' DAY", "at + INTERVAL '1 day' '2' HOURS", "at + INTERVAL 1 DAY '2 hours' HOURS", "at + INTERVAL 1 DAY 2",
        "at + INTERVAL at DAYS", "at + INTERVAL '1 day 2 hours'", "-INTERVAL 1 DAY + at", "interval",
        "split(s, '')", "split(s, t)", "split(s, '.')", "split(s, 'a|b')", "split(s, '[ab]')", "split(s, '[^]')", "split(s, '/', 2)",
        "split(s, '/')[i]", "split(s, '/') = split(t, '/')", "split_part(s, '/', 0)", "split_part(s, '', 1)", "split_part(s, t, 1)",
        "replace(s, t, 'a')", "replace(s, 'a', t)", "replace(i, 'a', 'b')", "regexp_extract(s, t, 1)", "regexp_extract(s, 'a', 1)",
        "regexp_extract(s, '(a)', 2)", "regexp_extract(s, '(a)', -1)", "regexp_extract(s, 'a')", "regexp_extract(i, '(a)')",
    ],
)  # fmt: skip
def test_in_utc_too_what_is_not_in_the_subset_is_refused(sql: str) -> None:
    assert compile_scalar(sql, COLUMNS, utc=True) is None


@pytest.mark.parametrize(
    "pattern",
    [
        "", "(", ")", "()", "(a|)", "|a", "a|", "a**", "a++", "a?+", "a{2}+", "*a", "^*", "$?", "(a)*", "(a)+", "(a){2}", "(a)??",
        "(?:a)*", "(?i)a", "(?=a)", "(?<n>a)", "(?!a)", "[]", "[^]", "[a", "[[a]]", "[a&&b]", "[~~]", "[z-a]", "[a-b-c]", "[a^]", "[]a]",
        "[-a]", "a]", "a}", "{2}", "a{,2}", "a{3,2}", "a{100}", "é", "[é]", "😀", "a" * 201,
    ],
)  # fmt: skip
def test_a_pattern_that_may_mean_something_else_in_java_is_refused(pattern: str) -> None:
    assert compile_scalar(f"regexp_like(s, '{pattern}')", COLUMNS) is None


def test_a_text_too_long_or_too_deep_is_refused_quickly() -> None:
    assert compile_scalar(" + ".join(["i"] * 5_000), COLUMNS) is None
    assert compile_scalar("(" * 5_000 + "i" + ")" * 5_000, COLUMNS) is None
    assert compile_scalar("(" * 30 + "i" + ")" * 30, COLUMNS) is not None


def test_names_of_columns_compare_without_case() -> None:
    assert compute("N + `n` + `N`", n=[2]) == [6]
    assert compile_scalar("a", {"a": INT64, "A": INT64}) is None
    assert compile_scalar("b", {"a": INT64, "A": INT64, "b": INT64}) is not None
    assert compile_scalar("`unit price` + 1", {"Unit Price": INT64}) is not None
    assert compile_scalar("`^a.*$`", {"^a.*$": INT64}) is None, "a pattern to Polars"
    assert compile_scalar("unix_micros(timestamp)", {"timestamp": TIMESTAMP}) is not None
    assert compile_scalar("date = DATE '2024-02-29'", {"date": pl.Date()}) is not None
    assert compile_scalar("end + 1", {"end": INT64}) is None
    assert compile_scalar("`end` + `case`", {"end": INT64, "case": INT64}) is not None


def test_operators_bind_as_in_spark() -> None:
    assert compute("i = j < true", i=[1, 1], j=[1, 2]) == [False, True]
    assert compute("NOT b = c", b=[True, True], c=[True, False]) == [False, True]
    assert compute("b OR c AND NOT b", b=[True, False], c=[False, True]) == [True, True]
    assert compute("i - j - 1", i=[10], j=[3]) == [6]
    assert compute("2 + i * 3 % 4", i=[3]) == [3]
    assert compute("-i * 2", i=[3]) == [-6]
    assert compute("i + 1 BETWEEN 2 AND 3 AND b", i=[1, 5], b=[True, True]) == [True, False]
    assert compute("NOT i BETWEEN 2 AND 3", i=[1, 2, None]) == [True, False, None]
    assert compute("b = c IS NULL", b=[True, None], c=[True, True]) == [False, True]


def test_an_overflow_is_left_to_spark() -> None:
    assert compute("n + 1", n=[MOST, 5, None, LEAST]) == [..., 6, None, LEAST + 1]
    assert compute("i + 1", i=[2**31 - 1, 5]) == [..., 6]
    assert compute("y + y", y=[100, 50, -128, -64]) == [..., 100, ..., -128]
    assert compute("i * j", i=[65536, 46340], j=[65536, 46340]) == [..., 2147395600]
    assert compute("n * m", n=[2**32, 2**31, LEAST, LEAST], m=[2**31, 2**31, -1, 1]) == [..., 2**62, ..., LEAST]
    assert compute("n * 1000", n=[2**60, 2**40]) == [..., 1000 * 2**40]
    assert compute("n - m", n=[LEAST, 7, 2**62], m=[1, 9, -(2**62)]) == [..., -2, ...]
    assert compute("-n", n=[LEAST, -5]) == [..., 5]
    assert compute("-y", y=[-128, -127]) == [..., 127]
    assert compute("abs(n)", n=[LEAST, -5]) == [..., 5]
    assert compute("n::int", n=[2**31, -(2**31)]) == [..., -(2**31)]
    assert compute("timestamp_seconds(n)", n=[2**50, 1]) == [..., datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)]


INTEGERS = (
    st.integers(LEAST, MOST) | st.integers(-100, 100) | st.sampled_from([LEAST, MOST, 2**60, -(2**60), 2**62, 2**31])
)
ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@unhurried
@given(st.sampled_from(sorted(ARITHMETIC)), st.lists(st.tuples(INTEGERS, INTEGERS), min_size=1, max_size=30))
def test_sums_and_products_are_exact_or_unsure(symbol: str, pairs: list[tuple[int, int]]) -> None:
    answers = compute(f"n {symbol} m", n=[n for n, _ in pairs], m=[m for _, m in pairs])
    for (n, m), answer in zip(pairs, answers, strict=True):
        exact = ARITHMETIC[symbol](n, m)
        if LEAST <= exact <= MOST and max(abs(n), abs(m)) <= 2**60:
            assert answer == exact
        else:
            assert answer in (exact, ...)
            assert answer is ... or LEAST <= exact <= MOST


@unhurried
@given(
    st.sampled_from(["n + m", "n - m", "n + 1 - m", "-n", "m - n + 7"]),
    st.lists(st.tuples(INTEGERS, INTEGERS), min_size=1),
)
def test_where_it_must_be_exact_only_an_overflow_is_unsure(form: str, pairs: list[tuple[int, int]]) -> None:
    frame = pl.DataFrame(pairs, schema={"n": pl.Int64, "m": pl.Int64}, orient="row")
    scalar = compile_scalar(form, dict(frame.schema), exact=True)
    assert scalar is not None
    assert scalar.unsure is not None
    found = frame.select(scalar.value.alias("value"), scalar.unsure.alias("unsure")).rows()
    for (n, m), (value, unsure) in zip(pairs, found, strict=True):
        parts = [n + 1, n + 1 - m] if form == "n + 1 - m" else [m - n, m - n + 7] if "7" in form else []
        exact = eval(form, {"n": n, "m": m})  # the same text is Python
        assert unsure == any(not LEAST <= each <= MOST for each in (*parts, exact))
        assert unsure or value == exact


@unhurried
@given(
    st.lists(INTEGERS, min_size=1, max_size=30),
    INTEGERS,
    st.sampled_from(["n + {}", "n - {}", "n * {}", "{} - n", "{} + n"]),
)
def test_a_literal_beside_a_long_is_exact_or_unsure(numbers: list[int], other: int, form: str) -> None:
    for n, answer in zip(numbers, compute(form.format(f"({other})"), n=numbers), strict=True):
        exact = eval(form.format(f"({other})"), {"n": n})  # the same text is Python
        assert answer in (exact, ...)
        assert answer is ... or LEAST <= exact <= MOST


@unhurried
@given(st.lists(INTEGERS, min_size=1, max_size=30), st.integers(1, MOST))
def test_remainders_have_the_sign_of_the_dividend_or_none(numbers: list[int], by: int) -> None:
    assert compute(f"pmod(n, {by})", n=numbers) == [n % by for n in numbers]
    truncated = [int(math.copysign(1, n)) * (abs(n) % by) for n in numbers]
    assert compute(f"n % {by}", n=numbers) == truncated
    assert compute(f"mod(n, {by})", n=numbers) == truncated


def test_a_chain_of_sums_is_watched_once() -> None:
    unsure = compiled("unix_micros(at) + 1 + 2 + 3 + pmod(unix_micros(at), 60)").unsure
    assert str(unsure).count("at") == 1
    assert "Int128" not in str(compiled("n * 1000").unsure)


def test_what_spark_does_not_compute_does_not_make_a_row_unsure() -> None:
    zero: dict[str, list[Any]] = {"i": [6, 6, 6], "j": [0, 2, None]}
    assert compute("i / j", **zero) == [..., 3.0, None]
    assert compute("j <> 0 AND i / j > 1", **zero) == [False, True, None]
    assert compute("j = 0 OR i / j > 1", **zero) == [True, True, None]
    assert compute("if(j <> 0, i / j, NULL)", **zero) == [None, 3.0, None]
    assert compute("CASE WHEN j = 0 THEN -1D WHEN i > 0 THEN i / j ELSE i / 0 END", **zero) == [-1.0, 3.0, None]
    assert compute("coalesce(j, i / 0)", **zero) == [0.0, 2.0, ...]
    assert compute("i / j > 1 AND j <> 0", **zero) == [..., True, None]
    assert compute("b AND i / 0 > 1", i=[1, 1, 1], b=[True, False, None]) == [..., False, ...]
    assert compute("b OR i / 0 > 1", i=[1, 1, 1], b=[True, False, None]) == [True, ..., ...]
    assert compute("if(b, i / 0, i / 1)", i=[1, 1, 1], b=[True, False, None]) == [..., 1.0, 1.0]


def test_conditions_have_three_values() -> None:
    truth = [True, False, None]
    both: dict[str, list[Any]] = {"b": [b for b in truth for _ in truth], "c": truth * 3}
    assert compute("b AND c", **both) == [True, False, None, False, False, False, None, False, None]
    assert compute("b OR c", **both) == [True, True, True, True, False, None, True, None, None]
    assert compute("b <=> c", **both) == [True, False, False, False, True, False, False, False, True]
    assert compute("NOT b", b=truth) == [False, True, None]
    assert compute("b IS TRUE", b=truth) == [True, False, False]
    assert compute("b IS NOT TRUE", b=truth) == [False, True, True]
    assert compute("b IS FALSE", b=truth) == [False, True, False]
    assert compute("b IS NOT NULL", b=truth) == [True, True, False]
    assert compute("b = NULL", b=truth) == [None, None, None]
    assert compute("coalesce((n > 3), false)", n=[1, 5, None]) == [False, True, False]
    assert compute("i IN (1, 2)", i=[1, 3, None]) == [True, False, None]
    assert compute("i NOT IN (1, NULL)", i=[1, 3, None]) == [False, None, None]
    assert compute("CASE WHEN b THEN 1 WHEN c THEN 2 END", **both) == [1, 1, 1, 2, None, None, 2, None, None]
    assert compute("CASE i WHEN 1 THEN 'one' WHEN j THEN 'j' ELSE '?' END", i=[1, 2, None], j=[1, 2, 3]) == [
        "one",
        "j",
        "?",
    ]
    assert compute("nullif(i, 1)", i=[1, 2, None]) == [None, 2, None]


def test_nan_is_one_value_and_the_greatest_and_the_zeros_are_equal() -> None:
    nan, inf = math.nan, math.inf
    assert compute("x = z", x=[nan, 0.0, nan], z=[nan, -0.0, 1.0]) == [True, True, False]
    assert compute("x > z", x=[nan, inf, nan, 0.0], z=[inf, nan, nan, -0.0]) == [True, False, False, False]
    assert compute("x <=> z", x=[nan, None, None], z=[nan, None, 1.0]) == [True, True, False]
    assert compute("n = x", n=[2**53 + 1, 3], x=[2.0**53, 3.5]) == [True, False]
    assert compute("x > 1.5", x=[1.5, 1.6, None]) == [False, True, None]


def test_doubles_are_computed_as_ieee_says() -> None:
    xs = [2.0, 7.0, 0.3, -95.0]
    assert compute("x / 1000000", x=xs) == [x / 1000000 for x in xs]
    assert compute("x / z", x=xs, z=[7.0] * 4) == [x / 7.0 for x in xs]
    assert repr(compute("x - z", x=[0.0, -0.0, None], z=[0.0, 0.0, 0.0])) == "[0.0, -0.0, None]"
    assert repr(compute("0 - x", x=[0.0, -0.0])) == "[0.0, 0.0]"
    assert repr(compute("x + 0", x=[-0.0, None])) == "[0.0, None]"
    assert repr(compute("-x", x=[0.0, -0.0])) == "[-0.0, 0.0]"
    assert repr(compute("x + -0.0", x=[-0.0, 0.0])) == "[0.0, 0.0]", "a decimal, which has no sign of zero"
    constant = pl.DataFrame({"n": [1, 2, 3]}).with_columns(x=pl.lit(2.0), z=pl.lit(49.0))
    assert constant.select(compiled("x / z").value).to_series().to_list() == [2.0 / 49.0] * 3


def test_a_literal_compared_with_a_constant_column_answers_for_every_row() -> None:
    constant = pl.DataFrame({"i": [1, 2, 3]}).with_columns(n=pl.lit(5, dtype=pl.Int64))
    assert constant.with_columns(found=compiled("3 < n").value).get_column("found").to_list() == [True] * 3
    assert constant.with_columns(found=compiled("5 >= n").value).get_column("found").to_list() == [True] * 3


def test_fractions_are_cut_off_where_the_rest_fits() -> None:
    xs = [2.9, -2.9, math.nan, math.inf, 2.0**63, -(2.0**63), None]
    assert compute("cast(x AS bigint)", x=xs) == [2, -2, ..., ..., ..., LEAST, None]
    assert compute("floor(x)", x=xs) == [2, -3, ..., ..., ..., LEAST, None]
    assert compute("ceil(x)", x=xs) == [3, -2, ..., ..., ..., LEAST, None]
    assert compute("cast(x AS tinyint)", x=[127.9, 128.0]) == [..., ...] or compute(
        "cast(x AS tinyint)", x=[127.9]
    ) == [127]


def test_texts() -> None:
    texts = ["aBc", "", "é😀", None]
    assert compute("lower(s)", s=texts) == ["abc", "", "é😀", None]
    assert compute("upper(s)", s=texts) == ["ABC", "", "É😀", None]
    assert compute("length(s)", s=texts) == [3, 0, 2, None]
    assert compute("trim(s)", s=[" a\t ", "  "]) == ["a\t", ""]
    assert compute("ltrim(s)", s=[" a "]) == ["a "]
    assert compute("rtrim(s)", s=[" a "]) == [" a"]
    assert compute("s || '-' || i || b", s=["a", None], i=[1, 2], b=[True, True]) == ["a-1true", None]
    assert compute("substring(s, 2, 1)", s=texts) == ["B", "", "😀", None]
    assert compute("substring(s, 0, 2)", s=texts) == ["aB", "", "é😀", None]
    assert compute("substring(s, -5, 3)", s=["abc"]) == ["a"]
    assert compute("substring(s, 2, -1)", s=["abc"]) == [""]
    assert compute("left(s, 2) || right(s, 1)", s=["abc", ""]) == ["abc", ""]
    assert compute("s LIKE 'a_%.'", s=["ab.", "a.", "abc.", "a\n.", "abx"]) == [True, False, True, True, False]
    assert compute("s NOT LIKE 'a'", s=["a", "ab", "A", None]) == [False, True, True, None]
    assert compute("startswith(s, t)", s=["abc", "abc", None], t=["ab", "", "a"]) == [True, True, None]
    assert compute("endswith(s, 'c') AND contains(s, '.')", s=["a.c", "abc"]) == [True, False]
    assert compute("s < t", s=["a", "Z", "\uffff"], t=["b", "a", "😀"]) == [True, True, True]


def test_times_and_days() -> None:
    time = datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert compute("unix_micros(at)", at=[time]) == [-1]
    assert compute("unix_millis(at) + unix_seconds(at)", at=[time]) == [-2]
    assert compute("timestamp_millis(n) = at", n=[micros(time) // 1000], at=[time]) == [False]
    assert compute("at > due", at=[time], due=[datetime(1969, 1, 1, tzinfo=UTC)]) == [True]
    assert compute("d >= DATE '2024-02-29'", d=[date(2024, 2, 28), date(2024, 2, 29)]) == [False, True]
    assert compute("d IN (DATE '2024-02-29')", d=[date(2024, 2, 28), date(2024, 2, 29)]) == [False, True]


def test_times_in_utc() -> None:
    times = [
        datetime(2026, 7, 31, 8, 4, 5, 678_901, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(1582, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        None,
    ]
    assert compute("date_format(at, 'yyyy-MM-dd')", at=times) == ["2026-07-31", "1969-12-31", ..., None]
    assert compute("date_format(at, 'HH:mm:ss.SSS')", at=times) == ["08:04:05.678", "23:59:59.999", ..., None]
    assert compute("hour(at) * 10000 + minute(at) * 100 + second(at)", at=times) == [80405, 235959, 235959, None]
    assert compute("year(at) * 10000 + month(at) * 100 + day(at)", at=times) == [20260731, 19691231, 15821231, None]
    assert compute("cast(at AS date) = to_date(at)", at=times) == [True, True, True, None]
    assert compute("to_date(at)", at=times) == [date(2026, 7, 31), date(1969, 12, 31), date(1582, 12, 31), None]
    assert compute("date_trunc('HOUR', at)", at=times[:2]) == [
        datetime(2026, 7, 31, 8, tzinfo=UTC), datetime(1969, 12, 31, 23, tzinfo=UTC)
    ]  # fmt: skip
    assert compute("date_trunc('week', at)", at=times[:2]) == [
        datetime(2026, 7, 27, tzinfo=UTC), datetime(1969, 12, 29, tzinfo=UTC)
    ]  # fmt: skip
    assert compute("date_trunc('quarter', at)", at=times[:2]) == [
        datetime(2026, 7, 1, tzinfo=UTC), datetime(1969, 10, 1, tzinfo=UTC)
    ]  # fmt: skip
    assert compute("at + INTERVAL -1 DAY '-2' HOURS", at=times[:1]) == [
        datetime(2026, 7, 30, 6, 4, 5, 678_901, tzinfo=UTC)
    ]
    assert compute("at - INTERVAL 1 DAY 2 HOURS + INTERVAL '3 seconds'", at=times[:1]) == [
        datetime(2026, 7, 30, 6, 4, 8, 678_901, tzinfo=UTC)
    ]


def test_a_time_that_no_calendar_holds_is_left_to_spark() -> None:
    """Of the last and the first moments, and of the years 0 and 10000."""
    far = pl.Series("at", [LEAST, MOST, -62_135_596_800_000_001, 253_402_300_800_000_000]).cast(TIMESTAMP).to_frame()
    assert far.select(compiled("year(at)").value).to_series().to_list() == [-290308, 294247, 0, 10000]
    for sql in ("date_format(at, 'yyyy')", "date_trunc('month', at)"):
        unsure = compiled(sql).unsure
        assert unsure is not None
        found = far.with_columns(value=compiled(sql).value, unsure=unsure)
        assert found["unsure"].to_list() == [True] * 4
        assert found["value"].to_list() == [None] * 4, sql
    day = far.select(compiled("to_date(at)").value.to_physical()).to_series().to_list()
    assert day == [LEAST // 86_400_000_000, MOST // 86_400_000_000, -719_163, 2_932_897]
    for sql, where in (("at + INTERVAL 1 DAY", [MOST]), ("date_trunc('day', at)", [LEAST, MOST])):
        beyond = compiled(sql).unsure
        assert beyond is not None
        assert far.filter(beyond)["at"].to_physical().to_list() == where, sql


def test_parts_of_texts() -> None:
    urls = ["a/b//c", "", "/", "é/😀", None]
    assert compute("split(s, '/')[1]", s=urls) == ["b", ..., "", "😀", None]
    assert compute("split(s, '/')[3]", s=urls) == ["c", ..., ..., ..., None]
    assert compute("get(split(s, '/'), 3)", s=urls) == ["c", None, None, None, None]
    assert compute("get(split(s, '/'), 0)", s=["a", "", None]) == ["a", "", None]
    assert compute("split(s, '[.]')[0]", s=["a.b", "ab"]) == ["a", "ab"]
    assert compute("element_at(split(s, '/'), -1)", s=urls) == ["c", "", "", "😀", None]
    assert compute("element_at(split(s, '/'), 2)", s=urls) == ["b", ..., "", "😀", None]
    assert compute("split_part(s, '/', 3)", s=urls) == ["", "", "", "", None]
    assert compute("split_part(s, '/', -1)", s=urls) == ["c", "", "", "😀", None]
    assert compute("tags[1]", tags=[["a", "b"], ["a"], ["a", None], None]) == ["b", ..., None, None]
    assert compute("replace(s, '', 'x')", s=["ab", ""]) == ["ab", ""]
    assert compute("replace(s, 'a', '$0')", s=["aba", None]) == ["$0b$0", None]
    assert compute("length(s) - length(replace(s, 'c', ''))", s=["ccac", "", None]) == [3, 0, None]


def test_patterns() -> None:
    texts = ["x&id=7&b", "&id=", "", None]
    assert compute("regexp_extract(s, '&id=([^&]*)', 1)", s=texts) == ["7", "", "", None]
    assert compute("regexp_extract(s, '&id=([^&]*)')", s=texts) == ["7", "", "", None]
    assert compute("regexp_extract(s, '&id=([^&]*)', 0)", s=texts) == ["&id=7", "&id=", "", None]
    assert compute("regexp_extract(s, '(a)|(b)', 2)", s=["a", "b"]) == ["", "b"]
    assert compute("s RLIKE '^[a-z]+$'", s=["abc", "abc1", "a\n", "\u2028", None]) == [True, False, ..., ..., None]
    assert compute("s NOT RLIKE 'a.c'", s=["abc", "a\rc", "a\u0085c", "a\tc", "a😀c"]) == [
        False,
        True,
        True,
        False,
        False,
    ]
    assert compute("s REGEXP 'b' OR rlike(s, 'c')", s=["abc", "ac", "a"]) == [True, True, False]
    assert compute("regexp_like(s, '[$-]{2}?')", s=["$-", "$"]) == [True, False]


def test_decimals_are_exact() -> None:
    prices = [LEAST, MOST, 7, 0, None]
    assert compute("0.908 * n", n=prices) == [None if each is None else each * Decimal("0.908") for each in prices]
    assert compute("n - 0.05", n=[MOST]) == [MOST - Decimal("0.05")]
    assert compute("0.908 * n > 1000000", n=[1_101_321, 1_101_322, None]) == [False, True, None]
    assert compute("price = 1.50", price=[Decimal("1.50"), Decimal("1.51")]) == [True, False]
    assert compute("i < 1.5", i=[1, 2, None]) == [True, False, None]
    assert compute("x * 0.1", x=[3.0]) == [3.0 * 0.1], "beside a double it is a double"


def test_halves_are_rounded_away_from_zero() -> None:
    xs = [0.5, -0.5, 2.5, -2.5, 0.49999999999999994, -0.4, -0.0, 1e300, None]
    assert repr(compute("round(x)", x=xs)) == "[1.0, -1.0, 3.0, -3.0, 0.0, 0.0, 0.0, 1e+300, None]"
