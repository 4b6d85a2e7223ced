"""The one SQLite file under an embedded log: how it is made, opened, written and read.

Invariants: a connection never crosses a thread or a fork (see :mod:`millstream.log.fork`); every write is one ``BEGIN IMMEDIATE`` … ``COMMIT`` with
``synchronous=FULL``; every page carries a checksum (SQLite's own checksum VFS, measured to cost nothing), so a flipped
bit is an error and never a wrong record; a file that is not ours is never changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import apsw
import apsw.sqlite_extra

from millstream.errors import (
    BadEvent,
    LogCorrupt,
    LogError,
    LogFull,
    LogUnavailable,
    MachineError,
    NewerFormat,
    NotALog,
)
from millstream.failpoint import failpoint
from millstream.log import fork
from millstream.log.contract import Bounds

Db: TypeAlias = Any
"""An ``apsw.Connection``. Its rows are typed by STRICT tables, which mypy cannot see."""

FORMAT = 1
APPLICATION_ID = 0x4D494C4C  # "MILL"
SQLITE_FIXED = (3, 51, 3)  # earlier releases can lose pages when two connections write and checkpoint one WAL
BLOCK = 12  # the time index has an entry for every 2 ** 12 offsets
BUSY_TIMEOUT = 30_000
_HEADER_BYTES = 100
_CHECKSUM_BYTES = 8  # what the checksum VFS reserves at the end of each page

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


def records_table(topic: int, partition: int) -> str:
    """The table of one partition; both parts are integers of ours, so the name needs no quoting."""
    return f"records_{topic:d}_{partition:d}"


def create_records_table(db: Db, topic: int, partition: int) -> None:
    """Make the table of one partition, empty."""
    db.execute(
        f"CREATE TABLE {records_table(topic, partition)} (offset INTEGER PRIMARY KEY, timestamp INTEGER NOT NULL,"
        " appended INTEGER NOT NULL, key BLOB, value BLOB, headers BLOB) STRICT"
    )


def partition_bounds(db: Db, topic: int) -> dict[int, Bounds]:
    """Start and end of each partition."""
    rows = db.execute("SELECT partition, start, next FROM partition WHERE topic = ? ORDER BY partition", (topic,))
    return {partition: Bounds(start, end) for partition, start, end in rows}


def check_sqlite(version: str) -> None:
    """Refuse a SQLite library that can lose pages of a WAL file with two writers."""
    if tuple(map(int, version.split("."))) < SQLITE_FIXED:
        raise MachineError(
            f"SQLite {version} can lose committed pages when two processes write (fixed in 3.51.3)",
            hint="pip install --upgrade apsw",
        )


class Store:
    """Connections to one file, one for each thread that asks."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path.absolute()
        self._local = threading.local()
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._opened = 0  # grows when all connections were closed for a fork
        self._closed = ""
        self._in_use = fork.InUse()
        fork.watch(self)
        with self._in_use:
            _register_checksums()
            if not self.path.exists() or self.path.stat().st_size == 0:
                if not create:
                    raise LogUnavailable(
                        f"no log at {path}", hint=f"`millstream --log sqlite:{path} topics create NAME` makes one"
                    )
                self._create()
            self._check_format()

    @property
    def db(self) -> Db:
        """This thread's connection. After a fork parent and child open new ones: locks do not survive it."""
        if self._closed:
            raise LogUnavailable(f"{self.path}: the log is closed{self._closed}")
        db: Db = getattr(self._local, "db", None)
        if db is None or self._local.opened != self._opened:
            db = self._local.db = self._connect()
            self._local.opened = self._opened
            self._open.add(db)
        return db

    @contextmanager
    def write(self) -> Iterator[Db]:
        """One durable transaction: committed when the block ends, gone if it raises."""
        with self._in_use, self.errors():
            db = self.db
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                failpoint("log.before_commit")
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            failpoint("log.after_commit")

    @contextmanager
    def read(self) -> Iterator[Db]:
        """One consistent snapshot."""
        with self._in_use, self.errors():
            db = self.db
            db.execute("BEGIN")
            try:
                yield db
            finally:
                if db.in_transaction:  # SQLite itself ends it on an I/O error
                    db.execute("COMMIT")

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
        with self._in_use, self.errors():
            return int(self.db.execute("PRAGMA data_version").get)

    def close(self) -> None:
        """Close the connections of every thread."""
        self._closed = self._closed or "."
        for db in list(self._open):
            db.close()

    def let_go(self) -> None:
        """Close the connections of every thread; the next use opens new ones."""
        self._opened += 1
        for db in list(self._open):
            with contextlib.suppress(apsw.Error):
                db.close()
        self._open.clear()

    @contextmanager
    def errors(self, place: str = "") -> Iterator[None]:
        """Turn SQLite's errors into ours; ``place`` says what was being read."""
        where = f"{self.path}{', ' + place if place else ''}"
        try:
            yield
        except apsw.FullError as error:
            raise LogFull(
                f"{where}: no room on the disk; the batch was not kept, everything acknowledged is",
                hint="free some space and append again",
            ) from error
        except apsw.ConstraintError as error:  # the tables are strict: text or a number where bytes belong
            raise BadEvent("key and value must be bytes or None; nothing was appended") from error
        except (apsw.CorruptError, apsw.NotADBError) as error:
            raise _corrupt(where, error) from error
        except apsw.IOError as error:
            if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA:
                raise _corrupt(where, error) from error
            # After a failed fsync the kernel may have dropped the pages: asking again would claim what is not so.
            self._closed = f" after {error}"
            for db in list(self._open):
                db.interrupt()
            raise LogUnavailable(
                f"{where}: {error}; whether the last batch was kept is unknown",
                hint="check the disk, open the log again, and repeat with the same producer and sequence",
            ) from error
        except apsw.BusyError as error:
            raise LogUnavailable(
                f"{where}: another process held the write lock for {BUSY_TIMEOUT // 1000} s",
                hint="look for a stuck writer",
            ) from error
        except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError) as error:
            raise LogUnavailable(f"{where}: {error}", hint="check the path and its permissions") from error

    def _connect(self, flags: int = apsw.SQLITE_OPEN_READWRITE) -> Db:
        with self.errors():
            db = apsw.Connection(str(self.path), flags=flags, vfs="cksmvfs")
            db.set_busy_timeout(BUSY_TIMEOUT)
            db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
            db.execute(
                "PRAGMA synchronous=FULL; PRAGMA trusted_schema=OFF; PRAGMA cache_size=-16000;"
                "PRAGMA wal_autocheckpoint=4000; PRAGMA journal_size_limit=67108864"
            ).fetchall()  # apsw stops at a statement that gives a row until someone asks for the next
            return db

    def _create(self) -> None:
        """Make the whole file under another name and link it into place: a log exists complete or not at all."""
        try:
            fd, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        except OSError as error:
            raise LogUnavailable(
                f"cannot make {self.path}: {error.strerror}", hint="check the folder and its permissions"
            ) from error
        os.close(fd)
        fresh = Path(name)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            with self.errors():
                db = apsw.Connection(name, vfs="cksmvfs")
                db.reserve_bytes("main", _CHECKSUM_BYTES)
                db.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; BEGIN").fetchall()
                db.execute(_SCHEMA).fetchall()
                db.execute(f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={FORMAT}; COMMIT").fetchall()
                db.close()
            try:
                os.link(fresh, self.path)
            except FileExistsError:
                fcntl.flock(folder, fcntl.LOCK_EX)  # or two could find it empty, and the second replace a log in use
                if self.path.stat().st_size == 0:  # an empty file made for us; a log that was faster is not empty
                    failpoint("log.create.before_replace")
                    os.replace(fresh, self.path)
            os.fsync(folder)
        except OSError as error:
            raise LogUnavailable(
                f"cannot make {self.path}: {error}", hint="check the folder and its free space"
            ) from error
        finally:
            fresh.unlink(missing_ok=True)
            os.close(folder)

    def _check_format(self) -> None:
        """Look before touching: a file of someone else must not even be switched to WAL."""
        try:
            with self.path.open("rb") as file:
                header = file.read(_HEADER_BYTES)
        except OSError as error:
            raise LogUnavailable(
                f"cannot open {self.path}: {error.strerror}", hint="check the path and its permissions"
            ) from error
        if not header.startswith(b"SQLite format 3\0"):
            raise NotALog(
                f"{self.path} is not a Millstream log: it does not begin like a SQLite file",
                hint="name another path; if it was a log, restore it from a backup",
            )
        # Connecting to a database in WAL mode may already write to it, so the header is read by ourselves first.
        if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
            raise NotALog(f"{self.path} is a SQLite database of something else", hint="name another path")
        version = int.from_bytes(header[60:64], "big")
        if version <= FORMAT:
            db = self._connect(apsw.SQLITE_OPEN_READWRITE)
            try:
                with self.errors():
                    version = db.execute("PRAGMA user_version").get
            finally:
                db.close()
        if version > FORMAT:
            raise NewerFormat(
                f"{self.path} has format {version}, this version reads up to {FORMAT}",
                hint="pip install --upgrade millstream",
            )


def _corrupt(where: str, error: Exception) -> LogError:
    return LogCorrupt(
        f"{where}: the stored bytes are not what was written ({error}); nothing was changed",
        hint="restore the file from a backup, or replay its source into a new log",
    )


def _register_checksums() -> None:
    """Make the checksum VFS known to this process, once."""
    check_sqlite(apsw.sqlite_lib_version())
    if "cksmvfs" in apsw.vfs_names():
        return
    try:
        loader = apsw.Connection(":memory:")
        apsw.sqlite_extra.load(loader, "cksumvfs")
        loader.close()
    except (apsw.Error, apsw.sqlite_extra.NotAvailable) as error:
        raise MachineError(
            "this build of apsw lacks SQLite's checksum extension",
            hint="pip install --force-reinstall --only-binary apsw apsw",
        ) from error
