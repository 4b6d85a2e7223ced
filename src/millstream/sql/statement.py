"""Statements that define a pipeline: CREATE PIPELINE, STREAM, TABLE, VIEW and SINK, each a call of :class:`Pipeline`.

So what may be said, and what it means, is decided in one place for SQL and Python, and both give the same fingerprint. Here
it is only read, and everything that is refused is refused at its line and column in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from millstream.errors import MillstreamError, PlanError
from millstream.pipeline import Pipeline
from millstream.relation.nodes import Emit, Place, sources_of
from millstream.relation.relation import Relation
from millstream.relation.schema import format_duration, parse_duration
from millstream.relation.source_location import said_at
from millstream.sql.columns import read_columns
from millstream.sql.emit_clause import Query, check_lateness, read_query
from millstream.sql.hints import in_sql
from millstream.sql.options import PIPELINE, SINK, STREAM, SUBJECT, TABLE, VIEW, Given, given
from millstream.sql.script import Reader, Statement, cut

T = TypeVar("T")
KINDS = ("PIPELINE", "STREAM", "TABLE", "VIEW", "TEMPORARY VIEW", "SINK")


class Made(NamedTuple):
    """What a statement has made."""

    kind: str
    name: str


class _Allowed(NamedTuple):
    """A lateness that a view allows, and the place of the clause."""

    lateness: timedelta
    view: str
    place: Place


def load_script(text: str, file: str, name: str) -> Pipeline:
    """The pipeline that a script defines, named so unless it says otherwise.

    It is defined twice if views allow lateness: a view says it, and the streams below must know it from the start.
    """
    statements = cut(text, file)
    if not statements:
        raise PlanError(
            f"{file}:1:1: expected statements; found none", hint="CREATE STREAM …; CREATE VIEW … AS SELECT …;"
        )
    first = _defined(statements, name, {})
    return _defined(statements, name, first.allowed).pipeline if first.allowed else first.pipeline


def _defined(statements: list[Statement], name: str, allowed: Mapping[str, _Allowed]) -> Definitions:
    head, rest = statements[0], statements
    if Reader(head).skip("CREATE", "PIPELINE"):
        pipeline, rest = pipeline_of(head), statements[1:]
    else:
        try:
            with said_at(head.place):
                pipeline = Pipeline(name)
        except PlanError as error:
            raise PlanError(
                error.message, hint="the file's name is the pipeline's: CREATE PIPELINE name; gives another"
            ) from error
    made = Definitions(pipeline, allowed)
    for statement in rest:
        made.define(statement)
    return made


def pipeline_of(statement: Statement) -> Pipeline:
    """CREATE PIPELINE."""
    reader = Reader(statement)
    reader.expect("CREATE", "PIPELINE")
    name = reader.name("the pipeline's name")
    found = given(reader.options(), PIPELINE, f"pipeline {name}", ("spark.", "kafka."))
    reader.finish()
    maps: dict[str, dict[str, str]] = {"spark": {}, "kafka": {}}
    for option, value in found.items():
        prefix, dot, rest = option.partition(".")
        if dot:
            maps[prefix][option if prefix == "spark" else rest] = str(value)
    plain = {option: value for option, value in found.items() if "." not in option}
    return _at(statement, Pipeline, name, **plain, **maps)


class Definitions:
    """Statements, one after the other, put into a pipeline.

    ``allowed`` is what views allow the streams to be late, by the stream's name; None if the streams themselves must say it.
    """

    def __init__(self, pipeline: Pipeline, allowed: Mapping[str, _Allowed] | None = None) -> None:
        self.pipeline, self._given = pipeline, allowed
        self.allowed: dict[str, _Allowed] = {}

    def define(self, statement: Statement) -> Made:
        """Put one statement into the pipeline."""
        reader = Reader(statement)
        if not reader.skip("CREATE"):
            hint = (
                "CREATE VIEW name AS SELECT …; or ask it in `millstream sql`"
                if reader.word() in ("SELECT", "WITH")
                else ""
            )
            raise reader.fail(f"CREATE {', '.join(KINDS[:-1])} or {KINDS[-1]}", hint)
        if reader.word() == "OR" or reader.word(1) == "IF":
            raise reader.fail("a new name", "a script says everything there is: leave out OR REPLACE and IF NOT EXISTS")
        if reader.skip("STREAM"):
            return self._stream(statement, reader)
        if reader.skip("TABLE"):
            return self._table(statement, reader)
        if reader.skip("TEMPORARY", "VIEW") or reader.skip("TEMP", "VIEW"):
            return self._temporary(statement, reader)
        if reader.skip("VIEW"):
            return self._view(statement, reader)
        if reader.skip("SINK"):
            return self._sink(statement, reader)
        if reader.word() == "PIPELINE":
            raise reader.fail("STREAM, TABLE, VIEW or SINK", "CREATE PIPELINE comes first in a file, and once")
        hint = "a view is kept up to date: leave out MATERIALIZED" if reader.word() == "MATERIALIZED" else ""
        raise reader.fail(f"{', '.join(KINDS[:-1])} or {KINDS[-1]}", hint)

    def _stream(self, statement: Statement, reader: Reader) -> Made:
        name = self._new(reader, "the stream's name")
        columns, key, time = read_columns(reader, "stream", name)
        if key is not None:
            raise PlanError(
                f"{key.place}: stream {name}: a stream is facts, of which none replaces another; found a PRIMARY KEY",
                hint="CREATE TABLE is for the latest of each key; WITH (key = 'id') says what the record's key is made of",
            )
        options = given(reader.options(), STREAM, f"stream {name}", (SUBJECT,))
        reader.finish()
        if time is not None:
            if taken := sorted({"time", "delay"} & set(options)):
                raise PlanError(
                    f"{statement.place}: stream {name}: WATERMARK says {taken[0]} already", hint=f"leave out {taken[0]}"
                )
            options |= {"time": time.column, "delay": time.delay}
        if (allowed := (self._given or {}).get(name)) is not None:
            options = _with_lateness(options, allowed, f"{statement.place}: stream {name}")
        _at(statement, self.pipeline.stream, name, columns, **options)
        return Made("stream", name)

    def _table(self, statement: Statement, reader: Reader) -> Made:
        name = self._new(reader, "the table's name")
        columns, key, time = read_columns(reader, "table", name)
        if time is not None:
            raise PlanError(
                f"{time.place}: table {name}: only a stream has a WATERMARK", hint="a table's rows are never late"
            )
        options = given(reader.options(), TABLE, f"table {name}", (SUBJECT,))
        reader.finish()
        if key is not None:
            if "key" in options:
                raise PlanError(f"{key.place}: table {name}: PRIMARY KEY and key say it twice", hint="leave out key")
            options["key"] = list(key.columns)
        if "key" not in options:
            raise PlanError(
                f"{statement.place}: table {name}: expected a PRIMARY KEY; found none",
                hint="PRIMARY KEY (id) behind the columns",
            )
        _at(statement, self.pipeline.table, name, columns, **options)
        return Made("table", name)

    def _temporary(self, statement: Statement, reader: Reader) -> Made:
        name = self._new(reader, "the view's name")
        if reader.word() == "WITH" and reader.word(1) == "(":
            raise reader.fail("AS", "nothing of a temporary view is kept, so it has no options")
        reader.expect("AS")
        query = read_query(statement, reader.index)
        if query.emit or query.lateness_place:
            raise PlanError(
                f"{query.lateness_place or query.place}: temporary view {name}: nothing comes out of it; found EMIT or ALLOWED LATENESS",
                hint="say it of the views that read it",
            )
        _at(statement, self.pipeline.define, name, query.relation(self.pipeline.relations))
        return Made("temporary view", name)

    def _view(self, statement: Statement, reader: Reader) -> Made:
        name = self._new(reader, "the view's name")
        options = given(reader.options(), VIEW, f"view {name}")
        reader.expect("AS", hint="columns are named in the query: SELECT x AS a" if reader.word() == "(" else "")
        query = read_query(statement, reader.index)
        relation = query.relation(self.pipeline.relations)
        self._allow(query, relation, name)
        emit: Emit = query.emit or "changes"
        _at(statement, self.pipeline.view, name, relation, emit=emit, **options)
        return Made("view", name)

    def _sink(self, statement: Statement, reader: Reader) -> Made:
        name = reader.name("the sink's name")
        reader.expect("INTO", hint="CREATE SINK name INTO 'topic:NAME' FROM view")
        to = reader.string("where the changes go, in quotes: 'topic:NAME', 'files:FOLDER', 'redis://…'")
        reader.expect("FROM")
        place, view = reader.place, reader.name("a view's name")
        known = {each.lower(): found for each, found in self.pipeline.views.items()}
        if view.lower() not in known:
            raise PlanError(
                f"{place}: sink {name}: no view {view}; there are {', '.join(self.pipeline.views) or 'none'}"
            )
        options = given(reader.options(), SINK, f"sink {name}")
        reader.finish()
        _at(statement, self.pipeline.sink, name, known[view.lower()], to, **options)
        return Made("sink", name)

    def _allow(self, query: Query, relation: Relation, view: str) -> None:
        sources = sources_of(relation.node)
        if self._given is None:
            check_lateness(query, sources, f"view {view}")
        if query.lateness is None or query.lateness_place is None:
            return
        for source in sources:
            found = self.allowed.get(source.name)
            if source.kind == "stream" and found is not None and found.lateness != query.lateness:
                raise PlanError(
                    f"{query.lateness_place}: view {view}: it allows stream {source.name} {format_duration(query.lateness)};"
                    f" view {found.view} (at {found.place}) allows it {format_duration(found.lateness)}",
                    hint="all views of a stream see the same events: allow both the longer of the two",
                )
            if source.kind == "stream":
                self.allowed[source.name] = _Allowed(query.lateness, view, query.lateness_place)

    def _new(self, reader: Reader, what: str) -> str:
        """A name that nothing else has: in SQL all of them are names of relations."""
        place, name = reader.place, reader.name(what)
        if name.lower() in {each.lower() for each in self.pipeline.relations}:
            raise PlanError(f"{place}: {name}: there is a stream, table or view of that name already")
        return name


def _with_lateness(options: Given, allowed: _Allowed, what: str) -> Given:
    said = parse_duration(options.get("lateness", allowed.lateness))
    if said != allowed.lateness or options.get("late", "correct") != "correct":
        raise PlanError(
            f"{what}: view {allowed.view} (at {allowed.place}) allows it a lateness of {format_duration(allowed.lateness)},"
            f" and its own options say otherwise",
            hint="leave out late and lateness: what the views allow is enough",
        )
    return {**options, "late": "correct", "lateness": allowed.lateness}


def _at(statement: Statement, call: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Call, as said at a statement; what goes wrong begins with its place, and hints are in SQL."""
    try:
        with said_at(statement.place):
            return call(*arguments, **options)
    except MillstreamError as error:
        message = error.message if isinstance(error, PlanError) else f"{statement.place}: {error.message}"
        raise PlanError(message, hint=in_sql(error.hint)) from error


def read_script(file: str) -> Pipeline:
    """The pipeline of a file of SQL."""
    path = Path(file)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PlanError(f"{file}: not UTF-8: {error.reason} at byte {error.start}") from error
    return load_script(text, file, path.stem)
