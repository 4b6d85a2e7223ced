"""Names that other engines use for what has another name here. A user who tries one gets the line to write.

What has one meaning here is taken, as Spark's names of joins; what has none is answered with the line to write.
"""

from __future__ import annotations

import difflib
from typing import Any, Literal, TypeAlias, get_args

from millstream.relation.clauses import How

_METHODS = {
    **dict.fromkeys(("groupBy", "groupby"), "group_by(…).agg(…)"),
    **dict.fromkeys(("filter", "filterBy"), 'where("n > 1")'),
    **dict.fromkeys(("withColumn", "withColumns", "assign", "with_columns"), 'select("*", "n * 2 AS twice")'),
    **dict.fromkeys(("withColumnRenamed", "withColumnsRenamed", "rename", "selectExpr"), 'select("a", "b AS c")'),
    "drop": 'select("a", "b"), with the columns that stay',
    **dict.fromkeys(("fillna", "na", "replace"), "select(\"a\", \"coalesce(b, 0) AS b\")"),
    "dropna": 'where("a IS NOT NULL")',
    **dict.fromkeys(("dropDuplicates", "drop_duplicates", "dropDuplicatesWithinWatermark", "unique"), 'deduplicate("id")'),
    "withWatermark": 'stream(…, time="at", delay="10 seconds")',
    **dict.fromkeys(("limit", "head", "take", "first", "orderBy", "sort", "order_by"), 'top(10, by="n DESC")'),
    **dict.fromkeys(("unionAll", "unionByName", "concat"), "union(…)"),
    "window": 'group_by(window.tumbling("at", "1 minute"))',
    "agg": "group_by().agg(…)",
    **dict.fromkeys(("applyInPandas", "apply", "map", "flatMap", "transform"), "map_groups(f, key, schema)"),
    **dict.fromkeys(("match_recognize", "matchRecognize", "detect_pattern"), 'match("A B+", {"B": "n > PREV(n)"}, {"n": "LAST(B.n)"}, order="at")'),
    "melt": 'unpivot("id", ["a", "b"], "variable", "value")',
    "mapInArrow": "map_batches(f, schema)", "mapInPandas": "map_batches(f, schema), with batch.to_pandas() for each",
    **dict.fromkeys(("crossJoin", "merge"), 'join(other, on="id")'),
    **dict.fromkeys(("show", "collect", "count", "toPandas", "toDF", "toArrow", "writeStream", "write", "cache", "persist"),
                    "view(name, relation) of the pipeline, then run(pipeline) and view.to_polars()"),
    **dict.fromkeys(("subtract", "exceptAll"), 'join(other, on="id", how="anti")'),
    **dict.fromkeys(("intersect", "intersectAll"), 'join(other, on="id", how="semi")'),
    **dict.fromkeys(("schema", "dtypes", "printSchema"), "columns"),
}  # fmt: skip
_OF_GROUPS = {
    **dict.fromkeys(("count", "size"), 'agg(n="count(*)")'),
    **{name: f'agg(x="{ours}(column)")' for name, ours in
       {"sum": "sum", "avg": "avg", "mean": "avg", "min": "min", "max": "max", "median": "median"}.items()},
    "pivot": """agg(a="sum(x) FILTER (WHERE kind = 'a')", …)""",
    **dict.fromkeys(("applyInPandas", "applyInPandasWithState", "apply", "cogroup", "transformWithState",
                     "transformWithStateInPandas"), "relation.map_groups(f, key, schema)"),
}  # fmt: skip
_OF_VIEWS = {
    "toPandas": "to_pandas()", "pandas": "to_pandas()", "toArrow": "to_arrow()", "arrow": "to_arrow()",
    **dict.fromkeys(("frame", "polars", "show", "collect", "count", "head", "take"), "to_polars()"),
    **dict.fromkeys(("spark", "toDF"), "to_spark(session)"),
}  # fmt: skip
_HOWS: dict[str, How] = {
    "outer": "full", "fullouter": "full", "leftouter": "left", "rightouter": "right", "leftsemi": "semi", "leftanti": "anti",
}  # fmt: skip
SparkHow: TypeAlias = Literal[
    "outer", "full_outer", "fullouter", "left_outer", "leftouter", "right_outer", "rightouter",
    "left_semi", "leftsemi", "left_anti", "leftanti",
]  # fmt: skip
"""What Spark also calls the kinds of a join."""


