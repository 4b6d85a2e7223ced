"""What is checked where a pipeline's streams, tables and views are defined, and what is made of them: sources and views."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, get_args

from millstream.address import NOWHERE, parse_address
from millstream.errors import PlanError
from millstream.relation.debezium import repeats
from millstream.relation.nodes import Column, Emit, EventTime, Place, Policy, Source, source_of, sources_of
from millstream.relation.operators.match import not_final
from millstream.relation.properties import has_aggregate, has_window, natural_key
from millstream.relation.relation import Relation
from millstream.relation.schema import parse_columns
from millstream.relation.sealed import refuse_sealed, refuse_sealed_key
from millstream.relation.sinks import SinkDefinition, check_policy
from millstream.relation.source import (
    Clock,
    Codec,
    codec_of,
    either,
    event_time_of,
    existing,
    numbering,
    subject_of,
    topic_of,
)
from millstream.relation.source_location import here, said_at
from millstream.view import View

if TYPE_CHECKING:
    from millstream.sql.emit_clause import Query

_PIPELINE_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_RESERVED_PREFIXES = ("millstream", "sqlite_")


def check_pipeline(name: str, buckets: int, dead_letters: int) -> None:
    """Refuse a name or a number that a pipeline cannot have."""
    if not isinstance(name, str) or not _PIPELINE_NAME.fullmatch(name):
        raise PlanError(f"pipeline {name!r}: expected a name of 1 to 63 letters, digits, _ and -")
    if isinstance(buckets, bool) or not isinstance(buckets, int) or buckets < 1:
        raise PlanError(f"pipeline {name}: expected a number of buckets above zero; found {buckets!r}")
    if isinstance(dead_letters, bool) or not isinstance(dead_letters, int) or dead_letters < 0:
        raise PlanError(f"pipeline {name}: expected dead_letters to be how many are kept; found {dead_letters!r}")


def source_columns(
    kind: Literal["stream", "table"], name: str, schema: str, sources: Iterable[Source]
) -> tuple[Column, ...]:
    """The columns of a new source, once its name is found to be right and free among ``sources``."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise PlanError(
            f"{kind} {name!r}: expected a name of 1 to 63 letters, digits and _, not beginning with a digit"
        )
    for source in sources:
        if source.name.lower() == name.lower():
            raise PlanError(f"{kind} {name}: there is a {source.kind} of that name already, defined at {source.place}")
    try:
        return parse_columns(schema, source=True)
    except PlanError as error:
        raise PlanError(f"{kind} {name}: {error.message}", hint=error.hint) from error


def time_of(
    what: str, columns: tuple[Column, ...], time: str | None, written: EventTime, clock: Clock | None
) -> EventTime | None:
    """The event time of a stream: ``time`` is its column or its expression, ``written`` are the delays and the rest."""
    if time is not None:
        return event_time_of(time, written, clock, columns, what)
    if written != EventTime("") or clock is not None:
        raise PlanError(
            f"{what}: delay, lateness, late, ahead, idle and clock are about event time, and it has none",
            hint='name its timestamp column: time="at"',
        )
    return None


def stream_of(
    name: str,
    columns: tuple[Column, ...],
    topic: str | None,
    key: str | Sequence[str] | None,
    codec: Codec,
    time: EventTime | None,
    sequence: tuple[str, str] | None,
    failed: Policy,
    place: Place,
) -> Source:
    """A stream as a source."""
    what = f"stream {name}"
    source = Source(
        "stream",
        name,
        topic_of(topic, name, what),
        columns,
        *codec_of(codec, columns, what),
        subject=subject_of(codec),
        key=existing(key or (), columns, f"{what}: key"),
        time=time,
        sequence=numbering(sequence, columns, what),
        failed=failed,
        place=place,
    )
    check_policy(what, failed, "failed")
    refuse_sealed(source, what)
    return source


def table_of(
    name: str,
    columns: tuple[Column, ...],
    topic: str | None,
    key: str | Sequence[str],
    codec: Codec,
    deduplicate: bool,
    failed: Policy,
    place: Place,
) -> Source:
    """A table as a source."""
    what = f"table {name}"
    if not key:
        raise PlanError(f"{what}: expected at least one key column; found none")
    keys = existing(key, columns, f"{what}: key")
    form, schema = codec_of(codec, columns, what, "table")
    source = Source(
        "table",
        name,
        topic_of(topic, name, what),
        columns,
        form,
        schema,
        subject=subject_of(codec),
        key=keys,
        sequence=repeats(keys, form, what) if deduplicate else None,
        failed=failed,
        place=place,
    )
    check_policy(what, failed, "failed")
    refuse_sealed(source, what)
    return source


