"""Spark hosts the kernels: ``transformWithState`` for streams, a grouped map for batches.

This is the only place that knows which of Spark's interfaces carries a stage. Rows are chunks
(:mod:`millstream.kernel.chunk`); a group is one bucket of one kernel; its state is one value, the meta blob, and one map, the
segments. Each call for state is a round trip between two processes.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from millstream.failpoint import failpoint

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from millstream.kernel.chunk import Chunk
    from millstream.kernel.host import Host

# Nothing heavy is imported above: Spark starts one more Python for each stage of a query that only wants to know the names
# of its state, and it would load Arrow, pandas and Polars for nothing.

_COLUMNS = "stage int, target int, bucket int, kind int, data binary"
_PACKED = 256
"""Chunks in one batch on their way back to Spark."""


def pack(frame: DataFrame, host: Host) -> DataFrame:
    """Pack decoded records into chunks."""
    return frame.mapInArrow(_packer(host), _COLUMNS)


def stage(frame: DataFrame, host: Host, number: int) -> DataFrame:
    """Run one stage over chunks: with state between batches if the frame is a stream, from nothing if it is not."""
    groups = frame.groupBy("target", "bucket")
    if frame.isStreaming:
        return groups.transformWithStateInPandas(Stage(host, number), _COLUMNS, "append", "none")
    return groups.applyInPandas(_batch_stage(host, number), _COLUMNS)


def _packer(host: Host) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield _to_arrow(list(host.pack(batch)))

    return run


def _batch_stage(host: Host, number: int) -> Callable[[tuple[Any, ...], pd.DataFrame], pd.DataFrame]:
    def run(key: tuple[Any, ...], frame: pd.DataFrame) -> pd.DataFrame:
        from millstream.kernel.state import Memory

        return _to_pandas(list(host.run(number, int(key[0]), int(key[1]), _chunks(frame), Memory())))

    return run


class Stage(StatefulProcessor):
    """One stage of a chain, as Spark wants it."""

    def __init__(self, host: Host, number: int) -> None:
        # Packed, because Spark unpacks a processor once more in a process that only asks for its state's names.
        self.packed, self.number = pickle.dumps(host), number

    @cached_property
    def host(self) -> Host:
        """The chain, unpacked where it runs."""
        host: Host = pickle.loads(self.packed)  # noqa: S301  (made by ourselves, above)
        return host

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self.store = SparkStore(handle)

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: ARG002, N803
    ) -> Iterator[pd.DataFrame]:
        """Run one bucket of one kernel."""
        failpoint("stage.before_bucket")
        chunks = [chunk for frame in rows for chunk in _chunks(frame)]
        made = list(self.host.run(self.number, int(key[0]), int(key[1]), chunks, self.store))
        failpoint("stage.after_bucket")
        for low in range(0, len(made), _PACKED):
            yield _to_pandas(made[low : low + _PACKED])

    def close(self) -> None:
        """Nothing is held; Spark commits the state about now."""
        failpoint("stage.close")


class SparkStore:
    """A bucket's state in Spark's state store, for whichever group Spark has at hand."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._meta = handle.getValueState("meta", "data binary")
        self._segments = handle.getMapState("segments", "number long", "data binary")

    def meta(self) -> bytes | None:
        """The meta blob."""
        found = self._meta.get()
        return None if found is None else bytes(found[0])

    def set_meta(self, data: bytes) -> None:
        """Replace it."""
        self._meta.update((data,))

    def get(self, number: int) -> bytes:
        """A segment."""
        found = self._segments.getValue((number,))
        assert found is not None, number  # noqa: S101
        return bytes(found[0])

    def put(self, number: int, data: bytes) -> None:
        """Write one."""
        self._segments.updateValue((number,), (data,))

    def remove(self, number: int) -> None:
        """Forget one."""
        self._segments.removeKey((number,))


def _chunks(frame: pd.DataFrame) -> Iterator[Chunk]:
    from millstream.kernel.chunk import Chunk

    columns = (frame[name] for name in Chunk._fields)
    for stage, target, bucket, kind, data in zip(*columns, strict=True):
        yield Chunk(int(stage), int(target), int(bucket), int(kind), bytes(data))


def _to_arrow(chunks: list[Chunk]) -> pa.RecordBatch:
    import pyarrow as pa

    fields = [(name, pa.binary() if name == "data" else pa.int32()) for name in _fields()]
    schema = pa.schema(fields)
    columns: list[Sequence[Any]] = list(zip(*chunks, strict=True)) or [()] * len(fields)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _to_pandas(chunks: list[Chunk]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(chunks, columns=_fields())


def _fields() -> list[str]:
    return [column.split()[0] for column in _COLUMNS.split(", ")]
