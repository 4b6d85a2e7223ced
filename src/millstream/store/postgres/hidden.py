"""The list of hidden rows there; its table is made when there are some, and goes with the last."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.store.contract import Hidden
from millstream.store.hiding import by_view
from millstream.store.identifier import quote
from millstream.store.postgres.server import Pg, literal

_TABLE = (
    'millstream_hidden (request text COLLATE "C", view text COLLATE "C", name text COLLATE "C", value text COLLATE "C",'
    " PRIMARY KEY (request, view, name, value))"
)
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('millstream views'), hashtext(current_schema()))"


def hidden(db: Pg) -> list[Hidden]:
    """The list."""
    if not _there(db):
        return []
    rows = db.execute("SELECT request, view, name, value FROM millstream_hidden ORDER BY request, view, name, value")
    return [Hidden(*row) for row in rows.fetchall()]


def hide(db: Pg, rows: Sequence[Hidden]) -> None:
    """Put rows on the list."""
    db.execute(_LOCK)  # two may make it at once, and "if not exists" does not wait for the other
    db.execute(f"CREATE TABLE IF NOT EXISTS {_TABLE}")
    db.cursor().executemany("INSERT INTO millstream_hidden VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING", rows)


def unhide(db: Pg, requests: Sequence[str]) -> None:
    """Take off the list what these requests have put there."""
    db.execute(_LOCK)
    if not _there(db):
        return
    db.execute("DELETE FROM millstream_hidden WHERE request = ANY (%s)", [list(requests)])
    if db.execute("SELECT 1 FROM millstream_hidden LIMIT 1").fetchone() is None:
        db.execute("DROP TABLE millstream_hidden")


def shadow(db: Pg, schema: str, rows: Sequence[Hidden]) -> None:
    """Let a connection see views without these rows, under the same names."""
    views = [name for (name,) in db.execute("SELECT view FROM millstream_views").fetchall()]
    for view, names in by_view(rows).items():
        for version in (each for each in views if each.partition("~")[0] == view):
            found = db.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0",
                [f"{quote(schema)}.{quote(version)}"],
            ).fetchall()
            conditions = " AND ".join(
                f"({quote(each.column)}::text IN ({', '.join(map(literal, each.values))})) IS NOT TRUE"
                for each in names
                if (each.column,) in found
            )
            if conditions:
                where = f"SELECT * FROM {quote(schema)}.{quote(version)} WHERE {conditions}"
                db.execute(f"CREATE TEMP VIEW {quote(version)} AS {where}")


def _there(db: Pg) -> bool:
    return db.execute("SELECT to_regclass('millstream_hidden')").fetchall() != [(None,)]
