"""Random conditions: each as text, and as what it means, by plain Python over a row. Nothing of the package is used."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from random import Random
from typing import Any, NamedTuple

Row = dict[str, Any]
Truth = bool | None

CITIES = ("", "a", "ab", "abc", "b", "B", "é", "it's", "x%y")
WORDS = ("red", "blue", "shoes", "42", "grün")
NUMBERS = (-3, -1, 0, 1, 2, 7)
DOUBLES = (-math.inf, -1.5, -0.0, 0.0, 0.25, 2.0, 1e300, math.inf, math.nan)
DAYS = tuple(date(2026, 1, day) for day in (1, 2, 3))
COSTS = tuple(Decimal(text) for text in ("-1.25", "0.00", "0.01", "19.99", "20.00"))

MALFORMED = (
    "", "price >", "price > 'a'", "colour = 1", "city = 3", "city LIKE 'a%b'", "contains_words(price, 'a')", "contains_words(title, '…')",
    "price = NULL", "upper(city) = 'A'", "price > 1; DROP TABLE users", "city = \"a\"", "city = 'a", "(" * 40 + "n = 1" + ")" * 40,
    "n = 1" + " OR n = 1" * 2_000, "day = 'yesterday'", "ok > false", "n IN ()", "n = 1 AND", "NOT", "n BETWEEN 1 OR 2", "price = 1e999",
    " AND ".join(f"(n <> {i} OR price <> {i})" for i in range(40)), "at = 1", "ok + 1", "`city` == city",
)  # fmt: skip


class Condition(NamedTuple):
    """A condition as text, and what it is of a row."""

    text: str
    of: Callable[[Row], Truth]


def any_row(chance: Random) -> Row:
    """The columns that conditions use."""
    return {
        "n": chance.choice((None, *NUMBERS)),
        "price": chance.choice((None, *DOUBLES)),
        "city": chance.choice((None, *CITIES)),
        "title": chance.choice((None, " ".join(chance.choice(WORDS) for _ in range(chance.randrange(4))))),
        "ok": chance.choice((None, True, False)),
        "day": chance.choice((None, *DAYS)),
        "cost": chance.choice((None, *COSTS)),
    }


def any_condition(chance: Random, depth: int = 3) -> Condition:
    """Any condition that can be read."""
    kind = chance.randrange(10) if depth else 9
    if kind < 2:
        inner = any_condition(chance, depth - 1)
        return Condition(f"NOT ({inner.text})", lambda row: _not(inner.of(row)))
    if kind < 8:
        word = chance.choice(("AND", "OR"))
        parts = [any_condition(chance, depth - 1) for _ in range(chance.choice((2, 2, 3)))]
        text = f" {chance.choice((word, word.lower()))} ".join(f"({each.text})" for each in parts)
        return Condition(text, lambda row: _joined([each.of(row) for each in parts], word))
    return _test(chance)


def _test(chance: Random) -> Condition:
    column = chance.choice(("n", "price", "city", "title", "ok", "day", "cost"))
    if chance.random() < 0.1:
        negated = chance.random() < 0.5
        return Condition(f"{column} IS {'NOT ' if negated else ''}NULL", lambda row: (row[column] is None) != negated)
    match column:
        case "title":
            words = [chance.choice(WORDS) for _ in range(chance.randint(1, 3))]
            shown = chance.choice((" ", ", ")).join(each.upper() if chance.random() < 0.3 else each for each in words)
            return Condition(
                f"contains_words(title, '{shown}')",
                _known("title", lambda text: set(words) <= set(re.findall(r"\w+", text))),
            )
        case "ok":
            wanted = chance.choice((True, False))
            shown = chance.choice(
                (f"ok = {str(wanted).upper()}", f"ok <> {str(not wanted).lower()}", "ok" if wanted else "NOT ok")
            )
            return Condition(shown, _known("ok", lambda value: value == wanted))
        case "city" if chance.random() < 0.3:
            start = chance.choice(("", "a", "ab", "é", "x%", "B"))
            shown, negated = start.replace("%", r"\%"), chance.random() < 0.3
            return Condition(
                f"city {'NOT ' if negated else ''}LIKE '{shown}%'",
                _known("city", lambda text: text.startswith(start) != negated),
            )
    values = {
        "n": (*NUMBERS, Decimal("0.5"), 10**20, -(10**20)),
        "price": (-1.5, 0, 0.25, 2, 5),
        "city": CITIES,
        "day": DAYS,
        "cost": (*COSTS, Decimal("0.005"), 3),
    }[column]
    return _compared(chance, column, values)


def _compared(chance: Random, column: str, values: tuple[Any, ...]) -> Condition:
    def literal() -> tuple[Any, str]:
        value = chance.choice(values)
        return value, _written(chance, value)

    kind, negated = chance.choice(("in", "between", "=", "<>", "!=", "<", "<=", ">", ">=")), chance.random() < 0.3
    word = "NOT " if negated else ""
    if kind == "in":
        chosen = [literal() for _ in range(chance.randint(1, 3))]
        return Condition(
            f"{column} {word}IN ({', '.join(text for _, text in chosen)})",
            _known(column, lambda value: any(_order(value, each) == 0 for each, _ in chosen) != negated),
        )
    if kind == "between":
        (low, shown), (high, other) = literal(), literal()
        return Condition(
            f"{column} {word}BETWEEN {shown} AND {other}",
            _known(column, lambda value: (_order(value, low) >= 0 and _order(value, high) <= 0) != negated),
        )
    value, text = literal()
    holds = {"=": (0,), "<>": (-1, 1), "!=": (-1, 1), "<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}[kind]
    flipped = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(kind, kind)
    shown = f"{column} {kind} {text}" if chance.random() < 0.8 else f"{text} {flipped} {column}"
    return Condition(shown, _known(column, lambda found: _order(found, value) in holds))


def _written(chance: Random, value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, date):
        return f"{chance.choice(('DATE ', 'date ', ''))}'{value}'"
    return f"{value}"


def _order(one: Any, other: Any) -> int:
    """Which is larger; NaN is, than any number."""
    if one != one:
        return 1
    return (one > other) - (one < other)


def _known(column: str, holds: Callable[[Any], bool]) -> Callable[[Row], Truth]:
    return lambda row: None if row[column] is None else holds(row[column])


def _not(truth: Truth) -> Truth:
    return None if truth is None else not truth


def _joined(parts: list[Truth], word: str) -> Truth:
    decides = word == "OR"
    return decides if decides in parts else None if None in parts else not decides
