"""Calls in an expression that look at more than one row: aggregates, and functions OVER a window. They are cut out by their words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from millstream.frame import rows, span
from millstream.relation import expression
from millstream.relation.nodes import Frame
from millstream.sql.interval import duration
from millstream.sql.tokens import Piece, Word, depths, edit, part, split, words

_NULLS = {
    ("ASC", "NULLS", "FIRST"): "",
    ("NULLS", "FIRST"): "",
    ("DESC", "NULLS", "LAST"): " DESC",
    ("ASC",): "",
    ("DESC",): " DESC",
}
NULLS_HINT = "nulls come first, with DESC last; leave out NULLS …"
_FRAMES = ("ROWS", "RANGE", "GROUPS")
_STARTS = ("BETWEEN", "UNBOUNDED", "CURRENT", "INTERVAL")


@dataclass(frozen=True, slots=True)
class Call:
    """One call: where it begins and ends in its text, with FILTER and OVER; ``over`` is what stands in the brackets of OVER."""

    start: int
    end: int
    head: str
    """The call without OVER."""
    over: str | None = None


def aggregates(sql: str) -> list[Call]:
    """The aggregates of an expression; those inside of a window function too, but no window function.

    >>> [call.head for call in aggregates("sum(a) / count(*) FILTER (WHERE b) + lower(c)")]
    ['sum(a)', 'count(*) FILTER (WHERE b)']
    """
    return [call for call in _calls(sql, words(sql)) if call.over is None]


def looks(sql: str) -> list[Call]:
    """The window functions of an expression.

    >>> looks("1 + rank() OVER (ORDER BY a)")[0].over
    'ORDER BY a'
    """
    return [call for call in _calls(sql, words(sql)) if call.over is not None]


def _calls(sql: str, found: list[Word]) -> Iterator[Call]:
    index, end = 0, 0
    while index < len(found):
        close = closing(found, index + 1) if found[index].is_name and found[index].text else None
        if close is None or (index and found[index - 1].text in (".", "LIKE", "ILIKE", "RLIKE")):
            index += 1
            continue
        end = close
        if end + 1 < len(found) and found[end + 1].text == "FILTER":
            end = closing(found, end + 2) or end
        head = sql[found[index].start : found[end].end]
        over = closing(found, end + 2) if end + 1 < len(found) and found[end + 1].text == "OVER" else None
        if over is not None:
            inside = sql[found[end + 3].start : found[over - 1].end] if over > end + 3 else ""
            yield Call(found[index].start, found[over].end, head, inside)
            index += 1  # what stands inside may be aggregates
        elif found[index].text.lower() in expression.AGGREGATES:
            yield Call(found[index].start, found[end].end, head)
            index = end + 1
        else:
            index += 1


def closing(found: list[Word], opening: int) -> int | None:
    """The bracket that closes the one at ``opening``; None if there is none."""
    if opening >= len(found) or found[opening].text != "(":
        return None
    open_ = depths(found)
    return next(
        (at for at in range(opening + 1, len(found)) if open_[at] == open_[opening] and found[at].text == ")"), None
    )


def name_windows(sql: str, named: dict[str, str]) -> str:
    """``OVER w`` with what the WINDOW clause says of w."""
    found = words(sql)
    edits = []
    for index, word in enumerate(found[1:], 1):
        if found[index - 1].text == "OVER" and word.is_name and word.value.lower() in named:
            edits.append((word.start, word.end, f"({named[word.value.lower()]})"))
    return edit(sql, edits)


@dataclass(frozen=True, slots=True)
class Spec:
    """What stands in OVER (…): expressions, an order as text, and a frame."""

    partition: tuple[str, ...]
    order: str | None
    frame: Frame | None


class Untaken(Exception):
    """An order or a frame that is not taken; it says what was expected."""


def spec(sql: str) -> Spec:
    """Read ``PARTITION BY a ORDER BY b ROWS BETWEEN 2 PRECEDING AND CURRENT ROW``."""
    piece, found = Piece(sql, 0), words(sql)
    cuts: dict[str, int] = {}
    for index, (word, depth) in enumerate(zip(found, depths(found), strict=True)):
        follows = found[index + 1].text if index + 1 < len(found) else ""
        if not depth and (word.text in ("PARTITION", "ORDER") and follows == "BY"):
            cuts[word.text] = index
        elif not depth and word.text in _FRAMES and (follows.isdigit() or follows in _STARTS):
            cuts["FRAME"] = index
    order = sorted(cuts, key=lambda name: cuts[name])
    parts = {
        name: found[cuts[name] : cuts[order[at + 1]] if at + 1 < len(order) else len(found)]
        for at, name in enumerate(order)
    }
    if sum(map(len, parts.values())) != len(found):
        raise Untaken(f"expected PARTITION BY, ORDER BY and a frame; found `{sql}`")
    partition = (
        tuple(each.sql for each in split(part(piece, parts["PARTITION"][2:]), (",",))) if "PARTITION" in parts else ()
    )
    by = None
    if "ORDER" in parts:
        cut = [cut_order(each) for each in split(part(piece, parts["ORDER"][2:]), (",",))]
        by = ", ".join(f"{each.sql}{suffix}" for each, suffix in cut)
    return Spec(partition, by, _frame(piece, parts["FRAME"]) if "FRAME" in parts else None)


def cut_order(piece: Piece) -> tuple[Piece, str]:
    """One expression of an order, and `` DESC`` if it descends; nulls must stand where they do anyway."""
    found = words(piece.sql)
    tail = len(found)
    while tail > 1 and found[tail - 1].text in ("ASC", "DESC", "NULLS", "FIRST", "LAST"):
        tail -= 1
    said = tuple(word.text for word in found[tail:])
    if said and said not in _NULLS:
        raise Untaken(f"{' '.join(said)} is not taken: nulls come first, with DESC last")
    return part(piece, found[:tail]), _NULLS.get(said, "")


def _frame(piece: Piece, found: list[Word]) -> Frame:
    kind, rest = found[0].text, found[1:]
    if kind == "GROUPS":
        raise Untaken("a frame of GROUPS is not taken; expected ROWS or RANGE")
    whole = part(piece, rest)
    ends = (
        split(part(piece, rest[1:]), ("AND",))
        if rest and rest[0].text == "BETWEEN"
        else [whole, Piece("CURRENT ROW", 0)]
    )
    if len(ends) != 2:
        raise Untaken(f"expected BETWEEN … AND …; found `{whole.sql}`")
    before, after = _distance(ends[0], "PRECEDING", kind), _distance(ends[1], "FOLLOWING", kind)
    return rows(before, after) if kind == "ROWS" else span(before, after)  # type: ignore[arg-type]


def _distance(piece: Piece, way: str, kind: str) -> object:
    found = words(piece.sql)
    said = [word.text for word in found]
    if said == ["CURRENT", "ROW"]:
        return 0
    if said[-1:] != [way]:
        raise Untaken(f"expected a frame from … PRECEDING to … FOLLOWING, with this row in it; found `{piece.sql}`")
    if said == ["UNBOUNDED", way]:
        return None
    distance = part(piece, found[:-1]).sql
    if distance.isdigit():
        return int(distance)
    length = duration(distance) if kind == "RANGE" else None
    if length is None:
        raise Untaken(f"expected a whole number{' or an INTERVAL' * (kind == 'RANGE')}; found `{distance}`")
    return length
