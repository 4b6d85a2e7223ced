"""The value of a record as Spark SQL: decoded by its codec, its columns, and why it cannot be used. This defines what a record means."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.framed import HEAD
from millstream.kernel.admission.record import NO_VALUE, SHOWN, undecoded
from millstream.relation.debezium import (
    DELETE,
    FILE_NUMBER,
    NOT_SENT,
    OP,
    POSITION,
    TRUNCATE,
    TRUNCATED,
    UNAVAILABLE,
    UNNUMBERED,
    UPSERTS,
    position_column,
)
from millstream.relation.nodes import Column, Source
from millstream.spark.framed_avro import enclosed, framed_avro, literal

_CORRUPT = "_corrupt"
_FILE = f"try_cast(regexp_extract(_d.e.source.file, '{FILE_NUMBER}', 1) AS bigint)"


def decoded(source: Source) -> str:
    """The expression that turns ``_value`` into a struct of the source's columns."""
    if source.codec == "text":
        made = f"named_struct({literal(source.columns[0].name)}, cast(_value AS string))"
        return f"CASE WHEN is_valid_utf8(cast(_value AS string)) THEN {made} END"
    if source.codec == "avro":
        return f"from_avro(_value, {literal(enclosed(source.avro_schema))}, map('mode', 'PERMISSIVE')).it"
    if source.codec == "confluent-avro":
        return framed_avro(source)
    ddl = _envelope(source) if source.in_envelopes else _ddl(source.columns)
    options = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{_CORRUPT}')"
    return f"from_json(cast({_document(source)} AS string), {literal(f'{ddl}, {_CORRUPT} string')}, {options})"


def _document(source: Source) -> str:
    """The bytes of the value itself; null where a frame should be before them and is not."""
    if source.codec != "confluent-json":
        return "_value"
    return f"CASE WHEN length(_value) >= {HEAD} AND startswith(_value, X'00') THEN substring(_value, {HEAD + 1}) END"


def _ddl(columns: Iterable[Column]) -> str:
    return ", ".join(f"`{column.name}` {column.type}" for column in columns)


def _envelope(source: Source) -> str:
    """The columns of Debezium's envelope, plain and as the payload beside a schema.

    Its rows are decoded where they stand: taken as text first, Spark would write them anew, and decimals through doubles.
    """
    key = (each for each in source.columns if each.name in source.key)
    parts = f"op string, after struct<{_ddl(source.columns)}>, before struct<{_ddl(key)}>"
    if source.sequence is not None:
        parts += f", source struct<{', '.join(f'{name} {kind}' for name, kind in POSITION.items())}>"
    return f"{parts}, payload struct<{parts}>"


def opened(source: Source) -> str:
    """The expression that turns ``_d`` into what the rest of this module reads: of an envelope its parts, with or without a payload around."""
    if not source.in_envelopes:
        return "_d"
    names = ["op", "after", "before", *(["source"] if source.sequence is not None else [])]
    plain = ", ".join(f"'{name}', _d.{name}" for name in names)
    return f"CASE WHEN _d IS NOT NULL THEN named_struct('e', coalesce(_d.payload, named_struct({plain})), '{_CORRUPT}', _d.{_CORRUPT}) END"


def hidden(source: Source) -> dict[str, str]:
    """What the number of a change is made of, as expressions over ``_d``, by the names that expressions know."""
    if not source.in_envelopes or source.sequence is None:
        return {}
    found = {position_column(name): f"_d.e.source.{name}" for name in POSITION}
    return {OP: "_d.e.op"} | found | {position_column("file"): _FILE}


def deleted(source: Source) -> str:
    """Whether a table's record says that its row is gone."""
    return f"_value IS NULL OR _d.e.op <=> '{DELETE}'" if source.in_envelopes else "_value IS NULL"


def column(source: Source, name: str) -> str:
    """A column of the source: as it was sent, but for a table's key (a tombstone has it in the record's key) and a device's time."""
    in_envelope = source.in_envelopes
    plain = f"_d.e.after.`{name}`" if in_envelope else f"_d.`{name}`"
    if name in source.key and source.kind == "table":
        kind = next(column.type for column in source.columns if column.name == name)
        from_key = _from_key(name, kind, alone=len(source.key) == 1, wrapped=in_envelope)
        return f"coalesce({plain}, {f'_d.e.before.`{name}`, ' if in_envelope else ''}{from_key})"
    if source.time is not None and name == source.time.column and source.time.sent is not None:
        received = f"_d.`{source.time.received}`" if source.time.received else "_append_time"
        off = f"unix_micros({received}) - unix_micros(_d.`{source.time.sent}`)"
        return f"timestamp_micros(unix_micros({plain}) + coalesce({off}, 0))"
    return plain


