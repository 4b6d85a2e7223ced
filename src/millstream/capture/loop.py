"""Capturing: the rows that are there, then every change, each in the log exactly once and in the order of the commits.

Invariants: what the database changed together is appended together, with the position behind it; the database is told that it may forget only what
is in the log. A capture that was killed, at any moment, goes on where the log says; one whose name another process has taken ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from millstream.capture.appender import Appender, Unit
from millstream.capture.contract import Position, Row, Source, Table, Transaction, closed
from millstream.capture.control import CONTROL, Control, Followed, Known, Progress
from millstream.capture.following import OnChange, check_same, ensure_topics, followed
from millstream.capture.large import Large
from millstream.capture.order import order_of
from millstream.capture.outbox import Outbox
from millstream.capture.reading import live_keys, records_of
from millstream.capture.requests import Requests
from millstream.capture.rows import Rows
from millstream.capture.transacting import CHANGES, TRUNCATE, Transactions
from millstream.capture.writing import Refused, Writer
from millstream.errors import LogFailed, LogUnavailable
from millstream.event import Record, from_millis
from millstream.failpoint import failpoint
from millstream.log.contract import Log

HELD_SINCE_EVER = from_millis(0)
_IDLE, _CLEAN, _TURN, _PATIENCE = 5.0, 3600.0, 1.0, 60.0
"""Seconds between notes of a position without changes, between cleanings of topics, and that rows of a snapshot may take from the stream,
and that a log may be away."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to capture; ``source`` is the address as it may be shown, ``since`` when the rows of a snapshot began to hold."""

    name: str
    source: str
    since: datetime = HELD_SINCE_EVER
    partitions: int = 1
    refused: Refused = "stop"
    on_change: OnChange = "stop"
    outbox: Outbox | None = None
    clean: float = _CLEAN
    idle: float = _IDLE
    most: int = CHANGES
    truncate: int = TRUNCATE


@dataclass(frozen=True, slots=True)
class Report:
    """How far it is: changes and rows in this run, the last commit, and the table whose rows are read."""

    changes: int = 0
    rows: int = 0
    committed: datetime | None = None
    table: str = ""
    read: int = 0
    total: int | None = None
    caught_up: bool = False


def capture(
    log: Log,
    source: Source,
    settings: Settings,
    *,
    once: bool = False,
    stop: threading.Event | None = None,
    report: Callable[[Report], None] = lambda _: None,
) -> Report:
    """Capture until ``stop`` is set, or ``once`` up to what is committed now; what this run did.

    A log that is away for no more than a minute is waited for.

    :raises CaptureError: if a table or the database cannot be captured, or another process captures under this name
    """
    control, stop, since = Control(log, settings.name), stop or threading.Event(), 0.0
    changes = rows = 0
    while True:
        run: _Run | None = None
        try:
            run = _Run(control, source, settings, stop, report, changes, rows)
            return run.run(once)
        except LogFailed:
            raise
        except LogUnavailable:
            if run is not None:
                changes, rows = run.changes, run.read
                since = time.monotonic() if run.has_appended or not since else since
            since = since or time.monotonic()
            if time.monotonic() - since > _PATIENCE or stop.wait(1.0):
                raise
        finally:
            if run is not None:
                run.close()


class _Stopped(Exception):
    """The capture is to end within a transaction: what is not in the log of it comes again."""


