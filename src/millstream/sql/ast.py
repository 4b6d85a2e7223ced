"""What a query is made of: clauses and expressions as pieces of its text. Nothing here knows what a name means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from millstream.relation.nodes import How
from millstream.relation.pattern import Shown, Skip
from millstream.sql.tokens import Piece

Kind: TypeAlias = Literal["tumble", "hop", "session", "slide"]


@dataclass(frozen=True, slots=True)
class Windowed:
    """A table function: rows with windows of ``spans`` over a time column."""

    kind: Kind
    table: Table
    column: Piece
    spans: tuple[Piece, ...]
    partition: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Deduplicated:
    """A table function: the first row of each ``partition`` by a time column, and the next one after a span."""

    table: Table
    column: Piece
    within: Piece | None
    partition: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Matched:
    """MATCH_RECOGNIZE: rows of a table in a pattern. What has a name has its offset too."""

    table: Table
    at: int
    pattern: Piece
    partition: tuple[Piece, ...] = ()
    order: tuple[Piece, ...] = ()
    measures: tuple[tuple[str, Piece], ...] = ()
    define: tuple[tuple[str, Piece], ...] = ()
    subset: tuple[tuple[str, tuple[str, ...], int], ...] = ()
    shown: Shown = "one"
    skip: Skip = field(default_factory=Skip)
    skip_at: int = 0
    within: Piece | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """What stands in FROM: a name, a query, windows, rows without repeats or in a pattern, under an alias."""

    what: str | Query | Windowed | Deduplicated | Matched
    alias: str
    at: int
    as_of: Piece | None = None
    columns: tuple[str, ...] = ()
    history: bool = False
    """Whether all that it has held is meant."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A table that is joined with what stands before it; a comma is an inner join without a condition."""

    table: Table
    how: How
    on: Piece | None
    using: tuple[str, ...]
    at: int
    natural: bool = False
    loose: bool = False
    """Whether its condition may stand in WHERE: a comma, or CROSS JOIN."""


@dataclass(frozen=True, slots=True)
class Exploded:
    """LATERAL VIEW explode(array) t AS name."""

    array: Piece
    alias: str
    name: str
    at: int


@dataclass(frozen=True, slots=True)
class Item:
    """An expression of SELECT and its name, if it has one; ``*`` and ``t.*`` have a star."""

    piece: Piece
    name: str | None = None
    star: str | None = None
    """The alias before the star; nothing for all."""


@dataclass(frozen=True, slots=True)
class Select:
    """One SELECT."""

    items: tuple[Item, ...]
    table: Table
    joins: tuple[Joined | Exploded, ...]
    at: int
    distinct: bool = False
    where: Piece | None = None
    group: tuple[Piece, ...] | None = None
    having: Piece | None = None
    qualify: Piece | None = None
    windows: dict[str, Piece] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Query:
    """A SELECT, or several with UNION between them, after WITH and before ORDER BY and LIMIT."""

    parts: tuple[Select | Query, ...]
    alls: tuple[bool, ...]
    """For each part after the first: whether it is UNION ALL."""
    at: int
    ctes: tuple[tuple[str, tuple[str, ...], Query], ...] = ()
    order: tuple[Piece, ...] = ()
    limit: int | None = None
