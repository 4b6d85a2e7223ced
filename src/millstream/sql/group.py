"""GROUP BY: keys and aggregates are cut out of the expressions above them, which go on from the group's columns.

The same aggregate written twice is computed once. What is neither a key nor inside of an aggregate has no value in a group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from millstream.relation import expression
from millstream.relation.nodes import WINDOW_COLUMNS, Window
from millstream.relation.properties import visible
from millstream.relation.relation import Relation
from millstream.relation.source_location import placed, said_at
from millstream.sql.ast import Select
from millstream.sql.calls import aggregates, closing, name_windows
from millstream.sql.joins import free
from millstream.sql.scope import Scope, names_in, path
from millstream.sql.select_list import Above
from millstream.sql.tokens import Piece, Text, Word, all_of, canonical, edit, words
from millstream.sql.windows import InFrom, is_window_call, is_window_column, window_call


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the groups: its expression over the relation below, and its name."""

    sql: str
    name: str


@dataclass(slots=True)
class Groups:
    """Groups while the expressions above them are read: keys, a window, and the aggregates found so far, by their words."""

    text: Text
    keys: tuple[Key, ...]
    window: Window | None
    found: dict[tuple[str, ...], tuple[str, str]] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    """Where each aggregate, by its name, was first written."""

    def name(self, sql: str, name: str, at: int) -> None:
        """Let an aggregate go by the name that its column has, if the expression is nothing else and the name is free."""
        calls = aggregates(sql)
        if len(calls) == 1 and calls[0].head == sql and free(name, self._taken()) == name:
            known, _ = self.found.setdefault(canonical(sql), (name, sql))
            self.places.setdefault(known, at)

    def rewrite(self, sql: str, at: int) -> str:
        """An expression over the groups for one over the rows below; what has no value in a group is refused."""
        edits = []
        for call in aggregates(sql):
            known = self.found.get(canonical(call.head))
            if known is None:
                known = self._number(), call.head
                self.found[canonical(call.head)] = known
                self.places[known[0]] = at
            edits.append((call.start, call.end, expression.quote(known[0])))
        names = {canonical(key.sql): key.name for key in self.keys}
        if self.window is not None:
            names |= {(name.upper(),): name for name in WINDOW_COLUMNS}
        found = words(sql)
        for key in sorted(names, key=len, reverse=True):
            for start, end in _places(found, key):
                if not any(start < other and begun < end for begun, other, _ in edits):
                    edits.append((start, end, expression.quote(names[key])))
        for column, start in names_in(sql):
            if not any(begun <= start < end for begun, end, _ in edits):
                name = ".".join(column)
                message = f"`{sql}`: {name} is neither in GROUP BY nor inside an aggregate"
                raise self.text.error(
                    at, message, f"group by it, or say which of its values: max({name}), collect_list({name})"
                )
        return edit(sql, edits)

    def relation(self, below: Relation, at: int) -> Relation:
        """The groups, with all aggregates that were found."""
        for name, sql in self.found.values():
            self._check(name, sql, below)
        with said_at(self.text.place(at)):
            keys = [f"{key.sql} AS {expression.quote(key.name)}" for key in self.keys]
            grouped = below.group_by(*keys, *([self.window] if self.window else []))
            return grouped.agg(**dict(self.found.values())) if self.found else grouped.distinct()

    def _check(self, name: str, sql: str, below: Relation) -> None:
        """Refuse an aggregate that is none, at its own place."""
        at = self.places[name]
        if inner := aggregates(sql[sql.index("(") + 1 :]):
            hint = "aggregate in a query in brackets, then again around it"
            raise self.text.error(at, f"an aggregate inside an aggregate: {inner[0].head} in {sql}", hint)
        with placed(self.text.place(at)):
            expression.parse_aggregate(name, sql, visible(below.node))

    def _taken(self) -> list[str]:
        return [*(key.name for key in self.keys), *(name for name, _ in self.found.values()), *WINDOW_COLUMNS]

    def _number(self) -> str:
        taken = {name.lower() for name in self._taken()}
        return next(name for number in range(1, len(taken) + 2) if (name := f"agg_{number}") not in taken)