_TYPES = {
    **dict.fromkeys(("text", "varchar", "char", "character", "nvarchar", "clob", "uuid", "enum"), "string"),
    **dict.fromkeys(("timestamptz", "datetime", "timestamp with time zone"), "timestamp"),
    **dict.fromkeys(("int8", "serial", "bigserial", "int64"), "bigint"),
    **dict.fromkeys(("int4", "int32"), "int"), **dict.fromkeys(("int2", "int16"), "smallint"),
    **dict.fromkeys(("double precision", "float8", "float64"), "double"), **dict.fromkeys(("float4", "float32"), "float"),
    **dict.fromkeys(("bytea", "blob", "bytes", "varbinary"), "binary"), **dict.fromkeys(("json", "jsonb"), "variant, or string"),
    **dict.fromkeys(("number", "money"), "decimal(18, 2)"), "hugeint": "decimal(38, 0)", "bool": "boolean",
}  # fmt: skip
_BEHIND = {
    "not": "any column may be null; keep nulls out with WHERE … IS NOT NULL",
    "default": "write coalesce(…, …) where the column is used",
    "comment": "say it behind -- instead",
    "references": "what is in the topic is taken as it is",
    "check": "what is in the topic is taken as it is; keep rows out with WHERE",
    "unique": "a table has one row a key: PRIMARY KEY",
    "(": "times have microseconds, and other types no size: leave it out",
}
_CONSTRAINTS = ("foreign", "check", "unique", "constraint")
_AGGREGATES = {
    "any_value": "max(…) and min(…) give one of the values, the same each time",
    **dict.fromkeys(("bool_or", "some", "any"), "max(…) of conditions is true if one is"),
    **dict.fromkeys(("bool_and", "every"), "min(…) of conditions is true if all are"),
    "count_if": "count(*) FILTER (WHERE …)",
    **dict.fromkeys(("string_agg", "listagg", "group_concat"), "array_join(array_sort(collect_list(…)), ',')"),
    **dict.fromkeys(("stddev", "stddev_samp", "stddev_pop", "variance", "var_samp", "var_pop", "std"),
                    "compute it from count(x), sum(x) and sum(x * x)"),
    **dict.fromkeys(("percentile_cont", "percentile_disc", "quantile", "quantile_cont"), "percentile(x, 0.5), or median(x)"),
    "first_value": "the first by an order is min_by(value, order)", "last_value": "the last by an order is max_by(value, order)",
    "approx_distinct": "approx_count_distinct(…)", "arg_min": "min_by(value, order)", "arg_max": "max_by(value, order)",
}  # fmt: skip


def meant_type(name: str) -> str:
    """What Spark calls a type of another system, as a hint; empty if unknown."""
    known = _TYPES.get(" ".join(name.lower().split()))
    return f"Spark calls it {known}" if known else ""


def not_of_columns(word: str) -> str:
    """What to do about a word behind a column's type, as a hint; empty if unknown."""
    first = (word.lower().split() or [""])[0]
    if first in _CONSTRAINTS and first not in _BEHIND:
        return _BEHIND["references"]
    return _BEHIND.get(first, "")


def meant_aggregate(name: str) -> str:
    """What says the same as an aggregate that is not here, as a hint; empty if unknown."""
    return _AGGREGATES.get(name.lower(), "")


def attribute_error(name: str, columns: tuple[str, ...]) -> AttributeError:
    """What to say of an attribute that a relation does not have."""
    if name in _METHODS:
        return AttributeError(f"a relation has no {name}: it is {_METHODS[name]} here")
    if name in columns:
        return AttributeError(f'{name} is a column; expressions are text: select("{name}"), where("{name} = 1")')
    return AttributeError(f"a relation has no {name}")


def group_error(name: str) -> AttributeError:
    """What to say of an attribute that a group_by does not have."""
    if name in _OF_GROUPS:
        return AttributeError(f"group_by(…) has no {name}: it is {_OF_GROUPS[name]} here")
    return AttributeError(f"group_by(…) has no {name}: after it comes agg(…)")


def view_error(name: str) -> AttributeError:
    """What to say of an attribute that a view does not have."""
    meant = f": it is {_OF_VIEWS[name]} here" if name in _OF_VIEWS else ""
    return AttributeError(f"a view has no {name}{meant}")


def is_spark_column(found: Any) -> bool:
    """Whether this is a Column of PySpark, which is not loaded to say so."""
    return type(found).__module__.startswith("pyspark.sql") and type(found).__name__ == "Column"


def meant_text(found: Any) -> str:
    """What to write in the place of something that is no text, as a hint; empty if unknown."""
    if is_spark_column(found):
        return 'expressions are text, as in selectExpr: "a > 1" for F.col("a") > 1, "lower(a) AS b" for F.lower("a").alias("b")'
    return "write them one after another, not as a list" if isinstance(found, list | tuple) else ""


def spoken_how(how: Any) -> Any:
    """The kind of a join, by our name if this is one of Spark's."""
    return _HOWS.get(how.lower().replace("_", ""), how) if isinstance(how, str) else how


def meant_join(how: Any) -> str:
    """The kind of join that was meant, as a hint; nothing if none is near."""
    if not isinstance(how, str):
        return ""
    known = _HOWS.get(how.lower().replace("_", "").replace(" ", ""))
    close = [known] if known else difflib.get_close_matches(how.lower(), get_args(How), 1)
    return f'did you mean how="{close[0]}"?' if close else ""


def meant_relation(found: Any) -> str:
    """What to do with something that is no relation, as a hint."""
    if type(found).__name__ == "Grouped":
        return "after group_by comes .agg(…)"
    if type(found).__name__ == "View":
        return "pipeline.view(…) keeps a relation; join the relation that it was made of"
    if type(found).__name__ == "DataFrame":
        return "rows of your own are records of a topic: append them, and define pipeline.table(…) over it"
    return "streams, tables and what was made of them are relations"
