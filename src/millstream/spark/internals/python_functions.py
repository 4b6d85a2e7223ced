"""Python functions of the session found in Spark's registry of functions, by :mod:`millstream.spark.udf`.

Without the registry nobody knows which names are Python functions. Spark would call them for every row, also where a filter keeps
the row out, so a pipeline that calls one is refused; any other runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from millstream.spark import udf
from millstream.spark.internals.registry import Internal, expect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROBE = "millstream_self_test"


def registered(spark: SparkSession, name: str) -> Any:
    """The Python function of that name that someone registered in the session, as Spark's expression."""
    jvm: Any = spark._jvm
    registry = spark._jsparkSession.sessionState().functionRegistry()
    option = jvm.scala.Option.apply
    identifier = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name, option("session"), option("system"))
    found = registry.lookupFunction(identifier)
    if found.isEmpty() or found.get().getSource() != "python_udf":
        return None
    return registry.lookupFunctionBuilder(identifier).get().apply(jvm.PythonUtils.toSeq([]))


def finder(spark: SparkSession) -> Callable[[str], Any]:
    """What finds the Python functions of the session, each name asked for once; it finds none where the registry cannot be read."""
    if not PYTHON_FUNCTIONS.works(spark):
        return lambda _: None
    known = cache(partial(registered, spark))
    return lambda name: registered(spark, name) if name.startswith(udf.STANDS_IN) else known(name)


def check_calls(spark: SparkSession, expressions: Iterable[str]) -> None:
    """Where the registry cannot be read, refuse what calls a function that somebody registered in the session."""
    if PYTHON_FUNCTIONS.works(spark):
        return
    names = [row[0].rpartition(".")[2] for row in spark.sql("SHOW USER FUNCTIONS").collect()]
    for text in expressions:
        for name in names:
            if re.search(rf"(?i)\b{re.escape(name)}\b`?\s*\(", text):
                PYTHON_FUNCTIONS.require(spark, f"the function {name}, which was registered in the session,")


def _test(spark: SparkSession) -> None:
    from pyspark.sql.types import LongType

    jvm: Any = spark._jvm
    expect(registered(spark, "upper") is None, "a function of Spark's own is taken for one in Python")
    spark.udf.register(_PROBE, lambda: 0, LongType())  # a type, not text: Spark would have to read it
    try:
        found = registered(spark, _PROBE)
        expect(found is not None, "a function in Python is not found in the registry")
        expect(found.evalType() in (udf._BY_PICKLE, udf._BY_ARROW), "a function in Python is of an unknown kind")
        expect(bytes(found.func().command().unsafeArray()), "a function in Python has no code")
    finally:
        option = jvm.scala.Option.apply
        name = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(_PROBE, option("session"), option("system"))
        spark._jsparkSession.sessionState().functionRegistry().dropFunction(name)


PYTHON_FUNCTIONS = Internal(
    "python_functions", "a pipeline that calls a function of the session is refused", test_in=_test
)