class _Run:
    """A capture from its claim of the name until it ends, or the log is away."""

    def __init__(
        self,
        control: Control,
        source: Source,
        settings: Settings,
        stop: threading.Event,
        report: Callable[[Report], None],
        changes: int,
        read: int,
    ) -> None:
        self._log, self._control, self._source, self._settings = control.log, control, source, settings
        self._stop, self._report = stop, report
        self.changes, self.read = changes, read
        self._known: Known = control.claim()
        self._requests = Requests(self._log, settings.name, self._known.requests)
        self._progress = self._known.progress or Progress(settings.source)
        self._followed: dict[str, Followed] = {}
        self._new_columns = False
        self._rows: Rows | None = None
        self._acknowledged: Progress | None = None
        self._noted = self._cleaned = self._looked = self._turn = time.monotonic()
        self._appender = Appender(control)
        self._large = Large(self._records)
        self._beyond = False

    @property
    def has_appended(self) -> bool:
        """Whether anything of it is in the log."""
        return self._appender.done is not None

    def run(self, once: bool) -> Report:
        """Read what is there, then follow the changes."""
        self._source.prepare(self._progress.position)
        self._source.remember(self._last)
        tables = self._source.tables()
        self._progress = replace(self._progress, connector=self._source.connector, source=self._settings.source)
        self._follow(tables)
        wanted = self._wanted(tables)
        if self._progress.position is None:
            self._first(wanted)
        elif wanted:
            self._begin_rows(wanted)
        if self._progress.position is not None and not self._stop.is_set():
            self._stream(self._progress.position, once)
        if self._progress.position is not None:
            self._note()
        self._appender.drain()
        self._acknowledge()
        return self._said(caught_up=not self._stop.is_set())

    def close(self) -> None:
        """End the thread and let go of the snapshot."""
        self._appender.close()
        self._requests.close()
        self._large.close()
        if self._rows is not None:
            self._rows.close()

    def _follow(self, tables: Sequence[Table]) -> None:
        """Make what is needed in the log, and see that tables are what they were."""
        settings, outbox = self._settings, self._settings.outbox
        captured = [table for table in tables if outbox is None or not outbox.is_for(table)]
        targets = ensure_topics(self._log, settings.name, captured, settings.partitions)
        self._writer = Writer(self._log, settings.name, targets, settings.refused, outbox)
        for table in tables:
            if outbox is not None and outbox.is_for(table):
                outbox.check(table)
                self._followed[table.full_name] = Followed("", table.key, {}, complete=True)
                continue
            before = self._known.tables.get(table.full_name)
            if before is not None:  # its columns now may be later ones than those of the changes that come next
                check_same(table, before, "continue")
            whole = before is not None and before.complete
            now = followed(table, targets[table.full_name].topic, before)
            self._followed[table.full_name] = before if before is not None and whole else now
            self._writer.see(table)
        self._transactions = Transactions(
            self._writer,
            self._source.connector,
            settings.name,
            self._live,
            self._large,
            self._seen,
            whole=self._log.capabilities.local_file,
            most=settings.most,
            truncate=settings.truncate,
        )

    def _wanted(self, tables: Sequence[Table]) -> list[Table]:
        """The tables whose rows are to be read."""
        if self._progress.position is None:  # what a snapshot that was broken off has read was another state
            self._followed = {name: replace(each, complete=False) for name, each in self._followed.items()}
        self._put(Unit(notes=[self._control.followed(self._followed)]))
        wanted = {name for name, each in self._followed.items() if not each.complete} | set(self._requests.take())
        return [table for table in tables if table.full_name in wanted and self._followed[table.full_name].topic]

    # rows that are there

    def _begin_rows(self, tables: Sequence[Table]) -> None:
        again = {name for name, each in self._followed.items() if each.complete}
        self._rows = Rows(
            self._source, self._settings.name, tables, self._writer, self._live, self._settings.since, again
        )
        self._pieces = self._rows.pieces()

    def _first(self, tables: Sequence[Table]) -> None:
        """Read all tables before any change."""
        self._begin_rows(tables)
        while self._rows is not None and not self._stop.is_set():
            self._some_rows()
        if self._rows is None:
            self._appender.drain()
            failpoint("capture.handover")

    def _some_rows(self) -> None:
        """Put rows in for a while; at the end of all, that they are complete and where changes go on."""
        assert self._rows is not None  # noqa: S101  asked before
        deadline = time.monotonic() + _TURN
        for piece in self._pieces:
            name = piece.table.full_name
            self.read += piece.unit.changes
            if piece.last:
                self._followed[name] = replace(self._followed[name], complete=True, rows=piece.rows)
                piece.unit.notes += [self._control.followed(self._followed), self._control.done(name)]
            self._put(piece.unit)
            failpoint("capture.snapshot")
            self._report(self._said(name, piece.rows, piece.total))
            if self._stop.is_set() or time.monotonic() > deadline:
                return
        rows, self._rows = self._rows, None
        if self._progress.position is None:
            self._progress = replace(self._progress, position=dict(rows.position))
        self._put(Unit())
        rows.close()

    def _live(self, topic: str) -> dict[bytes, None]:
        self._appender.drain()
        return live_keys(self._log, topic)

    def _records(self, topic: str) -> Iterator[Record]:
        self._appender.drain()
        return records_of(self._log, topic)

    def _last(self, table: Table, key: Row, column: str) -> Any:
        """A value that the database does not tell; of a table whose rows are on their way, when they are all in."""
        while self._beyond and self._rows is not None and table.full_name in self._rows.tables:
            self._some_rows()
            if self._stop.is_set():
                raise _Stopped
        return self._transactions.last(table, key, column)

    # changes

    def _stream(self, position: Position, once: bool) -> None:
        end = order_of(self._source.end()) if once else None
        with closed(self._source.changes(position)) as changes:
            for transaction in changes:
                self._appender.check()
                if transaction is not None:
                    try:
                        self._take(transaction)
                    except _Stopped:
                        return
                    position = transaction.position
                self._acknowledge()
                now = time.monotonic()
                idle = transaction is None or now > self._turn
                if idle and self._rows is not None and not self._rows.is_ahead_of(position):
                    self._some_rows()
                    self._turn = time.monotonic() + _TURN
                if transaction is None or now - self._looked > _TURN:
                    self._look(now)
                caught_up = end is not None and order_of(position) >= end and self._rows is None
                if self._stop.is_set() or caught_up:
                    return

    def _take(self, transaction: Transaction) -> None:
        """Put a transaction in, whole; only brokers get a large one in pieces."""
        rows, beyond, skipped = self._rows, False, set[str]()
        if rows is not None:
            beyond = order_of(transaction.position) > order_of(rows.position)
            skipped = {name for name in rows.tables if not beyond and not self._followed[name].complete}
        self._beyond = beyond
        before = self._progress
        for unit, done in self._transactions.parts(transaction, before, skipped, rows if beyond else None):
            self.changes += unit.changes
            self._progress = replace(self._progress, changes=self._progress.changes + unit.changes)
            if done:
                self._progress = replace(self._progress, cut=transaction.id, done=done)
            else:
                committed = transaction.time or before.committed
                said = dict(transaction.position)
                self._progress = replace(self._progress, position=said, cut="", done=0, committed=committed)
            if self._new_columns:
                unit.notes.append(self._control.followed(self._followed))
                self._new_columns = False
            if unit.changes or unit.notes:
                self._put(unit)
                self._report(self._said())

    def _seen(self, table: Table) -> None:
        """A table as it is from here on: stop if it is not what it was."""
        self._writer.see(table)
        before = self._followed.get(table.full_name)
        if before is None or not before.topic:
            return
        check_same(table, before, self._settings.on_change)
        now = followed(table, before.topic, before)
        self._new_columns = self._new_columns or now != before
        self._followed[table.full_name] = now

    # what is done beside

    def _look(self, now: float) -> None:
        """Note the position now and then, clean topics, see what is asked."""
        self._looked = now
        if now - self._noted > self._settings.idle:
            self._note()
        if now - self._cleaned > self._settings.clean:
            self._clean()
        if self._rows is None and (asked := self._requests.take()):
            wanted = [
                table
                for table in self._source.tables()
                if table.full_name in asked and self._followed[table.full_name].topic
            ]
            if wanted:
                self._begin_rows(wanted)

    def _note(self) -> None:
        """Put in that nothing of ours was committed up to here."""
        self._noted = time.monotonic()
        done = self._appender.done
        if done is None or done.position != self._progress.position:
            self._put(Unit())

    def _clean(self) -> None:
        """Compact the topics, where nobody else does."""
        self._cleaned = time.monotonic()
        if self._log.capabilities.maintains:
            for topic in (CONTROL, *(each.topic for each in self._followed.values() if each.topic)):
                self._log.maintain(topic)

    def _acknowledge(self) -> None:
        """Let the database forget what is in the log."""
        done = self._appender.done
        if done is not None and done is not self._acknowledged and done.position is not None:
            failpoint("capture.acknowledge")
            self._source.acknowledge(done.position)
            self._acknowledged = done

    def _put(self, unit: Unit) -> None:
        self._large.put(unit)
        self._appender.put(unit, self._progress)

    def _said(self, table: str = "", read: int = 0, total: int | None = None, *, caught_up: bool = False) -> Report:
        return Report(self.changes, self.read, self._progress.committed, table, read, total, caught_up)
