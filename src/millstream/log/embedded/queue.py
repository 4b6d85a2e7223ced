"""Work queues of the embedded log: each record is handed to one worker until it is acknowledged.

A queue remembers, per partition, the next record never handed out, and one row for each record that is out. A row names
its worker, when it falls due, and the attempt; an acknowledgement must match worker and attempt, so one that comes too
late cannot end another worker's attempt. The group's committed offset is the lowest record not yet done.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from millstream.database import Db
from millstream.errors import DeliveryFenced
from millstream.event import Event, Record, TopicPartition
from millstream.log.checks import check_offset
from millstream.log.contract import Delivery, QueueSettings, Worker
from millstream.log.embedded import group as membership
from millstream.log.embedded.clock import LONGEST
from millstream.log.embedded.file import MOST_BYTES, partition_bounds

if TYPE_CHECKING:
    from millstream.log.embedded.engine import SqliteLog
    from millstream.log.embedded.topic import TopicRow


def dead_letter(delivery: Delivery, group: str, reason: str) -> Event:
    """The event for the dead-letter topic: the record itself, with headers that say where from and why."""
    record = delivery.record
    return Event(
        record.value,
        record.key,
        record.time,
        (
            *record.headers,
            ("dead.topic", record.topic.encode()),
            ("dead.partition", str(record.partition).encode()),
            ("dead.offset", str(record.offset).encode()),
            ("dead.group", group.encode()),
            ("dead.attempts", str(delivery.attempt).encode()),
            ("dead.reason", reason.encode()),
        ),
    )


class SqliteWorker(Worker):
    """One worker of a queue."""

    def __init__(self, log: SqliteLog, topic: str, group: str, settings: QueueSettings) -> None:
        self.group, self.worker = group, f"{os.getpid()}-{secrets.token_hex(4)}"
        self._log, self._topic, self._settings = log, topic, settings
        self._dead_letters = settings.dead_letters or f"{topic}.dead"
        self._visibility = settings.visibility // timedelta(milliseconds=1)
        self._longest = max(
            self._visibility, LONGEST
        )  # what is held for longer was taken before the clock was set back
        with log.store.write() as db:
            log.row(topic, db)
            membership.ensure(db, group, "queue")

    def take(self, limit: int = 10, timeout: float = 1.0) -> list[Delivery]:
        """First what fell due again, then what is new."""
        deadline = time.monotonic() + timeout
        while True:
            version = self._log.store.version()
            with self._log.store.write() as db:
                row = self._log.row(self._topic, db)
                now = self._log.clock()
                deliveries, spent = self._due_again(db, row, limit, now)
                room = MOST_BYTES - sum(len(each.record.value or b"") for each in deliveries)
                deliveries += self._fresh(db, row, limit - len(deliveries), now, room)
                due = db.execute(
                    "SELECT min(visible_at) FROM delivery WHERE consumer_group = ? AND topic = ?",
                    (self.group, row.id),
                ).get
            if spent:
                self._bury(spent, f"not done after {self._settings.max_deliveries} deliveries")
                if not deliveries:
                    continue
            left = deadline - time.monotonic()
            if deliveries or left <= 0:
                return deliveries
            until_due = left if due is None else max(0.001, (due - self._log.clock()) / 1000)
            self._log.store.wait(version, min(left, until_due))

    def done(self, deliveries: Iterable[Delivery]) -> None:
        """Forget the rows."""
        with self._log.store.write() as db:
            row = self._log.row(self._topic, db)
            self._release(db, row, list(deliveries))

    def retry(self, deliveries: Iterable[Delivery]) -> None:
        """Make the rows due now."""
        with self._log.store.write() as db:
            row = self._log.row(self._topic, db)
            for delivery in deliveries:
                place = self._owned(db, row, delivery)
                db.execute(
                    "UPDATE delivery SET visible_at = 0 WHERE consumer_group = ? AND topic = ? AND partition = ? AND offset = ?",
                    place,
                )

    def reject(self, deliveries: Iterable[Delivery], reason: str) -> None:
        """Append to the dead-letter topic and forget the rows, in one transaction."""
        self._bury(list(deliveries), reason)

    def close(self) -> None:
        """Give back everything this worker holds; it does not count as an attempt less."""
        with self._log.store.write() as db:
            db.execute(
                "UPDATE delivery SET visible_at = 0 WHERE consumer_group = ? AND worker = ?",
                (self.group, self.worker),
            )

    def _due_again(self, db: Db, row: TopicRow, limit: int, now: int) -> tuple[list[Delivery], list[Delivery]]:
        """Deliveries to make again, and those that have had all their attempts (kept by us until buried)."""
        found = db.execute(
            "SELECT partition, offset, attempt FROM delivery WHERE consumer_group = ? AND topic = ?"
            " AND (visible_at <= ? OR visible_at > ?) ORDER BY visible_at, partition, offset LIMIT ?",
            (self.group, row.id, now, now + self._longest, limit),
        ).fetchall()
        again: list[Delivery] = []
        spent: list[Delivery] = []
        size = 0
        for partition, offset, attempt in found:
            if size >= MOST_BYTES:
                break  # due still, for the next call
            place = (self.group, row.id, partition, offset)
            record = self._record(db, row, partition, offset)
            if record is None:  # cleaned away meanwhile: a newer value of its key is in the log, or nobody wants it
                db.execute(
                    "DELETE FROM delivery WHERE consumer_group = ? AND topic = ? AND partition = ? AND offset = ?",
                    place,
                )
                continue
            size += len(record.value or b"")
            last = attempt >= self._settings.max_deliveries
            (spent if last else again).append(Delivery(record, attempt if last else attempt + 1))
            db.execute(
                "UPDATE delivery SET worker = ?, visible_at = ?, attempt = ?"
                " WHERE consumer_group = ? AND topic = ? AND partition = ? AND offset = ?",
                (self.worker, now + self._visibility, attempt if last else attempt + 1, *place),
            )
        if found:  # an idle look must not write: each commit wakes every other worker
            self._advance(db, row)
        return again, spent

    def _fresh(self, db: Db, row: TopicRow, limit: int, now: int, room: int) -> list[Delivery]:
        nexts = dict(
            db.execute(
                "SELECT partition, next FROM queue WHERE consumer_group = ? AND topic = ?",
                (self.group, row.id),
            )
        )
        deliveries: list[Delivery] = []
        for partition, bounds in partition_bounds(db, row.id).items():
            wanted = limit - len(deliveries)
            offset = nexts.get(partition, bounds.start)
            if wanted <= 0 or room <= 0 or offset == bounds.end:
                continue
            check_offset(TopicPartition(self._topic, partition), offset, bounds)
            records, past, room = self._log.fetch_within(db, row, partition, offset, bounds.end, wanted, room)
            db.executemany(
                "INSERT INTO delivery VALUES (?, ?, ?, ?, ?, ?, 1)",
                [(self.group, row.id, partition, r.offset, self.worker, now + self._visibility) for r in records],
            )
            db.execute("INSERT OR REPLACE INTO queue VALUES (?, ?, ?, ?)", (self.group, row.id, partition, past))
            deliveries += [Delivery(record, 1) for record in records]
        if deliveries:
            self._advance(db, row)
        return deliveries

    def _bury(self, deliveries: list[Delivery], reason: str) -> None:
        if not deliveries:
            return
        self._log.ensure_topic(self._dead_letters)
        with self._log.store.write() as db:
            self._release(db, self._log.row(self._topic, db), deliveries)
            self._log.append_within(db, self._dead_letters, [dead_letter(d, self.group, reason) for d in deliveries])

    def _release(self, db: Db, row: TopicRow, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            place = self._owned(db, row, delivery)
            db.execute(
                "DELETE FROM delivery WHERE consumer_group = ? AND topic = ? AND partition = ? AND offset = ?",
                place,
            )
        self._advance(db, row)

    def _owned(self, db: Db, row: TopicRow, delivery: Delivery) -> tuple[str, int, int, int]:
        place = (self.group, row.id, delivery.record.partition, delivery.record.offset)
        held = db.execute(
            "SELECT worker, attempt FROM delivery WHERE consumer_group = ? AND topic = ? AND partition = ? AND offset = ?",
            place,
        ).fetchone()
        if held != (self.worker, delivery.attempt):
            raise DeliveryFenced(
                f"group {self.group}: attempt {delivery.attempt} at {delivery.record.topic}/{delivery.record.partition}"
                f" offset {delivery.record.offset} is no longer ours; nothing was stored",
                hint="the work took longer than the visibility timeout: raise it, or make the work idempotent",
            )
        return place

    def _advance(self, db: Db, row: TopicRow) -> None:
        """The group has come as far as its lowest record that is still out."""
        rows = db.execute(
            "SELECT q.partition, coalesce((SELECT min(d.offset) FROM delivery d WHERE d.consumer_group = q.consumer_group"
            " AND d.topic = q.topic AND d.partition = q.partition), q.next)"
            " FROM queue q WHERE q.consumer_group = ? AND q.topic = ?",
            (self.group, row.id),
        ).fetchall()
        for partition, offset in rows:
            membership.store_offset(db, self.group, row.id, partition, offset)

    def _record(self, db: Db, row: TopicRow, partition: int, offset: int) -> Record | None:
        found = self._log.fetch(db, row, partition, offset, 1)
        return found[0] if found and found[0].offset == offset else None
