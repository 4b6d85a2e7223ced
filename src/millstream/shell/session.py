"""A session of the shell: a pipeline that statements add to, and what each statement gives. It prints nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millstream.errors import PlanError
from millstream.log import open_log
from millstream.log.lag import stored
from millstream.pipeline import Pipeline
from millstream.relation.nodes import Source
from millstream.relation.relation import Relation
from millstream.relation.schema import format_duration
from millstream.relation.source_location import said_at
from millstream.shell.query import Query
from millstream.shell.rejected import Rejected
from millstream.sql.emit_clause import check_lateness, read_once
from millstream.sql.script import Reader, Statement
from millstream.sql.statement import Definitions, pipeline_of

SHOWN = ("STREAMS", "TABLES", "VIEWS", "SINKS", "TOPICS", "REJECTED")
QUERIES = ("SELECT", "WITH", "FROM", "(")
HELP = """\
CREATE STREAM, TABLE, VIEW, TEMPORARY VIEW, SINK …;   define; `millstream run FILE` keeps views, a shell does not
SELECT …;                                             the answer over the log so far
SELECT … EMIT CHANGES;  SELECT … EMIT FINAL;          what is there, then every change until Ctrl-C
DROP STREAM | TABLE | VIEW | SINK name;               forget a definition
SHOW STREAMS | TABLES | VIEWS | SINKS | TOPICS;       what there is
SHOW REJECTED;                                        records that the last query did not admit, and why
DESCRIBE name;                                        its columns, and where they come from
EXPLAIN SELECT …;  EXPLAIN name;                      what is computed, what is kept and until when
\\json                                                 JSON on and off
help, exit"""
_TYPES = {
    "bool": "boolean", "int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint", "float": "float",
    "double": "double", "string": "string", "large_string": "string", "binary": "binary", "large_binary": "binary",
    "date32[day]": "date",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rows:
    """A table to show; ``note`` says more about it, and ``left_out`` how many rows more there are."""

    columns: Sequence[str]
    rows: Sequence[dict[str, Any]]
    note: str = ""
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Said:
    """A text to show; ``done`` if it only says that something was done."""

    text: str
    done: bool = False


class Session:
    """A pipeline, and what statements do with it. An answer has ``limit`` rows at most.

    ``log`` is the log whatever a statement says. ``spark`` lets Spark compute everything; ``starting`` is around its start.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        limit: int = 100,
        log: str | None = None,
        spark: bool = False,
        starting: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.pipeline, self._limit, self._log = pipeline, limit, log
        self._spark, self._starting = spark, starting
        self._rejected = Rejected()

    def execute(self, statement: Statement) -> Rows | Said | Query:
        """Do what a statement says; a query to be followed is given back as it is."""
        reader = Reader(statement)
        word = reader.word()
        if word == "CREATE":
            return self._create(statement)
        if word in QUERIES:
            return self._select(statement)
        if reader.skip("DROP"):
            return self._drop(reader)
        if reader.skip("SHOW"):
            return self._show(reader)
        if reader.skip("DESCRIBE") or reader.skip("DESC"):
            return self._describe(self._named(reader))
        if reader.skip("EXPLAIN"):
            return self._explain(statement, reader)
        if reader.skip("HELP"):
            return Said(HELP)
        raise reader.fail("CREATE, DROP, SELECT, SHOW, DESCRIBE or EXPLAIN", "`help` says what there is")

    def _create(self, statement: Statement) -> Said:
        if Reader(statement).skip("CREATE", "PIPELINE") and not self.pipeline.relations:
            before, self.pipeline = self.pipeline, pipeline_of(statement)
            self.pipeline.log = self._log or (self.pipeline.log if self.pipeline.log_named else before.log)
            self.pipeline.kafka = self.pipeline.kafka or before.kafka
            self.pipeline.spark = before.spark | self.pipeline.spark
            return Said(f"pipeline {self.pipeline.name}", done=True)
        made = Definitions(self.pipeline).define(statement)
        return Said(f"{made.kind} {made.name}", done=True)

    def _drop(self, reader: Reader) -> Said:
        kinds: dict[str, tuple[dict[str, Any], ...]] = {
            "STREAM": (self.pipeline.streams,),
            "TABLE": (self.pipeline.tables,),
            "VIEW": (self.pipeline.views, self.pipeline.names),
            "SINK": (self.pipeline.sinks,),
        }
        kind = reader.word()
        if kind not in kinds:
            raise reader.fail("STREAM, TABLE, VIEW or SINK")
        reader.index += 1
        place, name = reader.place, reader.name("its name")
        reader.finish()
        for defined in kinds[kind]:
            for known in defined:
                if known.lower() == name.lower():
                    del defined[known]
                    return Said(f"{kind.lower()} {known} is forgotten", done=True)
        raise PlanError(f"{place}: there is no {kind.lower()} {name}")

    def _select(self, statement: Statement) -> Rows | Query:
        query, emit, most = self._query(statement, 0)
        self._rejected = query.rejected
        if emit is not None:
            return query
        answer = query.answer().head(most)
        rows = answer.head(self._limit).to_dicts()
        return Rows(answer.columns, rows, query.rejected.note(), left_out=answer.height - len(rows))

    def _query(self, statement: Statement, start: int) -> tuple[Query, str | None, int]:
        read, most = read_once(statement, start)
        relation = read.relation(self.pipeline.relations)
        with said_at(read.place):
            query = Query(self.pipeline, relation, read.emit or "changes", spark=self._spark, starting=self._starting)
        check_lateness(read, query.sources, "the query")
        return query, read.emit, most

    def _show(self, reader: Reader) -> Rows:
        kind = reader.word()
        if kind not in SHOWN:
            raise reader.fail(f"{', '.join(SHOWN[:-1])} or {SHOWN[-1]}")
        reader.index += 1
        reader.finish()
        if kind == "TOPICS":
            with open_log(self.pipeline.log, create=False, kafka=self.pipeline.kafka) as log:
                found = [(each.name, each.partitions, stored(log, each)) for each in log.topics()]
            return _rows(("topic", "partitions", "records"), found)
        if kind == "REJECTED":
            columns = ("topic", "partition", "offset", "reason", "detail")
            letters = self._rejected.letters[-self._limit :]
            return _rows(columns, [tuple(each[name] for name in columns) for each in letters])
        if kind == "SINKS":
            sinks = [
                (each.name, each.view, each.where, each.mode, each.refused) for each in self.pipeline.sinks.values()
            ]
            return _rows(("sink", "view", "to", "mode", "refused"), sinks)
        if kind == "VIEWS":
            views = [
                (view.name, ", ".join(view.columns), ", ".join(view.key), view.emit, view.where)
                for view in self.pipeline.views.values()
            ]
            named = [(name, ", ".join(each.columns), "", "temporary", "") for name, each in self.pipeline.names.items()]
            return _rows(("view", "columns", "key", "emit", "to"), [*views, *named])
        sources = self.pipeline.streams if kind == "STREAMS" else self.pipeline.tables
        rows = [
            (name, source.topic, ", ".join(relation.columns), ", ".join(source.key))
            for name, relation in sources.items()
            if isinstance(source := relation.node, Source)
        ]
        return _rows((kind[:-1].lower(), "topic", "columns", "key"), rows)

    def _named(self, reader: Reader) -> tuple[str, Relation]:
        place, name = reader.place, reader.name("the name of a stream, table or view")
        reader.finish()
        for known, relation in self.pipeline.relations.items():
            if known.lower() == name.lower():
                return known, relation
        raise PlanError(
            f"{place}: no stream, table or view {name}; there are {', '.join(self.pipeline.relations) or 'none'}"
        )

    def _describe(self, named: tuple[str, Relation]) -> Rows:
        name, relation = named
        node = relation.node
        if name in (*self.pipeline.streams, *self.pipeline.tables) and isinstance(node, Source):
            declared = [{"column": each.name, "type": each.type.lower()} for each in node.all_columns]
            return Rows(("column", "type"), declared, _about(node))
        types = Query(self.pipeline, relation).types()
        rows = [{"column": each, "type": _type(types.field(each).type) if types else None} for each in relation.columns]
        view = self.pipeline.views.get(name)
        about = (
            f"view, emit {view.emit}, kept {f'in {view.to}' if view.kept else view.where}" if view else "temporary view"
        )
        return Rows(("column", "type"), rows, f"{about}\n{relation}")

    def _explain(self, statement: Statement, reader: Reader) -> Said:
        if reader.word() in QUERIES:
            query, *_ = self._query(statement, reader.index)
        else:
            name, relation = self._named(reader)
            emit = self.pipeline.views[name].emit if name in self.pipeline.views else "changes"
            query = Query(self.pipeline, relation, emit)
        return Said(str(query.explained()))


def _rows(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Rows:
    return Rows(columns, [dict(zip(columns, row, strict=True)) for row in rows])


def _about(source: Source) -> str:
    """What a source is, in a line."""
    parts = [f"{source.kind} of topic {source.topic}", source.codec]
    if source.key:
        parts.append(f"key {', '.join(source.key)}")
    if source.time is not None:
        parts.append(
            f"time {source.time.column}, {format_duration(source.time.delay)} of delay, late: {source.time.late}"
        )
        if source.time.lateness:
            parts.append(f"lateness {format_duration(source.time.lateness)}")
    return ", ".join(parts)


def _type(kind: pa.DataType) -> str:
    """A type as Spark calls it."""
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{each.name}:{_type(each.type)}' for each in kind)}>"
    return _TYPES.get(str(kind), str(kind))
