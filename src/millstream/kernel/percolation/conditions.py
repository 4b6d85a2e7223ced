"""Conditions in disjunctive form: alternatives, of which each says of some columns what their values must be.

What an alternative says of a column is one :class:`Demand`, whatever the order and the number of the tests that it comes from, so
conditions that ask alike have one shape. NOT is moved to the tests; a comparison with null is neither true nor false, so a test
and its opposite both need a value. An alternative that can never be true is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

from millstream.kernel.percolation.columns import LEAST, Bound, Column, Key, words_in
from millstream.kernel.percolation.language import All, Any, Mistake, Not, Test, Tree, Value, read
from millstream.printable import printable

MOST_ALTERNATIVES = 256
MOST_COMBINATIONS = 1_024
"""Values of equalities, those of several columns multiplied: so many entries the index has of an alternative."""

MOST_WORDS = 64
_SHOWN = 60
_LAST = 0x10FFFF

End: TypeAlias = tuple[Key, bool] | None
"""The end of a range, and whether it belongs to it; None if it is open."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What the value of a column must be: null, or else one of ``values`` and all the rest."""

    null: bool = False
    values: frozenset[Key] | None = None
    low: End = None
    high: End = None
    others: frozenset[Key] = frozenset()
    """What it must not be."""
    words: frozenset[str] = frozenset()
    """Words that are all in it."""
    lacking: frozenset[frozenset[str]] = frozenset()
    """Of the words of each of these, one is not in it."""

    def holds(self, key: Key) -> bool:
        """Whether a value is within the range, and none that it must not be."""
        above = self.low is None or key > self.low[0] or (key == self.low[0] and self.low[1])  # type: ignore[operator]
        below = self.high is None or key < self.high[0] or (key == self.high[0] and self.high[1])  # type: ignore[operator]
        return above and below and key not in self.others


Alternative: TypeAlias = dict[str, Demand]


@lru_cache(maxsize=65_536)  # a kernel asks for the same ones in each batch
def alternatives(text: str, columns: tuple[Column, ...]) -> tuple[Alternative, ...]:
    """Read a condition; Mistake if it is none over these columns. Nobody changes what comes back."""
    return tuple(_normal(read(text), {column.name.lower(): column for column in columns}, negated=False))


def _normal(tree: Tree, columns: dict[str, Column], *, negated: bool) -> list[Alternative]:
    match tree:
        case Not(of):
            return _normal(of, columns, negated=not negated)
        case Test():
            column = columns.get(tree.column.lower())
            if column is None:
                shown, known = printable(tree.column[:_SHOWN]), ", ".join(each.name for each in columns.values())
                raise Mistake(f"no column {shown} that a condition may use; these are {known}")
            tidied = (_tidy(each) for each in _demands(tree, column, negated))
            return [{column.name: each} for each in tidied if each is not None]
        case All(of) | Any(of):
            parts = [_normal(each, columns, negated=negated) for each in of]
    if isinstance(tree, Any) != negated:
        return _few([each for part in parts for each in part])
    found: list[Alternative] = [{}]
    for part in parts:
        if len(found) * len(part) > 16 * MOST_ALTERNATIVES:
            _few([{}] * (len(found) * len(part)))
        found = _few([made for one in found for other in part if (made := _both(one, other)) is not None])
    return found


def _few(found: list[Alternative]) -> list[Alternative]:
    """These alternatives, each once."""
    distinct = list({frozenset(each.items()): each for each in found}.values())
    if len(distinct) > MOST_ALTERNATIVES:
        raise Mistake(
            f"{len(distinct):,} alternatives when AND and OR are multiplied out; at most {MOST_ALTERNATIVES} are allowed"
        )
    for each in distinct:
        entries = math.prod(len(demand.values) for demand in each.values() if demand.values)
        if entries > MOST_COMBINATIONS:
            raise Mistake(
                f"{entries:,} combinations of values of several columns; at most {MOST_COMBINATIONS:,} are allowed"
            )
    return distinct


def _both(one: Alternative, other: Alternative) -> Alternative | None:
    """What is demanded by both; None if that cannot be."""
    made = dict(one)
    for name, demand in other.items():
        merged = _merged(made[name], demand) if name in made else demand
        if merged is None:
            return None
        made[name] = merged
    return made


def _merged(one: Demand, other: Demand) -> Demand | None:
    if one.null or other.null:
        return one if one == other else None
    known = [each.values for each in (one, other) if each.values is not None]
    made = Demand(
        False,
        frozenset.intersection(*known) if known else None,
        _inner(one.low, other.low, lower=True),
        _inner(one.high, other.high, lower=False),
        one.others | other.others,
        one.words | other.words,
        one.lacking | other.lacking,
    )
    return _tidy(made)


def _inner(one: End, other: End, *, lower: bool) -> End:
    """The end of what two ranges share."""
    if one is None or other is None:
        return one or other
    if one[0] == other[0]:
        return one[0], one[1] and other[1]
    return one if (one[0] > other[0]) == lower else other  # type: ignore[operator]


