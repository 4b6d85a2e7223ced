"""Messages of one partition as the client gives them, an object each, and the contract of those who take them.

:mod:`millstream.log.kafka.bulk` takes them without an object for each. Both give the same, and a test reads every topic with both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.log.archive import columns_to_arrow
from millstream.log.kafka.client import ck, silent
from millstream.log.kafka.read import split_headers

if TYPE_CHECKING:
    from millstream.event import Headers

_message = ck.Message
Numbers = npt.NDArray[np.int64]
Given = Sequence[tuple[str, bytes | None]] | None
"""The headers of a message as clients give them."""


class Messages(Protocol):
    """Records of one partition in the order of their offsets; times in milliseconds. They are there until they are let go of."""

    @property
    def offsets(self) -> Numbers:
        """Where each is."""

    @property
    def appended(self) -> Numbers:
        """When each was appended, by Kafka's timestamp."""

    @property
    def lengths(self) -> Numbers:
        """The bytes of each value; 0 also where there is none."""

    def joined(self) -> bytes | None:
        """All values in one piece, with a newline between any two; None if a record has none."""

    def values(self) -> list[bytes | None]:
        """The values, one by one."""

    def keys(self, places: Numbers) -> list[bytes | None]:
        """The keys of some."""

    def headers(self) -> list[Given]:
        """The headers of each."""

    def __len__(self) -> int: ...

    def __getitem__(self, wanted: slice | npt.NDArray[np.bool_]) -> Messages: ...

    def then(self, others: Sequence[Any]) -> Messages:
        """These and others of the same kind."""

    def let_go(self) -> None:
        """Give back their memory, where it is the library's."""


class Odd(NamedTuple):
    """What came in place of a record: an error of Kafka's by its name, and the offset that goes with it."""

    error: str
    offset: int


class Unexpected(Exception):
    """The client's library is not as one who takes messages expects it; :class:`ObjectTaker` expects nothing."""


class Taker(Protocol):
    """A consumer of one partition at a time."""

    def __init__(self, settings: Mapping[str, str]) -> None: ...

    def assign(self, topic: str, partition: int, offset: int) -> None:
        """Read from an offset on, and drop what was read ahead of something else."""

    def unassign(self) -> None:
        """Read nothing."""

    def take(self, most: int, seconds: float) -> tuple[Messages, list[Odd]]:
        """What has come; waits for the first so long. Raises Unexpected at the first records of a process, or never."""


class Objects:
    """Messages as objects of the client."""

    def __init__(self, found: list[Any]) -> None:
        self._found = found

    @cached_property
    def offsets(self) -> Numbers:
        """By the first and the last, where there is no gap between them."""
        count = len(self._found)
        if count and self._found[-1].offset() - (first := self._found[0].offset()) + 1 == count:
            return np.arange(first, first + count)
        return _numbers(list(map(_message.offset, self._found)))

    @cached_property
    def appended(self) -> Numbers:
        """By Kafka's timestamp."""
        return _numbers([stamp for _, stamp in map(_message.timestamp, self._found)])

    @cached_property
    def lengths(self) -> Numbers:
        """Of the values."""
        return _numbers(list(map(len, self._found)))

    def joined(self) -> bytes | None:
        """In one piece."""
        found = self.values()
        return None if None in found else b"\n".join(found)  # type: ignore[arg-type]

    def values(self) -> list[bytes | None]:
        """As they are."""
        return list(map(_message.value, self._found))

    def keys(self, places: Numbers) -> list[bytes | None]:
        """Of some."""
        return [self._found[place].key() for place in places.tolist()]

    def headers(self) -> list[Given]:
        """Of each."""
        return list(map(_message.headers, self._found))

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, wanted: slice | npt.NDArray[np.bool_]) -> Objects:
        if isinstance(wanted, slice):
            return Objects(self._found[wanted])
        return Objects([self._found[place] for place in np.flatnonzero(wanted).tolist()])

    def then(self, others: Sequence[Objects]) -> Objects:
        """These, and others."""
        return Objects(list(chain(self._found, *(each._found for each in others)))) if others else self

    def let_go(self) -> None:
        """Python does."""


class ObjectTaker:
    """The client's consumer."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.consumer = ck.Consumer(dict(settings), logger=silent)

    def assign(self, topic: str, partition: int, offset: int) -> None:
        """Read from there."""
        self.consumer.assign([ck.TopicPartition(topic, partition, offset)])

    def unassign(self) -> None:
        """Read nothing."""
        self.consumer.unassign()

    def take(self, most: int, seconds: float) -> tuple[Objects, list[Odd]]:
        """The first that comes, and what has come with it."""
        first = self.consumer.poll(seconds)
        found = [] if first is None else [first, *self.consumer.consume(most - 1, 0)] if most > 1 else [first]
        errors = list(map(_message.error, found))
        if not any(errors):
            return Objects(found), []
        odd = [Odd(error.name(), message.offset()) for message, error in zip(found, errors, strict=True) if error]
        return Objects([message for message, error in zip(found, errors, strict=True) if not error]), odd


def to_batch(topic: str, partition: int, messages: Messages) -> pa.RecordBatch:
    """Messages in the archive's columns."""
    appended = messages.appended.tolist()
    times = appended
    others: Sequence[Headers | None] = [None] * len(appended)
    if any(found := messages.headers()):
        pairs = [split_headers(each, stamp) for each, stamp in zip(found, appended, strict=True)]
        times, others = [stamp for stamp, _ in pairs], [rest for _, rest in pairs]
    keys, values = messages.keys(np.arange(len(messages))), messages.values()
    return columns_to_arrow(topic, partition, messages.offsets.tolist(), times, appended, keys, values, others)


def _numbers(found: list[int]) -> Numbers:
    return np.array(found, np.int64)
