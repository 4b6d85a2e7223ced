"""A script cut into statements by its tokens, and a statement read from left to right.

Text is never looked at but through tokens, so a ``;`` in a string, a name or a comment ends nothing. Whatever is refused is
refused at its line and column in the script.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from sqlglot import Token, TokenError, TokenType
from sqlglot.dialects import Databricks

from millstream.errors import PlanError
from millstream.relation.nodes import Place
from millstream.relation.schema import parse_duration
from millstream.relation.source_location import placed

_STRINGS = (TokenType.STRING, TokenType.RAW_STRING)
_DEPTH = {"(": 1, "<": 1, "[": 1, ")": -1, ">": -1, "]": -1}
_QUOTES = re.compile(r"['\"`]|/\*")
_WORDS = {"TRUE": True, "FALSE": False, "NULL": None}


class _Tokenizer(Databricks.Tokenizer):  # type: ignore[misc]
    """Spark's tokens, also behind words (SHOW, EXPLAIN) after which the parser takes the rest as one text."""

    COMMANDS: set[TokenType] = set()  # noqa: RUF012  (as in the class above it)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a script: its tokens, without the ``;``. A file without a name is named by line and column alone."""

    script: str
    tokens: Sequence[Token]
    file: str = ""
    ended: bool = True
    """Whether a ``;`` follows."""

    @property
    def text(self) -> str:
        """As it was written."""
        return self.between(0, len(self.tokens))

    @property
    def place(self) -> Place:
        """Where it begins."""
        return self.at(0)

    def at(self, index: int) -> Place:
        """Where one of its tokens begins; the end of the last one for what lies beyond."""
        offset = self.tokens[index].start if index < len(self.tokens) else self.tokens[-1].end + 1
        return place_in(self.script, offset, self.file)

    def between(self, first: int, end: int) -> str:
        """What was written from one token up to another, which is not part of it."""
        return self.script[self.tokens[first].start : self.tokens[end - 1].end + 1] if end > first else ""

    def word(self, index: int) -> str:
        """A token as a word in capitals; nothing if it is quoted, or there is none."""
        if index >= len(self.tokens) or self.tokens[index].token_type in (*_STRINGS, TokenType.IDENTIFIER):
            return ""
        return " ".join(self.between(index, index + 1).upper().split())  # some tokens are two words


def place_in(script: str, offset: int, file: str = "") -> Place:
    """An offset in a script as line and column, both from 1."""
    return Place(file, script.count("\n", 0, offset) + 1, offset - script.rfind("\n", 0, offset))


def cut(script: str, file: str = "") -> list[Statement]:
    """The statements of a script, empty ones left out; PlanError where a quote or a comment is not closed.

    >>> [each.text for each in cut("CREATE VIEW a AS SELECT ';'; -- one; two\\nSELECT 1")]
    ["CREATE VIEW a AS SELECT ';'", 'SELECT 1']
    """
    try:
        tokens = _Tokenizer().tokenize(script)
    except TokenError as error:
        place = place_in(script, _unclosed(script), file)
        raise PlanError(f"{place}: this quote, bracket or comment is not closed") from error
    found, start = [], 0
    for index, token in enumerate(tokens):
        if token.token_type == TokenType.SEMICOLON:
            found.append(Statement(script, tokens[start:index], file))
            start = index + 1
    found.append(Statement(script, tokens[start:], file, ended=False))
    return [each for each in found if each.tokens]


def _unclosed(script: str) -> int:
    """The last quote before which everything is closed."""
    for quote in reversed(list(_QUOTES.finditer(script))):
        try:
            _Tokenizer().tokenize(script[: quote.start()])
        except TokenError:
            continue
        return quote.start()
    return 0


class Option(NamedTuple):
    """What ``name = value`` says in a WITH: text, a number, true or false, null, or an interval."""

    name: str
    value: str | int | float | bool | timedelta | None
    place: Place


