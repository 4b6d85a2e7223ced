"""Spans of time in a query, and conditions that bound how far two times are apart.

Times are whole microseconds, so ``a.at < b.at`` is the same as at most one microsecond less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeAlias

from millstream.errors import PlanError
from millstream.relation.schema import parse_duration
from millstream.sql.tokens import Piece, Word, depths, part, split, unwrap, words

Bounds: TypeAlias = tuple[timedelta | None, timedelta | None]
"""The least and the greatest of right time − left time that a condition allows."""
Side: TypeAlias = Callable[[Piece], int | None]
"""Whose event time a piece is: 0 the left's, 1 the right's, None nobody's."""

_LEAST = timedelta(microseconds=1)
_OPPOSITE = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "==": "="}


def duration(sql: str) -> timedelta | None:
    """Read ``INTERVAL 10 SECONDS``, ``INTERVAL '10' SECOND`` or ``'10 seconds'``; None if it is none of these.

    >>> duration("INTERVAL '1' HOUR"), duration("INTERVAL 1 HOUR 30 MINUTES"), duration("at")
    (datetime.timedelta(seconds=3600), datetime.timedelta(seconds=5400), None)
    """
    found = words(sql)
    literal = [not word.is_name and not word.text for word in found]
    if found and found[0].text == "INTERVAL":
        found, literal = found[1:], literal[1:]
    elif literal != [True]:
        return None
    try:
        return parse_duration(" ".join(word.value for word in found))
    except PlanError:
        return None


def bounds(condition: Piece, side: Side) -> Bounds | None:
    """What a condition says of right time − left time; None if it compares anything else."""
    condition = unwrap(condition)
    found = words(condition.sql)
    outside = [word for word, depth in zip(found, depths(found), strict=True) if not depth]
    if any(word.text == "BETWEEN" for word in outside) and not any(word.text == "NOT" for word in outside):
        value, rest = split(condition, ("BETWEEN",))
        ends = split(rest, ("AND",))
        if len(ends) != 2:
            return None
        return both(_compare(value, ">=", ends[0], side), _compare(value, "<=", ends[1], side))
    signs = [word.text for word in outside if word.text in _OPPOSITE]
    if len(signs) != 1:
        return None
    left, right = split(condition, tuple(_OPPOSITE))
    return _compare(left, signs[0], right, side)


def both(one: Bounds | None, other: Bounds | None) -> Bounds | None:
    """What two conditions say together."""
    if one is None or other is None:
        return None
    lows = [each for each in (one[0], other[0]) if each is not None]
    highs = [each for each in (one[1], other[1]) if each is not None]
    return max(lows, default=None), min(highs, default=None)


def _compare(left: Piece, sign: str, right: Piece, side: Side) -> Bounds | None:
    one, other = _shifted(left, side), _shifted(right, side)
    if one is None or other is None or one[0] == other[0]:
        return None
    if one[0] == 0:
        one, other, sign = other, one, _OPPOSITE[sign]
    span = other[1] - one[1]  # right + one ⋚ left + other
    match sign:
        case "<=":
            return None, span
        case "<":
            return None, span - _LEAST
        case ">=":
            return span, None
        case ">":
            return span + _LEAST, None
        case _:
            return span, span


def _shifted(piece: Piece, side: Side) -> tuple[int, timedelta] | None:
    """An event time, more or less some spans: whose it is, and the sum of the spans."""
    piece = unwrap(piece)
    found = words(piece.sql)
    terms: list[tuple[str, list[Word]]] = [("+", [])]
    for word, depth in zip(found, depths(found), strict=True):
        if word.text in ("+", "-") and not depth:
            terms.append((word.text, []))
        else:
            terms[-1][1].append(word)
    shift, whose = timedelta(0), None
    for sign, some in terms:
        term = _term(piece, some)
        span = duration(term.sql) if term.sql.upper().startswith("INTERVAL") else None
        if span is not None:
            shift += span if sign == "+" else -span
        elif whose is None and sign == "+" and term.sql:
            whose = side(term)
        else:
            return None
    return None if whose is None else (whose, shift)


def _term(piece: Piece, some: Sequence[Word]) -> Piece:
    term = part(piece, some)
    return unwrap(term) if term.sql else term
