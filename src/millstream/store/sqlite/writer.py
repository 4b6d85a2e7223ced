"""Views in one SQLite file: claimed by one writer, changed a whole batch at a time.

Invariant: a batch's changes, dead letters, counts and ledger entry are one transaction, and the fence is checked inside it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from millstream.database import Db
from millstream.errors import PipelineError
from millstream.failpoint import failpoint
from millstream.store import lease
from millstream.store.checks import check_changes, check_definition, check_names, check_target, check_versions
from millstream.store.comparable import time_micros, time_text
from millstream.store.contract import LETTERS_KEPT, Batch, Entry, StoreWriter, Target
from millstream.store.ledger import KEPT
from millstream.store.sqlite import ledger, tables
from millstream.store.sqlite.file import ViewFile
from millstream.store.sqlite.values import sql_type


class SqliteWriter(StoreWriter):
    """The writing side of a file of views. ``clock`` gives microseconds since the epoch, for leases and the ledger."""

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Callable[[], int] = lease.now,
        keep: int = KEPT,
        letters: int = LETTERS_KEPT,
    ) -> None:
        self._file = ViewFile(Path(path), create=True)
        self._clock, self._keep, self._letters = clock, keep, letters
        self._owner = uuid.uuid4().hex
        self._claimed: tuple[str, int] | None = None
        self._kept: dict[str, tables.Kept] | None = None

    def close(self) -> None:
        """Close the file. A lease that is held stays, until it is released or runs out."""
        self._file.close()

    def claim(self, pipeline: str, *, takeover: bool = False) -> int:
        """Become the only writer of a pipeline; see the contract."""
        me = lease.this_process(self._owner)
        with self._file.write() as db:
            at = self._clock()
            fence = 1 + self._stored_fence(db, pipeline, None if takeover else at)
            db.execute(
                "INSERT OR REPLACE INTO millstream_lease"
                " (pipeline, fence, owner, host, machine, pid, started, since, expires) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    pipeline, fence, me.owner, me.host, me.machine, me.pid, me.started,
                    time_text(at), time_text(at + lease.TTL),
                ),
            )  # fmt: skip
        self._claimed, self._kept = (pipeline, fence), None
        return fence

    def renew(self) -> None:
        """Extend the lease, if it is still ours."""
        pipeline, fence = self._claim()
        with self._file.write() as db:
            _check_fence(db, pipeline, fence)
            self._extend(db, pipeline)

    def release(self) -> None:
        """End the lease, if it is still ours."""
        if self._claimed is None:
            return
        with self._file.write() as db:
            db.execute(
                "UPDATE millstream_lease SET owner = '', expires = ? WHERE pipeline = ? AND fence = ? AND owner = ?",
                (time_text(self._clock()), *self._claimed, self._owner),
            )
        self._claimed = self._kept = None

    def prepare(self, pipeline: str, fingerprint: str, targets: Sequence[Target]) -> None:
        """Make the tables of a claimed pipeline, or check that they are as they were made."""
        claimed, fence = self._claim()
        if claimed != pipeline:
            raise PipelineError(f"pipeline {pipeline!r} is not claimed by this store, which holds {claimed!r}")
        for target in targets:
            check_target(target, sql_type)
        check_names(targets)
        with self._file.write() as db:
            _check_fence(db, pipeline, fence)
            begun = bool(ledger.entries(db, pipeline, 1))
            where = str(self._file.path)
            if check_definition(where, pipeline, fingerprint, targets, tables.load(db), begun=begun):
                for target in targets:
                    tables.create(db, tables.Kept(target, pipeline, fingerprint, first=tables.first_time(target)))
            self._kept = tables.load(db, pipeline=pipeline)

    def commit(self, batch: Batch) -> bool:
        """Apply a batch, whole; False if it is there already."""
        pipeline, _ = self._claim()
        known = check_changes(pipeline, self._kept, batch.changes)
        # All of this needs no lock, and readers of the lease and other pipelines should not wait for it.
        writes = [tables.plan_writes(known[view], changes) for view, changes in sorted(batch.changes.items())]
        page = ledger.Page(batch)
        failpoint("store.before_write")
        with self._file.write() as db:
            _check_fence(db, pipeline, batch.fence)
            if ledger.has(db, pipeline, batch):
                return False
            for each in writes:
                tables.apply(db, each)
                failpoint("store.in_transaction")
            page.write(db, pipeline, self._clock(), self._keep, self._letters)
            self._extend(db, pipeline)  # nobody could renew it while this transaction held the lock
            failpoint("store.before_commit")
        failpoint("store.after_commit")
        return True

    def last(self, pipeline: str) -> Entry | None:
        """The newest entry of the ledger."""
        return next(iter(self.entries(pipeline, 1)), None)

    def entries(self, pipeline: str, limit: int = KEPT) -> list[Entry]:
        """The newest entries, newest first."""
        with self._file.read() as db:
            return ledger.entries(db, pipeline, limit)

    def forget(self, pipeline: str) -> None:
        """Drop the views of a pipeline and all that is known of its batches."""
        ours = self._claimed is not None and self._claimed[0] == pipeline
        with self._file.write() as db:
            if self._claimed is not None and ours:
                _check_fence(db, *self._claimed)
            else:
                fence = self._stored_fence(db, pipeline, self._clock())
                # Whoever still believes to hold it must not write into what comes next.
                db.execute("UPDATE millstream_lease SET fence = ? WHERE pipeline = ?", (fence + 1, pipeline))
            for kept in tables.load(db, pipeline=pipeline).values():
                tables.drop(db, kept)
            ledger.forget(db, pipeline)
        if ours:
            self._kept = None

    def swap(self, pipeline: str, coming: str, going: str) -> None:
        """Exchange versions of a claimed pipeline; see the contract."""
        claimed, fence = self._claim()
        with self._file.write() as db:
            _check_fence(db, claimed, fence)
            kept = {name: tables.load(db, pipeline=name).values() for name in (going, pipeline, coming)}
            check_versions(claimed, pipeline, coming, kept[coming])
            for each in kept[going]:
                tables.drop(db, each)
            ledger.forget(db, going)
            for old, new in ((pipeline, going), (coming, pipeline)):
                for each in kept[old]:
                    tables.rename(db, each, new)
                ledger.rename(db, old, new)
                failpoint("store.in_swap")
            db.execute("DELETE FROM millstream_lease WHERE pipeline IN (?, ?)", (coming, going))
        self._kept = None

    def _claim(self) -> tuple[str, int]:
        if self._claimed is None:
            raise PipelineError("this store holds no pipeline: claim() comes first")
        return self._claimed

    def _stored_fence(self, db: Db, pipeline: str, live_at: int | None) -> int:
        """The newest fence, 0 if there is none; AlreadyRunning if at the time ``live_at`` another holds the lease."""
        row = db.execute(
            "SELECT fence, host, machine, pid, started, owner, since, expires FROM millstream_lease WHERE pipeline = ?",
            (pipeline,),
        ).fetchone()
        if row is None:
            return 0
        fence, *holder, since, expires = row
        other = lease.Holder(*holder)
        if live_at is not None and other.owner not in ("", self._owner):
            lease.refuse_if_live(pipeline, other, since, time_micros(expires), live_at)
        return int(fence)

    def _extend(self, db: Db, pipeline: str) -> None:
        db.execute(
            "UPDATE millstream_lease SET expires = ? WHERE pipeline = ? AND owner = ?",
            (time_text(self._clock() + lease.TTL), pipeline, self._owner),
        )


def _check_fence(db: Db, pipeline: str, fence: int) -> None:
    found = db.execute("SELECT fence FROM millstream_lease WHERE pipeline = ?", (pipeline,)).get
    if found != fence:
        raise lease.taken_over(pipeline, found, fence)
