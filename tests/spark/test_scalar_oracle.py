"""Scalar expressions in Polars against Spark itself: the same value and type in every row that is called sure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from millstream.kernel.scalar import compile_scalar

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
    32767.5,
]  # fmt: skip
TIMES = [
    EPOCH, EPOCH - timedelta(microseconds=1), EPOCH + timedelta(microseconds=1), datetime(1, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), datetime(2026, 7, 31, 12, 34, 56, 789012, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 0, tzinfo=UTC), datetime(1582, 10, 4, tzinfo=UTC),
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
}  # fmt: skip
COLUMNS = {name: dtype for name, (dtype, _) in POOLS.items()}


def rows(seed: int) -> pl.DataFrame:
    pick = random.Random(seed)
    columns = {name: [pick.choice([*pool, None]) for _ in range(ROWS)] for name, (_, pool) in POOLS.items()}
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


WHOLE_LITERALS = ["0", "1", "-1", "2", "7", "-128Y", "127Y", "7S", "5L", "2147483647", "-2147483648", "2147483648"]
WHOLE_LITERALS += ["9223372036854775807", "-9223372036854775808", "1000000", "4611686018427387904"]
DIVISORS = ["1", "2", "3", "7", "60000000", "2147483647", "2147483648", "9223372036854775807", "5L"]
PATTERNS = "'' '%' 'a%' '%b' '_' 'a_b' '%é%' 'a%c' 'abc' '__%' '.' '[a]%'"
COMPARE = st.sampled_from(["=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>"])

simple = {
    "whole": st.sampled_from(["y", "h", "i", "j", "n", "m", "N", "`i`", *WHOLE_LITERALS]),
    "double": st.sampled_from(["x", "z", "X", "1.5D", "-1D", "0D", "1e3", "-2.5e-3", "0e0"]),
    "text": st.sampled_from(["s", "t", "''", "'abc'", "' '", "'é😀'", '"a"', "'b'"]),
    "truth": st.sampled_from(["b", "c", "true", "FALSE"]),
    "time": st.sampled_from(["at", "due"]),
    "day": st.sampled_from(["d", "e", "DATE '2024-02-29'", "cast('1969-12-31' AS date)"]),
}


def words(text: str) -> st.SearchStrategy[str]:
    return st.sampled_from(text.split())


def deeper(of: dict[str, st.SearchStrategy[str]]) -> dict[str, st.SearchStrategy[str]]:
    """Expressions of each type over those that are given."""
    whole, double, text, truth, time, day = of.values()
    literal = words("1 2.5 -0.0 0 1.5 3 100.25")
    number = st.one_of(whole, double)
    everything = (whole, double, text, truth, time, day)
    wholes = st.one_of(
        form("({a} {o} {b})", a=whole, o=words("+ - *"), b=whole),
        form("({a} {o} {b})", a=whole, o=words("+ - *"), b=whole),
        form("{f}({a}, {d})", f=words("pmod mod"), a=whole, d=st.sampled_from(DIVISORS)),
        form("({a} % {d})", a=whole, d=st.sampled_from(DIVISORS)),
        form("(-({a}))", a=whole),
        form("abs({a})", a=whole),
        form("cast({a} AS {t})", a=st.one_of(whole, double, truth), t=words("tinyint smallint int bigint")),
        form("({a})::{t}", a=whole, t=words("byte short integer long")),
        form("{f}({a})", f=words("floor ceil ceiling"), a=double),
        form("{f}({a})", f=words("unix_micros unix_millis unix_seconds"), a=time),
        form("{f}({a})", f=words("length len char_length character_length"), a=text),
        chosen(whole, truth),
    )
    doubles = st.one_of(
        form("({a} {o} {b})", a=double, o=words("+ - * /"), b=st.one_of(number, literal)),
        form("({b} {o} {a})", a=double, o=words("+ - * /"), b=st.one_of(number, literal)),
        form("({a} / {b})", a=whole, b=whole),
        form("(-({a}))", a=double),
        form("abs({a})", a=double),
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
        form("substring({a}, {p})", a=text, p=words("0 1 2 -1 -2 -9")),
        form("substr({a}, {p}, {l})", a=text, p=words("0 1 2 9 -1 -2 -9 -2147483648"), l=words("0 1 2 -1 2147483647")),
        form("{f}({a}, {l})", f=words("left right"), a=text, l=words("0 1 2 -1")),
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
        form("({a} {o} {b})", a=text, o=st.sampled_from(["LIKE", "NOT LIKE"]), b=words(PATTERNS)),
        form("{f}({a}, {b})", f=words("startswith endswith contains"), a=words("s t"), b=text),
        chosen(truth, truth),
    )
    times = st.one_of(
        form("{f}({a})", f=words("timestamp_micros timestamp_millis timestamp_seconds"), a=whole),
        form("timestamp_micros(unix_micros({a}) - pmod(unix_micros({a}), 60000000))", a=time),
        chosen(time, truth),
    )
    return {
        "whole": wholes, "double": doubles, "text": texts, "truth": truths, "time": times, "day": chosen(day, truth)
    }  # fmt: skip


def mixed(
    less: dict[str, st.SearchStrategy[str]], more: dict[str, st.SearchStrategy[str]]
) -> dict[str, st.SearchStrategy[str]]:
    return {kind: st.one_of(less[kind], more[kind]) for kind in less}


one = deeper(simple)
two = deeper(mixed(simple, one))
expressions = st.one_of(*one.values(), *two.values())

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
    left(s, 1) = upper(left(s, 1)); n * 1000 + 1 - 1000 + i; n + m - 1; n - m + n - m; n * -1; n * m * 2;
"""


