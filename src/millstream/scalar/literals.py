"""Literals of Spark SQL: numbers, texts and spans of time."""

from __future__ import annotations

import re
from dataclasses import replace

import polars as pl
from sqlglot import TokenType

from millstream.scalar.term import Term, decimal, literal
from millstream.scalar.time import STEPS, interval
from millstream.scalar.tokens import Tokens
from millstream.scalar.types import BOUNDS, DOUBLE, LONG, TEXT, Refused, Span, need

_SUFFIXES: dict[str, pl.DataType] = {"y": pl.Int8(), "s": pl.Int16(), "l": LONG}
_MONTHS = {"month": 1, "months": 1, "year": 12, "years": 12}
_SPANS = {name + plural: micros for name, micros in STEPS.items() for plural in ("", "s")}
_DAYS = frozenset(("day", "days", "week", "weeks"))


def span(tokens: Tokens) -> Term:
    """Read ``10 SECONDS``, ``'10' SECOND``, ``1 HOUR 30 MINUTES`` or ``'10 seconds'``, behind the word."""
    months, micros, units = 0, 0, set[str]()
    while True:
        sign, token = -1 if tokens.take("-") else 1, tokens.next()
        number, _, unit = token.text.partition(" ")
        need(token.token_type in (TokenType.NUMBER, TokenType.STRING))
        need(re.fullmatch("-?[0-9]{1,12}", number) is not None)
        name = unit.lower() if unit else tokens.expect(*_SPANS, *_MONTHS)
        need(name in _SPANS or name in _MONTHS)
        units.add(name)
        months += sign * int(number) * _MONTHS.get(name, 0)
        micros += sign * int(number) * _SPANS.get(name, 0)
        if unit or tokens.kind() not in (TokenType.NUMBER, TokenType.STRING):
            need(units <= _MONTHS.keys() or units <= _SPANS.keys())
            return interval(Span(months, micros, units <= _DAYS))


def text(tokens: Tokens) -> Term:
    """Read texts in quotes, which are one: a quote that is written twice is one quote of it, and spaces between two texts are nothing.

    That and what a backslash means are settings of Spark's, which queries of pipelines have as they are by default.
    """
    before = tokens.next()
    text = before.text
    while tokens.kind() == TokenType.STRING:
        token = tokens.next()
        twice = token.start == before.end + 1 and tokens.quote(token) == tokens.quote(before)
        text += (tokens.quote(token) if twice else "") + token.text
        before = token
    return literal(text, TEXT)


def number(tokens: Tokens, sign: str = "") -> Term:
    """Read a number behind its sign."""
    token = tokens.next()
    text, suffix = (sign + token.text).lower(), tokens.suffix(token)
    if re.fullmatch("-?[0-9]+", text) and suffix != "d":
        for dtype in (pl.Int32(), LONG) if not suffix else [_SUFFIXES[suffix]] if suffix in _SUFFIXES else ():
            if BOUNDS[dtype][0] <= int(text) <= BOUNDS[dtype][1]:
                return replace(literal(int(text), dtype), written=True)
        raise Refused
    need(re.fullmatch(r"-?[0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?", text) is not None, suffix in ("", "d"))
    need(len(text) <= 38, abs(float(text)) < float("inf"))  # a longer one is no decimal
    if not suffix and "e" not in text:
        return decimal(text)
    need(float(text) != 0 or not sign)  # to Spark's optimizer the literals -0.0 and 0.0 are the same
    return literal(float(text), DOUBLE)
