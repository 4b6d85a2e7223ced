"""Scalar expressions in Polars against Spark itself: the same value and type in every row that is called sure."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from millstream.scalar.compile import compile_scalar, select_once

ROWS = 120
NAMES = {
    pl.Int8(): "tinyint", pl.Int16(): "smallint", pl.Int32(): "int", pl.Int64(): "bigint", pl.Float64(): "double",
    pl.String(): "string", pl.Boolean(): "boolean", pl.Date(): "date", pl.Datetime("us", "UTC"): "timestamp",
}  # fmt: skip
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEXTS = [
    "", " ", "a", "A", "abc", "ABC", " a b ", "ab", "b", "%", "_", "a%c", "a_c", "a\nb", "\t", "é", "É", "ß", "İ",
    "😀", "a😀b",
    "é😀x", "e\u0301", "\ufffd", "\uffff", "𐀀", "１", "true", "0", "-1", "'", '"',
]  # fmt: skip
DOUBLES = [
    0.0, -0.0, 1.0, -1.0, 0.5, 1.5, -2.5, 1e300, -1e300, 5e-324, 1e16, 2.0**53, 2.0**63, -(2.0**63), 9.3e18, 0.1, 3.0,
    float("nan"), float("inf"), float("-inf"), 1.7976931348623157e308, 2147483647.5, -2147483648.5, 127.9, -128.9,
    32767.5, 1.005, -1.005, 2.675, 0.125, 0.615, 1.255, 4.35, 0.285, 1e-7, 123456.785, 999999999999.995, 99999999.995, 1e12, -0.001,
]  # fmt: skip
TIMES = [
    EPOCH, EPOCH - timedelta(microseconds=1), EPOCH + timedelta(microseconds=1), datetime(1, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), datetime(2026, 7, 31, 12, 34, 56, 789012, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 0, tzinfo=UTC), datetime(1582, 10, 4, tzinfo=UTC),
]  # fmt: skip
BEYOND = [  # in microseconds, what Python has no datetime for
    -(2**63), 2**63 - 1, -(2**63) + 86_400_000_000, 2**63 - 7 * 86_400_000_000, -62_135_596_800_000_001, -62_200_000_000_000_000,
    -12_212_553_600_000_001, -12_212_553_600_000_000, 253_402_300_800_000_000, 1_000_000_000_000_000_000, -100_000_000_000_000_000,
]  # fmt: skip
DAYS = [date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 10)]


def integers(bits: int) -> list[int]:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    small = [0, 1, -1, 2, -2, 3, 5, 7, -7, 60, 100, -100]
    near = [low, low + 1, high, high - 1, low // 2, high // 2, high // 3]
    wide = [2**31, -(2**31) - 1, 2**53 + 1, 3_037_000_500, 10**15, -(10**15) - 1, 2**60 + 1] if bits == 64 else []
    return [*small, *small, *near, *wide]


POOLS: dict[str, tuple[pl.DataType, list[Any]]] = {
    "y": (pl.Int8(), integers(8)), "h": (pl.Int16(), integers(16)),
    "i": (pl.Int32(), integers(32)), "j": (pl.Int32(), integers(32)),
    "n": (pl.Int64(), integers(64)), "m": (pl.Int64(), integers(64)),
    "x": (pl.Float64(), DOUBLES), "z": (pl.Float64(), DOUBLES),
    "s": (pl.String(), TEXTS), "t": (pl.String(), TEXTS),
    "b": (pl.Boolean(), [True, False]), "c": (pl.Boolean(), [True, False]),
    "at": (pl.Datetime("us", "UTC"), TIMES), "due": (pl.Datetime("us", "UTC"), TIMES),
    "d": (pl.Date(), DAYS), "e": (pl.Date(), DAYS),
    "p": (pl.Decimal(10, 2), [Decimal(each) for each in ("0", "0.01", "-0.01", "1.50", "99999999.99", "-99999999.99", "7")]),
    "q": (pl.Decimal(30, 10), [Decimal(each) for each in ("0", "1e-10", "-1.5", "99999999999999999999.9999999999", "7")]),
    "r": (pl.Decimal(15, 2), [Decimal(each) for each in ("0", "0.05", "-0.99", "1.00", "9999999999999.99", "-9999999999999.99", "104949.50")]),
    "v": (pl.Decimal(38, 4), [Decimal(each) for each in ("0", "0.0001", "-1.2345", "9" * 34 + ".9999", "-" + "9" * 34 + ".9999", "12345678901.5")]),
    "u": (pl.String(), []), "w": (pl.String(), []), "far": (pl.Datetime("us", "UTC"), []), "day": (pl.Date(), []),
}  # fmt: skip
COLUMNS = {name: dtype for name, (dtype, _) in POOLS.items()}


def rows(seed: int) -> pl.DataFrame:
    pick = random.Random(seed)
    columns: dict[str, Any] = {
        name: [pick.choice([*pool, None]) for _ in range(ROWS)] for name, (_, pool) in POOLS.items() if pool
    }
    for name, letters in (("u", "ab/"), ("w", "aab&/=-.1 \n\ré😀\u2028")):
        columns[name] = ["".join(pick.choices(letters, k=pick.randrange(9))) for _ in range(ROWS)]
    wide = [
        pick.choice([*BEYOND, pick.randrange(-(10**17), 10**18), pick.randrange(10**15, 2 * 10**15)])
        for _ in range(ROWS)
    ]
    columns["far"] = pl.Series(wide).cast(pl.Datetime("us", "UTC"))
    columns["day"] = pl.Series([each // 86_400_000_000 for each in wide], dtype=pl.Int32).cast(pl.Date)
    return pl.DataFrame(columns, schema=COLUMNS)


# ---- texts of expressions, by type; brackets everywhere, because precedence has examples of its own below


def form(template: str, **parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.fixed_dictionaries(parts).map(lambda given: template.format(**given))


def chosen(inner: st.SearchStrategy[str], conditions: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """What takes any type and gives the same."""
    return st.one_of(
        form("if({c}, {a}, {b})", c=conditions, a=inner, b=inner),
        form("CASE WHEN {c} THEN {a} WHEN {d} THEN {b} END", c=conditions, d=conditions, a=inner, b=inner),
        form("CASE {a} WHEN {b} THEN {c} ELSE {d} END", a=inner, b=inner, c=inner, d=inner),
        form("coalesce({a}, NULL, {b}, {c})", a=inner, b=inner, c=inner),
        form("{f}({a}, {b})", f=st.sampled_from(["nvl", "ifnull", "nullif"]), a=inner, b=inner),
        form("CASE WHEN {c} THEN NULL ELSE {a} END", c=conditions, a=inner),
    )


def words(text: str) -> st.SearchStrategy[str]:
    return st.sampled_from(text.split())


WHOLE_LITERALS = ["0", "1", "-1", "2", "7", "-128Y", "127Y", "7S", "5L", "2147483647", "-2147483648", "2147483648"]
WHOLE_LITERALS += ["9223372036854775807", "-9223372036854775808", "1000000", "4611686018427387904"]
DIVISORS = ["1", "2", "3", "7", "60000000", "2147483647", "2147483648", "9223372036854775807", "5L"]
ATOMS = st.sampled_from(
    ["a", "b", "/", "&", "-", "1", ".", "[ab]", "[^&]", "[^a]", "[a-z]", "[0-9]", "[.&]", "[^/=]", "[a-]", "[$|]", "é"][
        :-1
    ]
)
TIMES_OVER = st.sampled_from(["", "", "", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,}", "{0,2}", "{1,2}?"])
RUN = st.lists(st.builds("{}{}".format, ATOMS, TIMES_OVER), min_size=1, max_size=3).map("".join)
PATTERN = st.recursive(
    RUN,
    lambda inner: st.one_of(
        form("{a}|{b}", a=inner, b=inner),
        form("{o}{a}){t}{b}", o=words("( (?:"), a=inner, t=st.sampled_from(["", "?"]), b=RUN),
        form("^{a}", a=inner),
        form("{a}$", a=inner),
        form("{a}{b}", a=inner, b=inner),
    ),
    max_leaves=4,
).filter(lambda text: len(text) < 80)
LIKE = "'' '%' 'a%' '%b' '_' 'a_b' '%é%' 'a%c' 'abc' '__%' '.' '[a]%'"
FORMATS = [
    "yyyy-MM-dd",
    "HH:mm",
    "yyyyMMddHHmmssSSS",
    "dd.MM.yyyy, HH:mm:ss.SSS",
    "yyyy",
    "mm/ss",
    "- yyyy_MM",
    "SSS ss",
    "dd dd",
]
DECIMALS = [
    "decimal",
    "dec(5)",
    "numeric(10, 2)",
    "decimal(15,2)",
    "decimal(38, 0)",
    "decimal(38, 10)",
    "decimal(3, 3)",
    "decimal(20, 6)",
]
UNITS = "year YYYY yy quarter month MON mm week day DD Hour minute second millisecond microsecond"
INTERVALS = [
    "INTERVAL 10 SECONDS",
    "INTERVAL '10' SECOND",
    "INTERVAL 1 HOUR 30 MINUTES",
    "INTERVAL '3 days'",
    "INTERVAL -5 minutes",
    "INTERVAL '-5' MINUTE",
    "interval 2 weeks",
    "INTERVAL 100000 DAYS",
    "INTERVAL 7 MILLISECONDS",
    "INTERVAL 1 MICROSECOND",
    "INTERVAL '1' DAY '2' HOURS",
    "INTERVAL 1 DAY",
    "INTERVAL '1' MONTH",
    "INTERVAL 13 MONTHS",
    "INTERVAL 1 YEAR 2 MONTHS",
    "INTERVAL '-1 year'",
]
SPANS = [
    "INTERVAL '90' DAY",
    "INTERVAL 2 WEEKS 1 DAY",
    "INTERVAL -3 DAYS",
    "INTERVAL '1' MONTH",
    "INTERVAL '1' YEAR",
    "INTERVAL -25 MONTHS",
    "INTERVAL 400 YEARS",
]
PARTS = "year quarter month week day dow doy YEARS qtr MON d DayOfWeek"
ENDS = ["BOTH", "LEADING", "TRAILING", "BOTH 'a'", "LEADING 'ab'", "TRAILING 'b '", "BOTH ''", "'é😀'"]  # fmt: skip
SEPARATORS = st.sampled_from(["'/'", "'a'", "'ab'", "'[.]'", "'[|]'", "'😀'", "'&'", "'-'", "'//'", "' '"])
COMPARE = st.sampled_from(["=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>"])

simple = {
    "whole": st.sampled_from(["y", "h", "i", "j", "n", "m", "N", "`i`", *WHOLE_LITERALS]),
    "double": st.sampled_from(["x", "z", "X", "1.5D", "-1D", "0D", "1e3", "-2.5e-3", "0e0"]),
    "text": st.sampled_from(["s", "t", "u", "w", "''", "'abc'", "' '", "'é😀'", '"a"', "'b'"]),
    "truth": st.sampled_from(["b", "c", "true", "FALSE"]),
    "time": st.sampled_from(["at", "due", "far"]),
    "day": st.sampled_from(["d", "e", "day", "DATE '2024-02-29'", "cast('1969-12-31' AS date)"]),
    "exact": st.sampled_from(["p", "q", "0.908", "-1.5", "0.0", "00.10"]),
}


def deeper(of: dict[str, st.SearchStrategy[str]]) -> dict[str, st.SearchStrategy[str]]:
    """Expressions of each type over those that are given."""
    whole, double, text, truth, time, day, exact = of.values()
    literal = words("1 2.5 -0.0 0 1.5 3 100.25")
    number = st.one_of(whole, double)
    everything = (whole, double, text, truth, time, day, exact)
    column = words("y h i j n m")
    wholes = st.one_of(
        form("({a} {o} {b})", a=whole, o=words("+ - *"), b=whole),
        form("({a} {o} {b})", a=whole, o=words("+ - *"), b=whole),
        form("{f}({a}, {d})", f=words("pmod mod"), a=whole, d=st.sampled_from(DIVISORS)),
        form("({a} % {d})", a=whole, d=st.sampled_from(DIVISORS)),
        form("(-({a}))", a=whole),
        form("abs({a})", a=whole),
        form("cast({a} AS {t})", a=st.one_of(whole, double, truth), t=words("tinyint smallint int bigint")),
        form("cast({a} AS {t})", a=words("p q r v"), t=words("tinyint smallint int bigint")),
        form("({a})::{t}", a=whole, t=words("byte short integer long")),
        form("{f}({a})", f=words("floor ceil ceiling"), a=double),
        form("{f}({a})", f=words("unix_micros unix_millis unix_seconds"), a=time),
        form("{f}({a})", f=words("length len char_length character_length"), a=text),
        form("{f}({a})", f=words("hour minute second year month day dayofmonth"), a=time),
        form("{f}({a})", f=words("year month day dayofmonth quarter weekofyear dayofyear dayofweek weekday"), a=day),
        form("extract({f} FROM {a})", f=words(PARTS), a=day),
        form("extract({f} FROM {a})", f=words(PARTS + " hour MINUTE hrs"), a=time),
        form("{f}({a}, {b})", f=words("datediff date_diff"), a=st.one_of(day, time), b=day),
        form("round({a}, {p})", a=whole, p=words("0 2")),
        form("{f}({a}, {b})", f=words("greatest least"), a=whole, b=whole),
        chosen(whole, truth),
    )
    doubles = st.one_of(
        form("({a} {o} {b})", a=double, o=words("+ - * /"), b=st.one_of(number, literal)),
        form("({b} {o} {a})", a=double, o=words("+ - * /"), b=st.one_of(number, literal)),
        form("({a} / {b})", a=whole, b=whole),
        form("(-({a}))", a=double),
        form("abs({a})", a=double),
        form("round({a})", a=double),
        form("round({a}, {p})", a=double, p=words("0 1 2 3 6 14")),
        form("{f}({a}, {b})", f=words("greatest least"), a=double, b=number),
        form("({a} {o} {b})", a=double, o=words("+ - * /"), b=words("p r")),
        form("cast({a} AS double)", a=words("p q r v")),
        form("if({c}, {a}, {b})", c=truth, a=words("p q r v"), b=double),
        form("cast({a} AS double)", a=st.one_of(number, literal)),
        form("coalesce({a}, {b})", a=double, b=st.one_of(whole, literal)),
        form("if({c}, {a}, {b})", c=truth, a=whole, b=double),
        chosen(double, truth),
    )
    texts = st.one_of(
        form("{f}({a})", f=words("lower upper lcase ucase trim ltrim rtrim"), a=text),
        form("concat({a}, {b}, {c})", a=text, b=st.one_of(text, whole, truth), c=text),
        form("({a} || {b})", a=st.one_of(text, whole), b=st.one_of(text, truth)),
        form("cast({a} AS string)", a=st.one_of(whole, text, truth)),
        form("trim({e} FROM {a})", e=st.sampled_from(ENDS), a=text),
        form("substring({a} FROM {p} FOR {l})", a=text, p=words("0 1 2 -1"), l=words("0 1 2")),
        form("substr({a} FROM {p})", a=text, p=words("0 1 2 -1")),
        form("cast({a} AS string)", a=words("p r v")),
        form("{f}({a}, {b}, {c})", f=words("greatest least"), a=text, b=text, c=text),
        form("substring({a}, {p})", a=text, p=words("0 1 2 -1 -2 -9")),
        form("substr({a}, {p}, {l})", a=text, p=words("0 1 2 9 -1 -2 -9 -2147483648"), l=words("0 1 2 -1 2147483647")),
        form("{f}({a}, {l})", f=words("left right"), a=text, l=words("0 1 2 -1")),
        form("date_format({a}, '{p}')", a=time, p=st.sampled_from(FORMATS)),
        form(
            "replace({a}, {b}, {c})", a=text, b=words("'' 'a' 'ab' '/' '😀' '.' '$'"), c=words("'' 'a' 'é' '$0' '{a}'")
        ),
        form("replace({a}, {b})", a=text, b=words("'' 'a' 'ab'")),
        form("split({a}, {b})[{k}]", a=text, b=SEPARATORS, k=words("0 1 2 3 1L")),
        form("get(split({a}, {b}), {k})", a=text, b=SEPARATORS, k=words("0 1 2 3 1L")),
        form("element_at(split({a}, {b}), {k})", a=text, b=SEPARATORS, k=words("1 2 3 -1 -2")),
        form("split_part({a}, {b}, {k})", a=text, b=words("'/' 'a' 'ab' '.' '|' '😀'"), k=words("1 2 3 9 -1 -2 -9")),
        form("regexp_extract({a}, '{p}', 0)", a=text, p=PATTERN),
        form("regexp_extract({a}, '({p})({q})', {k})", a=text, p=PATTERN, q=PATTERN, k=words("0 1 2")),
        chosen(text, truth),
    )
    truths = st.one_of(
        *(form("({a} {o} {b})", a=each, o=COMPARE, b=each) for each in everything),
        *(form("({a} {o} NULL)", a=each, o=COMPARE) for each in everything),
        *(form("({a} IS {o})", a=each, o=st.sampled_from(["NULL", "NOT NULL"])) for each in everything),
        *(form("{f}({a})", f=words("isnull isnotnull"), a=each) for each in everything),
        *(form("({a} BETWEEN {b} AND {c})", a=each, b=each, c=each) for each in everything),
        form("({a} NOT BETWEEN {b} AND {c})", a=number, b=number, c=number),
        form("({a} {o} {b})", a=double, o=COMPARE, b=st.one_of(whole, literal)),
        form("({b} {o} {a})", a=double, o=COMPARE, b=st.one_of(whole, literal)),
        form("({a} {o} {b})", a=truth, o=words("AND OR"), b=st.one_of(truth, st.just("NULL"))),
        form("({a} {o} {b} {o} {c})", a=truth, o=words("AND OR"), b=truth, c=truth),
        form("({o} {a})", o=words("NOT !"), a=truth),
        form("({a} IS {o})", a=truth, o=st.sampled_from(["TRUE", "FALSE", "NOT TRUE", "NOT FALSE"])),
        form("({a} IN ({b}, {c}))", a=whole, b=st.sampled_from(WHOLE_LITERALS), c=words("1 2147483648 NULL 7S")),
        form("({a} NOT IN ({b}, {c}))", a=text, b=words("'' 'abc' 'é😀'"), c=words("'a' NULL")),
        form("({a} IN (1, 1.5, {b}))", a=double, b=words("0.1 3 NULL 2,4,5,6,7,8,9,10,11,12")),
        form("({a} IN (DATE '1970-01-01', DATE '2024-02-29'))", a=day),
        form("({a} {o} {b})", a=text, o=st.sampled_from(["LIKE", "NOT LIKE"]), b=words(LIKE)),
        form("({a} ILIKE {b})", a=text, b=words("'A%' '%B' '_' 'a_B' 'ABC'")),
        *(
            form("({a} IS {o} DISTINCT FROM {b})", a=each, o=st.sampled_from(["", "NOT"]), b=each)
            for each in everything
        ),
        form("({a} {o} {b})", a=day, o=COMPARE, b=words("'1994-01-01' '2024-02-29' '1582-10-10' '0001-01-01'")),
        form("({a} {o} {b})", a=words("p q r v"), o=COMPARE, b=double),
        form("({a} IN ({b}, {c}))", a=words("p q r v"), b=words("0 7 1.5 0.05"), c=words("1 NULL -0.99 1L")),
        form("({a} {o} {b})", a=words("p r v q"), o=COMPARE, b=words("1 0 7 1.5 100.25 -0.01 i n p")),
        form("{f}({a}, {b})", f=words("startswith endswith contains"), a=words("s t u w"), b=text),
        form("({a} {o} '{p}')", a=text, o=st.sampled_from(["RLIKE", "NOT RLIKE", "REGEXP"]), p=PATTERN),
        form("{f}({a}, '{p}')", a=text, f=words("regexp_like rlike regexp"), p=PATTERN),
        form("({a} {o} {b})", a=exact, o=COMPARE, b=column),
        form("({a} {o} {b})", a=words("1 0 7 -7 1000000"), o=COMPARE, b=exact),
        chosen(truth, truth),
    )
    times = st.one_of(
        form("{f}({a})", f=words("timestamp_micros timestamp_millis timestamp_seconds"), a=whole),
        form("timestamp_micros(unix_micros({a}) - pmod(unix_micros({a}), 60000000))", a=time),
        form("date_trunc('{u}', {a})", u=words(UNITS), a=time),
        form("({a} {o} {i})", a=time, o=words("+ -"), i=st.sampled_from(INTERVALS)),
        form("({i} + {a})", a=time, i=st.sampled_from(INTERVALS)),
        chosen(time, truth),
    )
    days = st.one_of(
        form("{f}({a})", f=words("to_date date"), a=st.one_of(time, day)),
        form("cast({a} AS date)", a=st.one_of(time, day)),
        form("({a} {o} {i})", a=day, o=words("+ -"), i=st.sampled_from(SPANS)),
        form("({a} {o} {i})", a=day, o=words("+ -"), i=words("1 -400 7S 3Y i h")),
        form("{f}({a}, {i})", f=words("date_add date_sub"), a=day, i=words("1 -400 7S i y")),
        form("add_months({a}, {i})", a=day, i=words("1 -1 13")),
        form("{f}({a}, {b}, {c})", f=words("greatest least"), a=day, b=day, c=day),
        chosen(day, truth),
    )
    exacts = st.one_of(
        form("({a} {o} {b})", a=words("0.908 -1.5 p 0.00 12.345"), o=words("+ - *"), b=column),
        form("({b} {o} {a})", a=words("0.908 -1.5 p 0.00 12.345"), o=words("+ - *"), b=column),
        form("({a} {o} {b})", a=words("p q"), o=words("+ -"), b=words("p q 0.908 -1.5")),
        form("if({c}, {a}, {b})", c=truth, a=words("0.908*i p 1.5"), b=words("0 1 i h")),
        form("({a} {o} {b})", a=words("p r v 1.5"), o=words("+ - *"), b=words("p r 1 -1 100L 7S 0 (0.06-0.01)")),
        form("({b} {o} {a})", a=words("p r v"), o=words("+ - *"), b=words("1 -1 100L 0 (1) 1.25")),
        form("({a}*(1-{b})*(1+{c}))", a=words("p r"), b=words("p r"), c=words("p r")),
        form("(v * {b})", b=words("p r 0.01 7 i")),
        form("{f}({a})", f=words("abs - round"), a=words("p r v")),
        form("round({a}, {p})", a=words("p q r v"), p=words("0 1 2 3 12")),
        form("cast({a} AS {t})", a=st.one_of(whole, double, words("p q r v")), t=st.sampled_from(DECIMALS)),
        form("{f}({a}, {b})", f=words("greatest least"), a=words("p r"), b=words("p r i 1.5")),
        chosen(exact, truth),
    )
    return {
        "whole": wholes, "double": doubles, "text": texts, "truth": truths, "time": times, "day": days, "exact": exacts,
    }  # fmt: skip


def mixed(
    less: dict[str, st.SearchStrategy[str]], more: dict[str, st.SearchStrategy[str]]
) -> dict[str, st.SearchStrategy[str]]:
    return {kind: st.one_of(less[kind], more[kind]) for kind in less}


one = deeper(simple)
two = deeper(mixed(simple, one))
expressions = st.one_of(*one.values(), *two.values()).filter(
    lambda text: "--" not in text and "/*" not in text
)  # comments

PRECEDENCE = """
    i = j < true; i = 7 = true; i < j = b; 1 < 2 = b; NOT b = c; ! b = c; NOT b AND c; NOT b OR c AND b;
    b OR c AND NOT b; NOT i IS NULL; NOT NOT b; b = c IS NULL; i + 1 > j IS TRUE; i + 1 BETWEEN 2 AND 3 + j;
    NOT n BETWEEN 1 AND 3 AND b; i - j - 1; i - (j - 1); y * 2 + 3 * h; y + 2 * h; - y * 2; -y + 3; - -7; 7 - -3;
    i % 7 * 2; i * 2 % 7; n / i / j; n / i * j; s || t || 'x'; i + 1 || s; s || i * 0; -2147483648; - 2147483648;
    -(2147483648); 2147483648 - 1; -9223372036854775808; -128Y; i :: bigint + 1; -1::bigint; - i::bigint;
    b IN (true) AND c; i IN (1, 2147483648); n IN (1) OR b; CASE WHEN b THEN 1 ELSE 2L END + 1;
    CASE i WHEN 1 THEN 'a' WHEN 2L THEN 'b' END; if(NULL, 1, 2); coalesce((n > 3), false);
    coalesce((n > 3), false) AND coalesce((b), false); nullif(i, n); nullif(x, 0.0); 1.5D; 'a'; true; 5; x > 1.5;
    x > 1.; x > 00001.50; x = -0.0; -x = 0; 1.5 * x; x / 2.0; x - 1; n > x; n = x; mod(n, 3) + pmod(n, 3);
    timestamp_micros(unix_micros(at) - pmod(unix_micros(at), 60000000)); at = timestamp_micros(unix_micros(at));
    timestamp_micros(unix_micros(at) + coalesce(unix_micros(due) - unix_micros(at), 0));
    abs(unix_micros(at) - unix_micros(due)) > 86400000000; CASE WHEN j <> 0 THEN i / j END; j <> 0 AND i / j > 1;
    j = 0 OR i / j > 1; coalesce(i, n * n); if(abs(n) < 9, n * n * n, NULL); i NOT IN (1, NULL); i <=> NULL; (i);
    ((i + (1))); d < DATE '2024-02-29'; d BETWEEN e AND DATE '9999-12-31'; b > c; length(s) + length(t) * 2;
    CASE lower(s) WHEN 'a' THEN '0' WHEN 'abc' THEN '1' ELSE nullif(regexp_extract(w, '&([^&]*)', 1), '') END;
    0.908 * n; n * 0.908 > 1000000 AND 0.908 * n < 50000000; 0.908 * i + p; 1.5; split(u, '/'); split(w, 'a')[0]; i > 1.5; n >= 1.;
    CASE WHEN hour(at) >= 8 AND hour(at) <= 18 THEN 'day' WHEN hour(at) <= 6 THEN 'night' ELSE 'other' END;
    length(w) - length(replace(w, 'a', '')); s || split(u, '/')[0]; split(u, '/')[0]::string; date_format(at + INTERVAL 1 HOUR, 'HH');
    at - INTERVAL 10 SECONDS < due; at BETWEEN due - INTERVAL 1 DAY AND due + INTERVAL 1 DAY; CASE WHEN b THEN 1 WHEN c THEN 1.5 ELSE x END;
    coalesce(0.908 * n, 0); NOT s RLIKE '^a' AND b; unix_micros(at + INTERVAL '1' SECOND) + 1;
    left(s, 1) = upper(left(s, 1)); n * 1000 + 1 - 1000 + i; n + m - 1; n - m + n - m; n * -1; n * m * 2;
