"""Batches: a function of the user's over rows as Arrow, any number out for each row in. Nothing is kept.

The function says nothing of which row a row of its own is made of, and need not: rows that appear and rows that disappear are given
to it apart, each as often as it counts, so what it makes of them appears or disappears as they do. That is right for every cut into
batches if the function looks at each row by itself and gives the same each time.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
import pyarrow as pa

from millstream.errors import PipelineError
from millstream.kernel.kernel import State
from millstream.kernel.operators.map_groups import type_of
from millstream.kernel.zset import WEIGHT, repeated, signed
from millstream.plan.spec import Batches

_ROWS = 10_000  # of a batch, as in Spark


class BatchesKernel:
    """The kernel of :class:`~millstream.plan.spec.Batches`."""

    def __init__(self, spec: Batches) -> None:
        self.spec = spec

    def step(self, _state: State, rows: pl.DataFrame | None) -> pl.DataFrame | None:
        """Pass the rows on, if there are any."""
        return None if rows is None else self.through(rows)

    def through(self, rows: pl.DataFrame) -> pl.DataFrame:
        """What the function makes of the rows, with weights."""
        weight = pl.col(WEIGHT) if WEIGHT in rows.columns else pl.lit(1, pl.Int64).alias(WEIGHT)
        rows = rows.select(*self.spec.columns, weight)
        gone = rows.filter(pl.col(WEIGHT) < 0).with_columns(-pl.col(WEIGHT))
        return signed(_made(repeated(gone), self.spec), _made(repeated(rows.filter(pl.col(WEIGHT) > 0)), self.spec))


def in_batches(rows: pl.DataFrame) -> Iterator[pa.RecordBatch]:
    """Rows as Spark would give them to a function."""
    table = rows.to_arrow(compat_level=pl.CompatLevel.oldest())
    yield from table.cast(pa.schema([(each.name, _plain(each.type)) for each in table.schema])).to_batches(_ROWS)


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type as Spark has it in Arrow."""
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return pa.string() if pa.types.is_large_string(kind) else pa.binary()
    if pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _plain(each.type)) for each in kind])
    return kind


def _made(rows: pl.DataFrame, spec: Batches) -> pl.DataFrame:
    schema = pl.Schema([(each.name, kind) for each in spec.made if (kind := type_of(each.type)) is not None])
    function = spec.function
    if not rows.height:
        return pl.DataFrame(schema=schema)
    what = f"{spec.place}: map_batches with {getattr(function, '__name__', 'a function')}"
    try:
        given = list(function(in_batches(rows)))
    except Exception as error:
        raise PipelineError(f"{what}: {type(error).__name__}: {error}") from error
    made = pl.concat([pl.DataFrame(schema=schema), *(_checked(each, schema, what) for each in given)])
    if spec.time and not made[spec.time].is_in(rows[_named(rows, spec.time)].implode()).fill_null(False).all():
        raise PipelineError(
            f"{what}: it gives a {spec.time} that none of its rows has, and that is the event time",
            hint="leave it as it is, or give the other time another name",
        )
    return made


def _named(rows: pl.DataFrame, name: str) -> str:
    return next(each for each in rows.columns if each.lower() == name.lower())


def _checked(batch: object, schema: pl.Schema, what: str) -> pl.DataFrame:
    """A batch that the function gave, in the declared types."""
    if not isinstance(batch, pa.RecordBatch) or set(batch.schema.names) != set(schema):
        is_batch = isinstance(batch, pa.RecordBatch)
        found = f"columns {', '.join(batch.schema.names)}" if is_batch else repr(type(batch).__name__)  # type: ignore[attr-defined]
        raise PipelineError(f"{what}: expected Arrow batches with columns {', '.join(schema)}; found {found}")
    try:
        frame = pl.DataFrame(pa.Table.from_batches([batch]))
        return frame.select(pl.col(name).cast(dtype) for name, dtype in schema.items())
    except pl.exceptions.PolarsError as error:
        raise PipelineError(f"{what}: its columns do not fit the declared types: {error}") from error
