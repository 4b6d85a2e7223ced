"""Messages where librdkafka has them, read by the thousand with numpy: no object is made for each.

The client's wheel has the library in it, and this uses its C interface beside the client: functions, and the struct
``rd_kafka_message_t``, which are those of all its versions 2. One thing is not of that interface, where a message keeps its time, for
which there is only a function: so the first messages of a process are compared with what functions say of them, and if they differ,
:class:`~millstream.log.kafka.messages.Unexpected` is raised before any is given.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from ctypes import c_int, c_int64, c_void_p

import numpy as np
import numpy.typing as npt

from millstream.errors import ConfigError
from millstream.log.kafka.library import destroyer, headers_of, joined_bytes, library, memory, texts
from millstream.log.kafka.messages import Given, Numbers, Odd, Unexpected

MAJOR = 2
"""The versions of librdkafka that this is written for."""
# What a message has, in words of eight bytes: the public struct, and behind it what is the library's own.
_ERROR, _TOPIC, _PARTITION, _VALUE, _LENGTH, _KEY, _KEY_LENGTH, _OFFSET, _TIME = 0, 1, 2, 3, 4, 5, 6, 7, 12
_CONSUMER, _NO_CLOSE, _TEXT = 1, 8, 512


def check_library() -> None:
    """Raise Unexpected, or an error of the system's, unless messages can be read here."""
    if sys.byteorder != "little" or ctypes.sizeof(c_void_p) != 8:
        raise Unexpected("it is written for machines of 64 bits, the low byte first")
    if not hasattr(os, "memfd_create"):
        raise Unexpected("files in memory are Linux's")
    if (found := library().rd_kafka_version() >> 24) != MAJOR:
        raise Unexpected(f"the library has version {found}")


def fits(settings: Mapping[str, str]) -> bool:
    """Whether a client with these settings needs nothing of Python."""
    return not any(value.upper() == "OAUTHBEARER" for value in settings.values())


class Pointers:
    """Messages as their addresses."""

    def __init__(self, at: Numbers) -> None:
        self._at, self._words = at, (at >> 3) - 1

    @property
    def offsets(self) -> Numbers:
        """As they are in memory."""
        return self._field(_OFFSET)

    @property
    def appended(self) -> Numbers:
        """As they are in memory."""
        return self._field(_TIME)

    @property
    def lengths(self) -> Numbers:
        """Of the values."""
        return self._field(_LENGTH)

    def joined(self) -> bytes | None:
        """In one piece, gathered by the system."""
        found = self._field(_VALUE)
        return joined_bytes(found, self.lengths) if found.all() else None

    def values(self) -> list[bytes | None]:
        """Copied one by one."""
        return texts(self._field(_VALUE), self.lengths)

    def keys(self, places: Numbers) -> list[bytes | None]:
        """Of some."""
        return texts(self._field(_KEY)[places], self._field(_KEY_LENGTH)[places])

    def headers(self) -> list[Given]:
        """Of each, by a function."""
        return [headers_of(message) for message in self._at.tolist()]

    def __len__(self) -> int:
        return len(self._at)

    def __getitem__(self, wanted: slice | npt.NDArray[np.bool_]) -> Pointers:
        return Pointers(self._at[wanted])

    def then(self, others: Sequence[Pointers]) -> Pointers:
        """These, and others."""
        return Pointers(np.concatenate([self._at, *(each._at for each in others)])) if others else self

    def let_go(self) -> None:
        """Give them back to the library."""
        deque(map(destroyer(), self._at.tolist()), maxlen=0)
        self._at = self._words = self._at[:0]

    def split(self) -> tuple[Pointers, list[Odd]]:
        """The records among them; the others are given back."""
        errors = self._field(_ERROR).astype(np.int32)
        if not errors.any():
            return self, []
        others = self[errors != 0]
        name = library().rd_kafka_err2name
        found = zip(errors[errors != 0].tolist(), others.offsets.tolist(), strict=True)
        odd = [Odd(name(error).decode(), offset) for error, offset in found]
        others.let_go()
        return self[errors == 0], odd

    def check(self, topic: str, partition: int, start: int, end: int) -> None:
        """Raise Unexpected unless functions say of these messages what is read of them; ``end`` is that of the partition."""
        loaded = library()
        offsets, partitions = self.offsets, self._field(_PARTITION).astype(np.int32)
        in_order = start <= offsets[0] and offsets[-1] < end and (np.diff(offsets) > 0).all()
        if not in_order or (partitions != partition).any():
            raise Unexpected("messages have other partitions or offsets")
        if loaded.rd_kafka_topic_name(int(self._field(_TOPIC)[0])).decode() != topic:
            raise Unexpected("messages have another topic")
        kind = c_int()
        stamps = [loaded.rd_kafka_message_timestamp(each, ctypes.byref(kind)) for each in self._at.tolist()]
        if stamps != self.appended.tolist():
            raise Unexpected("messages have their times elsewhere")

    def _field(self, word: int) -> Numbers:
        found: Numbers = memory()[self._words + word]
        return found