"""


def kind_of(dtype: pl.DataType) -> str:
    """What Spark calls a type."""
    if isinstance(dtype, pl.Decimal):
        return f"decimal({dtype.precision},{dtype.scale})"
    return "array<string>" if dtype == pl.List(pl.String) else NAMES[dtype]


def disagreements(spark: SparkSession, texts: list[str], frame: pl.DataFrame, *, utc: bool = True) -> list[str]:
    """Let both compute; give what differs, in words."""
    compiled = {text: compile_scalar(text, COLUMNS, utc=utc) for text in texts}
    wrong = [f"{text}: not in the subset" for text, scalar in compiled.items() if scalar is None]
    scalars = {text: scalar for text, scalar in compiled.items() if scalar is not None}
    ours = select_once(
        frame,
        *(scalar.value.alias(f"v{at}") for at, scalar in enumerate(scalars.values())),
        *(
            (pl.lit(True) if scalar.unsure is None else ~scalar.unsure.fill_null(False)).alias(f"sure{at}")
            for at, scalar in enumerate(scalars.values())
        ),
        pl.col("n"),  # as many rows, if everything is a literal
    )
    both = spark.createDataFrame(frame.with_columns(ours.select(pl.selectors.starts_with("sure"))).to_arrow())
    theirs = both.selectExpr(*(f"CASE WHEN sure{at} THEN ({text}) END AS v{at}" for at, text in enumerate(scalars)))
    kinds = [field.dataType.simpleString() for field in theirs.schema.fields]
    found = pl.from_arrow(theirs.toArrow())
    assert isinstance(found, pl.DataFrame)
    for at, (text, scalar) in enumerate(scalars.items()):
        mine = ours.get_column(f"v{at}")
        if (mine.dtype, kind_of(scalar.dtype)) != (scalar.dtype, kinds[at]):
            wrong.append(f"{text}: {mine.dtype} said to be {scalar.dtype}, and {kinds[at]} in Spark")
            continue
        physical = mine.to_physical().to_list(), found.get_column(f"v{at}").to_physical().to_list()
        for row, (a, b, sure) in enumerate(zip(*physical, ours.get_column(f"sure{at}"), strict=True)):
            if sure and repr(a) != repr(b):
                wrong.append(
                    f"{text}: {a!r}, and {b!r} in Spark, for {frame.select(pl.all().to_physical()).row(row, named=True)}"
                )
                break
    return wrong


@pytest.fixture(params=["true", "false"], ids=["ansi", "not ansi"])
def session(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The session, with rows that go through generated code as those of a pipeline do, and not through the planner."""
    wanted = {
        "spark.sql.ansi.enabled": request.param,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation",
    }
    before = {key: spark.conf.get(key, None) for key in wanted}
    for key, value in wanted.items():
        spark.conf.set(key, value)
    yield spark
    for key, old in before.items():
        spark.conf.unset(key) if old is None else spark.conf.set(key, old)


