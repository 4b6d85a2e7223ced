"""The one SQLite file under an embedded log: its tables, what its troubles are called, and waiting for others to write."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

from millstream.database import Database, Db, Form, Words
from millstream.errors import BadEvent, LogCorrupt, LogFailed, LogFull, LogUnavailable, NewerFormat, NotALog
from millstream.log.contract import Bounds

FORMAT = 1
BLOCK = 12  # the time index has an entry for every 2 ** 12 offsets

_SCHEMA = """
CREATE TABLE topic (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, settings TEXT NOT NULL, version INTEGER NOT NULL
) STRICT;
CREATE TABLE partition (
    topic INTEGER NOT NULL, partition INTEGER NOT NULL,
    start INTEGER NOT NULL DEFAULT 0, next INTEGER NOT NULL DEFAULT 0, newest INTEGER NOT NULL DEFAULT -9223372036854775808,
    bytes INTEGER NOT NULL DEFAULT 0, appended INTEGER NOT NULL DEFAULT 0, cleaned INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (topic, partition)
) STRICT, WITHOUT ROWID;
CREATE TABLE time_index (
    topic INTEGER NOT NULL, partition INTEGER NOT NULL, block INTEGER NOT NULL, newest INTEGER NOT NULL,
    PRIMARY KEY (topic, partition, block)
) STRICT, WITHOUT ROWID;
CREATE TABLE sequence (
    producer TEXT NOT NULL, topic INTEGER NOT NULL, sequence INTEGER NOT NULL,
    partitions INTEGER NOT NULL, events INTEGER NOT NULL, firsts TEXT NOT NULL,
    PRIMARY KEY (producer, topic, sequence)
) STRICT, WITHOUT ROWID;
CREATE TABLE consumer_group (
    name TEXT PRIMARY KEY, kind TEXT NOT NULL, generation INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE TABLE member (
    consumer_group TEXT NOT NULL, member TEXT NOT NULL, topics TEXT NOT NULL, lease_until INTEGER NOT NULL,
    PRIMARY KEY (consumer_group, member)
) STRICT, WITHOUT ROWID;
CREATE TABLE group_offset (
    consumer_group TEXT NOT NULL, topic INTEGER NOT NULL, partition INTEGER NOT NULL, next INTEGER NOT NULL,
    PRIMARY KEY (consumer_group, topic, partition)
) STRICT, WITHOUT ROWID;
CREATE TABLE delivery (
    consumer_group TEXT NOT NULL, topic INTEGER NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL,
    worker TEXT NOT NULL, visible_at INTEGER NOT NULL, attempt INTEGER NOT NULL,
    PRIMARY KEY (consumer_group, topic, partition, offset)
) STRICT, WITHOUT ROWID;
CREATE INDEX delivery_visible ON delivery (consumer_group, topic, visible_at);
CREATE TABLE queue (
    consumer_group TEXT NOT NULL, topic INTEGER NOT NULL, partition INTEGER NOT NULL, next INTEGER NOT NULL,
    PRIMARY KEY (consumer_group, topic, partition)
) STRICT, WITHOUT ROWID;
"""


LOG_FILE = Form(
    "log",
    0x4D494C4C,  # "MILL"
    FORMAT,
    _SCHEMA,
    {
        "missing": Words(
            LogUnavailable, "no log at {where}", "`millstream --log sqlite:{where} topics create NAME` makes one"
        ),
        "closed": Words(LogFailed, "{where}: the log is closed{why}", "open it again"),
        "full": Words(
            LogFull,
            "{where}: no room on the disk; the batch was not kept, everything acknowledged is",
            "free some space and append again",
        ),
        "refused": Words(BadEvent, "key and value must be bytes or None; nothing was appended"),
        "large": Words(
            BadEvent,
            "{where}: more than SQLite can hold in one value ({why})",
            "one record, with its key and headers, has at most 1,000,000,000 bytes",
        ),
        "corrupt": Words(
            LogCorrupt,
            "{where}: the stored bytes are not what was written ({why}); nothing was changed",
            "restore the file from a backup, or replay its source into a new log",
        ),
        "failed": Words(
            LogFailed,
            "{where}: {why}; whether the last batch was kept is unknown",
            "check the disk, open the log again, and repeat with the same producer and sequence",
        ),
        "busy": Words(
            LogUnavailable, "{where}: another process held the write lock for {why}", "look for a stuck writer"
        ),
        "shut": Words(LogUnavailable, "cannot open {where}: {why}", "check the path and its permissions"),
        "read-only": Words(
            LogUnavailable,
            "cannot open {where}: its folder is read-only, and SQLite writes beside the file even to read it",
            "make the folder writable, or copy the file with its -wal, if there is one, to a folder that is",
        ),
        "unmade": Words(
            LogUnavailable, "cannot make {where}: {why}", "check the folder, its permissions and its free space"
        ),
        "no database": Words(
            NotALog,
            "{where} is not a Millstream log: it does not begin like a SQLite file",
            "name another path; if it was a log, restore it from a backup",
        ),
        "foreign": Words(NotALog, "{where} is a SQLite database of something else", "name another path"),
        "newer": Words(NewerFormat, "{where} {why}", "pip install --upgrade millstream"),
    },
    page=16384,
)


MOST_BYTES = 32 << 20
"""Bytes of records that are read in bulk at once."""


def records_table(topic: int, partition: int) -> str:
    """The table of one partition; both parts are integers of ours, so the name needs no quoting."""
    return f"records_{topic:d}_{partition:d}"


def create_records_table(db: Db, topic: int, partition: int) -> None:
    """Make the table of one partition, empty."""
    db.execute(
        f"CREATE TABLE {records_table(topic, partition)} (offset INTEGER PRIMARY KEY, timestamp INTEGER NOT NULL,"
        " appended INTEGER NOT NULL, key BLOB, value BLOB, headers BLOB) STRICT"
    )


def identity_of(db: Db, topic: int) -> str | None:
    """What tells a topic from all others, in any file; None for one that was made before there was such a thing."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'topic_identity'").get:
        return None
    found: str | None = db.execute("SELECT id FROM topic_identity WHERE topic = ?", (topic,)).get
    return found


