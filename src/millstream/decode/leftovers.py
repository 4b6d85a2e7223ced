"""What the decoder leaves to Spark, judged without it: heartbeats, tombstones, and records that are certainly malformed.

The verdict is Spark's or none. A record that Spark might read otherwise raises NeedsSpark; there is no guess. What Spark says is in
``spark/decoding.py``; a test compares the two.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import polars as pl

from millstream.decode.decoder import FeedDecoder, Records
from millstream.decode.jackson import SURE, may_read
from millstream.decode.repeated_fields import Repeated, once
from millstream.errors import NeedsSpark
from millstream.event import Record
from millstream.kernel.admission.record import NO_VALUE, SHOWN, beat_of, lacks, placed_by, undecoded
from millstream.log.heartbeat import read_heartbeat
from millstream.plan.prune_columns import narrowed
from millstream.relation import expression
from millstream.relation.nodes import Source
from millstream.relation.schema import fields_of
from millstream.scalar.types import declared_decimal

_WHOLE = re.compile(r"-?[0-9]{1,18}")
# Numbers keep all of their digits, for columns that are decimals.
_READ, _WRITE = msgspec.json.Decoder(float_hook=Decimal), msgspec.json.Encoder(decimal_format="number")


def to_records(records: Sequence[Record]) -> Records:
    """Records of one partition, column by column."""
    return Records(
        np.array([record.offset for record in records], np.int64),
        np.array([record.timestamp * 1000 for record in records], np.int64),
        np.array([record.appended * 1000 for record in records], np.int64),
        [record.key for record in records],
        [record.value for record in records],
    )


@dataclass
class _Sorted:
    """Records by their kind: rows to decode again with the columns that they lacked, rejects and heartbeats."""

    rows: list[Record] = field(default_factory=list)
    deleted: list[bool] = field(default_factory=list)
    others: list[dict[str, Any]] = field(default_factory=list)


def judge(decoder: FeedDecoder, pipeline: str, partition: int, records: Sequence[Record]) -> pl.DataFrame:
    """The rows for admission of records that the decoder left."""
    source = decoder.feed.source
    found = _Sorted()
    for record in records:
        _sort(decoder, pipeline, partition, record, found)
    frame, left = decoder.decode(partition, to_records(found.rows))
    if left.any():
        raise _only_spark(source, found.rows[int(left.argmax())])
    if source.kind == "table":
        frame = frame.with_columns(pl.Series("_deleted", found.deleted, pl.Boolean))
    if found.others:
        rest = pl.DataFrame(found.others, schema={name: frame.schema[name] for name in found.others[0]})
        frame = pl.concat([frame, rest], how="diagonal")
    return frame.sort("_o")


def _sort(decoder: FeedDecoder, pipeline: str, partition: int, record: Record, found: _Sorted) -> None:
    source, deleted = narrowed(decoder.feed), record.value is None
    if (said := read_heartbeat(record.key, record.value)) is not None:
        found.others.append(_other(source, record, None, beat=beat_of(said, pipeline)))
        return
    bad, value = _value(source, record)
    if bad is None and value is not None:
        record = record._replace(value=_WRITE.encode(value))
        if _decodes(decoder, partition, record, {}):
            found.rows.append(record)
            found.deleted.append(deleted)
            return
        lacking = [name for name in _needed(source) if value.get(name) is None]
        if not lacking or not _decodes(decoder, partition, record, _anything(source, lacking)):
            raise _only_spark(source, record)
        bad = lacks(source.time.column if source.time else lacking[0])
    found.others.append(_other(source, record, deleted, bad=bad))


def _value(source: Source, record: Record) -> tuple[str | None, dict[str, Any] | None]:
    """Why a record is malformed; or its columns, with a table's key from the record's key where the value has none."""
    if record.value is None:
        return (NO_VALUE, None) if source.kind == "stream" else (None, _with_key(source, record, {}))
    if len(record.value) > SURE:
        raise _only_spark(source, record)
    text = record.value.decode("utf-8", "replace")
    refused = undecoded(source) + text[:SHOWN]
    try:
        value = _READ.decode(record.value)
        json.loads(record.value, object_pairs_hook=once)
    except Repeated:
        raise _only_spark(source, record) from None
    except (ValueError, RecursionError):
        if not record.value.isascii() or not text.isprintable() or (text[:1] in "{[ " and may_read(text)):
            raise _only_spark(source, record) from None
        return refused, None
    if isinstance(value, list):
        raise _only_spark(source, record)
    if not isinstance(value, dict) or any(_misfit(column.type, value.get(column.name)) for column in source.columns):
        return refused, None
    return None, _with_key(source, record, value)


def _misfit(kind: str, value: Any) -> bool:
    """Whether a value is certainly none of a column's type."""
    if value is None or kind.lower() == "string":
        return False
    if isinstance(value, dict):
        fields = fields_of(kind)
        return not fields or any(_misfit(field.type, value.get(field.name)) for field in fields)
    if isinstance(value, list):
        return True
    if declared_decimal(kind) is not None:
        return isinstance(value, bool)
    match kind.lower():
        case "boolean":
            return not isinstance(value, bool)
        case "double":
            return isinstance(value, bool)
        case "timestamp" | "timestamp_ltz" | "date":
            return isinstance(value, bool) or (isinstance(value, str) and not re.search("[0-9]", value))
        case _:
            # Jackson takes 200 for a byte, and Spark with it
            bits = {"tinyint": 8, "byte": 8, "smallint": 15, "short": 15, "int": 31, "integer": 31}.get(
                kind.lower(), 63
            )
            return isinstance(value, bool) or not isinstance(value, int) or not -(1 << bits) <= value < 1 << bits


