"""MATCH_RECOGNIZE in FROM, read by its words. The clauses stand in the order of the standard, with WITHIN behind the pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.relation.pattern import Shown, Skip
from millstream.sql.ast import Matched, Table
from millstream.sql.tokens import Piece, part, split, words

if TYPE_CHECKING:
    from millstream.sql.from_clause import TableReader

EXAMPLE = (
    "MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY at MEASURES LAST(DOWN.price) AS low PATTERN (UP DOWN+)"
    " DEFINE DOWN AS price < PREV(price))"
)
_BEGIN = (
    ("PARTITION", "BY"), ("ORDER", "BY"), ("MEASURES",), ("ONE", "ROW"), ("ALL", "ROWS"), ("AFTER", "MATCH"), ("PATTERN", "("),
    ("WITHIN", "INTERVAL"), ("SUBSET",), ("DEFINE",),
)  # fmt: skip
_SKIP_HINT = "AFTER MATCH SKIP PAST LAST ROW, TO NEXT ROW, TO FIRST A or TO LAST A"


def read_match(reader: TableReader, table: Table) -> Matched:
    """What stands in the brackets behind MATCH_RECOGNIZE, which was read."""
    at = reader.words[reader.index - 1].start
    reader.expect("(", hint=EXAMPLE)
    partition = _pieces(reader) if reader.skip("PARTITION", "BY") else ()
    order = _pieces(reader) if reader.skip("ORDER", "BY") else ()
    measures = tuple(_measure(reader, piece) for piece in _pieces(reader)) if reader.skip("MEASURES") else ()
    shown = _shown(reader)
    skip_at, skip = reader.at, _skip(reader)
    reader.expect("PATTERN", hint=f"the clauses stand in this order: {EXAMPLE}")
    pattern = _brackets(reader)
    within = reader.piece(lambda: _begins(reader)) if reader.skip("WITHIN") else None
    subset = _subset(reader) if reader.skip("SUBSET") else ()
    define = _define(reader) if reader.skip("DEFINE") else ()
    reader.expect(")", hint=f"the clauses stand in this order: {EXAMPLE}")
    return Matched(
        table, at, pattern, partition, order, measures, define, subset, shown, skip, skip_at, within
    )  # fmt: skip


def _begins(reader: TableReader) -> bool:
    """Whether the next word begins another clause."""
    before = reader.words[reader.index - 1].text
    found = next((some for some in _BEGIN if all(reader.word(at) == word for at, word in enumerate(some))), ())
    name = before in (".", "AS") or (len(found) == 1 and (before in (",", "BY", "(") or reader.word(1) in (".", ",")))
    return bool(found) and not name


def _pieces(reader: TableReader) -> tuple[Piece, ...]:
    found = split(reader.piece(lambda: _begins(reader)), (",",))
    for each in found:
        if not each.sql:
            raise reader.text.error(each.at, "expected an expression beside the comma; found nothing")
    return tuple(found)


def _measure(reader: TableReader, piece: Piece) -> tuple[str, Piece]:
    found = words(piece.sql)
    if len(found) < 3 or found[-2].text != "AS" or not found[-1].is_name:
        raise reader.text.error(piece.at, f"measure `{piece.sql}` has no name", f"{piece.sql} AS name")
    return found[-1].value, part(piece, found[:-2])


def _shown(reader: TableReader) -> Shown:
    if reader.skip("ONE"):
        reader.expect("ROW", "PER", "MATCH")
        return "one"
    if not reader.skip("ALL"):
        return "one"
    reader.expect("ROWS", "PER", "MATCH")
    if reader.skip("OMIT"):
        reader.expect("EMPTY", "MATCHES")
        return "all"
    if reader.skip("WITH"):
        reader.expect("UNMATCHED", "ROWS")
        return "all_with_unmatched"
    if reader.skip("SHOW"):
        reader.expect("EMPTY", "MATCHES")
    return "all_with_empty"


def _skip(reader: TableReader) -> Skip:
    if not reader.skip("AFTER"):
        return Skip()
    reader.expect("MATCH", "SKIP", hint=_SKIP_HINT)
    if reader.skip("PAST"):
        reader.expect("LAST", "ROW", hint=_SKIP_HINT)
        return Skip()
    reader.expect("TO", hint=_SKIP_HINT)
    if reader.skip("NEXT", "ROW"):
        return Skip("next_row")
    first = reader.skip("FIRST")
    if not first:
        reader.skip("LAST")
    return Skip("first" if first else "last", (reader.name("a variable of the pattern"),))


def _brackets(reader: TableReader) -> Piece:
    """What stands in brackets, whatever its words mean elsewhere."""
    reader.expect("(")
    start, depth = reader.words[reader.index - 1].end, 1
    while not reader.done:
        depth += (reader.word() == "(") - (reader.word() == ")")
        if not depth:
            break
        reader.index += 1
    end = reader.at
    reader.expect(")")
    return Piece(reader.text.sql[start:end], start)


def _subset(reader: TableReader) -> tuple[tuple[str, tuple[str, ...], int], ...]:
    made = []
    while True:
        at, name = reader.at, reader.name("a name for several variables")
        reader.expect("=", hint="SUBSET U = (A, B)")
        made.append((name, reader.names(), at))
        if not reader.skip(","):
            return tuple(made)


def _define(reader: TableReader) -> tuple[tuple[str, Piece], ...]:
    made = []
    while True:
        name = reader.name("a variable of the pattern")
        reader.expect("AS", hint="DEFINE A AS price > 10")
        made.append((name, reader.piece(lambda: reader.word() == ",")))
        if not reader.skip(","):
            return tuple(made)