class BulkTaker:
    """A consumer of the library's own."""

    checked = False
    """Whether messages were compared in this process."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        loaded, said = library(), ctypes.create_string_buffer(_TEXT)
        conf = loaded.rd_kafka_conf_new()
        loaded.rd_kafka_conf_set_log_cb(conf, None)
        for name, value in settings.items():
            if loaded.rd_kafka_conf_set(conf, name.encode(), value.encode(), said, _TEXT):
                raise ConfigError(f"Kafka's client: {said.value.decode()}")
        self._client = loaded.rd_kafka_new(_CONSUMER, conf, said, _TEXT)
        if not self._client:
            raise ConfigError(f"Kafka's client: {said.value.decode()}")
        loaded.rd_kafka_poll_set_consumer(self._client)
        self._queue = loaded.rd_kafka_queue_get_consumer(self._client)
        self._place = "", 0, 0
        self.close = weakref.finalize(self, _close, self._client, self._queue, os.getpid())

    def assign(self, topic: str, partition: int, offset: int) -> None:
        """Read from there."""
        loaded, name = library(), topic.encode()
        places = loaded.rd_kafka_topic_partition_list_new(1)
        loaded.rd_kafka_topic_partition_list_add(places, name, partition)
        loaded.rd_kafka_topic_partition_list_set_offset(places, name, partition, offset)
        loaded.rd_kafka_assign(self._client, places)
        loaded.rd_kafka_topic_partition_list_destroy(places)
        self._place = topic, partition, offset

    def unassign(self) -> None:
        """Read nothing."""
        library().rd_kafka_assign(self._client, None)

    def take(self, most: int, seconds: float) -> tuple[Pointers, list[Odd]]:
        """The first that comes, and what has come with it."""
        consume, at = library().rd_kafka_consume_batch_queue, np.zeros(most, np.int64)
        count = max(0, consume(self._queue, int(seconds * 1000), at.ctypes.data, 1))
        if count and most > 1:
            count += max(0, consume(self._queue, 0, at.ctypes.data + at.itemsize, most - 1))
        found, odd = Pointers(at[:count]).split()
        if len(found) and not BulkTaker.checked:
            found.check(*self._place, self._end())
            BulkTaker.checked = True
        return found, odd

    def _end(self) -> int:
        """The end of the partition, as the last answer to this consumer said."""
        topic, partition, _ = self._place
        low, high = c_int64(), c_int64()
        ends = ctypes.byref(low), ctypes.byref(high)
        library().rd_kafka_get_watermark_offsets(self._client, topic.encode(), partition, *ends)
        return high.value


def _close(client: int, queue: int, process: int) -> None:
    if os.getpid() == process:  # a fork has none of its threads
        library().rd_kafka_queue_destroy(queue)
        library().rd_kafka_destroy_flags(client, _NO_CLOSE)
