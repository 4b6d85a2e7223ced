"""Types are checked when a view is defined: what they do not allow is refused in its line, in its author's words."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream import Pipeline, Relation
from millstream.errors import PlanError
from millstream.load import load_pipeline
from millstream.window import tumbling

HERE = Path(__file__).name
COLUMNS = (
    "id long, n int, text string, b boolean, d date, m decimal(9, 2), x double, tags array<string>, at timestamp,"
    " props map<string, int>, deep struct<a: int, inner: struct<all: array<map<string, int>>>>, v variant"
)


def relations() -> tuple[Pipeline, Relation, Relation]:
    pipeline = Pipeline("typed")
    return pipeline, pipeline.stream("s", COLUMNS, time="at"), pipeline.table("t", COLUMNS, key="id")


BETWEEN = "lies between two kernels, where not every Spark expression can be computed, and this one cannot"
REFUSED: list[tuple[Callable[[Relation, Relation], Relation], str]] = [
    (lambda s, t: s.group_by("id").agg(k="sum(text)"), "`sum(text)`: expected a number; found string"),
    (lambda s, t: s.group_by("id").agg(k="sum(n > 1)"), "`sum(n > 1)`: expected a number; found boolean"),
    (lambda s, t: t.group_by("id").agg(k="sum(at)"), "`sum(at)`: expected a number; found timestamp"),
    (lambda s, t: t.group_by("id").agg(k="avg(b)"), "`avg(b)`: expected a number; found boolean"),
    (lambda s, t: t.group_by("id").agg(k="median(d)"), "`median(d)`: expected a number; found date"),
    (lambda s, t: t.group_by("id").agg(k="sum(d) FILTER (WHERE b)"), "`sum(d) FILTER (WHERE b)`: expected a number; found date"),
    (lambda s, t: s.group_by("id", tumbling("at", "1 day")).agg(k="sum(tags)"), "`sum(tags)`: expected a number; found array<string>"),
    (lambda s, t: t.over("b", order="id").add(k="sum(text)"), "`sum(text)`: expected a number; found string"),
    (lambda s, t: t.select("upper(text) AS u").group_by("u").agg(k="avg(u)"), "`avg(u)`: expected a number; found string"),
    (lambda s, t: t.group_by("id").agg(k="max(d)").group_by().agg(z="sum(k)"), "`sum(k)`: expected a number; found date"),
    (lambda s, t: t.select("n").union(t.select("id AS n")), "union: column n is int in one relation and bigint in another; expected one type"),
    (lambda s, t: t.select("props").union(t.select("map(text, id) AS props"), t.select("text AS props")), "union: column props is map<string, int> in one relation and string"),
    (lambda s, t: t.select("id").union(t.select("id"), t.select("text AS id")), "union: column id is bigint in one relation and string in another"),
    (lambda s, t: t.group_by("id").agg(k="max(props)"), "`max(props)`: maps are neither ordered nor compared; found map<string, int>"),
    (lambda s, t: s.group_by("id").agg(k="min(deep)"), "`min(deep)`: maps are neither ordered nor compared; found struct<a: int, inner: struct<all: array<map<string, int>>>>"),
    (lambda s, t: s.group_by("id").agg(k="max(deep.inner) FILTER (WHERE b)"), "`max(deep.inner) FILTER (WHERE b)`: maps are neither ordered nor compared"),
    (lambda s, t: t.group_by("id").agg(k="collect_set(deep.inner.all)"), "`collect_set(deep.inner.all)`: maps are neither ordered nor compared; found array<map<string, int>>"),
    (lambda s, t: t.group_by("id").agg(k="count(distinct Props)"), "`count(distinct Props)`: maps are neither ordered nor compared"),
    (lambda s, t: t.group_by("id").agg(k="max_by(id, props)"), "`max_by(id, props)`: maps are neither ordered nor compared"),
    (lambda s, t: t.group_by("id").agg(k="last(props, at)").group_by().agg(z="max(k)"), "`max(k)`: maps are neither ordered nor compared"),
    (lambda s, t: t.group_by("props").agg(k="count(*)"), "`props`: maps are neither ordered nor compared; found map<string, int>"),
    (lambda s, t: t.group_by("map(text, n) AS z").agg(k="count(*)"), "`map(text, n)`: maps are neither ordered nor compared; found map"),
    (lambda s, t: t.select("id", "deep").distinct(), "`deep`: maps are neither ordered nor compared"),
    (lambda s, t: t.select("props AS p").group_by("p").agg(k="count(*)"), "`p`: maps are neither ordered nor compared"),
    (lambda s, t: t.join(t.select("id AS o", "props AS q"), on="props = q"), "`props`: maps are neither ordered nor compared"),
    (lambda s, t: s.deduplicate("props", within="1 day"), "`props`: maps are neither ordered nor compared"),
    (lambda s, t: t.top(1, "id", per="props"), "`props`: maps are neither ordered nor compared"),
    (lambda s, t: t.top(1, "deep.inner DESC"), "`deep.inner`: maps are neither ordered nor compared"),
    (lambda s, t: t.over("props", order="id").add(k="row_number()"), "`props`: maps are neither ordered nor compared"),
    (lambda s, t: t.group_by("v").agg(k="count(*)"), "`v`: variants are neither ordered nor compared; found variant"),
    (lambda s, t: t.match("A B", {"B": "n + 1"}, {"x": "A.n"}, order="id"), "define B `n + 1`: expected a condition; found int"),
    (lambda s, t: t.match("A B", {"B": "LAST(A.text) AND B.n > A.n"}, {"x": "A.n"}, order="id"), "define B"),
    (lambda s, t: t.match("A B", None, {"x": "soundex(B.text)"}, order="id"), "measure x `soundex(B.text)`: kernels cannot compute this over the rows of a match"),
    (lambda s, t: t.match("A B", None, {"x": "sum(A.text)"}, order="id"), "`sum(A.text)`: expected a number; found string"),
    (lambda s, t: t.match("A B", None, {"x": "max(props)"}, order="id"), "`max(props)`: maps are neither ordered nor compared"),
    (lambda s, t: t.match("A B", None, {"x": "A.n"}, partition="props", order="id"), "`props`: maps are neither ordered nor compared"),
    (lambda s, t: t.match("A B", None, {"x": "A.n"}, order="id", within="1 hour"), "match: within= needs an order that begins with a timestamp; found `id`, "),
    (lambda s, t: t.match_any({"a": {"pattern": "A", "measures": {"x": "A.n"}}, "b": {"pattern": "A", "measures": {"x": "A.text"}}}, order="id"), "match_any: x is int of one pattern and string of b; expected one type"),
    (lambda s, t: t.match("A B", None, {"x": "A.n", "y": "CLASSIFIER()"}, order="id").group_by("x").agg(k="sum(y)"), "`sum(y)`: expected a number; found string"),
    (lambda s, t: t.match("A B", None, {"y": "MATCH_NUMBER()", "z": "avg(n)"}, order="id").select("y AS a", "z AS b").union(t.select("n AS a", "x AS b")), "union: column a is bigint in one relation and int in another"),
    (lambda s, t: t.unpivot("id", ["n", "text"], "name", "value"), "unpivot: expected value columns of one type; found n int, text string"),
    (lambda s, t: t.unpivot("id", ["n", "n + 1 AS m"], "name", "value").group_by("name").agg(k="max(value)", l="sum(name)"), "`sum(name)`: expected a number; found string"),
    (lambda s, t: t.explode("props", "p"), "explode: expected an array; found map<string, int>"),
    (lambda s, t: t.explode("text", "p"), "explode: expected an array; found string"),
    (lambda s, t: t.group_by("n").agg(k="max(text)").group_by("soundex(k) AS z").agg(c="count(*)"), f"`soundex(k)` {BETWEEN}"),
    (lambda s, t: t.join(t.select("id AS o", "text AS w"), on="id = o").where("concat_ws(',', text, w) = 'a'").top(1, "id"), f"`concat_ws(',', text, w) = 'a'` {BETWEEN}"),
]  # fmt: skip
TAKEN: list[Callable[[Relation, Relation], Relation]] = [
    lambda s, t: t.group_by("id").agg(
        a="sum(m)", b="avg(n)", c="median(x)", d="sum(cast(text AS double))", e="max(tags)", f="min(b)", g="sum(NULL)"
    ),
    lambda s, t: t.group_by("id").agg(a="last(props, at)", b="collect_list(deep)", c="count(v)", d="max(deep.a)"),
    lambda s, t: t.group_by("array_sort(map_entries(props)) AS p").agg(
        a="max(props['a'])", b="count(distinct to_json(v))"
    ),
    lambda s, t: t.over("id", order="at").add(a="lag(props)", c="lag(deep.inner)"),
    lambda s, t: t.group_by("id").agg(a="sum(my_own(text))"),  # a function of the session's; Spark knows its type
    lambda s, t: t.match(
        "A B", {"B": "my_own(n) > 3"}, {"x": "A.props", "y": "LAST(soundex(A.text))", "z": "A.deep.inner"}, order="id"
    ),
    lambda s, t: t.unpivot("id", ["n", "n * 2 AS m"], "name", "value").group_by("name").agg(k="sum(value)"),
    lambda s, t: t.history().group_by("id").agg(a="max(valid_to)", b="min(valid_from)", c="sum(n)"),
    lambda s, t: t.select("props").union(t.select("map(text, n) AS props")),
    lambda s, t: t.select("n", "x").union(t.select("n + 1 AS n", "x * 2 AS x")),
    lambda s, t: t.group_by("n").agg(k="max(text)").select("soundex(k) AS z"),  # behind the last kernel Spark computes
    lambda s, t: t.group_by("soundex(text) AS z").agg(k="count(*)").group_by("k + 1 AS k").agg(c="count(*)"),
]


@pytest.mark.parametrize(("define", "message"), REFUSED)
def test_what_types_do_not_allow_is_refused_in_its_line(
    define: Callable[[Relation, Relation], Relation], message: str
) -> None:
    pipeline, stream, table = relations()
    with pytest.raises(PlanError) as caught:
        pipeline.view("v", define(stream, table))
    assert f"{HERE}:{inspect.getsourcelines(define)[1]}: {message}" in caught.value.message
    assert caught.value.hint
    assert not pipeline.views


@pytest.mark.parametrize("define", TAKEN)
def test_what_types_allow_or_only_spark_knows_is_taken(define: Callable[[Relation, Relation], Relation]) -> None:
    pipeline, stream, table = relations()
    pipeline.view("v", define(stream, table))


NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal(9, 2)", "decimal(38, 10)")
PAIRS = [*combinations(NUMBERS, 2), ("date", "timestamp"), ("array<int>", "array<double>")]


def test_the_cast_for_a_union_is_the_one_that_spark_makes(spark: SparkSession) -> None:
    frames = [
        spark.createDataFrame([], ", ".join(f"v{at} {pair[side]}" for at, pair in enumerate(PAIRS))) for side in (0, 1)
    ]
    made = [field.dataType.simpleString().replace(",", ", ") for field in frames[0].unionByName(frames[1]).schema]
    for (one, other), wide in zip(PAIRS, made, strict=True):
        pipeline = Pipeline("typed")
        left, right = pipeline.stream("l", f"v {one}"), pipeline.stream("r", f"v {other}")
        with pytest.raises(PlanError, match="union: column v is") as caught:
            pipeline.view("v", left.union(right))
        assert caught.value.hint == f"cast them to one: cast(v AS {wide}) AS v"


QUERIES = [
    ("SELECT id,\n sum(text) AS k FROM t GROUP BY id", "`sum(text)`: expected a number; found string"),
    ("SELECT id FROM t UNION ALL\nSELECT text AS id FROM t", "union: column id is bigint in one relation and string"),
    ("SELECT * FROM t MATCH_RECOGNIZE (ORDER BY id MEASURES A.n AS x PATTERN (A B)\n DEFINE B AS n + 1)", "define B `n + 1`: expected a condition; found int"),
    ("SELECT * FROM t MATCH_RECOGNIZE (ORDER BY id MEASURES A.n AS x,\n soundex(B.text) AS y PATTERN (A B))", "measure y `soundex(B.text)`: kernels cannot"),
    ("SELECT z, count(*) AS c FROM (\nSELECT n, sum(m) / 0.01 AS z FROM t GROUP BY n) GROUP BY z", f"`sum(m) / 0.01` {BETWEEN}"),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "message"), QUERIES)
def test_what_types_do_not_allow_is_refused_at_its_place_in_a_file_of_sql(
    sql: str, message: str, tmp_path: Path
) -> None:
    script = tmp_path / "typed.sql"
    table = "CREATE TABLE t (id BIGINT, n INT, text STRING, m DECIMAL(9, 2), PRIMARY KEY (id))"
    script.write_text(f"CREATE PIPELINE p; {table}; CREATE VIEW v AS\n{sql};")
    with pytest.raises(PlanError) as caught:
        load_pipeline(script)
    assert re.search(rf"typed\.sql:[23]:\d+: {re.escape(message)}", caught.value.message), caught.value.message
