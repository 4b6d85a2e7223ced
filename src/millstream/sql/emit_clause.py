"""The end of a query: ``EMIT CHANGES`` or ``EMIT FINAL``, and ``ALLOWED LATENESS``, which are no part of the SELECT itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from millstream.errors import PlanError
from millstream.relation.nodes import Emit, Place, Source, sources_of
from millstream.relation.relation import Relation
from millstream.relation.schema import format_duration
from millstream.sql.hints import in_sql
from millstream.sql.query import Origin, compile_query
from millstream.sql.script import Reader, Statement, cut

MOST = 1_000_000
"""Rows of an answer that is in order, at most: so many are kept of one key."""
_EMITS: dict[str, Emit] = {"CHANGES": "changes", "FINAL": "final"}


@dataclass(frozen=True, slots=True)
class Query:
    """A SELECT, and the clauses behind it; None for a clause that is not there."""

    text: str
    place: Place
    emit: Emit | None = None
    lateness: timedelta | None = None
    lateness_place: Place | None = None

    def relation(self, relations: Mapping[str, Relation]) -> Relation:
        """What it asks for of relations, by their names."""
        try:
            return compile_query(self.text, relations, Origin(self.place.file, self.place.line, self.place.column))
        except PlanError as error:
            raise PlanError(error.message, hint=in_sql(error.hint)) from error.__cause__


def ask(sql: str, relations: Mapping[str, Relation], what: str) -> tuple[Relation, Query]:
    """The relation of a text that is one query, and the query; ``what`` names in errors what asks."""
    statements = cut(sql)
    if len(statements) != 1:
        raise PlanError(f"{what}: expected one query; found {len(statements)}")
    query = read_query(statements[0])
    relation = query.relation(relations)
    check_lateness(query, sources_of(relation.node), what)
    return relation, query


def read_query(statement: Statement, start: int = 0) -> Query:
    """Read a query from a token of a statement on, up to its end."""
    reader = Reader(statement, start)
    end = _end(statement, start)
    if end == start:
        raise reader.fail("a query", "SELECT … FROM …")
    place, reader.index = reader.place, end
    emit: Emit | None = None
    lateness: timedelta | None = None
    lateness_place: Place | None = None
    while not reader.done:
        if emit is None and reader.skip("EMIT"):
            if reader.word() not in _EMITS:
                raise reader.fail("CHANGES or FINAL", "EMIT FINAL gives a window's rows once, when it has closed")
            emit = _EMITS[reader.word()]
            reader.index += 1
        elif lateness is None and reader.word() == "ALLOWED":
            lateness_place = reader.place
            reader.expect("ALLOWED", "LATENESS")
            lateness = reader.interval()
        else:
            reader.finish()
    return Query(statement.between(start, end), place, emit, lateness, lateness_place)


def read_once(statement: Statement, start: int = 0) -> tuple[Query, int]:
    """Read a query for an answer that is given once, and how many rows are wanted of it, at most.

    A view has no order, so ORDER BY and LIMIT go together there; an answer is one, so each may stand alone: without LIMIT all rows
    are in order, without ORDER BY the first ones are given.
    """
    read = read_query(statement, start)
    if read.emit is not None:
        return read, MOST
    depth, ordered, limit = 0, False, None
    for index in range(start, _end(statement, start)):
        word = statement.word(index)
        depth += {"(": 1, ")": -1}.get(word, 0)
        if not depth and word in ("ORDER", "ORDER BY"):
            ordered = True
        elif not depth and word == "LIMIT":
            limit = index
    if ordered and limit is None:
        return replace(read, text=f"{read.text} LIMIT {MOST}"), MOST
    if limit is not None and not ordered and limit + 2 == _end(statement, start):
        count = statement.word(limit + 1)
        if count.isdigit() and int(count):
            return replace(read, text=statement.between(start, limit)), int(count)
    return read, MOST


def _end(statement: Statement, start: int) -> int:
    """The token at which a query ends; words that only look like an ending are names, as in ``SELECT emit FROM t``."""
    depth, count = 0, len(statement.tokens)
    for index in range(start, count):
        word = statement.word(index)
        depth += {"(": 1, ")": -1}.get(word, 0)
        if depth:
            continue
        if word == "ALLOWED" and statement.word(index + 1) == "LATENESS":
            return index
        if word == "EMIT" and (
            statement.word(index + 1) in _EMITS or index >= count - 2 or statement.word(index + 2) == "ALLOWED"
        ):
            return index
    return count


def check_lateness(query: Query, sources: Iterable[Source], what: str) -> None:
    """Lateness belongs to a stream: what a query allows must be what its streams have."""
    for source in sources:
        if query.lateness is None or source.kind != "stream":
            continue
        found = source.time.lateness if source.time is not None else timedelta(0)
        if found != query.lateness:
            wanted = format_duration(query.lateness)
            raise PlanError(
                f"{query.lateness_place}: {what}: it allows a lateness of {wanted}, and stream {source.name}"
                f" (at {source.place}) has {format_duration(found)}",
                hint="all views of a stream see the same events, so lateness is the stream's:"
                f" give it late = 'correct' and lateness = '{wanted}'",
            )
