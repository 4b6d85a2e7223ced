"""Appending to the embedded log: one transaction, in which each partition gets its offsets, and all topics one append time.

One time, so that a batch of a pipeline, which is cut at an append time, has all of the transaction or nothing. Events are checked and
cut by partition before the write lock is taken. A topic that was changed meanwhile is noticed inside the transaction by its version,
and the batch is cut anew.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from millstream.database import Db
from millstream.errors import BadEvent
from millstream.event import Event
from millstream.failpoint import failpoint
from millstream.log.checks import check_numbered, check_repeated
from millstream.log.conditional import Conditional, joined, parted, topics_of
from millstream.log.contract import Ack
from millstream.log.embedded import sequence as sequences
from millstream.log.embedded.batch import Batch
from millstream.log.embedded.clock import next_append
from millstream.log.embedded.file import BLOCK, records_table
from millstream.log.embedded.retention import Expiry
from millstream.log.embedded.topic import TopicRow
from millstream.log.partitioner import partition_of

if TYPE_CHECKING:
    from millstream.log.embedded.engine import SqliteLog


class Cut(NamedTuple):
    """What one topic gets, and the topic as it was when the batch was cut."""

    row: TopicRow
    batch: Batch


class Appender:
    """What one open log appends, and what it remembers from one append to the next."""

    def __init__(self, log: SqliteLog) -> None:
        self._log = log
        self._spread = itertools.count()
        self._expiry = Expiry()
        self._before: dict[int, int] = {}  # topic → the time of the append before the last of ours

    def append_all(
        self,
        batches: Mapping[str, Sequence[Event]],
        *,
        producer: str | None,
        sequence: int | None,
        own: bool,
        within: Callable[[Db], None] | None = None,
    ) -> dict[str, Ack]:
        """Append batches of several topics in one transaction, at one append time; ``within`` has its part in it, and may refuse."""
        check_numbered(producer, sequence)
        rows = [self._log.known(topic) for topic in batches]
        if sequence is None and not any(batches.values()) and within is None:
            return {topic: Ack([], []) for topic in batches}
        while True:
            cuts = [self._cut(row, batches[row.topic.name], sequence, own) for row in rows]
            with self._log.store.write() as db:
                acks = self._repeats(db, cuts, producer, sequence)
                if acks is None and (changed := self._changed(db, cuts)):
                    rows = changed
                    continue
                if within is not None:
                    within(db)
                if acks is None:
                    acks = self._insert(db, cuts, producer, sequence)
            if not any(ack.duplicate for ack in acks):
                self._expire(cuts)
            return dict(zip(batches, acks, strict=True))

    def append_if(self, units: Sequence[Conditional]) -> list[dict[str, Ack] | None]:
        """Append the units whose conditions hold, as one batch a topic, cut before the lock is taken for the case that all do."""
        rows = {topic: self._log.known(topic) for topic in topics_of(units)}
        held = [True] * len(units)
        while True:
            cuts = [self._cut(rows[topic], events, None, own=False) for topic, events in joined(units, held).items()]
            with self._log.store.write() as db:
                rows = {topic: self._log.row(topic, db) for topic in rows}
                now_held = [_holds(db, rows, unit) for unit in units]
                if now_held != held or any(row != rows[row.topic.name] for row, _ in cuts):
                    held = now_held  # what is cut anew is looked at anew
                    if any(held):
                        continue
                    return [None] * len(units)
                acks = self._insert(db, cuts, None, None)
            self._expire(cuts)
            return parted(units, held, {row.topic.name: ack for (row, _), ack in zip(cuts, acks, strict=True)})

    def append_within(self, db: Db, topic: str, events: Sequence[Event]) -> None:
        """Append records that move here as part of a transaction, however large: they were accepted once."""
        row = self._log.row(topic, db)
        taking = replace(row.topic, settings=replace(row.topic.settings, max_record_bytes=1 << 30))
        self._insert(db, [Cut(row, Batch(taking, events, next(self._spread), own=True))], None, None)

    def _expire(self, cuts: Sequence[Cut]) -> None:
        for row, batch in cuts:
            if batch.events:
                self._expiry.after_append(self._log, row, len(batch.events), self._before[row.id])

    def _cut(self, row: TopicRow, events: Sequence[Event], sequence: int | None, own: bool) -> Cut:
        while True:
            spread = next(self._spread) * len(events) if sequence is None else sequence
            try:
                return Cut(row, Batch(row.topic, events, spread, own=own))
            except BadEvent:
                with self._log.store.read() as db:
                    current = self._log.row(row.topic.name, db)
                if current == row:
                    raise
                row = current  # the topic was changed elsewhere and may take these events now

    def _repeats(self, db: Db, cuts: list[Cut], producer: str | None, sequence: int | None) -> list[Ack] | None:
        """The acknowledgements of the first time, if these batches are there already."""
        if producer is None or sequence is None:
            return None
        found = [sequences.repeat(db, row, batch.events, producer, sequence) for row, batch in cuts]
        there = {row.topic.name: ack is not None for (row, _), ack in zip(cuts, found, strict=True)}
        return [ack for ack in found if ack] if check_repeated(there, producer, sequence) else None

    def _changed(self, db: Db, cuts: list[Cut]) -> list[TopicRow] | None:
        """The topics as they are now, if one has changed since we looked: batches are cut anew then."""
        query = "SELECT version FROM topic WHERE id = ?"
        if all(db.execute(query, (row.id,)).get == row.version for row, _ in cuts):
            return None
        return [self._log.row(row.topic.name, db) for row, _ in cuts]

    def _insert(self, db: Db, cuts: list[Cut], producer: str | None, sequence: int | None) -> list[Ack]:
        query = "SELECT partition, next, newest, appended FROM partition WHERE topic = ?"
        found = {row.id: db.execute(query, (row.id,)).fetchall() for row, batch in cuts if batch.events}
        newest = {topic: max(appended for *_, appended in partitions) for topic, partitions in found.items()}
        self._before |= newest
        now = next_append(db, newest, self._log.clock()) if newest else 0
        acks = []
        for row, batch in cuts:
            ack = _insert_topic(db, row, batch, found[row.id], now) if batch.events else Ack([], [])
            if producer is not None and sequence is not None:
                sequences.remember(db, row, ack, producer, sequence)
            acks.append(ack)
            failpoint("log.append.in_transaction")
        return acks


def _holds(db: Db, rows: Mapping[str, TopicRow], unit: Conditional) -> bool:
    """Whether the last record of each key is the one that the unit expects."""
    for (topic, key), offset in unit.last.items():
        table = records_table(rows[topic].id, partition_of(key, rows[topic].topic.partitions))
        if db.execute(f"SELECT max(offset) FROM {table} WHERE key = ?", (key,)).get != offset:
            return False
    return True


def _insert_topic(db: Db, row: TopicRow, batch: Batch, partitions: Sequence[tuple[int, ...]], now: int) -> Ack:
    """Insert what one topic gets; ``partitions`` are their numbers, next offsets and newest times."""
    offsets, updates = [0] * len(batch.places), []
    for partition, first, newest, _ in partitions:
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
