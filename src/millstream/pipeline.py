"""Pipelines: streams, tables and the views over them, defined and not run.

A pipeline is data. Defining one opens no log, starts no Spark and writes nothing; what does not hold together is refused in
the line that says it. Its fingerprint stands for everything that decides what state means, so that a checkpoint is never
continued by another definition.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import runpy
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from millstream.codec import Avro, Json, Text
from millstream.errors import CodecError, MillstreamError, PlanError
from millstream.plan import expression
from millstream.plan.nodes import (
    META_COLUMNS,
    Column,
    Emit,
    EventTime,
    Late,
    Node,
    Place,
    Source,
    output_columns,
    source_of,
)
from millstream.plan.nodes import Sequence as Numbering
from millstream.plan.relation import Relation, has_window, here, natural_key, placed
from millstream.plan.schema import format_duration, is_timestamp, parse_columns, parse_duration

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

Codec: TypeAlias = str | Json | Text | Avro | Mapping[str, Any]
Duration: TypeAlias = str | timedelta

_PIPELINE_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")  # what both logs accept
_RESERVED_PREFIXES = ("millstream", "sqlite_")


@dataclass(frozen=True, slots=True)
class Clock:
    """Correct the time of a device by the error of its own clock: occurred + (received − sent).

    ``sent`` and ``received`` name timestamp columns; without ``received`` it is the append. A correction beyond ``wild`` is
    counted.
    """

    sent: str
    received: str | None = None
    wild: Duration = "1 day"


@dataclass(frozen=True, slots=True)
class View:
    """A relation under a name, kept up to date in a store; its methods read what is stored there now.

    ``key`` are the columns that identify a row. Without any, a row is identified by all of it and has a count (or, directly
    over a stream, by where in the log it came from).
    """

    name: str
    node: Node = field(repr=False)
    to: str
    emit: Emit
    key: tuple[str, ...]
    place: Place = field(compare=False)
    pipeline: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns, in order."""
        return output_columns(self.node)

    def get(self, *key: Any) -> dict[str, Any] | None:
        """Give the row of one key, its values in the order of ``key`` (directly over a stream: topic, partition, offset)."""
        from millstream.sink import open_store

        with open_store(self.to) as store:
            return store.get(self.name, key)

    def arrow(self) -> pyarrow.Table:
        """Give all rows as an Arrow table."""
        from millstream.sink import open_store

        with open_store(self.to) as store:
            return store.table(self.name)

    def frame(self) -> polars.DataFrame:
        """Give all rows as a Polars frame."""
        import polars

        return polars.DataFrame(self.arrow())

    def pandas(self) -> pandas.DataFrame:
        """Give all rows as a pandas frame."""
        return self.arrow().to_pandas()

    def spark(self, session: Any) -> Any:
        """Give all rows as a DataFrame of a Spark session."""
        return session.createDataFrame(self.arrow())


