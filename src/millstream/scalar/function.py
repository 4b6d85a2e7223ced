"""Functions of a pipeline, called from what Polars computes: for the rows that count, all of a frame at once.

A call is a column of its own, made before the expression that it stands in, because Polars would compute it once for each place that
reads it. It says of each row what the function gave, or why it failed. Types whose values Spark's Python gets in another way than
Arrow has them, such as times, are not taken, nor are functions of pandas: those are for Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from millstream.relation.functions import Function, given_as
from millstream.scalar.term import Term, any_of
from millstream.scalar.types import need

_TYPES: dict[str, tuple[pl.DataType, pa.DataType]] = {
    "boolean": (pl.Boolean(), pa.bool_()), "string": (pl.String(), pa.string()), "date": (pl.Date(), pa.date32()),
    **dict.fromkeys(("tinyint", "byte"), (pl.Int8(), pa.int8())), **dict.fromkeys(("smallint", "short"), (pl.Int16(), pa.int16())),
    **dict.fromkeys(("int", "integer"), (pl.Int32(), pa.int32())), **dict.fromkeys(("bigint", "long"), (pl.Int64(), pa.int64())),
    "double": (pl.Float64(), pa.float64()),
}  # fmt: skip
_ARROW = dict(_TYPES.values())


def result_of(function: Function) -> pl.DataType | None:
    """The type of a function's values; None for one that only Spark computes."""
    return _TYPES[function.returns][0] if function.returns in _TYPES and function.kind != "pandas" else None


@dataclass(frozen=True, slots=True)
class Call:
    """A call as a column ``name`` to be: a struct of the ``value``, and of ``why`` there is none. It is made where ``rows`` is true."""

    name: str
    function: Function
    rows: pl.Expr
    arguments: tuple[pl.Expr, ...]

    def made(self, frame: pl.DataFrame) -> pl.Series:
        """Call the function for the rows of a frame that count."""
        dtype = result_of(self.function)
        assert dtype is not None  # noqa: S101
        given = frame.select(
            pl.int_range(pl.len()).alias("_at"),
            self.rows.fill_null(False).alias("_rows"),
            *(each.alias(f"_{index}") for index, each in enumerate(self.arguments)),
        )
        given = given.filter("_rows")
        compute = _of_arrays if self.function.kind == "arrow" else _of_values
        values, why = compute(self.function, given.get_columns()[2:], given.height, dtype)
        there = given.select("_at", pl.Series("value", values, dtype), pl.Series("why", why, pl.String()))
        everywhere = pl.DataFrame({"_at": pl.int_range(frame.height, eager=True)})
        return everywhere.join(there, on="_at", how="left", maintain_order="left").drop("_at").to_struct(self.name)


def call_of(
    name: str, function: Function, rows: Sequence[pl.Expr], arguments: Sequence[pl.Expr], types: Sequence[pl.DataType]
) -> Call:
    """A call for the rows where all of ``rows`` are true, with arguments of these types; Refused if it takes Spark."""
    need(result_of(function) is not None, all(each in _ARROW for each in types))
    return Call(name, function, pl.all_horizontal(pl.lit(True), *rows), tuple(arguments))


class Calls:
    """Calls of the pipeline's functions in an expression, as they are read; ``rows`` are the conditions that stand before the next."""

    def __init__(self, functions: Iterable[Function], label: str, rows: Iterable[pl.Expr]) -> None:
        self.functions = {each.name.lower(): each for each in functions}
        self._label, self.rows = label, list(rows)
        self.made: list[Call] = []

    def add(self, function: Function, given: Sequence[Term]) -> Term:
        """One more call, for the rows in which the arguments are sure."""
        sure = [~each.unsure.fill_null(False) for each in given if each.unsure is not None]
        name, values = f"_call{self._label}_{len(self.made)}", [each.value for each in given]
        self.made.append(call_of(name, function, [*self.rows, *sure], values, [each.dtype for each in given]))
        kind = result_of(function)
        assert kind is not None  # noqa: S101
        return Term(pl.col(name).struct.field("value"), kind, any_of(*(each.unsure for each in given)))

    @property
    def why(self) -> pl.Expr | None:
        """What the first that failed raised."""
        return pl.coalesce(pl.col(each.name).struct.field("why") for each in self.made) if self.made else None


def with_calls(frame: pl.DataFrame, calls: Iterable[Call]) -> pl.DataFrame:
    """A frame with the columns that calls are; one may read those before it."""
    for each in calls:
        frame = frame.with_columns(each.made(frame))
    return frame


def failure(function: Function, error: Exception) -> str:
    """What is said of a call that failed."""
    return f"{function.name}: {type(error).__name__}: {error}"


_Computed = tuple[Sequence[object], Sequence[str | None]]


def _of_values(function: Function, columns: Sequence[pl.Series], height: int, _: pl.DataType) -> _Computed:
    values: list[object] = [None] * height
    why: list[str | None] = [None] * height
    for index, row in enumerate(zip(*columns, strict=True) if columns else [()] * height):
        try:
            values[index] = given_as(function.function(*row), function.returns)
        except Exception as error:  # whatever a function of the user's raises
            why[index] = failure(function, error)
    return values, why


def _of_arrays(function: Function, columns: Sequence[pl.Series], height: int, dtype: pl.DataType) -> _Computed:
    if not height:
        return [], []
    try:
        arrays = [pa.array(each.to_arrow(), _ARROW[each.dtype]) for each in columns]
        made = arrays_as(function.function(*arrays), height, _ARROW[dtype])
    except Exception as error:  # whatever a function of the user's raises
        return [None] * height, [failure(function, error)] * height
    return made.to_pylist(), [None] * height


def arrays_as(made: Any, height: int, kind: pa.DataType) -> pa.Array:
    """What a function of Arrow arrays gave, as an array of its declared type; TypeError if it is none, or of another length."""
    if not isinstance(made, pa.Array | pa.ChunkedArray) or len(made) != height:
        found = f"{len(made)} values" if isinstance(made, pa.Array | pa.ChunkedArray) else repr(type(made).__name__)
        raise TypeError(f"expected an Arrow array of {height} values; found {found}")
    made = made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made
    return made if made.type == kind else made.cast(kind)
