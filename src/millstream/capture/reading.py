"""A topic read from its beginning to where it ends now, and which keys it holds."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.event import Record
from millstream.log.contract import Log

_AT_ONCE = 5000


def records_of(log: Log, topic: str) -> Iterator[Record]:
    """All records that a topic holds at this moment, those of each key in their order."""
    ends = {partition: bound.end for partition, bound in log.bounds(topic).items()}
    with log.reader(topic) as reader:
        while any(reader.positions.get(partition, 0) < end for partition, end in ends.items()):
            for record in reader.poll(_AT_ONCE, timeout=1.0):
                if record.offset < ends.get(record.partition, 0):
                    yield record


def live_keys(log: Log, topic: str) -> dict[bytes, None]:
    """The keys that have a row, in the order of the topic: their last record is no tombstone."""
    keys: dict[bytes, None] = {}
    for record in records_of(log, topic):
        if record.key is None:
            continue
        if record.value is None:
            keys.pop(record.key, None)
        else:
            keys[record.key] = None
    return keys