def test_operators_bind_as_they_do_in_spark(session: SparkSession) -> None:
    assert disagreements(session, split_up(PRECEDENCE), rows(0)) == []


QUOTED = [
    "'it''s'", "''''", "''''''", "'a''b''c'", "'''a'", "'a'''", '"a""b"', '"it\'s"', "'a\"b'", '"a\'\'b"', "'a\"\"b'",
    "'a' 'b'", "'a'\n'b'", "'a' 'b' 'c'", "'a'\"b\"", "'a' \"b\"", "'a' ''", "'a''' 'b'", "'a'''''", "'a\"' \"'b\"",
    "concat('it''s', s)", "(s = '''')", "(s IN ('it''s', '''', 'a' 'b'))", "(s LIKE '''%')",
    "(s || 'a' 'b')", "regexp_extract(s, '([''a])' '(b)?', 1)", "CASE s WHEN '''' THEN 'it''s' ELSE 'a' 'b' END",
]  # fmt: skip


def test_a_text_in_quotes_is_what_spark_says(session: SparkSession) -> None:
    assert disagreements(session, QUOTED, rows(0)) == []
    for refused in (r"r'a\nb'", r"'a\'b'", "'a' r'b'", "'a' /* b */ 'c'", "DATE '2024-02' '-29'"):
        assert compile_scalar(refused, COLUMNS, utc=True) is None


