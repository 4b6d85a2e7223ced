"""What the embedded log forgets: retention by age and size, and compaction by key.

Both work in small transactions, so that writers never wait long, and each step leaves a log that is right as it stands:
retention moves a partition's start together with what it deletes; compaction deletes only records that a later one of
the same key has made obsolete, so whoever reads on from any offset still meets the latest value of every key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from millstream.database import Db
from millstream.errors import LogError
from millstream.failpoint import failpoint
from millstream.log.contract import Maintenance
from millstream.log.embedded.clock import topic_time
from millstream.log.embedded.file import BLOCK, first_appended_after, records_table

if TYPE_CHECKING:
    from millstream.log.embedded.engine import SqliteLog
    from millstream.log.embedded.topic import TopicRow

_STEP = 20_000  # records deleted per transaction: some 20 ms of write lock
_PAUSE = 1000  # milliseconds between two looks at retention while appending
_SIZE = "coalesce(length(key), 0) + coalesce(length(value), 0) + coalesce(length(headers), 0)"


class Expiry:
    """Retention as a by-product of appending: what flows in pays for what must go, at most twice its number."""

    def __init__(self) -> None:
        self._looked: dict[int, int] = {}
        self._credit: dict[int, int] = {}

    def after_append(self, log: SqliteLog, row: TopicRow, count: int, before: int) -> None:
        """Expire a little, now and then. Topics with an archive wait for :func:`maintain`.

        It goes by the time of the append ``before``: one append under a clock that is far ahead deletes nothing. The batch is acknowledged whatever becomes of this: an error here would say that it was not kept.
        """
        if not row.topic.settings.expires or row.topic.settings.archive:
            return
        credit = self._credit[row.id] = self._credit.get(row.id, 0) + 2 * count
        now = log.clock()
        if now - self._looked.get(row.id, 0) >= _PAUSE:
            self._looked[row.id] = now
            self._credit[row.id] = 0
            with contextlib.suppress(LogError):
                expire(log, row.topic.name, at_most=credit, no_later=before)


def maintain(log: SqliteLog, topic: str) -> Maintenance:
    """Archive what has expired, where the topic says so; delete it; then compact."""
    settings = log.topic(topic).settings
    upto: Mapping[int, int] | None = None
    if settings.archive and settings.expires:
        from millstream.log.archive import Archive

        with log.store.read() as db:
            upto = expired_before(log, db, log.row(topic, db))
        Archive(log.archive_path(settings.archive), topic).take(log, upto=upto)
        failpoint("archive.after_take")
    return Maintenance(expire(log, topic, archived=upto), compact(log, topic) if settings.compacts else 0)


def expired_before(log: SqliteLog, db: Db, row: TopicRow, no_later: int | None = None) -> dict[int, int]:
    """Per partition, the offset below which everything has expired; it is no later than a time that the caller may give."""
    settings = row.topic.settings
    cuts: dict[int, int] = {}
    rows = db.execute("SELECT partition, start, next, bytes, appended FROM partition WHERE topic = ?", (row.id,))
    found = rows.fetchall()
    clock = log.clock()
    own = topic_time(db, row.id, max(appended for *_, appended in found), clock)
    if no_later is not None:
        clock, own = min(clock, no_later), min(own, no_later)
    for partition, start, end, size, _ in found:
        cut, table = start, records_table(row.id, partition)
        if settings.expires and settings.retention is not None:
            cut = _as_old_as(settings.retention, db, table, start, end, clock, own)
        if settings.expires and settings.retention_bytes is not None and size > settings.retention_bytes:
            excess = size - settings.retention_bytes
            for offset, length in db.execute(f"SELECT offset, {_SIZE} FROM {table} ORDER BY offset"):
                if excess <= 0:
                    break
                excess -= length
                cut = max(cut, offset + 1)
        cuts[partition] = cut
    return cuts


def _as_old_as(age: timedelta, db: Db, table: str, start: int, end: int, clock: int, own: int) -> int:
    """The offset below which every record is that old, by the clock and the topic's ``own`` time (:func:`topic_time`)."""
    passed = age // timedelta(milliseconds=1)
    cut = first_appended_after(db, table, start, end, clock - passed)
    if own > clock and cut == first_appended_after(db, table, start, end, clock):
        # What is left was appended while the topic was ahead of the clock: its age goes by the topic's own time.
        cut = first_appended_after(db, table, start, end, own - passed)
    return cut


def expire(
    log: SqliteLog,
    topic: str,
    *,
    at_most: int | None = None,
    archived: Mapping[int, int] | None = None,
    no_later: int | None = None,
) -> int:
    """Delete what retention no longer covers; give the number of records.

    A topic with an archive loses only what is ``archived``, whatever else has expired meanwhile.
    """
    with log.store.read() as db:
        row = log.row(topic, db)
        if not row.topic.settings.expires:
            return 0
        cuts = expired_before(log, db, row, no_later)
        if row.topic.settings.archive:
            archived = archived or {}
            cuts = {partition: min(cut, archived.get(partition, 0)) for partition, cut in cuts.items()}
    deleted = 0
    for partition, cut in cuts.items():
        while at_most is None or deleted < at_most:
            step = _STEP if at_most is None else min(_STEP, at_most - deleted)
            gone = _delete_front(log, topic, row.id, partition, cut, step)
            if gone is None:
                break
            deleted += gone
    return deleted


