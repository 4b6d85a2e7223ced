"""Batches of the engine as transactions: rows of its snapshot in pieces, and then each transaction whole.

Invariants: a position is the engine's own offset at the end of a transaction, or between two, never within one; a transaction that the engine
gives again is passed over; one that comes with another number of changes than its end says is an error, never a gap. A snapshot has no place
within it to go on from: one that was broken off is begun again, and first the rows are taken back that it had brought.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millstream.capture.contract import Change, Column, Position, Row, Table, Transaction
from millstream.capture.held import Held
from millstream.engine.child import Batch
from millstream.engine.columns import value_of
from millstream.errors import CaptureError, CaptureGap
from millstream.event import from_millis
from millstream.relation.debezium import UNAVAILABLE

_SINCE_EVER = from_millis(0)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the engine goes on: its offset, none while its snapshot is not whole, and the last transaction before that."""

    seq: int = 0
    offset: Mapping[str, str] | None = None
    last: str = ""
    begun: bool = False
    """Whether rows of a snapshot that is not whole may be in the log."""

    def position(self, covered: tuple[str, int]) -> dict[str, Any]:
        """The same as a position; ``covered`` is the batch that is in the log with it, of this process."""
        said = {"offset": self.offset, "last": self.last, "begun": self.begun, "covered": list(covered)}
        return {"seq": self.seq, "engine": said}


