"""Bulk reading of the embedded log, without an object for each record: stored rows, or only what a decoder needs, as columns.

Both read one range of one partition in one read transaction, and refuse a range that is no longer there. They end where there
would be too many records or bytes, so memory is bounded however large the records are; one record is always read.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw
import numpy as np
import numpy.typing as npt

from millstream.event import TopicPartition
from millstream.log.checks import check_offset
from millstream.log.embedded.batch import load_headers
from millstream.log.embedded.file import MOST_BYTES, partition_bounds, records_table

if TYPE_CHECKING:
    from millstream.database import Db
    from millstream.log.archive import Archive, Row
    from millstream.log.embedded.engine import SqliteLog


_STEPS, _SAMPLE = 64, 16


class Part(NamedTuple):
    """Offsets of one partition: start ≤ offset < end."""

    topic: str
    partition: int
    start: int
    end: int


class Values(NamedTuple):
    """Records as columns, without headers and timestamps, and with the keys of those alone that have no value; ``appended`` in milliseconds.

    ``joined`` holds the values, which have these ``lengths``, with a newline between any two; the length of no value is −1. ``keys`` are
    those of records without one, in their order.
    """

    offsets: npt.NDArray[np.int64]
    appended: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    joined: bytes
    keys: Sequence[bytes | None] = ()


def scan_rows(log: SqliteLog, part: Part, limit: int, most: int = MOST_BYTES) -> list[Row]:
    """Up to ``limit`` stored rows of a part, and ``most`` bytes, as they are."""
    with _scanning(log, part) as (db, table):
        part = part._replace(end=_end(db, table, part, limit, most))
        found: list[Row] = db.execute(f"SELECT * FROM {table} {_SOME}", (part.start, part.end, limit)).fetchall()
        if any(map(operator.itemgetter(5), found)):
            found = [(*stored, None if h is None else load_headers(h)) for *stored, h in found]  # type: ignore[misc,arg-type]
        return found


def scan_values(log: SqliteLog, part: Part, limit: int, without: bytes, most: int = MOST_BYTES) -> Values | None:
    """Up to ``limit`` records of a part, and ``most`` bytes, as columns, at half the cost of rows: SQLite puts them together.

    They end before the first whose key begins with ``without``. None if that cannot be: there is none before it, or none has a
    value.
    """
    with _scanning(log, part) as (db, table):
        before = db.limit(apsw.SQLITE_LIMIT_LENGTH, most)  # SQLite counts as it goes, which costs nothing
        try:
            return _values(db, table, part, limit, without)
        except apsw.TooBigError:
            db.limit(apsw.SQLITE_LIMIT_LENGTH, before)
            return _values(db, table, part._replace(end=_end(db, table, part, limit, most)), limit, without)
        finally:
            db.limit(apsw.SQLITE_LIMIT_LENGTH, before)


def count_records(log: SqliteLog, topic: str) -> int:
    """The records that are stored, which in a compacted topic are fewer than its offsets."""
    with log.store.read() as db:
        row = log.row(topic, db)
        tables = (records_table(row.id, partition) for partition in partition_bounds(db, row.id))
        return sum(db.execute(f"SELECT count(*) FROM {table}").get for table in tables)


def records_within(
    log: SqliteLog, parts: Sequence[Part], most: int, archives: Mapping[str, Archive | None] | None = None
) -> int:
    """How many records, each part going on at the same pace, have about ``most`` bytes together; at least one.

    The first and last records of each of :data:`_STEPS` steps are looked at, and only where there may be more bytes than that at all. What has left
    the live log has the bytes that its archive says.
    """
    with log.store.read() as db:
        rows = {part.topic: log.row(part.topic, db).id for part in parts}
        bounds = {topic: partition_bounds(db, row) for topic, row in rows.items()}
        stored = "SELECT bytes FROM partition WHERE topic = ? AND partition = ?"
        size = sum(db.execute(stored, (rows[part.topic], part.partition)).get for part in parts)
        if size <= most and all(bounds[part.topic][part.partition].start <= part.start for part in parts):
            return max(1, sum(part.end - part.start for part in parts))

        def about(part: Part) -> float:
            live = min(max(bounds[part.topic][part.partition].start, part.start), part.end)
            archive = (archives or {}).get(part.topic)
            past = archive.about(part.partition, part.start, live) if archive and part.start < live else 0.0
            table = records_table(rows[part.topic], part.partition)
            ends = (f"SELECT {_SIZE} AS size FROM {table} {_BETWEEN} ORDER BY offset {way} LIMIT ?" for way in _WAYS)
            first, last = (db.execute(f"SELECT avg(size) FROM ({end})", (live, part.end, _SAMPLE)).get for end in ends)
            return past + (part.end - live) * ((first or 0.0) + (last or 0.0)) / 2

        return paced(parts, most, _STEPS, about)


def paced(parts: Sequence[Part], most: int, steps: int, about: Callable[[Part], float]) -> int:
    """How many records of parts that go on at the same pace have ``most`` bytes, by what a step of a part has; at least one."""
    waiting, total = sum(part.end - part.start for part in parts), 0.0
    for step in range(steps):
        size = sum(about(step_of(part, step, steps)) for part in parts)
        if total + size > most:
            return max(1, int(waiting * (step + (most - total) / size) / steps))
        total += size
    return max(1, waiting)


def step_of(part: Part, step: int, steps: int) -> Part:
    """One of the steps of a part, all of the same length."""
    low, high = (part.start + (part.end - part.start) * each // steps for each in (step, step + 1))
    return part._replace(start=low, end=high)


def _values(db: Db, table: str, part: Part, limit: int, without: bytes) -> Values | None:
    ask = partial(_whole, db, table, part.start)
    keys = (without, without[:-1] + bytes([without[-1] + 1]))
    end = min(part.end, part.start + limit)
    count, there, marked, appended, joined = ask(end, _COLUMNS, *keys)
    if count < end - part.start:  # a compacted topic has gaps
        some = f"SELECT max(offset) + 1 FROM (SELECT offset FROM {table} {_SOME})"
        end = db.execute(some, (part.start, part.end, limit)).get or end
        count, there, marked, appended, joined = ask(end, _COLUMNS, *keys)
    if marked is not None:
        end = marked
        count, there, _, appended, joined = ask(end, _COLUMNS, *keys)
    if not there:
        return None
    offsets = np.arange(part.start, end)
    if count < len(offsets):
        offsets = _numbers(*ask(end, "group_concat(offset)"))
    newlines = np.flatnonzero(np.frombuffer(joined, np.uint8) == ord("\n"))
    if there == count and len(newlines) == count - 1:
        lengths = np.diff(newlines, prepend=-1, append=len(joined)) - 1
    else:  # some are in the values, or some have none
        lengths = _numbers(*ask(end, "group_concat(ifnull(length(value), -1))"))
    bare = f"SELECT key FROM {table} {_BETWEEN} AND value IS NULL ORDER BY offset"
    absent = [key for (key,) in db.execute(bare, (part.start, end))] if there < count else []
    return Values(offsets, _numbers(appended), lengths, joined, absent)


_SIZE = "ifnull(length(key), 0) + ifnull(length(value), 0) + ifnull(length(headers), 0)"
_BETWEEN, _WAYS = "WHERE offset >= ? AND offset < ?", ("ASC", "DESC")
_SOME = f"{_BETWEEN} ORDER BY offset LIMIT ?"
_COLUMNS = (
    "count(*), count(value), min(CASE WHEN key >= ? AND key < ? THEN offset END),"
    " group_concat(appended), CAST(group_concat(value, x'0a') AS BLOB)"
)


def _whole(db: Db, table: str, start: int, end: int, columns: str, *bindings: bytes) -> tuple[Any, ...]:
    """Aggregate a range of offsets. SQLite walks a table by its offset, so a concatenation is in that order."""
    asked = f"SELECT {columns} FROM {table} WHERE offset >= ? AND offset < ?"
    found: tuple[Any, ...] = db.execute(asked, (*bindings, start, end)).fetchone()
    return found


def _end(db: Db, table: str, part: Part, limit: int, most: int) -> int:
    """Where a part ends if it is to have no more than so many bytes among its first records; after the first one at the least."""
    asked = (part.start, part.end, limit)
    if db.execute(f"SELECT total(size) FROM (SELECT {_SIZE} AS size FROM {table} {_SOME})", asked).get <= most:
        return part.end
    total = 0
    for count, (offset, size) in enumerate(db.execute(f"SELECT offset, {_SIZE} FROM {table} {_SOME}", asked)):
        total += size
        if count and total > most:
            return int(offset)
    return part.end


@contextmanager
def _scanning(log: SqliteLog, part: Part) -> Iterator[tuple[Db, str]]:
    with log.store.read() as db:
        row = log.row(part.topic, db)
        bounds = partition_bounds(db, row.id)[part.partition]
        check_offset(TopicPartition(part.topic, part.partition), part.start, bounds)
        with log.store.errors(f"topic {part.topic} partition {part.partition}, reading from offset {part.start}"):
            yield db, records_table(row.id, part.partition)


def _numbers(text: str) -> npt.NDArray[np.int64]:
    return np.fromstring(text, np.int64, sep=",")
