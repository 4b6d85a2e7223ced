"""Spark hosts the kernels: ``transformWithState`` for streams, a grouped map for batches.

This is the only place that knows which of Spark's interfaces carries a stage. Rows are chunks
(:mod:`millstream.kernel.exchange.chunk`); a group is one bucket of one step; its state is one value, the meta blob, and one map, the
segments. Each call for state is a round trip between two processes.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, LongType, Row, StructField, StructType

from millstream.failpoint import failpoint
from millstream.spark.internals.state_calls import PIPELINED_STATE, Calls

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from millstream.kernel.exchange.chunk import Chunk
    from millstream.kernel.host import Host

# Nothing heavy is imported above: Spark starts one more Python for each stage of a query that only wants to know the names
# of its state, and it would load Arrow and Polars for nothing. Rows, not pandas: chunks are few, and pandas is slow to load.

_COLUMNS = "stage int, target int, bucket int, kind int, data binary, leader int"


def pack(frame: DataFrame, host: Host) -> DataFrame:
    """Pack decoded records into chunks."""
    return frame.mapInArrow(_packer(host), _COLUMNS)


def stage(frame: DataFrame, host: Host, number: int) -> DataFrame:
    """Run one stage over chunks: with state between batches if the frame is a stream, from nothing if it is not."""
    groups = frame.groupBy("leader", "bucket")
    if frame.isStreaming:
        return groups.transformWithState(
            Stage(host, number, pipelined=PIPELINED_STATE.works()), _COLUMNS, "append", "none"
        )
    return groups.applyInArrow(_batch_stage(host, number), _COLUMNS)


def to_frame(spark: SparkSession, chunks: Sequence[Chunk]) -> DataFrame:
    """Chunks of the driver as a frame."""
    rows = [(*map(int, chunk[:4]), bytes(chunk.data), chunk.leader) for chunk in chunks]
    return spark.createDataFrame(rows, _COLUMNS)


def _packer(host: Host) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: list[Chunk] = []
        for batch in batches:
            yield from _packed(host, batch, waiting)
        if waiting:
            yield _to_arrow(host, list(host.admission.admit_waiting(waiting)))

    return run


def _packed(host: Host, batch: pa.RecordBatch, waiting: list[Chunk]) -> Iterator[pa.RecordBatch]:
    """Chunks of the fast path as they are, and records packed into chunks. Those of a gate that has shut are added to ``waiting``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if "_stage" in batch.schema.names:
        ready = batch.column("_stage").is_valid()
        there = batch.filter(ready).select([f"_{name}" for name in _fields()]).rename_columns(_fields())
        batch = batch.filter(pc.invert(ready))
        waits = [
            host.admission.is_waiting(*pair)
            for pair in zip(*(there.column(name).to_pylist() for name in _fields()[:2]), strict=True)
        ]
        if any(waits):
            mask = pa.array(waits)
            waiting += _chunks(zip(*(column.to_pylist() for column in there.filter(mask).columns), strict=True))
            there = there.filter(pc.invert(mask))
        yield there
    if batch.num_rows:
        made = list(host.admission.pack(batch))
        waiting += [chunk for chunk in made if host.admission.is_waiting(chunk.stage, chunk.target)]
        yield _to_arrow(host, [chunk for chunk in made if not host.admission.is_waiting(chunk.stage, chunk.target)])


def _batch_stage(host: Host, number: int) -> Callable[[tuple[pa.Scalar, ...], pa.Table], pa.Table]:
    def run(key: tuple[pa.Scalar, ...], table: pa.Table) -> pa.Table:
        import pyarrow as pa

        from millstream.kernel.state.store import Memory

        failpoint("stage.before_bucket")
        chunks = _chunks(zip(*(table.column(name).to_pylist() for name in _fields()), strict=True))
        made = list(host.run(number, key[0].as_py(), key[1].as_py(), chunks, Memory()))
        return pa.Table.from_batches([_to_arrow(host, made)])

    return run


class Stage(StatefulProcessor):
    """One stage of a chain, as Spark wants it."""

    def __init__(self, host: Host, number: int, *, pipelined: bool) -> None:
        # Pickled here, because Spark also unpickles a processor in a process that only asks for the names of its state.
        self.packed, self.number, self.pipelined = cloudpickle.dumps(host), number, pipelined  # type: ignore[no-untyped-call]

    @cached_property
    def host(self) -> Host:
        """The chain, unpickled where it runs."""
        host: Host = pickle.loads(self.packed)  # noqa: S301  (made by ourselves, above)
        return host

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self.store = SparkStore(handle, pipelined=self.pipelined)

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: ARG002, N803
    ) -> Iterator[Row]:
        """Run one bucket of one step."""
        from millstream.spark.spill import lay_aside

        failpoint("stage.before_bucket")
        made = list(self.host.run(self.number, int(key[0]), int(key[1]), _chunks(rows), self.store))
        failpoint("stage.after_bucket")
        yield from (Row(**chunk._asdict()) for chunk in lay_aside(made, self.host.aside))

    def close(self) -> None:
        """Release nothing: nothing is held. Spark commits the state about now."""
        failpoint("stage.close")


class SparkStore:
    """The state of a bucket in Spark's state store: that of the group that Spark runs at the moment."""

    def __init__(self, handle: StatefulProcessorHandle, *, pipelined: bool) -> None:
        # Types, not text: Spark would ask the JVM to read it, for each task.
        data = StructType([StructField("data", BinaryType())])
        self._meta = handle.getValueState("meta", data)
        self._segments = handle.getMapState("segments", StructType([StructField("number", LongType())]), data)
        self._calls = Calls(self._segments, pipelined=pipelined)

    def meta(self) -> bytes | None:
        """Read the meta blob."""
        found = self._meta.get()
        return None if found is None else bytes(found[0])

    def set_meta(self, data: bytes) -> None:
        """Replace the meta blob."""
        self._meta.update((data,))

    def get(self, numbers: Sequence[int]) -> list[bytes]:
        """Read segments."""
        found = self._calls.all([partial(self._segments.getValue, (number,)) for number in numbers])
        return [bytes(row[0]) for row in found]

    def put(self, segments: Mapping[int, bytes]) -> None:
        """Write segments."""
        self._calls.all([partial(self._segments.updateValue, (number,), (data,)) for number, data in segments.items()])

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove segments."""
        self._calls.all([partial(self._segments.removeKey, (number,)) for number in numbers])


def _chunks(rows: Iterable[Sequence[Any]]) -> list[Chunk]:
    from millstream.kernel.exchange.chunk import Chunk
    from millstream.spark.spill import taken_up

    return [
        taken_up(Chunk(stage, target, bucket, kind, bytes(data), leader))
        for stage, target, bucket, kind, data, leader in rows
    ]


def _to_arrow(host: Host, chunks: list[Chunk]) -> pa.RecordBatch:
    import pyarrow as pa

    from millstream.spark.spill import lay_aside

    fields = [(name, pa.binary() if name == "data" else pa.int32()) for name in _fields()]
    schema = pa.schema(fields)
    columns: list[Sequence[Any]] = list(zip(*lay_aside(chunks, host.aside), strict=True)) or [()] * len(fields)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _fields() -> list[str]:
    return [column.split()[0] for column in _COLUMNS.split(", ")]
