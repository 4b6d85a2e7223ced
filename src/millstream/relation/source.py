"""How a source is defined: its columns, codec, time and numbering, checked where they are said."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, TypeAlias, get_args

from millstream.codec import Avro, Json, Text
from millstream.debezium import Debezium
from millstream.errors import CodecError, PlanError
from millstream.framed import Confluent
from millstream.relation import expression
from millstream.relation.clauses import Subject
from millstream.relation.fingerprint import canonical_json
from millstream.relation.foreign_names import is_spark_column, meant_text
from millstream.relation.nodes import META_COLUMNS, Column, EventTime, Late, Source
from millstream.relation.nodes import Sequence as Numbering
from millstream.relation.operators.source import CodecName
from millstream.relation.schema import format_duration, is_timestamp, parse_columns, parse_duration

Codec: TypeAlias = str | Json | Text | Avro | Confluent | Debezium | Mapping[str, Any]
Duration: TypeAlias = str | timedelta

APPEND_TIME = "_append_time"
"""Processing time: when the log took a record. A stream whose time this is has windows by it, and they replay."""

TIMESTAMP = "_timestamp"
"""The record's own time, as its producer gave it to the log."""

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")  # what both logs accept


@dataclass(frozen=True, slots=True)
class Clock:
    """Correct the time of a device by the error of its own clock: occurred + (received − sent).

    ``sent`` and ``received`` name timestamp columns; without ``received`` it is the append. A correction beyond ``wild`` is
    counted.

    :param sent: the column with the device's time of sending
    :param received: the column with the time at which somebody with a right clock received it
    :param wild: corrections beyond this are counted
    :raises PlanError: by ``Pipeline.stream``, if there is no such column

    >>> Clock("sent", "received").wild
    '1 day'
    """

    sent: str
    received: str | None = None
    wild: Duration = "1 day"


def existing(names: str | Sequence[str], columns: Sequence[Column], what: str) -> tuple[str, ...]:
    """Column names as they were declared."""
    declared = {column.name.lower(): column.name for column in columns}
    found: list[str] = []
    for name in (names,) if isinstance(names, str) or is_spark_column(names) else tuple(names):
        if not isinstance(name, str):
            raise PlanError(f"{what}: expected the name of a column; found {name!r}", hint=meant_text(name))
        if name.lower() not in declared:
            close = difflib.get_close_matches(name.lower(), declared, 1)
            hint = f"did you mean {declared[close[0]]}?" if close else ""
            raise PlanError(f"{what}: no column {name}; there are {', '.join(declared.values())}", hint=hint)
        if declared[name.lower()] in found:
            raise PlanError(f"{what}: the column {name} is there twice")
        found.append(declared[name.lower()])
    return tuple(found)


def _timestamp(name: str, columns: Sequence[Column], what: str) -> str:
    """A column that is there and holds a point in time."""
    (found,) = existing(name, columns, what)
    column = next(column for column in columns if column.name == found)
    if not is_timestamp(column):
        raise PlanError(
            f"{what}: expected a column of type timestamp; found {found} {column.type}",
            hint=f'a number: time="timestamp_millis({found}) AS at", or timestamp_seconds, timestamp_micros',
        )
    return found


def idle_of(idle: Duration | None) -> timedelta | None:
    """How long a partition may be silent; None for ever."""
    if idle is not None and not parse_duration(idle):
        raise PlanError(f"idle: expected a duration above zero, or None for never; found {idle!r}")
    return None if idle is None else parse_duration(idle)


def event_time_of(
    time: str, written: EventTime, clock: Clock | None, columns: tuple[Column, ...], what: str
) -> EventTime:
    """The event time of a stream, checked against its columns."""
    if written.late not in get_args(Late):
        raise PlanError(f"{what}: expected late to be {either(Late)}; found {written.late!r}")
    if bool(written.lateness) != (written.late == "correct"):
        found = f'late="{written.late}" with a lateness of {format_duration(written.lateness)}'
        raise PlanError(
            f'{what}: late="correct" and a lateness above zero belong together; found {found}',
            hint='late="correct", lateness="10 minutes" admits what is up to that much later still, and amends',
        )
    column, said = _time_of(time, columns, what)
    if clock and (said or column in (APPEND_TIME, TIMESTAMP)):
        raise PlanError(f"{what}: clock corrects a column, the time that a device says; found {time}")
    sent = _timestamp(clock.sent, columns, f"{what}: clock, sent") if clock else None
    received = _timestamp(clock.received, columns, f"{what}: clock, received") if clock and clock.received else None
    return EventTime(
        column,
        written.delay,
        written.lateness,
        written.late,
        written.ahead,
        written.idle,
        sent,
        received,
        parse_duration(clock.wild if clock else timedelta(days=1)),
        said,
    )


def _time_of(time: str, columns: tuple[Column, ...], what: str) -> tuple[str, str]:
    """The name of the time, and the expression that gives it where it is no column of the record."""
    declared = {column.name.lower() for column in columns}
    if time in (APPEND_TIME, TIMESTAMP):
        return time, ""
    if not isinstance(time, str) or time.lower() in declared or re.fullmatch(r"\w*", time):
        return _timestamp(time, columns, f"{what}: time"), ""
    named = expression.parse_named(time)
    expression.check(named.expression, (*(column.name for column in columns), *META_COLUMNS), f"{what}: time")
    if named.name.lower() in declared:
        raise PlanError(f"{what}: time: there is a column {named.name} already", hint="give the time a name of its own")
    parse_columns(f"{expression.quote(named.name)} timestamp")
    return named.name, named.expression