def _delete_front(log: SqliteLog, topic: str, topic_id: int, partition: int, cut: int, step: int) -> int | None:
    """Delete up to ``step`` of the oldest records below ``cut`` and move the start; None when there is nothing left."""
    table = records_table(topic_id, partition)
    with log.store.write() as db:
        if log.row(topic, db).id != topic_id:
            return None
        start = db.execute("SELECT start FROM partition WHERE topic = ? AND partition = ?", (topic_id, partition)).get
        if start >= cut:
            return None
        rows = db.execute(
            f"SELECT offset, {_SIZE} FROM {table} WHERE offset < ? ORDER BY offset LIMIT ?", (cut, step)
        ).fetchall()
        upto = cut if len(rows) < step else rows[-1][0] + 1
        db.execute(f"DELETE FROM {table} WHERE offset < ?", (upto,))
        db.execute(
            "UPDATE partition SET start = ?, bytes = bytes - ? WHERE topic = ? AND partition = ?",
            (upto, sum(size for _, size in rows), topic_id, partition),
        )
        db.execute(
            "DELETE FROM time_index WHERE topic = ? AND partition = ? AND block < ?",
            (topic_id, partition, upto >> BLOCK),
        )
        failpoint("log.expire.in_transaction")
    return len(rows)


def compact(log: SqliteLog, topic: str) -> int:
    """Delete what a later record of the same key has replaced, and tombstones past their time; give the number.

    Obsolete records are found in a read transaction: once obsolete, they stay so, and can be deleted step by step.
    """
    with log.store.read() as db:
        row = log.row(topic, db)
        partitions = range(row.topic.partitions)
    return sum(_compact_partition(log, topic, row.id, partition) for partition in partitions)


def _compact_partition(log: SqliteLog, topic: str, topic_id: int, partition: int) -> int:
    table, clock = records_table(topic_id, partition), log.clock()
    settings = log.topic(topic).settings
    with log.store.read() as db:
        start, end, cleaned = db.execute(
            "SELECT start, next, cleaned FROM partition WHERE topic = ? AND partition = ?",
            (topic_id, partition),
        ).fetchone()
        newest = db.execute("SELECT max(appended) FROM partition WHERE topic = ?", (topic_id,)).get
        span = (start, end, clock, topic_time(db, topic_id, newest, clock))
        settled = _as_old_as(settings.compaction_lag, db, table, *span)  # younger ones neither go nor replace others
        past = min(settled, _as_old_as(settings.tombstone_retention, db, table, *span))
        # The latest offset of every key written since the last cleaning, kept in memory by SQLite's own sort.
        db.execute("CREATE TEMP TABLE IF NOT EXISTS latest (key BLOB PRIMARY KEY, offset INTEGER) WITHOUT ROWID")
        db.execute("DELETE FROM latest")
        db.execute(
            f"INSERT INTO latest SELECT key, max(offset) FROM {table} WHERE offset >= ? AND offset < ? AND key IS NOT NULL"
            " GROUP BY key",
            (cleaned, settled),
        )
        obsolete = [
            offset
            for (offset,) in db.execute(
                f"SELECT r.offset FROM {table} r JOIN latest l ON l.key = r.key WHERE r.offset < l.offset ORDER BY r.offset"
            )
        ]
        # A tombstone goes once nothing older of its key is left: everything below `settled` has been seen by now.
        obsolete += [
            offset
            for (offset,) in db.execute(f"SELECT offset FROM {table} WHERE value IS NULL AND offset < ?", (past,))
        ]
        db.execute("DELETE FROM latest")
    obsolete = sorted(set(obsolete))
    for i in range(0, len(obsolete), _STEP):
        step = [(offset,) for offset in obsolete[i : i + _STEP]]
        with log.store.write() as db:
            if log.row(topic, db).id != topic_id:
                return i
            size = sum(db.execute(f"SELECT {_SIZE} FROM {table} WHERE offset = ?", offset).get or 0 for offset in step)
            db.executemany(f"DELETE FROM {table} WHERE offset = ?", step)
            db.execute(
                "UPDATE partition SET bytes = bytes - ? WHERE topic = ? AND partition = ?",
                (size, topic_id, partition),
            )
            failpoint("log.compact.in_transaction")
        failpoint("log.compact.after_step")
    with log.store.write() as db:
        db.execute(
            "UPDATE partition SET cleaned = ? WHERE topic = ? AND partition = ?",
            (settled, topic_id, partition),
        )
    return len(obsolete)
