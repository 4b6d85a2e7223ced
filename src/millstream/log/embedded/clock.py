"""The time of appends in the embedded log, and leases, under a machine's clock that jumps.

Append time never runs back within a topic, and an append has one time in all of its topics. After a clock that ran ahead was put right, the topic is ahead of it: append time then goes
on from where it is at the pace of the clock, until the clock has caught up. So that it does across processes, the topic's row in the
table ``ahead`` has the last append time and what the clock said then; the table is made when it is first needed.
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream.database import Db

LONGEST = 30 * 60 * 1000
"""Milliseconds that a lease may last. One that ends later than that was given under a clock that has been set back since."""

_AHEAD = "CREATE TABLE IF NOT EXISTS ahead (topic INTEGER PRIMARY KEY, appended INTEGER NOT NULL, clock INTEGER NOT NULL) STRICT"


def next_append(db: Db, newest: Mapping[int, int], clock: int) -> int:
    """The time of an append, in a transaction that writes; ``newest`` has, for each of its topics, that of the one before."""
    latest = max(newest.values())
    if clock >= latest:
        if clock == latest and _was_ahead(db):  # the clock has caught up: its earlier, later times no longer count
            db.executemany("DELETE FROM ahead WHERE topic = ?", [(t,) for t, time in newest.items() if time == clock])
        return clock
    db.execute(_AHEAD)
    now = max(_going_on(db, topic, time, clock) for topic, time in newest.items() if time > clock)
    db.executemany("INSERT OR REPLACE INTO ahead VALUES (?, ?, ?)", [(topic, now, clock) for topic in newest])
    return now


def topic_time(db: Db, topic: int, newest: int, clock: int) -> int:
    """What time it is by a topic's own append time."""
    if clock >= newest:
        return clock
    return _going_on(db, topic, newest, clock) if _was_ahead(db) else newest + 1


def _was_ahead(db: Db) -> bool:
    """Whether any topic ever was ahead of the clock: the table is there."""
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = 'ahead'").get is not None


def _going_on(db: Db, topic: int, newest: int, clock: int) -> int:
    known = db.execute("SELECT appended, clock FROM ahead WHERE topic = ?", (topic,)).fetchone()
    passed = clock - known[1] if known is not None and known[0] == newest else 1
    return newest + max(0, passed)
