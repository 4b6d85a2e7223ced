"""Window functions: cut out of the expressions above them, added by ``over``, and turned into ``top`` where a number is bounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from millstream.relation import expression
from millstream.relation.nodes import Look, Node, Over, Select
from millstream.relation.relation import Relation
from millstream.relation.source_location import said_at
from millstream.sql.calls import Spec, Untaken, looks, spec
from millstream.sql.scope import names_in
from millstream.sql.select_list import Above
from millstream.sql.tokens import Piece, Text, canonical, depths, edit, split, unwrap, words

_RANKINGS = ("row_number", "rank", "dense_rank")
_SEEN = ("lag", "lead")
_TIES: dict[str, Literal["rank", "dense_rank"] | None] = {
    "row_number": None,
    "rank": "rank",
    "dense_rank": "dense_rank",
}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "==": "=="}


@dataclass(slots=True)
class Looks:
    """Window functions while the expressions above them are read, by their words; those of one OVER are together."""

    text: Text
    columns: tuple[str, ...]
    found: dict[tuple[str, ...], dict[tuple[str, ...], tuple[str, str]]] = field(default_factory=dict)
    specs: dict[tuple[str, ...], tuple[Spec, int]] = field(default_factory=dict)

    def name(self, sql: str, name: str, at: int) -> None:
        """Let a window function go by the name that its column has, if the expression is nothing else and the name is free."""
        calls = looks(sql)
        if len(calls) == 1 and (calls[0].start, calls[0].end) == (0, len(sql)) and name.lower() not in self._taken():
            self._add(calls[0].head, calls[0].over or "", at, name)

    def rewrite(self, sql: str, at: int) -> str:
        """An expression over what ``over`` adds."""
        edits: list[tuple[int, int, str]] = []
        for call in looks(sql):
            if edits and call.start < edits[-1][1]:
                hint = "compute the inner one in a query in brackets"
                raise self.text.error(at, f"a window function inside another: {call.head}", hint)
            edits.append((call.start, call.end, expression.quote(self._add(call.head, call.over or "", at))))
        return edit(sql, edits)

    def relation(self, below: Relation, last: set[tuple[str, ...]]) -> Relation:
        """The rows with all that was found; what is in ``last`` is added last, so that it can be bounded."""
        for key in sorted(self.found, key=lambda key: key in last):
            said, at = self.specs[key]
            with said_at(self.text.place(at)):
                over = below.over(said.partition, said.order, said.frame)
                below = over.add(**dict(self.found[key].values()))
        return below

    def keys(self, sql: str) -> set[tuple[str, ...]]:
        """Which OVERs an expression has."""
        return {canonical(call.over or "") for call in looks(sql)}

    def _add(self, head: str, over: str, at: int, name: str = "") -> str:
        key, function = canonical(over), words(head)[0].value.lower()
        if function not in (*_SEEN, *_RANKINGS) and function not in expression.AGGREGATES:
            hint = f"there are {', '.join((*_RANKINGS, *_SEEN))}, and aggregates"
            raise self.text.error(at, f"{function}(…) OVER is not taken", hint)
        if key not in self.specs:
            try:
                self.specs[key] = spec(over), at
            except Untaken as error:
                raise self.text.error(at, f"OVER ({over}): {error}") from error
        known = self.found.setdefault(key, {})
        if canonical(head) not in known:
            known[canonical(head)] = name or self._number(), head
        return known[canonical(head)][0]

    def _taken(self) -> set[str]:
        names = [name for known in self.found.values() for name, _ in known.values()]
        return {name.lower() for name in (*self.columns, *names)}

    def _number(self) -> str:
        taken = self._taken()
        return next(name for number in range(1, len(taken) + 2) if (name := f"look_{number}") not in taken)


def looked(relation: Relation, text: Text, above: Above) -> tuple[Relation, Above]:
    """The rows with what window functions say of them, those that QUALIFY keeps, and the expressions above them."""
    found = Looks(text, relation.columns)
    for each in above.items:
        found.name(each.sql, each.name, each.at)
    last = {key for each in above.qualify for key in found.keys(each.sql)}
    above = above.map(found.rewrite)
    relation = found.relation(relation, last)
    for index, each in enumerate(above.qualify):
        others = (*above.items, *above.order, *above.qualify[:index], *above.qualify[index + 1 :])
        shown = {word.lower() for other in others for word in canonical(other.sql)}
        with said_at(text.place(each.at)):
            relation = keep(relation, each.sql, shown.__contains__)
    return relation, above


def keep(relation: Relation, condition: str, is_used: Callable[[str], bool]) -> Relation:
    """The rows for which a condition is true: the first ones where it bounds their number."""
    found = bounded(relation, condition, is_used)
    if found is None:
        return relation.where(condition)
    made, again = found
    return made.where(condition) if again else made


def bounded(relation: Relation, condition: str, is_used: Callable[[str], bool]) -> tuple[Relation, bool] | None:
    """The first rows, where a condition over the rows of ``over`` bounds their number; None if it does no such thing.

    The number itself is computed only if ``is_used`` says so. The second value is whether the condition is still to be applied.
    """
    said = _bound(condition)
    if said is None:
        return None
    name, count, exact = said
    node = relation.node
    select = node if isinstance(node, Select) else None
    over = select.input if select else node
    inner = name
    if select:
        inner = next(
            (expression.plain_column(each.expression) or "" for each in select.columns if each.name.lower() == name), ""
        )
    if not isinstance(over, Over):
        return None
    look = next((each for each in over.looks if each.name.lower() == inner.lower()), None)
    if look is None or look.function not in _RANKINGS:
        return None
    ranks = [each for each in over.looks if each.function in _RANKINGS]
    others = tuple(each for each in over.looks if each.function not in _RANKINGS)
    exact = exact and count > 1
    computed = (
        [each.expression for each in select.columns if expression.plain_column(each.expression) is None]
        if select
        else []
    )
    used = (
        exact
        or is_used(name)
        or any(names[0].lower() == look.name.lower() for sql in computed for names, _ in names_in(sql))
    )
    kept = tuple(each for each in ranks if each is not look or used)
    below = Relation(replace(over, looks=others) if others else over.input)
    order = ", ".join(f"{each.expression} DESC" if each.descending else each.expression for each in over.order)
    ties = _TIES[look.function]
    made = below.top(count, order, over.partition, **({"ties": ties} if ties else {})).node
    if kept:
        made = Over(made, over.partition, over.order, kept, over.place)
    return Relation(_columns(relation, made, look, kept)), exact


def _columns(relation: Relation, made: Node, look: Look, kept: tuple[Look, ...]) -> Node:
    """The same columns in the same order as before, without a number that is not used."""
    node = relation.node
    if isinstance(node, Select):
        gone = () if look in kept else (look.name.lower(),)
        columns = tuple(
            each for each in node.columns if (expression.plain_column(each.expression) or "").lower() not in gone
        )
        return replace(node, input=made, columns=columns)
    if look in kept and Relation(made).columns != relation.columns:
        return Relation(made).select(*map(expression.quote, relation.columns)).node
    return made


def _bound(condition: str) -> tuple[str, int, bool] | None:
    """Read ``n <= 3``, ``3 > n`` or ``n = 1``: the name in lower case, how many rows, and whether only the last of them counts."""
    piece = unwrap(Piece(condition, 0))
    found = words(piece.sql)
    signs = [word.text for word, depth in zip(found, depths(found), strict=True) if not depth and word.text in _TURNED]
    sides = [unwrap(each).sql for each in split(piece, tuple(_TURNED))]
    if len(signs) != 1:
        return None
    (sign,) = signs
    if sides[0].isdigit():
        sides, sign = sides[::-1], _TURNED[sign]
    name = expression.plain_column(sides[0]) if sign in ("<", "<=", "=", "==") and sides[1].isdigit() else None
    count = int(sides[1]) - (sign == "<") if name else 0
    return (name.lower(), count, sign in ("=", "==")) if name and count >= 1 else None