def disagreements(spark: SparkSession, texts: list[str], frame: pl.DataFrame) -> list[str]:
    """Let both compute; give what differs, in words."""
    compiled = {text: compile_scalar(text, COLUMNS) for text in texts}
    wrong = [f"{text}: not in the subset" for text, scalar in compiled.items() if scalar is None]
    scalars = {text: scalar for text, scalar in compiled.items() if scalar is not None}
    ours = frame.select(
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
        if (mine.dtype, NAMES[scalar.dtype]) != (scalar.dtype, kinds[at]):
            wrong.append(f"{text}: {mine.dtype} said to be {scalar.dtype}, and {kinds[at]} in Spark")
            continue
        physical = mine.to_physical().to_list(), found.get_column(f"v{at}").to_physical().to_list()
        for row, (a, b, sure) in enumerate(zip(*physical, ours.get_column(f"sure{at}"), strict=True)):
            if sure and repr(a) != repr(b):
                wrong.append(f"{text}: {a!r}, and {b!r} in Spark, for {frame.row(row, named=True)}")
                break
    return wrong


@pytest.fixture(params=["true", "false"], ids=["ansi", "not ansi"])
def session(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The session, with rows that go through generated code as those of a pipeline do, and not through the planner."""
    wanted = {
        "spark.sql.ansi.enabled": request.param,
        "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation",
    }
    before = {key: spark.conf.get(key, None) for key in wanted}
    for key, value in wanted.items():
        spark.conf.set(key, value)
    yield spark
    for key, old in before.items():
        spark.conf.unset(key) if old is None else spark.conf.set(key, old)


def test_operators_bind_as_they_do_in_spark(session: SparkSession) -> None:
    texts = [text.strip() for text in PRECEDENCE.split(";") if text.strip()]
    assert disagreements(session, texts, rows(0)) == []


@settings(
    max_examples=10,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # to make a failure smaller would cost a Spark job for each step; it names its expression
    suppress_health_check=list(HealthCheck),
)
@given(texts=st.lists(expressions, min_size=30, max_size=30), seed=st.integers(0, 1_000_000))
def test_random_expressions_are_what_spark_says(session: SparkSession, texts: list[str], seed: int) -> None:
    assert disagreements(session, texts, rows(seed)) == []
