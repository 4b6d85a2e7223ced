"""A SELECT compiled to a relation: the same nodes that the Python API makes, so that SQL and Python say the same thing.

Clauses are taken in the order in which SQL means them: FROM, WHERE, GROUP BY, HAVING, window functions, QUALIFY, SELECT, DISTINCT,
ORDER BY with LIMIT. Expressions stay the text that the user wrote, apart from whose columns they name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from millstream.relation import expression
from millstream.relation.properties import event_time, visible
from millstream.relation.relation import Relation
from millstream.relation.source_location import placed, said_at
from millstream.sql import joins
from millstream.sql.ast import Deduplicated, Exploded, Joined, Matched, Query, Select, Table, Windowed
from millstream.sql.calls import aggregates, looks
from millstream.sql.group import grouped, is_grouped
from millstream.sql.joins import From
from millstream.sql.match_recognize import matched
from millstream.sql.parse import parse_query
from millstream.sql.scope import Entry, Scope, query_inside
from millstream.sql.select_list import Above, ordering, read_above
from millstream.sql.subquery import split_subqueries, subquery_join
from millstream.sql.tokens import Origin, Piece, Text, all_of, conditions, words
from millstream.sql.window_functions import bounded, looked
from millstream.sql.windows import FIELDS, InFrom, is_window_call, span, with_windows

__all__ = ["Origin", "compile_query"]


def compile_query(text: str, relations: Mapping[str, Relation], origin: Origin = Origin()) -> Relation:  # noqa: B008
    """Make a relation of one SELECT over relations that go by these names, whatever their case.

    ``origin`` is where the text begins in the user's file: every PlanError begins with file, line and column there.
    """
    said = Text(text, origin)
    known = {name.lower(): relation for name, relation in relations.items()}
    return Compiler(said, known).query(parse_query(said))


@dataclass(frozen=True, slots=True)
class Compiler:
    """Queries over relations by name; a CTE makes another one that knows one name more."""

    text: Text
    known: dict[str, Relation] = field(default_factory=dict)

    def query(self, query: Query, names: tuple[str, ...] = ()) -> Relation:
        """The relation of a query, its columns under other names if they are given."""
        scope = self
        for name, columns, inner in query.ctes:
            scope = replace(scope, known={**scope.known, name.lower(): scope.query(inner, columns)})
        if len(query.parts) == 1 and isinstance(first := query.parts[0], Select):
            return scope._select(first, names, query.order, query.limit)
        return scope._union(query, names)

    def _union(self, query: Query, names: tuple[str, ...]) -> Relation:
        made = self._part(query.parts[0], names)
        for part, is_all in zip(query.parts[1:], query.alls, strict=True):
            other = self._part(part, made.columns)
            with said_at(self.text.place(part.at)):
                made = made.union(other)
                made = made if is_all else made.distinct()
        if query.limit is None:
            return made
        scope = Scope(self.text, (Entry.of("", made.columns),))
        with said_at(self.text.place(query.order[0].at)):
            cut = [ordering(each, scope) for each in query.order]
            return made.top(query.limit, ", ".join(f"{scope.resolve(piece)}{suffix}" for piece, suffix in cut))

    def _part(self, part: Select | Query, names: tuple[str, ...]) -> Relation:
        return self._select(part, names) if isinstance(part, Select) else self.query(part, names)

    def _select(
        self, select: Select, names: tuple[str, ...], order: tuple[Piece, ...] = (), limit: int | None = None
    ) -> Relation:
        of_groups = is_grouped(select, order)
        source, window = self.source(select, of_groups)
        scope = source.scope
        if any(map(is_window_call, select.group or ())):
            scope = replace(scope, fields=FIELDS)
        relation = self.where(source.relation, scope, source.where, (select, order))
        relation, above = read_above(relation, scope, select, order, names)
        if of_groups:
            relation, above = grouped(relation, scope, window, select, above)
        relation, above = looked(relation, self.text, above)
        late = above.sorted_names()
        if limit is not None and late is None:
            if select.distinct:
                raise self.text.error(order[0].at, "ORDER BY: after DISTINCT there are only the columns of SELECT")
            with said_at(self.text.place(order[0].at)):
                relation = relation.top(limit, above.sorted())
        for each in above.items:
            with placed(self.text.place(each.at)):
                expression.check(each.sql, visible(relation.node), "select")
        with said_at(self.text.place(select.at)):
            relation = _given(relation, above)
            relation = relation.distinct() if select.distinct else relation
        if limit is None or late is None:
            return relation
        with said_at(self.text.place(order[0].at)):
            return relation.top(limit, late)

    def where(
        self,
        relation: Relation,
        scope: Scope,
        pieces: Sequence[Piece],
        around: tuple[Select, tuple[Piece, ...]] | None = None,
    ) -> Relation:
        """The rows for which all conditions are true; ``around`` is where else a row's number may be used."""
        plain, subqueries = split_subqueries(pieces, self.text)
        rest = []
        for piece in plain:
            self._refuse_calls(piece)
            condition = scope.resolve(piece)
            with said_at(self.text.place(piece.at)):
                found = bounded(relation, condition, _used_in(*around, piece)) if around else None
            if found is not None:
                relation, again = found
            if found is None or again:
                rest.append((piece, condition))
        if rest:
            whole = around[0].where if around else None
            said = [condition for _, condition in rest]
            if whole and [piece for piece, _ in rest] == conditions(whole):
                said = [scope.resolve(whole)]
            with said_at(self.text.place(rest[0][0].at)):
                relation = relation.where(all_of(said))
        for each in subqueries:
            relation = subquery_join(self, relation, scope, each)
        return relation

    def _refuse_calls(self, piece: Piece) -> None:
        """A condition on rows knows no group and no neighbour of a row."""
        for call in looks(piece.sql):
            raise self.text.error(
                piece.at + call.start, f"WHERE with a window function: {call.head}", "QUALIFY takes it"
            )
        for call in aggregates(piece.sql) if query_inside(piece) is None else ():
            raise self.text.error(piece.at + call.start, f"WHERE with an aggregate: {call.head}", "HAVING takes it")

    def source(self, select: Select, of_groups: bool) -> tuple[From, InFrom | None]:
        """What FROM gives, and its windows if those are of groups: if they are of rows, each has them."""
        relation, entry, window = self._windowed(select.table, of_groups)
        made = From(relation, Scope(self.text, (entry,)), tuple(conditions(select.where)) if select.where else ())
        waiting = list(select.joins)
        while waiting:
            each = waiting.pop(self._next(waiting, made, of_groups))
            if isinstance(each, Exploded):
                made = joins.explode(made, each)
                continue
            right, entry, other = self._windowed(each.table, of_groups, is_joined=True)
            if other and window:
                hint = "aggregate each in a query in brackets, then join them by window_start and window_end"
                raise self.text.error(each.at, "two tables with windows in one FROM", hint)
            window = window or other
            if entry.alias and any(known.alias.lower() == entry.alias.lower() for known in made.scope.entries):
                raise self.text.error(each.at, f"two things are called {entry.alias}", f"{entry.alias} AS another_name")
            hows = {later.how for later in (each, *waiting) if not isinstance(later, Exploded)}
            made = joins.join(made, right, entry, each, () if hows & {"right", "full"} else made.where)
        return made, window

    def _next(self, waiting: Sequence[Joined | Exploded], made: From, of_groups: bool) -> int:
        """Which join comes next: the first, or among those behind commas the first that WHERE connects with what is there."""
        for index, each in enumerate(waiting):
            if isinstance(each, Exploded) or not each.loose:
                break
            right, entry, _ = self._windowed(each.table, of_groups, is_joined=True)
            if joins.connects(made, right, entry, each):
                return index
        return 0

    def _windowed(
        self, table: Table, of_groups: bool, is_joined: bool = False
    ) -> tuple[Relation, Entry, InFrom | None]:
        """What a table stands for; its windows are columns of its rows, or left to the groups that there are."""
        relation, entry, window = self._table(table, is_joined)
        if window is None or of_groups:
            return relation, entry, window
        made = window.rows(relation, Scope(self.text, (entry,)))
        return made, Entry.of(entry.alias, made.columns), None

    def _table(self, table: Table, is_joined: bool = False) -> tuple[Relation, Entry, InFrom | None]:
        """What a table stands for, under its alias; with windows the columns of those too."""
        if table.as_of and not is_joined:
            hint = "FROM stream s JOIN table FOR SYSTEM_TIME AS OF s.at ON …"
            raise self.text.error(table.as_of.at, "FOR SYSTEM_TIME AS OF without a stream to join with", hint)
        if table.history and isinstance(table.what, Windowed | Deduplicated):
            raise self.text.error(table.at, "FOR SYSTEM_TIME ALL of windows", "FROM users FOR SYSTEM_TIME ALL, a table")
        match table.what:
            case str(name):
                relation = self._named(name, table.at)
            case Windowed(table=inner):
                relation, entry, other = self._table(inner)
                if other:
                    raise self.text.error(table.at, "windows of windows", "aggregate in a query in brackets first")
                entry = with_windows(replace(entry, alias=table.alias or entry.alias))
                return relation, entry, InFrom(table.what, table.at)
            case Deduplicated() as said:
                return self._deduplicated(said, table)
            case Matched() as said:
                below, entry, _ = self._windowed(said.table, of_groups=False)
                relation = matched(below, Scope(self.text, (entry,)), said)
            case query:
                relation = self.query(query)
        if table.history:
            with said_at(self.text.place(table.at)):
                relation = relation.history()
        if table.columns:
            if len(table.columns) != len(relation.columns):
                found = f"{len(table.columns)} names for {len(relation.columns)} columns"
                raise self.text.error(table.at, f"{table.alias}: {found}")
            with said_at(self.text.place(table.at)):
                pairs = zip(relation.columns, table.columns, strict=True)
                relation = relation.select(
                    *(f"{expression.quote(old)} AS {expression.quote(new)}" for old, new in pairs)
                )
        return relation, Entry.of(table.alias, visible(relation.node)), None

    def _deduplicated(self, said: Deduplicated, table: Table) -> tuple[Relation, Entry, None]:
        """The rows that are no repeats, by the stream's event time: they are a stream still, with that time."""
        relation, entry, window = self._table(said.table)
        if window:
            raise self.text.error(table.at, "deduplicate of windows", "the other way round: tumble((SELECT …), at, …)")
        scope = Scope(self.text, (entry,))
        time, column = event_time(relation.node), expression.plain_column(scope.resolve(said.column)) or ""
        if time is not None and column.lower() != time.lower():
            raise self.text.error(said.column.at, f"deduplicate by {said.column.sql}; expected {time}, the event time")
        within = span(self.text, said.within) if said.within else None
        with said_at(self.text.place(table.at)):
            made = relation.deduplicate([scope.resolve(each) for each in said.partition], within)
        return made, Entry.of(table.alias or entry.alias, visible(made.node)), None

    def _named(self, name: str, at: int) -> Relation:
        if name.lower() not in self.known:
            close = difflib.get_close_matches(name.lower(), self.known, 1)
            there = ", ".join(sorted(self.known)) or "nothing"
            hint = f"did you mean {close[0]}?" if close else ""
            raise self.text.error(at, f"nothing is called {name}; there is {there}", hint)
        return self.known[name.lower()]


def _given(relation: Relation, above: Above) -> Relation:
    """The columns that SELECT gives; the relation itself if those are its own."""
    own = [(each.name, expression.plain_column(each.sql)) for each in above.items]
    if own == [(name, name) for name in relation.columns]:
        return relation
    return relation.select(*(f"{each.sql} AS {expression.quote(each.name)}" for each in above.items))


def _used_in(select: Select, order: tuple[Piece, ...], condition: Piece) -> Callable[[str], bool]:
    """Whether a SELECT uses a name besides in one condition; * uses all."""
    if any(item.star is not None for item in select.items):
        return lambda _: True
    others = [each for each in conditions(select.where) if each != condition] if select.where else []
    pieces = [*(item.piece for item in select.items), *others, *(select.group or ()), *order]
    pieces += [each for each in (select.having, select.qualify, *select.windows.values()) if each]
    return {word.value.lower() for piece in pieces for word in words(piece.sql) if word.is_name}.__contains__