def place_of(position: Position) -> Place:
    """The place that a position is.

    :raises CaptureError: if it is of another kind of source
    """
    try:
        said = position["engine"]
        return Place(int(position["seq"]), said["offset"], str(said["last"]), bool(said["begun"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CaptureError(
            f"found the position {dict(position)!r}, expected one of Debezium's engine",
            hint="was this name another capture's? take another one: --name OTHER",
        ) from error


@dataclass(slots=True)
class _Open:
    """A transaction whose end has not come."""

    id: str
    passed: bool
    lines: Held[None]
    count: int = 0

    def add(self, key: str, value: str) -> None:
        self.count += 1
        if not self.passed:
            head = key.encode()
            self.lines.add(len(head), None, head + value.encode())


class Transactions:
    """Makes transactions of batches; ``last_value`` gives what the database did not send again, ``describe`` the tables as they are now."""

    def __init__(
        self,
        name: str,
        tables: Sequence[Table],
        place: Place,
        session: str,
        last_value: Callable[[Table, Row, str], Any],
        describe: Callable[[], Sequence[Table]],
    ) -> None:
        self._name, self._place, self._session = name, place, session
        self._last_value, self._describe = last_value, describe
        self._tables = {table.full_name: table for table in tables}
        self._open: _Open | None = None
        self._covered = 0
        self._taken_back = not place.begun

    def take(self, batch: Batch) -> Iterator[Transaction]:
        """The transactions that end in a batch. Each has to be read before the next one is asked for."""
        rows: list[tuple[str, str]] = []
        resting: Transaction | None = None
        for index, (destination, key, value) in enumerate(batch.records):
            self._covered = batch.number if index + 1 == len(batch.records) else batch.number - 1
            said = destination.partition(".")[0] == "millstream-heartbeat"
            if not said and not destination.endswith(".millstream-transaction"):
                if self._open is None:
                    rows.append((key, value))
                else:
                    self._open.add(key, value)
                continue
            if rows:
                yield self._rows(rows)
                rows = []
            if said:
                resting = self._rest(batch.offsets[index]) or resting
            elif (ended := self._bound(json.loads(value), batch.offsets[index])) is not None:
                resting = None
                yield ended
        if rows:
            yield self._rows(rows)
        if resting is not None:
            yield resting

    def close(self) -> None:
        """Forget a transaction whose end has not come."""
        if self._open is not None:
            self._open.lines.close()

    def _here(self) -> dict[str, Any]:
        return self._place.position((self._session, self._covered))

    def _back(self) -> list[Change]:
        """What takes back the rows of a snapshot that was broken off, the first time."""
        taken, self._taken_back = self._taken_back, True
        return [] if taken else [Change(each, "t", None, None) for each in self._tables.values()]

    def _rows(self, rows: Sequence[tuple[str, str]]) -> Transaction:
        """Rows of the snapshot, after all that an earlier one had brought was taken back."""
        if self._place.offset is not None:
            raise CaptureGap(
                f"capture {self._name}: a change came outside of a transaction: {rows[0][1][:200]}",
                hint="the connector must tell transactions; was its snapshot asked for again?",
            )
        back = self._back()
        self._place = Place(self._place.seq + 1, begun=True)
        changes = [*back, *(change for key, value in rows if (change := self._change(key, value)) is not None)]
        return Transaction(self._here(), _SINCE_EVER, "snapshot", changes)

    def _rest(self, offset: Mapping[str, str]) -> Transaction | None:
        """That everything up to here has come, if that is a place between two transactions."""
        if self._open is not None or _in_snapshot(offset):
            return None
        back = self._back()
        self._place = Place(self._place.seq + 1, offset, self._place.last)
        return Transaction(self._here(), None, "", back)

    def _bound(self, said: Mapping[str, Any], offset: Mapping[str, str]) -> Transaction | None:
        """The beginning or the end of a transaction."""
        number = str(json.loads(offset["value"]).get("transaction_id") or said["id"])  # PostgreSQL's has a place in it
        if said["status"] == "BEGIN":
            self.close()
            self._open = _Open(number, number == self._place.last, Held(self._held))
            return None
        if self._open is None and number == self._place.last:
            return None  # some connectors say once more where a transaction ended, before the first one that is new
        found, self._open = self._open, None
        if found is None or found.id != number or found.count != said["event_count"]:
            came = f"{found.count} changes of {found.id}" if found else "no beginning"
            raise CaptureGap(
                f"capture {self._name}: transaction {number} ended with {said['event_count']} changes; found {came}",
                hint="start the capture again: it goes on at the last transaction that is in the log",
            )
        if found.passed:
            return None
        back = self._back()
        self._place = Place(self._place.seq + 1, offset, number)
        time = from_millis(int(said["ts_ms"])) if said.get("ts_ms") is not None else None
        return Transaction(self._here(), time, number, self._changes(found, back))

    def _changes(self, found: _Open, back: Sequence[Change]) -> Iterator[Change]:
        yield from back
        yield from found.lines.changes()

    def _held(self, head: int, body: bytes, _: None) -> Iterable[Change]:
        change = self._change(body[:head].decode(), body[head:].decode())
        return () if change is None else (change,)

    def _change(self, key: str, value: str) -> Change | None:
        """A record of the engine as a change; None for one that is none of a row."""
        said = json.loads(value)
        op, source = said["op"], said["source"]
        full = f"{source.get('schema') or source['db']}.{source['table']}"
        table = self._tables.get(full)
        if table is None:
            raise CaptureError(
                f"capture {self._name}: changes of table {full} came, which is none of {', '.join(self._tables)}",
                hint="name tables as the database writes them",
            )
        if op == "t":
            return Change(table, "t", None, None)
        if op not in ("c", "r", "u", "d"):
            return None
        if op == "d":
            return Change(table, "d", None if key == "null" else self._row(table, json.loads(key)), None)
        table = self._seen(table, said["after"])
        row = self._row(table, said["after"])
        for name in [each for each, found in row.items() if found == UNAVAILABLE]:
            row[name] = self._not_sent(table, row, name)
        return Change(table, op, None, row)

    def _row(self, table: Table, said: Mapping[str, Any]) -> dict[str, Any]:
        types = {column.name: column.type for column in table.columns}
        return {name: value_of(value, types.get(name, "string")) for name, value in said.items()}

    def _seen(self, table: Table, row: Mapping[str, Any]) -> Table:
        """The table with the columns that a row has; of one that came since, as the database has it now."""
        known = {column.name: column for column in table.columns}
        if known.keys() == row.keys():
            return table
        if row.keys() - known.keys():
            now = next((each for each in self._describe() if each.full_name == table.full_name), table)
            known = {column.name: column for column in now.columns} | known
        columns = tuple(known.get(name) or Column(name, "", "string") for name in row)
        made = self._tables[table.full_name] = Table(table.schema, table.name, columns, table.key)
        return made

    def _not_sent(self, table: Table, row: Mapping[str, Any], name: str) -> Any:
        try:
            return self._last_value(table, {each: row[each] for each in table.key}, name)
        except KeyError:
            raise CaptureError(
                f"table {table.full_name}: the value of {name} was not sent, as it has not changed, and is not known",
                hint=f"ALTER TABLE {table.full_name} REPLICA IDENTITY FULL, and begin under another name",
            ) from None


def _in_snapshot(offset: Mapping[str, str]) -> bool:
    """Whether an offset says that the snapshot is not whole."""
    said = json.loads(offset["value"])
    return bool(said.get("snapshot")) and not said.get("snapshot_completed")
