"""PostgreSQL: looking for somebody in our tables, and writing these anew. What a server keeps besides, such as its own log, is not ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from millstream.address import PostgresAddress
from millstream.erase.needles import Needles
from millstream.erase.scan import Found
from millstream.store.identifier import quote
from millstream.store.postgres.server import Pg, Server

NOT_COVERED = "PostgreSQL's write-ahead log, replicas and backups"


def scan_schema(address: PostgresAddress, needles: Needles) -> Iterator[Found]:
    """The rows of every table of the schema, as text."""
    with closing(Server(address)) as server, server.alone() as db:
        for table in _tables(db, address.schema):
            count = 0
            with db.transaction(), db.cursor(name="millstream_scan") as rows:
                rows.execute(f"SELECT t::text FROM {quote(address.schema)}.{quote(table)} AS t")
                count = sum(needles.count(row.encode()) for (row,) in rows)
            yield Found(f"views {address}, table {table}", count)


def rewritten(address: PostgresAddress) -> None:
    """Write every table of the schema anew, without what was removed from it."""
    with closing(Server(address)) as server, server.alone() as db:
        for table in _tables(db, address.schema):
            db.execute(f"VACUUM (FULL) {quote(address.schema)}.{quote(table)}")


def _tables(db: Pg, schema: str) -> list[str]:
    found = db.execute(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = to_regnamespace(%s) ORDER BY relname",
        [quote(schema)],
    )
    return [name for (name,) in found.fetchall()]