def _with_key(source: Source, record: Record, value: dict[str, Any]) -> dict[str, Any]:
    lacking = [name for name in source.key if value.get(name) is None] if source.kind == "table" else []
    if not lacking or record.key is None:
        return value
    kinds = {column.name: column.type.lower() for column in source.columns}
    try:
        text = record.key.decode()
        found = _from_text(source.key[0], text, kinds[source.key[0]]) if len(source.key) == 1 else _READ.decode(text)
        if all(_is_exact(found[name], kinds[name]) for name in lacking):
            return value | {name: found[name] for name in lacking}
    except (ValueError, TypeError, KeyError):
        pass
    raise _only_spark(source, record)


def _is_exact(value: Any, kind: str) -> bool:
    """Whether a value of JSON is surely one of the column's type as it is: a number with a fraction is not for most."""
    return not isinstance(value, Decimal) or kind == "double" or declared_decimal(kind) is not None


def _from_text(name: str, text: str, kind: str) -> dict[str, Any]:
    """The one key column out of a record's key; ValueError for what takes more care."""
    if text[:1] == "{":
        found: dict[str, Any] = _READ.decode(text)
        return found if name in found else {name: _plain(text, kind)}
    if text[:1] == '"':
        return {name: msgspec.json.decode(text, type=str)}
    return {name: _plain(text, kind)}


def _plain(text: str, kind: str) -> str | int:
    if kind == "string":
        return text
    if kind not in ("bigint", "long", "int", "integer") or not _WHOLE.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _needed(source: Source) -> tuple[str, ...]:
    if source.time is None or not source.time.said:
        return placed_by(source)
    names = {column.name.lower(): column.name for column in source.columns}
    return tuple(names[path[0]] for path in expression.paths(source.time.said) if path[0] in names)


def _anything(source: Source, names: Sequence[str]) -> dict[str, Any]:
    """Some value for each of these columns."""
    kinds = {column.name: column.type.lower() for column in source.columns}
    some = {"string": "", "double": 0.0, "boolean": False, "date": "2000-01-01"}
    some |= dict.fromkeys(("timestamp", "timestamp_ltz"), "2000-01-01T00:00:00Z")
    return {name: some.get(kinds.get(name, ""), 0) for name in names}


def _decodes(decoder: FeedDecoder, partition: int, record: Record, more: dict[str, Any]) -> bool:
    """Whether a record with these columns besides is one that needs no Spark."""
    value = _WRITE.encode(_READ.decode(record.value or b"{}") | more)
    return not decoder.decode(partition, to_records([record._replace(value=value)]))[1].any()


def _other(
    source: Source, record: Record, deleted: bool | None, *, bad: str | None = None, beat: int | None = None
) -> dict[str, Any]:
    """A row that is no row of the source, as admission takes it."""
    made: dict[str, Any] = {"_o": record.offset, "_a": record.appended * 1000, "_bad": bad, "_beat": beat}
    return made | ({"_deleted": deleted} if source.kind == "table" else {})


_TIMES = "; or write times as 2026-01-31T12:00:00Z"


def _only_spark(source: Source, record: Record) -> NeedsSpark:
    shown = (record.value or record.key or b"")[:200]
    times = shown.lstrip().startswith(b"{") and any(
        c.type.lower().startswith(("timestamp", "date")) for c in source.columns
    )
    return NeedsSpark(
        f"{source.kind} {source.name}: what {shown!r} is as a row ({', '.join(f'{c.name} {c.type}' for c in source.columns)})"
        " or in an expression over it, only Spark can tell",
        hint="give the trial a session: trial(…, spark=spark_session())" + (_TIMES if times else ""),
    )
