"""librdkafka's C interface, in the library that the client has loaded, and this process's memory as numbers."""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from functools import cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from millstream.log.kafka.client import ck
from millstream.log.kafka.messages import Given, Numbers

_VECTORS = 1024  # that Linux takes at once
_KEPT = 8 << 20  # bytes

_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "rd_kafka_version": (c_int,),
    "rd_kafka_conf_new": (c_void_p,),
    "rd_kafka_conf_set": (c_int, c_void_p, c_char_p, c_char_p, c_char_p, c_size_t),
    "rd_kafka_conf_set_log_cb": (None, c_void_p, c_void_p),
    "rd_kafka_new": (c_void_p, c_int, c_void_p, c_char_p, c_size_t),
    "rd_kafka_destroy_flags": (None, c_void_p, c_int),
    "rd_kafka_poll_set_consumer": (c_int, c_void_p),
    "rd_kafka_queue_get_consumer": (c_void_p, c_void_p),
    "rd_kafka_queue_destroy": (None, c_void_p),
    "rd_kafka_topic_partition_list_new": (c_void_p, c_int),
    "rd_kafka_topic_partition_list_add": (c_void_p, c_void_p, c_char_p, c_int32),
    "rd_kafka_topic_partition_list_set_offset": (c_int, c_void_p, c_char_p, c_int32, c_int64),
    "rd_kafka_topic_partition_list_destroy": (None, c_void_p),
    "rd_kafka_assign": (c_int, c_void_p, c_void_p),
    "rd_kafka_get_watermark_offsets": (c_int, c_void_p, c_char_p, c_int32, c_void_p, c_void_p),
    "rd_kafka_consume_batch_queue": (c_ssize_t, c_void_p, c_int, c_void_p, c_size_t),
    "rd_kafka_err2name": (c_char_p, c_int),
    "rd_kafka_topic_name": (c_char_p, c_void_p),
    "rd_kafka_message_timestamp": (c_int64, c_void_p, c_void_p),
    "rd_kafka_message_headers": (c_int, c_void_p, c_void_p),
    "rd_kafka_header_get_all": (c_int, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p),
    "rd_kafka_message_destroy": (None, c_void_p),
}


@cache
def library() -> ctypes.CDLL:
    """The library that the client has loaded, with the functions that are used."""
    loaded = ctypes.CDLL(ck.cimpl.__file__)
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


@cache
def destroyer() -> Any:
    """What gives a message back; it is quick, so Python's lock is kept."""
    function = ctypes.PyDLL(ck.cimpl.__file__).rd_kafka_message_destroy
    function.restype, function.argtypes = None, [c_void_p]
    return function


@cache
def memory() -> npt.NDArray[np.int64]:
    """The memory of this process as words: the one at address 8 first, as numpy takes 0 for nothing."""

    class Everything:
        __array_interface__: ClassVar = {"shape": (1 << 58,), "typestr": "<i8", "data": (8, True), "version": 3}

    return np.asarray(Everything())


def texts(at: Numbers, lengths: Numbers) -> list[bytes | None]:
    """Bytes at some places, each by itself; None for no place."""
    found = zip(at.tolist(), lengths.tolist(), strict=True)
    return [ctypes.string_at(address, length) if address else None for address, length in found]


def joined_bytes(at: Numbers, lengths: Numbers) -> bytes:
    """Bytes from many places with a newline between any two: the system gathers them in a file that is in memory only."""
    newline = ctypes.create_string_buffer(b"\n", 1)
    vectors = np.empty((len(at), 4), np.int64)
    vectors[:, 0], vectors[:, 1] = at, lengths
    vectors[:, 2], vectors[:, 3] = ctypes.addressof(newline), 1
    size = int(lengths.sum()) + len(at) - 1
    file, write, flat, written = _scratch.begin(), _writev(), vectors.reshape(-1, 2)[:-1], 0
    for first in range(0, len(flat), _VECTORS):
        piece = flat[first : first + _VECTORS]
        written += write(file, piece.ctypes.data, len(piece))
    if written != size or len(found := os.pread(file, size, 0)) != size:
        raise OSError(f"{size} bytes do not go through a file in memory")
    if size > _KEPT:
        os.ftruncate(file, 0)
    return found


class _Scratch(threading.local):
    """A file in memory for each thread, which is written again and again: new pages take as long as what is done with them."""

    process = file = -1

    def begin(self) -> int:
        """The file, at its beginning."""
        if self.process != os.getpid():  # a fork has that of its parent
            self.process, self.file = os.getpid(), os.memfd_create("millstream")
        os.lseek(self.file, 0, os.SEEK_SET)
        return self.file


_scratch = _Scratch()


@cache
def _writev() -> Any:
    function = ctypes.CDLL(None, use_errno=True).writev
    function.restype, function.argtypes = c_ssize_t, [c_int, c_void_p, c_int]
    return function


def headers_of(message: int) -> Given:
    """The headers of a message; None if it has none."""
    all_of_them = c_void_p()
    if library().rd_kafka_message_headers(message, ctypes.byref(all_of_them)):
        return None
    name, value, size, found = c_char_p(), c_void_p(), c_size_t(), list[tuple[str, bytes | None]]()
    pointers = [ctypes.byref(each) for each in (name, value, size)]
    while not library().rd_kafka_header_get_all(all_of_them, len(found), *pointers):
        text = (name.value or b"").decode()
        found.append((text, ctypes.string_at(value.value, size.value) if value.value else None))
    return found
