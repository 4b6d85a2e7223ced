"""What can fail, and what cannot: conditions that may be computed earlier than they are written, expressions that need no guard.

A condition that is moved meets rows that it would not have met where it was written. So it must have an answer for every row, and
one that every part of the chain can compute. Those are comparisons of columns and literals whose types are known and agree,
``IS NULL``, ``BETWEEN``, ``IN`` and what AND, OR and NOT make of them. For anything else the answer is no: a cast may fail,
and Spark casts wherever types do not agree.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlglot import Token, TokenError, TokenType

from millstream.relation import expression
from millstream.relation.kinds import Kind, Kinds, kind_of
from millstream.relation.nodes import Node
from millstream.relation.schema import tokens_of

ROOM = 150
"""Words of all conditions on one way between kernels, where at most 200 can be computed."""

_COMPARISONS = ("=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>")
_UNREADABLE = ("--", "/*", "\\", "${")
_OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.CASE)
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.END)
_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)
_NAMES_AND_LITERALS = (*_NAMES, TokenType.DOT, TokenType.STRING, TokenType.NUMBER)
_ARITHMETIC = (
    TokenType.VAR, TokenType.IDENTIFIER, TokenType.NUMBER, TokenType.PLUS, TokenType.DASH, TokenType.STAR, TokenType.SLASH,
    TokenType.L_PAREN, TokenType.R_PAREN,
)  # fmt: skip
_TOTAL = frozenset(
    ("upper", "ucase", "lower", "lcase", "trim", "ltrim", "rtrim", "length", "concat", "struct", "isnull", "isnotnull")
)
"""Functions that have a value for all that they take, and take every plain type."""


def parts(condition: str) -> tuple[str, ...]:
    """The conditions that AND joins, each as it was written; one where OR is stronger.

    >>> parts("a > 1 AND b BETWEEN 2 AND 3 AND (c OR d)")
    ('a > 1', 'b BETWEEN 2 AND 3', '(c OR d)')
    """
    groups: list[list[Token]] = [[]]
    depth = between = 0
    for token in tokens_of(condition):
        kind = token.token_type
        depth += (kind in _OPENING) - (kind in _CLOSING)
        if not depth and kind == TokenType.OR:
            return (condition,)
        between += not depth and kind == TokenType.BETWEEN
        if kind == TokenType.AND and not depth and not between:
            groups.append([])
            continue
        between -= kind == TokenType.AND and not depth
        groups[-1].append(token)
    return tuple(condition[group[0].start : group[-1].end + 1] for group in groups if group)


def unbracketed(sql: str) -> str:
    """An expression without the brackets around all of it.

    >>> unbracketed("((a AND b))"), unbracketed("(a) AND (b)")
    ('a AND b', '(a) AND (b)')
    """
    tokens, depth = tokens_of(sql), 0
    for index, token in enumerate(tokens):
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if depth == 0:
            around = index == len(tokens) - 1 and index > 1
            return unbracketed(sql[tokens[0].end + 1 : token.start]) if around else sql
    return sql


def length(condition: str) -> int:
    """The words of a condition, with those that make it false where it is null."""
    return len(tokens_of(condition)) + 8


def is_safe(condition: str, kinds: Kinds) -> bool:
    """Whether a condition has an answer for every row, wherever it is computed; ``kinds`` are those of the columns."""
    if any(mark in condition for mark in _UNREADABLE):
        return False
    try:
        return _Reader(condition, kinds).whole()
    except (_Unknown, TokenError, RecursionError):
        return False


def never_null(conditions: Sequence[str]) -> str:
    """Conditions as one that is true where each is, and false elsewhere; nothing for none."""
    return " AND ".join(f"coalesce(({each}), false)" for each in conditions)


def without_null(condition: str) -> str:
    """The condition that :func:`never_null` made false where it is null; any other as it is."""
    match expression.call_of(condition, "condition"):
        case "coalesce", (inner, "false"):
            return inner
        case _:
            return condition


def never_fails(sql: str, kinds: Kinds) -> bool:
    """Whether an expression surely has a value for every row, null included: it needs no guard, and no record fails by it.

    >>> never_fails("upper(bid.page)", {}), never_fails("10 / n", {"n": "integer"}), never_fails("n > 1", {"n": "integer"})
    (True, False, True)
    >>> never_fails(never_null(["n > 1", "n < 9"]), {"n": "integer"}), never_fails(never_null(["10 / n > 1"]), {"n": "integer"})
    (True, False)
    """
    if any(mark in sql for mark in _UNREADABLE):
        return False
    tokens = tokens_of(sql)
    if all(token.token_type in _NAMES_AND_LITERALS for token in tokens) or expression.plain_column(sql) is not None:
        return True
    if all(is_safe(without_null(each), kinds) for each in parts(sql)):
        return True
    called = expression.call_of(sql, "expression")
    if called is None:
        return False
    name, arguments = called
    if name == "unix_micros":
        return [kind_of(each, kinds) for each in arguments] == ["timestamp"]
    return name in _TOTAL and all(never_fails(each, kinds) for each in arguments)


def is_arithmetic(sql: str, kinds: Kinds) -> bool:
    """Whether an expression is made of whole numbers, doubles and the four operations alone: every kernel can compute it."""
    if any(mark in sql for mark in _UNREADABLE):
        return False
    tokens = tokens_of(sql)
    names = [token.text.lower() for token in tokens if token.token_type in (TokenType.VAR, TokenType.IDENTIFIER)]
    digits = [token.text for token in tokens if token.token_type == TokenType.NUMBER]
    return (
        all(token.token_type in _ARITHMETIC for token in tokens)
        and all(kinds.get(name) in ("integer", "double") for name in names)
        and all(re.fullmatch("[0-9]{1,9}", text) for text in digits)
    )


def kinds_of(node: Node) -> dict[str, Kind]:
    """The columns of a relation, in lower case, of whose type something is known; see :mod:`millstream.relation.kinds`."""
    return node.kinds()


class _Unknown(Exception):
    """Not one of the conditions that are known to have an answer."""


class _Reader:
    """The words of a condition, read from left to right; anything that is not expected ends it."""

    def __init__(self, sql: str, kinds: Kinds) -> None:
        self._sql, self._kinds = sql, kinds
        self._tokens: list[Token] = tokens_of(sql)
        self._at = 0

    def whole(self) -> bool:
        self._any()
        return self._at == len(self._tokens)

    def _word(self, ahead: int = 0) -> str:
        """A token as it is written, in lower case; nothing for literals, quoted names and the end."""
        at = self._at + ahead
        if at >= len(self._tokens):
            return ""
        token = self._tokens[at]
        if token.token_type in (TokenType.STRING, TokenType.NUMBER, TokenType.IDENTIFIER):
            return ""
        return self._sql[token.start : token.end + 1].lower()

    def _take(self, *words: str) -> bool:
        found = self._word() in words
        self._at += found
        return found

    def _expect(self, word: str) -> None:
        if not self._take(word):
            raise _Unknown

    def _any(self) -> None:
        self._all()
        while self._take("or"):
            self._all()

    def _all(self) -> None:
        self._test()
        while self._take("and"):
            self._test()

    def _test(self) -> None:
        while self._take("not"):
            pass
        if self._take("("):
            self._any()
            self._expect(")")
            return
        left = self._operand()
        if self._take("is"):
            self._take("not")
            self._expect("null")
            return
        opposite = self._take("not")
        if self._take("between"):
            self._meet(left, self._operand())
            self._expect("and")
            self._meet(left, self._operand())
        elif self._take("in"):
            self._choices(left)
        elif not opposite and self._take(*_COMPARISONS):
            self._meet(left, self._operand())
        elif opposite or left != "boolean":
            raise _Unknown

    def _choices(self, left: str) -> None:
        self._expect("(")
        while True:
            if self._is_name():
                raise _Unknown
            if self._operand() != left:
                raise _Unknown
            if self._take(")"):
                return
            self._expect(",")

    def _is_name(self) -> bool:
        """Whether a column is next, or anything but a literal."""
        quoted = [token.token_type for token in self._tokens[self._at : self._at + 1]] == [TokenType.IDENTIFIER]
        return quoted or self._word() not in ("", "-")

    def _meet(self, left: str, right: str) -> None:
        """Two values that are compared need no cast that could fail."""
        numbers = {left, right} <= {"integer", "double"} or {left, right} == {"double", "decimal"}
        if (left != right and not numbers) or left == "decimal" == right:
            raise _Unknown

    def _operand(self) -> str:
        """The kind of a column or a literal."""
        sign = self._take("-")
        if self._at >= len(self._tokens):
            raise _Unknown
        token = self._tokens[self._at]
        word = self._word()
        self._at += 1
        if token.token_type == TokenType.NUMBER and self._word() != "::":
            text = token.text
            if re.fullmatch("[0-9]{1,18}", text):
                return "integer"
            if re.fullmatch(r"[0-9]{1,15}\.[0-9]{1,15}", text):
                return "decimal"
        elif token.token_type == TokenType.STRING and not sign and not {"'", '"'} & set(token.text):
            return "text"
        elif not sign and word in ("true", "false"):
            return "boolean"
        elif not sign:
            return self._column(token)
        raise _Unknown

    def _column(self, token: Token) -> str:
        """The kind of the column that begins with this name, or of a field of it."""
        names = [token]
        while self._take("."):
            names += self._tokens[self._at : self._at + 1]
            self._at += 1
        for each in names:
            if each.token_type != TokenType.IDENTIFIER and expression.quote(each.text) != each.text:
                raise _Unknown  # a keyword
        name = ".".join(each.text.lower() for each in names)
        if self._word() in ("(", "::", "[") or name not in self._kinds or any("." in each.text for each in names):
            raise _Unknown
        return self._kinds[name]
