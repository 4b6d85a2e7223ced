"""The types of a Delta table's columns, compared with those of a view."""

from __future__ import annotations

import json
from typing import Any

import polars as pl


def types(schema: Any) -> dict[str, Any]:
    """The types of columns as Delta says them, whether they may be null or not."""
    return {each["name"]: _plain(each["type"]) for each in json.loads(schema.to_json())["fields"]}


def _plain(kind: Any) -> Any:
    if isinstance(kind, list):
        return [_plain(each) for each in kind]
    if not isinstance(kind, dict):
        return kind
    noise = ("nullable", "metadata", "containsNull", "valueContainsNull")
    return {name: _plain(each) for name, each in kind.items() if name not in noise}


def differing(columns: dict[str, Any], others: dict[str, Any]) -> str:
    """The columns that others do not have like that."""
    found = [f"{name} {json.dumps(kind).strip(chr(34))}" for name, kind in columns.items() if others.get(name) != kind]
    return ", ".join(found) or "no others"


def null_hint(rows: pl.DataFrame) -> str:
    """What to write where Delta has no type for a column; nothing if it has."""
    empty = [name for name, kind in rows.schema.items() if kind == pl.Null]
    return f"cast({empty[0]} AS string): Delta has no column of nothing but null" if empty else ""
