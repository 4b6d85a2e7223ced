"""Frames as Arrow, packed and unpacked: what state keeps and what chunks carry.

Rows are an Arrow stream with its schema, so they can be read without knowing the plan. What was packed comes back as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa


def to_arrow(rows: pl.DataFrame) -> pa.Table:
    """Rows as Arrow that can be written.

    Of lists that Polars gathered, if all are empty, the elements may begin behind their end, and Arrow writes that as what nobody
    can read.
    """
    table = rows.to_arrow()
    for index, kind in enumerate(rows.dtypes):
        if kind.is_nested():
            mended = pa.chunked_array([_mended(array) for array in table[index].chunks], table.schema[index].type)
            table = table.set_column(index, table.schema[index], mended)
    return table


def _mended(array: pa.Array) -> pa.Array:
    """The same values; lists of which none has an element get new elements, none."""
    kind = array.type
    if pa.types.is_struct(kind):
        fields = [_mended(array.field(index)) for index in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=array.is_null())
    if pa.types.is_large_list(kind) and not len(array.values):
        nowhere, none = pa.array(np.zeros(len(array) + 1, np.int64)), pa.array([], kind.value_type)
        return pa.LargeListArray.from_arrays(nowhere, none, kind, mask=array.is_null())
    return array


def to_bytes(rows: pl.DataFrame | pa.RecordBatch) -> bytes:
    """Rows as an Arrow stream."""
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else to_arrow(rows)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_bytes(data: bytes | memoryview) -> pl.DataFrame:
    """Rows out of an Arrow stream."""
    frame = pl.from_arrow(pa.ipc.open_stream(pa.py_buffer(data)).read_all())
    assert isinstance(frame, pl.DataFrame)  # noqa: S101
    return frame


def one_frame(chunks: Sequence[bytes | memoryview]) -> pl.DataFrame:
    """The rows of several chunks, in their order; as one piece, for of many it is slow to take rows here and there."""
    tables = [pa.ipc.open_stream(pa.py_buffer(data)).read_all() for data in chunks]
    frame = pl.from_arrow(pa.concat_tables(tables, promote_options="permissive"))
    assert isinstance(frame, pl.DataFrame)  # noqa: S101
    return frame.rechunk()
