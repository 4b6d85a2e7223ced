"""What was committed after a position, read in pieces: rows that triggers wrote become changes.

Triggers cannot see a commit. But SQLite has one writer at a time, so the numbers of changes are in the order of the commits, and whoever
reads sees whole transactions: what is there between the last end and the one that is seen now is a whole number of them, and is told as one.
The rows up to that end never change until they are acknowledged, so they are read in pieces, each in a short transaction of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import apsw

from millstream.capture.contract import Change, Row, Table
from millstream.capture.sqlite.file import Db, File
from millstream.capture.sqlite.position import At
from millstream.capture.sqlite.reading import read_all
from millstream.capture.sqlite.registry import Registry
from millstream.capture.sqlite.shape import Shape, quoted
from millstream.capture.sqlite.suspects import Key, Suspects
from millstream.capture.sqlite.triggers import DELETED, INSERTED, SUSPECT, UPDATED
from millstream.capture.sqlite.values import Values
from millstream.errors import CaptureError, CaptureGap

PIECE = 2000
_CASE = str.maketrans(ascii_uppercase, ascii_lowercase)
_COLLATIONS: Mapping[str, Callable[[str], str]] = {
    "BINARY": lambda text: text,
    "NOCASE": lambda text: text.translate(_CASE),
    "RTRIM": lambda text: text.rstrip(" "),
}


@dataclass(frozen=True)
class Layout:
    """How rows of a table, as it was under one number, are read."""

    table: Table
    width: int
    places: tuple[int, ...]
    nullable: bool
    uniques: tuple[tuple[tuple[int, str], ...], ...]
    row: Callable[[Sequence[Any]], Row]

    def key(self, row: Sequence[Any], image: int) -> Key:
        """The key of the first or the second image of a row, with the name of its table."""
        start = 4 + image * self.width
        return (self.table.name, *(row[start + place] for place in self.places))

    def stored(self, row: Sequence[Any], image: int) -> Sequence[Any]:
        """The values of an image, as they were stored."""
        start = 4 + image * self.width
        return row[start : start + self.width]

    def image(self, row: Sequence[Any], image: int) -> Row:
        """The values of an image, by column."""
        return self.row(self.stored(row, image))

    def taken(self, row: Sequence[Any]) -> Callable[[Sequence[Any]], bool]:
        """Whether the row that came with a change has a unique key of another, so that the other must be gone."""
        new = () if row[2] == DELETED else self.stored(row, 1 if row[2] == UPDATED else 0)
        return lambda old: any(
            all(folded(new[place], by) == folded(old[place], by) and old[place] is not None for place, by in unique)
            for unique in self.uniques
            if new
        )


def layout_of(shape: Shape) -> Layout:
    """How rows of a table are read."""
    names = [name for name, _ in shape.columns]
    uniques = tuple(
        tuple((names.index(name), by) for name, by in zip(each.columns, each.collations, strict=True))
        for each in shape.uniques
        if not each.where and set(each.columns) <= set(names) and set(each.collations) <= set(_COLLATIONS)
    )
    return Layout(shape.table, len(names), shape.places, shape.nullable, uniques, Values(names, shape.kinds).row)


def folded(value: Any, collation: str) -> Any:
    """What is equal for values that SQLite takes for the same."""
    return _COLLATIONS[collation](value) if isinstance(value, str) else value


class Drain:
    """The changes behind one position up to another. They may be read once."""

    def __init__(
        self, file: File, registry: Registry, layouts: Callable[[Db], Mapping[int, Layout]], after: At, end: At
    ) -> None:
        self._file, self._registry, self._layouts, self._after, self._end = file, registry, layouts, after, end
        self._suspects = Suspects(self._gone)

    def __iter__(self) -> Iterator[Change]:
        last = self._after.seq
        while last < self._end.seq:
            with self._file.read() as db:
                self._check(db)
                layouts = self._layouts(db)
                rows = read_piece(db, self._registry, last, self._end.seq)
            if not rows:
                raise CaptureGap(
                    f"{self._registry.where}: the changes from {last + 1} to {self._end.seq} are gone while they were read",
                    hint="take a new snapshot",
                )
            for row in rows:
                layout = layouts.get(row[1])
                if layout is not None:
                    yield from self._changes(row, layout)
            last = rows[-1][0]
            if self._suspects.full:
                yield from self._suspects.resolved(last)
        yield from self._suspects.resolved(last)

    def _changes(self, row: Sequence[Any], layout: Layout) -> Iterator[Change]:
        op, table = row[2], layout.table
        if layout.nullable:
            self._check_key(row, layout)
        if op == SUSPECT:
            self._suspects.add(
                layout.key(row, 0), Change(table, "d", layout.image(row, 0), None), layout.stored(row, 0)
            )
            return
        if self._suspects:
            there, came = met(row, layout)
            yield from self._suspects.met(there, came, table.name, layout.taken(row))
        if op == INSERTED:
            yield Change(table, "c", None, layout.image(row, 0))
        elif op == UPDATED:
            yield Change(table, "u", layout.image(row, 0), layout.image(row, 1))
        else:
            yield Change(table, "d", layout.image(row, 0), None)

    def _check_key(self, row: Sequence[Any], layout: Layout) -> None:
        for image in range(2 if row[2] == UPDATED else 1):
            if None in layout.key(row, image):
                raise null_key(layout.table)

    def _check(self, db: Db) -> None:
        if self._registry.state(db).capture != self._after.capture:
            self._registry.check_reaches(db, self._after)

    def _gone(self, keys: set[Key], last: int) -> set[Key]:
        """Which rows are gone right behind a change: by the next change that names them, or, if there is none, by the table."""
        gone: set[Key] = set()
        with self._file.read() as db:
            self._check(db)
            layouts = self._layouts(db)
            waiting, end = set(keys), self._registry.end(db).seq
            while waiting and last < end:
                rows = read_piece(db, self._registry, last, end)
                for row in rows:
                    layout = layouts.get(row[1])
                    if layout is None:
                        continue
                    there, came = met(row, layout)
                    waiting.discard(there)
                    if came in waiting:
                        waiting.discard(came)
                        gone.add(came)
                last = rows[-1][0]
            tables = {layout.table.name: layout.table for layout in layouts.values()}
            return gone | {key for key in waiting if not _is_there(db, tables[key[0]], key)}


def met(row: Sequence[Any], layout: Layout) -> tuple[Key, Key]:
    """The key of the row that was there before a change, and of the one that came; () for none. A suspect was there."""
    op = row[2]
    there = () if op == INSERTED else layout.key(row, 0)
    came = () if op in (DELETED, SUSPECT) else layout.key(row, 1 if op == UPDATED else 0)
    return there, came if came != there else ()


def read_piece(db: Db, registry: Registry, last: int, end: int) -> list[Sequence[Any]]:
    """The next rows behind a number."""
    columns = [f"v{place}" for place in range(registry.widest(db))]
    head = "SELECT seq, t, op, at"
    rest = f"FROM {registry.changes} WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT {PIECE}"
    return read_all(db, head, columns, rest, (last, end))


def null_key(table: Table) -> CaptureError:
    """The error for a row whose key is null, which SQLite allows."""
    columns = ", ".join(table.key)
    return CaptureError(
        f"table {table.name} has a row with a null in its key ({columns}), so nothing tells it from others of the kind",
        hint=f"DELETE FROM {table.name} WHERE {' OR '.join(f'{name} IS NULL' for name in table.key)}; or give it a key; and take a new snapshot",
    )


def _is_there(db: Db, table: Table, key: Key) -> bool:
    """Whether there is a row of exactly this key, whatever the collation of the key takes for the same."""
    columns = [quoted(name) for name in table.key]
    where = " AND ".join(f"{each} = ?" for each in columns)
    try:
        rows = db.execute(
            f"SELECT {', '.join(columns)} FROM main.{quoted(table.name)} WHERE {where}", key[1:]
        ).fetchall()
    except apsw.SQLError as error:
        raise CaptureError(f"table {table.name}: {error}", hint="take a new snapshot") from error
    return any((table.name, *row) == key for row in rows)
