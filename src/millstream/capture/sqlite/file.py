"""The application's SQLite file: connections to it, its errors under our names, and the lock that lets one process read a capture.

Invariants: the file is opened by SQLite alone, never as a plain file, since closing that would drop the locks of this process; nothing
of ours is left open between two transactions but an idle connection; and we never move the application's write-ahead log into its file
while it runs, because releases of SQLite before 3.51.3, which the application may have, can lose pages when two do that.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import apsw

from millstream import fork
from millstream.database import check_sqlite
from millstream.errors import CaptureError, CaptureUnavailable, MillstreamError

Db: TypeAlias = Any
"""An ``apsw.Connection``."""

BUSY_TIMEOUT = 15_000
"""Milliseconds that a writer is waited for."""
SHORT = 400
"""The same where there is a caller to be told that there is nothing."""


class Busy(CaptureUnavailable):
    """Somebody writes for longer than we wait."""


class File:
    """One file of an application; a connection is opened when it is needed, and anew after a fork or when another file took its place."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.opened = 0
        self._db: Db = None
        self._inode: tuple[int, int] | None = None
        self._in_use = fork.InUse()
        fork.watch(self)

    @contextmanager
    def read(self, patience: int = BUSY_TIMEOUT) -> Iterator[Db]:
        """One consistent view of the file, for as short as possible: without a write-ahead log it keeps writers from committing."""
        with self._in_use, self.words():
            db = self._connection(patience)
            db.execute("BEGIN")
            try:
                yield db
            finally:
                if db.in_transaction:
                    db.execute("COMMIT")

    @contextmanager
    def write(self) -> Iterator[Db]:
        """One transaction that writes: committed when the block ends, gone if it raises."""
        with self._in_use, self.words():
            db = self._connection()
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def version(self) -> tuple[int, int]:
        """What is another one as soon as another connection has committed."""
        with self._in_use, self.words():
            return self.opened, int(self._connection(SHORT).pragma("data_version"))

    def connect(self) -> Db:
        """A new connection, which the caller closes."""
        check_sqlite(apsw.sqlite_lib_version())
        with self.words():
            db = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE)
            try:
                db.set_busy_timeout(BUSY_TIMEOUT)
                db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
                db.pragma("wal_autocheckpoint", 0)
                db.pragma("cache_size", -16000)
            except BaseException:
                db.close()
                raise
            return db

    def check_place(self) -> None:
        """Let go of a file that another one has taken the place of; CaptureUnavailable if there is none."""
        if self._db is not None and self._inode != self._seen():
            self.let_go()

    def let_go(self) -> None:
        """Close the connection; the next use opens one."""
        if self._db is not None:
            with suppress(apsw.Error):
                self._db.close()
        self._db = None

    @contextmanager
    def words(self) -> Iterator[None]:
        """SQLite's errors as ours."""
        try:
            yield
        except apsw.Error as error:
            raise self._named(error) from error

    def _connection(self, patience: int = BUSY_TIMEOUT) -> Db:
        if self._db is None:
            self._inode = self._seen()
            self._db = self.connect()
            self.opened += 1
        self._db.set_busy_timeout(min(patience, BUSY_TIMEOUT))
        return self._db

    def _seen(self) -> tuple[int, int]:
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise CaptureUnavailable(
                f"{self.path}: {error.strerror}", hint="the address is sqlite:PATH of a file that is there"
            ) from error
        return found.st_dev, found.st_ino

    def _named(self, error: apsw.Error) -> MillstreamError:
        why = f"{self.path}: {error}"
        if isinstance(error, apsw.BusyError | apsw.LockedError):
            return Busy(why, hint="a transaction of the application is open; start again later")
        if isinstance(error, apsw.CantOpenError | apsw.IOError | apsw.FullError):
            return CaptureUnavailable(
                why, hint="can this user read and write the file and its folder, and is there room?"
            )
        if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError):
            return CaptureError(why, hint="capturing needs the right to write the file and its folder")
        if isinstance(error, apsw.CorruptError | apsw.NotADBError):
            return CaptureError(why, hint="`PRAGMA integrity_check` says more")
        return CaptureError(why, hint="the message is SQLite's")


class Claim:
    """The lock of one capture: whoever holds it reads and forgets its changes. It ends with the process."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = Path(f"{path}-millstream-{name}"), name
        self._held: int | None = None

    def take(self) -> None:
        """Hold it; CaptureUnavailable if another does."""
        if self._held is not None:
            return
        try:
            held = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise CaptureUnavailable(
                f"{self._path}: {error.strerror}", hint="can this user write the folder of the database?"
            ) from error
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(held)
            raise CaptureUnavailable(
                f"another process reads the capture {self._name!r} of {self._path}",
                hint="stop it, or give this capture another name",
            ) from error
        self._held = held

    def leave(self) -> None:
        """Let go of it."""
        if self._held is not None:
            os.close(self._held)
        self._held = None

    def forget(self) -> None:
        """Let go of it, and remove its file."""
        self.leave()
        self._path.unlink(missing_ok=True)
