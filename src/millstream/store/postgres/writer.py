"""Views in one schema of a PostgreSQL database, as :class:`millstream.store.writer.Writer` writes them.

Invariant: a transaction that writes for a pipeline holds the row of its lease from the check of the fence on. If the connection is
lost, the work is done again, and waits there for the end of what it did before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeAlias, TypeVar

from millstream.address import PostgresAddress
from millstream.store import lease
from millstream.store.contract import LETTERS_KEPT, Target
from millstream.store.ledger import KEPT
from millstream.store.postgres import beats, hidden, ledger, tables
from millstream.store.postgres.server import PATIENCE, Pg, Server
from millstream.store.writer import Engine, Writer

PostgresWriter: TypeAlias = "Writer[Pg, tables.Kept, tables.Writes, ledger.Page]"
T = TypeVar("T")
_TTL = timedelta(microseconds=lease.TTL)


def postgres_writer(
    address: PostgresAddress,
    *,
    keep: int = KEPT,
    letters: int = LETTERS_KEPT,
    ttl: timedelta = _TTL,
    patience: timedelta = PATIENCE,
) -> PostgresWriter:
    """The writing side. ``patience`` is how long it waits for a server that was there and is away; ``ttl`` is the lease's."""
    server = Server(address, patience=patience)
    server.open(create=True)
    return Writer(PostgresEngine(server, keep, letters, ttl))


class PostgresEngine(Engine[Pg, tables.Kept, tables.Writes, ledger.Page]):
    """PostgreSQL's verbs."""

    check_fence = staticmethod(ledger.check_fence)
    release = staticmethod(ledger.release)
    has = staticmethod(ledger.has)
    entries = staticmethod(ledger.entries)
    heartbeats = staticmethod(beats.heartbeats)
    check = staticmethod(tables.check)
    load = staticmethod(tables.load)
    plan = staticmethod(tables.plan_writes)
    page = staticmethod(ledger.Page)
    apply = staticmethod(tables.apply)
    hide = staticmethod(hidden.hide)
    unhide = staticmethod(hidden.unhide)

    def __init__(self, server: Server, keep: int, letters: int, ttl: timedelta) -> None:
        self.server, self.ttl = server, ttl
        self._keep, self._letters = keep, letters

    @property
    def where(self) -> str:
        """The address, without secrets."""
        return str(self.server.address)

    def close(self) -> None:
        """Close the connections."""
        self.server.close()

    def write(self, work: Callable[[Pg], T]) -> T:
        """Do work in one transaction, again if the connection is lost in it."""
        return self.server.run(work)

    def read(self, work: Callable[[Pg], T]) -> T:
        """Do work in one snapshot."""
        return self.server.run(work, reading=True)

    def claim(self, db: Pg, pipeline: str, me: lease.Holder, *, takeover: bool) -> int:
        """Raise the fence and hold the lease."""
        return ledger.claim(db, pipeline, me, self.ttl, takeover=takeover)

    def disown(self, db: Pg, pipeline: str, owner: str) -> None:
        """Raise the fence, if there is one."""
        ledger.stored_fence(db, pipeline, owner, even_live=False)
        db.execute("UPDATE millstream_lease SET fence = fence + 1 WHERE pipeline = %s", [pipeline])

    def extend(self, db: Pg, pipeline: str, owner: str) -> None:
        """Let the lease live on from now."""
        ledger.extend(db, pipeline, owner, self.ttl)

    def drop_leases(self, db: Pg, pipelines: Sequence[str]) -> None:
        """Forget who held these."""
        db.execute("DELETE FROM millstream_lease WHERE pipeline = ANY(%s)", [list(pipelines)])

    def create(self, db: Pg, target: Target, pipeline: str, fingerprint: str) -> None:
        """Make the table of a view."""
        tables.create(db, self.server.address.schema, target, pipeline, fingerprint)

    def stage(self, db: Pg, writes: Sequence[tables.Writes], page: ledger.Page) -> None:
        """Copy the batch to the server, where nobody sees it."""
        for each in writes:
            tables.stage(db, each)
        page.stage(db)

    def enter(self, db: Pg, pipeline: str, page: ledger.Page) -> None:
        """Write the page."""
        page.write(db, pipeline, self._keep, self._letters)

    def drop(self, db: Pg, pipeline: str, kept: Sequence[tables.Kept]) -> None:
        """Remove views, and the ledger of their pipeline."""
        for each in kept:
            tables.drop(db, each)
        ledger.forget(db, pipeline)

    def rename(self, db: Pg, pipeline: str, kept: Sequence[tables.Kept], other: str) -> None:
        """Let another pipeline have views, and the ledger."""
        for each in kept:
            tables.rename(db, each, other)
        ledger.rename(db, pipeline, other)
