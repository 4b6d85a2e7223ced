"""A view's last expressions, above the last kernel, computed by Polars: those that give what Spark gives, or none."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import polars as pl

from millstream.errors import NeedsSpark
from millstream.plan.build import Output
from millstream.relation.functions import Function
from millstream.scalar.compile import Scalar, compile_scalar
from millstream.scalar.function import with_calls


def finish_alone(output: Output, frame: pl.DataFrame, *, utc: bool) -> pl.DataFrame:
    """Turn a view's raw changes into its columns, with what comes besides; NeedsSpark where that takes Spark.

    ``utc`` says that times without a zone are in UTC.
    """
    besides = [name for name in frame.columns if name not in output.columns]
    for condition in output.where:
        frame, value = _value(output, condition, frame, utc, final=True)
        frame = frame.filter(value)
    made = []
    for each in output.select:
        frame, value = _value(output, each.expression, frame, utc, label=each.name)
        made.append(value.alias(each.name))
    return frame.select(*made, *besides)


def compiled(
    sql: str,
    types: Mapping[str, pl.DataType],
    functions: tuple[Function, ...] = (),
    *,
    utc: bool = False,
    exact: bool = False,
    final: bool = False,
    label: str = "",
) -> Scalar | None:
    """An expression over columns of these types; None if it takes Spark."""
    if functions:  # they have no value to be remembered by
        return compile_scalar(sql, types, utc=utc, exact=exact, functions=functions, final=final, label=label)
    return _remembered(sql, tuple(types.items()), utc, exact)


@cache
def _remembered(sql: str, types: tuple[tuple[str, pl.DataType], ...], utc: bool, exact: bool) -> Scalar | None:
    return compile_scalar(sql, dict(types), utc=utc, exact=exact)


def _value(
    output: Output, sql: str, frame: pl.DataFrame, utc: bool, *, final: bool = False, label: str = ""
) -> tuple[pl.DataFrame, pl.Expr]:
    """The value of an expression over a frame, and the frame with what its functions gave."""
    if sql in frame.columns:
        return frame, pl.col(sql)
    scalar = compiled(sql, frame.schema, output.functions, utc=utc, final=final, label=label)
    if scalar is not None:
        frame = with_calls(frame, scalar.calls)
    if scalar is None or _unsure(scalar, frame):
        what = (
            "is not an expression that is computed without Spark"
            if scalar is None
            else "met a row that only Spark can answer"
        )
        raise NeedsSpark(
            f"view {output.name}: {sql} {what}", hint="give the trial a session: trial(…, spark=spark_session())"
        )
    return frame, scalar.value


def _unsure(scalar: Scalar, frame: pl.DataFrame) -> bool:
    return scalar.unsure is not None and bool(frame.select(scalar.unsure.fill_null(False).any()).item())
