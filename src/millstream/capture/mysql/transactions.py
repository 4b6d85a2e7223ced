"""Events of the binary log become transactions: what came between a beginning and its commit, as one.

Invariant: a transaction is told when its end was read, never before, and its position is that end. What was rolled back, to a
savepoint or as a whole, is not told; nor is what an XA transaction has prepared, until it is committed. Of what is not ours only the
position remains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from millstream.capture.contract import Change, Transaction
from millstream.capture.held import Held
from millstream.capture.mysql.captured import Captured
from millstream.capture.mysql.charsets import Charsets
from millstream.capture.mysql.position import At, Place
from millstream.capture.mysql.query_event import COMPRESSED, LOAD, QUERY, read_query
from millstream.capture.mysql.rows import PARTIAL, ROWS, read_rows
from millstream.capture.mysql.statements import Statement
from millstream.capture.mysql.stream import FORMAT, ROTATE, Event
from millstream.capture.mysql.table_map import Mapped, name_of, read_table_map
from millstream.capture.mysql.values import Zeros
from millstream.errors import CaptureError

_XID, _TABLE_MAP, _XA_PREPARE, _GTID_MARIADB, _GTID_MYSQL, _ANONYMOUS = 16, 19, 38, 162, 33, 34
_STANDALONE = 1
_EMPTIED = 0
"""What is held of a table that was emptied."""
_UNREADABLE = {
    PARTIAL: ("parts of JSON values", "SET GLOBAL binlog_row_value_options = ''; and a new snapshot"),
    40: ("compressed transactions", "SET GLOBAL binlog_transaction_compression = OFF; and a new snapshot"),
    26: ("the note that the server lost changes", "a new snapshot"),
}
_KEPT = 1000
"""How many tables, as they are or were, are remembered."""


@dataclass(slots=True)
class _Prepared:
    """What an XA transaction has prepared, and where it began."""

    begin: Place
    held: Held[Mapped]


class Transactions:
    """Reads events one by one, and gives a transaction when one has ended that has changes of ours."""

    def __init__(self, captured: Captured, charsets: Charsets, *, mariadb: bool, at: At, zeros: Zeros) -> None:
        self._captured, self._charsets, self._mariadb, self._zeros = captured, charsets, mariadb, zeros
        self.at = at
        self._known: dict[bytes, Mapped] = {}
        self._prepared: dict[str, _Prepared] = {}
        self._restarted(at.start)

    def restarted(self) -> None:
        """Reading begins anew, at :attr:`at`: forget what is half read."""
        self._prepared = {}
        self._restarted(self.at.start)

    def here(self) -> Transaction:
        """That nothing of ours was committed up to where reading is."""
        return Transaction(self.at.said(), None, self.at.gtid, ())

    def read(self, event: Event) -> Transaction | None:
        """Read an event; the transaction that ends with it, if it has changes of ours."""
        kind, body = event.kind, event.body
        if kind in ROWS:
            mapped = self._by_number.get(body[:6])
            if mapped is not None:
                self._held.add(kind, mapped, body)
        elif kind == _TABLE_MAP:
            self._by_number[body[:6]] = self._mapped(body[8:])
        elif kind in (_GTID_MARIADB, _GTID_MYSQL, _ANONYMOUS):
            self._begun(event)
        elif kind == _XID:
            return self._committed(event)
        elif kind in (QUERY, LOAD, COMPRESSED):
            return self._statement(event)
        elif kind == _XA_PREPARE:
            return self._xa_prepared(event)
        elif kind == FORMAT:  # a transaction lies in one file: what is open was cut off by a crash, and is rolled back
            self._restarted(event.end)
            self._passed(event.end)
        elif kind in _UNREADABLE:
            what, cure = _UNREADABLE[kind]
            raise CaptureError(f"the binary log has {what} at {event.end.file}:{event.end.byte}", hint=cure)
        elif kind != ROTATE and not self._inside:
            self._passed(event.end)
        return None

    def _restarted(self, place: Place) -> None:
        """Between two transactions, of which the next begins here."""
        self._begin, self._held, self._gtid = place, Held(_read), ""
        self._inside = self._open = False
        self._by_number: dict[bytes, Mapped | None] = {}

    def _mapped(self, body: bytes) -> Mapped | None:
        schema, name = name_of(body)
        if not self._captured.has(schema, name):
            return None
        mapped = self._known.get(body)
        if mapped is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            mapped = self._known[body] = read_table_map(body, self._charsets, self._zeros, self._mariadb)
        self._captured.seen(mapped.table)
        return mapped

    def _begun(self, event: Event) -> None:
        self._restarted(self._begin)
        self._inside, body = True, event.body
        if event.kind == _GTID_MARIADB:
            sequence, domain = int.from_bytes(body[:8], "little"), int.from_bytes(body[8:12], "little")
            self._gtid = f"{domain}-{event.server}-{sequence}"
            self._open = not body[12] & _STANDALONE
        elif event.kind == _GTID_MYSQL:
            self._gtid = f"{UUID(bytes=body[1:17])}:{int.from_bytes(body[17:25], 'little')}"

    def _statement(self, event: Event) -> Transaction | None:
        statement, text = read_query(event.kind, event.body, self._charsets)
        match statement.kind:
            case "begin":
                self._open = True
                return None
            case "commit":
                return self._committed(event)
            case "rollback":
                self._held.close()
                return self._ended(event, None)
            case "savepoint":
                self._held.savepoint(statement.word)
            case "back":
                self._held.back(statement.word)
            case "xa":
                return self._xa(statement, event)
            case "empty":
                for table in self._captured.named(statement):
                    self._held.add(_EMPTIED, Mapped(table, (), 0, 0), b"")
            case _:
                self._captured.check(statement, text, event.end)
        return None if self._open else self._committed(event)

    def _committed(self, event: Event) -> Transaction | None:
        return self._ended(event, self._held if len(self._held) else None)

    def _ended(self, event: Event, held: Held[Mapped] | None) -> Transaction | None:
        """A transaction has ended here. What ended before the position has been told already."""
        gtid, new = self._gtid, event.end.order > self.at.place.order
        self._restarted(event.end)
        if not new:
            return None
        self.at = self.at.moved(event.end, gtid or self.at.gtid, self._since())
        if held is None:
            return None
        changes: Iterable[Change] = held.changes()
        said = gtid or f"{event.end.file}:{event.end.byte}"
        return Transaction(self.at.said(), datetime.fromtimestamp(event.time, UTC), said, changes)

    def _passed(self, place: Place) -> None:
        """Something between two transactions."""
        self._begin = place
        if place.made and place.order > self.at.place.order:
            self.at = self.at.moved(place, self.at.gtid, self._since())

    def _since(self) -> Place | None:
        """Where the first of the XA transactions begins that are prepared."""
        return min((each.begin for each in self._prepared.values()), key=lambda place: place.order, default=None)

    def _xa_prepared(self, event: Event) -> Transaction | None:
        body = event.body
        if body[0]:
            return self._committed(event)  # in one phase
        number, first, second = (int.from_bytes(body[at : at + 4], "little", signed=True) for at in (1, 5, 9))
        xid = f"{body[13 : 13 + first].hex()},{body[13 + first : 13 + first + second].hex()},{number}"
        self._prepared[xid] = _Prepared(self._begin, self._held)
        return self._ended(event, None)

    def _xa(self, statement: Statement, event: Event) -> Transaction | None:
        """COMMIT or ROLLBACK of what was prepared; START and END stand around it."""
        if statement.word not in ("COMMIT", "ROLLBACK"):
            self._open = True
            return None
        prepared = self._prepared.pop(statement.xid, None)
        if prepared is None and statement.word == "COMMIT" and event.end.order > self.at.place.order:
            raise CaptureError(
                f"an XA transaction was committed at {event.end.file}:{event.end.byte} that was prepared before this capture began",
                hint="a new snapshot; and none while XA transactions are prepared (XA RECOVER lists them)",
            )
        held = prepared.held if prepared is not None and statement.word == "COMMIT" and len(prepared.held) else None
        return self._ended(event, held)


def _read(kind: int, body: bytes, mapped: Mapped) -> Iterator[Change]:
    """What is held, as changes."""
    if kind == _EMPTIED:
        return iter((Change(mapped.table, "t", None, None),))
    return read_rows(kind, body, mapped)
