"""The language of stored queries: a condition as text becomes a tree of tests, or a sentence that names its mistake.

Whoever appends to a topic writes these texts, so nothing of them is compiled or run. What is read is small: comparisons of a column
with a literal, ``IN``, ``BETWEEN``, ``IS [NOT] NULL``, ``LIKE 'x%'``, ``contains_words(column, 'words')``, ``AND``, ``OR``, ``NOT``. The length of
a text, its depth and the number of its literals have limits, so that reading takes a time that is bounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, NamedTuple, TypeAlias

from millstream.printable import printable

MOST_CHARACTERS = 10_000
MOST_DEPTH = 32
"""Brackets and NOTs inside each other."""

MOST_LITERALS = 1_000
_MOST_DIGITS = 40
_MOST_EXPONENT = 400
_SHOWN = 40

Comparison: TypeAlias = Literal["=", "<>", "<", "<=", ">", ">="]
Kind: TypeAlias = Literal["text", "number", "boolean", "date", "timestamp"]
_FLIPPED: dict[str, Comparison] = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_SPELLED: dict[str, Comparison] = {
    "==": "=",
    "!=": "<>",
    "=": "=",
    "<>": "<>",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
}


class Mistake(Exception):
    """What is wrong with a condition, as a sentence for its author."""


class Value(NamedTuple):
    """A literal: what it is, and how it was written."""

    value: str | Decimal | bool
    kind: Kind
    written: str


@dataclass(frozen=True, slots=True)
class Test:
    """A test of one column; ``values`` are its literals."""

    column: str
    how: Literal["=", "<>", "<", "<=", ">", ">=", "in", "between", "null", "like", "words"]
    values: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Not:
    """True where what it is of is false; unknown stays unknown."""

    of: Tree


@dataclass(frozen=True, slots=True)
class All:
    """True where all of its parts are."""

    of: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Any:
    """True where any of its parts is."""

    of: tuple[Tree, ...]


Tree: TypeAlias = Test | Not | All | Any


def read(text: str) -> Tree:
    """Read a condition; Mistake where it is none, or larger than is allowed.

    >>> read("price > 100 AND NOT city IN ('Oslo', 'Rome')").of[1]
    Not(of=Test(column='city', how='in', values=(Value(value='Oslo', kind='text', written="'Oslo'"), Value(value='Rome', kind='text', written="'Rome'"))))
    """
    if len(text) > MOST_CHARACTERS:
        raise Mistake(f"a condition of {len(text):,} characters; at most {MOST_CHARACTERS:,} are allowed")
    reader = _Reader(text)
    tree = reader.any_of(0)
    if reader.kind != "end":
        raise reader.wrong("AND, OR or the end")
    return tree


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<number>[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
      | (?P<word>[^\W0-9]\w*)
      | (?P<quoted>`[^`]*`)
      | (?P<text>'[^']*(?:''[^']*)*')
      | (?P<sign><=|>=|<>|!=|==|[=<>(),+-])""",
    re.VERBOSE,
)
_TYPED: dict[str, Kind] = {"date": "date", "timestamp": "timestamp"}
_RESERVED = frozenset(("and", "or", "not", "in", "between", "is", "null", "like", "true", "false"))


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            character = text[at]
            why = {"'": "a text in quotes that does not end", '"': "a text in double quotes; texts go in single ones"}
            raise Mistake(f"{why.get(character, f'an unexpected {printable(character)!r}')}, at character {at + 1}")
        if match.lastgroup != "space":
            found.append(_Token(str(match.lastgroup), match[0], at))
        at = match.end()
    return [*found, _Token("end", "", len(text))]