def numbering(sequence: tuple[str, str] | None, columns: tuple[Column, ...], what: str) -> Numbering | None:
    """The producer and the number that mark repeats."""
    if sequence is None:
        return None
    if isinstance(sequence, str) or len(sequence) != 2:
        raise PlanError(
            f"{what}: expected sequence to be a producer and its number, two expressions; found {sequence!r}"
        )
    visible = (*(column.name for column in columns), *META_COLUMNS)
    for text in sequence:
        expression.check(text, visible, f"{what}: sequence")
    return Numbering(*sequence)


def topic_of(topic: str | None, name: str, what: str) -> str:
    """The topic of a source; its name unless said."""
    if topic is None:
        return name
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise PlanError(f"{what}: expected a topic of 1 to 249 letters, digits, ., _ and -; found {topic!r}")
    return topic


def codec_of(codec: Codec, columns: tuple[Column, ...], what: str, kind: str = "stream") -> tuple[CodecName, str]:
    """The codec's name, and its Avro schema as canonical JSON."""
    if isinstance(codec, Json) or codec == "json":
        return "json", ""
    if codec == "debezium" or isinstance(codec, Debezium):
        if kind != "table":
            raise PlanError(
                f"{what}: changes of a database replace each other, so they are a table; found codec debezium",
                hint='a table with codec="debezium" keeps the rows, and its .history() each span in which one held',
            )
        return "debezium-avro" if isinstance(codec, Debezium) else "debezium", ""
    if isinstance(codec, Confluent) and codec.kind == "protobuf":
        raise PlanError(
            f"{what}: a pipeline reads values framed by Confluent's convention if they are JSON or Avro; found protobuf",
            hint="decode them with this codec in a program that appends JSON to a topic, and read that",
        )
    if (isinstance(codec, Confluent) and codec.kind == "json") or codec == "confluent-json":
        return "confluent-json", ""
    if isinstance(codec, Text) or codec == "text":
        if len(columns) != 1 or columns[0].type.lower() != "string":
            found = ", ".join(f"{column.name} {column.type}" for column in columns)
            raise PlanError(f"{what}: text is one column of type string; found {found}", hint='"line string"')
        return "text", ""
    try:
        schema = _avro_schema(codec)
    except (CodecError, ValueError) as error:
        found = error.message if isinstance(error, CodecError) else f"{codec!r}"
        raise PlanError(
            f'{what}: expected codec to be "json", "confluent-json", "text", "debezium" or an Avro schema; found {found}'
        ) from error
    inner = {each.get("name", "").lower() for each in schema.get("fields", ())} if schema["type"] == "record" else set()
    if missing := [column.name for column in columns if column.name.lower() not in inner]:
        raise PlanError(
            f"{what}: no field {missing[0]} in the Avro record; there are {', '.join(sorted(inner)) or 'none'}"
        )
    return "confluent-avro" if isinstance(codec, Confluent) else "avro", canonical_json(schema)


def subject_of(codec: Codec) -> Subject | None:
    """Where the writers' schemas are, if the values are framed Avro; of envelopes the registry alone."""
    if isinstance(codec, Debezium):
        return Subject(codec.registry.url, "", codec.registry.user, codec.registry.password)
    if not isinstance(codec, Confluent) or codec.kind != "avro":
        return None
    registry = codec.registry
    return Subject(registry.url, codec.subject, registry.user, registry.password)


def _avro_schema(codec: Codec) -> dict[str, Any]:
    if isinstance(codec, Confluent):
        if codec.schema is None:
            raise CodecError("a Confluent without the schema that values are read into")
        codec = codec.schema
    if isinstance(codec, Avro):
        if codec._reader is not None:
            raise CodecError("a reader's schema, which the columns say already")
        # fastavro keeps notes of its own in a schema it has read.
        return dict(_without_notes(codec._writer))
    schema = json.loads(codec) if isinstance(codec, str) else codec
    if not isinstance(schema, Mapping):
        raise ValueError("not a schema")
    Avro(schema)
    return dict(schema)


def _without_notes(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        return {key: _without_notes(value) for key, value in schema.items() if not str(key).startswith("__")}
    return [_without_notes(each) for each in schema] if isinstance(schema, list) else schema


def describe_source(source: Source) -> dict[str, Any]:
    """A source in plain values that JSON can hold."""
    described: dict[str, Any] = {
        "topic": source.topic,
        "codec": source.codec,
        "columns": {column.name: column.written for column in source.columns},
        "key": list(source.key),
        "place": str(source.place),
    }
    if source.time:
        described["time"] = {
            each.name: format_duration(value) if isinstance(value, timedelta) else value
            for each in fields(source.time)
            if (value := getattr(source.time, each.name)) not in (None, "")
        }
    if source.failed != "dead_letter":
        described["failed"] = source.failed
    if source.sequence and source.in_envelopes:
        described["deduplicate"] = True
    elif source.sequence:
        described["sequence"] = [source.sequence.producer, source.sequence.number]
    return described


def either(options: Any) -> str:
    """Options as a sentence says them."""
    return " or ".join(f'"{each}"' for each in get_args(options))