def identify(db: Db, topic: int) -> str:
    """Give a topic an identity, if it has none. Its table is made when it is needed: files of before have none, and need none to be read."""
    db.execute("CREATE TABLE IF NOT EXISTS topic_identity (topic INTEGER PRIMARY KEY, id TEXT NOT NULL) STRICT")
    db.execute("INSERT INTO topic_identity VALUES (?, ?) ON CONFLICT DO NOTHING", (topic, uuid.uuid4().hex))
    return str(identity_of(db, topic))


def partition_bounds(db: Db, topic: int) -> dict[int, Bounds]:
    """Start and end of each partition."""
    rows = db.execute("SELECT partition, start, next FROM partition WHERE topic = ? ORDER BY partition", (topic,))
    return {partition: Bounds(start, end) for partition, start, end in rows}


def first_appended_after(db: Db, table: str, start: int, end: int, millis: int) -> int:
    """The first offset whose record came after ``millis``: append time grows with the offset, so halve the range."""
    low, high = start, end
    while low < high:
        middle = (low + high) // 2
        found = db.execute(
            f"SELECT offset, appended FROM {table} WHERE offset >= ? ORDER BY offset LIMIT 1", (middle,)
        ).fetchone()
        if found is None or found[0] >= high or found[1] > millis:
            high = middle
        else:
            low = found[0] + 1
    return low


class Store(Database):
    """The file of a log."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        super().__init__(path, LOG_FILE, create=create)

    def wait(self, seen: int, timeout: float) -> None:
        """Return when another connection has committed since :meth:`version` was ``seen``, or after ``timeout``.

        SQLite tells nobody of a commit. Asking costs about 5 µs, so we ask and sleep, 1 ms at first and 10 ms at most:
        low delay while records flow, under 1 % of a core while they do not.
        """
        deadline = time.monotonic() + timeout
        pause = 0.001
        while self.version() == seen and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, 0.01)

    def version(self) -> int:
        """A number that changes when another connection commits."""
        with self.using():
            return int(self.db.execute("PRAGMA data_version").get)
