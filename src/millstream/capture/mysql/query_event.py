"""The event that holds a statement: its text, in the character set of who sent it, and its database."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.capture.mysql.charsets import Charsets, decoder
from millstream.capture.mysql.rows import unpacked
from millstream.capture.mysql.statements import Statement, read_statement

QUERY, LOAD, COMPRESSED = 2, 18, 165
_SQL_MODE, _CHARSET = 1, 4
_SIZES = {0: 4, _SQL_MODE: 8, 3: 4, _CHARSET: 6}
_CATALOG, _OLD_CATALOG = 6, 2
_ANSI_QUOTES = 4


def read_query(kind: int, body: bytes, charsets: Charsets) -> tuple[Statement, str]:
    """The statement of an event, and its text."""
    names, size = body[8], int.from_bytes(body[11:13], "little")
    at = 13 if kind != LOAD else 26
    said = dict(_status(body[at : at + size]))
    at += size
    database = body[at : at + names].decode(errors="replace")
    text = body[at + names + 1 :]
    if kind == COMPRESSED:
        text = unpacked(text, 0)
    charset = charsets.of(int.from_bytes(said[_CHARSET][:2], "little")).name if _CHARSET in said else "utf8mb4"
    try:
        query = decoder(charset, "a statement")(text)
    except UnicodeDecodeError:  # bytes in it, as a literal; names are text
        query = text.decode(errors="surrogateescape")
    ansi = bool(int.from_bytes(said.get(_SQL_MODE, b""), "little") & _ANSI_QUOTES)
    return read_statement(query, database, ansi=ansi), query


def _status(body: bytes) -> Iterator[tuple[int, bytes]]:
    """What stands beside a statement, as far as its parts are known: those that are asked for come first."""
    at = 0
    while at < len(body):
        kind = body[at]
        at += 1
        if kind in (_CATALOG, _OLD_CATALOG) and at < len(body):
            size = 1 + body[at] + (kind == _OLD_CATALOG)
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            return
        yield kind, body[at : at + size]
        at += size
