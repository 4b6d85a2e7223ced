"""The fast path from records to chunks: what :mod:`millstream.decode.decoder` can decode never becomes rows in the JVM.

A frame with the fast path has two kinds of rows: chunks, in the columns of :data:`CHUNK`, and records that are left for Spark
to decode, in those of :data:`~millstream.spark.records.COLUMNS`. Each row has nulls in the columns of the other kind. Our own
source decodes while it reads. Batches read by Spark's Kafka source, and their records go through one more step in Python.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle

from millstream.log.erased import VALUE_PREFIXES
from millstream.log.heartbeat import VALUE_PREFIX
from millstream.spark import private_folder

if TYPE_CHECKING:
    import numpy.typing as npt
    from pyspark.sql import DataFrame, SparkSession

    from millstream.decode.decoder import Decoder, Records
    from millstream.event import Headers
    from millstream.kernel.admission.gate import Gate
    from millstream.kernel.exchange.chunk import Chunk
    from millstream.kernel.host import Host
    from millstream.log.embedded.scan import Values
    from millstream.log.kafka.messages import Messages

CHUNK = {
    "_stage": pa.int32(),
    "_target": pa.int32(),
    "_bucket": pa.int32(),
    "_kind": pa.int32(),
    "_data": pa.binary(),
    "_leader": pa.int32(),
}
RAW = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "append_time": pa.timestamp("us", "UTC"),
}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
"""Of records that are left, where they were read with them."""
_UTC = ("UTC", "Etc/UTC", "Z", "GMT", "+00:00")
_PIECE = 1 << 30  # bytes; Arrow cannot join twice as many
SCHEMA = pa.schema([*CHUNK.items(), *RAW.items(), ("headers", HEADERS)])
DDL = (
    "_stage int, _target int, _bucket int, _kind int, _data binary, _leader int, key binary, value binary, topic string,"
    " partition int, offset long, timestamp timestamp, append_time timestamp, headers array<struct<key: string, value: binary>>"
)


def decoder_for(spark: SparkSession, host: Host) -> Decoder | None:
    """The decoder of a chain; None if it can decode no topic, and none is admitted where it is read."""
    from millstream.decode.decoder import Decoder

    decoder = Decoder(host.admission, utc=spark.conf.get("spark.sql.session.timeZone") in _UTC, aside=host.aside)
    return decoder if decoder.useful or any(feed.judged for feed in host.chain.feeds) else None


def to_file(decoder: Decoder) -> str:
    """A decoder as an option of a data source. Anybody may set an option, so it names a file that only this user can have written."""
    return private_folder.write("decoders", _pickled(decoder))


def _pickled(decoder: Decoder) -> bytes:
    """A decoder pickled; a user's function in its chain is pickled by value."""
    return cloudpickle.dumps(decoder)  # type: ignore[no-any-return, no-untyped-call]


@lru_cache(maxsize=8)
def from_bytes(data: bytes) -> Decoder:
    """The decoder of such a file. Each worker reads it once, and so compiles its expressions once."""
    decoder: Decoder = pickle.loads(data)  # noqa: S301  (made by ourselves, above)
    return decoder


def shorten(
    decoder: Decoder,
    topic: str,
    partition: int,
    records: Records,
    raw: Callable[[npt.NDArray[np.bool_]], pa.RecordBatch],
    gate: Gate | None = None,
) -> Iterator[pa.RecordBatch]:
    """Turn records of one partition into chunks; ``raw`` gives those that are left as they are, in :data:`RAW`."""
    chunks, left = decoder.pack(topic, partition, records, gate)
    yield from rows_of(decoder, chunks)
    if left.any():
        rest = raw(left)
        yield _row_batch(
            [pa.nulls(rest.num_rows, kind) for kind in CHUNK.values()],
            [
                *(rest.column(name) for name in RAW),
                rest.column("headers").cast(HEADERS)
                if "headers" in rest.schema.names
                else pa.nulls(rest.num_rows, HEADERS),
            ],
        )


def rows_of(decoder: Decoder, chunks: list[Chunk]) -> Iterator[pa.RecordBatch]:
    """Chunks as rows of the frame."""
    from millstream.spark.spill import lay_aside

    if chunks:
        columns = zip(*lay_aside(chunks, decoder.aside), strict=True)
        yield _row_batch(
            [pa.array(column, kind) for column, kind in zip(columns, CHUNK.values(), strict=True)],
            [pa.nulls(len(chunks), kind) for kind in (*RAW.values(), HEADERS)],
        )