@settings(
    max_examples=10,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # to make a failure smaller would cost a Spark job for each step; it names its expression
    suppress_health_check=list(HealthCheck),
)
@given(texts=st.lists(expressions, min_size=30, max_size=30), seed=st.integers(0, 1_000_000))
def test_random_expressions_are_what_spark_says(session: SparkSession, texts: list[str], seed: int) -> None:
    # Decimals whose common type would need more than 38 digits are left to Spark, which rounds them; and literals that are large to be rounded.
    texts = [
        text
        for text in texts
        if compile_scalar(text, COLUMNS, utc=True)
        or not re.search(r"\b[pqrv]\b|(?i:dec|numeric)|round|[0-9]\.[0-9]", text)
    ]
    assert disagreements(session, texts, rows(seed)) == []


REGEXES = """
    a . .* ^a a$ ^$ ^.*$ a|b a|ab ab|a ^a|b$ (a)|(b) (a|b)c? (a)? (a)?b ([^&]*)& &([^&=]*)= ([a-z]+)[^a-z]*$ a*? a+?b (?:a|b)(/|$)
    (^|&)a=([^&]*) [^a]+ [^a]*$ .{2} .{1,}? ^[^/]*/[^/]* [.]|[&] ((a)b?)/ ([^a])([^a]) a{0}b a{0,1}a (a.)$
"""
EVERY = [
    *(f"date_format({t}, '{p}')" for p in FORMATS for t in ("at", "far")),
    *(f"date_trunc('{u}', {t})" for u in UNITS.split() for t in ("at", "far")),
    *(f"{t} {o} {i}" for i in INTERVALS for o in "+-" for t in ("at", "far")),
    *(f"{f}({t})" for f in ["hour", "minute", "second", "year", "month", "day", "dayofmonth", "to_date", "date", "unix_millis"] for t in ("at", "far")),
    *(f"{f}({t})" for f in ("year", "month", "day") for t in ("d", "day")),
    *(f"split({c}, '{by}')[{k}]" for c in "uws" for by in ("/", "a", "ab", "[.]", "😀") for k in (0, 1, 3)),
    *(f"{f}, '{by}', {k})" for f in ("split_part(u", "split_part(w") for by in ("/", "a", ".") for k in (1, 2, -1, -3)),
    *(f"{c} {o} {n}" for c in ("0.908", "p", "-0.05", "123456.789") for o in "+-*" for n in ("y", "h", "i", "n")),
    *(f"extract({f} FROM {t})" for f in PARTS.split() for t in ("d", "day", "at", "far")),
    *(f"{t} {o} {i}" for i in SPANS for o in "+-" for t in ("d", "day", "DATE '1998-12-01'", "far", "at")),
    *(f"{f}({t})" for f in ("quarter", "weekofyear", "dayofyear", "dayofweek", "weekday") for t in ("d", "day", "at")),
    *(f"trim({e} FROM {c})" for e in ENDS for c in "sw"),
    *(f"{a} {o} {b}" for o in "+-*" for a in "prv" for b in ("p", "r", "1", "100", "0.06", "1L", "i", "x")),
    *(f"{a} * (1 - {b}) * (1 + {c})" for a in "prv" for b in "pr" for c in "pr" if a != "v"),
    *(f"round({c}, {p})" for c in ("x", "z", "x / 7", "p", "q", "r", "v", "i") for p in (0, 1, 2, 3)), "round(r, 6)", "round(x, 14)",
    *(f"cast({c} AS {t})" for c in ("p", "q", "r", "v", "x", "i", "n") for t in DECIMALS),
    *(f"cast({c} AS {t})" for c in "pqrv" for t in ("double", "int", "bigint", "tinyint")), *(f"cast({c} AS string)" for c in "prv"),
    *(f"{c} {o} {b}" for c in "pqrv" for o in ("=", "<", ">=", "<=>") for b in ("x", "1", "1.5", "i", "7L")),
    "0.06 - 0.01", "0.06 * 0.01 + 1", "r BETWEEN 0.06 - 0.01 AND 0.06 + 0.01", "0.5 * v", "v * 0.01", "-r", "abs(q)",
    "d < '1994-01-01'", "'2024-02-29' <= d", "d BETWEEN '1994-01-01' AND '1995-01-01'", "s ILIKE 'A%'", "s IS DISTINCT FROM t", "x IS NOT DISTINCT FROM z",
    "greatest(i, n)", "least(x, z)", "greatest(s, t, u)", "least(p, i)", "greatest(d, e, day)", "date_add(d, i)", "day - 1", "i + d", "datediff(day, d)",
    "datediff(at, e)", "add_months(day, 1)", "date_part('dow', d)", "substring(s FROM 2 FOR 1)", "substring(w FROM 2)", "coalesce(p, x)",
    "round(x)", "round(x / 4)", "p + q", "q - p", "p > q", "0.908 * n = q", "element_at(split(w, 'a'), -2)", "get(split(u, '/'), 3)", "replace(w, 'a', '😀')",
]  # fmt: skip
PATTERN_TEXTS = [
    *(f"{c} RLIKE '{p}'" for p in REGEXES.split() for c in "uws"),
    *(
        f"regexp_extract({c}, '{p}', {k})"
        for p in REGEXES.split()
        for c in "uw"
        for k in range(1 + p.count("(") - p.count("(?:"))
    ),
]


