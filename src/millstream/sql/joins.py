"""FROM with its joins: equalities are taken out of the conditions, times that bound each other become a span, the rest is a WHERE.

Where both sides have a column of one name, that of the right is renamed below the join, ``id`` of ``b`` to ``b_id``. The scope
knows it by the name that the query uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.properties import event_time, is_stream
from millstream.relation.relation import Relation
from millstream.relation.source_location import said_at
from millstream.sql.ast import Exploded, Joined
from millstream.sql.interval import Bounds, both, bounds
from millstream.sql.scope import Entry, Scope, names_in, path, query_inside
from millstream.sql.tokens import Piece, canonical, conditions, depths, split, unwrap, words

_LOOSE = {"<", "<=", ">", ">=", "<>", "!=", "<=>", "OR", "NOT", "IS", "IN", "LIKE", "ILIKE", "RLIKE", "BETWEEN"}
_CLOCKS = {("PROCTIME", "(", ")"), ("CURRENT_TIMESTAMP",), ("CURRENT_TIMESTAMP", "(", ")"), ("NOW", "(", ")")}
_EQUAL_HINT = (
    "write what rows have in common: ON a.id = b.id, not <=>; other conditions may stand beside it. A query of one row is joined by a"
    " column `1 AS one` of both"
)
_OTHER_HINT = (
    "put a condition of the side that may be null into WHERE of a query in brackets that is joined; where it is of the other side or of both,"
    " make it an inner join, or a CASE in SELECT"
)
SIDES = ("left_side", "right_side")
"""What the sides of a join are called where a column is of both."""


@dataclass(frozen=True, slots=True)
class From:
    """What FROM gives: a relation, what names mean over it, and the conditions of WHERE that no join has taken."""

    relation: Relation
    scope: Scope
    where: tuple[Piece, ...]


def join(at: From, right: Relation, entry: Entry, how: Joined, offered: Sequence[Piece]) -> From:
    """One more join. It may take conditions of WHERE that are ``offered``: any for a comma, else only those of time."""
    return _Join(at, right, entry, how, offered).made()


def connects(at: From, right: Relation, entry: Entry, how: Joined) -> bool:
    """Whether WHERE has an equality between what is there and a table behind a comma."""
    made = _Join(at, right, entry, how, at.where)
    return any(made.equality(each) for each in made.offered)


def explode(at: From, each: Exploded) -> From:
    """One more LATERAL VIEW explode."""
    scope, relation = at.scope, at.relation
    name = free(each.name, relation.columns, each.alias)
    with said_at(scope.text.place(each.at)):
        relation = relation.explode(scope.resolve(each.array), expression.quote(name))
    entry = Entry(each.alias, {each.name.lower(): (each.name, name)})
    return From(relation, replace(scope, entries=(*scope.entries, entry)), at.where)


def free(name: str, taken: Sequence[str], alias: str = "") -> str:
    """A name that is not taken: itself, else with the alias before it, else with a number after it."""
    lower = {each.lower() for each in taken}
    if name.lower() not in lower:
        return name
    longer = f"{alias or 'right'}_{name}"
    number = 2
    while longer.lower() in lower:
        longer, number = f"{alias or 'right'}_{name}_{number}", number + 1
    return longer


class _Join:
    """One join while it is made."""

    def __init__(self, at: From, right: Relation, entry: Entry, how: Joined, offered: Sequence[Piece]) -> None:
        self.text, self.where, self.said = at.scope.text, at.where, how
        self.relations = [at.relation, right]
        self.entry = entry.bare()
        left = replace(at.scope, entries=tuple(each.bare() for each in at.scope.entries))
        self.scopes = left, Scope(at.scope.text, (self.entry,))
        self.conditions = conditions(how.on) if how.on else []
        plain = [each for each in offered if query_inside(each) is None and how.how == "inner"]
        self.offered = [each for each in plain if self._is_of_both(each)]
        self.using = [name.lower() for name in how.using]
        if how.natural:
            self.using = [name for name in self.entry.columns if any(name in each.columns for each in left.entries)]

    def made(self) -> From:
        """The join, and what is left of the conditions."""
        said, how = self.said, self.said.how
        for each in self.conditions:
            self._sides(each)  # refuses what is not clear
        within, timed = self._within()
        rest = [each for each in self.conditions if each not in timed]
        loose = [each for each in self.offered if each not in timed] if said.loose else []
        pairs = {each: pair for each in (*rest, *loose) if (pair := self.equality(each)) is not None}
        if not pairs and not self.using:
            name = self.entry.alias or "a query"
            raise self.text.error(said.at, f"a join with {name} without an equality", _EQUAL_HINT)
        after = [each for each in rest if each not in pairs and not self._below(each)]
        merged = self._merged(list(pairs.values()))
        if how not in ("semi", "anti"):
            self._rename(merged)
        with said_at(self.text.place(said.at)):
            on = [expression.quote(merged[name]) for name in self.using]
            on += [self._on(pair) for pair in pairs.values()]
            as_of = self._as_of()
            left, right = (each.alias(name) for each, name in zip(self.relations, SIDES, strict=True))
            relation = left.join(
                right, on, how, within=within, as_of=as_of, latest=as_of is None and said.table.as_of is not None
            )
        used = {*timed, *pairs}
        where = (*after, *(each for each in self.where if each not in used))
        return From(replace(relation, name=""), self._scope(merged), where)

    def _is_of_both(self, condition: Piece) -> bool:
        """Whether a condition of WHERE is about both sides and nobody else; one that is not clear is left to WHERE."""
        try:
            return self._sides(condition) == {0, 1}
        except PlanError:
            return False

    def _sides(self, piece: Piece) -> set[int]:
        """Whose columns an expression uses; refused where nobody or both have one of that name."""
        found = set()
        for names, at in self.scopes[0].names(piece):
            counts = {side: known[0] for side in (0, 1) if (known := self.scopes[side].find(names, at)) is not None}
            if not counts:
                replace(self.scopes[0], entries=(*self.scopes[0].entries, self.entry)).resolve(piece)
            if len(counts) > 1 and counts[0] == counts[1]:
                hint = f"say whose: {self.entry.alias or 'alias'}.{names[0]}, or that of another"
                raise self.text.error(at, f"both sides of the join have a column {names[0]}", hint)
            found.add(max(counts, key=lambda side: counts[side]))
        return found

    def _within(self) -> tuple[tuple[timedelta, timedelta] | None, list[Piece]]:
        """The span that conditions leave between the times of two streams, and those conditions."""
        times = [event_time(each.node) if is_stream(each.node) else None for each in self.relations]
        if None in times or self.said.table.as_of is not None:
            return None, []

        def side(piece: Piece) -> int | None:
            names = path(piece.sql) or ()
            for each in (0, 1) if names else ():
                found = self.scopes[each].find(names, piece.at)
                if found is not None and found == (len(names), times[each]):
                    return each
            return None

        found = {each: known for each in (*self.conditions, *self.offered) if (known := bounds(each, side)) is not None}
        total: Bounds | None = (None, None)
        for each in found.values():
            total = both(total, each)
        if total is None or total[0] is None or total[1] is None:
            return None, []
        return (total[0], total[1]), list(found)

    def equality(self, condition: Piece) -> tuple[Piece, Piece] | None:
        """The two sides of an equality of an expression over the left with one over the right."""
        sides = equation(condition)
        if sides is None:
            return None
        one, other = sides
        found_sides = self._sides(one), self._sides(other)
        if found_sides == ({0}, {1}):
            return one, other
        return (other, one) if found_sides == ({1}, {0}) else None

    def _below(self, condition: Piece) -> bool:
        """Put a condition of one side below the join where that says the same; False if it belongs after the join."""
        how, sides = self.said.how, self._sides(condition)
        if how == "inner":
            return False
        allowed = {"left": [{1}], "right": [{0}], "semi": [{0}, {1}], "anti": [{1}], "full": []}[how]
        if sides not in allowed:
            name = f"{how} join" if how in ("semi", "anti") else f"{how} outer join"
            message = f"a condition of a {name} that is no equality: `{condition.sql}`"
            raise self.text.error(condition.at, message, _OTHER_HINT)
        (side,) = sides
        with said_at(self.text.place(condition.at)):
            self.relations[side] = self.relations[side].where(self.scopes[side].resolve(condition))
        return True

    def _merged(self, pairs: list[tuple[Piece, Piece]]) -> dict[str, str]:
        """Columns of the right, in lower case, that are one with a column of the left: by USING, or by = of an inner join."""
        made = {name: self._column(0, name) for name in self.using}
        for one, other in pairs if self.said.how == "inner" else ():
            left, right = (
                expression.plain_column(scope.resolve(each))
                for scope, each in zip(self.scopes, (one, other), strict=True)
            )
            if left and right and left.lower() == right.lower():
                made[right.lower()] = left
        return made

    def _column(self, side: int, name: str) -> str:
        found = self.scopes[side].find((name,), self.said.at)
        if found is None or name not in self.entry.columns:
            raise self.text.error(self.said.at, f"USING ({name}): expected a column that both sides have", _EQUAL_HINT)
        return found[1]

    def _rename(self, merged: dict[str, str]) -> None:
        """Give columns of the right another name where the left has one of the same, or USING says they are one."""
        left, right = self.relations
        taken, names = [*left.columns, *right.columns], {}
        for name in right.columns:
            if name.lower() not in merged and name.lower() in {each.lower() for each in left.columns}:
                names[name.lower()] = free(name, taken, self.entry.alias)
                taken.append(names[name.lower()])
        if not names:
            return
        quoted = [(expression.quote(name), names.get(name.lower())) for name in right.columns]
        with said_at(self.text.place(self.said.table.at)):
            self.relations[1] = right.select(
                *(f"{name} AS {expression.quote(new)}" if new else name for name, new in quoted)
            )
        self.entry = self.entry.renamed(names)
        self.scopes = self.scopes[0], Scope(self.text, (self.entry,))

    def _on(self, pair: tuple[Piece, Piece]) -> str:
        """An equality as the join takes it, with the sides named where a column is of both."""
        texts = (scope.resolve(each) for scope, each in zip(self.scopes, pair, strict=True))
        return equality_text(self.relations[0], self.relations[1], *texts)

    def _as_of(self) -> str | None:
        time = self.said.table.as_of
        if time is None or canonical(time.sql) in _CLOCKS:
            return None
        column = expression.plain_column(self.scopes[0].resolve(time))
        if column is None:
            raise self.text.error(time.at, f"FOR SYSTEM_TIME AS OF {time.sql}: expected the time column of the stream")
        return column

    def _scope(self, merged: dict[str, str]) -> Scope:
        """What names mean after the join. A column of USING that may be null on one side is known only without an alias."""
        scope, how = self.scopes[0], self.said.how
        if how in ("semi", "anti"):
            return scope
        entry = self.entry.renamed(merged)
        entries = scope.entries
        if how in ("left", "full"):
            entry = entry.without(merged)
        if how in ("right", "full"):
            entries = tuple(each.without(merged) for each in entries)
        both_names = {name: merged[name] for name in self.using}
        return replace(scope, entries=(*entries, entry), merged={**scope.merged, **both_names})


def equation(condition: Piece) -> tuple[Piece, Piece] | None:
    """The two sides of a condition that is one equality; None if it is anything else."""
    condition = unwrap(condition)
    found = words(condition.sql)
    outside = {word.text for word, depth in zip(found, depths(found), strict=True) if not depth}
    sides = split(condition, ("=", "=="))
    return (sides[0], sides[1]) if len(sides) == 2 and not outside & _LOOSE else None


def equality_text(left: Relation, right: Relation, one: str, other: str) -> str:
    """An equality as a join takes it: the sides of its columns are named where one of them is of both."""
    plain = [(expression.plain_column(each) or "").lower() for each in (one, other)]
    texts = [one, other]
    for side, relation in enumerate((right, left)):
        columns = {name.lower() for name in relation.columns}
        if plain[0] != plain[1] and any(names[0].lower() in columns for names, _ in names_in(texts[side])):
            texts[side] = expression.replace_columns(texts[side], _qualify(SIDES[side]))
    return " = ".join(texts)


def _qualify(alias: str) -> Callable[[tuple[str, ...], int], tuple[int, str]]:
    return lambda names, _: (1, f"{alias}.{expression.quote(names[0])}")
