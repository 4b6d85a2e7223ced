"""How far groups are behind, and moving them: the same for every engine, from what the contract offers.

Lag in records is the log's end less the committed offset, Kafka's way; on Kafka, and after compaction, that also counts
offsets that hold no record. Lag in seconds is how long the first unread record has been waiting.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from millstream.errors import ConfigError, LogError, UnknownTopic
from millstream.event import TopicPartition
from millstream.log.checks import start_offsets
from millstream.log.contract import Bounds, Group, Log, Start, Topic

_WARN = 0.2  # of the retention left


@dataclass(frozen=True, slots=True)
class Lag:
    """One group in one partition. ``warning`` is empty unless records are lost, or soon will be, unread."""

    group: str
    topic: str
    partition: int
    committed: int
    end: int
    records: int
    seconds: float
    members: int
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Move:
    """What a reset does to one partition."""

    topic: str
    partition: int
    before: int | None
    after: int


def group_lag(log: Log, *, groups: Iterable[str] | None = None, topic: str | None = None) -> list[Lag]:
    """Lag of every group in every partition of the topics where it has committed.

    :param log: an open log
    :param groups: only these groups
    :param topic: only this topic
    :raises LogUnavailable: if the log does not answer

    >>> from tempfile import TemporaryDirectory
    >>> from millstream import open_log
    >>> with TemporaryDirectory() as folder, open_log(f"sqlite:{folder}/shop.db") as log:
    ...     group_lag(log)
    []
    """
    wanted = None if groups is None else set(groups)
    rows: list[Lag] = []
    topics: dict[str, tuple[Topic, dict[int, Bounds]]] = {}
    for group in log.groups():
        for name in sorted({place.topic for place in group.offsets}):
            if (wanted is not None and group.name not in wanted) or (topic is not None and name != topic):
                continue
            if name not in topics:
                try:
                    topics[name] = (log.topic(name), log.bounds(name))
                except UnknownTopic:
                    continue  # deleted, with offsets left behind (Kafka keeps them for a while)
            described, bounds = topics[name]
            for partition, bound in sorted(bounds.items()):
                rows.append(_lag(log, group, described, TopicPartition(name, partition), bound))
    return rows


def _lag(log: Log, group: Group, topic: Topic, place: TopicPartition, bounds: Bounds) -> Lag:
    now = time.time()
    committed = group.offsets.get(place, bounds.start)  # not yet committed here: all of it is unread
    seconds, warning = 0.0, ""
    if committed < bounds.start:
        warning = f"offsets {committed} to {bounds.start - 1} are gone, unread"
    elif committed < bounds.end:
        unread = log.read(place.topic, place.partition, committed, 1)
        if unread:
            seconds = max(0.0, now - unread[0].appended / 1000)
            warning = _expiring(topic, committed, bounds, seconds)
    records = max(0, bounds.end - max(committed, bounds.start))
    return Lag(
        group.name,
        place.topic,
        place.partition,
        committed,
        bounds.end,
        records,
        round(seconds, 3),
        len(group.members),
        warning,
    )


def _expiring(topic: Topic, committed: int, bounds: Bounds, age: float) -> str:
    """Say so while there is still time: less than a fifth of the retention is left before the unread record goes."""
    settings = topic.settings
    if not settings.expires:
        return ""
    if settings.retention is not None:
        whole = settings.retention.total_seconds()
        if whole - age < whole * _WARN:
            return f"the first unread record expires in {max(0, whole - age):.0f} s"
    # By size: only a partition that has lost records before is full, and the front of a full one goes next.
    if settings.retention_bytes is not None and bounds.start > 0:
        ahead = (committed - bounds.start) / (bounds.end - bounds.start)
        if ahead < _WARN:
            return f"only {committed - bounds.start} records lie between retention and the first unread one"
    return ""


def plan_reset(log: Log, group: str, topic: str, to: Start) -> list[Move]:
    """What moving a group to ``to`` would change; nothing is done."""
    known = next((g for g in log.groups() if g.name == group), None)
    if known is not None and known.kind == "queue":
        raise LogError(
            f"group {group} is a work queue and has no position to move",
            hint="delete the group to begin again",
        )
    before = {} if known is None else known.offsets
    return [
        Move(topic, partition, before.get(TopicPartition(topic, partition)), offset)
        for partition, offset in sorted(start_offsets(log, topic, to).items())
    ]


def reset(log: Log, group: str, moves: Iterable[Move]) -> None:
    """Carry out a plan; refused while the group has live members."""
    log.commit_group(group, {TopicPartition(move.topic, move.partition): move.after for move in moves})


def parse_start(text: str) -> Start:
    """Read ``earliest``, ``latest``, an offset, a time (ISO 8601) or ``0:17,1:4`` from a command line.

    >>> parse_start("0:17,1:4")
    {0: 17, 1: 4}
    """
    if text in ("earliest", "latest"):
        return text  # type: ignore[return-value]
    if text.isdecimal():
        return int(text)
    parts = [part.split(":") for part in text.split(",")]
    if all(len(part) == 2 and part[0].isdecimal() and part[1].isdecimal() for part in parts):
        return {int(partition): int(offset) for partition, offset in parts}
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"found {text!r}, expected earliest, latest, an offset, a time or offsets per partition",
            hint="for example 2026-01-31T12:00:00Z, or 0:17,1:4",
        ) from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def stored(log: Log, topic: Topic) -> int:
    """How many records a topic holds; of one that is compacted on Kafka only its brokers know, and so many are the most."""
    if topic.settings.compacts:
        from millstream.log.embedded.engine import SqliteLog
        from millstream.log.embedded.scan import count_records  # slow to load, and rarely needed

        if isinstance(log, SqliteLog):
            return count_records(log, topic.name)
    return sum(bound.end - bound.start for bound in log.bounds(topic.name).values())
