"""A view's last expressions, above the last kernel, computed by Polars: those that give what Spark gives, or none."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from millstream.errors import NeedsSpark
from millstream.kernel.chunk import WEIGHT
from millstream.kernel.scalar import Scalar, compile_scalar
from millstream.plan.chain import Output


def finish_alone(output: Output, rows: pa.Table) -> pa.Table:
    """Turn a view's raw changes into its columns; NeedsSpark where that takes Spark."""
    frame = pl.DataFrame(rows)
    for condition in output.where:
        frame = frame.filter(_value(output, condition, frame))
    made = [_value(output, each.expression, frame).alias(each.name) for each in output.select]
    return frame.select(*made, WEIGHT).to_arrow()


def _value(output: Output, sql: str, frame: pl.DataFrame) -> pl.Expr:
    if sql in frame.columns:
        return pl.col(sql)
    scalar = compile_scalar(sql, frame.schema, utc=True)  # without a session there is no other zone
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
