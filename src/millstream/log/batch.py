"""A batch of events on its way into the embedded log: checked, encoded and given partitions, before any lock is taken."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from millstream.errors import BadEvent
from millstream.event import Event, Headers, to_millis
from millstream.log.contract import Topic
from millstream.log.partitioner import partitions_of

_FIELDS = tuple(map(operator.itemgetter, range(len(Event._fields))))


class Batch:
    """Events checked and turned into columns before the write lock is taken.

    Columns, because everything here is done once per batch by the interpreter's C loops instead of once per event:
    checking and cutting 1,000 events takes 0.4 ms this way and 1 ms event by event.
    """

    def __init__(self, topic: Topic, events: Sequence[Event], spread: int) -> None:
        self.events = events
        # Not zip(*events): it makes an iterator per event, and the garbage collector looks at each of them.
        self.values, self.keys, times, headers = (list(map(field, events)) for field in _FIELDS)
        kinds = {*map(type, self.values), *map(type, self.keys)}
        if not all(issubclass(kind, bytes | None) for kind in kinds):
            raise self._bad(
                lambda e: not isinstance(e.value, bytes | None) or not isinstance(e.key, bytes | None),
                "key and value must be bytes or None",
            )
        if topic.settings.compacts and None in self.keys:
            raise self._bad(lambda e: e.key is None, f"no key, and topic {topic.name} is compacted by key")
        self.sizes = list(map(operator.add, _lengths(self.values), _lengths(self.keys)))
        self.headers: list[bytes | None] | None = None  # None, as with the times below: no event has any
        if any(headers):
            self.headers = [dump_headers(pairs) if pairs else None for pairs in headers]
            self.sizes = list(map(operator.add, self.sizes, _lengths(self.headers)))
        if max(self.sizes) > topic.settings.max_record_bytes:
            large = self.sizes.index(max(self.sizes))
            raise self._bad(
                lambda e: e is events[large],
                f"{self.sizes[large]} bytes, the topic takes up to {topic.settings.max_record_bytes}",
            )
        self.millis: list[int | None] | None = None
        try:
            if times.count(None) < len(times):
                self.millis = [None if time is None else to_millis(time) for time in times]
        except (AttributeError, TypeError, ValueError) as error:
            raise BadEvent(f"{error}; nothing was appended", hint="give times as aware datetimes") from error
        self.places = place(self.keys, topic.partitions, spread)
        self.members: list[list[int]] = [[] for _ in range(topic.partitions)]
        for index, partition in enumerate(self.places):
            self.members[partition].append(index)

    def pick(self, partition: int, now: int) -> tuple[Any, Any, Any, Any, Any]:
        """Times, keys, values, headers and sizes of the events of a partition; no time means ``now``."""
        members = self.members[partition]
        pick: Callable[[Sequence[Any]], Any] = operator.itemgetter(*members)
        if len(members) == 1:
            pick = lambda column: (column[members[0]],)  # noqa: E731
        times = [now] * len(members) if self.millis is None else [now if t is None else t for t in pick(self.millis)]
        headers = itertools.repeat(None) if self.headers is None else pick(self.headers)
        return times, pick(self.keys), pick(self.values), headers, pick(self.sizes)

    def _bad(self, which: Callable[[Event], bool], why: str) -> BadEvent:
        index = next(i for i, event in enumerate(self.events) if which(event))
        return BadEvent(f"event {index} of the batch (key {self.events[index].key!r:.60}): {why}; nothing was appended")


def _lengths(column: Sequence[bytes | None]) -> Iterable[int]:
    return map(len, column) if None not in column else (0 if item is None else len(item) for item in column)  # type: ignore[arg-type]


def place(keys: Sequence[bytes | None], partitions: int, spread: int) -> list[int]:
    """The partition of each event: by key, or taking turns from ``spread`` on where there is none."""
    present = [key for key in keys if key is not None]
    placed = partitions_of(present, partitions)
    if len(present) == len(keys):
        return placed
    rest = iter(placed)
    return [(spread + i) % partitions if key is None else next(rest) for i, key in enumerate(keys)]


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
