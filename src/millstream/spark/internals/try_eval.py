"""Expressions that may fail, computed so that they do not: Catalyst can catch what an expression raises, though SQL has no word for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.spark.internals.registry import Internal, expect

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


def tried(spark: SparkSession, sql: str) -> Column:
    """A struct whose field ``value`` is that of the expression; null where computing it raises an error.

    A function in Python is computed before, by a process of its own: what it raises is told by :mod:`millstream.spark.udf`.
    """
    TRY_EVAL.require(
        spark, "an expression that can fail on a record, of a stream or table whose failed is 'dead_letter',"
    )
    return _tried(spark, sql)


def _tried(spark: SparkSession, sql: str) -> Column:
    from pyspark.sql import functions
    from pyspark.sql.classic.column import Column

    catalyst = spark._jvm.org.apache.spark.sql  # type: ignore[union-attr]
    plain = catalyst.classic.ExpressionUtils.expression(functions.expr(f"named_struct('value', {sql})")._jc)
    return Column(catalyst.classic.ExpressionUtils.column(catalyst.catalyst.expressions.TryEval(plain)))


def _test(spark: SparkSession) -> None:
    _tried(spark, "1")
    jvm: Any = spark._jvm
    catalyst = jvm.org.apache.spark.sql.catalyst.expressions
    text = jvm.org.apache.spark.unsafe.types.UTF8String.fromString("found")
    types = jvm.org.apache.spark.sql.types.DataTypes
    literal = catalyst.Literal(text, types.StringType)
    expect(
        catalyst.TryEval(literal).eval(None).toString() == "found", "TryEval does not give the value of an expression"
    )
    # A field of no row at all: Java raises this, which is quicker than an error for which Spark composes a text.
    raises = catalyst.BoundReference(0, types.StringType, True)
    expect(catalyst.TryEval(raises).eval(None) is None, "TryEval does not catch an error")


TRY_EVAL = Internal("try_eval", "", test_in=_test)