class Reader:
    """A statement, or some tokens of it, read from left to right."""

    def __init__(self, statement: Statement, start: int = 0, end: int | None = None) -> None:
        self.statement, self.index = statement, start
        self.end = len(statement.tokens) if end is None else end

    @property
    def done(self) -> bool:
        """Whether nothing is left."""
        return self.index >= self.end

    @property
    def place(self) -> Place:
        """Where the next token is."""
        return self.statement.at(self.index)

    def fail(self, expected: str, hint: str = "") -> PlanError:
        """What to raise where something else was expected."""
        found = "the end" if self.done else f"`{self.statement.between(self.index, self.index + 1)}`"
        return PlanError(f"{self.place}: expected {expected}; found {found}", hint=hint)

    def word(self, ahead: int = 0) -> str:
        """The next token as a word in capitals, or one further on."""
        return self.statement.word(self.index + ahead) if self.index + ahead < self.end else ""

    def skip(self, *words: str) -> bool:
        """Pass over words if they are next."""
        if any(self.word(ahead) != word for ahead, word in enumerate(words)):
            return False
        self.index += len(words)
        return True

    def expect(self, *words: str, hint: str = "") -> None:
        """Pass over words that must be next."""
        for word in words:
            if not self.skip(word):
                raise self.fail(word, hint)

    def finish(self) -> None:
        """Nothing may be left."""
        if not self.done:
            raise self.fail("; or the end")

    def name(self, what: str) -> str:
        """A name: a plain word, or anything in backquotes."""
        token = None if self.done else self.statement.tokens[self.index]
        if token is None or (token.token_type != TokenType.IDENTIFIER and not re.fullmatch(r"[^\W\d]\w*", self.word())):
            raise self.fail(what)
        self.index += 1
        return (
            token.text
            if token.token_type == TokenType.IDENTIFIER
            else self.statement.between(self.index - 1, self.index)
        )

    def string(self, what: str) -> str:
        """Text in quotes; texts side by side are one, as in Spark."""
        start = self.index
        while not self.done and self.statement.tokens[self.index].token_type in _STRINGS:
            self.index += 1
        if start == self.index:
            raise self.fail(what)
        return "".join(token.text for token in self.statement.tokens[start : self.index])

    def interval(self) -> timedelta:
        """``INTERVAL 10 SECONDS``, ``INTERVAL '10' SECOND``, ``INTERVAL '1 hour' 30 MINUTES``."""
        place = self.place
        self.expect("INTERVAL", hint="a span of time is written INTERVAL 10 SECONDS")
        words = []
        while not self.done and (
            self.statement.tokens[self.index].token_type in (*_STRINGS, TokenType.NUMBER)
            or (re.fullmatch(r"[A-Z]+", self.word()) and self.word() not in ("EMIT", "ALLOWED"))
        ):
            words.append(self.statement.tokens[self.index].text)
            self.index += 1
        with placed(place):
            return parse_duration(" ".join(words))

    def items(self) -> list[Reader]:
        """What stands in brackets, cut at its commas; each item for itself."""
        self.expect("(")
        found: list[Reader] = []
        start, depth = self.index, 0
        while not self.done:
            word = self.word()
            if depth == 0 and word in (",", ")"):
                if start == self.index:
                    raise self.fail("something before it")
                found.append(Reader(self.statement, start, self.index))
                start = self.index + 1
            depth += _DEPTH.get(word, 0)
            self.index += 1
            if depth < 0:
                return found
        raise self.fail(")")

    def options(self) -> list[Option]:
        """``WITH (name = value, …)``, if it is next."""
        return [item.option() for item in self.items()] if self.skip("WITH") else []

    def option(self) -> Option:
        """``name = value``; a name may have dots, or stand in quotes."""
        place, quoted = self.place, not self.done and self.statement.tokens[self.index].token_type in _STRINGS
        name = self.string("an option") if quoted else self.name("an option's name")
        while self.skip("."):
            name += f".{self.name('the rest of the name')}"
        self.expect("=")
        found = Option(name if quoted else name.lower(), self._value(), place)
        self.finish()
        return found

    def _value(self) -> Any:
        word = self.word()
        if word in _WORDS:
            self.index += 1
            return _WORDS[word]
        if word == "INTERVAL":
            return self.interval()
        if re.fullmatch(r"[0-9]+", word):
            self.index += 1
            return int(word)
        return self.string("a value: 'text', a number, true, false, null, or an INTERVAL")