def records_of(values: Values) -> Records:
    """Values as records for a decoder, where keys matter of records without a value alone, and timestamps do not."""
    from millstream.decode.decoder import Records
    from millstream.decode.json_lines import Joined

    keys, absent = None, iter(values.keys)
    if values.keys:
        keys = [next(absent) if length < 0 else None for length in values.lengths.tolist()]
    joined = Joined(values.joined, values.lengths)
    return Records(values.offsets, None, values.appended * 1000, keys, joined)


def records_of_messages(messages: Messages) -> Records:
    """Messages as records for a decoder, where keys and timestamps do not matter: keys are read of what may be a heartbeat or erased, or has no value."""
    from millstream.decode.decoder import Records
    from millstream.decode.json_lines import Joined

    joined = messages.joined()
    if joined is None:  # some have no value
        found = messages.values()
        lengths = np.array([-1 if value is None else len(value) for value in found], np.int64)
        values = Joined(b"\n".join(value for value in found if value is not None), lengths)
    else:
        values = Joined(joined, messages.lengths)
    places = np.flatnonzero(values.lengths < 0)
    for text in (VALUE_PREFIX, *VALUE_PREFIXES):
        places = np.union1d(values.beginning(text), places)
    keys: list[bytes | None] = [None] * len(messages)
    for place, key in zip(places.tolist(), messages.keys(places), strict=True):
        keys[place] = key
    return Records(messages.offsets, None, messages.appended * 1000, keys if len(places) else None, values)


def shorten_batch(
    decoder: Decoder,
    batch: pa.RecordBatch,
    gate: Gate | None = None,
    raw: Callable[[npt.NDArray[np.bool_]], pa.RecordBatch] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The same for records of one partition in an Arrow batch, which holds those that are left, too, unless there is ``raw``."""
    from millstream.decode.decoder import Records

    def micros(name: str) -> npt.NDArray[np.int64]:
        return batch.column(name).cast(pa.int64()).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    topic, partition, keys = batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py(), batch.column("key")
    absent = batch.column("value").null_count > 0 and decoder.is_table(topic)  # its rows are known by their keys
    looked_at = absent or decoder.wants_all(topic) or pc.any(pc.starts_with(keys, decoder.reserved)).as_py()
    records = Records(
        batch.column("offset").to_numpy(zero_copy_only=False),
        micros("timestamp"),
        micros("append_time"),
        keys.to_pylist() if looked_at else None,
        _values(batch.column("value")),
        _headers(batch.column("headers")) if looked_at and "headers" in batch.schema.names else None,
    )
    yield from shorten(decoder, topic, partition, records, raw or (lambda left: batch.filter(pa.array(left))), gate)


def _values(column: pa.Array) -> Sequence[bytes | None]:
    """Values as a decoder takes them: in one piece where there is one for each record."""
    from millstream.decode.json_lines import Joined

    if column.null_count == len(column) or column.nbytes > _PIECE:
        return column.to_pylist()  # type: ignore[no-any-return]
    lengths = pc.binary_length(column).cast(pa.int64()).fill_null(-1).to_numpy()
    there = column.drop_null()
    whole = pa.ListArray.from_arrays(pa.array([0, len(there)], pa.int32()), there)
    return Joined(pc.binary_join(whole, b"\n")[0].as_py(), lengths)


def _headers(column: pa.Array) -> list[Headers] | None:
    if column.null_count == len(column):
        return None
    return [tuple((each["key"], each["value"]) for each in found or ()) for found in column.to_pylist()]


def _row_batch(chunk: list[pa.Array], raw: list[pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*chunk, *raw], schema=SCHEMA)


def take(records: DataFrame, decoder: Decoder) -> DataFrame:
    """Apply the fast path to records that come from the JVM."""
    return records.mapInArrow(_taker(_pickled(decoder)), DDL)


def _taker(data: bytes) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = from_bytes(data)
        for batch in batches:
            for part in _by_partition(batch):
                yield from shorten_batch(decoder, part)

    return run


def _by_partition(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The records of each partition, in the order they have; a task usually has one partition only."""
    import polars as pl

    places = pl.DataFrame({name: pl.from_arrow(batch.column(name)) for name in ("topic", "partition")})
    parts = places.with_row_index("at").partition_by("topic", "partition", maintain_order=True)
    for part in parts:
        yield batch if len(parts) == 1 else batch.take(part["at"].to_arrow())