def _from_key(name: str, kind: str, *, alone: bool, wrapped: bool) -> str:
    """A key column out of the record's key: a member of a JSON object; alone it may also be JSON's text, or the key's own text.

    ``wrapped`` it may be in a payload beside a schema.
    """
    named, members = f"from_json(_key, {literal(f'`{name}` {kind}')}).`{name}`", [name]
    if wrapped and name.lower() != "payload":
        inner = f"payload struct<`{name}` {kind}>"
        named, members = f"coalesce({named}, from_json(_key, {literal(inner)}).payload.`{name}`)", [name, "payload"]
    if not alone:
        return named
    found = (f"map_contains_key(from_json(_key, 'map<string, string>'), {literal(each)})" for each in members)
    is_named = f"startswith(_key, '{{') AND ({' OR '.join(found)})"
    listed = "concat('[', _key, ']')"
    quoted = f"get(from_json({listed}, {literal(f'array<{kind}>')}), 0)"
    is_quoted = f"startswith(_key, '\"') AND json_array_length({listed}) = 1 AND {quoted} IS NOT NULL"
    return f"CASE WHEN {is_named} THEN {named} WHEN {is_quoted} THEN {quoted} ELSE try_cast(_key AS {kind}) END"


def headers_sql() -> str:
    """Headers as a map of text: of several of one name the last."""
    name, text = "make_valid_utf8(h.key)", "make_valid_utf8(cast(h.value AS string))"
    others = f"map_filter(m, (k, v) -> k <> {name})"
    empty = "cast(map() AS map<string, string>)"
    return f"aggregate(coalesce(headers, array()), {empty}, (m, h) -> map_concat({others}, map({name}, {text})))"


def unusable(source: Source) -> str:
    """Why a record cannot be decoded, or null."""
    if source.kind == "table":
        return f"CASE WHEN _value IS NOT NULL THEN {_undecoded(source)} END"
    return f"CASE WHEN _value IS NULL THEN {literal(NO_VALUE)} ELSE {_undecoded(source)} END"


def _undecoded(source: Source) -> str:
    # Spark lets bytes that are no text pass as a string; Arrow and all that follows do not.
    shown = f"left(make_valid_utf8(cast(_value AS string)), {SHOWN})"
    failed = (
        f"_d IS NULL OR _d.{_CORRUPT} IS NOT NULL"
        if source.codec not in ("avro", "confluent-avro", "text")
        else "_d IS NULL"
    )
    refused = f"concat({literal(undecoded(source))}, {shown})"
    if not source.in_envelopes:
        return f"CASE WHEN {failed} THEN {refused} END"
    placeholder = f"contains(cast(_value AS string), '{UNAVAILABLE}')"
    of_it = f"CASE WHEN {placeholder} THEN {literal(NOT_SENT)} ELSE {refused} END"
    return f"CASE WHEN {failed} THEN {of_it} {_no_change(source, refused)} END"


def _no_change(source: Source, refused: str) -> str:
    """Why an envelope that decodes is none of a change of a row, as cases."""
    upsert = f"_d.e.op IN ({', '.join(map(literal, UPSERTS))}) AND _d.e.after IS NOT NULL"
    cases = {
        f"_d.e.op = '{TRUNCATE}'": literal(TRUNCATED),
        f"NOT coalesce(_d.e.op = '{DELETE}' OR ({upsert}), false)": refused,
    }
    texts = (each for each in source.columns if each.type.lower() in ("string", "binary"))
    if absent := " OR ".join(f"_d.e.after.`{each.name}` = cast('{UNAVAILABLE}' AS {each.type})" for each in texts):
        cases[absent] = literal(NOT_SENT)
    if source.sequence is not None:
        said = f"_d.e.source.lsn IS NOT NULL OR ({_FILE} IS NOT NULL AND _d.e.source.pos IS NOT NULL)"
        cases[f"_d.e.op <> 'r' AND NOT ({said})"] = literal(UNNUMBERED)
    return " ".join(f"WHEN {case} THEN {reason}" for case, reason in cases.items())
