"""A batch of events on its way into the embedded log: checked, encoded and given partitions, before any lock is taken."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from millstream.errors import BadEvent
from millstream.event import Event, Headers, to_millis
from millstream.log.contract import Topic
from millstream.log.heartbeat import PREFIX
from millstream.log.partitioner import partitions_of

_VALUE, _KEY, _TIME, _HEADERS = map(operator.itemgetter, range(len(Event._fields)))


class Part(NamedTuple):
    """What one partition gets of a batch: places in the batch, columns (None where no event has any), bytes."""

    members: list[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    millis: Sequence[int | None] | None
    headers: Sequence[bytes | None] | None
    size: int


class Batch:
    """Events checked, turned into columns and cut by partition, before the write lock is taken.

    Columns, because everything here is then done by the interpreter's C loops, over a batch at a time instead of event
    by event, and without making objects that the garbage collector would look at.
    """

    def __init__(self, topic: Topic, events: Sequence[Event], spread: int, *, own: bool = False) -> None:
        self.events = events
        # Not zip(*events): it makes an iterator per event.
        values, keys = list(map(_VALUE, events)), list(map(_KEY, events))
        if topic.settings.compacts and None in keys:
            raise self._bad(keys.index(None), f"no key, and topic {topic.name} is compacted by key")
        encoded = None
        if any(map(_HEADERS, events)):
            encoded = [dump_headers(pairs) if pairs else None for pairs in map(_HEADERS, events)]
        self.millis: list[int | None] | None = None
        try:
            if any(time is not None for time in map(_TIME, events)):
                self.millis = [None if time is None else to_millis(time) for time in map(_TIME, events)]
        except (AttributeError, TypeError, ValueError) as error:
            raise BadEvent(f"{error}; nothing was appended", hint="give times as aware datetimes") from error
        try:
            self.places = place(keys, topic.partitions, spread)
            members: list[list[int]] = [[] for _ in range(topic.partitions)]
            for index, partition in enumerate(self.places):
                members[partition].append(index)
            self.parts = {
                partition: _part(chosen, keys, values, self.millis, encoded)
                for partition, chosen in enumerate(members)
                if chosen
            }
        except (TypeError, UnicodeError):
            self.check_types()
            raise
        if not own:
            self._check_keys(keys)
        if sum(part.size for part in self.parts.values()) > topic.settings.max_record_bytes:
            self._check_sizes(topic.settings.max_record_bytes, values, keys, encoded)

    def check_types(self) -> None:
        """Raise BadEvent for a key or value that is not bytes."""
        if {*map(type, map(_VALUE, self.events)), *map(type, map(_KEY, self.events))} <= {bytes, type(None)}:
            return
        for index, event in enumerate(self.events):
            if not isinstance(event.value, bytes | None) or not isinstance(event.key, bytes | None):
                raise self._bad(index, "key and value must be bytes or None")

    def _check_keys(self, keys: Sequence[bytes | None]) -> None:
        if PREFIX not in b"".join(filter(None, keys)):  # one search for them all
            return
        for index, key in enumerate(keys):
            if key is not None and key.startswith(PREFIX):
                raise self._bad(
                    index,
                    f"keys that begin with {PREFIX.decode()} are reserved for heartbeats",
                    hint="give the key another beginning; a copy of a topic leaves heartbeats out",
                )

    def _check_sizes(self, limit: int, *columns: Sequence[bytes | None] | None) -> None:
        present = [column for column in columns if column is not None]
        if sum(max(map(len, filter(None, column)), default=0) for column in present) <= limit:
            return
        for index in range(len(self.events)):
            size = sum(len(column[index] or b"") for column in present)
            if size > limit:
                raise self._bad(index, f"{size} bytes, the topic takes up to {limit}")

    def _bad(self, index: int, why: str, hint: str = "") -> BadEvent:
        key = self.events[index].key
        return BadEvent(f"event {index} of the batch (key {key!r:.60}): {why}; nothing was appended", hint=hint)


def _part(
    members: list[int],
    keys: list[bytes | None],
    values: list[bytes | None],
    millis: list[int | None] | None,
    headers: list[bytes | None] | None,
) -> Part:
    pick: Callable[[Sequence[Any]], Any] = operator.itemgetter(*members)
    if len(members) == 1:
        pick = lambda column: (column[members[0]],)  # noqa: E731
    chosen = (pick(keys), pick(values), millis and pick(millis), headers and pick(headers))
    # Joining them is the quickest way to count bytes, and refuses what is not bytes.
    size = sum(len(b"".join(filter(None, column))) for column in (chosen[0], chosen[1], chosen[3] or ()))
    return Part(members, *chosen, size)


def place(keys: Sequence[bytes | None], partitions: int, spread: int) -> list[int]:
    """The partition of each event: by key, or taking turns from ``spread`` on where there is none."""
    if None not in keys:
        return partitions_of(keys, partitions)  # type: ignore[arg-type]
    placed = iter(partitions_of([key for key in keys if key is not None], partitions))
    return [(spread + i) % partitions if key is None else next(placed) for i, key in enumerate(keys)]


def dump_headers(headers: Headers) -> bytes:
    """Headers as MessagePack: a list of [name, bytes]."""
    try:
        for name, value in headers:
            if not isinstance(name, str) or not isinstance(value, bytes):
                raise TypeError(f"found {name!r}: {type(value).__name__}")
        return msgspec.msgpack.encode(headers)
    except (TypeError, ValueError) as error:
        raise BadEvent(f"headers must be pairs of str and bytes: {error}") from error


_headers = msgspec.msgpack.Decoder(tuple[tuple[str, bytes], ...])


def load_headers(data: bytes) -> Headers:
    """The inverse."""
    return _headers.decode(data)
