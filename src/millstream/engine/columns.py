"""The types of columns as a driver tells them, and the Spark type of what the engine writes of them, as we tell it to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.capture.contract import Column, Table

_BIT, _TINYINT, _BIGINT, _LONGVARBINARY, _VARBINARY, _BINARY = -7, -6, -5, -4, -3, -2
_NUMERIC, _DECIMAL, _INTEGER, _SMALLINT, _FLOAT, _REAL, _DOUBLE, _BOOLEAN = 2, 3, 4, 5, 6, 7, 8, 16
_DATE, _TIMESTAMP, _BLOB, _TIMESTAMP_WITH_ZONE = 91, 93, 2004, 2014
"""Java's numbers of types, ``java.sql.Types``."""
_PLAIN = {
    _BIT: "boolean", _BOOLEAN: "boolean", _TINYINT: "smallint", _SMALLINT: "int", _INTEGER: "int", _BIGINT: "bigint",
    _REAL: "double", _FLOAT: "double", _DOUBLE: "double", _DATE: "date", _TIMESTAMP: "timestamp", _TIMESTAMP_WITH_ZONE: "timestamp",
    _BINARY: "binary", _VARBINARY: "binary", _LONGVARBINARY: "binary", _BLOB: "binary",
}  # fmt: skip
_MOST_DIGITS = 38


def table_of(said: Mapping[str, Any]) -> Table:
    """A table as the driver tells it.

    >>> id = {"name": "id", "native": "int4", "type": 4, "size": 10, "digits": 0}
    >>> table_of({"schema": "public", "name": "users", "key": ["id"], "columns": [id]}).columns
    (Column(name='id', native='int4', type='int'),)
    """
    columns = tuple(Column(each["name"], each["native"], _type_of(each)) for each in said["columns"])
    return Table(said["schema"], said["name"], columns, tuple(said["key"]))


def _type_of(column: Mapping[str, Any]) -> str:
    size, digits = column["size"], column["digits"]
    if column["type"] in (_NUMERIC, _DECIMAL) and 0 < size <= _MOST_DIGITS and 0 <= digits <= size:
        return f"decimal({size}, {digits})"
    return _PLAIN.get(column["type"], "string")


def value_of(value: Any, type_: str) -> Any:
    """A value as our other captures write it: a date without the zone that Debezium puts behind it."""
    return value[:-1] if type_ == "date" and isinstance(value, str) and value[-1:] == "Z" else value
