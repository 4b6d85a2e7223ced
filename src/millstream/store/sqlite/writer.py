"""Views in one SQLite file, as :class:`millstream.store.writer.Writer` writes them.

Invariant: one process at a time is in a transaction that writes, so what is read in it stays so until it ends. It is never done
again: how it ended is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

from millstream.database import Db
from millstream.store import lease
from millstream.store.checks import check_target
from millstream.store.comparable import time_micros, time_text
from millstream.store.contract import LETTERS_KEPT, Target
from millstream.store.ledger import KEPT
from millstream.store.sqlite import beats, hidden, ledger, tables
from millstream.store.sqlite.file import ViewFile
from millstream.store.sqlite.values import sql_type
from millstream.store.writer import Engine, Writer

SqliteWriter: TypeAlias = "Writer[Db, tables.Kept, tables.Writes, ledger.Page]"
T = TypeVar("T")


def sqlite_writer(
    path: str | Path, *, clock: Callable[[], int] = lease.now, keep: int = KEPT, letters: int = LETTERS_KEPT
) -> SqliteWriter:
    """The writing side of a file of views. ``clock`` gives microseconds since the epoch, for leases and the ledger."""
    return Writer(SqliteEngine(ViewFile(Path(path), create=True), clock, keep, letters))


class SqliteEngine(Engine[Db, tables.Kept, tables.Writes, ledger.Page]):
    """SQLite's verbs."""

    has = staticmethod(ledger.has)
    entries = staticmethod(ledger.entries)
    heartbeats = staticmethod(beats.heartbeats)
    load = staticmethod(tables.load)
    plan = staticmethod(tables.plan_writes)
    page = staticmethod(ledger.Page)
    apply = staticmethod(tables.apply)
    hide = staticmethod(hidden.hide)
    unhide = staticmethod(hidden.unhide)

    def __init__(self, file: ViewFile, clock: Callable[[], int], keep: int, letters: int) -> None:
        self.file = file
        self._clock, self._keep, self._letters = clock, keep, letters

    @property
    def where(self) -> str:
        """The path."""
        return str(self.file.path)

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def write(self, work: Callable[[Db], T]) -> T:
        """Do work with the lock for writing held."""
        with self.file.write() as db:
            return work(db)

    def read(self, work: Callable[[Db], T]) -> T:
        """Do work in one snapshot."""
        with self.file.read() as db:
            return work(db)

    def claim(self, db: Db, pipeline: str, me: lease.Holder, *, takeover: bool) -> int:
        """Raise the fence and hold the lease."""
        at = self._clock()
        fence = 1 + _stored_fence(db, pipeline, me.owner, None if takeover else at)
        db.execute(
            "INSERT OR REPLACE INTO millstream_lease"
            " (pipeline, fence, owner, host, machine, pid, started, since, expires) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                pipeline, fence, me.owner, me.host, me.machine, me.pid, me.started,
                time_text(at), time_text(at + lease.TTL),
            ),
        )  # fmt: skip
        return fence

    def disown(self, db: Db, pipeline: str, owner: str) -> None:
        """Raise the fence, if there is one."""
        fence = _stored_fence(db, pipeline, owner, self._clock())
        db.execute("UPDATE millstream_lease SET fence = ? WHERE pipeline = ?", (fence + 1, pipeline))

    def check_fence(self, db: Db, pipeline: str, fence: int) -> None:
        """TakenOver unless the stored fence is this one."""
        found = db.execute("SELECT fence FROM millstream_lease WHERE pipeline = ?", (pipeline,)).get
        if found != fence:
            raise lease.taken_over(pipeline, found, fence)

    def extend(self, db: Db, pipeline: str, owner: str) -> None:
        """Let the lease live on from now."""
        db.execute(
            "UPDATE millstream_lease SET expires = ? WHERE pipeline = ? AND owner = ?",
            (time_text(self._clock() + lease.TTL), pipeline, owner),
        )

    def release(self, db: Db, pipeline: str, fence: int, owner: str) -> None:
        """End the lease, if it is still this one."""
        db.execute(
            "UPDATE millstream_lease SET owner = '', expires = ? WHERE pipeline = ? AND fence = ? AND owner = ?",
            (time_text(self._clock()), pipeline, fence, owner),
        )

    def drop_leases(self, db: Db, pipelines: Sequence[str]) -> None:
        """Forget who held these."""
        db.executemany("DELETE FROM millstream_lease WHERE pipeline = ?", [(each,) for each in pipelines])

    def check(self, target: Target) -> None:
        """Refuse a view that cannot be kept."""
        check_target(target, sql_type)

    def create(self, db: Db, target: Target, pipeline: str, fingerprint: str) -> None:
        """Make the table of a view."""
        tables.create(db, tables.Kept(target, pipeline, fingerprint, first=tables.first_time(target)))

    def stage(self, db: Db, writes: Sequence[tables.Writes], page: ledger.Page) -> None:
        """Nothing: it is all in this process already."""

    def enter(self, db: Db, pipeline: str, page: ledger.Page) -> None:
        """Write the page."""
        page.write(db, pipeline, self._clock(), self._keep, self._letters)

    def drop(self, db: Db, pipeline: str, kept: Sequence[tables.Kept]) -> None:
        """Remove views, and the ledger of their pipeline."""
        for each in kept:
            tables.drop(db, each)
        ledger.forget(db, pipeline)

    def rename(self, db: Db, pipeline: str, kept: Sequence[tables.Kept], other: str) -> None:
        """Let another pipeline have views, and the ledger."""
        for each in kept:
            tables.rename(db, each, other)
        ledger.rename(db, pipeline, other)


def _stored_fence(db: Db, pipeline: str, owner: str, live_at: int | None) -> int:
    """The newest fence, 0 if there is none; AlreadyRunning if at the time ``live_at`` another holds the lease."""
    row = db.execute(
        "SELECT fence, host, machine, pid, started, owner, since, expires FROM millstream_lease WHERE pipeline = ?",
        (pipeline,),
    ).fetchone()
    if row is None:
        return 0
    fence, *holder, since, expires = row
    other = lease.Holder(*holder)
    if live_at is not None and other.owner not in ("", owner):
        lease.refuse_if_live(pipeline, other, since, time_micros(expires), live_at)
    return int(fence)
