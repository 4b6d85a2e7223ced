"""The transactional outbox: what an application writes to a table, in its own transaction, becomes an event of a topic that it names.

The columns are Debezium's: ``aggregatetype`` names the topic, ``aggregateid`` is the key, ``payload`` the value; ``id`` and ``type`` are headers.
Only inserts count. Invariant: no topic gets an event that is not allowed to.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import msgspec

from millstream.capture.contract import Change, Table
from millstream.capture.envelope import Origin
from millstream.errors import BadName, CaptureError, ConfigError
from millstream.event import Event
from millstream.log.checks import check_topic_name

_COLUMNS = ("id", "aggregatetype", "aggregateid", "type", "payload")


class Routed(NamedTuple):
    """Where an event goes; or ``why`` it may not."""

    id: Any
    topic: str
    event: Event
    why: str = ""


@dataclass(frozen=True, slots=True)
class Outbox:
    """A table that is an outbox, by its name with or without the schema, and which topics it may name, as ``orders.*``."""

    table: str
    topics: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.topics:
            raise ConfigError(
                f"outbox {self.table}: no topic is allowed", hint="--outbox-topics 'orders.*' says which it may name"
            )

    def is_for(self, table: Table) -> bool:
        """Whether a table is this one."""
        return self.table in (table.full_name, table.name)

    def check(self, table: Table) -> None:
        """Refuse a table that lacks a column."""
        missing = [name for name in _COLUMNS if name not in {column.name for column in table.columns}]
        if missing:
            raise CaptureError(
                f"outbox {table.full_name}: it has no column {', '.join(missing)}; expected {', '.join(_COLUMNS)}",
                hint=f"ALTER TABLE {table.full_name} ADD COLUMN {missing[0]} …",
            )

    def routed(self, change: Change, origin: Origin) -> Routed:
        """The event of an inserted row."""
        row = change.after or {}
        topic, key, payload = row.get("aggregatetype"), row.get("aggregateid"), row.get("payload")
        headers = tuple((name, _bytes(row[name])) for name in ("id", "type") if row.get(name) is not None)
        event = Event(
            None if payload is None else _bytes(payload), None if key is None else _bytes(key), origin.time, headers
        )
        return Routed(row.get("id"), str(topic), event, self._why_not(topic))

    def _why_not(self, topic: Any) -> str:
        if not isinstance(topic, str):
            return f"its aggregatetype is {topic!r}, expected the name of a topic"
        if topic.startswith("millstream.") or not any(fnmatchcase(topic, each) for each in self.topics):
            return f"topic {topic} is not allowed; allowed are {', '.join(self.topics)}"
        try:
            check_topic_name(topic)
        except BadName as error:
            return error.message
        return ""


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)
