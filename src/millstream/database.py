"""One SQLite file of ours, whatever is in it: how it is made, opened, written and read.

Invariants: a connection never crosses a thread or a fork (see :mod:`millstream.fork`); every write is one ``BEGIN IMMEDIATE`` …
``COMMIT`` with ``synchronous=FULL``; every page carries a checksum (SQLite's own checksum VFS, measured to cost nothing), so a
flipped bit is an error and never a wrong row; a file that is not ours is never changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import apsw
import apsw.sqlite_extra

from millstream import fork
from millstream.errors import MachineError, MillstreamError
from millstream.failpoint import failpoint

Db: TypeAlias = Any
"""An ``apsw.Connection``. Its rows are typed by STRICT tables, which mypy cannot see."""

Trouble: TypeAlias = Literal[
    "missing",
    "closed",
    "full",
    "refused",
    "large",
    "corrupt",
    "failed",
    "busy",
    "shut",
    "read-only",
    "unmade",
    "no database",
    "foreign",
    "newer",
]

SQLITE_FIXED = (3, 51, 3)  # earlier releases can lose pages when two connections write and checkpoint one WAL
BUSY_TIMEOUT = 30_000
_HEADER_BYTES = 100
_WAL = 16 << 20  # bytes after which the WAL file is brought into the other
_CHECKSUM_BYTES = 8  # what the checksum VFS reserves at the end of each page


class Words(NamedTuple):
    """How a trouble is told: the error, its message and its hint, with ``{where}`` and ``{why}`` to be filled in."""

    error: type[MillstreamError]
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Form:
    """What kind of file it is: its marks in the header, its tables, and how its troubles are told."""

    name: str
    application_id: int
    version: int
    schema: str
    words: Mapping[Trouble, Words]
    page: int = 4096
    """Bytes of a page of a new file: large ones are read faster from end to end, small ones changed faster here and there."""
    upgrades: Mapping[int, str] = field(default_factory=dict)
    """What makes a file of each older version one of the next."""


def check_sqlite(version: str) -> None:
    """Refuse a SQLite library that can lose pages of a WAL file with two writers."""
    if tuple(map(int, version.split("."))) < SQLITE_FIXED:
        raise MachineError(
            f"SQLite {version} can lose committed pages when two processes write (fixed in 3.51.3)",
            hint="pip install --upgrade apsw",
        )


class Database:
    """Connections to one file, one for each thread that asks."""

    def __init__(self, path: Path, form: Form, *, create: bool = True) -> None:
        self.path, self.form = path.absolute(), form
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
                    raise self.trouble("missing", where=str(path))
                self._create()
            self._check_format(upgrade=create)

    def trouble(self, kind: Trouble, why: object = "", where: str = "") -> MillstreamError:
        """The error for a trouble with this file."""
        words, facts = self.form.words[kind], {"where": where or str(self.path), "why": why}
        return words.error(words.message.format(**facts), hint=words.hint.format(**facts))

    @property
    def db(self) -> Db:
        """This thread's connection. After a fork parent and child open new ones: locks do not survive it."""
        if self._closed:
            raise self.trouble("closed", self._closed)
        db: Db = getattr(self._local, "db", None)
        if db is None or self._local.opened != self._opened:
            db = self._local.db = self.connect()
            self._local.opened = self._opened
            self._open.add(db)
        return db

    @contextmanager
    def using(self) -> Iterator[None]:
        """Keep a fork away, and turn SQLite's errors into ours, for as long as the block lasts."""
        with self._in_use, self.errors():
            yield

    @contextmanager
    def write(self) -> Iterator[Db]:
        """One durable transaction: committed when the block ends, gone if it raises."""
        with self.using():
            db = self.db
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                failpoint(f"{self.form.name}.before_commit")
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            failpoint(f"{self.form.name}.after_commit")

    @contextmanager
    def read(self) -> Iterator[Db]:
        """One consistent snapshot."""
        with self.using():
            db = self.db
            db.execute("BEGIN")
            try:
                yield db
            finally:
                if db.in_transaction:  # SQLite itself ends it on an I/O error
                    db.execute("COMMIT")

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
            raise self.trouble("full", error, where) from error
        except apsw.ConstraintError as error:  # the tables are strict: a null or another type where none belongs
            raise self.trouble("refused", error, where) from error
        except (apsw.CorruptError, apsw.NotADBError) as error:
            raise self.trouble("corrupt", error, where) from error
        except apsw.IOError as error:
            if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA:
                raise self.trouble("corrupt", error, where) from error
            # After a failed fsync the kernel may have dropped the pages: asking again would claim what is not so.
            self._closed = f" after {error}"
            for db in list(self._open):
                db.interrupt()
            raise self.trouble("failed", error, where) from error
        except apsw.TooBigError as error:
            raise self.trouble("large", error, where) from error
        except apsw.BusyError as error:
            raise self.trouble("busy", f"{BUSY_TIMEOUT // 1000} s", where) from error
        except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError) as error:
            kind: Trouble = "shut" if os.access(self.path.parent, os.W_OK) else "read-only"
            raise self.trouble(kind, error, where) from error

    def connect(self) -> Db:
        """A new connection, which the caller closes."""
        with self.errors():
            db = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE, vfs="cksmvfs")
            db.set_busy_timeout(BUSY_TIMEOUT)
            db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
            db.execute(
                "PRAGMA synchronous=FULL; PRAGMA trusted_schema=OFF; PRAGMA cache_size=-16000;"
                f"PRAGMA wal_autocheckpoint={_WAL // db.execute('PRAGMA page_size').get}; PRAGMA journal_size_limit={4 * _WAL}"
            ).fetchall()  # apsw stops at a statement that gives a row until someone asks for the next
            return db

    def _create(self) -> None:
        """Make the whole file under another name and link it into place: it exists complete or not at all."""
        try:
            fd, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        except OSError as error:
            raise self.trouble("unmade", error.strerror) from error
        os.close(fd)
        fresh = Path(name)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            with self.errors():
                db = apsw.Connection(name, vfs="cksmvfs")
                db.reserve_bytes("main", _CHECKSUM_BYTES)
                db.execute(
                    f"PRAGMA page_size={self.form.page}; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; BEGIN"
                ).fetchall()
                db.execute(self.form.schema).fetchall()
                marks = (
                    f"PRAGMA application_id={self.form.application_id}; PRAGMA user_version={self.form.version}; COMMIT"
                )
                db.execute(marks).fetchall()
                db.close()
            try:  # a link takes nobody's place, where replace_file would
                os.link(fresh, self.path)
            except FileExistsError:
                fcntl.flock(folder, fcntl.LOCK_EX)  # or two could find it empty, and the second replace one in use
                if self.path.stat().st_size == 0:  # an empty file made for us; one that was faster is not empty
                    failpoint(f"{self.form.name}.create.before_replace")
                    os.replace(fresh, self.path)
            os.fsync(folder)
        except OSError as error:
            raise self.trouble("unmade", error) from error
        finally:
            fresh.unlink(missing_ok=True)
            os.close(folder)

    def _check_format(self, *, upgrade: bool) -> None:
        """Look before touching: connecting to a database in WAL mode may already write to it."""
        try:
            with self.path.open("rb") as file:
                header = file.read(_HEADER_BYTES)
        except OSError as error:
            raise self.trouble("shut", error.strerror) from error
        if not header.startswith(b"SQLite format 3\0"):
            raise self.trouble("no database")
        if int.from_bytes(header[68:72], "big") != self.form.application_id:
            raise self.trouble("foreign")
        version = int.from_bytes(header[60:64], "big")
        if version <= self.form.version:
            db = self.connect()
            try:
                with self.errors():
                    version = db.execute("PRAGMA user_version").get
            finally:
                db.close()
        if version > self.form.version:
            raise self.trouble("newer", f"has format {version}, this version reads up to {self.form.version}")
        if version < self.form.version and upgrade:
            self._upgrade()

    def _upgrade(self) -> None:
        """Bring a file of an older version up to this one, in one transaction."""
        with self.write() as db:
            for version in range(db.execute("PRAGMA user_version").get, self.form.version):
                db.execute(self.form.upgrades[version]).fetchall()
            db.execute(f"PRAGMA user_version={self.form.version}")


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
