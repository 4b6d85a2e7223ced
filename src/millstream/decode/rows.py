"""Values become rows: structs of the declared columns, all of a chunk in one call where each value is surely one document.

A table's record without a value is a row that has its key alone, out of the record's key; where that takes more care, or where the keys
were not read, the record is left. It is also where Debezium's envelopes are opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import compress
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from millstream.decode.envelope import Envelopes
from millstream.decode.jackson import SURE, may_refuse
from millstream.decode.json_lines import Joined, unframed
from millstream.decode.record_key import RecordKey
from millstream.decode.row_types import Kind, record_type
from millstream.log.heartbeat import PREFIX, read_heartbeat
from millstream.relation.nodes import Source

Booleans = npt.NDArray[np.bool_]
REFUSED = (ValueError, TypeError, RecursionError)  # msgspec's own errors are of the first


class Rows(NamedTuple):
    """The rows of the records that are not left, and which of those are deleted; which of all records are left."""

    rows: list[Any]
    deleted: Booleans
    left: Booleans


class RowReader:
    """Reads the rows of a source whose columns, and what stands behind them, are decoded as these types of Python.

    ``key`` are the kinds of a table's key columns.
    """

    def __init__(self, source: Source, types: Mapping[str, Any], key: Mapping[str, Kind]) -> None:
        names = list(types)
        self._row = kind = record_type("record", types)
        self._places = [f"f{names.index(name)}" for name in key]
        self._framed = source.codec == "confluent-json"
        in_envelopes = source.in_envelopes
        self._key = RecordKey(key, wrapped=in_envelopes) if key else None
        self._envelopes = None
        if in_envelopes and self._key is not None:
            numbered = source.sequence is not None
            self._envelopes = Envelopes(kind, names, key, exact=self._key.exact, numbered=numbered)
            kind = self._envelopes.type
        decoder = msgspec.json.Decoder(kind)
        self._nothing = kind()
        self._decode, self._decode_lines = decoder.decode, decoder.decode_lines

    def read(self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None) -> Rows:
        """The rows of records that are strict JSON of the declared types."""
        values = unframed(values) if self._framed else values
        left = np.zeros(len(values), bool)
        lengths = (
            values.lengths
            if isinstance(values, Joined)
            else np.array([-1 if value is None else len(value) for value in values], np.int64)
        )
        for index in np.flatnonzero(lengths > SURE).tolist():
            left[index] = may_refuse(values[index])  # type: ignore[arg-type]
        for index, key in enumerate(keys or ()):
            if key is not None and key.startswith(PREFIX):
                left[index] |= read_heartbeat(key, values[index]) is not None
        absent = lengths < 0
        rows, deleted = self._present(values, left, absent)
        if self._key is not None:
            self._keyed(rows, deleted, left, keys)
        else:
            left |= absent
        return Rows(list(compress(rows, ~left)) if left.any() else rows, deleted[~left], left)

    def _present(self, values: Sequence[bytes | None], left: Booleans, absent: Booleans) -> tuple[list[Any], Booleans]:
        """A row for each record, an empty one where there is no value; ``left`` is told what is refused."""
        found = None
        if not left.any():
            with suppress(*REFUSED):  # if it is one of them: find out which
                found = self._whole(values, int(absent.size - absent.sum()))
        if found is None:
            found = [self._one(values[index], index, left) for index in np.flatnonzero(~absent).tolist()]
        deleted = absent.copy()
        if self._envelopes is not None:
            opened = self._envelopes.open(found)
            found = opened.rows
            deleted[~absent], left[~absent] = opened.deleted, left[~absent] | opened.doubtful
        if not absent.any():
            return found, deleted
        rows: list[Any] = [None] * len(values)
        for index, row in zip(np.flatnonzero(~absent).tolist(), found, strict=True):
            rows[index] = row
        for index in np.flatnonzero(absent).tolist():
            rows[index] = self._row()
        return rows, deleted

    def _whole(self, values: Sequence[bytes | None], count: int) -> list[Any]:
        """All records that have a value, if none is refused."""
        if isinstance(values, Joined) and values.are_objects:
            found = self._decode_lines(values.data)
            if len(found) == count:
                return found
        return [self._decode(value) for value in values if value is not None]

    def _one(self, value: bytes | None, index: int, left: Booleans) -> Any:
        if not left[index]:
            try:
                return self._decode(value)  # type: ignore[arg-type]
            except REFUSED:
                left[index] = True
        return self._nothing

    def _keyed(self, rows: list[Any], deleted: Booleans, left: Booleans, keys: Sequence[bytes | None] | None) -> None:
        """Give deleted rows without a key the one of their record; what has none, or one that takes more care, is left."""
        assert self._key is not None  # noqa: S101
        for index in np.flatnonzero(deleted & ~left).tolist():
            row = rows[index]
            if any(getattr(row, place) is None for place in self._places):
                found = self._key.read(keys[index]) if keys is not None else None
                if found is None:
                    left[index] = True
                    continue
                for place, value in zip(self._places, found, strict=True):
                    if getattr(row, place) is None:
                        setattr(row, place, value)