def refuse_loop(what: str, to: object, topics: Iterable[str], log: str) -> None:
    """Refuse a sink into a topic that its own pipeline reads: it would feed itself for ever, and a rebuild would append all of it again."""
    name, _, other = to.removeprefix("topic:").partition("@") if isinstance(to, str) else ("", "", "")
    if isinstance(to, str) and to.startswith("topic:") and name in topics and other in ("", log):
        raise PlanError(
            f"{what}: topic {name} is read by this pipeline; what it sends there would come in again",
            hint="send to another topic, and let another pipeline read both; what appends to its own topic is an event store: docs/sourcing.md",
        )


def refuse_source(source: Source, others: Iterable[Source], sinks: Iterable[SinkDefinition], log: str) -> None:
    """Refuse a source of a topic that another one reads, since a topic is read and admitted once, or that a sink of its pipeline writes."""
    for sink in sinks:
        refuse_loop(f"{source.kind} {source.name}: sink {sink.name}", sink.to, [source.topic], log)
    for known in others:
        if known.topic == source.topic:
            raise PlanError(
                f"{source.kind} {source.name}: topic {source.topic} is {known.kind} {known.name} already, defined at {known.place}",
                hint=f"use {known.name} again: as many views as you like may read it",
            )


def relation_of(
    relation: Relation | None, sql: str | None, names: Mapping[str, Relation], what: str
) -> tuple[Relation, Query | None]:
    """The relation that is given, or that of a query over ``names``, with the clauses behind it."""
    if sql is None:
        if not isinstance(relation, Relation):
            raise PlanError(f"{what}: expected a relation; found {relation!r}", hint="after group_by comes .agg(…)")
        return relation, None
    if relation is not None or not isinstance(sql, str):
        raise PlanError(f"{what}: expected either a relation or sql, a text; found {relation!r} and {sql!r}")
    from millstream.sql.emit_clause import ask

    with said_at(here()):
        return ask(sql, names, what)


def refuse_foreign(relation: Relation, sources: Iterable[Source], what: str, pipeline: str) -> None:
    """Refuse a relation that is made of other sources than those of its pipeline."""
    known = list(sources)
    for source in sources_of(relation.node):
        if source not in known:
            raise PlanError(f"{what}: {source.kind} {source.name} (at {source.place}) is not of pipeline {pipeline}")


def check_view_name(name: str, views: Iterable[View]) -> None:
    """Refuse a name that a view cannot have, or that another one has."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or name.lower().startswith(_RESERVED_PREFIXES):
        raise PlanError(
            f"view {name!r}: expected a name of 1 to 63 letters, digits and _, not beginning with a digit,"
            f" {' or '.join(_RESERVED_PREFIXES)}"
        )
    for other in views:
        if other.name.lower() == name.lower():
            raise PlanError(f"view {name}: there is one of that name already, defined at {other.place}")


def emit_of(what: str, emit: Emit, query: Query | None) -> Emit:
    """When rows appear: as its definition says, or as its query does."""
    if query is None or query.emit is None:
        return emit
    if emit not in ("changes", query.emit):
        raise PlanError(f"{what}: its query says EMIT {query.emit.upper()}; found emit={emit!r}")
    return query.emit


def view_key(what: str, relation: Relation, emit: Emit, key: str | Sequence[str] | None) -> tuple[str, ...]:
    """The columns that identify a view's rows: ``key`` where it is given, else the key of its relation."""
    if emit not in get_args(Emit):
        raise PlanError(f"{what}: expected emit to be {either(Emit)}; found {emit!r}")
    if emit == "final" and (why := not_final(relation.node)):
        raise PlanError(f"{what}: {why.message}", hint=why.hint)
    if emit == "final" and not has_window(relation.node):
        raise PlanError(
            f'{what}: emit="final" needs an end to wait for, and there is no window',
            hint='group by a window: group_by(window.tumbling("at", "1 minute"), …)',
        )
    if key is None:
        return natural_key(relation.node)
    is_log = source_of(relation.node).kind == "stream" and not has_aggregate(relation.node)
    if is_log and natural_key(relation.node) == ():
        raise PlanError(
            f"{what}: its rows are told apart by where in the log they come from; found key={key!r}",
            hint="group_by(…).agg(…) makes one row for each key",
        )
    found = existing(key, [Column(each, "") for each in relation.columns], f"{what}: key")
    refuse_sealed_key(relation.node, found, what)
    return found


def check_store(what: str, to: str | None, refused: Policy) -> None:
    """Refuse a place for a view's rows that is none, or a policy for refusals where no store can refuse."""
    check_policy(what, refused)
    if to is not None and to != NOWHERE:
        parse_address(to)
    if to == NOWHERE and refused != "stop":
        raise PlanError(
            f"{what}: it is kept nowhere, so no store refuses its rows; found refused={refused!r}",
            hint="a sink has a refused= of its own",
        )


@contextmanager
def hints_for(sql: str | None) -> Iterator[None]:
    """Let hints about a view that is a query be in SQL."""
    try:
        yield
    except PlanError as error:
        if sql is None:
            raise
        from millstream.sql.hints import in_query

        raise PlanError(error.message, hint=in_query(error.hint)) from error.__cause__