@pytest.mark.parametrize("texts", [EVERY, PATTERN_TEXTS], ids=["functions", "patterns"])
def test_every_function_is_what_spark_says(session: SparkSession, texts: list[str]) -> None:
    for first in range(0, len(texts), 60):
        assert disagreements(session, texts[first : first + 60], rows(first)) == []


def test_upper_and_lower_are_what_spark_says_of_every_character(session: SparkSession) -> None:
    # The letter sigma depends on what is around it. Beyond these planes nothing has a case.
    characters = map(chr, (*range(0xD800), *range(0xE000, 0x20000), *range(0xE0000, 0xE0200)))
    frame = pl.DataFrame({"s": [f"{c} a{c} aΣ{c}b aΣ{c} a{c}Σ {c}Σ" for c in characters]})
    theirs = session.createDataFrame(frame.to_arrow()).selectExpr("s", "upper(s) AS u", "lower(s) AS l").toArrow()
    upper, lower = (compile_scalar(f"{name}(s)", {"s": pl.String()}) for name in ("upper", "lower"))
    assert upper is not None
    assert lower is not None
    assert upper.unsure is None
    assert lower.unsure is not None
    ours = pl.DataFrame(theirs).with_columns(upper.value.alias("our_u"), lower.value.alias("our_l"))
    assert ours.filter(lower.unsure).height < 200
    assert ours.filter(pl.col("u") != pl.col("our_u")).rows() == []
    assert ours.filter(~lower.unsure & (pl.col("l") != pl.col("our_l"))).rows() == []


