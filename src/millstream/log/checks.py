"""What every engine checks alike: names, and where a read may begin."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

from millstream.errors import BadEvent, BadName, ConfigError, OffsetOutOfRange
from millstream.event import TopicPartition
from millstream.log.contract import Bounds, Log, Start

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_GROUP = re.compile(r"[^\x00-\x1f\x7f]{1,249}")


def start_offsets(log: Log, topic: str, start: Start, bounds: Mapping[int, Bounds] | None = None) -> dict[int, int]:
    """Turn a start into an offset per partition; a mapping may name only some of them.

    An explicit offset must lie within the log, or within ``bounds``: raises OffsetOutOfRange otherwise.
    """
    bounds = log.bounds(topic) if bounds is None else bounds
    if isinstance(start, datetime):
        return log.offsets_at(topic, start)
    if start == "earliest":
        return {partition: bound.start for partition, bound in bounds.items()}
    if start == "latest":
        return {partition: bound.end for partition, bound in bounds.items()}
    if isinstance(start, str):
        raise ConfigError(
            f"start: found {start!r}, expected earliest, latest, an offset, a time, or an offset per partition"
        )
    offsets = dict.fromkeys(bounds, start) if isinstance(start, int) else dict(start)
    for partition, offset in offsets.items():
        if partition not in bounds:
            raise ConfigError(f"topic {topic} has no partition {partition}; it has {len(bounds)}")
        check_offset(TopicPartition(topic, partition), offset, bounds[partition])
    return offsets


def check_offset(place: TopicPartition, offset: int, bounds: Bounds) -> None:
    """Raise OffsetOutOfRange, naming what is missing, unless a read may begin at ``offset``."""
    if offset < bounds.start:
        raise OffsetOutOfRange(
            f"topic {place.topic} partition {place.partition}: offsets {offset} to {bounds.start - 1} are gone;"
            f" the log begins at {bounds.start}",
            missing=(offset, bounds.start),
            hint=f"read the archive if there is one, or `millstream groups reset GROUP --topic {place.topic} --to earliest`",
        )
    if offset > bounds.end:
        raise OffsetOutOfRange(
            f"topic {place.topic} partition {place.partition}: offset {offset} is beyond the end; the next one is {bounds.end}",
            missing=(bounds.end, offset),
            hint="was the topic deleted and made again? start from `earliest`",
        )


def check_topic_name(name: str) -> str:
    """Give the name back if Kafka, and so every engine, accepts it."""
    if not _NAME.fullmatch(name) or name in (".", "..") or name.startswith("__"):
        raise BadName(
            f"topic name {name!r} is not allowed",
            hint="use 1 to 249 of the letters a-z A-Z, digits, '.', '_' and '-', not beginning with '__'",
        )
    return name


def check_name(kind: str, name: str) -> str:
    """The same for the name of a group or a producer."""
    if not _GROUP.fullmatch(name) or name.startswith("__"):
        raise BadName(
            f"{kind} name {name!r} is not allowed",
            hint="use 1 to 249 printable characters, not beginning with '__'",
        )
    return name


def check_numbered(producer: str | None, sequence: int | None) -> None:
    """Raise ConfigError unless a producer and its sequence are both there, or neither."""
    if (producer is None) != (sequence is None):
        raise ConfigError("append: producer and sequence go together; found only one")
    if producer is not None:
        check_name("producer", producer)


def check_repeated(there: Mapping[str, bool], producer: str, sequence: int) -> bool:
    """Whether a sequence is a repeat, given which topics have it; BadEvent if only some have."""
    if any(there.values()) and not all(there.values()):
        having, missing = (", ".join(t for t, has in there.items() if has is wanted) for wanted in (True, False))
        raise BadEvent(
            f"producer {producer} sends sequence {sequence} to several topics: {having} has it already, {missing} has not;"
            " nothing was appended",
            hint="repeat a sequence with the topics of the first time; ask last_sequence() of each where to go on",
        )
    return bool(there) and all(there.values())
