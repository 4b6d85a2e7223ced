"""The records of several topics as one frame, for pipelines: a stream from where its checkpoint is, or a range as a batch.

Columns: key, value, topic, partition, offset, timestamp, append_time; headers where they are asked for. Partitions are those that were there when the
pipeline started: one that is added later is read after the next start, when the watermark it begins with is known.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from millstream.address import parse_log
from millstream.spark import private_folder
from millstream.spark.fast_path import take, to_file
from millstream.spark.read import EVENT_TIME, OTHER_HEADERS, check_local, kafka_options, to_json
from millstream.spark.source import MillstreamSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

    from millstream.decode.decoder import Decoder

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "append_time")


def warm_up(spark: SparkSession, log: str, topics: Collection[str]) -> None:
    """Start, in the background, the Python processes that a pipeline's query will wait for: each takes about a second."""

    def start() -> None:
        with suppress(Exception):  # the query itself will raise what is wrong
            address = parse_log(log)
            if address.embedded:
                spark.dataSource.register(MillstreamSource)
                spark.read.format("millstream").options(log=str(address.absolute()), subscribe=",".join(topics)).load()
            spark.range(1, numPartitions=1).mapInArrow(lambda batches: batches, "id long").collect()

    threading.Thread(target=start, name="millstream-warm-up", daemon=True).start()


def stream_records(
    spark: SparkSession,
    log: str,
    partitions: Mapping[str, int],
    *,
    start: Mapping[str, Mapping[int, int]],
    group: str,
    limit: int | None,
    kafka: Mapping[str, str],
    max_bytes: int | None = None,
    decoder: Decoder | None = None,
    watermarks: str = "",
    patience: float = 60.0,
    headers: bool = False,
) -> DataFrame:
    """A stream over the topics (name → number of partitions); ``start`` counts only where there is no checkpoint yet.

    A limit cuts all of them at one append time; of what has the same, topics that are named first come first. With a decoder, the
    stream takes the shortcut: see :mod:`millstream.spark.fast_path`. A broker that is away is waited for, ``patience`` seconds.
    """
    options = {"startingOffsets": to_json(start)}
    if limit is not None:
        options["maxOffsetsPerTrigger"] = str(limit)
    assign = json.dumps({topic: list(range(count)) for topic, count in partitions.items()})
    address = parse_log(log)
    if address.embedded:
        check_local(spark, address)
        options |= {"log": str(address.absolute())}
    else:
        from millstream.log.kafka.names import client_settings

        client = client_settings(address.place, kafka)  # workers have another environment
        options |= {
            "log": str(address),
            "kafka": private_folder.write("kafka", json.dumps(client).encode()),
            "patience": str(patience),
        }
    spark.dataSource.register(MillstreamSource)
    options |= {"subscribe": ",".join(partitions), "assign": assign, "group": group, "watermarks": watermarks}
    options |= {"includeAppendTime": "true", "includeHeaders": str(headers), "wholeAppends": "true", "archives": "true"}
    options |= {"maxBytesPerTrigger": str(max_bytes or "")}
    return _ours(spark.readStream.format("millstream").options(**options), decoder, headers)


def batch_records(
    spark: SparkSession,
    log: str,
    start: Mapping[str, Mapping[int, int]],
    end: Mapping[str, Mapping[int, int]],
    *,
    kafka: Mapping[str, str],
    decoder: Decoder | None = None,
    headers: bool = False,
) -> DataFrame:
    """The records of a range: for each topic and partition from ``start`` up to, and without, ``end``.

    Kafka's by Spark's source: what streams have made of ours is verified by another client.
    """
    options = {"startingOffsets": to_json(start), "endingOffsets": to_json(end)}
    assign = json.dumps({topic: list(found) for topic, found in end.items()})
    address = parse_log(log)
    if address.embedded:
        check_local(spark, address)
        spark.dataSource.register(MillstreamSource)
        options |= {"log": str(address.absolute()), "subscribe": ",".join(end), "assign": assign}
        options |= {"includeAppendTime": "true", "includeHeaders": str(headers), "archives": "true"}
        return _ours(spark.read.format("millstream").options(**options), decoder, headers)
    options |= {"assign": assign, **kafka_options(address, kafka)}
    return _kafka(spark.read.format("kafka").options(**options), decoder, headers)


def _ours(reader: DataFrameReader | DataStreamReader, decoder: Decoder | None, headers: bool) -> DataFrame:
    if decoder is None:
        return reader.load().select(*COLUMNS, *(["headers"] if headers else []))
    return reader.option("decoder", to_file(decoder)).load()


def _kafka(reader: DataFrameReader | DataStreamReader, decoder: Decoder | None, headers: bool) -> DataFrame:
    """Kafka's timestamp is that of the append."""
    others = [f"{OTHER_HEADERS} AS headers"] if headers else []
    records = reader.load().selectExpr(*COLUMNS[:5], f"{EVENT_TIME} AS timestamp", "timestamp AS append_time", *others)
    return records if decoder is None else take(records, decoder)
