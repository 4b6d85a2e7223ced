"""Debezium's records as Confluent's Avro converter writes them: the schemas that Kafka Connect makes of a table, bytes by fastavro."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import fastavro

from tests.schema_registry import SchemaRegistry

Fields = Mapping[str, Any]
"""The type of each column, as in a record; a column that may be null is a union with ``null`` before."""

SOURCE = {
    "type": "record",
    "name": "Source",
    "namespace": "io.debezium.connector.postgresql",
    "fields": [
        {"name": "version", "type": "string"},
        {"name": "connector", "type": "string"},
        {"name": "name", "type": "string"},
        {"name": "ts_ms", "type": "long"},
        {
            "name": "snapshot",
            "type": [
                {
                    "type": "string",
                    "connect.version": 1,
                    "connect.parameters": {"allowed": "true,first,last,false,incremental"},
                    "connect.default": "false",
                    "connect.name": "io.debezium.data.Enum",
                },
                "null",
            ],
            "default": "false",
        },
        {"name": "db", "type": "string"},
        {"name": "sequence", "type": ["null", "string"], "default": None},
        {"name": "schema", "type": "string"},
        {"name": "table", "type": "string"},
        {"name": "txId", "type": ["null", "long"], "default": None},
        {"name": "lsn", "type": ["null", "long"], "default": None},
        {"name": "xmin", "type": ["null", "long"], "default": None},
    ],
    "connect.name": "io.debezium.connector.postgresql.Source",
}
BLOCK = {
    "type": "record",
    "name": "block",
    "namespace": "event",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "total_order", "type": "long"},
        {"name": "data_collection_order", "type": "long"},
    ],
    "connect.name": "event.block",
}


def value_schema(columns: Fields, name: str = "shop.public.users", source: Any = SOURCE) -> dict[str, Any]:
    """The envelope of a table: the row is defined in ``before`` and named in ``after``."""
    row = {"type": "record", "name": "Value", "fields": _fields(columns), "connect.name": f"{name}.Value"}
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": name,
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": source},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"], "default": None},
            {"name": "transaction", "type": ["null", BLOCK], "default": None},
        ],
        "connect.version": 1,
        "connect.name": f"{name}.Envelope",
    }


def key_schema(columns: Fields, name: str = "shop.public.users") -> dict[str, Any]:
    """The key of a table's records."""
    return {
        "type": "record",
        "name": "Key",
        "namespace": name,
        "fields": _fields(columns),
        "connect.name": f"{name}.Key",
    }


def _fields(columns: Fields) -> list[dict[str, Any]]:
    return [
        {"name": name, "type": kind, **({"default": None} if isinstance(kind, list) and kind[0] == "null" else {})}
        for name, kind in columns.items()
    ]


class AvroConverter:
    """Writes values behind the id that a registry gives their schema."""

    def __init__(self, registry: SchemaRegistry, subject: str, schema: dict[str, Any]) -> None:
        self.number = registry.add(subject, schema)
        self._schema = fastavro.parse_schema(schema)

    def __call__(self, value: Any) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self._schema, value)
        return b"\0" + self.number.to_bytes(4, "big") + out.getvalue()
