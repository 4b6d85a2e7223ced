"""A table's key out of a record's key, where it is certain what Spark makes of it: the key's own text, or members of a JSON object.

A record without a value has its key nowhere else. What Spark reads is in ``spark/decoding.py``; a test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import polars as pl

from millstream.decode.jackson import SURE
from millstream.decode.row_types import Kind, record_type

_WHOLE = re.compile(r"-?[0-9]{1,18}")
_EXACT = (pl.Int64, pl.Int32, pl.Int16, pl.Int8, pl.String, pl.Boolean)
"""Types of which JSON has one form that we and Spark read alike, with no second look."""
_REFUSED = (ValueError, TypeError, RecursionError)


class RecordKey:
    """Reads the key columns, of these types, out of record keys; ``wrapped`` keys may have them in a ``payload`` beside a schema."""

    def __init__(self, kinds: Mapping[str, Kind], *, wrapped: bool) -> None:
        self._kinds = list(kinds.values())
        self.exact = all(isinstance(dtype, _EXACT) for _, dtype in self._kinds)
        types = {name: python for name, (python, _) in kinds.items()}
        inner, self._payload = record_type("key", types), None
        if wrapped and "payload" not in types:
            self._payload = f"f{len(types)}"
            inner = record_type("key", types | {"payload": inner})
        self._decode = msgspec.json.Decoder(inner).decode

    def read(self, key: bytes | None) -> tuple[Any, ...] | None:
        """The values of the key columns; None if only Spark can tell."""
        if key is None or not self.exact or len(key) > SURE:
            return None
        try:
            if key.startswith(b"{"):
                return self._members(self._decode(key))
            return self._text(key.decode()) if len(self._kinds) == 1 else None
        except _REFUSED:
            return None

    def _members(self, found: Any) -> tuple[Any, ...] | None:
        values = self._values(found)
        if self._payload is not None and values.count(None) == len(values):
            inner = getattr(found, self._payload)
            values = values if inner is None else self._values(inner)
        return None if None in values else values

    def _values(self, found: Any) -> tuple[Any, ...]:
        return tuple(getattr(found, f"f{index}") for index in range(len(self._kinds)))

    def _text(self, text: str) -> tuple[Any, ...] | None:
        python, dtype = self._kinds[0]
        if isinstance(dtype, pl.String):
            return None if text.startswith('"') else (text,)
        if isinstance(dtype, pl.Boolean) or not _WHOLE.fullmatch(text):
            return None
        return (msgspec.convert(int(text), python),)
