"""Transactions of a database as units for the log.

Invariants: the changes of a transaction are one unit, except on a log of brokers, whose transactions must not last: there a large one is cut, and
its changes are counted. "All rows are gone" becomes the end of each row that the topic holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from millstream.capture.appender import Unit
from millstream.capture.contract import Change, Row, Table, Transaction
from millstream.capture.control import Progress
from millstream.capture.envelope import Origin, key_of
from millstream.capture.large import Large
from millstream.capture.rows import Rows
from millstream.capture.writing import Writer
from millstream.errors import CaptureError, CaptureGap

CHANGES, BYTES = 100_000, 64 << 20
"""What goes to brokers at once, at most."""
TRUNCATE = 1_000_000
"""How many rows may be deleted at once where a table is emptied: they are held in memory, some 700 bytes each."""


class Part(NamedTuple):
    """A unit, and how many changes of its transaction are in the log with it; none says that it is the last one."""

    unit: Unit
    done: int


class Transactions:
    """Turns transactions into units. ``live`` says which keys a topic holds, ``large`` their last rows, ``seen`` is told of each table as it is now."""

    def __init__(
        self,
        writer: Writer,
        connector: str,
        name: str,
        live: Callable[[str], dict[bytes, None]],
        large: Large,
        seen: Callable[[Table], None],
        *,
        whole: bool,
        most: int = CHANGES,
        truncate: int = TRUNCATE,
    ) -> None:
        self._writer, self._connector, self._name = writer, connector, name
        self._live, self._seen, self._whole, self._most = live, seen, whole, most
        self._large, self._truncate = large, truncate
        self._known: dict[int, Table] = {}
        self._unit, self._read, self._skip = Unit(), 0, 0
        self._skipped: Collection[str] = ()

    def parts(
        self, transaction: Transaction, before: Progress, skipped: Collection[str], rows: Rows | None
    ) -> Iterator[Part]:
        """The units of a transaction after what there is; of ``skipped`` tables nothing, and ``rows`` are told what was touched."""
        skip = before.done if before.cut else 0
        origin = Origin(self._connector, self._name, transaction.position, transaction.id, transaction.time)
        unit, number = Unit(), 0
        self._unit, self._read, self._skip, self._skipped = unit, 0, skip, skipped
        for number, change in enumerate(transaction.changes, 1):
            self._read = number
            if number == 1 and before.cut and before.cut != transaction.id:
                raise CaptureGap(
                    f"capture {self._name}: found transaction {transaction.id}, expected the rest of {before.cut}",
                    hint="take a new snapshot: `millstream capture remove`, then `millstream capture start`",
                )
            if number <= skip:
                continue
            if id(change.table) not in self._known:
                self._see(change.table)
            if change.table.full_name in skipped:
                continue
            self._add(unit, change, origin, None if self._whole else number, rows)
            if not self._whole and (unit.changes >= self._most or unit.size >= BYTES):
                yield Part(unit, number)
                unit = self._unit = Unit()
        if number or not before.cut:
            yield Part(unit, 0)

    def last(self, table: Table, key: Row, column: str) -> Any:
        """The value of a column behind the changes that were taken; KeyError if it is not known. None where nobody will see it."""
        outbox = self._writer.outbox
        passed = self._read < self._skip or table.full_name in self._skipped
        if passed or (outbox is not None and outbox.is_for(table)):
            return None
        return self._large.last(self._unit, self._writer.target(table).topic, key_of(table, key), column)

    def _see(self, table: Table) -> None:
        if len(self._known) > 1000:
            self._known.clear()
        self._known[id(table)] = table
        if table.columns:
            self._seen(table)

    def _add(self, unit: Unit, change: Change, origin: Origin, order: int | None, rows: Rows | None) -> None:
        if change.op == "t":
            self._emptied(unit, change.table, origin, order)
            if rows is not None:
                rows.empty(change.table)
            return
        keys = self._writer.add(unit, change, origin, order)
        if rows is not None:
            rows.touch(change.table, keys)

    def _emptied(self, unit: Unit, table: Table, origin: Origin, order: int | None) -> None:
        if self._writer.outbox is not None and self._writer.outbox.is_for(table):
            return
        topic = self._writer.target(table).topic
        keys = self._live(topic)
        for event in unit.events.get(topic, ()):
            if event.key is not None and event.value is None:
                keys.pop(event.key, None)
            elif event.key is not None:
                keys[event.key] = None
        if len(keys) > self._truncate:
            raise CaptureError(
                f"table {table.full_name} was emptied, and topic {topic} holds {len(keys):,} rows, more than {self._truncate:,} to delete at once",
                hint=f"with memory for them, some 700 bytes each: `millstream capture start … --truncate {len(keys)}`; or begin anew under another name",
            )
        for key in keys:
            self._writer.delete(unit, self._writer.table(table), key, origin, order)
