"""The words of a query, and pieces of its text: cut only where words begin and end, and always with their place.

An expression stays the text that the user wrote. So a query is taken apart by its words, and never written anew from a tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlglot import TokenError, TokenType

from millstream.errors import PlanError
from millstream.relation.nodes import Place
from millstream.relation.schema import tokens_of

_STRINGS = frozenset(kind for kind in TokenType if kind.name.endswith("STRING"))
_OPENING, _CLOSING = ("(", "[", "CASE"), (")", "]", "END")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a text begins in the user's file; lines and columns count from 1."""

    file: str = ""
    line: int = 1
    column: int = 1


@dataclass(frozen=True, slots=True)
class Text:
    """A query as it was written, and where."""

    sql: str
    origin: Origin

    def place(self, at: int) -> Place:
        """An offset of the text as a place in the user's file."""
        line = self.sql.count("\n", 0, at)
        column = at - self.sql.rfind("\n", 0, at) + (self.origin.column - 1 if line == 0 else 0)
        return Place(self.origin.file, self.origin.line + line, column)

    def error(self, at: int, message: str, hint: str = "") -> PlanError:
        """What to raise for something at this offset."""
        return PlanError(f"{self.place(at)}: {message}", hint=hint)


class Word(NamedTuple):
    """A word of a query in capitals; ``text`` is empty for what stands in quotes. ``value`` is what it says."""

    text: str
    value: str
    start: int
    end: int
    is_name: bool
    """Whether it can be a name: quoted, or made of letters, digits and _."""


class Piece(NamedTuple):
    """A part of a query, such as an expression, and the offset at which it begins."""

    sql: str
    at: int


def words(sql: str) -> list[Word]:
    """The words of a text; TokenError where a quote is not closed.

    >>> [word.text for word in words("SELECT a FROM b GROUP  BY a")]
    ['SELECT', 'A', 'FROM', 'B', 'GROUP', 'BY', 'A']
    """
    made: list[Word] = []
    for token in tokens_of(sql):
        start, end = token.start, token.end + 1
        if made and made[-1].start == start:
            continue  # 10L is three tokens: a number, and what makes it a long
        written = sql[start:end]
        if token.token_type == TokenType.IDENTIFIER:
            made.append(Word("", token.text, start, end, True))
        elif token.token_type in _STRINGS:
            made.append(Word("", token.text, start, end, False))
        else:  # GROUP BY is one token
            for each in re.finditer(r"\S+", written):
                named = re.fullmatch(r"[^\W\d]\w*", each[0]) is not None
                made.append(Word(each[0].upper(), each[0], start + each.start(), start + each.end(), named))
    return made


def read_words(text: Text) -> list[Word]:
    """The words of a whole query, a mistake at its place."""
    try:
        found = words(text.sql)
    except TokenError as error:
        raise text.error(0, "this is not SQL: is a quote or comment left open?") from error
    if not found:
        raise text.error(0, "expected a SELECT; found nothing")
    return found


def depths(found: Sequence[Word]) -> list[int]:
    """For each word how many brackets, or CASE … END, are open around it; a bracket counts as outside."""
    made, depth = [], 0
    for index, word in enumerate(found):
        field = word.is_name and index > 0 and found[index - 1].text in (".", "AS")  # window.end AS end ends nothing
        depth -= not field and word.text in _CLOSING
        made.append(depth)
        depth += not field and word.text in _OPENING
    return made


def split(piece: Piece, at: Iterable[str]) -> list[Piece]:
    """What lies between words of one kind, outside of brackets; BETWEEN … AND stays whole.

    >>> [each.sql for each in split(Piece("a > 1 AND b BETWEEN 2 AND 3", 0), ("AND",))]
    ['a > 1', 'b BETWEEN 2 AND 3']
    """
    found, cuts = words(piece.sql), tuple(at)
    groups: list[list[Word]] = [[]]
    between = 0
    for word, depth in zip(found, depths(found), strict=True):
        between += not depth and word.text == "BETWEEN"
        if not depth and word.text in cuts and not (word.text == "AND" and between):
            groups.append([])
            continue
        between -= not depth and word.text == "AND"
        groups[-1].append(word)
    return [part(piece, group) for group in groups]


def part(piece: Piece, some: Sequence[Word]) -> Piece:
    """The part of a piece that some of its words make up."""
    if not some:
        return Piece("", piece.at)
    return Piece(piece.sql[some[0].start : some[-1].end], piece.at + some[0].start)


def unwrap(piece: Piece) -> Piece:
    """Without the brackets around the whole of it."""
    found = words(piece.sql)
    open_ = depths(found)
    while len(found) > 2 and found[0].text == "(" and found[-1].text == ")" and all(open_[1:-1]):
        found = found[1:-1]
        open_ = depths(found)
    return part(piece, found)


def conditions(piece: Piece) -> list[Piece]:
    """The conditions that AND joins, each as it was written; one where OR is stronger.

    >>> [each.sql for each in conditions(Piece("(a = b AND c = d) AND (e OR f)", 0))]
    ['a = b', 'c = d', '(e OR f)']
    """
    if len(split(piece, ("OR",))) > 1:
        return [piece]
    made = []
    for each in split(piece, ("AND",)):
        inner = unwrap(each)
        if inner == each or len(split(inner, ("OR",))) > 1:
            made.append(each)
        else:
            made += conditions(inner)
    return made


def all_of(some: Sequence[str]) -> str:
    """Conditions joined by AND."""
    if len(some) == 1:
        return some[0]
    return " AND ".join(f"({each})" if len(split(Piece(each, 0), ("OR",))) > 1 else each for each in some)


def canonical(sql: str) -> tuple[str, ...]:
    """The words of an expression: equal for two that differ only in spaces and in the case of names."""
    return tuple(word.text or (word.value.upper() if word.is_name else f"'{word.value}'") for word in words(sql))


def edit(sql: str, edits: Iterable[tuple[int, int, str]]) -> str:
    """The text with some parts of it replaced; they do not overlap."""
    parts, done = [], 0
    for start, end, text in sorted(edits):
        parts += [sql[done:start], text]
        done = end
    return "".join((*parts, sql[done:]))
