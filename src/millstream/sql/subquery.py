"""Conditions with a query in them: IN and EXISTS become semi joins, NOT EXISTS an anti join."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from millstream.relation.relation import Relation
from millstream.relation.source_location import said_at
from millstream.sql.ast import Query, Select
from millstream.sql.calls import closing
from millstream.sql.joins import SIDES, equality_text, equation
from millstream.sql.parse import parse_query
from millstream.sql.scope import Scope, path
from millstream.sql.tokens import Piece, Text, part, unwrap, words

if TYPE_CHECKING:
    from millstream.sql.query import Compiler

_CORRELATED = "EXISTS (SELECT 1 FROM t WHERE t.id = s.id AND …)"


@dataclass(frozen=True, slots=True)
class Subquery:
    """A condition: whether there is a row of a query that fits, one with this value for IN."""

    how: Literal["semi", "anti"]
    query: Piece
    value: Piece | None
    at: int


def split_subqueries(where: Sequence[Piece], text: Text) -> tuple[list[Piece], list[Subquery]]:
    """Conditions without and with a query in them."""
    plain, found = [], []
    for condition in where:
        subquery = _subquery(unwrap(condition), text)
        if subquery is None:
            plain.append(condition)
        else:
            found.append(subquery)
    return plain, found


def _subquery(piece: Piece, text: Text) -> Subquery | None:
    found = words(piece.sql)
    said = [word.text for word in found]
    start = next((at for at in range(len(said) - 1) if said[at] == "(" and said[at + 1] in ("SELECT", "WITH")), None)
    if start is None or closing(found, start) != len(found) - 1:
        return None
    query = part(piece, found[start + 1 : -1])
    if said[:start] == ["EXISTS"]:
        return Subquery("semi", query, None, piece.at)
    if said[:start] == ["NOT", "EXISTS"]:
        return Subquery("anti", query, None, piece.at)
    if said[start - 1 : start] != ["IN"] or "OR" in said[: start - 1]:
        return None
    if "NOT" in (said[start - 2], said[0]):
        hint = f"NOT IN is never true once the query gives a null; write NOT {_CORRELATED}"
        raise text.error(piece.at, "NOT IN (SELECT …) is not taken", hint)
    return Subquery("semi", query, part(piece, found[: start - 1]), piece.at)


def subquery_join(compiler: Compiler, relation: Relation, scope: Scope, each: Subquery) -> Relation:
    """The rows of a relation that have, or have not, a partner in a query."""
    query = parse_query(scope.text, each.query)
    if each.value is not None:
        right = compiler.query(query, ("value",) if _is_nameless(query) else ())
        if len(right.columns) != 1:
            message = f"IN (SELECT …): expected one column; found {len(right.columns)}"
            raise scope.text.error(each.query.at, message, "EXISTS (SELECT 1 FROM t WHERE t.a = s.a AND t.b = s.b)")
        pairs = [(scope.resolve(each.value), right.columns[0])]
    else:
        right, pairs = _exists(compiler, query, scope, each)
    with said_at(scope.text.place(each.at)):
        left, right = (given.alias(name) for given, name in zip((relation, right), SIDES, strict=True))
        return left.join(right, [equality_text(relation, right, *pair) for pair in pairs], each.how)


def _is_nameless(query: Query) -> bool:
    first = query.parts[0]
    if not isinstance(first, Select) or len(first.items) != 1:
        return False
    (item,) = first.items
    return item.name is None and item.star is None and path(item.piece.sql) is None


def _exists(compiler: Compiler, query: Query, outer: Scope, each: Subquery) -> tuple[Relation, list[tuple[str, str]]]:
    """The rows of the query without what it says of the outer rows, and that as equalities: of outer and of inner rows."""
    select = query.parts[0]
    whole = isinstance(select, Select) and not (select.group or select.having or select.qualify or query.ctes)
    if len(query.parts) > 1 or not isinstance(select, Select) or not whole or query.limit is not None:
        message = "EXISTS with more than FROM and WHERE in it"
        raise outer.text.error(each.at, message, f"put the query into a view or a CTE: {_CORRELATED}")
    source, _ = compiler.source(select, of_groups=False)
    inner, pairs = [], []
    for condition in source.where:
        if _subquery(unwrap(condition), outer.text) or _of(condition, source.scope, outer) == {"inner"}:
            inner.append(condition)
            continue
        sides = equation(condition)
        whose = [_of(side, source.scope, outer) for side in sides or ()]
        if sides and whose in ([{"inner"}, {"outer"}], [{"outer"}, {"inner"}]):
            here, there = sides if whose[0] == {"inner"} else sides[::-1]
            pairs.append((outer.resolve(there), source.scope.resolve(here)))
        else:
            message = f"EXISTS: `{condition.sql}` compares with the outer query otherwise than by ="
            raise outer.text.error(condition.at, message, f"only equalities: {_CORRELATED}")
    if not pairs:
        raise outer.text.error(each.at, "EXISTS without an equality with the outer query", _CORRELATED)
    return compiler.where(source.relation, source.scope, inner), pairs


def _of(piece: Piece, inner: Scope, outer: Scope) -> set[str]:
    """Whose columns an expression uses; the inner query is asked first."""
    found = set()
    for names, at in inner.names(piece):
        known = inner.find(names, at) is not None
        if not known and outer.find(names, at) is None:
            inner.resolve(piece)  # which refuses it
        found.add("inner" if known else "outer")
    return found or {"inner"}
