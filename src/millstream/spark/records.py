"""The records of several topics as one frame, for pipelines: a stream from where its checkpoint is, or a range as a batch.

Columns: key, value, topic, partition, offset, timestamp, append_time. Partitions are those that were there when the
pipeline started: one that is added later is read after the next start, when the watermark it begins with is known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from millstream.log.contract import TIME_HEADER
from millstream.spark.read import absolute, check_local, kafka_options, to_json
from millstream.spark.source import MillstreamSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "append_time")


def stream_records(
    spark: SparkSession,
    log: str,
    partitions: Mapping[str, int],
    *,
    start: Mapping[str, Mapping[int, int]],
    group: str,
    limit: int | None,
    kafka: Mapping[str, str],
) -> DataFrame:
    """A stream over the topics (name → number of partitions); ``start`` counts only where there is no checkpoint yet."""
    options = {"startingOffsets": to_json(start)}
    if limit is not None:
        options["maxOffsetsPerTrigger"] = str(limit)
    assign = json.dumps({topic: list(range(count)) for topic, count in partitions.items()})
    if log.startswith("sqlite:"):
        check_local(spark, log)
        spark.dataSource.register(MillstreamSource)
        options |= {"log": absolute(log), "subscribe": ",".join(partitions), "assign": assign, "group": group}
        options |= {"includeAppendTime": "true", "includeHeaders": "false", "wholeAppends": "true"}
        return spark.readStream.format("millstream").options(**options).load().select(*COLUMNS)
    options |= {"assign": assign, **kafka_options(log, kafka)}
    return _kafka_columns(spark.readStream.format("kafka").options(**options).load())


def batch_records(
    spark: SparkSession,
    log: str,
    start: Mapping[str, Mapping[int, int]],
    end: Mapping[str, Mapping[int, int]],
    *,
    kafka: Mapping[str, str],
) -> DataFrame:
    """The records of a range: for each topic and partition from ``start`` up to, and without, ``end``."""
    options = {"startingOffsets": to_json(start), "endingOffsets": to_json(end)}
    assign = json.dumps({topic: list(found) for topic, found in end.items()})
    if log.startswith("sqlite:"):
        check_local(spark, log)
        spark.dataSource.register(MillstreamSource)
        options |= {"log": absolute(log), "subscribe": ",".join(end), "assign": assign}
        options |= {"includeAppendTime": "true", "includeHeaders": "false"}
        return spark.read.format("millstream").options(**options).load().select(*COLUMNS)
    options |= {"assign": assign, **kafka_options(log, kafka)}
    return _kafka_columns(spark.read.format("kafka").options(**options).load())


def _kafka_columns(frame: DataFrame) -> DataFrame:
    """Kafka's timestamp is that of the append; the event's is in a header (see ``log/kafka.py``)."""
    sent = f"cast(get(filter(headers, h -> h.key = '{TIME_HEADER}'), 0).value AS string)"
    time = f"coalesce(timestamp_millis(try_cast({sent} AS bigint)), timestamp)"
    return frame.selectExpr(*COLUMNS[:5], f"{time} AS timestamp", "timestamp AS append_time")
