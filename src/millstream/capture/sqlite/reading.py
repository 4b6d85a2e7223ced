"""Rows of a query with every value as it is stored, text that is not UTF-8 too: SQLite keeps what it was given.

The plain way fails at such a text; then the same rows are asked for with the class and the bytes of each value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TypeAlias

from millstream.capture.sqlite.file import Db
from millstream.capture.sqlite.values import Unreadable

Stored: TypeAlias = Sequence[Any]


def read_all(db: Db, head: str, columns: Sequence[str], rest: str, values: Sequence[Any]) -> list[Stored]:
    """The rows of a query: what the head asks for, which is no text, and columns."""
    try:
        return db.execute(", ".join((head, *columns)) + f" {rest}", values).fetchall()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        found = db.execute(", ".join((head, *map(_exact, columns))) + f" {rest}", values).fetchall()
        return [_read(row, len(row) - 3 * len(columns)) for row in found]


class Pieces:
    """All rows of a table in pieces, in one transaction, in which they always come in the same order."""

    def __init__(self, db: Db, columns: Sequence[str], place: str, most: int) -> None:
        self._db, self._columns, self._place, self._most = db, columns, place, most
        self._done = 0
        self._exact = False
        self._rows: Iterator[Stored] = iter(db.execute(f"SELECT {', '.join(columns)} FROM {place} NOT INDEXED"))

    def next(self) -> list[Stored]:
        """The next rows; none at the end."""
        try:
            found = list(islice(self._rows, self._most))
        except UnicodeDecodeError:
            self._exact = True
            asked = ", ".join(map(_exact, self._columns))
            self._rows = iter(
                self._db.execute(f"SELECT {asked} FROM {self._place} NOT INDEXED LIMIT -1 OFFSET ?", (self._done,))
            )
            found = list(islice(self._rows, self._most))
        self._done += len(found)
        return [_read(row, 0) for row in found] if self._exact else found


def _exact(column: str) -> str:
    return (
        f"typeof({column}), CAST({column} AS BLOB), CASE WHEN typeof({column}) IN ('integer', 'real') THEN {column} END"
    )


def _read(row: Stored, head: int) -> Stored:
    """A row whose values came as class, bytes and number."""
    found = list(row[:head])
    for kind, stored, number in zip(row[head::3], row[head + 1 :: 3], row[head + 2 :: 3], strict=True):
        if kind == "text":
            found.append(_text(stored))
        else:
            found.append(stored if kind == "blob" else number)
    return found


def _text(stored: bytes) -> str | Unreadable:
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return Unreadable(stored)