class _Reader:
    """Reads a condition from left to right."""

    def __init__(self, text: str) -> None:
        self._text, self._tokens, self._at, self._literals = text, _tokens(text), 0, 0

    @property
    def kind(self) -> str:
        """What comes next: a keyword, ``name``, ``number``, ``text``, a sign, or ``end``."""
        token = self._tokens[self._at]
        if token.kind == "word":
            word = token.text.lower()
            return word if word in _RESERVED else "name"
        return {"quoted": "name", "sign": token.text}.get(token.kind, token.kind)

    def wrong(self, expected: str) -> Mistake:
        """Say what was expected, and what is there."""
        token = self._tokens[self._at]
        found = "the end" if token.kind == "end" else printable(token.text[:_SHOWN])
        return Mistake(f"expected {expected}; found {found}, at character {token.at + 1}")

    def any_of(self, depth: int) -> Tree:
        """Parts with OR between them."""
        parts = [self._all_of(depth)]
        while self._take("or"):
            parts.append(self._all_of(depth))
        return parts[0] if len(parts) == 1 else Any(tuple(parts))

    def _all_of(self, depth: int) -> Tree:
        parts = [self._one(depth)]
        while self._take("and"):
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _one(self, depth: int) -> Tree:
        if depth > MOST_DEPTH:
            raise Mistake(f"brackets and NOTs {depth} deep; at most {MOST_DEPTH} are allowed")
        if self._take("not"):
            return Not(self._one(depth + 1))
        if self._take("("):
            inner = self.any_of(depth + 1)
            self._expect(")")
            return inner
        if self.kind == "name":
            return self._of_column()
        if self.kind in ("number", "text", "true", "false", "+", "-"):
            return self._of_literal()
        raise self.wrong("a column, NOT or a bracket")

    def _of_literal(self) -> Test:
        value = self._value()
        sign = _SPELLED.get(self.kind)
        if sign is None:
            raise self.wrong("a comparison")
        self._at += 1
        return Test(self._name(), _FLIPPED[sign], (value,))

    def _of_column(self) -> Tree:
        token, following = self._tokens[self._at : self._at + 2]
        if token.kind == "word" and following.text == "(":
            return self._words(token.text)
        if token.text.lower() in _TYPED and following.kind == "text":
            return self._of_literal()
        column = self._name()
        if (sign := _SPELLED.get(self.kind)) is not None:
            self._at += 1
            return Test(column, sign, (self._value(),))
        if self._take("is"):
            negated = self._take("not")
            self._expect("null")
            test = Test(column, "null")
            return Not(test) if negated else test
        negated = self._take("not")
        if self._take("in"):
            made = Test(column, "in", self._list())
        elif self._take("between"):
            low = self._value()
            self._expect("and")
            made = Test(column, "between", (low, self._value()))
        elif self._take("like"):
            made = Test(column, "like", (self._value(),))
        elif negated:
            raise self.wrong("IN, BETWEEN or LIKE")
        else:  # a column by itself is true or false
            made = Test(column, "=", (Value(True, "boolean", "true"),))
        return Not(made) if negated else made

    def _words(self, function: str) -> Test:
        if function.lower() != "contains_words":
            raise Mistake(
                f"no function {printable(function[:_SHOWN])}; contains_words(column, 'words') is the only one"
            )
        self._at += 2
        column = self._name()
        self._expect(",")
        value = self._value()
        self._expect(")")
        return Test(column, "words", (value,))

    def _list(self) -> tuple[Value, ...]:
        self._expect("(")
        values = [self._value()]
        while self._take(","):
            values.append(self._value())
        self._expect(")")
        return tuple(values)

    def _name(self) -> str:
        token = self._tokens[self._at]
        if self.kind != "name":
            raise self.wrong("a column")
        self._at += 1
        return token.text[1:-1] if token.kind == "quoted" else token.text

    def _value(self) -> Value:
        self._literals += 1
        if self._literals > MOST_LITERALS:
            raise Mistake(f"more than {MOST_LITERALS:,} literals")
        start = self._tokens[self._at].at
        sign = "-" if self._take("-") else "+" if self._take("+") else ""
        token, kind = self._tokens[self._at], self.kind
        if kind == "null" and not sign:
            raise Mistake("a comparison with NULL is never true; IS NULL asks for a column without a value")
        if kind == "number":
            self._at += 1
            return Value(_number(sign + token.text), "number", self._text[start : token.at + len(token.text)])
        if sign:
            raise self.wrong("a number")
        if kind == "text":
            self._at += 1
            return Value(token.text[1:-1].replace("''", "'"), "text", token.text)
        if kind in ("true", "false"):
            self._at += 1
            return Value(kind == "true", "boolean", kind)
        if token.text.lower() in _TYPED and (following := self._tokens[self._at + 1]).kind == "text":
            self._at += 2
            text = following.text[1:-1].replace("''", "'")
            return Value(text, _TYPED[token.text.lower()], f"{token.text} {following.text}")
        raise self.wrong("a literal: a condition compares a column with a number, a text, a date or a time")

    def _take(self, kind: str) -> bool:
        if self.kind != kind:
            return False
        self._at += 1
        return True

    def _expect(self, kind: str) -> None:
        if not self._take(kind):
            raise self.wrong(kind.upper())


def _number(text: str) -> Decimal:
    mantissa, _, exponent = text.lower().partition("e")
    if len(mantissa) > _MOST_DIGITS or (exponent and abs(int(exponent[:9])) > _MOST_EXPONENT):
        raise Mistake(f"a number of more digits than are allowed: {text[:_SHOWN]}")
    return Decimal(text)
