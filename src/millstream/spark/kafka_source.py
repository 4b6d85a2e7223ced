"""Spark reads any topic of Kafka: ``spark.readStream.format("millstream-kafka")``, by librdkafka and without the JVM's connector.

Option names are those of Spark's own Kafka source where they mean the same: ``kafka.bootstrap.servers``, ``subscribe`` or ``assign``,
``startingOffsets``, ``startingTimestamp``, ``endingOffsets`` and ``endingTimestamp`` (batch), ``maxOffsetsPerTrigger``, ``minPartitions``, ``includeHeaders``;
settings of the client begin with ``kafka.``, under the names of :mod:`millstream.log.kafka.names`. Columns are Spark's, without ``timestampType``.

Three things differ. Only committed records are read. Data that is lost is always an error. All partitions of a batch that a limit cuts
end at one append time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from millstream.errors import ConfigError
from millstream.log.kafka.names import client_settings
from millstream.spark.engine import Attached
from millstream.spark.options import Options
from millstream.spark.source import TYPES, BatchReader, StreamReader

_SERVERS, _PREFIX = "kafka.bootstrap.servers", "kafka."
_TAKEN = {
    "subscribe",
    "assign",
    "startingoffsets",
    "endingoffsets",
    "startingtimestamp",
    "endingtimestamp",
    "maxoffsetspertrigger",
    "minpartitions",
    "includeheaders",
    "failondataloss",
    "path",
}


class KafkaSource(DataSource):
    """The data source called ``millstream-kafka``."""

    @classmethod
    def name(cls) -> str:
        """What goes into ``format(…)``."""
        return "millstream-kafka"

    def schema(self) -> str:
        """Spark's Kafka columns; headers where asked for."""
        return ", ".join(f"{name} {TYPES[name]}" for name in _columns(read_options(self.options)[0]))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Read once."""
        return _Batch(*read_options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Read on and on."""
        options, files = read_options(self.options)
        if options.ending_timestamp is not None:
            raise ConfigError(
                "option endingTimestamp: a stream has no end", hint="leave the option out, or use spark.read"
            )
        return _Stream(options, files)


def read_options(given: Mapping[str, str]) -> tuple[Options, Attached]:
    """What Spark hands over, as the options of our source, and the settings of the client; ConfigError for what has no meaning here."""
    low = {name.lower(): value for name, value in given.items()}
    client = {
        name.lower().removeprefix(_PREFIX): value for name, value in given.items() if name.lower().startswith(_PREFIX)
    }
    servers = client.pop("bootstrap.servers", "")
    if not servers:
        raise ConfigError(f"option {_SERVERS} is missing", hint=f".option('{_SERVERS}', 'HOST:9092')")
    if client.pop("isolation.level", "read_committed") != "read_committed":
        raise ConfigError("kafka.isolation.level: only committed records are read", hint="leave the option out")
    for name in sorted(name for name in low if not name.startswith(_PREFIX) and name not in _TAKEN):
        hint = "millstream-kafka takes " + ", ".join(sorted(_TAKEN - {"path", "failondataloss"})) + ", and kafka.…"
        raise ConfigError(f"option {name}: unknown, or without a meaning here", hint=hint)
    if low.get("failondataloss", "true").lower() != "true":
        raise ConfigError(
            "option failOnDataLoss: lost data is always an error here", hint="name startingOffsets that are still there"
        )
    topics = low.get("subscribe") or ",".join(_assigned(low["assign"]) if low.get("assign") else ())
    known = {name: value for name, value in low.items() if name in _TAKEN - {"path", "failondataloss"}}
    taken = known | {
        "log": f"kafka://{servers}",
        "subscribe": topics,
        "includeappendtime": "true",
        "wholeappends": "true",
    }
    options = Options.of({"includeheaders": "false"} | taken)
    return options, Attached(client=client_settings(servers, client))


def _assigned(text: str) -> list[str]:
    try:
        return list(json.loads(text))
    except ValueError as error:
        raise ConfigError(
            f"option assign: found {text!r}: {error}", hint='expected JSON like {"clicks": [0, 1]}'
        ) from error


def _columns(options: Options) -> list[str]:
    """The columns to give: the time of a record is the one that Kafka has of it."""
    return [name for name in options.columns if name != "append_time"]


class _ByRecordTime:
    """What both readers do with the columns: the timestamp is Kafka's."""

    options: Options

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read one task."""
        names = _columns(self.options)
        taken = ["append_time" if name == "timestamp" else name for name in names]
        for batch in super().read(partition):  # type: ignore[misc]
            yield batch.select(taken).rename_columns(names)


class _Batch(_ByRecordTime, BatchReader):
    """``spark.read``."""


class _Stream(_ByRecordTime, StreamReader):
    """``spark.readStream``."""
