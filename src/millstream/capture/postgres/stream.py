"""The stream of a replication slot: messages in order, and word to the server of what it may forget.

Invariant: the server hears of us several times in its ``wal_sender_timeout`` whatever the reader is busy with, so that a long append breaks no
connection; and it is told of nothing that was not acknowledged. A connection that breaks is an error here.
"""

from __future__ import annotations

import select
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import pq

from millstream.capture.postgres.pgoutput import EPOCH
from millstream.capture.postgres.position import lsn_text
from millstream.capture.postgres.server import Server, literal, quoted
from millstream.errors import CaptureUnavailable

_BATCH = 1000
"""Messages that are given at once."""
_STATUS = struct.Struct(">cQQQqB")
_SILENCE = 60.0
"""Seconds without an answer to our questions after which a connection is given up."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What the server has said: messages of the plugin; then how far it has looked for more, and whether it wants an answer."""

    messages: Sequence[bytes]
    end: int
    asked: bool


NOTHING: Final = Heard((), 0, False)


class Stream:
    """Messages from a slot, from an LSN on; ``beat`` says how often the server hears of us, in seconds.

    With ``streaming`` large transactions come while they are open; else the server keeps them until they commit.
    """

    def __init__(
        self, server: Server, slot: str, start: int, beat: float, *, streaming: bool = False, publication: str = ""
    ) -> None:
        self._server, self._beat = server, beat
        self._acknowledged, self._received = 0, start  # where reading begins need not be acknowledged; 0 says nothing
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._db = server.connect(replication=True)
        self._poll = select.poll()
        self._poll.register(self._db.pgconn.socket, select.POLLIN)
        try:
            with server.words():
                self._begin(
                    f"START_REPLICATION SLOT {quoted(slot)} LOGICAL {lsn_text(start)}"
                    f" (proto_version '2', streaming '{'on' if streaming else 'off'}',"
                    f" publication_names {literal(quoted(publication or slot))})"
                )
        except BaseException:
            self._db.close()
            raise
        self._answered = time.monotonic()
        self._thread = threading.Thread(target=self._beats, name="millstream-capture", daemon=True)
        self._thread.start()

    def read(self, seconds: float) -> Heard:
        """What has come, or comes within so many seconds."""
        heard = self._taken()
        if heard is NOTHING:
            self._poll.poll(int(seconds * 1000))
            heard = self._taken()
        if heard is not NOTHING:
            self._answered = time.monotonic()
        elif time.monotonic() - self._answered > _SILENCE:
            raise CaptureUnavailable(
                f"{self._server.address}: no answer for {_SILENCE:.0f} s", hint="check the network, then start again"
            )
        return heard

    def acknowledge(self, lsn: int, *, now: bool = False) -> None:
        """Let the server forget what ended up to there; it is told with the next beat, or ``now``."""
        self._acknowledged = max(self._acknowledged, lsn)
        if now:
            self.say()

    def say(self, *, ask: bool = False) -> None:
        """Tell the server how far we are; ``ask`` wants to know how far it is."""
        with self._lock, self._server.words():
            self._said(ask)

    def close(self) -> None:
        """End it, after a last word about what was acknowledged."""
        self._ended.set()
        with self._lock:
            with suppress(psycopg.Error):
                self._said(False)
            self._db.close()
        if self._thread is not threading.current_thread():
            self._thread.join(10)

    def _begin(self, command: str) -> None:
        self._db.pgconn.send_query(command.encode())
        result = self._result()
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            if result is None:
                raise psycopg.OperationalError("the connection was closed")
            raise psycopg.errors.error_from_result(result)

    def _result(self) -> pq.abc.PGresult | None:
        """What a command came to. libpq would wait for it with Python's lock held, so that no thread of ours could run."""
        connection, deadline = self._db.pgconn, time.monotonic() + _SILENCE
        connection.flush()
        while connection.is_busy():
            if not self._poll.poll(1000) and time.monotonic() > deadline:
                raise psycopg.OperationalError(f"no answer for {_SILENCE:.0f} s")
            connection.consume_input()
        return connection.get_result()

    def _taken(self) -> Heard:
        """What is here already."""
        connection, end, asked = self._db.pgconn, 0, False
        messages: list[bytes] = []
        with self._lock, self._server.words():
            connection.consume_input()
            while len(messages) < _BATCH:
                size, data = connection.get_copy_data(1)
                if size <= 0:
                    break
                if data[0] == 119:  # w: 24 bytes say where it is from and when it was sent
                    messages.append(bytes(data[25:]))
                else:  # k
                    end = int.from_bytes(data[1:9], "big")
                    asked = bool(data[17])
                    break  # what comes behind it is later
            if size < 0:
                self._raise()
        if not messages and not end:
            return NOTHING
        self._received = max(self._received, end)
        return Heard(messages, end, asked)

    def _raise(self) -> None:
        """The server has ended the stream: by an error, or because it stops."""
        result = self._result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result)
        raise psycopg.errors.AdminShutdown("the server has ended the stream")

    def _said(self, ask: bool) -> None:
        now = int(time.time() * 1e6) - EPOCH
        done = self._acknowledged
        connection = self._db.pgconn
        connection.put_copy_data(_STATUS.pack(b"r", max(self._received, done), done, done, now, ask))
        connection.flush()

    def _beats(self) -> None:
        while not self._ended.wait(self._beat):
            try:
                with self._lock:
                    if self._ended.is_set():
                        return
                    self._said(False)
            except psycopg.Error:  # the reader notices too, and says so
                return
