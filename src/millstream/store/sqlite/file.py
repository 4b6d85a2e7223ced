"""The one SQLite file in which views are kept: its tables, what its troubles are called, and reading for strangers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from millstream.database import Database, Db, Form, Words
from millstream.errors import ViewError, ViewStoreFailed, ViewStoreUnavailable

FORMAT = 3
"""Since 2 heartbeats are kept, since 3 erased records are counted."""
_PRAGMAS = {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "integrity_check"}

_SCHEMA = """
CREATE TABLE millstream_lease (
    pipeline TEXT PRIMARY KEY, fence INTEGER NOT NULL, owner TEXT NOT NULL, host TEXT NOT NULL, machine TEXT NOT NULL,
    pid INTEGER NOT NULL, started INTEGER, since TEXT NOT NULL, expires TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE millstream_ledger (
    pipeline TEXT NOT NULL, number INTEGER NOT NULL, checkpoint TEXT NOT NULL, batch INTEGER NOT NULL, fence INTEGER NOT NULL,
    offsets TEXT NOT NULL, counts TEXT NOT NULL, state TEXT NOT NULL, committed_at TEXT NOT NULL,
    PRIMARY KEY (pipeline, number)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX millstream_ledger_batch ON millstream_ledger (pipeline, checkpoint, batch);
CREATE TABLE millstream_views (
    view TEXT PRIMARY KEY COLLATE NOCASE, pipeline TEXT NOT NULL, fingerprint TEXT NOT NULL, columns TEXT NOT NULL, key TEXT NOT NULL,
    append INTEGER NOT NULL, null_keys INTEGER NOT NULL DEFAULT 0, arrow_schema BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE millstream_dead_letters (
    pipeline TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL,
    time TEXT, append_time TEXT, reason TEXT NOT NULL, detail TEXT, batch INTEGER NOT NULL
) STRICT;
CREATE INDEX millstream_dead_letters_place ON millstream_dead_letters (pipeline, topic, partition, offset);
CREATE TABLE millstream_admission (
    pipeline TEXT NOT NULL, checkpoint TEXT NOT NULL, batch INTEGER NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL,
    records INTEGER NOT NULL, admitted INTEGER NOT NULL, late INTEGER NOT NULL, duplicate INTEGER NOT NULL,
    future INTEGER NOT NULL, malformed INTEGER NOT NULL, erased INTEGER NOT NULL DEFAULT 0, wild INTEGER NOT NULL, heartbeats INTEGER NOT NULL, watermark TEXT,
    PRIMARY KEY (pipeline, checkpoint, batch, topic, partition)
) STRICT, WITHOUT ROWID;
"""
_HEARTBEATS = """
CREATE TABLE millstream_heartbeats (
    pipeline TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL, time INTEGER NOT NULL,
    appended INTEGER NOT NULL, ends TEXT NOT NULL, topic_id TEXT NOT NULL, checkpoint TEXT NOT NULL, batch INTEGER NOT NULL,
    PRIMARY KEY (pipeline, topic, partition, offset, time)
) STRICT, WITHOUT ROWID;
"""


VIEW_FILE = Form(
    "views",
    0x4D494C56,  # "MILV"
    FORMAT,
    _SCHEMA + _HEARTBEATS,
    {
        "missing": Words(ViewStoreUnavailable, "no views at {where}", "`millstream run FILE` makes them"),
        "closed": Words(ViewStoreFailed, "{where}: the views are closed{why}", "check the disk and run again"),
        "full": Words(
            ViewStoreUnavailable,
            "{where}: no room on the disk; nothing of the batch was kept, every batch before it is",
            "free some space and run again",
        ),
        "refused": Words(ViewError, "{where}: {why}; nothing was written"),
        "large": Words(
            ViewError,
            "{where}: more than SQLite can hold in one value ({why})",
            "a value of a view has at most 1,000,000,000 bytes; keep less in it",
        ),
        "corrupt": Words(
            ViewError,
            "{where}: the stored bytes are not what was written ({why}); nothing was changed",
            "views can be made again: remove the file and the pipeline's checkpoint, and run it",
        ),
        "failed": Words(
            ViewStoreFailed,
            "{where}: {why}; whether the last batch was kept is unknown",
            "check the disk and run again: the ledger knows which batches are there",
        ),
        "busy": Words(
            ViewStoreUnavailable, "{where}: another process held the write lock for {why}", "look for a stuck writer"
        ),
        "shut": Words(ViewStoreUnavailable, "cannot open {where}: {why}", "check the path and its permissions"),
        "read-only": Words(
            ViewStoreUnavailable,
            "cannot open {where}: its folder is read-only, and SQLite writes beside the file even to read it",
            "make the folder writable, or copy the file with its -wal, if there is one, to a folder that is",
        ),
        "unmade": Words(
            ViewStoreUnavailable, "cannot make {where}: {why}", "check the folder, its permissions and its free space"
        ),
        "no database": Words(ViewError, "{where} is not a file of views, nor of SQLite", "name another path"),
        "foreign": Words(ViewError, "{where} is a SQLite database of something else", "name another path"),
        "newer": Words(ViewError, "{where} {why}", "pip install --upgrade millstream"),
    },
    upgrades={1: _HEARTBEATS, 2: "ALTER TABLE millstream_admission ADD COLUMN erased INTEGER NOT NULL DEFAULT 0"},
)


def _reads_only(action: int, what: str | None, name: str | None, _schema: str | None, _trigger: str | None) -> int:
    """Say for each thing that a statement is about to do whether it may."""
    harmless = {apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_RECURSIVE}
    allowed = (
        action in harmless
        or (action == apsw.SQLITE_FUNCTION and name != "load_extension")
        or (action == apsw.SQLITE_PRAGMA and what in _PRAGMAS)
    )
    return apsw.SQLITE_OK if allowed else apsw.SQLITE_DENY


class ViewFile(Database):
    """The file of views."""

    def __init__(self, path: Path, *, create: bool) -> None:
        super().__init__(path, VIEW_FILE, create=create)

    @contextmanager
    def read_only(self, prepare: Callable[[Db], None] = lambda _: None) -> Iterator[Db]:
        """A connection of its own on which only reading is possible, for statements that are not ours."""
        with self.using():
            db = self.connect()
            try:
                prepare(db)
                db.execute("PRAGMA query_only=ON")
                db.authorizer = _reads_only
                yield db
            finally:
                db.close()
