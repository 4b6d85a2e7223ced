"""A condition as Python computes it for one row: a subset of what :mod:`millstream.scalar.compile` takes, with the same values.

A search that depends on what was matched before asks for one row at a time, where a frame of one row would cost a thousand times as
much. Text that is not in the subset is Refused here, and computed as a frame. Null is None, a time is its microseconds, and
a result that Spark has none for raises :class:`Unsure`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import reduce
from typing import Any

import polars as pl
from sqlglot import TokenError, TokenType

from millstream.scalar import literals
from millstream.scalar.term import Term
from millstream.scalar.time import INTERVAL
from millstream.scalar.tokens import Tokens
from millstream.scalar.types import (
    BOOLEAN,
    BOUNDS,
    DOUBLE,
    INTEGERS,
    TEXT,
    TIMESTAMP,
    Refused,
    Span,
    digits_of,
    is_decimal,
    need,
)

Compute = Callable[[int, int], Any]
"""The value for a row, and the first row of the match."""

_EXACT = Context(prec=100)
_DECIMAL = pl.Decimal(38, 0)
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "==": operator.eq, "<>": operator.ne, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
# NaN equals NaN, and is greater than any other number.
_DOUBLES: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b or (a != a and b != b),
    "<>": lambda a, b: a != b and (a == a or b == b),
    "<": lambda a, b: a < b or (b != b and a == a),
    "<=": lambda a, b: a <= b or b != b,
    ">": lambda a, b: a > b or (a != a and b == b),
    ">=": lambda a, b: a >= b or a != a,
}
_DOUBLES |= {"==": _DOUBLES["="], "!=": _DOUBLES["<>"]}
_SYMBOLS: dict[str, Callable[[Any, Any], Any]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_EXACTLY: dict[str, Callable[[Any, Any], Any]] = {"+": _EXACT.add, "-": _EXACT.subtract, "*": _EXACT.multiply}


class Unsure(Exception):
    """Spark has no value here: it divides by zero, or a number does not fit its type."""


@dataclass(frozen=True, slots=True)
class Node:
    """A part of a condition. ``constant`` is the value of a literal, ``digits`` how many a decimal has before and behind the point."""

    dtype: pl.DataType
    compute: Compute
    constant: Any = None
    digits: tuple[int, int] = (0, 0)


def closure(sql: str, slots: Mapping[str, tuple[pl.DataType, Compute]]) -> Compute | None:
    """The condition as a function, or None if it is not in the subset; names compare without case."""
    try:
        reader = _Reader(sql, {name.lower(): Node(dtype, compute) for name, (dtype, compute) in slots.items()})
        node = reader.whole()
    except (Refused, TokenError, RecursionError):
        return None
    return node.compute if node.dtype == BOOLEAN else None


class _Reader:
    """The tokens of a condition from left to right; levels are those of the grammar in :mod:`millstream.scalar.compile`."""

    def __init__(self, sql: str, slots: Mapping[str, Node]) -> None:
        self._tokens, self._slots = Tokens(sql), slots

    def whole(self) -> Node:
        node = self._either()
        need(self._tokens.at_end)
        return node

    def _either(self) -> Node:
        parts = [self._both()]
        while self._tokens.take("or"):
            parts.append(self._both())
        return reduce(lambda right, left: _logical(left, right, True), reversed(parts))

    def _both(self) -> Node:
        parts = [self._negation()]
        while self._tokens.take("and"):
            parts.append(self._negation())
        return reduce(lambda right, left: _logical(left, right, False), reversed(parts))

    def _negation(self) -> Node:
        if not self._tokens.take("not", "!"):
            return self._predicate()
        return _negated(self._negation())

    def _predicate(self) -> Node:
        left = self._sum()
        while symbol := self._tokens.take(*_COMPARED):
            left = _compare(symbol, left, self._sum())
        if self._tokens.take("is"):
            opposite = self._tokens.take("not")
            self._tokens.expect("null")
            compute, wanted = left.compute, not opposite
            return Node(BOOLEAN, lambda row, start: (compute(row, start) is None) is wanted)
        opposite = self._tokens.take("not")
        if self._tokens.take("between"):
            low = self._sum()
            self._tokens.expect("and")
            found = _logical(_compare(">=", left, low), _compare("<=", left, self._sum()), False)
        elif self._tokens.take("in"):
            self._tokens.expect("(")
            choices = [self._literal()]
            while self._tokens.take(","):
                choices.append(self._literal())
            self._tokens.expect(")")
            found = reduce(lambda one, other: _logical(one, other, True), [_compare("=", left, c) for c in choices])
        else:
            need(not opposite)
            return left
        return _negated(found) if opposite else found

    def _literal(self) -> Node:
        node = self._signed()
        need(node.constant is not None, node.dtype != DOUBLE)
        return node

    def _sum(self) -> Node:
        left = self._product()
        while symbol := self._tokens.take("+", "-"):
            left = _arithmetic(symbol, left, self._product())
        return left

    def _product(self) -> Node:
        left = self._signed()
        while symbol := self._tokens.take("*", "/", "%"):
            right = self._signed()
            if symbol == "/":
                left = _divide(left, right)
            else:
                left = _modulo(left, right) if symbol == "%" else _arithmetic(symbol, left, right)
        return left

    def _signed(self) -> Node:
        if not self._tokens.take("-"):
            return self._primary()
        need(self._tokens.kind() == TokenType.NUMBER)
        return _constant(literals.number(self._tokens, "-"))

    def _primary(self) -> Node:
        if self._tokens.kind() == TokenType.NUMBER:
            return _constant(literals.number(self._tokens))
        if self._tokens.kind() == TokenType.STRING:
            return _constant(literals.text(self._tokens))
        if self._tokens.take("("):
            node = self._either()
            self._tokens.expect(")")
            return node
        if word := self._tokens.take("true", "false"):
            value = word == "true"
            return Node(BOOLEAN, lambda _row, _start: value, value)
        if self._tokens.take("interval"):
            return _constant(literals.span(self._tokens))
        if self._tokens.word() == "abs" and self._tokens.word(1) == "(":
            self._tokens.next()
            self._tokens.next()
            node = self._sum()
            self._tokens.expect(")")
            return _absolute(node)
        need(self._tokens.word(1) not in ("(", "["))
        name = self._tokens.next().text.lower()
        need(name in self._slots)
        return self._slots[name]


def _constant(term: Term) -> Node:
    value, digits = term.constant, (0, 0)
    if isinstance(value, Span):
        need(not value.months, abs(value.micros) < 86_400_000_000)
        value = value.micros
    elif is_decimal(term.dtype) and isinstance(term.dtype, pl.Decimal):
        digits = ((term.dtype.precision or 38) - term.dtype.scale, term.dtype.scale)
    elif term.written and isinstance(value, int):
        digits = (len(str(abs(value))), 0)
    return Node(term.dtype, lambda _row, _start: value, value, digits)


def _logical(left: Node, right: Node, either: bool) -> Node:
    """OR or AND; the right side is computed unless the left decides."""
    need(left.dtype == BOOLEAN, right.dtype == BOOLEAN)
    one, other = left.compute, right.compute

    def compute(row: int, start: int) -> bool | None:
        found: bool | None = one(row, start)
        if found is either:
            return either
        second: bool | None = other(row, start)
        return either if second is either else None if found is None or second is None else not either

    return Node(BOOLEAN, compute)


def _negated(node: Node) -> Node:
    need(node.dtype == BOOLEAN)
    compute = node.compute

    def negated(row: int, start: int) -> bool | None:
        found = compute(row, start)
        return None if found is None else not found

    return Node(BOOLEAN, negated)


def _compare(symbol: str, left: Node, right: Node) -> Node:
    left, right = _alike(left, right)
    test = (_DOUBLES if left.dtype == DOUBLE else _COMPARED)[symbol]
    one, other, constant = left.compute, right.compute, right.constant
    if constant is not None:

        def compute(row: int, start: int) -> bool | None:
            value = one(row, start)
            return None if value is None else test(value, constant)
    else:

        def compute(row: int, start: int) -> bool | None:
            value, second = one(row, start), other(row, start)
            return None if value is None or second is None else test(value, second)

    return Node(BOOLEAN, compute)


def _alike(left: Node, right: Node) -> tuple[Node, Node]:
    """Two values of one type, or of types that meet."""
    kinds = (left.dtype, right.dtype)
    if DOUBLE in kinds:
        return _double(left), _double(right)
    if left.dtype == right.dtype:
        need(left.dtype in (*INTEGERS, TEXT, BOOLEAN, TIMESTAMP, pl.Datetime("us")) or is_decimal(left.dtype))
    else:
        need(all(each in INTEGERS or is_decimal(each) for each in kinds))
    return left, right


def _double(node: Node) -> Node:
    if node.dtype == DOUBLE:
        return node
    need(node.dtype in INTEGERS or is_decimal(node.dtype))
    if node.constant is not None:
        value = float(node.constant)
        return Node(DOUBLE, lambda _row, _start: value, value)
    compute = node.compute

    def double(row: int, start: int) -> float | None:
        value = compute(row, start)
        return None if value is None else float(value)

    return Node(DOUBLE, double)


def _arithmetic(symbol: str, left: Node, right: Node) -> Node:
    if right.dtype == INTERVAL or left.dtype == INTERVAL:
        return _moved(symbol, left, right)
    if DOUBLE in (left.dtype, right.dtype):
        left, right = _double(left), _double(right)
        return Node(DOUBLE, _applied(_SYMBOLS[symbol], left.compute, right.compute))
    if is_decimal(left.dtype) or is_decimal(right.dtype):
        return _of_decimals(symbol, left, right)
    need(left.dtype in INTEGERS, right.dtype in INTEGERS)
    dtype = max(left.dtype, right.dtype, key=INTEGERS.index)
    return Node(dtype, _bounded(_SYMBOLS[symbol], left.compute, right.compute, *BOUNDS[dtype]))


def _of_decimals(symbol: str, left: Node, right: Node) -> Node:
    """Sums and products of decimals of so few digits that none is ever rounded away."""
    (above, below), (over, under) = _digits(left), _digits(right)
    digits = (above + over + 1, below + under) if symbol == "*" else (max(above, over) + 1, max(below, under))
    need(sum(digits) <= 38)
    return Node(_DECIMAL, _applied(_EXACTLY[symbol], left.compute, right.compute), digits=digits)


def _digits(node: Node) -> tuple[int, int]:
    if node.digits != (0, 0):
        return node.digits
    if isinstance(node.dtype, pl.Decimal):
        return (node.dtype.precision or 38) - node.dtype.scale, node.dtype.scale
    return digits_of(node.dtype), 0


def _applied(apply: Callable[[Any, Any], Any], one: Compute, other: Compute) -> Compute:
    def compute(row: int, start: int) -> Any:
        value, second = one(row, start), other(row, start)
        return None if value is None or second is None else apply(value, second)

    return compute


def _bounded(apply: Callable[[Any, Any], Any], one: Compute, other: Compute, low: int, high: int) -> Compute:
    def compute(row: int, start: int) -> int | None:
        value, second = one(row, start), other(row, start)
        if value is None or second is None:
            return None
        made: int = apply(value, second)
        if not low <= made <= high:
            raise Unsure
        return made

    return compute


def _moved(symbol: str, left: Node, right: Node) -> Node:
    """A time and a span of fixed length."""
    if left.dtype == INTERVAL and symbol == "+":
        left, right = right, left
    need(left.dtype in (TIMESTAMP, pl.Datetime("us")), right.dtype == INTERVAL, symbol in ("+", "-"))
    return Node(left.dtype, _bounded(_SYMBOLS[symbol], left.compute, right.compute, *BOUNDS[pl.Int64()]))


def _divide(left: Node, right: Node) -> Node:
    need(DOUBLE in (left.dtype, right.dtype) or not (is_decimal(left.dtype) or is_decimal(right.dtype)))
    one, other = _double(left).compute, _double(right).compute

    def compute(row: int, start: int) -> float | None:
        value, by = one(row, start), other(row, start)
        if value is None or by is None:
            return None
        if by == 0:
            raise Unsure
        return float(value / by)

    return Node(DOUBLE, compute)


def _modulo(left: Node, right: Node) -> Node:
    by, one = right.constant, left.compute
    need(left.dtype in INTEGERS, right.dtype in INTEGERS, isinstance(by, int) and by > 0)

    def compute(row: int, start: int) -> int | None:
        value = one(row, start)
        return None if value is None else value % by if value >= 0 else -(-value % by)

    return Node(max(left.dtype, right.dtype, key=INTEGERS.index), compute)


def _absolute(node: Node) -> Node:
    need(node.dtype in INTEGERS or node.dtype == DOUBLE)
    compute = node.compute
    low = BOUNDS[node.dtype][0] if node.dtype in INTEGERS else None

    def absolute(row: int, start: int) -> Any:
        value = compute(row, start)
        if value is None:
            return None
        if value == low:
            raise Unsure
        return abs(value)

    return Node(node.dtype, absolute)


def decimal_total(total: Decimal | None, value: Decimal) -> Decimal:
    """A sum of decimals, exactly."""
    return value if total is None else _EXACT.add(total, value)
