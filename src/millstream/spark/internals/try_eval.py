"""Expressions that may fail, computed so that they do not: Catalyst can catch what an expression raises, though SQL has no word for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


def tried(spark: SparkSession, sql: str) -> Column:
    """A struct whose field ``value`` is that of the expression; null where computing it raises an error.

    A function in Python is computed before, by a process of its own: what it raises is told by :mod:`millstream.spark.udf`.
    """
    from pyspark.sql import functions
    from pyspark.sql.classic.column import Column

    catalyst = spark._jvm.org.apache.spark.sql  # type: ignore[union-attr]
    plain = catalyst.classic.ExpressionUtils.expression(functions.expr(f"named_struct('value', {sql})")._jc)
    return Column(catalyst.classic.ExpressionUtils.column(catalyst.catalyst.expressions.TryEval(plain)))
