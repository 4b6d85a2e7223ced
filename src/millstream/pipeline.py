"""Pipelines: streams, tables and the views over them, defined and not run.

A pipeline is data. Defining one opens no log, starts no Spark and writes nothing; what does not hold together is refused in
the line that says it. Its fingerprint stands for everything that decides what state means, so that a checkpoint is never
continued by another definition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from millstream import definitions
from millstream.address import NOWHERE, parse_address, parse_log
from millstream.capture.definition import CaptureDefinition, define_capture
from millstream.config import DEFAULT_LOG
from millstream.errors import PlanError
from millstream.explain.endless import refuse_endless
from millstream.plan.build import ViewPlan, build_chain
from millstream.relation.fingerprint import fingerprint
from millstream.relation.functions import Functions
from millstream.relation.nodes import Column, Emit, EventTime, Late, Policy, Source, source_of
from millstream.relation.relation import Relation
from millstream.relation.schema import parse_duration
from millstream.relation.sinks import Mode, SinkDefinition, checked_sink
from millstream.relation.source import Clock, Codec, Duration, describe_source, idle_of
from millstream.relation.source_location import here, placed
from millstream.secret import check_settings
from millstream.store.contract import LETTERS_KEPT
from millstream.view import View, Views, describe_view


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class _Defined(Relation):
    """A source of a pipeline, or rows and columns of one; it knows where its records are, so that a notebook can show them."""

    pipeline: Pipeline = field(kw_only=True)

    def _repr_html_(self) -> str:
        from millstream.notebook import relation_html

        return relation_html(self.node, self.columns, str(self), self.pipeline.log, self.pipeline.kafka)


_Defined.__name__ = _Defined.__qualname__ = "Relation"  # what errors of Python's own call it: the class that is public


class Pipeline:
    """Streams, tables and views that are kept up to date together.

    :param name: 1 to 63 letters, digits, _ and -
    :param log: the address of the log, ``sqlite:PATH`` or ``kafka://HOST:PORT``; left out, it is that of the settings for a command,
        which is ``sqlite:millstream.db`` by default
    :param to: the store of its views, ``sqlite:PATH`` or ``postgresql://…``; ``sqlite:NAME.views.db`` by default
    :param checkpoint: the folder of its state; ``NAME.checkpoint`` by default
    :param kafka: settings of the Kafka client; secrets by reference
    :param spark: settings of the Spark session that it starts
    :param buckets: in how many parts state is kept
    :param dead_letters: how many dead letters are kept, the newest
    :raises PlanError: by itself and its methods, with file and line, if something does not hold together

    >>> shop = Pipeline("shop")
    >>> orders = shop.stream("orders", "country string, amount double, at timestamp", time="at", delay="10 seconds")
    >>> shop.view("sales", orders.group_by("country").agg(n="count(*)", total="sum(amount)")).key
    ('country',)
    """

    def __init__(
        self,
        name: str,
        *,
        log: str | None = None,
        to: str | None = None,
        checkpoint: str | None = None,
        kafka: Mapping[str, str] | None = None,
        spark: Mapping[str, str] | None = None,
        buckets: int = 8,
        dead_letters: int = LETTERS_KEPT,
    ) -> None:
        self.place = here()
        with placed(self.place):
            definitions.check_pipeline(name, buckets, dead_letters)
            self.to = to if to is not None else f"sqlite:{name}.views.db"
            parse_address(self.to)
            parse_log(log or DEFAULT_LOG)
            check_settings(kafka or {}, "kafka.", "a definition")
            check_settings(spark or {}, what="a definition")
        self.name = name
        self.log = log or DEFAULT_LOG
        self.log_named = log is not None
        """Whether the definition says which log; if not, a command takes that of the settings."""
        self.checkpoint = checkpoint if checkpoint is not None else f"{name}.checkpoint"
        self.kafka = dict(kafka or {})
        self.spark = dict(spark or {})
        self.buckets = buckets
        self.dead_letters = dead_letters
        self.streams: dict[str, Relation] = {}
        self.tables: dict[str, Relation] = {}
        self.views: dict[str, View] = Views()
        self.sinks: dict[str, SinkDefinition] = {}
        self.captures: dict[str, CaptureDefinition] = {}
        self.names: dict[str, Relation] = {}
        self.udf = Functions(name)
        """The functions that expressions of its views may call by name; ``udf.register`` as in ``spark.udf.register``."""

    @property
    def relations(self) -> dict[str, Relation]:
        """What SQL may name: streams, tables, views, and what :meth:`define` gave a name."""
        views = {name: Relation(view.node, name) for name, view in self.views.items()}
        return {**views, **self.names, **self.streams, **self.tables}

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
        failed: Policy = "dead_letter",
    ) -> Relation:
        """Define a stream: a topic of facts. ``schema`` is Spark DDL, ``time`` the column that says when a fact happened.

        What the times mean: :class:`~millstream.relation.nodes.EventTime`. ``sequence`` is a producer and its growing number, two
        expressions; a repeat of both is dropped. ``key`` are the columns that the record's key was made of. ``failed`` says what
        happens to a record on which an expression of a view fails: it becomes a dead letter and no view sees it, or it stops the
        pipeline.

        :param name: what it is called in errors and in SQL
        :param schema: its columns, ``"page string, at timestamp"``
        :param topic: the topic; by default it has the name of this source
        :param key: the columns that the record's key was made of
        :param codec: ``"json"``, ``"confluent-json"``, ``"text"``, an Avro schema or a Confluent
        :param time: the column, or an expression with a name, that says when a fact happened; what PySpark says by ``withWatermark``
        :param delay: how far behind the newest event of its partition an event may be: Spark's ``delayThreshold``
        :param lateness: how much later still an event may be with ``late="correct"``
        :param late: what becomes of late events: ``"drop"``, ``"route"`` or ``"correct"``
        :param ahead: how far an event may be ahead of its append
        :param idle: how long a partition may be silent before it no longer holds the others back; None for ever
        :param clock: how the time of a device is corrected
        :param sequence: the producer and its number, two expressions
        :param failed: ``"dead_letter"`` or ``"stop"``
        :raises PlanError: if something of it does not hold together

        >>> Pipeline("shop").stream("clicks", "page string, at timestamp", time="at", delay="10 seconds").columns
        ('page', 'at')
        """
        place = here()
        with placed(place):
            columns = self._source_columns("stream", name, schema)
            spans = parse_duration(delay), parse_duration(lateness), parse_duration(ahead), idle_of(idle)
            written = EventTime("", spans[0], spans[1], late, *spans[2:])
            event_time = definitions.time_of(f"stream {name}", columns, time, written, clock)
            source = definitions.stream_of(name, columns, topic, key, codec, event_time, sequence, failed, place)
            definitions.refuse_source(source, self._sources(), self.sinks.values(), self.log)
        self.streams[name] = _Defined(source, pipeline=self)
        return self.streams[name]

    def table(
        self,
        name: str,
        schema: str,
        *,
        key: str | Sequence[str],
        topic: str | None = None,
        codec: Codec = "json",
        deduplicate: bool = False,
        failed: Policy = "dead_letter",
    ) -> Relation:
        """Define a table: a topic of changes, the latest of each key being its row; a tombstone deletes it.

        ``failed`` is as for a stream; a change that is rejected leaves the row of its key as it was. A Debezium connector sends changes
        again after a failure, older than what came before: with ``deduplicate`` those are told by their place in the log of PostgreSQL,
        MySQL or MariaDB, and dropped.

        :param name: what it is called in errors and in SQL
        :param schema: its columns, ``"id long, name string"``
        :param key: the columns of its primary key
        :param topic: the topic; by default it has the name of this source
        :param codec: ``"json"``, ``"confluent-json"``, ``"text"``, ``"debezium"`` or a Debezium, an Avro schema or a Confluent
        :param deduplicate: whether changes that a Debezium connector has sent again are dropped
        :param failed: ``"dead_letter"`` or ``"stop"``
        :raises PlanError: if something of it does not hold together

        >>> Pipeline("shop").table("users", "id long, name string", key="id").columns
        ('id', 'name')
        """
        place = here()
        with placed(place):
            columns = self._source_columns("table", name, schema)
            source = definitions.table_of(name, columns, topic, key, codec, deduplicate, failed, place)
            definitions.refuse_source(source, self._sources(), self.sinks.values(), self.log)
        self.tables[name] = _Defined(source, pipeline=self)
        return self.tables[name]

    def define(self, name: str, relation: Relation | None = None, *, sql: str | None = None) -> Relation:
        """Give a relation a name that SQL may use: a temporary view, of which nothing is kept.

        :param name: the name for SQL
        :param relation: the relation that gets it
        :param sql: a query in its place
        :raises PlanError: if the name is taken
        """
        place = here()
        with placed(place):
            if not isinstance(name, str) or not definitions.NAME.fullmatch(name):
                raise PlanError(f"define {name!r}: expected a name of 1 to 63 letters, digits and _")
            if name.lower() in (each.lower() for each in self.relations):
                raise PlanError(f"define {name}: there is a stream, table or view of that name already")
            relation, query = definitions.relation_of(relation, sql, self.relations, f"define {name}")
            if query is not None and (query.emit or query.lateness):
                raise PlanError(f"define {name}: nothing comes out of it, so EMIT and ALLOWED LATENESS say nothing")
            definitions.refuse_foreign(relation, self._sources(), f"define {name}", self.name)
            self.udf.check(relation.node, f"define {name}")
        self.names[name] = Relation(relation.node, name)
        return self.names[name]

    def view(
        self,
        name: str,
        relation: Relation | None = None,
        *,
        sql: str | None = None,
        to: str | None = None,
        emit: Emit = "changes",
        key: str | Sequence[str] | None = None,
        unbounded: bool = False,
        refused: Policy = "stop",
    ) -> View:
        """Define a view: a relation kept up to date under a name, in ``to`` (by default the pipeline's store).

        With ``to="nowhere"`` its rows are not stored: only its changes go to its sinks.
        With ``emit="final"`` a window's rows appear once, when it has closed. ``key`` overrides the columns that identify a row.
        A view that keeps something of every event for ever is refused, unless ``unbounded=True`` says that it may. ``refused`` says
        what happens to a row that the store cannot hold, such as text with a NUL in PostgreSQL: it stops the pipeline, or it becomes
        a dead letter and the view goes on without it.

        Instead of a relation it may be a query, ``sql="SELECT … FROM orders … EMIT FINAL"``, over :attr:`relations`.

        :param name: the name of its table in the store
        :param relation: what it keeps
        :param sql: a query in its place
        :param to: another store than the pipeline's, or ``"nowhere"``
        :param emit: ``"changes"``, or ``"final"`` for windows that have closed
        :param key: the columns that identify a row, if others than found
        :param unbounded: whether it may keep something of every event for ever
        :param refused: ``"stop"``, or ``"dead_letter"`` for rows that the store cannot hold
        :raises PlanError: if something of it does not hold together
        """
        place = here()
        with placed(place), definitions.hints_for(sql):
            what = f"view {name}"
            definitions.check_view_name(name, self.views.values())
            self._refuse_defined(name, what)
            relation, query = definitions.relation_of(relation, sql, self.relations, what)
            definitions.refuse_foreign(relation, self._sources(), what, self.name)
            self.udf.check(relation.node, what)
            emit = definitions.emit_of(what, emit, query)
            found = definitions.view_key(what, relation, emit, key)
            definitions.check_store(what, to, refused)
            stored = self.to if to is None or to == NOWHERE else to
            plan = ViewPlan(name, relation.node, stored, emit, found)
            chain = build_chain([plan], buckets=self.buckets, to=self.to, functions=self.udf.all)
            if not unbounded:
                refuse_endless(name, chain)
            kept = to != NOWHERE
            view = View(name, relation.node, stored, emit, found, place, self.name, unbounded, refused, kept)
        from millstream.typecheck.inference import check_types  # Polars is loaded when there is something to check

        check_types([relation.node], chain)
        self.views[name] = view
        return view

    def sink(
        self,
        name: str,
        view: View,
        to: str | Callable[[Sequence[Any]], None],
        *,
        mode: Mode | None = None,
        refused: Policy = "stop",
    ) -> SinkDefinition:
        """Send the changes of a view somewhere, besides keeping it: to a topic, to Redis, to files, to an index, to a function.

        ``to`` is ``topic:NAME`` (of the pipeline's log, or ``topic:NAME@LOG``), ``redis://HOST:PORT/DB`` (``?ttl=1h``: rows expire),
        ``files:FOLDER`` (Parquet, or ``files:FOLDER?format=json``; ``partition=day,minute`` in folders by these columns),
        ``delta:FOLDER``, ``search:PATH?columns=title,body``, ``opensearch://HOST:PORT/INDEX`` or a function of changes. ``mode`` is
        ``"exactly_once"`` where that can be. A function and OpenSearch cannot: ``"at_least_once"`` then, each change with an id that
        stays the same. ``refused`` says what happens to a row that is not taken.

        :param name: what it is called in errors
        :param view: the view whose changes it gets
        :param to: an address or a function of changes
        :param mode: ``"exactly_once"``, ``"at_least_once"`` or ``"at_most_once"``
        :param refused: ``"stop"``, or ``"dead_letter"`` for rows that are not taken
        :raises PlanError: if something of it does not hold together
        """
        place = here()
        with placed(place):
            what = f"sink {name}"
            if not isinstance(name, str) or not definitions.NAME.fullmatch(name) or name in self.sinks:
                raise PlanError(f"sink {name!r}: expected a new name of 1 to 63 letters, digits and _")
            if self.views.get(getattr(view, "name", "")) is not view:
                raise PlanError(f"{what}: expected a view of pipeline {self.name}; found {view!r}")
            mode = checked_sink(what, view.name, view.columns, view.key, to, mode, refused)
            definitions.refuse_loop(what, to, [source.topic for source in self._sources()], self.log)
            self.sinks[name] = SinkDefinition(name, view.name, to, mode, refused, place)
        return self.sinks[name]

    capture = define_capture

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
            "dead_letters": self.dead_letters,
            "fingerprint": self.fingerprint(),
            "streams": {name: describe_source(source_of(stream.node)) for name, stream in self.streams.items()},
            "functions": {each.name: {"returns": each.returns, "kind": each.kind} for each in self.udf.all},
            "tables": {name: describe_source(source_of(table.node)) for name, table in self.tables.items()},
            "views": {view.name: describe_view(view) for view in self.views.values()},
            "sinks": {
                sink.name: {"view": sink.view, "to": sink.where, "mode": sink.mode, "refused": sink.refused}
                for sink in self.sinks.values()
            },
        }

    def fingerprint(self) -> str:
        """Sixteen hex digits of everything that decides what state means.

        Where things are stored, where in the file they are defined, and sources that no view uses do not count. What is left at
        its default does not count either, so that a later version with more options has the same fingerprints.
        """
        views = sorted(self.views.values(), key=lambda view: view.name)
        content = {
            "buckets": self.buckets,
            "views": [self._meaning(view) for view in views],
        }
        return fingerprint(content)

    def view_fingerprint(self, name: str) -> str:
        """The same of one view by itself.

        :param name: the name of the view
        """
        return fingerprint([self.buckets, *self._meaning(self.views[name])])

    def __repr__(self) -> str:
        return f"<Pipeline {self.name}: {', '.join(self.views) or 'no views'}>"

    def _repr_html_(self) -> str:
        from millstream.notebook import pipeline_html

        return pipeline_html(self.name, self._sources(), self.views.values())

    def _meaning(self, view: View) -> list[Any]:
        """What of a view decides what is stored of it, with the functions that it calls; that it is kept goes without saying."""
        called = self.udf.called_by(view.node)
        return [
            view.name,
            view.emit,
            view.key,
            view.node,
            *([] if view.kept else [NOWHERE]),
            *([called] if called else []),
        ]

    def _refuse_defined(self, name: str, what: str) -> None:
        if name.lower() in (each.lower() for each in self.names):
            raise PlanError(f"{what}: define gave that name to another relation already")

    def _sources(self) -> list[Source]:
        return [source_of(each.node) for each in (*self.streams.values(), *self.tables.values())]

    def _source_columns(self, kind: Literal["stream", "table"], name: str, schema: str) -> tuple[Column, ...]:
        """The columns of a new source, once its name is found to be right and free."""
        columns = definitions.source_columns(kind, name, schema, self._sources())
        self._refuse_defined(name, f"{kind} {name}")
        return columns
