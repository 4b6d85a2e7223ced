"""Groups: a function of the user's over all rows of a key, kept up to date by asking it again.

The function gets the rows of one key as a Polars frame, in an order that does not depend on who came first, and gives a
frame. The change is what it says after the batch less what it said before, so it must give the same answer each time.
"""

from __future__ import annotations

import re
from typing import Any

import polars as pl

from millstream.errors import PipelineError
from millstream.kernel.kernel import State
from millstream.kernel.operators.keyed_rows import ONE, Keyed, with_key
from millstream.kernel.operators.top import in_order
from millstream.kernel.zset import difference, repeated, weighed
from millstream.plan.spec import Groups
from millstream.scalar.types import declared_decimal

_TYPES: dict[str, Any] = {
    "boolean": pl.Boolean, "tinyint": pl.Int8, "byte": pl.Int8, "smallint": pl.Int16, "short": pl.Int16, "int": pl.Int32,
    "integer": pl.Int32, "bigint": pl.Int64, "long": pl.Int64, "float": pl.Float32, "real": pl.Float32, "double": pl.Float64,
    "string": pl.String, "binary": pl.Binary, "date": pl.Date, "timestamp": pl.Datetime("us", "UTC"),
    "timestamp_ntz": pl.Datetime("us"),
}  # fmt: skip


def type_of(declared: str) -> pl.DataType | None:
    """The Polars type of a Spark type; None for one that a function of groups cannot give."""
    text = declared.strip().lower()
    if text in _TYPES:
        return pl.Schema({"_": _TYPES[text]})["_"]
    if (decimal := declared_decimal(text)) is not None:
        return decimal
    if array := re.fullmatch(r"array<(.*)>", text):
        inner = type_of(array[1])
        return None if inner is None else pl.List(inner)
    return None


class GroupsKernel:
    """The kernel of :class:`~millstream.plan.spec.Groups`."""

    def __init__(self, spec: Groups) -> None:
        self.spec = spec
        self.keys = list(spec.keys) or [ONE]
        self.columns = list(dict.fromkeys((*self.keys, *spec.columns)))
        self.made = pl.Schema([(each.name, kind) for each in spec.made if (kind := type_of(each.type)) is not None])

    def step(self, state: State, rows: pl.DataFrame | None) -> pl.DataFrame | None:
        """Ask the function about the keys that the rows touch."""
        if rows is None and state.after <= state.before:
            return None
        came = with_key(pl.DataFrame(schema=state.schema) if rows is None else rows, self.keys)
        came = weighed(came, self.columns)
        keyed = Keyed(state, self.keys, came.clear())
        old = keyed.open(came)
        new = weighed(pl.concat([old, came.select(old.columns)]), self.columns)
        keyed.close_until(new, self.spec.horizon)
        return difference(self._made(old), self._made(new))

    def _made(self, rows: pl.DataFrame) -> pl.DataFrame:
        rows = in_order(repeated(rows), (), self.columns)
        none = rows.clear().select(self.spec.keys).with_columns(pl.lit(None, t).alias(n) for n, t in self.made.items())
        parts = rows.partition_by(self.keys, maintain_order=True) if rows.height else []
        return pl.concat([none, *(self._of_group(part) for part in parts)])

    def _of_group(self, rows: pl.DataFrame) -> pl.DataFrame:
        key = rows.select(self.keys).head(1)
        shown = ", ".join(f"{name} = {key.item(0, name)!r}" for name in self.spec.keys) or "all rows"
        function = self.spec.function
        what = f"map_groups with {getattr(function, '__name__', 'a function')}, {shown}"
        try:
            made = function(rows.select(self.spec.columns))
        except Exception as error:
            raise PipelineError(f"{what}: {type(error).__name__}: {error}") from error
        names = list(self.made)
        if not isinstance(made, pl.DataFrame) or set(made.columns) != set(names):
            found = (
                f"columns {', '.join(made.columns)}" if isinstance(made, pl.DataFrame) else repr(type(made).__name__)
            )
            raise PipelineError(f"{what}: expected a Polars frame with columns {', '.join(names)}; found {found}")
        try:
            made = made.select(pl.col(name).cast(dtype) for name, dtype in self.made.items())
        except pl.exceptions.PolarsError as error:
            raise PipelineError(f"{what}: its columns do not fit the declared types: {error}") from error
        keys = [pl.lit(key[name].first(), key.schema[name]).alias(name) for name in self.spec.keys]
        return made.select(*keys, *names) if keys else made
