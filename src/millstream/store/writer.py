"""How views are written, on every engine: claimed by one writer, changed a whole batch at a time.

Invariant: a batch's changes, dead letters, counts and ledger entry are one transaction, and the fence is checked inside it, before
anything else. An engine may do that transaction again if it lost its connection, also in the middle of a COMMIT: the ledger then
says whether the batch is there already. The order of things is here; an :class:`Engine` has the verbs.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from millstream.errors import PipelineError
from millstream.failpoint import failpoint
from millstream.store import lease
from millstream.store.checks import Stored, check_changes, check_definition, check_names, check_versions
from millstream.store.contract import Batch, Entry, Hidden, StoreWriter, Target, Told
from millstream.store.ledger import KEPT

Db = TypeVar("Db")
"""A connection within a transaction."""
Kept = TypeVar("Kept", bound=Stored)
"""A view as it is stored."""
Writes = TypeVar("Writes")
"""What a batch does to one view."""
Page = TypeVar("Page")
"""What a batch adds to the ledger."""
T = TypeVar("T")


class Engine(ABC, Generic[Db, Kept, Writes, Page]):
    """What a database must do for a :class:`Writer`. What takes a connection runs inside a transaction of the caller."""

    @property
    @abstractmethod
    def where(self) -> str:
        """The place, for messages."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connections."""

    @abstractmethod
    def write(self, work: Callable[[Db], T]) -> T:
        """Do work in one transaction; the same work may be done again if nobody knows how its transaction ended."""

    @abstractmethod
    def read(self, work: Callable[[Db], T]) -> T:
        """Do work that only reads, in one snapshot."""

    @abstractmethod
    def claim(self, db: Db, pipeline: str, me: lease.Holder, *, takeover: bool) -> int:
        """Raise the fence and hold the lease; AlreadyRunning while another's is live, unless ``takeover``."""

    @abstractmethod
    def disown(self, db: Db, pipeline: str, owner: str) -> None:
        """Raise the fence if there is one, so that nobody holds it; AlreadyRunning while another's lease is live."""

    @abstractmethod
    def check_fence(self, db: Db, pipeline: str, fence: int) -> None:
        """TakenOver unless the stored fence is this one; nobody can change it until the transaction ends."""

    @abstractmethod
    def extend(self, db: Db, pipeline: str, owner: str) -> None:
        """Let the lease live on from now."""

    @abstractmethod
    def release(self, db: Db, pipeline: str, fence: int, owner: str) -> None:
        """End the lease, if it is still this one."""

    @abstractmethod
    def drop_leases(self, db: Db, pipelines: Sequence[str]) -> None:
        """Forget who held these, and their fences."""

    @abstractmethod
    def has(self, db: Db, pipeline: str, batch: Batch) -> bool:
        """Whether a batch is in the ledger; an error if it does not fit what is there."""

    @abstractmethod
    def entries(self, db: Db, pipeline: str, limit: int) -> list[Entry]:
        """The newest entries of the ledger, newest first."""

    @abstractmethod
    def heartbeats(self, db: Db, pipeline: str) -> list[Told]:
        """The heartbeats of a pipeline."""

    @abstractmethod
    def check(self, target: Target) -> None:
        """Refuse a view that cannot be kept."""

    @abstractmethod
    def create(self, db: Db, target: Target, pipeline: str, fingerprint: str) -> None:
        """Make the table of a view and remember its definition."""

    @abstractmethod
    def load(self, db: Db) -> dict[str, Kept]:
        """Every view kept here, by name."""

    @abstractmethod
    def plan(self, kept: Kept, changes: Any) -> Writes:
        """What a batch's changes of one view will write. Asks the database nothing."""

    @abstractmethod
    def page(self, batch: Batch) -> Page:
        """What a batch will add to the ledger. Asks the database nothing."""

    @abstractmethod
    def stage(self, db: Db, writes: Sequence[Writes], page: Page) -> None:
        """Send what can be sent before anyone is locked out."""

    @abstractmethod
    def apply(self, db: Db, writes: Writes) -> None:
        """Change one view."""

    @abstractmethod
    def enter(self, db: Db, pipeline: str, page: Page) -> None:
        """Write the page, and drop what the ledger need not keep."""

    @abstractmethod
    def hide(self, db: Db, rows: Sequence[Hidden]) -> None:
        """Put rows on the list of those that readers do not see."""

    @abstractmethod
    def unhide(self, db: Db, requests: Sequence[str]) -> None:
        """Take off it what these requests have put there."""

    @abstractmethod
    def drop(self, db: Db, pipeline: str, kept: Sequence[Kept]) -> None:
        """Remove these views of a pipeline, and all that is known of its batches."""

    @abstractmethod
    def rename(self, db: Db, pipeline: str, kept: Sequence[Kept], other: str) -> None:
        """Let another pipeline have these views, under their names there, and all that is known of the batches."""