def is_grouped(select: Select, order: tuple[Piece, ...]) -> bool:
    """Whether a SELECT is of groups: it has a GROUP BY or a HAVING, or an aggregate above its rows."""
    pieces = [*(item.piece for item in select.items), *([select.qualify] if select.qualify else ()), *order]
    windows = {name: each.sql for name, each in select.windows.items()}
    said = select.group is not None or select.having is not None
    return said or any(aggregates(name_windows(each.sql, windows)) for each in pieces)


def grouped(
    relation: Relation, scope: Scope, window: InFrom | None, select: Select, above: Above
) -> tuple[Relation, Above]:
    """The groups of a SELECT, and the expressions above them."""
    keys, said = _keys(scope, window, select, above)
    groups = Groups(scope.text, keys, said)
    for each in above.items:
        groups.name(each.sql, each.name, each.at)
    above = above.map(groups.rewrite)
    at = select.group[0].at if select.group else select.at
    made = groups.relation(relation, at)
    if above.having:
        with said_at(scope.text.place(above.having[0].at)):
            made = made.where(all_of([each.sql for each in above.having]))
    return made, above


def _keys(scope: Scope, window: InFrom | None, select: Select, above: Above) -> tuple[tuple[Key, ...], Window | None]:
    """The keys of GROUP BY: columns, expressions, numbers and names of what SELECT gives; and its window."""
    said = next((window_call(each, scope) for each in select.group or () if is_window_call(each)), None)
    names = {each.name.lower(): each.sql for each in reversed(above.items)}
    texts: dict[tuple[str, ...], str] = {}
    used = False
    for piece in select.group or ():
        if is_window_call(piece):
            continue
        sql = _key_text(scope, piece, above, names)
        if (window or said) and is_window_column(sql):
            used = True
        else:
            texts.setdefault(canonical(sql), sql)
    if window is not None:
        if said is not None:
            raise scope.text.error(window.at, "a window in FROM and one in GROUP BY; expected one of them")
        window.check(list(texts.values()), used, scope)
        said = window.window(scope)
    shown = {canonical(each.sql): each.name for each in reversed(above.items)}
    keys: list[Key] = []
    for number, (key, sql) in enumerate(texts.items(), 1):
        found = path(sql)
        name = shown.get(key) or (found[-1] if found else f"key_{number}")
        keys.append(Key(sql, free(name, [each.name for each in keys], f"key_{number}")))
    return tuple(keys), said


def _key_text(scope: Scope, piece: Piece, above: Above, names: dict[str, str]) -> str:
    if not piece.sql.isdigit():
        return scope.resolve(piece, fallback=lambda name, _: names.get(name.lower()))
    if not 1 <= int(piece.sql) <= len(above.items):
        raise scope.text.error(piece.at, f"GROUP BY {piece.sql}: there are {len(above.items)} columns")
    return above.items[int(piece.sql) - 1].sql


def _places(found: list[Word], key: tuple[str, ...]) -> Iterable[tuple[int, int]]:
    """Where an expression stands in another as a part of its own: alone, between brackets or commas, or in one piece anyway."""
    said = [word.text or (word.value.upper() if word.is_name else f"'{word.value}'") for word in found]
    for start in range(len(said) - len(key) + 1):
        end = start + len(key)
        if tuple(said[start:end]) != key:
            continue
        before, after = said[start - 1] if start else "", said[end] if end < len(said) else ""
        dotted = all(each.is_name if at % 2 == 0 else each.text == "." for at, each in enumerate(found[start:end]))
        is_call = found[start].is_name and found[start].text != "NOT" and closing(found, start + 1) == end - 1
        called = is_call or closing(found, start) == end - 1
        apart = before in ("", "(", ",") and after in ("", ")", ",")
        if before != "." and (apart or called or (dotted and after != "(")):
            yield found[start].start, found[end - 1].end
