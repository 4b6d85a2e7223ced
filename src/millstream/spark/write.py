"""Spark appends to the log: ``frame.writeStream.format("millstream")`` and ``frame.write.format("millstream")``.

Whatever Spark can read (files, Kinesis, Delta, a source of your own) enters a topic like this, on either engine. Columns are those of
Spark's Kafka sink: ``value`` (text or bytes; null is a tombstone), and if wanted ``key``, ``timestamp`` (when the event happened) and
``headers``. Options: ``log`` (the address), ``topic``, and ``kafka.NAME`` for settings of the Kafka client.

Invariant: a micro-batch is one append, whole and once. Tasks only pack their rows; the driver appends them all in one transaction, with
the query's id as the producer and the batch's number as its sequence. So a batch that Spark runs again adds nothing, and a checkpoint
that is older than the topic is refused. A batch passes through the memory of the driver: bound it where the stream is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructField, StructType, TimestampType

from millstream.errors import CheckpointMismatch, ConfigError
from millstream.event import Event
from millstream.log import Log, open_log

_BYTES = (StringType(), BinaryType())
_HEADERS = tuple(
    ArrayType(StructType([StructField("key", StringType()), StructField("value", kind)])) for kind in _BYTES
)
_TYPES: dict[str, tuple[DataType, ...]] = {
    "value": _BYTES,
    "key": _BYTES,
    "timestamp": (TimestampType(),),
    "headers": _HEADERS,
}


@dataclass(frozen=True)
class Place:
    """Where rows go: a topic of a log."""

    log: str
    topic: str
    kafka: Mapping[str, str]

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType, overwrite: bool) -> Place:
        """What the options say; ConfigError where they, or the columns, cannot be written."""
        low = {name.lower(): value for name, value in options.items()}
        for name in ("log", "topic"):
            if not low.get(name):
                raise ConfigError(
                    f"option {name} is missing", hint=f".option('{name}', …) says where rows are appended"
                )
        if overwrite:
            raise ConfigError(
                f"topic {low['topic']}: a log is only ever appended to", hint="use mode('append'), outputMode('append')"
            )
        _check(low["topic"], schema)
        kafka = {name.removeprefix("kafka."): value for name, value in low.items() if name.startswith("kafka.")}
        return cls(low["log"], low["topic"], kafka)

    def open(self) -> Log:
        """Open the log, which must be there."""
        return open_log(self.log, create=False, kafka=self.kafka)


def _check(topic: str, schema: StructType) -> None:
    names = [field.name for field in schema.fields]
    hint = "select the columns value, key, timestamp and headers, such as to_json(struct('*')) AS value"
    if "value" not in names or (more := sorted(set(names) - set(_TYPES))):
        raise ConfigError(
            f"topic {topic}: found the columns {', '.join(names)}; expected value and, if wanted, key, timestamp, headers"
            + ("" if "value" not in names else f", not {', '.join(more)}"),
            hint=hint,
        )
    for field in schema.fields:
        if not any(_same(field.dataType, expected) for expected in _TYPES[field.name]):
            raise ConfigError(
                f"topic {topic}, column {field.name}: found {field.dataType.simpleString()}, expected "
                + " or ".join(each.simpleString() for each in _TYPES[field.name]),
                hint=hint,
            )


def _same(found: DataType, expected: DataType) -> bool:
    return found.simpleString() == expected.simpleString()  # whatever may be null


@dataclass
class Packed(WriterCommitMessage):
    """The rows of one task as an Arrow stream, and the id of the query that they are of."""

    query: str
    rows: bytes


def pack(batches: Iterator[pa.RecordBatch], query: str = "") -> Packed:
    """Rows of a task for the driver."""
    sink, writer = pa.BufferOutputStream(), None
    for batch in batches:
        if writer is None:
            writer = pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))
        writer.write_batch(batch)
    if writer is not None:
        writer.close()
    return Packed(query, sink.getvalue().to_pybytes())


def events_of(rows: bytes) -> list[Event]:
    """The rows of a task as events, in their order."""
    if not rows:
        return []
    table = pa.ipc.open_stream(rows).read_all()
    columns = {name: table.column(name) for name in table.column_names}
    nothing = [None] * table.num_rows
    values, keys = (_bytes(columns[name]) if name in columns else nothing for name in ("value", "key"))
    times = columns["timestamp"].to_pylist() if "timestamp" in columns else nothing
    headers = columns["headers"].to_pylist() if "headers" in columns else nothing
    return [
        Event(value, key, time, tuple((each["key"], _raw(each["value"])) for each in found or ()))
        for value, key, time, found in zip(values, keys, times, headers, strict=True)
    ]


def _bytes(column: pa.ChunkedArray) -> list[bytes | None]:
    found: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
    return found


def _raw(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


def _messages(messages: Sequence[WriterCommitMessage | None]) -> list[Packed]:
    return [each for each in messages if isinstance(each, Packed)]


class BatchWriter(DataSourceArrowWriter):
    """``frame.write``: all rows in one append."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Pack the rows of a task."""
        return pack(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append what all tasks packed."""
        if events := [event for each in _messages(messages) for event in events_of(each.rows)]:
            with self.place.open() as log:
                log.append(self.place.topic, events)


class StreamWriter(DataSourceStreamArrowWriter):
    """``frame.writeStream``: each micro-batch in one append, exactly once."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Pack the rows of a task, with the id of the query: it lives in the checkpoint, and no other query has it."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        if not query:
            raise ConfigError("Spark does not say which query this task is of, so nothing can be appended exactly once")
        return pack(iterator, query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Append what all tasks packed under the batch's number, unless it is there."""
        packed = _messages(messages)
        if not (events := [event for each in packed for event in events_of(each.rows)]):
            return
        producer = f"spark.{packed[0].query}"
        with self.place.open() as log:
            last = log.last_sequence(self.place.topic, producer)
            if last is not None and last > batchId:
                raise CheckpointMismatch(
                    f"topic {self.place.topic} has batch {last} of this query, whose checkpoint is at batch {batchId}: it is older",
                    hint="put the newest checkpoint back; with a new one, all that the query reads is appended again",
                )
            log.append(self.place.topic, events, producer=producer, sequence=batchId)
