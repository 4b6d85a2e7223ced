"""The last row of each key of a topic, for values that a database does not tell because they are as they were.

Invariant: what is given is what the changes before have left, never a later value: what the log held when a topic was first asked for, and
behind it what was put in since, in its order. It lies in a temporary file that goes with the capture; a new one is made from the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import apsw

from millstream.capture.appender import Unit
from millstream.capture.envelope import after_of
from millstream.database import Db
from millstream.errors import CaptureError
from millstream.event import Event, Record

_TABLE = "CREATE TABLE last (topic TEXT, key BLOB, value BLOB, PRIMARY KEY (topic, key))"


class Large:
    """``records`` gives all that a topic holds, with all that was put before. A topic that nobody asks for costs nothing."""

    def __init__(self, records: Callable[[str], Iterable[Record]]) -> None:
        self._records = records
        self._taken: dict[str, int] = {}
        self._unit: Unit | None = None
        """The one that is being made, of whose events some were taken: so many of each topic that is held."""
        self._db: Db = apsw.Connection("")  # a temporary file that nobody else sees
        for each in ("PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF", _TABLE):
            self._db.execute(each).fetchall()

    def last(self, unit: Unit, topic: str, key: bytes, column: str) -> Any:
        """The value of a column as the unit leaves it that is being made; KeyError if no row has told it."""
        if topic not in self._taken:
            self._take(topic, self._records(topic))
            self._taken[topic] = 0
        if unit is not self._unit:
            self._begin(unit)
        self._rest(unit, topic)
        found = self._db.execute("SELECT value FROM last WHERE topic = ? AND key = ?", (topic, key)).fetchall()
        row = (after_of(found[0][0]) if found else None) or {}
        if row[column] is None:  # what lies out of line is no null: the row of the topic is another one
            raise KeyError(column)
        return row[column]

    def put(self, unit: Unit) -> None:
        """A unit goes into the log: the one that is being made, or another before it."""
        for topic in self._taken:
            if unit is self._unit:
                self._rest(unit, topic)
            else:
                self._take(topic, unit.events.get(topic, ()))
        if unit is self._unit:
            self._begin(None)

    def close(self) -> None:
        """Throw the file away."""
        self._db.close()

    def _begin(self, unit: Unit | None) -> None:
        self._unit, self._taken = unit, dict.fromkeys(self._taken, 0)

    def _rest(self, unit: Unit, topic: str) -> None:
        events = unit.events.get(topic, [])
        self._take(topic, events[self._taken[topic] :])
        self._taken[topic] = len(events)

    def _take(self, topic: str, events: Iterable[Event | Record]) -> None:
        try:
            for each in events:
                if each.value is None:
                    self._db.execute("DELETE FROM last WHERE topic = ? AND key = ?", (topic, each.key))
                else:
                    self._db.execute("INSERT OR REPLACE INTO last VALUES (?, ?, ?)", (topic, each.key, each.value))
        except apsw.Error as error:
            raise CaptureError(
                f"the temporary file with the last rows of topic {topic}: {error}",
                hint="let TMPDIR name a folder with room for as much as the topic holds, or ALTER TABLE … REPLICA IDENTITY FULL;",
            ) from error
