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
from millstream.decode.envelope import file_number
from millstream.decode.jackson import SURE, may_read
from millstream.decode.repeated_fields import Repeated, once
from millstream.errors import NeedsSpark
from millstream.event import Record
from millstream.framed import HEAD, frame
from millstream.kernel.admission.record import NO_VALUE, SHOWN, beat_of, lacks, placed_by, undecoded
from millstream.log.heartbeat import read_heartbeat
from millstream.plan.prune_columns import narrowed
from millstream.relation import expression
from millstream.relation.debezium import (
    DELETE,
    NOT_SENT,
    POSITION,
    TRUNCATE,
    TRUNCATED,
    UNAVAILABLE,
    UNNUMBERED,
    UPSERTS,
)
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
        [record.headers for record in records],
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
    if (codec := decoder.codec) is not None:
        records = [each._replace(value=codec.as_value(each.value), key=codec.as_key(each.key)) for each in records]
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
        rest: dict[str, Any] = {}
        if source.in_envelopes and not deleted:
            value, rest = value["row"], value
            deleted = rest["op"] == DELETE
        written = record._replace(value=_written(source, value, deleted, rest))
        if _decodes(decoder, partition, written):
            found.rows.append(written)
            found.deleted.append(deleted)
            return
        lacking = [name for name in _needed(source) if value.get(name) is None]
        whole = record._replace(value=_written(source, value | _anything(source, lacking), deleted, rest))
        if not lacking or not _decodes(decoder, partition, whole):
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
    document = record.value
    if source.codec == "confluent-json":
        if document[:1] != b"\0" and not document.isascii():
            raise _only_spark(source, record)
        if document[:1] != b"\0":
            return refused, None
        document = document[HEAD:]
        text = document.decode("utf-8", "replace")
    try:
        value = _READ.decode(document)
        json.loads(document, object_pairs_hook=once)
    except Repeated:
        raise _only_spark(source, record) from None
    except (ValueError, RecursionError):
        if not record.value.isascii() or not text.isprintable() or (text[:1] in "{[ " and may_read(text)):
            raise _only_spark(source, record) from None
        return refused, None
    if isinstance(value, list):
        raise _only_spark(source, record)
    if source.in_envelopes:
        return _change(source, record, value, refused)
    if not _is_row(source, value):
        return refused, None
    return None, _with_key(source, record, value)


def _is_row(source: Source, value: Any, only: Sequence[str] = ()) -> bool:
    """Whether a value is an object whose declared columns, or those that are named, are not certainly something else."""
    columns = (column for column in source.columns if not only or column.name in only)
    return isinstance(value, dict) and not any(_misfit(column.type, value.get(column.name)) for column in columns)


def _change(source: Source, record: Record, value: Any, refused: str) -> tuple[str | None, dict[str, Any] | None]:
    """The same for an envelope: its operation and its source, and under ``row`` the row that came, or the key of the one that is gone."""
    of_what_is_lost = NOT_SENT if UNAVAILABLE.encode() in (record.value or b"") else refused
    if not isinstance(value, dict):
        return of_what_is_lost, None
    plain = {name: value.get(name) for name in ("op", "after", "before", "source")}
    envelopes = [each for each in (value.get("payload"), plain) if each is not None]
    for each in envelopes:
        if not isinstance(each, dict) or not _fits(source, each):
            return of_what_is_lost, None
        said = each.get("source") if source.sequence is not None else None
        if not all(isinstance(text, str | None) for text in (each.get("op"), (said or {}).get("file"))):
            raise _only_spark(source, record)  # it makes text of what is none
    op, after, before = (envelopes[0].get(name) for name in ("op", "after", "before"))
    if op == TRUNCATE:
        return TRUNCATED, None
    if op != DELETE and (op not in UPSERTS or after is None):
        return refused, None
    kinds = {column.name: column.type.lower() for column in source.columns}
    row = {name: each for name, each in (after or {}).items() if name in kinds}
    if any(kinds[name] == "string" and each == UNAVAILABLE for name, each in row.items()):
        return NOT_SENT, None
    said = (envelopes[0].get("source") if source.sequence is not None else None) or {}
    in_file = said.get("pos") is not None and file_number(said.get("file") or "") is not None
    if source.sequence is not None and op != "r" and said.get("lsn") is None and not in_file:
        return UNNUMBERED, None
    if op == DELETE and after is not None:
        raise _only_spark(source, record)
    for name in source.key:
        if row.get(name) is None and (before or {}).get(name) is not None:
            row[name] = (before or {})[name]
    return None, {"op": op, "source": said, "row": _with_key(source, record, row)}


def _fits(source: Source, envelope: dict[str, Any]) -> bool:
    """Whether the parts of an envelope are not certainly something else."""
    after, before, said = (envelope.get(name) for name in ("after", "before", "source"))
    if source.sequence is None:
        said = None
    if said is not None and (
        not isinstance(said, dict) or any(_misfit(kind, said.get(name)) for name, kind in POSITION.items())
    ):
        return False
    return (after is None or _is_row(source, after)) and (before is None or _is_row(source, before, source.key))


def _written(source: Source, row: dict[str, Any], deleted: bool, envelope: dict[str, Any]) -> bytes:
    """A row as a value that the decoder reads; that of a tombstone as one without a number."""
    if not source.in_envelopes:
        return frame(0, _WRITE.encode(row)) if source.codec == "confluent-json" else _WRITE.encode(row)
    part = "before" if deleted and envelope else "after"
    return _WRITE.encode({"op": envelope.get("op", "r"), part: row, "source": envelope.get("source")})


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
        alone = len(source.key) == 1
        found = _from_text(source, text, kinds[source.key[0]]) if alone else _members(source, text)
        if all(_is_exact(found[name], kinds[name]) for name in lacking):
            return value | {name: found[name] for name in lacking}
    except (ValueError, TypeError, KeyError):
        pass
    raise _only_spark(source, record)


def _is_exact(value: Any, kind: str) -> bool:
    """Whether a value of JSON is surely one of the column's type as it is: a number with a fraction is not for most."""
    return not isinstance(value, Decimal) or kind == "double" or declared_decimal(kind) is not None


def _members(source: Source, text: str) -> dict[str, Any]:
    """The members of a record's key, those of its payload too where keys may have a schema."""
    found: dict[str, Any] = _READ.decode(text)
    if not isinstance(found, dict):
        raise TypeError(text)
    inner = found.get("payload") if source.in_envelopes else None
    if not isinstance(inner, dict):
        return found
    return inner | {name: each for name, each in found.items() if each is not None}


def _from_text(source: Source, text: str, kind: str) -> dict[str, Any]:
    """The one key column out of a record's key; ValueError for what takes more care."""
    (name,) = source.key
    if text[:1] == "{":
        found = _members(source, text)
        if name not in found and source.in_envelopes and "payload" in found:
            raise ValueError(text)
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


def _decodes(decoder: FeedDecoder, partition: int, record: Record) -> bool:
    """Whether a record is one that needs no Spark."""
    return not decoder.decode(partition, to_records([record]))[1].any()


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
