"""Types of MariaDB and MySQL: how they are called, and the Spark type that a pipeline declares a column with.

A type is the same whether the catalog or the binary log says it, so a table that nobody changed is one and the same
:class:`~millstream.capture.contract.Table` on both ways. What the binary log does not say, as the width that numbers are shown with, is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from millstream.errors import CaptureError

_INTEGERS = {
    "tinyint": ("tinyint", "smallint"),
    "smallint": ("smallint", "int"),
    "mediumint": ("int", "int"),
    "int": ("int", "bigint"),
    "bigint": ("bigint", "decimal(20,0)"),
}
"""Signed, and unsigned."""
_DECIMAL_DIGITS = 38
_SPARK = {
    "float": "float",
    "double": "double",
    "year": "int",
    "date": "date",
    "datetime": "timestamp_ntz",
    "timestamp": "timestamp",
    "binary": "binary",
    "varbinary": "binary",
    "tinyblob": "binary",
    "blob": "binary",
    "mediumblob": "binary",
    "longblob": "binary",
    "geometry": "binary",
}
_SIZED = ("char", "varchar", "binary", "varbinary", "bit")
_FRACTIONS = ("time", "datetime", "timestamp")
GEOMETRIES = frozenset(
    ("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection", "geomcollection")
)  # fmt: skip
KINDS = frozenset(
    (*_INTEGERS, *_SPARK, *_SIZED, "decimal", "time", "enum", "set", "tinytext", "text", "mediumtext", "longtext")
)
"""All that can be captured."""


@dataclass(frozen=True, slots=True)
class Type:
    """A column's type. ``size`` is its length, its digits, or how many digits of a second it has; ``charset`` is that of text."""

    kind: str
    unsigned: bool = False
    size: int = 0
    scale: int = 0
    charset: str = ""
    members: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.kind == "decimal":
            said = f"decimal({self.size},{self.scale})"
        elif self.kind in _SIZED or (self.kind in _FRACTIONS and self.size):
            said = f"{self.kind}({self.size})"
        elif self.kind in ("enum", "set"):
            said = f"{self.kind}({','.join(_quoted(self.members))})"
        else:
            said = self.kind
        return f"{said} unsigned" if self.unsigned else said

    @property
    def spark(self) -> str:
        """The Spark type to declare it with."""
        if self.kind in _INTEGERS:
            return _INTEGERS[self.kind][self.unsigned]
        if self.kind == "decimal":
            return f"decimal({self.size},{self.scale})" if self.size <= _DECIMAL_DIGITS else "string"
        if self.kind == "bit":
            return "boolean" if self.size == 1 else "bigint" if self.size < 64 else "decimal(20,0)"
        return _SPARK.get(self.kind, "string")


def check_kind(kind: str, table: str, column: str) -> None:
    """Refuse a type whose values in the binary log say less than the column does."""
    if kind not in KINDS:
        raise CaptureError(
            f"table {table}: column {column} has the type {kind}, whose values in the binary log cannot be read",
            hint="the types that can be captured stand in docs/capture-mariadb.md; another type for the column, or a table without it",
        )


def _quoted(members: tuple[str, ...]) -> Iterator[str]:
    for each in members:
        yield "'" + each.replace("'", "''") + "'"
