"""The Arrow types of a frame's columns, by PySpark's own table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.spark.internals.registry import Internal, expect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


def arrow_schema(spark: SparkSession, schema: StructType) -> pa.Schema:
    """The schema as Arrow has it; without PySpark's table an empty frame is asked, which runs a query."""
    if ARROW_SCHEMA.works():
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(schema, timezone="UTC")
    return spark.createDataFrame([], schema).toArrow().schema


def _test() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import LongType, StructField, StructType, TimestampType

    fields = [StructField("number", LongType()), StructField("at", TimestampType())]
    found = to_arrow_schema(StructType(fields), timezone="UTC")
    expected = pa.schema([("number", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    expect(found.equals(expected), f"it says {found.types} for a long and a timestamp")


ARROW_SCHEMA = Internal("arrow_schema", "an empty frame is asked for its types, which takes Spark a query", _test)
