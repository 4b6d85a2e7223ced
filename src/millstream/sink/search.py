"""A text index as a sink: rows by key, their words, and the batch's number, in one transaction of a SQLite file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from millstream.database import Db
from millstream.errors import ConfigError
from millstream.sink import json_rows
from millstream.sink.contract import ChangeSet, Packed, Sink, check_remembered
from millstream.sink.search_file import Index, IndexFile, quoted
from millstream.store.contract import Refusal


@dataclass(frozen=True)
class Payload:
    """Rows as key, document and the texts to search, and the keys that are gone."""

    rows: list[tuple[str, ...]]
    gone: list[tuple[str]]

    def __len__(self) -> int:
        return len(self.rows) + len(self.gone)


class SearchSink(Sink):
    """A file that is searched by :func:`millstream.search`."""

    def __init__(
        self, path: Path, columns: Sequence[str], tokenizer: str, view: str, producer: str, key: tuple[str, ...]
    ) -> None:
        if not key:
            raise ConfigError(
                f"view {view} has no key, so its rows cannot be a text index", hint="group_by gives it one"
            )
        self._columns, self._key = list(columns), list(key)
        self._index, self._path = Index(producer, view, key, tuple(columns), tokenizer), path
        self._open()
        names = ", ".join(quoted(name) for name in columns)
        self._words = f"INSERT OR REPLACE INTO millstream_words (rowid, {names}) VALUES (?{', ?' * len(self._columns)})"

    def _open(self) -> None:
        self._file = IndexFile(self._path, create=True)
        self._file.become(self._index)
        self._which = self._path.stat().st_ino

    def _at_hand(self) -> IndexFile:
        """The file that has the name now: one that was removed or replaced would take rows that nobody finds."""
        if not self._path.exists() or self._path.stat().st_ino != self._which:
            self._file.close()
            self._open()
        return self._file

    def last(self) -> int | None:
        """The number in the file."""
        with self._file.read() as db:
            return _known(db)

    def pack(self, change_set: ChangeSet) -> Packed:
        """Rows as JSON, and what of them is searched."""
        rows, refused = json_rows.writable(change_set.rows)
        keys, documents = json_rows.documents(rows.select(self._key)), json_rows.documents(rows)
        texts = [_text(name, rows[name]).to_list() for name in self._columns]
        gone, _ = json_rows.writable(change_set.gone)  # what was refused when it came is not there
        left = [(key,) for key in json_rows.documents(gone)]
        return Packed(Payload(list(zip(keys.to_list(), documents.to_list(), *texts, strict=True)), left), refused)

    def send(
        self,
        payload: Payload,
        sequence: int,
        *,
        marked: bool,  # noqa: ARG002
        after: int | None = None,
    ) -> list[Refusal]:
        """Change rows, words and number together; the number costs nothing here, so it always counts."""
        if not len(payload):
            return []
        with self._at_hand().write() as db:
            known = _known(db)
            check_remembered(f"the text index {self._file.path}", known, after)
            if known is not None and sequence <= known:
                return []
            for left in payload.gone:
                for (number,) in db.execute("DELETE FROM millstream_rows WHERE key = ? RETURNING id", left).fetchall():
                    db.execute("DELETE FROM millstream_words WHERE rowid = ?", (number,))
            for key, document, *texts in payload.rows:
                upsert = (
                    "INSERT INTO millstream_rows (key, document) VALUES (?, ?)"
                    " ON CONFLICT (key) DO UPDATE SET document = excluded.document RETURNING id"
                )
                number = db.execute(upsert, (key, document)).get
                db.execute(self._words, (number, *texts))
            _number(db, sequence)
        return []

    def held(self) -> Iterator[tuple[str, str]]:
        """The rows of the file."""
        with self._at_hand().read() as db:
            yield from db.execute("SELECT key, document FROM millstream_rows")

    def anew(self) -> bool:
        """Remove all rows: nothing in the file is anyone else's."""
        with self._file.write() as db:
            db.execute("DELETE FROM millstream_rows; DELETE FROM millstream_words")
        return True

    def seal(self, sequence: int, *, after: int | None) -> bool:
        """Set the number, if nothing came since."""
        with self._file.write() as db:
            known = _known(db)
            if known == after:
                _number(db, sequence)
        return known in (after, sequence)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _known(db: Db) -> int | None:
    number: int | None = db.execute("SELECT sequence FROM millstream_index").get
    return number


def _number(db: Db, sequence: int) -> None:
    db.execute("UPDATE millstream_index SET sequence = ?", (sequence,))


def _text(name: str, values: pl.Series) -> pl.Series:
    """What is searched of a column: text, or a list of texts."""
    if values.dtype == pl.List(pl.String):
        return values.list.join(" ", ignore_nulls=True)
    if values.dtype not in (pl.String, pl.Null):
        raise ConfigError(
            f"search: columns={name} is of {values.dtype}; expected text",
            hint=f"select('cast({name} AS string) AS {name}', …)",
        )
    return values