class Writer(StoreWriter, Generic[Db, Kept, Writes, Page]):
    """The writing side of any engine."""

    def __init__(self, engine: Engine[Db, Kept, Writes, Page]) -> None:
        self.engine = engine
        self._owner = uuid.uuid4().hex
        self._claimed: tuple[str, int] | None = None
        self._kept: dict[str, Kept] | None = None

    def close(self) -> None:
        """Let go of the engine. A lease that is held stays, until it is released or runs out."""
        self.engine.close()

    def claim(self, pipeline: str, *, takeover: bool = False) -> int:
        """Become the only writer of a pipeline; see the contract."""
        me = lease.this_process(self._owner)
        fence = self.engine.write(lambda db: self.engine.claim(db, pipeline, me, takeover=takeover))
        self._claimed, self._kept = (pipeline, fence), None
        return fence

    def renew(self) -> None:
        """Extend the lease, if it is still ours."""
        pipeline, fence = self._claim()

        def work(db: Db) -> None:
            self.engine.check_fence(db, pipeline, fence)
            self.engine.extend(db, pipeline, self._owner)

        self.engine.write(work)

    def release(self) -> None:
        """End the lease, if it is still ours."""
        if self._claimed is None:
            return
        pipeline, fence = self._claimed
        self.engine.write(lambda db: self.engine.release(db, pipeline, fence, self._owner))
        self._claimed = self._kept = None

    def hide(self, rows: Sequence[Hidden]) -> None:
        """Hide rows from readers."""
        self.engine.write(lambda db: self.engine.hide(db, rows))

    def unhide(self, requests: Sequence[str]) -> None:
        """Hide them no longer."""
        self.engine.write(lambda db: self.engine.unhide(db, requests))

    def prepare(self, pipeline: str, fingerprint: str, targets: Sequence[Target]) -> None:
        """Make the tables of a claimed pipeline, or check that they are as they were made."""
        claimed, fence = self._claim()
        if claimed != pipeline:
            raise PipelineError(f"pipeline {pipeline!r} is not claimed by this store, which holds {claimed!r}")
        for target in targets:
            self.engine.check(target)
        check_names(targets)

        def work(db: Db) -> dict[str, Kept]:
            self.engine.check_fence(db, pipeline, fence)
            begun, everything = bool(self.engine.entries(db, pipeline, 1)), self.engine.load(db)
            if check_definition(self.engine.where, pipeline, fingerprint, targets, everything, begun=begun):
                for target in targets:
                    self.engine.create(db, target, pipeline, fingerprint)
            return {kept.target.name: kept for kept in self._of(db, pipeline)}

        self._kept = self.engine.write(work)

    def commit(self, batch: Batch) -> bool:
        """Apply a batch, whole; False if it is there already."""
        pipeline, _ = self._claim()
        # All of this needs no lock, and readers of the lease and other pipelines should not wait for it.
        kept = check_changes(pipeline, self._kept, batch.changes)
        writes = [self.engine.plan(kept[view], changes) for view, changes in sorted(batch.changes.items())]
        page = self.engine.page(batch)
        tried = False

        def work(db: Db) -> bool:
            nonlocal tried
            self.engine.stage(db, writes, page)
            self.engine.check_fence(db, pipeline, batch.fence)
            if self.engine.has(db, pipeline, batch):
                return tried  # by a transaction of ours whose end we did not hear of
            for each in writes:
                self.engine.apply(db, each)
                failpoint("store.in_transaction")
            self.engine.enter(db, pipeline, page)
            self.engine.extend(db, pipeline, self._owner)  # nobody could renew it while this transaction held it
            failpoint("store.before_commit")
            tried = True
            return True

        failpoint("store.before_write")
        done = self.engine.write(work)
        if done:
            failpoint("store.after_commit")
        return done

    def last(self, pipeline: str) -> Entry | None:
        """The newest entry of the ledger."""
        return next(iter(self.entries(pipeline, 1)), None)

    def entries(self, pipeline: str, limit: int = KEPT) -> list[Entry]:
        """The newest entries, newest first."""
        return self.engine.read(lambda db: self.engine.entries(db, pipeline, limit))

    def heartbeats(self, pipeline: str) -> list[Told]:
        """The heartbeats of a pipeline."""
        return self.engine.read(lambda db: self.engine.heartbeats(db, pipeline))

    def forget(self, pipeline: str) -> None:
        """Drop the views of a pipeline and all that is known of its batches."""
        mine = self._claimed if self._claimed is not None and self._claimed[0] == pipeline else None

        def work(db: Db) -> None:
            if mine is not None:
                self.engine.check_fence(db, *mine)
            else:  # whoever still believes to hold it must not write into what comes next
                self.engine.disown(db, pipeline, self._owner)
            self.engine.drop(db, pipeline, self._of(db, pipeline))

        self.engine.write(work)
        if mine is not None:
            self._kept = None

    def swap(self, pipeline: str, coming: str, going: str) -> None:
        """Exchange versions of a claimed pipeline; see the contract."""
        claimed, fence = self._claim()
        tried = False

        def work(db: Db) -> None:
            nonlocal tried
            self.engine.check_fence(db, claimed, fence)
            fresh = self._of(db, coming)
            if tried and not fresh:
                return  # done by a transaction of ours whose end we did not hear of
            check_versions(claimed, pipeline, coming, fresh)
            self.engine.drop(db, going, self._of(db, going))
            for old, new in ((pipeline, going), (coming, pipeline)):
                self.engine.rename(db, old, self._of(db, old), new)
                failpoint("store.in_swap")
            self.engine.drop_leases(db, (coming, going))
            tried = True

        self.engine.write(work)
        self._kept = None

    def _claim(self) -> tuple[str, int]:
        if self._claimed is None:
            raise PipelineError("this store holds no pipeline: claim() comes first")
        return self._claimed

    def _of(self, db: Db, pipeline: str) -> list[Kept]:
        return [kept for kept in self.engine.load(db).values() if kept.pipeline == pipeline]
