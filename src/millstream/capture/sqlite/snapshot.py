"""The rows of tables at one position: one read transaction sees the tables and the last change that is in them.

With a write-ahead log it keeps nobody from writing, for as long as it lasts. Without one no writer can commit meanwhile, so there the rows
are first copied into a temporary file, which takes a second for a million, and the transaction is over before the first is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType

import apsw

from millstream import fork
from millstream.capture.contract import Position, Row, Snapshot, Table
from millstream.capture.sqlite.changes import layout_of, null_key
from millstream.capture.sqlite.file import Db, File
from millstream.capture.sqlite.reading import Pieces
from millstream.capture.sqlite.registry import Registry
from millstream.capture.sqlite.shape import quoted
from millstream.errors import TableChanged


class SqliteSnapshot(Snapshot):
    """Rows in pieces, one table after the other, over a connection of its own."""

    def __init__(self, file: File, registry: Registry, tables: Sequence[Table], rows: int) -> None:
        self._file, self._rows, self._in_use = file, rows, fork.InUse()
        self._db: Db = file.connect()
        fork.watch(self)
        try:
            with self._using() as db:
                db.execute("BEGIN")
                self.position: Position = registry.end(db).said()
                registry.check_tables(db, [table.name for table in tables])
                self._known = {each.shape.table: each.shape for each in registry.live(db).values()}
                wanted = [table for table in tables if table in self._known]
                self._counts = {
                    each: db.execute(f"SELECT count(*) FROM main.{quoted(each.name)}").get for each in wanted
                }
                self._places = {each: f"main.{quoted(each.name)}" for each in wanted}
                if db.pragma("journal_mode") != "wal":
                    self._copy()
        except BaseException:
            self.let_go()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.let_go()

    def let_go(self) -> None:
        """End it, whatever is half read; so does a fork."""
        with suppress(apsw.Error):
            self._db.close(True)

    def count(self, table: Table) -> int | None:
        """How many rows there are."""
        return self._counts.get(table)

    def rows(self, table: Table) -> Iterator[Sequence[Row]]:
        """All rows, in the order in which they are stored."""
        shape = self._known.get(table)
        if shape is None:
            raise TableChanged(
                f"table {table.full_name} is not as it was when this snapshot began", hint="begin the snapshot again"
            )
        layout = layout_of(shape)
        pieces = Pieces(self._db, [quoted(name) for name, _ in shape.columns], self._places[table], self._rows)
        while True:
            with self._using():
                found = pieces.next()
            if not found:
                return
            if layout.nullable and any(row[place] is None for row in found for place in layout.places):
                raise null_key(table)
            yield [layout.row(row) for row in found]

    def _copy(self) -> None:
        """Copy the rows as they are stored: columns without a type convert nothing."""
        for number, (table, place) in enumerate(self._places.items()):
            shape = self._known[table]
            names = [quoted(name) for name, _ in shape.columns]
            self._db.execute(f"CREATE TEMP TABLE copy_{number} ({', '.join(names)})")
            self._db.execute(f"INSERT INTO copy_{number} SELECT {', '.join(names)} FROM {place}")
            self._places[table] = f"temp.copy_{number}"
        self._db.execute("COMMIT")

    @contextmanager
    def _using(self) -> Iterator[Db]:
        with self._in_use, self._file.words():
            yield self._db
