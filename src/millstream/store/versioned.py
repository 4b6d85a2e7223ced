"""A version of a pipeline beside the one that people read: the same store, under names of its own.

A run that builds it knows nothing of that: it says the pipeline's and the views' names, and here they become those of the version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millstream.store.contract import Batch, Entry, Hidden, StoreWriter, Target, Told, version_of

NEXT, OLD = "~next", "~old"
"""What the names of the version that is being built end with, and those of the one that was there before."""


class Beside(StoreWriter):
    """A store for the version ``~next`` of whatever pipeline is named."""

    def __init__(self, writer: StoreWriter) -> None:
        self._writer = writer

    def close(self) -> None:
        """Close the store."""
        self._writer.close()

    def claim(self, pipeline: str, *, takeover: bool = False) -> int:
        """Become the only writer of the version."""
        return self._writer.claim(pipeline + NEXT, takeover=takeover)

    def renew(self) -> None:
        """Extend the lease."""
        self._writer.renew()

    def release(self) -> None:
        """End the lease."""
        self._writer.release()

    def prepare(self, pipeline: str, fingerprint: str, targets: Sequence[Target]) -> None:
        """Make the tables of the version."""
        named = [replace(target, name=version_of(target.name, NEXT)) for target in targets]
        self._writer.prepare(pipeline + NEXT, fingerprint, named)

    def commit(self, batch: Batch) -> bool:
        """Apply a batch to the version."""
        changes = {version_of(view, NEXT): table for view, table in batch.changes.items()}
        return self._writer.commit(replace(batch, changes=changes))

    def last(self, pipeline: str) -> Entry | None:
        """The newest entry of the version's ledger."""
        return self._writer.last(pipeline + NEXT)

    def entries(self, pipeline: str, limit: int = 1000) -> list[Entry]:
        """The newest entries of the version's ledger."""
        return self._writer.entries(pipeline + NEXT, limit)

    def heartbeats(self, pipeline: str) -> list[Told]:
        """Those of the version, and of the one beside which it is built."""
        return self._writer.heartbeats(pipeline + NEXT) + self._writer.heartbeats(pipeline)

    def forget(self, pipeline: str) -> None:
        """Drop the version."""
        self._writer.forget(pipeline + NEXT)

    def hide(self, rows: Sequence[Hidden]) -> None:
        """Hide rows of all versions."""
        self._writer.hide(rows)

    def unhide(self, requests: Sequence[str]) -> None:
        """Hide them no longer."""
        self._writer.unhide(requests)

    def swap(self, pipeline: str, coming: str, going: str) -> None:
        """Not for who builds a version."""
        raise NotImplementedError(f"{pipeline}: {coming}, {going}")