class Pipeline:
    """Streams, tables and views that are kept up to date together.

    >>> shop = Pipeline("shop")
    >>> orders = shop.stream("orders", "country string, amount double, at timestamp", time="at", delay="10 seconds")
    >>> shop.view("sales", orders.group_by("country").agg(n="count(*)", total="sum(amount)")).key
    ('country',)
    """

    def __init__(
        self,
        name: str,
        *,
        log: str = "sqlite:millstream.db",
        to: str | None = None,
        checkpoint: str | None = None,
        kafka: Mapping[str, str] | None = None,
        buckets: int = 16,
    ) -> None:
        self.place = here()
        with placed(self.place):
            if not isinstance(name, str) or not _PIPELINE_NAME.fullmatch(name):
                raise PlanError(f"pipeline {name!r}: expected a name of 1 to 63 letters, digits, _ and -")
            if isinstance(buckets, bool) or not isinstance(buckets, int) or buckets < 1:
                raise PlanError(f"pipeline {name}: expected a number of buckets above zero; found {buckets!r}")
        self.name = name
        self.log = log
        self.to = to if to is not None else f"sqlite:{name}.views.db"
        self.checkpoint = checkpoint if checkpoint is not None else f"{name}.checkpoint"
        self.kafka = dict(kafka or {})
        self.buckets = buckets
        self.streams: dict[str, Relation] = {}
        self.tables: dict[str, Relation] = {}
        self.views: dict[str, View] = {}

    def stream(
        self,
        name: str,
        schema: str,
        *,
        topic: str | None = None,
        key: str | Sequence[str] | None = None,
        codec: Codec = "json",
        time: str | None = None,
        delay: Duration = "0 seconds",
        lateness: Duration = "0 seconds",
        late: Late = "drop",
        ahead: Duration = "1 hour",
        idle: Duration | None = "30 seconds",
        clock: Clock | None = None,
        sequence: tuple[str, str] | None = None,
    ) -> Relation:
        """Define a stream: a topic of facts. ``schema`` is Spark DDL, ``time`` the column that says when a fact happened.

        What the times mean: :class:`~millstream.plan.nodes.EventTime`. ``sequence`` is a producer and its growing number, two
        expressions; a repeat of both is dropped. ``key`` are the columns that the record's key was made of.
        """
        place = here()
        with placed(place):
            what = f"stream {name}"
            columns = self._source_columns("stream", name, schema)
            written = EventTime(
                "", parse_duration(delay), parse_duration(lateness), late, parse_duration(ahead), _idle(idle)
            )
            if time is None and (written != EventTime("") or clock is not None):
                raise PlanError(
                    f"{what}: delay, lateness, late, ahead, idle and clock are about event time, and it has none",
                    hint='name its timestamp column: time="at"',
                )
            source = Source(
                "stream",
                name,
                _topic(topic, name, what),
                columns,
                *_codec(codec, columns, what),
                key=_existing(key or (), columns, f"{what}: key"),
                time=_event_time(time, written, clock, columns, what) if time is not None else None,
                sequence=_numbering(sequence, columns, what),
                place=place,
            )
        self.streams[name] = Relation(source)
        return self.streams[name]

    def table(
        self, name: str, schema: str, *, key: str | Sequence[str], topic: str | None = None, codec: Codec = "json"
    ) -> Relation:
        """Define a table: a topic of changes, the latest of each key being its row; a tombstone deletes it."""
        place = here()
        with placed(place):
            what = f"table {name}"
            columns = self._source_columns("table", name, schema)
            if not key:
                raise PlanError(f"{what}: expected at least one key column; found none")
            source = Source(
                "table",
                name,
                _topic(topic, name, what),
                columns,
                *_codec(codec, columns, what),
                key=_existing(key, columns, f"{what}: key"),
                place=place,
            )
        self.tables[name] = Relation(source)
        return self.tables[name]

    def view(
        self,
        name: str,
        relation: Relation,
        *,
        to: str | None = None,
        emit: Emit = "changes",
        key: str | Sequence[str] | None = None,
    ) -> View:
        """Define a view: a relation kept up to date under a name, in ``to`` (the pipeline's store unless said).

        With ``emit="final"`` a window's rows appear once, when it has closed. ``key`` overrides the columns that identify a row.
        """
        place = here()
        with placed(place):
            what = f"view {name}"
            if not isinstance(name, str) or not _NAME.fullmatch(name) or name.lower().startswith(_RESERVED_PREFIXES):
                raise PlanError(
                    f"view {name!r}: expected a name of 1 to 63 letters, digits and _, not beginning with a digit,"
                    f" {' or '.join(_RESERVED_PREFIXES)}"
                )
            for other in self.views.values():
                if other.name.lower() == name.lower():
                    raise PlanError(f"{what}: there is one of that name already, defined at {other.place}")
            if not isinstance(relation, Relation):
                raise PlanError(f"{what}: expected a relation; found {relation!r}", hint="after group_by comes .agg(…)")
            source = source_of(relation.node)
            mine = (self.streams if source.kind == "stream" else self.tables).get(source.name)
            if mine is None or mine.node != source:
                raise PlanError(
                    f"{what}: {source.kind} {source.name} (at {source.place}) is not of pipeline {self.name}"
                )
            if emit not in get_args(Emit):
                raise PlanError(f"{what}: expected emit to be {_either(Emit)}; found {emit!r}")
            if emit == "final" and not has_window(relation.node):
                raise PlanError(
                    f'{what}: emit="final" needs an end to wait for, and there is no window',
                    hint='group by a window: group_by(tumbling("at", "1 minute"), …)',
                )
            names = [Column(each, "") for each in relation.columns]
            found = _existing(key, names, f"{what}: key") if key is not None else natural_key(relation.node)
            view = View(name, relation.node, to if to is not None else self.to, emit, found, place, self.name)
        self.views[name] = view
        return view

    def validate(self) -> None:
        """Refuse a pipeline that would do nothing."""
        if not self.views:
            with placed(self.place):
                raise PlanError(
                    f"pipeline {self.name}: expected at least one view; found none", hint="view(name, relation)"
                )

    def describe(self) -> dict[str, Any]:
        """Say what it is, in plain values that JSON can hold."""
        return {
            "name": self.name,
            "log": self.log,
            "to": self.to,
            "checkpoint": self.checkpoint,
            "buckets": self.buckets,
            "fingerprint": self.fingerprint(),
            "streams": {name: _describe_source(stream) for name, stream in self.streams.items()},
            "tables": {name: _describe_source(table) for name, table in self.tables.items()},
            "views": {
                view.name: {
                    "to": view.to,
                    "emit": view.emit,
                    "key": list(view.key),
                    "columns": list(view.columns),
                    "plan": str(Relation(view.node)),
                    "place": str(view.place),
                }
                for view in self.views.values()
            },
        }

    def fingerprint(self) -> str:
        """Sixteen hex digits of everything that decides what state means.

        Not of where things are kept, nor of where in the file they are said, nor of sources that no view uses. What is left at
        its default does not count either, so that a later version with more options has the same fingerprints.
        """
        views = sorted(self.views.values(), key=lambda view: view.name)
        content = {
            "buckets": self.buckets,
            "views": [[view.name, view.emit, list(view.key), _canonical(view.node)] for view in views],
        }
        return hashlib.sha256(_json(content).encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"<Pipeline {self.name}: {', '.join(self.views) or 'no views'}>"

    def _source_columns(self, kind: Literal["stream", "table"], name: str, schema: str) -> tuple[Column, ...]:
        """The columns of a new source, once its name is found to be right and free."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise PlanError(
                f"{kind} {name!r}: expected a name of 1 to 63 letters, digits and _, not beginning with a digit"
            )
        for other in (*self.streams.values(), *self.tables.values()):
            source = source_of(other.node)
            if source.name.lower() == name.lower():
                raise PlanError(
                    f"{kind} {name}: there is a {source.kind} of that name already, defined at {source.place}"
                )
        try:
            return parse_columns(schema)
        except PlanError as error:
            raise PlanError(f"{kind} {name}: {error.message}", hint=error.hint) from error


def load_pipeline(path: str | Path) -> Pipeline:
    """Run a user's file and give the one pipeline it defines; ``FILE.py:NAME`` picks one of several."""
    file, name = str(path), ""
    if not Path(file).exists() and ":" in file:
        file, _, name = file.rpartition(":")
    if not Path(file).is_file():
        raise PlanError(f"{file}: there is no such file; expected a Python file that defines a pipeline")
    found = {key: value for key, value in _run(file).items() if isinstance(value, Pipeline)}
    if name:
        if name not in found:
            raise PlanError(f"{file}: no pipeline {name}; there are {', '.join(found) or 'none'}")
        return found[name]
    one = {id(pipeline): pipeline for pipeline in found.values()}
    if len(one) != 1:
        hint = (
            f"say which: {file}:{next(iter(found))}" if found else 'define one at module level: shop = Pipeline("shop")'
        )
        raise PlanError(f"{file}: expected one pipeline; found {', '.join(found) or 'none'}", hint=hint)
    return next(iter(one.values()))


def _run(file: str) -> dict[str, Any]:
    """What a file defines; it may import what lies beside it, as when Python runs it."""
    folder = str(Path(file).resolve().parent)
    sys.path.insert(0, folder)
    try:
        return runpy.run_path(file, run_name="__millstream__")
    except PlanError:
        raise
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        line = lines[-1] if lines else None
        if isinstance(error, SyntaxError) and error.filename == file:
            line = error.lineno
        message = error.message if isinstance(error, MillstreamError) else f"{type(error).__name__}: {error}"
        hint = error.hint if isinstance(error, MillstreamError) else ""
        raise PlanError(f"{file}:{line or 1}: {message}", hint=hint) from error
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _existing(names: str | Sequence[str], columns: Sequence[Column], what: str) -> tuple[str, ...]:
    """Column names as they were declared."""
    declared = {column.name.lower(): column.name for column in columns}
    found: list[str] = []
    for name in (names,) if isinstance(names, str) else tuple(names):
        if not isinstance(name, str) or name.lower() not in declared:
            close = difflib.get_close_matches(str(name).lower(), declared, 1)
            hint = f"did you mean {declared[close[0]]}?" if close else ""
            raise PlanError(f"{what}: no column {name}; there are {', '.join(declared.values())}", hint=hint)
        if declared[name.lower()] in found:
            raise PlanError(f"{what}: the column {name} is there twice")
        found.append(declared[name.lower()])
    return tuple(found)


def _timestamp(name: str, columns: Sequence[Column], what: str) -> str:
    """A column that is there and holds a point in time."""
    (found,) = _existing(name, columns, what)
    column = next(column for column in columns if column.name == found)
    if not is_timestamp(column):
        raise PlanError(f"{what}: expected a column of type timestamp; found {found} {column.type}")
    return found


def _idle(idle: Duration | None) -> timedelta | None:
    if idle is not None and not parse_duration(idle):
        raise PlanError(f"idle: expected a duration above zero, or None for never; found {idle!r}")
    return None if idle is None else parse_duration(idle)


def _event_time(
    time: str, written: EventTime, clock: Clock | None, columns: tuple[Column, ...], what: str
) -> EventTime:
    if written.late not in get_args(Late):
        raise PlanError(f"{what}: expected late to be {_either(Late)}; found {written.late!r}")
    if bool(written.lateness) != (written.late == "correct"):
        found = f'late="{written.late}" with a lateness of {format_duration(written.lateness)}'
        raise PlanError(
            f'{what}: late="correct" and a lateness above zero belong together; found {found}',
            hint='late="correct", lateness="10 minutes" admits what is up to that much later still, and amends',
        )
    sent = _timestamp(clock.sent, columns, f"{what}: clock, sent") if clock else None
    received = _timestamp(clock.received, columns, f"{what}: clock, received") if clock and clock.received else None
    return EventTime(
        _timestamp(time, columns, f"{what}: time"),
        written.delay,
        written.lateness,
        written.late,
        written.ahead,
        written.idle,
        sent,
        received,
        parse_duration(clock.wild if clock else timedelta(days=1)),
    )


def _numbering(sequence: tuple[str, str] | None, columns: tuple[Column, ...], what: str) -> Numbering | None:
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


def _topic(topic: str | None, name: str, what: str) -> str:
    if topic is None:
        return name
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise PlanError(f"{what}: expected a topic of 1 to 249 letters, digits, ., _ and -; found {topic!r}")
    return topic


def _codec(codec: Codec, columns: tuple[Column, ...], what: str) -> tuple[Literal["json", "text", "avro"], str]:
    """The codec's name, and its Avro schema as canonical JSON."""
    if isinstance(codec, Json) or codec == "json":
        return "json", ""
    if isinstance(codec, Text) or codec == "text":
        if len(columns) != 1 or columns[0].type.lower() != "string":
            found = ", ".join(f"{column.name} {column.type}" for column in columns)
            raise PlanError(f"{what}: text is one column of type string; found {found}", hint='"line string"')
        return "text", ""
    try:
        schema = _avro_schema(codec)
    except (CodecError, ValueError) as error:
        found = error.message if isinstance(error, CodecError) else f"{codec!r}"
        raise PlanError(f'{what}: expected codec to be "json", "text" or an Avro schema; found {found}') from error
    inner = {each.get("name", "").lower() for each in schema.get("fields", ())} if schema["type"] == "record" else set()
    if missing := [column.name for column in columns if column.name.lower() not in inner]:
        raise PlanError(
            f"{what}: no field {missing[0]} in the Avro record; there are {', '.join(sorted(inner)) or 'none'}"
        )
    return "avro", _json(schema)


def _avro_schema(codec: Codec) -> dict[str, Any]:
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


def _describe_source(relation: Relation) -> dict[str, Any]:
    source = source_of(relation.node)
    described = {
        "topic": source.topic,
        "codec": source.codec,
        "columns": {column.name: column.type for column in source.columns},
        "key": list(source.key),
        "place": str(source.place),
    }
    if source.time:
        described["time"] = {
            each.name: format_duration(value) if isinstance(value, timedelta) else value
            for each in fields(source.time)
            if (value := getattr(source.time, each.name)) is not None
        }
    if source.sequence:
        described["sequence"] = [source.sequence.producer, source.sequence.number]
    return described


def _canonical(value: Any) -> Any:
    """A node as plain values, without places and without what is at its default."""
    if is_dataclass(value):
        kept = [each for each in fields(value) if each.compare]
        stated = {each.name: getattr(value, each.name) for each in kept}
        return {
            "is": type(value).__name__,
            **{
                each.name: _canonical(stated[each.name]) for each in kept if _is_stated(each.default, stated[each.name])
            },
        }
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    return [_canonical(each) for each in value] if isinstance(value, tuple) else value


def _is_stated(default: Any, value: Any) -> bool:
    return default is MISSING or default != value


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _either(options: Any) -> str:
    return " or ".join(f'"{each}"' for each in get_args(options))
