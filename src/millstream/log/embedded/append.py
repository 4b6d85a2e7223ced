"""Appending to the embedded log: one transaction, in which each partition gets its offsets.

Events are checked and cut by partition before the write lock is taken. A topic that was changed meanwhile is noticed inside
the transaction by its version, and the batch is cut anew.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from millstream.database import Db
from millstream.errors import BadEvent, ConfigError
from millstream.event import Event
from millstream.failpoint import failpoint
from millstream.log.checks import check_name
from millstream.log.contract import Ack
from millstream.log.embedded import sequence as sequences
from millstream.log.embedded.batch import Batch
from millstream.log.embedded.clock import next_append
from millstream.log.embedded.file import BLOCK, records_table
from millstream.log.embedded.retention import Expiry
from millstream.log.embedded.topic import TopicRow

if TYPE_CHECKING:
    from millstream.log.embedded.engine import SqliteLog


class Appender:
    """What one open log appends, and what it remembers from one append to the next."""

    def __init__(self, log: SqliteLog) -> None:
        self._log = log
        self._spread = itertools.count()
        self._expiry = Expiry()
        self._before: dict[int, int] = {}  # topic → the time of the append before the last of ours

    def append(
        self,
        topic: str,
        events: Sequence[Event],
        *,
        producer: str | None,
        sequence: int | None,
        own: bool,
    ) -> Ack:
        """Append a batch in one transaction over all its partitions."""
        if (producer is None) != (sequence is None):
            raise ConfigError("append: producer and sequence go together; found only one")
        if producer is not None:
            check_name("producer", producer)
        row = self._log.known(topic)
        if not events:
            return Ack([], [])
        while True:
            spread = next(self._spread) * len(events) if sequence is None else sequence
            try:
                batch = Batch(row.topic, events, spread, own=own)
            except BadEvent:
                with self._log.store.read() as db:
                    current = self._log.row(topic, db)
                if current == row:
                    raise
                row = current  # the topic was changed elsewhere and may take these events now
                continue
            with self._log.store.write() as db:
                if producer is not None and sequence is not None:
                    repeat = sequences.repeat(db, row, events, producer, sequence)
                    if repeat:
                        return repeat
                ack = self._insert(db, row, batch)
                if ack is not None:
                    if producer is not None and sequence is not None:
                        sequences.remember(db, row, ack, producer, sequence)
                    failpoint("log.append.in_transaction")
                else:
                    row = self._log.row(topic, db)  # the topic changed since we looked: cut the batch anew
            if ack is not None:
                self._expiry.after_append(self._log, row, len(events), self._before[row.id])
                return ack

    def _insert(self, db: Db, row: TopicRow, batch: Batch) -> Ack | None:
        if db.execute("SELECT version FROM topic WHERE id = ?", (row.id,)).get != row.version:
            return None
        found = db.execute(
            "SELECT partition, next, newest, appended FROM partition WHERE topic = ?", (row.id,)
        ).fetchall()
        before = self._before[row.id] = max(appended for *_, appended in found)
        now = next_append(db, row.id, before, self._log.clock())
        offsets, updates = [0] * len(batch.places), []
        for partition, first, newest, _ in found:
            part = batch.parts.get(partition)
            if part is None:
                continue
            past = first + len(part.members)
            times: Iterable[int] = itertools.repeat(now)
            latest = now
            if part.millis is not None:
                times = [now if time is None else time for time in part.millis]
                latest = max(times)
            # An iterator, not a list: zip fills one and the same tuple again and again.
            headers = part.headers or itertools.repeat(None)
            db.executemany(
                f"INSERT INTO {records_table(row.id, partition)} VALUES (?, ?, ?, ?, ?, ?)",
                zip(range(first, past), times, itertools.repeat(now), part.keys, part.values, headers, strict=False),
            )
            if first >> BLOCK != past >> BLOCK:  # a block is complete: its newest time goes to the index
                db.executemany(
                    "INSERT INTO time_index VALUES (?, ?, ?, ?)",
                    [(row.id, partition, block, max(newest, latest)) for block in range(first >> BLOCK, past >> BLOCK)],
                )
                newest = latest
            updates.append((past, max(newest, latest), part.size, now, row.id, partition))
            deque(map(offsets.__setitem__, part.members, range(first, past)), maxlen=0)  # a loop in C
        db.executemany(
            "UPDATE partition SET next = ?, newest = ?, bytes = bytes + ?, appended = ? WHERE topic = ? AND partition = ?",
            updates,
        )
        return Ack(batch.places, offsets)

    def append_within(self, db: Db, topic: str, events: Sequence[Event]) -> None:
        """Append records that move here as part of a transaction, however large: they were accepted once."""
        row = self._log.row(topic, db)
        taking = replace(row.topic, settings=replace(row.topic.settings, max_record_bytes=1 << 30))
        self._insert(db, row, Batch(taking, events, next(self._spread), own=True))
