"""Reading the embedded log alone: a position per partition, one snapshot per poll; and finding the offset of a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from millstream.database import Db
from millstream.event import Record, TopicPartition
from millstream.log.checks import check_offset
from millstream.log.contract import Bounds, Reader
from millstream.log.embedded.file import BLOCK, MOST_BYTES, partition_bounds, records_table

if TYPE_CHECKING:
    from millstream.log.embedded.engine import SqliteLog


class SqliteReader(Reader):
    """A position per partition and one snapshot per poll."""

    def __init__(self, log: SqliteLog, topic: str, offsets: dict[int, int], *, grows: bool) -> None:
        self._log, self._topic, self._offsets, self._grows = log, topic, offsets, grows
        self._turn = 0

    @property
    def positions(self) -> dict[int, int]:
        """The next offset of each partition."""
        return dict(self._offsets)

    def poll(self, limit: int = 1000, timeout: float = 0.0) -> list[Record]:
        """Go round the partitions, beginning with another one each time."""
        deadline = time.monotonic() + timeout
        while True:
            version = self._log.store.version()
            records = self._take(limit)
            left = deadline - time.monotonic()
            if records or left <= 0:
                return records
            self._log.store.wait(version, left)

    def _take(self, limit: int) -> list[Record]:
        log, records, room = self._log, list[Record](), MOST_BYTES
        with log.store.read() as db:
            row = log.row(self._topic, db)
            bounds = partition_bounds(db, row.id)
            if self._grows and len(bounds) > len(self._offsets):
                self._offsets |= {p: bound.start for p, bound in bounds.items() if p not in self._offsets}
            order = sorted(self._offsets)
            self._turn += 1
            for i in range(len(order)):
                partition = order[(i + self._turn) % len(order)]
                offset, end = self._offsets[partition], bounds[partition].end
                if offset == end or len(records) >= limit or room <= 0:
                    continue
                check_offset(TopicPartition(self._topic, partition), offset, bounds[partition])
                # Compaction may have left nothing behind us up to the end: that is progress too.
                found, self._offsets[partition], room = log.fetch_within(
                    db, row, partition, offset, end, limit - len(records), room
                )
                records += found
        return records

    def close(self) -> None:
        """Nothing to release."""


def offset_at(db: Db, topic: int, partition: int, bounds: Bounds, millis: int) -> int:
    """The first offset of a partition whose record's time is at or after ``millis``; the end if there is none."""
    blocks = db.execute(
        "SELECT block FROM time_index WHERE topic = ? AND partition = ? AND newest >= ? AND block >= ? ORDER BY block",
        (topic, partition, millis, bounds.start >> BLOCK),
    )
    # The first one has it, unless cleaning took the record that made the block's newest time; the last block of a
    # partition is not in the index yet.
    for (block,) in [*blocks.fetchall(), (bounds.end >> BLOCK,)]:
        found = db.execute(
            f"SELECT min(offset) FROM {records_table(topic, partition)} WHERE offset BETWEEN ? AND ? AND timestamp >= ?",
            (block << BLOCK, (block + 1 << BLOCK) - 1, millis),
        ).get
        if found is not None:
            return int(found)
    return bounds.end
