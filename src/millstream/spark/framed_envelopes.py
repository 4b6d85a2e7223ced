"""Envelopes behind the ids of their schemas, made JSON in a frame of records: what the decoder leaves is then decoded by Spark as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from millstream.decode.framed_envelopes import codec_of
from millstream.relation.nodes import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def in_json(records: DataFrame, sources: Iterable[Source]) -> DataFrame:
    """The records with the keys and values of such sources as JSON, and the others as they are."""
    from pyspark.sql.functions import col, udf, when

    for source in sources:
        codec = codec_of(source)
        if codec is None:
            continue
        mine = col("topic") == source.topic
        for name, change in (("value", codec.as_value), ("key", codec.as_key)):
            changed = udf(_on_bytes(change), "binary", useArrow=False)
            made = when(mine, changed(when(mine, col(name)))).otherwise(col(name))
            records = records.withColumn(name, made)
    return records


def _on_bytes(change: Callable[[bytes | None], bytes | None]) -> Callable[[bytes | bytearray | None], bytes | None]:
    """A function of bytes for Spark, which may give them as an array."""

    def called(value: bytes | bytearray | None) -> bytes | None:
        return None if value is None else change(bytes(value))

    return called
