"""The list of hidden rows there; its table is made when there are some, and goes with the last."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.database import Db
from millstream.store.contract import Hidden
from millstream.store.hiding import by_view
from millstream.store.identifier import quote

_TABLE = (
    "millstream_hidden (request TEXT NOT NULL, view TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,"
    " PRIMARY KEY (request, view, name, value)) STRICT, WITHOUT ROWID"
)


def hidden(db: Db) -> list[Hidden]:
    """The list."""
    if not _there(db):
        return []
    rows = db.execute("SELECT request, view, name, value FROM millstream_hidden ORDER BY request, view, name, value")
    return [Hidden(*row) for row in rows.fetchall()]


def hide(db: Db, rows: Sequence[Hidden]) -> None:
    """Put rows on the list."""
    db.execute(f"CREATE TABLE IF NOT EXISTS {_TABLE}")
    db.executemany("INSERT OR IGNORE INTO millstream_hidden VALUES (?, ?, ?, ?)", rows)


def unhide(db: Db, requests: Sequence[str]) -> None:
    """Take off the list what these requests have put there."""
    if not _there(db):
        return
    db.execute("PRAGMA secure_delete=ON").fetchall()
    db.executemany("DELETE FROM millstream_hidden WHERE request = ?", [(each,) for each in requests])
    if not db.execute("SELECT count(*) FROM millstream_hidden").get:
        db.execute("DROP TABLE millstream_hidden")


def shadow(db: Db, rows: Sequence[Hidden]) -> None:
    """Let a connection see views without these rows, under the same names."""
    known = {name for (name,) in db.execute("SELECT view FROM millstream_views")}
    for view, names in by_view(rows).items():
        for version in (each for each in known if each.partition("~")[0] == view):
            columns = {name for _, name, *_ in db.execute(f"PRAGMA table_info({quote(version)})")}
            conditions = " AND ".join(
                f"(CAST({quote(each.column)} AS TEXT) IN ({', '.join(map(_literal, each.values))})) IS NOT TRUE"
                for each in names
                if each.column in columns
            )
            if conditions:
                where = f"SELECT * FROM main.{quote(version)} WHERE {conditions}"
                db.execute(f"CREATE TEMP VIEW {quote(version)} AS {where}").fetchall()


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _there(db: Db) -> bool:
    return bool(db.execute("SELECT count(*) FROM main.sqlite_master WHERE name = 'millstream_hidden'").get)
