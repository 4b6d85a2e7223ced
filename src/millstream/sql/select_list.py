"""The expressions above the rows of a SELECT: what it gives, HAVING, QUALIFY and ORDER BY, each over the columns of the relation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from millstream.relation import expression
from millstream.relation.relation import Relation
from millstream.relation.source_location import said_at
from millstream.sql.ast import Item, Select
from millstream.sql.calls import NULLS_HINT, Untaken, aggregates, closing, cut_order, name_windows
from millstream.sql.joins import free
from millstream.sql.scope import Scope, path
from millstream.sql.tokens import Piece, canonical, conditions, part, words


@dataclass(frozen=True, slots=True)
class Expr:
    """An expression and where it was written; the name of its column, or how an order goes on (`` DESC``)."""

    sql: str
    at: int
    name: str = ""
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Above:
    """All expressions above the rows."""

    items: tuple[Expr, ...]
    having: tuple[Expr, ...]
    qualify: tuple[Expr, ...]
    order: tuple[Expr, ...]

    def __iter__(self) -> Iterator[Expr]:
        yield from (*self.items, *self.having, *self.qualify, *self.order)

    def map(self, rewrite: Callable[[str, int], str]) -> Above:
        """The same with other texts."""

        def mapped(some: tuple[Expr, ...]) -> tuple[Expr, ...]:
            return tuple(replace(each, sql=rewrite(each.sql, each.at)) for each in some)

        return Above(mapped(self.items), mapped(self.having), mapped(self.qualify), mapped(self.order))

    def sorted_names(self) -> str | None:
        """The order by the names of columns that the SELECT gives; None if it goes by anything else."""
        names = {canonical(each.sql): each.name for each in reversed(self.items)}
        found = [names.get(canonical(each.sql)) for each in self.order]
        if None in found:
            return None
        return ", ".join(
            f"{expression.quote(str(name))}{each.suffix}" for name, each in zip(found, self.order, strict=True)
        )

    def sorted(self) -> str:
        """The order by the columns of the rows."""
        return ", ".join(f"{each.sql}{each.suffix}" for each in self.order)


def read_above(
    relation: Relation, scope: Scope, select: Select, order: tuple[Piece, ...], names: tuple[str, ...]
) -> tuple[Relation, Above]:
    """Read the expressions above a relation; it has one more column for each ``explode`` among them."""
    reader = _Reader(relation, scope, {name: each.sql for name, each in select.windows.items()})
    for item in select.items:
        reader.item(item)
    items = reader.items
    if names and len(names) != len(items):
        message = f"{len(items)} columns where {len(names)} are expected: {', '.join(names)}"
        raise scope.text.error(select.at, message)
    if names:
        items = [replace(each, name=name) for each, name in zip(items, names, strict=True)]
    if nameless := next((each for each in items if not each.name), None):
        raise scope.text.error(nameless.at, f"`{nameless.sql}` has no name", f"write {nameless.sql} AS name")
    aliases = {each.name.lower(): each.sql for each in reversed(items)}
    having = tuple(reader.expr(each, aliases) for each in (conditions(select.having) if select.having else ()))
    of_groups = select.group is not None or any(aggregates(each.sql) for each in items)
    chosen = conditions(select.qualify) if select.qualify else ()
    qualify = tuple(reader.expr(each, aliases, columns_first=not of_groups) for each in chosen)
    sorts = tuple(reader.order(each, aliases, items) for each in order)
    return reader.relation, Above(tuple(items), having, qualify, sorts)


class _Reader:
    """The items of a SELECT, one after the other."""

    def __init__(self, relation: Relation, scope: Scope, windows: dict[str, str]) -> None:
        self.relation, self.scope, self.windows = relation, scope, windows
        self.items: list[Expr] = []

    def item(self, item: Item) -> None:
        at = item.piece.at
        if item.star is not None:
            self._star(item.star, at)
            return
        piece = Piece(name_windows(item.piece.sql, self.windows), at)
        called = words(piece.sql)
        if called[0].text.lower() in expression.GENERATORS and closing(called, 1) == len(called) - 1:
            self._explode(item, part(piece, called[2:-1]), called[0].text)
            return
        aliases = {each.name.lower(): each.sql for each in self.items}
        sql = self.scope.resolve(piece, fallback=lambda name, _: aliases.get(name.lower()))
        self.items.append(Expr(sql, at, item.name or self._own_name(piece)))

    def _own_name(self, piece: Piece) -> str:
        """The name of a column or a field, or of the function that is called; nothing for other expressions."""
        names, called = path(piece.sql), words(piece.sql)
        if names is not None:
            return self.scope.own_name(names) or names[-1]
        is_call = called[0].is_name and closing(called, 1) == len(called) - 1
        return called[0].value.lower() if is_call else ""

    def _star(self, alias: str, at: int) -> None:
        taken = [each.name for each in self.items]
        own = [(name, name) for name in self.relation.columns]
        for name, column in self.scope.star(alias, at) if alias else own:
            self.items.append(Expr(expression.quote(column), at, free(name, taken, alias) if alias else name))

    def _explode(self, item: Item, array: Piece, function: str) -> None:
        at, text = item.piece.at, self.scope.text
        if function != "EXPLODE":
            raise text.error(
                at, f"{function.lower()} makes rows in a way that is not taken", "explode(array) AS element"
            )
        if item.name is None:
            raise text.error(at, f"`{item.piece.sql}` has no name", f"write {item.piece.sql} AS element")
        name = free(item.name, self.relation.columns, "element")
        with said_at(text.place(at)):
            self.relation = self.relation.explode(self.scope.resolve(array), expression.quote(name))
        self.items.append(Expr(expression.quote(name), at, item.name))

    def expr(self, piece: Piece, aliases: dict[str, str], columns_first: bool = False) -> Expr:
        """An expression that may use the names of SELECT, except inside of aggregates; before columns of one name, or after."""
        named = Piece(name_windows(piece.sql, self.windows), piece.at)
        inside = aggregates(named.sql)

        def alias(name: str, start: int) -> str | None:
            return None if any(call.start <= start < call.end for call in inside) else aliases.get(name.lower())

        if columns_first:
            return Expr(self.scope.resolve(named, fallback=alias), piece.at)
        return Expr(self.scope.resolve(named, prefer=alias), piece.at)

    def order(self, piece: Piece, aliases: dict[str, str], items: list[Expr]) -> Expr:
        """One expression of ORDER BY: a column of SELECT by name or number, or anything over the rows."""
        body, suffix = ordering(piece, self.scope)
        if body.sql.isdigit():
            if not 1 <= int(body.sql) <= len(items):
                raise self.scope.text.error(piece.at, f"ORDER BY {body.sql}: there are {len(items)} columns")
            return Expr(items[int(body.sql) - 1].sql, piece.at, suffix=suffix)
        return replace(self.expr(body, aliases), suffix=suffix)


def ordering(piece: Piece, scope: Scope) -> tuple[Piece, str]:
    """An expression of ORDER BY, and `` DESC`` if it descends."""
    try:
        return cut_order(piece)
    except Untaken as error:
        raise scope.text.error(piece.at, f"ORDER BY … {error}", NULLS_HINT) from error
