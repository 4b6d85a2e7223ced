"""Reading views from a SQLite file. Invariant: every answer is one snapshot, between two batches and never inside one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw

from millstream.database import Db
from millstream.errors import ViewError
from millstream.store.checks import COUNT, find, info_of, key_columns
from millstream.store.contract import Entry, Hidden, Page, Rows, StoreReader, ViewInfo
from millstream.store.identifier import quote
from millstream.store.sqlite import hidden as hiding
from millstream.store.sqlite import ledger, tables
from millstream.store.sqlite.file import ViewFile
from millstream.store.sqlite.values import encode

_STEPS = 100_000
"""Steps of SQLite's machine between two looks at whether someone asks to stop: some milliseconds."""


class SqliteReader(StoreReader):
    """The reading side of a file of views; it may be used from many threads."""

    def __init__(self, path: str | Path, *, create: bool = False) -> None:
        self._file = ViewFile(Path(path), create=create)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def views(self) -> list[ViewInfo]:
        """Every view kept here, by name."""
        with self._file.read() as db:
            return [_info(db, kept) for kept in tables.load(db).values()]

    def last(self, pipeline: str) -> Entry | None:
        """The newest entry of a pipeline's ledger."""
        with self._file.read() as db:
            return next(iter(ledger.entries(db, pipeline, 1)), None)

    def table(self, view: str, limit: int | None = None) -> Any:
        """All rows, or the first ones, in the declared schema, in the order of the key."""
        with self._file.read() as db:
            return tables.rows_of(db, self._find(db, view), limit)

    def page(self, view: str, page: Page) -> Any:
        """Some rows, in an order."""
        with self._file.read() as db:
            return tables.page_of(db, self._find(db, view), page)

    def get(self, view: str, key: Sequence[Any]) -> dict[str, Any] | None:
        """The row of a key, or None. Text is taken for any type, in the form that Arrow reads."""
        with self._file.read() as db:
            kept = self._find(db, view)
            schema = kept.target.schema
            wanted = [encode(each, schema.field(each.name).type)[0] for each in key_columns(kept.target, key)]
            where = " AND ".join(f"{quote(name)} IS ?" for name in kept.target.identity)
            rows = db.execute(f"SELECT {kept.columns} FROM {kept.sql_name} WHERE {where}", wanted).fetchall()
            found: list[dict[str, Any]] = tables.to_arrow(rows, schema).to_pylist()
            return found[0] if found else None

    def query(self, sql: str, hidden: Sequence[Hidden] = ()) -> Rows:
        """Run one statement of SQLite's SQL that only reads."""
        columns: list[tuple[str, ...]] = []

        def one(cursor: Any, _sql: str, _bindings: Any) -> bool:
            columns.append(tuple(name for name, *_ in cursor.get_description()))
            if len(columns) > 1:
                raise ViewError("found several statements, expected one")
            return True

        with self._file.read_only(lambda db: hiding.shadow(db, hidden)) as db:
            db.set_progress_handler(_go_on, _STEPS)
            cursor = db.cursor()
            cursor.exec_trace = one
            try:
                rows = cursor.execute(sql).fetchall()
            except (apsw.AuthError, apsw.ReadOnlyError) as error:
                raise ViewError(
                    f"only statements that read are run here: {error}",
                    hint="views change only with the records of the log",
                ) from error
            except apsw.SQLError as error:
                raise ViewError(f"the query does not run: {error}") from error
        if not any(columns):
            raise ViewError("found no statement, expected one that reads")
        return Rows(columns[0], rows)

    def dead_letters(self, pipeline: str | None = None, *, reason: str | None = None, limit: int = 1000) -> Any:
        """The newest records that were not admitted, newest first."""
        with self._file.read() as db:
            return ledger.dead_letters(db, pipeline, reason, limit)

    def admission(self, pipeline: str | None = None) -> Any:
        """What became of all records since the beginning, for each partition."""
        with self._file.read() as db:
            return ledger.admission(db, pipeline)

    def hidden(self) -> list[Hidden]:
        """Which rows are to be hidden."""
        with self._file.read() as db:
            return hiding.hidden(db)

    def _find(self, db: Db, view: str) -> tables.Kept:
        return find(str(self._file.path), tables.load(db), view)


def _go_on() -> bool:
    """Called by SQLite now and then: Python looks for signals whenever a function of its own is called, and raises here."""
    return False


def _info(db: Db, kept: tables.Kept) -> ViewInfo:
    target = kept.target
    rows = db.execute(f"SELECT {'count(*)' if target.identity else f'total({COUNT})'} FROM {kept.sql_name}").get
    last = next(iter(ledger.entries(db, kept.pipeline, 1)), None)
    return info_of(target, kept.pipeline, int(rows), last, ledger.refused(db, kept.pipeline, target.name))
