"""Names that other engines have for what is called otherwise here, for those who try them first."""

from __future__ import annotations

import difflib
from typing import Any, get_args

from millstream.plan.nodes import How

_METHODS = {
    **dict.fromkeys(("groupBy", "groupby"), "group_by(…).agg(…)"),
    **dict.fromkeys(("filter", "filterBy"), 'where("n > 1")'),
    **dict.fromkeys(("withColumn", "withColumns", "assign", "with_columns"), 'select("*", "n * 2 AS twice")'),
    **dict.fromkeys(("withColumnRenamed", "rename", "drop", "selectExpr"), 'select("a", "b AS c")'),
    **dict.fromkeys(("dropDuplicates", "drop_duplicates", "dropDuplicatesWithinWatermark", "unique"), 'deduplicate("id")'),
    "withWatermark": 'stream(…, time="at", delay="10 seconds")',
    **dict.fromkeys(("limit", "head", "take", "orderBy", "sort", "order_by"), 'top(10, by="n DESC")'),
    **dict.fromkeys(("unionAll", "unionByName", "concat"), "union(…)"),
    "window": 'group_by(tumbling("at", "1 minute"))',
    "agg": "group_by().agg(…)",
    **dict.fromkeys(("applyInPandas", "apply", "map", "flatMap", "transform"), "map_groups(f, key, schema)"),
    **dict.fromkeys(("crossJoin", "merge"), 'join(other, on="id")'),
    **dict.fromkeys(("show", "collect", "count", "toPandas", "toDF", "writeStream", "write", "cache", "persist"),
                    "view(name, relation) of the pipeline, then run(pipeline) and view.frame()"),
    **dict.fromkeys(("schema", "dtypes", "printSchema"), "columns"),
}  # fmt: skip
_HOWS: dict[str, How] = {
    "outer": "full", "fullouter": "full", "leftouter": "left", "rightouter": "right", "leftsemi": "semi", "leftanti": "anti",
}  # fmt: skip


def attribute_error(name: str, columns: tuple[str, ...]) -> AttributeError:
    """What to say of an attribute that a relation does not have."""
    if name in _METHODS:
        return AttributeError(f"a relation has no {name}: it is {_METHODS[name]} here")
    if name in columns:
        return AttributeError(f'{name} is a column; expressions are text: select("{name}"), where("{name} = 1")')
    return AttributeError(f"a relation has no {name}")


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
