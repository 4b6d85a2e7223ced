"""What a name in a query means: which column of the relation below, whoever's alias stands before it.

``b.price`` is the column price of what is called b, and the field price of a column b where nothing of that name has it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.source_location import placed
from millstream.sql.tokens import Piece, Text, words

Fallback = Callable[[str, int], str | None]
"""What a plain name at an offset of its piece stands for where it is no column, such as the alias of an expression."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in FROM: its alias, and its columns, by their name in lower case, as it spells them and as the relation does."""

    alias: str
    columns: Mapping[str, tuple[str, str]]

    @classmethod
    def of(cls, alias: str, columns: Iterable[str]) -> Entry:
        """All columns under their own names."""
        return cls(alias, {name.lower(): (name, name) for name in columns})

    def renamed(self, names: Mapping[str, str]) -> Entry:
        """With other names in the relation, given by those in it before, in lower case."""
        found = {key: (own, names.get(there.lower(), there)) for key, (own, there) in self.columns.items()}
        return replace(self, columns=found)

    def bare(self) -> Entry:
        """Without what a record has besides its columns, which no join keeps."""
        return self.without(name for name in self.columns if name.startswith("_"))

    def without(self, names: Iterable[str]) -> Entry:
        """Without some columns."""
        gone = {name.lower() for name in names}
        return replace(self, columns={key: found for key, found in self.columns.items() if key not in gone})


@dataclass(frozen=True, slots=True)
class Scope:
    """Everything that names may mean in one SELECT."""

    text: Text
    entries: tuple[Entry, ...]
    merged: Mapping[str, str] = field(default_factory=dict)
    """Columns that belong to nobody alone, after USING: their names in lower case, and those in the relation."""
    fields: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """``window.start`` and its like, where GROUP BY has a window."""

    def find(self, names: tuple[str, ...], at: int) -> tuple[int, str] | None:
        """How many of the names say a column, and which of the relation's it is; None if they say none."""
        lower = [name.lower() for name in names]
        owners = [each for each in self.entries if each.alias.lower() == lower[0] and len(names) > 1]
        for owner in owners:
            if lower[1] in owner.columns:
                return 2, owner.columns[lower[1]][1]
        if len(names) > 1 and (known := self.fields.get((lower[0], lower[1]))):
            return 2, known
        found = {each.columns[lower[0]][1]: each for each in self.entries if lower[0] in each.columns}
        if lower[0] in self.merged:
            return 1, self.merged[lower[0]]
        if len(found) > 1:
            hint = "say whose: " + " or ".join(f"{each.alias}.{names[0]}" for each in found.values())
            raise self.text.error(at, f"{names[0]} is a column of several; which one is meant?", hint)
        if found:
            return 1, next(iter(found))
        if owners:
            raise self._unknown(f"{names[0]}.{names[1]}", lower[1], owners, at)
        return None

    def names(self, piece: Piece) -> list[tuple[tuple[str, ...], int]]:
        """The columns of an expression, each as its names and its offset; what cannot be read is refused at its place."""
        with placed(self.text.place(piece.at)):
            return [(names, piece.at + start) for names, start in names_in(piece.sql)]

    def own_name(self, names: tuple[str, ...]) -> str | None:
        """The spelling of a column where it comes from, if the names say a column and no field of one."""
        lower = [name.lower() for name in names]
        for each in self.entries:
            if len(names) == 2 and each.alias.lower() == lower[0] and lower[1] in each.columns:
                return each.columns[lower[1]][0]
            if len(names) == 1 and lower[0] in each.columns:
                return each.columns[lower[0]][0]
        return self.merged.get(lower[0]) if len(names) == 1 else None

    def resolve(self, piece: Piece, fallback: Fallback | None = None, prefer: Fallback | None = None) -> str:
        """An expression over the columns of the relation, its text otherwise as it was.

        A plain name is first what ``prefer`` says, then a column, then what ``fallback`` says.
        """

        if (at := query_inside(piece)) is not None:
            hint = (
                "join with the query instead, one that gives one row by a column `1 AS one` of both; WHERE takes x IN (SELECT …) and"
                " [NOT] EXISTS (SELECT …), joined by AND"
            )
            raise self.text.error(at, "a query inside an expression", hint)
        wrong: list[PlanError] = []

        def stand_in(names: tuple[str, ...], start: int) -> tuple[int, str] | None:
            if prefer and len(names) == 1 and (preferred := prefer(names[0], start)):
                return 1, preferred
            try:
                found = self.find(names, piece.at + start)
            except PlanError as error:
                wrong.append(error)
                return None
            if found is not None:
                return found[0], expression.quote(found[1])
            if fallback and len(names) == 1 and (stands := fallback(names[0], start)):
                return 1, stands
            wrong.append(self._unknown(".".join(names), names[0].lower(), self.entries, piece.at + start))
            return None

        with placed(self.text.place(piece.at)):
            made = expression.replace_columns(piece.sql, stand_in)
        if wrong:
            raise wrong[0]
        return made

    def star(self, alias: str, at: int) -> list[tuple[str, str]]:
        """What ``alias.*`` stands for: names and columns of the relation."""
        for each in self.entries:
            if each.alias.lower() == alias.lower():
                return [found for found in each.columns.values() if not found[1].startswith("_")]
        names = ", ".join(each.alias for each in self.entries if each.alias) or "nothing"
        raise self.text.error(at, f"{alias}.*: nothing is called {alias}; there is {names}")

    def _unknown(self, said: str, name: str, entries: Iterable[Entry], at: int) -> PlanError:
        known = {key: own for each in entries for key, (own, _) in each.columns.items()}
        known |= {key: key for key in self.merged}
        close = difflib.get_close_matches(name, known, 1)
        shown = ", ".join(own for key, own in known.items() if not key.startswith("_")) or "none"
        hint = f"did you mean {known[close[0]]}?" if close else ""
        return self.text.error(at, f"no column {said}; there are {shown}", hint)


def query_inside(piece: Piece) -> int | None:
    """The offset of a query in brackets inside of an expression; None if there is none."""
    said = words(piece.sql)
    found = [word.start for before, word in pairwise(said) if before.text == "(" and word.text in ("SELECT", "WITH")]
    return piece.at + found[0] if found else None


def names_in(sql: str) -> list[tuple[tuple[str, ...], int]]:
    """The columns of an expression, each as its names and where they begin.

    >>> names_in("a.b + c")
    [(('a', 'b'), 0), (('c',), 6)]
    """
    found: list[tuple[tuple[str, ...], int]] = []

    def collect(names: tuple[str, ...], start: int) -> None:
        found.append((names, start))

    expression.replace_columns(sql, collect)
    return found


def path(sql: str) -> tuple[str, ...] | None:
    """The names of an expression that is nothing but a column, or a field of one."""
    found = words(sql)
    alternate = all(word.is_name if index % 2 == 0 else word.text == "." for index, word in enumerate(found))
    names = names_in(sql) if alternate and len(found) % 2 else []
    return names[0][0] if len(names) == 1 else None
