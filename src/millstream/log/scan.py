"""Bulk reading of the embedded log, for whoever makes no records of it: stored rows, or only what a decoder needs, as columns.

Both read one range of one partition in one read transaction, and refuse a range that is no longer there.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millstream.event import TopicPartition
from millstream.log.batch import load_headers
from millstream.log.contract import check_offset
from millstream.log.store import partition_bounds, records_table

if TYPE_CHECKING:
    from millstream.database import Db
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
    with _scanning(log, part) as (db, table):
        found: list[Row] = db.execute(f"SELECT * FROM {table} {_SOME}", (part.start, part.end, limit)).fetchall()
        if any(map(operator.itemgetter(5), found)):
            found = [(*stored, None if h is None else load_headers(h)) for *stored, h in found]  # type: ignore[misc,arg-type]
        return found


def scan_values(log: SqliteLog, part: Part, limit: int, without: bytes) -> Values | None:
    """Up to ``limit`` records of a part as columns, at half the cost of rows: SQLite puts them together.

    They end before the first whose key begins with ``without``. None if that cannot be: there is none before it, or one has no
    value.
    """
    with _scanning(log, part) as (db, table):
        ask = partial(_whole, db, table, part.start)
        keys = (without, without[:-1] + bytes([without[-1] + 1]))
        end = min(part.end, part.start + limit)
        count, there, marked, appended, joined = ask(end, _COLUMNS, *keys)
        if count < end - part.start:  # a compacted topic has gaps
            some = f"SELECT max(offset) + 1 FROM (SELECT offset FROM {table} {_SOME})"
            end = db.execute(some, (part.start, part.end, limit)).get or end
            count, there, marked, appended, joined = ask(end, _COLUMNS, *keys)
        if there < count:
            return None
        if marked is not None:
            end = marked
            count, _, _, appended, joined = ask(end, _COLUMNS, *keys)
        if not count:
            return None
        offsets = np.arange(part.start, end)
        if count < len(offsets):
            offsets = _numbers(*ask(end, "group_concat(offset)"))
        newlines = np.flatnonzero(np.frombuffer(joined, np.uint8) == ord("\n"))
        if len(newlines) == count - 1:
            lengths = np.diff(newlines, prepend=-1, append=len(joined)) - 1
        else:  # some are in the values
            lengths = _numbers(*ask(end, "group_concat(length(value))"))
    return Values(offsets, _numbers(appended), lengths, joined)


_SOME = "WHERE offset >= ? AND offset < ? ORDER BY offset LIMIT ?"
_COLUMNS = (
    "count(*), count(value), min(CASE WHEN key >= ? AND key < ? THEN offset END),"
    " group_concat(appended), CAST(group_concat(value, x'0a') AS BLOB)"
)


def _whole(db: Db, table: str, start: int, end: int, columns: str, *bindings: bytes) -> tuple[Any, ...]:
    """What a range is together. SQLite walks through a table by its offset, so what is put together is in that order."""
    asked = f"SELECT {columns} FROM {table} WHERE offset >= ? AND offset < ?"
    found: tuple[Any, ...] = db.execute(asked, (*bindings, start, end)).fetchone()
    return found


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
