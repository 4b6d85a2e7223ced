"""Debezium's envelopes on the fast path: what is decoded of each, and the row that is in it.

All of a chunk is decoded in one call, the declared columns of ``after`` and the key in ``before``, with or without a ``payload`` around them.
What is no plain change (a truncate, an operation that nobody knows, a row that is not there) is doubtful, and left.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from millstream.decode.row_types import Kind, kind_of, record_type
from millstream.relation.debezium import DELETE, FILE_NUMBER, HIDDEN, POSITION, UPSERTS
from millstream.relation.nodes import Column


class Opened(NamedTuple):
    """The rows of envelopes: of a deleted one the key alone. Which are deleted, and which are doubtful."""

    rows: list[Any]
    deleted: npt.NDArray[np.bool_]
    doubtful: npt.NDArray[np.bool_]


class Envelopes:
    """Opens the envelopes of a table: ``row`` is the type of its rows, in which a column is the field of its place among ``names``.

    ``exact`` says that a key is what it is decoded as, with no second look. ``numbered`` rows get the columns of
    :data:`~millstream.relation.debezium.HIDDEN`, which are among the names.
    """

    def __init__(
        self,
        row: type[msgspec.Struct],
        names: Sequence[str],
        key: Mapping[str, Kind],
        *,
        exact: bool,
        numbered: bool,
    ) -> None:
        self._row, self._exact, self._numbered = row, exact, numbered
        self._key = [(f"f{names.index(name)}", f"f{index}") for index, name in enumerate(key)]
        self._hidden = [f"f{names.index(name)}" for name in (HIDDEN if numbered else ())]
        before = record_type("before", {name: python for name, (python, _) in key.items()})
        parts: list[tuple[str, Any, Any]] = [
            ("op", str | None, None), ("after", row | None, None), ("before", before | None, None)
        ]  # fmt: skip
        if numbered:
            kinds = {name: kind_of(Column(name, kind)) for name, kind in POSITION.items()}
            source = record_type("source", {name: kind[0] for name, kind in kinds.items() if kind is not None})
            parts.append(("source", source | None, None))
        inner = msgspec.defstruct("payload", parts, gc=False)
        self.type = msgspec.defstruct("envelope", [*parts, ("payload", inner | None, None)], gc=False)

    def open(self, found: list[Any]) -> Opened:
        """The rows in envelopes of :attr:`type`."""
        found = [each if each.payload is None else each.payload for each in found]
        rows = [each.after for each in found]
        deleted, doubtful = np.zeros(len(found), bool), np.zeros(len(found), bool)
        others = [index for index, each in enumerate(found) if each.after is None or each.op not in UPSERTS]
        for index in others:
            each = found[index]
            deleted[index] = each.op == DELETE
            doubtful[index] = each.after is not None or each.op != DELETE
            rows[index] = self._row_of_key(each.before)
        if not self._exact:
            doubtful |= np.fromiter((each.before is not None for each in found), bool, len(found))
        if self._numbered:
            for row, each in zip(rows, found, strict=True):
                self._number(row, each)
        return Opened(rows, deleted, doubtful)

    def _row_of_key(self, before: Any) -> Any:
        if before is None:
            return self._row()
        return self._row(**{here: getattr(before, there) for here, there in self._key})

    def _number(self, row: Any, envelope: Any) -> None:
        op, *fields = self._hidden
        setattr(row, op, envelope.op)
        for index, field in enumerate(fields):
            said = getattr(envelope.source, f"f{index}", None)
            setattr(row, field, file_number(said) if isinstance(said, str) else said)


@lru_cache
def file_number(name: str) -> int | None:
    """The number at the end of a binary log's name."""
    found = re.search(FILE_NUMBER, name)
    return None if found is None else int(found[1])


class _Parts(msgspec.Struct, gc=False):
    after: msgspec.Raw = msgspec.Raw()
    payload: msgspec.Raw = msgspec.Raw()


_PARTS = msgspec.json.Decoder(_Parts)


def row_in(value: bytes) -> bytes:
    """The text of the row in an envelope that is strict JSON; all of it where a part of the envelope may be there twice."""
    afters = value.count(b'"after"') - value.count(b'"field":"after"')
    if afters > 1 or value.count(b'"payload"') > 1 or b"\\u" in value:
        return value
    found = _PARTS.decode(value)
    payload = bytes(found.payload)
    return bytes(_PARTS.decode(payload).after if payload.startswith(b"{") else found.after)
