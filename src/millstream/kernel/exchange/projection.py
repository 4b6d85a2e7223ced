"""A view's last expressions, above the last kernel, computed by Polars: those that give what Spark gives, or none."""

from __future__ import annotations

from functools import cache

import polars as pl

from millstream.errors import NeedsSpark
from millstream.plan.build import Output
from millstream.scalar.compile import Scalar, compile_scalar


def finish_alone(output: Output, frame: pl.DataFrame, *, utc: bool) -> pl.DataFrame:
    """Turn a view's raw changes into its columns, with what comes besides; NeedsSpark where that takes Spark.

    ``utc`` says that times without a zone are in UTC.
    """
    besides = [name for name in frame.columns if name not in output.columns]
    for condition in output.where:
        frame = frame.filter(_value(output, condition, frame, utc))
    made = [_value(output, each.expression, frame, utc).alias(each.name) for each in output.select]
    return frame.select(*made, *besides)


@cache
def compiled(
    sql: str, types: tuple[tuple[str, pl.DataType], ...], utc: bool = False, exact: bool = False
) -> Scalar | None:
    """An expression over columns of these types; None if it takes Spark."""
    return compile_scalar(sql, dict(types), utc=utc, exact=exact)


def _value(output: Output, sql: str, frame: pl.DataFrame, utc: bool) -> pl.Expr:
    if sql in frame.columns:
        return pl.col(sql)
    scalar = compiled(sql, tuple(frame.schema.items()), utc)
    if scalar is None or _unsure(scalar, frame):
        what = (
            "is not an expression that is computed without Spark"
            if scalar is None
            else "met a row that only Spark can answer"
        )
        raise NeedsSpark(
            f"view {output.name}: {sql} {what}", hint="give the trial a session: trial(…, spark=spark_session())"
        )
    return scalar.value


def _unsure(scalar: Scalar, frame: pl.DataFrame) -> bool:
    return scalar.unsure is not None and bool(frame.select(scalar.unsure.fill_null(False).any()).item())
