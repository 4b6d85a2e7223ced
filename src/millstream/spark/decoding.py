"""The value of a record as Spark SQL: decoded by its codec, its columns, and why it cannot be used. This defines what a record means."""

from __future__ import annotations

from millstream.kernel.admission.record import NO_VALUE, SHOWN, undecoded
from millstream.relation.nodes import Source

_CORRUPT = "_corrupt"
_OUTER = "millstream_outer"


def decoded(source: Source) -> str:
    """The expression that turns ``_value`` into a struct of the source's columns."""
    if source.codec == "text":
        made = f"named_struct({literal(source.columns[0].name)}, cast(_value AS string))"
        return f"CASE WHEN is_valid_utf8(cast(_value AS string)) THEN {made} END"
    if source.codec == "avro":
        # What cannot be read comes as a record of nulls, so the record is read as the one field of another: in bytes both
        # are the same, and a field that is null tells a failure from a record that has only nulls to say.
        outer = f'{{"type": "record", "name": "{_OUTER}", "fields": [{{"name": "it", "type": {source.avro_schema}}}]}}'
        return f"from_avro(_value, {literal(outer)}, map('mode', 'PERMISSIVE')).it"
    ddl = ", ".join(f"`{column.name}` {column.type}" for column in source.columns)
    options = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{_CORRUPT}')"
    return f"from_json(cast(_value AS string), {literal(f'{ddl}, {_CORRUPT} string')}, {options})"


def column(source: Source, name: str) -> str:
    """A column of the source: as it was sent, but for a table's key (a tombstone has it in the record's key) and a device's time."""
    plain = f"_d.`{name}`"
    if name in source.key and source.kind == "table":
        kind = next(column.type for column in source.columns if column.name == name)
        return f"coalesce({plain}, {_from_key(name, kind, alone=len(source.key) == 1)})"
    if source.time is not None and name == source.time.column and source.time.sent is not None:
        received = f"_d.`{source.time.received}`" if source.time.received else "_append_time"
        off = f"unix_micros({received}) - unix_micros(_d.`{source.time.sent}`)"
        return f"timestamp_micros(unix_micros({plain}) + coalesce({off}, 0))"
    return plain


def _from_key(name: str, kind: str, *, alone: bool) -> str:
    """A key column out of the record's key: a member of a JSON object; alone it may also be JSON's text, or the key's own text."""
    named = f"from_json(_key, {literal(f'`{name}` {kind}')}).`{name}`"
    if not alone:
        return named
    is_named = f"startswith(_key, '{{') AND map_contains_key(from_json(_key, 'map<string, string>'), {literal(name)})"
    listed = "concat('[', _key, ']')"
    quoted = f"get(from_json({listed}, {literal(f'array<{kind}>')}), 0)"
    is_quoted = f"startswith(_key, '\"') AND json_array_length({listed}) = 1 AND {quoted} IS NOT NULL"
    return f"CASE WHEN {is_named} THEN {named} WHEN {is_quoted} THEN {quoted} ELSE try_cast(_key AS {kind}) END"


def unusable(source: Source) -> str:
    """Why a record cannot be decoded, or null."""
    if source.kind == "table":
        return f"CASE WHEN _value IS NOT NULL THEN {_undecoded(source)} END"
    return f"CASE WHEN _value IS NULL THEN {literal(NO_VALUE)} ELSE {_undecoded(source)} END"


def _undecoded(source: Source) -> str:
    # Spark lets bytes that are no text pass as a string; Arrow and all that follows do not.
    shown = f"left(make_valid_utf8(cast(_value AS string)), {SHOWN})"
    failed = f"_d IS NULL OR _d.{_CORRUPT} IS NOT NULL" if source.codec == "json" else "_d IS NULL"
    return f"CASE WHEN {failed} THEN concat({literal(undecoded(source))}, {shown}) END"


def literal(value: str) -> str:
    """A Spark SQL string literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
