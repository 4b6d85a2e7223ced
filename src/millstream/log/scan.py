"""Bulk reading of the embedded log, for whoever makes no records of it: stored rows, or only what a decoder needs, as columns.

Both read one range of one partition in one read transaction, and refuse a range that is no longer there.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millstream.event import TopicPartition
from millstream.log.batch import load_headers
from millstream.log.contract import check_offset
from millstream.log.store import partition_bounds, records_table

if TYPE_CHECKING:
    from millstream.log.archive import Row
    from millstream.log.sqlite import SqliteLog


class Part(NamedTuple):
    """Offsets of one partition: start ≤ offset < end."""

    topic: str
    partition: int
    start: int
    end: int


class Values(NamedTuple):
    """Records as columns, without keys, headers and timestamps; ``appended`` in milliseconds.

    ``joined`` holds the values, which have these ``lengths``, with a newline between any two.
    """

    offsets: npt.NDArray[np.int64]
    appended: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    joined: bytes


def scan_rows(log: SqliteLog, part: Part, limit: int) -> list[Row]:
    """Up to ``limit`` stored rows of a part, as they are."""
    with _scanning(log, part, limit, "*") as (db, some, bindings):
        found: list[Row] = db.execute(some, bindings).fetchall()
        if any(map(operator.itemgetter(5), found)):
            found = [(*stored, None if h is None else load_headers(h)) for *stored, h in found]  # type: ignore[misc,arg-type]
        return found


def scan_values(log: SqliteLog, part: Part, limit: int, without: bytes) -> Values | None:
    """Up to ``limit`` records of a part as columns, at half the cost of rows: SQLite puts them together.

    They end before the first whose key begins with ``without``. None if that cannot be: there is none before it, or one has no
    value.
    """
    with _scanning(log, part, limit, "offset, appended, key, value") as (db, some, bindings):
        (found,) = db.execute(
            "SELECT count(*), count(value), min(CASE WHEN substr(key, 1, ?) = ? THEN offset END), min(offset), max(offset),"
            " group_concat(appended), group_concat(length(value)), CAST(group_concat(value, x'0a') AS BLOB)"
            f" FROM ({some})",
            (len(without), without, *bindings),
        ).fetchall()
        count, there, marked, first, last, appended, lengths, joined = found
        if not count or there < count:
            return None
        if last - first == count - 1:
            offsets = np.arange(first, last + 1)
        else:  # a compacted topic has gaps
            offsets = _numbers(db.execute(f"SELECT group_concat(offset) FROM ({some})", bindings).get)
    upto = count if marked is None else int(np.searchsorted(offsets, marked))
    sizes = _numbers(lengths)[:upto]
    return (
        Values(offsets[:upto], _numbers(appended)[:upto], sizes, joined[: int(sizes.sum()) + upto - 1])
        if upto
        else None
    )


@contextmanager
def _scanning(log: SqliteLog, part: Part, limit: int, columns: str) -> Iterator[tuple[Any, str, tuple[int, int, int]]]:
    with log.store.read() as db:
        row = log.row(part.topic, db)
        bounds = partition_bounds(db, row.id)[part.partition]
        check_offset(TopicPartition(part.topic, part.partition), part.start, bounds)
        with log.store.errors(f"topic {part.topic} partition {part.partition}, reading from offset {part.start}"):
            table = records_table(row.id, part.partition)
            some = f"SELECT {columns} FROM {table} WHERE offset >= ? AND offset < ? ORDER BY offset LIMIT ?"
            yield db, some, (part.start, part.end, limit)


def _numbers(text: str) -> npt.NDArray[np.int64]:
    return np.fromstring(text, np.int64, sep=",")
