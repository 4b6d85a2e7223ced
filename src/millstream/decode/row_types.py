"""The types that a record is decoded into: of JSON as msgspec reads it, and of the columns that are made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, TypeAlias

import msgspec
import polars as pl

from millstream.decode.decimals import json_type
from millstream.decode.timestamps import STAMP
from millstream.relation.nodes import Column
from millstream.scalar.types import declared_decimal


def _whole(bits: int) -> Any:
    limit = 1 << (bits - 1)
    return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]


_KINDS: dict[str, tuple[Any, pl.DataType]] = {
    "bigint": (_whole(64), pl.Int64()),
    "int": (_whole(32), pl.Int32()),
    "smallint": (_whole(16), pl.Int16()),
    "tinyint": (_whole(8), pl.Int8()),
    "double": (float, pl.Float64()),
    "string": (str, pl.String()),
    "boolean": (bool, pl.Boolean()),
    "timestamp": (str, STAMP),
    "date": (str, pl.Date()),
}
Kind: TypeAlias = tuple[Any, pl.DataType]
"""What JSON must hold, and what becomes of it."""
_SAME = {
    "long": "bigint",
    "integer": "int",
    "short": "smallint",
    "byte": "tinyint",
    "timestamp_ltz": "timestamp",
}


def kind_of(column: Column) -> Kind | None:
    """The types of a column; None for one that only Spark reads."""
    if (decimal := declared_decimal(column.type)) is not None:
        python = json_type(decimal)
        return None if python is None else (python, decimal)
    return _KINDS.get(_SAME.get(column.type.lower(), column.type.lower()))


def record_type(name: str, types: Mapping[str, Any]) -> type[msgspec.Struct]:
    """A struct whose fields have these types, or are null or left out."""
    fields = [(f"f{index}", python | None, None) for index, python in enumerate(types.values())]
    return msgspec.defstruct(name, fields, rename={f"f{index}": each for index, each in enumerate(types)}, gc=False)


@cache
def field_at(index: int) -> Callable[[list[Any]], list[Any]]:
    """What gives a field of all structs: written out, as it then takes little more than half the time of an ``attrgetter``."""
    return eval(f"lambda found: [each.f{index} for each in found]")  # type: ignore[no-any-return]  # noqa: S307
