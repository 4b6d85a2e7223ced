"""Views in one schema of a PostgreSQL database: claimed by one writer, changed a whole batch at a time.

Invariant: a batch's changes, dead letters, counts and ledger entry are one transaction, and the fence is checked inside it. If the
connection is lost, also in the middle of a COMMIT, the batch is tried again and the ledger says whether it was there already.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta

from millstream.address import PostgresAddress
from millstream.errors import PipelineError
from millstream.failpoint import failpoint
from millstream.store import lease
from millstream.store.checks import check_changes, check_definition, check_names, check_versions
from millstream.store.contract import LETTERS_KEPT, Batch, Entry, StoreWriter, Target
from millstream.store.ledger import KEPT
from millstream.store.postgres import ledger, tables
from millstream.store.postgres.server import PATIENCE, Pg, Server

_TTL = timedelta(microseconds=lease.TTL)


class PostgresWriter(StoreWriter):
    """The writing side. ``patience`` is how long it waits for a server that was there and is away; ``ttl`` is the lease's."""

    def __init__(
        self,
        address: PostgresAddress,
        *,
        keep: int = KEPT,
        letters: int = LETTERS_KEPT,
        ttl: timedelta = _TTL,
        patience: timedelta = PATIENCE,
    ) -> None:
        self._server = Server(address, patience=patience)
        self._server.open(create=True)
        self._keep, self._letters, self._ttl = keep, letters, ttl
        self._owner = uuid.uuid4().hex
        self._claimed: tuple[str, int] | None = None
        self._kept: dict[str, tables.Kept] | None = None

    def close(self) -> None:
        """Close the connections. A lease that is held stays, until it is released or runs out."""
        self._server.close()

    def claim(self, pipeline: str, *, takeover: bool = False) -> int:
        """Become the only writer of a pipeline; see the contract."""
        me = lease.this_process(self._owner)
        fence = self._server.run(lambda db: ledger.claim(db, pipeline, me, self._ttl, takeover=takeover))
        self._claimed, self._kept = (pipeline, fence), None
        return fence

    def renew(self) -> None:
        """Extend the lease, if it is still ours."""
        pipeline, fence = self._claim()

        def work(db: Pg) -> None:
            ledger.check_fence(db, pipeline, fence)
            ledger.extend(db, pipeline, self._owner, self._ttl)

        self._server.run(work)

    def release(self) -> None:
        """End the lease, if it is still ours."""
        if self._claimed is None:
            return
        pipeline, fence = self._claimed
        self._server.run(lambda db: ledger.release(db, pipeline, fence, self._owner))
        self._claimed = self._kept = None

    def prepare(self, pipeline: str, fingerprint: str, targets: Sequence[Target]) -> None:
        """Make the tables of a claimed pipeline, or check that they are as they were made."""
        claimed, fence = self._claim()
        if claimed != pipeline:
            raise PipelineError(f"pipeline {pipeline!r} is not claimed by this store, which holds {claimed!r}")
        for target in targets:
            tables.check(target)
        check_names(targets)

        def work(db: Pg) -> dict[str, tables.Kept]:
            ledger.check_fence(db, pipeline, fence)
            begun = bool(ledger.entries(db, pipeline, 1))
            where = str(self._server.address)
            if check_definition(where, pipeline, fingerprint, targets, tables.load(db), begun=begun):
                for target in targets:
                    tables.create(db, self._server.address.schema, target, pipeline, fingerprint)
            return {name: kept for name, kept in tables.load(db).items() if kept.pipeline == pipeline}

        self._kept = self._server.run(work)

    def commit(self, batch: Batch) -> bool:
        """Apply a batch, whole; False if it is there already."""
        pipeline, _ = self._claim()
        kept = check_changes(pipeline, self._kept, batch.changes)
        writes = [tables.plan_writes(kept[view], changes) for view, changes in sorted(batch.changes.items())]
        page = ledger.Page(batch)
        tried = False

        def work(db: Pg) -> bool:
            nonlocal tried
            for each in writes:
                tables.stage(db, each)
            page.stage(db)
            ledger.check_fence(db, pipeline, batch.fence)
            if ledger.has(db, pipeline, batch):
                return tried  # by a transaction of ours whose end we did not hear of
            for each in writes:
                tables.apply(db, each)
                failpoint("store.in_transaction")
            page.write(db, pipeline, self._keep, self._letters)
            ledger.extend(db, pipeline, self._owner, self._ttl)  # nobody could renew it while this transaction held it
            failpoint("store.before_commit")
            tried = True
            return True

        failpoint("store.before_write")
        done = self._server.run(work)
        failpoint("store.after_commit")
        return done

    def last(self, pipeline: str) -> Entry | None:
        """The newest entry of the ledger."""
        return next(iter(self.entries(pipeline, 1)), None)

    def entries(self, pipeline: str, limit: int = KEPT) -> list[Entry]:
        """The newest entries, newest first."""
        return self._server.run(lambda db: ledger.entries(db, pipeline, limit), reading=True)

    def forget(self, pipeline: str) -> None:
        """Drop the views of a pipeline and all that is known of its batches."""
        mine = self._claimed if self._claimed is not None and self._claimed[0] == pipeline else None

        def work(db: Pg) -> None:
            if mine is not None:
                ledger.check_fence(db, *mine)
            else:
                ledger.stored_fence(db, pipeline, self._owner, even_live=False)
                # Whoever still believes to hold it must not write into what comes next.
                db.execute("UPDATE millstream_lease SET fence = fence + 1 WHERE pipeline = %s", [pipeline])
            for kept in tables.load(db).values():
                if kept.pipeline == pipeline:
                    tables.drop(db, kept)
            ledger.forget(db, pipeline)

        self._server.run(work)
        if mine is not None:
            self._kept = None

    def swap(self, pipeline: str, coming: str, going: str) -> None:
        """Exchange versions of a claimed pipeline; see the contract."""
        claimed, fence = self._claim()
        tried = False

        def work(db: Pg) -> None:
            nonlocal tried
            ledger.check_fence(db, claimed, fence)
            kept = {
                name: [each for each in tables.load(db).values() if each.pipeline == name]
                for name in (going, pipeline, coming)
            }
            if tried and not kept[coming]:
                return  # done by a transaction of ours whose end we did not hear of
            check_versions(claimed, pipeline, coming, kept[coming])
            for each in kept[going]:
                tables.drop(db, each)
            ledger.forget(db, going)
            for old, new in ((pipeline, going), (coming, pipeline)):
                for each in kept[old]:
                    tables.rename(db, each, new)
                ledger.rename(db, old, new)
                failpoint("store.in_swap")
            db.execute("DELETE FROM millstream_lease WHERE pipeline IN (%s, %s)", [coming, going])
            tried = True

        self._server.run(work)
        self._kept = None

    def _claim(self) -> tuple[str, int]:
        if self._claimed is None:
            raise PipelineError("this store holds no pipeline: claim() comes first")
        return self._claimed