def test_the_end_of_a_line_is_what_java_says_where_it_must_be_exact(session: SparkSession) -> None:
    ends = "ab\n\r\x85\u2028"
    texts = ["".join(each) for size in range(5) for each in itertools.product(ends, repeat=size)]
    frame = pl.DataFrame({"s": texts})
    wanted = [f"s RLIKE '{p}'" for p in (*REGEXES.split(), "^a[^b]$", "a$[^b]", "(a$)|b") if "$" in p]
    wanted += [f"regexp_extract(s, '{p}', {k})" for p, k in ((".*$", 0), ("([^a])$", 1), ("(a$)", 1), ("(a.)$", 1))]
    theirs = session.createDataFrame(frame.to_arrow()).selectExpr("s", *(f"{e} AS e{n}" for n, e in enumerate(wanted)))
    found = pl.DataFrame(theirs.toArrow())
    for number, text in enumerate(wanted):
        scalar = compile_scalar(text, {"s": pl.String()}, exact=True)
        assert scalar is not None, text
        assert scalar.unsure is None, text
        ours = found.select("s", pl.col(f"e{number}").alias("e"), scalar.value.alias("our"))
        assert ours.filter(pl.col("e") != pl.col("our")).rows() == [], text


ZONELESS = """
    at + INTERVAL 23 HOURS; far - INTERVAL 59 MINUTES; INTERVAL '1' SECOND + at; unix_micros(far); unix_millis(at); unix_seconds(at);
    at < due; at - INTERVAL 1 MILLISECOND >= due; date_trunc('second', at); date_trunc('MILLISECOND', far); timestamp_micros(n);
    year(d); month(day); dayofmonth(e); to_date(d); at IS NULL; coalesce(at, due);
"""
ZONED = """
    hour(at); minute(at); second(at); year(at); cast(at AS date); to_date(at); date(at); date_trunc('minute', at); date_trunc('day', at);
    date_format(at, 'yyyy'); at + INTERVAL 1 DAY; at - INTERVAL 24 HOURS; at + INTERVAL 1 WEEK; at::date;
"""


def split_up(texts: str) -> list[str]:
    return [text.strip() for text in texts.split(";") if text.strip()]


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu", "+14:00"])
def test_what_depends_on_no_zone_is_the_same_in_all(session: SparkSession, zone: str) -> None:
    session.conf.set("spark.sql.session.timeZone", zone)
    assert disagreements(session, split_up(ZONELESS), rows(1), utc=False) == []
    assert [text for text in split_up(ZONED) if compile_scalar(text, COLUMNS) is not None] == []
    assert disagreements(session, split_up(ZONED), rows(1)) != [], (
        "in UTC they are computed, and here that would be wrong"
    )
