"""The topics that tables go to, and whether a table is still what was followed.

Invariant: a table has one topic, ``NAME.schema.table``, for as long as it is followed; one whose key, columns or types are not what they were
stops the capture, unless it may go on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from millstream.capture.contract import Table
from millstream.capture.control import Followed
from millstream.errors import ConfigError, TableChanged, TopicExists
from millstream.log.checks import check_topic_name
from millstream.log.contract import Log, TopicSettings

SETTINGS = TopicSettings(cleanup="compact", compaction_lag=timedelta(days=7), max_record_bytes=16_000_000)
_STRANGE = re.compile(r"[^A-Za-z0-9._-]")
OnChange = Literal["stop", "continue"]


@dataclass(frozen=True, slots=True)
class Target:
    """Where a table's changes go, and how large a record may be there."""

    topic: str
    most: int


def topic_of(name: str, table: Table) -> str:
    """The topic of a table; what topics cannot be called becomes ``_``.

    >>> topic_of("shop", Table("public", "user list", (), ()))
    'shop.public.user_list'
    """
    return check_topic_name(_STRANGE.sub("_", f"{name}.{table.full_name}"))


def ensure_topics(log: Log, name: str, tables: Iterable[Table], partitions: int) -> dict[str, Target]:
    """Make the topics that are not there; what each table's is, by the table's name."""
    targets: dict[str, Target] = {}
    for table in tables:
        topic = topic_of(name, table)
        if any(target.topic == topic for target in targets.values()):
            raise ConfigError(
                f"capture {name}: table {table.full_name} and another one would both go to topic {topic}",
                hint="capture one of them under another name",
            )
        with suppress(TopicExists):
            log.create_topic(topic, partitions, SETTINGS)
        settings = log.topic(topic).settings
        if not settings.compacts:
            raise ConfigError(
                f"topic {topic} is there already and is not compacted: rows would go with their age",
                hint=f"`millstream topics alter {topic} --cleanup compact --compaction-lag 7d`",
            )
        targets[table.full_name] = Target(topic, settings.max_record_bytes)
    return targets


def followed(table: Table, topic: str, before: Followed | None) -> Followed:
    """A table as it is now."""
    columns = {column.name: column.type for column in table.columns}
    was = before or Followed(topic, table.key, columns)
    return Followed(topic, table.key, columns, complete=was.complete, rows=was.rows)


def check_same(table: Table, before: Followed, on_change: OnChange) -> None:
    """Stop at a table that has another key, has lost a column, or has one of another type. New columns are welcome."""
    if before.key != table.key:
        raise TableChanged(
            f"table {table.full_name}: its key is ({', '.join(table.key)}) and was ({', '.join(before.key)}): its topic is keyed by that",
            hint="capture it under a new name, by `millstream capture start … --name OTHER`",
        )
    if on_change == "continue" or not table.columns:
        return
    now = {column.name: column.type for column in table.columns}
    changed = [_said(name, type_, now) for name, type_ in before.columns.items() if now.get(name) != type_]
    if changed:
        raise TableChanged(
            f"table {table.full_name}: {'; '.join(changed)}. What comes next was not appended",
            hint="let pipelines know; then go on with `millstream capture start … --on-change continue`",
        )


def _said(name: str, was: str, now: Mapping[str, str]) -> str:
    if name not in now:
        return f"column {name} is gone"
    return f"column {name} is {now[name]} and was {was}"
