"""Reading views from PostgreSQL. Invariant: every answer is one snapshot, between two batches and never inside one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import errors as pg

from millstream.address import PostgresAddress
from millstream.errors import ViewError
from millstream.store.checks import COUNT, find, info_of, key_columns
from millstream.store.contract import Entry, Hidden, Page, Rows, StoreReader, ViewInfo
from millstream.store.identifier import quote
from millstream.store.postgres import hidden as hiding
from millstream.store.postgres import ledger, tables
from millstream.store.postgres.server import Pg, Server, first_line, literal
from millstream.store.postgres.values import encode, selected, sql_type

_PATIENCE = timedelta(seconds=5)
_SPACE = re.compile(r"(?:\s|\(|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)
_READS = ("select", "with", "values", "table", "explain", "show")


class PostgresReader(StoreReader):
    """The reading side of a schema with views; it may be used from many threads."""

    def __init__(self, address: PostgresAddress, *, create: bool = False) -> None:
        self._server = Server(address, patience=_PATIENCE)
        self._server.open(create=create)

    def close(self) -> None:
        """Close the connections."""
        self._server.close()

    def views(self) -> list[ViewInfo]:
        """Every view kept here, by name."""
        return self._server.run(lambda db: [_info(db, kept) for kept in tables.load(db).values()], reading=True)

    def last(self, pipeline: str) -> Entry | None:
        """The newest entry of a pipeline's ledger."""
        return self._server.run(lambda db: next(iter(ledger.entries(db, pipeline, 1)), None), reading=True)

    def table(self, view: str, limit: int | None = None) -> Any:
        """All rows, or the first ones, in the declared schema, in the order of the key."""
        return self._server.run(lambda db: tables.rows_of(db, self._find(db, view), limit), reading=True)

    def page(self, view: str, page: Page) -> Any:
        """Some rows, in an order."""
        return self._server.run(lambda db: tables.page_of(db, self._find(db, view), page), reading=True)

    def get(self, view: str, key: Sequence[Any]) -> dict[str, Any] | None:
        """The row of a key, or None. Text is taken for any type, in the form that Arrow reads."""

        def work(db: Pg) -> dict[str, Any] | None:
            target = self._find(db, view).target
            conditions = []
            for column in key_columns(target, key):
                name, type_ = quote(column.name), sql_type(target.schema.field(column.name).type, view)
                (value,) = encode(column.to_frame(), target.schema, f"view {view!r}").to_series()
                conditions.append(f"{name} IS NULL" if value is None else f"{name} = {literal(str(value))}::{type_}")
            sql = f"SELECT {selected(target.schema)} FROM {quote(view)} WHERE {' AND '.join(conditions)}"
            found: list[dict[str, Any]] = tables.copy_out(db, sql, target.schema).to_pylist()
            return found[0] if found else None

        return self._server.run(work, reading=True)

    def query(self, sql: str, hidden: Sequence[Hidden] = ()) -> Rows:
        """Run one statement of PostgreSQL's SQL that only reads."""
        start = _SPACE.match(sql)
        word = re.match(r"\w*", sql[start.end() if start else 0 :])
        if word is None or word.group().lower() not in _READS:
            found = word.group() if word else ""
            raise ViewError(
                f"only statements that read are run here: found {found or 'none'}, expected one of {', '.join(_READS)}",
                hint="views change only with the records of the log",
            )
        with self._server.alone() as db:
            try:
                hiding.shadow(db, self._server.address.schema, hidden)
                with db.transaction():
                    db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    answer = db.execute(sql, prepare=True)  # which the server does with one statement only
                    return Rows(tuple(column.name for column in answer.description or ()), answer.fetchall())
            except pg.ReadOnlySqlTransaction as error:
                raise ViewError(
                    f"only statements that read are run here: {first_line(error)}",
                    hint="views change only with the records of the log",
                ) from error
            except psycopg.Error as error:
                raise ViewError(f"the query does not run: {first_line(error)}") from error

    def dead_letters(self, pipeline: str | None = None, *, reason: str | None = None, limit: int = 1000) -> Any:
        """The newest records that were not admitted, newest first."""
        return self._server.run(lambda db: ledger.dead_letters(db, pipeline, reason, limit), reading=True)

    def admission(self, pipeline: str | None = None) -> Any:
        """What became of all records since the beginning, for each partition."""
        return self._server.run(lambda db: ledger.admission(db, pipeline), reading=True)

    def hidden(self) -> list[Hidden]:
        """Which rows are to be hidden."""
        return self._server.run(hiding.hidden, reading=True)

    def _find(self, db: Pg, view: str) -> tables.Kept:
        return find(str(self._server.address), tables.load(db), view)


def _info(db: Pg, kept: tables.Kept) -> ViewInfo:
    target = kept.target
    count = "count(*)" if target.identity else f"coalesce(sum({COUNT}), 0)"
    (rows,) = db.execute(f"SELECT {count} FROM {kept.table}").fetchone() or (0,)
    last = next(iter(ledger.entries(db, kept.pipeline, 1)), None)
    return info_of(target, kept.pipeline, int(rows), last, ledger.refused(db, kept.pipeline, target.name))
