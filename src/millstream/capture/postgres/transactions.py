"""Messages of the stream become transactions: what came between a beginning and its commit, as one.

Invariant: a transaction is told when its commit was read, never before, and its position is the end of that. Large ones come in pieces while they
are open, several at once, and may be rolled back in whole or in part; they are held until they end. Of what is not ours only the position remains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from millstream.capture.contract import Change, Remembered, Transaction
from millstream.capture.held import Held
from millstream.capture.postgres.pgoutput import (
    ROWS,
    Begin,
    Commit,
    Relation,
    StreamAbort,
    StreamStart,
    StreamStop,
    Truncate,
    decode,
    row_head,
)
from millstream.capture.postgres.position import At
from millstream.capture.postgres.rows import Mapped, read_change
from millstream.errors import CaptureError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Open:
    """A transaction that has not ended: its changes, which of its subtransactions were rolled back, and relations as it sees them."""

    def __init__(self, xid: int, at: int, remembered: Remembered | None) -> None:
        self.xid, self.aborted, self.relations = xid, set[int](), dict[int, tuple[int, Mapped | None]]()

        def read(sub: int, body: bytes, mapped: Mapped) -> Iterable[Change]:
            return () if sub in self.aborted else (read_change(body, at, mapped, remembered),)

        self.held = Held(read)


class Transactions:
    """Reads messages one by one, and gives a transaction when one has ended that has changes of ours.

    ``mapped`` gives the table that a relation is, None for one that is not captured; ``at`` is the end of the last transaction.
    """

    def __init__(
        self, mapped: Callable[[Relation], Mapped | None], at: At, remembered: Remembered | None = None
    ) -> None:
        self._mapped, self.at, self._remembered = mapped, at, remembered
        self.lsn = at.lsn
        self.restarted()

    def restarted(self) -> None:
        """The stream begins anew, after the last transaction that was told: forget what is half read."""
        for each in getattr(self, "_streamed", {}).values():
            each.held.close()
        self._relations: dict[int, tuple[int, Mapped | None]] = {}
        self._streamed: dict[int, _Open] = {}
        self._whole: _Open | None = None
        self._block: _Open | None = None
        self._begin: Begin | None = None
        self._count = 0

    @property
    def position(self) -> At:
        """Where reading is: the end of what was told, or of what the server has looked through since."""
        return replace(self.at, lsn=self.lsn)

    def named(self, publication: int, tables: Mapping[str, str]) -> None:
        """These are the publication and the tables, which positions name from here on."""
        self.at = replace(self.at, publication=publication, tables=tables)

    def here(self) -> Transaction:
        """That nothing of ours was committed up to where reading is."""
        return Transaction(self.at.said(self.lsn), None, "", ())

    def looked(self, end: int) -> None:
        """The server has looked for transactions up to there, and given all that it found."""
        if self._begin is None and self._block is None:
            self.lsn = max(self.lsn, end)

    def read(self, body: bytes) -> Transaction | None:
        """Read a message; the transaction that ends with it, if it has changes of ours."""
        if body[0] in ROWS:
            block = self._block
            sub, relation = row_head(body, block is not None)
            mapped = self._known(relation)
            if mapped is not None:
                current = block or self._whole
                if current is None:
                    raise CaptureError("found a row outside of a transaction")
                current.held.add(sub, mapped, body)
            return None
        message = decode(body, self._block is not None)
        match message:
            case Begin():
                self._begin, self._whole = message, _Open(message.xid, 5, self._remembered)
            case Commit(xid=0):
                whole, begin = self._whole, self._begin
                self._whole = self._begin = None
                if whole is None or begin is None:
                    raise CaptureError("found a commit outside of a transaction")
                return self._ended(whole, message)
            case Commit():
                return self._ended(self._stream(message.xid, end=True), message)
            case StreamStart():
                self._block = self._stream(message.xid)
            case StreamStop():
                self._block = None
            case StreamAbort():
                self._aborted(message)
            case Relation():
                self._count += 1
                relations = self._relations if self._block is None else self._block.relations
                relations[message.number] = (self._count, self._mapped(message))
            case Truncate():
                current = self._block or self._whole
                for number in message.relations:
                    mapped = self._known(number)
                    if mapped is not None and current is not None:
                        current.held.add(message.xid, mapped, b"T")
            case _:
                pass  # names of types, origins and notes of others
        return None

    def _known(self, relation: int) -> Mapped | None:
        """The table, as the open transaction sees it or else as all do."""
        found = self._block.relations.get(relation) if self._block is not None else None
        if found is None:
            found = self._relations.get(relation)
        if found is None:
            raise CaptureError(f"found a row of the relation {relation}, which was not described")
        return found[1]

    def _stream(self, xid: int, *, end: bool = False) -> _Open:
        found = self._streamed.pop(xid, None) if end else self._streamed.get(xid)
        if found is None:
            found = _Open(xid, 9, self._remembered)
            if not end:
                self._streamed[xid] = found
        return found

    def _aborted(self, message: StreamAbort) -> None:
        if message.sub == message.xid:
            self._stream(message.xid, end=True).held.close()
            return
        current = self._stream(message.xid)
        current.aborted.add(message.sub)
        current.relations.clear()  # what it saw may be of the part that is gone; the server says anew what is left

    def _ended(self, transaction: _Open, commit: Commit) -> Transaction | None:
        """A transaction has ended. What ended before the position has been told already."""
        for number, (count, mapped) in transaction.relations.items():
            if count > self._relations.get(number, (0, None))[0]:  # the later description, whoever gave it
                self._relations[number] = (count, mapped)
        if commit.end <= self.lsn:
            transaction.held.close()
            return None
        self.lsn = commit.end
        if not len(transaction.held):
            return None
        time = _EPOCH + timedelta(microseconds=commit.time)
        return Transaction(self.at.said(self.lsn), time, str(transaction.xid), transaction.held.changes())