def _tidy(demand: Demand) -> Demand | None:
    """The demand in its only form; None if no value meets it."""
    low, high = demand.low, demand.high
    if isinstance(high and high[0], int) and high[0] < LEAST:  # type: ignore[index, operator]
        return None
    if isinstance(low and low[0], int) and low[0] < LEAST:  # type: ignore[index, operator]
        low = None
    if low is not None and high is not None and low[0] >= high[0]:  # type: ignore[operator]
        if low[0] > high[0] or not (low[1] and high[1]):  # type: ignore[operator]
            return None
        demand = replace(demand, values=frozenset([low[0]]) & (demand.values or frozenset([low[0]])))
    if low is not demand.low:
        demand = replace(demand, low=low)
    if any(words <= demand.words for words in demand.lacking):
        return None
    if demand.values is None:
        return demand
    values = frozenset(filter(demand.holds, demand.values))
    return Demand(values=values, words=demand.words, lacking=demand.lacking) if values else None


def _demands(test: Test, column: Column, negated: bool) -> Sequence[Demand]:
    """The demands of which one must be met where a test is true; of one that is negated where it is false."""
    match test.how:
        case "null":
            return [Demand()] if negated else [Demand(null=True)]
        case "words":
            words = _words(test.values[0], column)
            return [Demand(lacking=frozenset([words]))] if negated else [Demand(words=words)]
        case "like":
            return _like(test.values[0], column, negated)
    bounds = [column.bound(each) for each in test.values]
    if column.family == "boolean" and test.how not in ("=", "<>", "in"):
        raise Mistake(f"{column.name} is boolean; it is true or false, and neither is larger")
    match test.how:
        case "between":
            low, high = bounds
            if negated:
                return [Demand(high=_end(low, "<")), Demand(low=_end(high, ">"))]
            return [Demand(low=_end(low, ">="), high=_end(high, "<="))]
        case "=" | "<>" | "in":
            values = frozenset(each.key for each in bounds if each.exact)
            if (test.how == "<>") != negated:
                return [Demand(others=values)]
            return [Demand(values=values)]
        case how:
            sign = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}[how] if negated else how
            end = _end(bounds[0], sign)
            return [Demand(high=end)] if sign in ("<", "<=") else [Demand(low=end)]


def _end(bound: Bound, sign: str) -> End:
    """The end of a range that a comparison makes: a literal between two keys is above the lower one, which it ends at."""
    if not bound.exact:
        return bound.key, sign in ("<", "<=")
    return bound.key, sign in ("<=", ">=")


def _words(value: Value, column: Column) -> frozenset[str]:
    if column.family != "text" or not isinstance(value.value, str):
        raise Mistake(f"contains_words needs a column of text and words in quotes; {column.name} is {column.type}")
    words = frozenset(words_in(value.value))
    if not words:
        raise Mistake(f"contains_words without a word: {printable(value.written[:_SHOWN])}")
    if len(words) > MOST_WORDS:
        raise Mistake(f"contains_words with {len(words)} words; at most {MOST_WORDS} are allowed")
    return words


def _like(value: Value, column: Column, negated: bool) -> Sequence[Demand]:
    """LIKE with a beginning is a range of texts; a pattern without % is a text."""
    if column.family != "text" or not isinstance(value.value, str):
        raise Mistake(f"LIKE needs a column of text and a pattern in quotes; {column.name} is {column.type}")
    beginning, rest = _beginning(value.value)
    if rest not in ("", "%"):
        raise Mistake(f"expected a pattern with one % at its end; found {printable(value.written[:_SHOWN])}")
    if not rest:
        values = frozenset([beginning])
        return [Demand(others=values)] if negated else [Demand(values=values)]
    after = _after(beginning)
    if negated:
        return [
            *([Demand(high=(beginning, False))] if beginning else []),
            *([Demand(low=(after, True))] if after else []),
        ]
    return [Demand(low=(beginning, True), high=(after, False) if after else None)]


def _beginning(pattern: str) -> tuple[str, str]:
    """A pattern up to its first wildcard, and the rest; a backslash takes the meaning of what follows it."""
    made, at = [], 0
    while at < len(pattern) and pattern[at] not in "%_":
        if pattern[at] == "\\":
            if pattern[at + 1 : at + 2] not in ("%", "_", "\\"):
                raise Mistake(r"a backslash in a pattern stands before %, _ or another backslash")
            at += 1
        made.append(pattern[at])
        at += 1
    return "".join(made), pattern[at:]


def _after(beginning: str) -> str:
    """The first text behind all those that begin so; nothing if there is none."""
    while beginning:
        code = ord(beginning[-1]) + 1
        code = 0xE000 if 0xD800 <= code < 0xE000 else code
        if code <= _LAST:
            return beginning[:-1] + chr(code)
        beginning = beginning[:-1]
    return ""
