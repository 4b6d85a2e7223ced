"""The makers of rows while a chain is built: feeds, kernels and joins, what readers want of each, and where an expression is computed.

An expression is a column of the feed wherever that gives the same. Where it is not, it is computed from the columns that leave a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from millstream.plan.chain import Asked, Port, WindowBound
from millstream.plan.spec import Spec
from millstream.relation import expression
from millstream.relation.nodes import Join, Source, output_columns
from millstream.relation.predicate import is_arithmetic, kinds_of, never_fails, never_null


@dataclass
class Bounds:
    """The bounds of windows side by side, by the expressions that they are, wherever these go."""

    known: dict[str, WindowBound] = field(default_factory=dict)

    def follow(self, sql: str, columns: Mapping[str, str]) -> str:
        """Put expressions in the place of columns, and know the bounds in it as they are then."""
        for each in [each for text, each in self.known.items() if text in sql]:
            moved = each.over(columns)
            self.known[moved.expression] = moved
        return expression.substitute(sql, columns)


Guard: TypeAlias = tuple[str, ...]
"""Conditions under which an expression is asked for, in the order in which they are written."""

Wanted: TypeAlias = dict[tuple[str, Guard], str]


@dataclass
class Maker:
    """A maker of rows: a feed, or an operator whose ports are still being collected."""

    number: int
    stage: int
    source: Source | None = None
    """Set for a feed."""
    feed: Maker | None = None
    """Where expressions over its rows are computed: at the feed, before any kernel. None after an aggregate or a join."""
    sides: Sides | None = None
    """Set for a join."""
    spec: Spec | None = None
    inputs: tuple[int, ...] = ()
    key: tuple[str, ...] = ()
    expressions: dict[tuple[str, str], Asked] = field(default_factory=dict)
    """Of a feed: by text and guard."""
    ports: list[Port] = field(default_factory=list)
    retract: bool = False
    insert_only: bool = False
    hold: tuple[int | None, ...] = ()

    def column(self, sql: str, guard: Guard = (), written: str = "") -> str | None:
        """The column that holds this expression where the guard is true; None if it must be computed from the columns there are."""
        if self.feed is not None:
            return self.feed.ask(sql, guard, written or sql).name
        return self.sides.column(sql, guard) if self.sides is not None else expression.plain_column(sql)

    def ask(self, sql: str, guard: Guard, written: str) -> Asked:
        """An expression of a feed: one column for all readers that want it under the same guard; one that cannot fail has none."""
        assert self.source is not None  # noqa: S101
        total = never_fails(sql, kinds_of(self.source))
        condition = "" if total else never_null(guard)
        name = f"_c{len(self.expressions)}"
        return self.expressions.setdefault((sql, condition), Asked(name, sql, condition, written, total))

    def value(self, sql: str) -> str:
        """The expression over columns as they are called here."""
        if self.sides is None:
            return sql
        names = {name: self.sides.column(expression.quote(name)) for name in sorted(self.sides.used(sql))}
        return self.sides.windows.follow(sql, {name: column for name, column in names.items() if column})


@dataclass(frozen=True)
class Rows:
    """Rows on their way up a relation: their maker, what each column is there, and the conditions that rows must meet."""

    maker: Maker
    columns: Mapping[str, str]
    where: tuple[str, ...] = ()

    @property
    def condition(self) -> str:
        """All conditions as one that is never null."""
        return never_null(self.where)


@dataclass(frozen=True)
class Sides:
    """The two sides of a join, and what is wanted of each: expressions there, and their names in the join's rows."""

    node: Join
    rows: tuple[Rows, Rows]
    windows: Bounds
    wanted: tuple[Wanted, Wanted] = field(default_factory=lambda: ({}, {}))

    def used(self, sql: str) -> frozenset[str]:
        """The columns of the join that an expression uses."""
        return expression.check(sql, output_columns(self.node), "expression")

    def below(self, sql: str, only: int | None = None) -> tuple[int, str] | None:
        """The side on which an expression can be computed, and the expression there; None if on neither."""
        used = self.used(sql)
        for side, (rows, null) in enumerate(zip(self.rows, self.node.nullable, strict=True)):
            if only not in (None, side):
                continue
            columns = {name: rows.columns[name] for name in output_columns((self.node.left, self.node.right)[side])}
            for each in self.node.on:
                columns = {name: text for name, text in columns.items() if name.lower() != each.name.lower()}
                if each.name and not null:
                    here = expression.substitute((each.left, each.right)[side], rows.columns)
                    columns[each.name] = here
            if used <= columns.keys() and not (null and expression.plain_column(sql) is None):
                return side, self.windows.follow(sql, columns)
        return None

    def key(self, sql: str) -> str | None:
        """The key of the join that an expression is."""
        name = (expression.plain_column(sql) or "").lower()
        return next(
            (f"_k{index}" for index, each in enumerate(self.node.on) if name and each.name.lower() == name), None
        )

    def guarded(self, sql: str, side: int, guard: Guard) -> tuple[Guard, bool]:
        """What of a guard a side can tell, for an expression there; and whether that is all of it."""
        kinds, there, whole = kinds_of(self.node), [], True
        if never_fails(sql, kinds):
            return (), True
        for each in guard:
            found = self.below(each, side)
            if found is not None and (whole or never_fails(each, kinds)):
                there.append(found[1])
            else:
                whole = False
        return tuple(there), whole

    def column(self, sql: str, guard: Guard = ()) -> str | None:
        """The column of the join that holds an expression, asking the side for it.

        Where that side cannot tell all of the guard, the expression is computed after the join, if it can be computed there.
        """
        found = self.below(sql)
        if (key := self.key(sql)) is not None or found is None:
            return key
        side, text = found
        there, whole = self.guarded(sql, side, guard)
        if not whole and is_arithmetic(sql, kinds_of(self.node)):
            return None
        wanted = self.wanted[side]
        return wanted.setdefault((text, there), f"_{'lr'[side]}{len(wanted)}")

    def holds(self, sql: str, guard: Guard = ()) -> bool:
        """Whether an expression can be a column of the join."""
        found = self.below(sql)
        return self.key(sql) is not None or (found is not None and self.guarded(sql, found[0], guard)[1])


def held(sides: Sides, texts: Sequence[str], rows: Rows) -> bool:
    """Whether all that a view wants of a join can be columns of it."""
    return all(sides.holds(text, rows.where) for text in texts) and (not rows.where or sides.holds(rows.condition))
