"""Python functions that the user registered in the session, called for the records that an expression is for, and no others.

Spark computes them before the expression that they stand in, for every row: of all topics, and also where a filter or a CASE
keeps the row out. So another function stands in for each: it is told whether the row counts, and calls the user's only then. What
that raises comes back as a value, and fails the expression for this record alone. A pandas function gets many rows at once: it
is given those that count, and if it raises, the pipeline stops.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millstream.errors import PlanError
from millstream.relation.expression import replace_calls
from millstream.relation.predicate import parts, unbracketed, without_null

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# pyspark's numbers for functions of a row, whose values come by pickle or by Arrow, and for those of columns.
_BY_PICKLE, _BY_ARROW, _PANDAS = 100, 101, 200


def guarded(spark: SparkSession, expression: str, rows: str, guard: str = "") -> str:
    """An expression for records where ``rows`` and ``guard`` are true; its Python functions are called there alone."""
    calls = _Calls(spark, rows)
    condition = calls.condition(guard, final=True) if guard else ""
    if guard:
        calls.rows = f"{rows} AND ({condition})"
    made = f"({calls.condition(expression, final=False)})"
    made = f"CASE WHEN {condition} THEN {made} END" if guard else made
    if not calls.failures:
        return made
    # What is said of a failure stands outside of the calls: what raises inside of their arguments is not caught.
    why = f"coalesce({', '.join(calls.failures)})"
    return f"CASE WHEN {why} IS NOT NULL THEN raise_error({why}) ELSE {made} END"


class _Calls:
    """Stand-ins put in the place of Python functions, which count for ``rows``; ``failures`` are what they say of failures."""

    def __init__(self, spark: SparkSession, rows: str) -> None:
        self.spark, self.rows = spark, rows
        self.failures: list[str] = []

    def condition(self, sql: str, *, final: bool) -> str:
        """Of conditions that AND joins, those before a function keep rows from it; ``final`` if null is as good as false."""
        inner = without_null(sql)
        if inner != sql:
            return f"coalesce(({self.condition(inner, final=True)}), false)"
        pieces = parts(unbracketed(sql))
        if len(pieces) < 2:
            return replace_calls(sql, self._stand_in)
        made = []
        for piece in pieces:
            made.append(f"({self.condition(piece, final=final)})")
            self.rows += f" AND {made[-1]}" if final else f" AND coalesce({made[-1]}, true)"
        return " AND ".join(made)

    def _stand_in(self, name: str, arguments: str) -> str | None:
        found = _stand_in(self.spark, name)
        if found is None:
            return None
        registered, tells = found
        call = f"{registered}({', '.join(filter(str.strip, [self.rows, arguments]))})"
        if tells:
            self.failures.append(f"{call}.why")
        return f"{call}.value" if tells else call


def _stand_in(spark: SparkSession, name: str) -> tuple[str, bool] | None:
    """The name of the function in the place of a Python function, and whether it tells failures; None for Spark's own functions."""
    from pyspark.serializers import CPickleSerializer
    from pyspark.sql import functions
    from pyspark.sql.types import StringType, StructField, StructType

    function = _registered(spark, name)
    if function is None:
        return None
    kind = function.evalType()
    if kind not in (_BY_PICKLE, _BY_ARROW, _PANDAS):
        raise PlanError(
            f"{name} is neither a Python function of a row nor a pandas function of columns",
            hint="register it with spark.udf.register(NAME, FUNCTION, TYPE)",
        )
    command = bytes(function.func().command().unsafeArray())
    stands_in = f"millstream_{name}_{hashlib.sha256(command).hexdigest()[:12]}"
    if _registered(spark, stands_in) is None:
        called, returns = CPickleSerializer().loads(command)  # type: ignore[no-untyped-call]
        made: Any
        if kind == _PANDAS:
            made = functions.pandas_udf(_of_columns(called), returns)  # type: ignore[attr-defined]
        else:
            told = StructType([StructField("value", returns), StructField("why", StringType())])
            made = functions.udf(_of_a_row(name, called), told, useArrow=kind == _BY_ARROW)
        spark.udf.register(stands_in, made if function.udfDeterministic() else made.asNondeterministic())
    return stands_in, kind != _PANDAS


def _registered(spark: SparkSession, name: str) -> Any:
    """The Python function of that name that someone registered in the session, as Spark's expression."""
    jvm: Any = spark._jvm
    registry = spark._jsparkSession.sessionState().functionRegistry()
    option = jvm.scala.Option.apply
    identifier = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name, option("session"), option("system"))
    found = registry.lookupFunction(identifier)
    if found.isEmpty() or found.get().getSource() != "python_udf":
        return None
    return registry.lookupFunctionBuilder(identifier).get().apply(jvm.PythonUtils.toSeq([]))


def _of_a_row(name: str, called: Callable[..., Any]) -> Callable[..., Any]:
    def stand_in(counts, *arguments):  # type: ignore[no-untyped-def]  # pyspark would take it for another kind by its types
        try:
            return (called(*arguments), None) if counts else (None, None)
        except Exception as error:
            return None, f"{name}: {type(error).__name__}: {error}"

    return stand_in


def _of_columns(called: Callable[..., Any]) -> Callable[..., Any]:
    def stand_in(counts, *columns):  # type: ignore[no-untyped-def]
        chosen = counts.fillna(False).astype(bool)
        found = called(*(column[chosen].reset_index(drop=True) for column in columns)).astype(object)
        found.index = chosen.index[chosen]
        return found.reindex(chosen.index)

    return stand_in
