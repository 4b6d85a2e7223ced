"""The binary log as the server sends it to a replica: events in order, each with where it ends.

Invariant: an event is whole, its checksum holds, and the file that it is from was made when the place to begin at says. A connection that
breaks is an error here; where to begin again is for the caller to know.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pymysql.constants import COMMAND

from millstream.capture.mysql.position import Place
from millstream.capture.mysql.server import SILENCE, Server, gone
from millstream.errors import CaptureError

FORMAT, ROTATE, STOP, HEARTBEATS = 15, 4, 3, (27, 41)
HEARTBEAT = 0.5
"""Seconds after which a server that has nothing to say says so."""
_HEADER = struct.Struct("<IBIIIH")
_ARTIFICIAL = 0x20
_CAPABILITY = 4
"""What MariaDB must know of us: that we understand its GTIDs."""
_WRAP = 1 << 32


@dataclass(frozen=True, slots=True)
class Event:
    """An event: its type, when it was written and by which server, where it ends, and what is in it."""

    kind: int
    time: int
    server: int
    end: Place
    body: bytes


class Stream:
    """Events from a place on, for ever; heartbeats where there are none."""

    def __init__(self, server: Server, replica: int, start: Place) -> None:
        self._server, self._start = server, start
        self._connection = server.connect(patience=SILENCE)
        self._checksum = False
        with server.words():
            try:
                self._ask(replica, start.file, start.byte)
            except BaseException:
                self.close()
                raise
        self._place = start
        self._checked = False

    def close(self) -> None:
        """Let go of the connection, whatever it is at."""
        self._connection._force_close()

    def begin(self) -> Place:
        """The place that it begins at, with the time at which the file was made."""
        for event in self.events():
            if event.kind == FORMAT:
                return self._place
        raise CaptureError(f"{self._server.address}: the binary log ended before it began")

    def _ask(self, replica: int, file: str, byte: int) -> None:
        db = self._connection
        with db.cursor() as cursor:
            cursor.execute("SELECT @@global.binlog_checksum")
            self._checksum = cursor.fetchall() == (("CRC32",),)
            cursor.execute("SET @master_binlog_checksum = @@global.binlog_checksum")
            cursor.execute("SET @source_binlog_checksum = @@global.binlog_checksum")
            cursor.execute(f"SET @master_heartbeat_period = {int(HEARTBEAT * 1e9)}")
            cursor.execute(f"SET @source_heartbeat_period = {int(HEARTBEAT * 1e9)}")
            cursor.execute(f"SET @mariadb_slave_capability = {_CAPABILITY}")
        if byte >= _WRAP:
            raise CaptureError(
                f"{self._server.address}: {file} goes beyond 4 GB, where reading cannot begin",
                hint="a new snapshot; and smaller transactions",
            )
        db._execute_command(COMMAND.COM_BINLOG_DUMP, struct.pack("<IHI", byte, 0, replica) + file.encode())

    def events(self) -> Iterator[Event]:
        """Every event from the place on, those that say where we are included."""
        read: Any = self._connection._read_packet
        unpack = _HEADER.unpack_from
        while True:
            with self._server.words():
                data = read()._data
            if data[0] != 0:
                raise gone(
                    f"{self._server.address}: the server has ended the binary log at {self._place.file}:{self._place.byte}"
                )
            time, kind, by, size, end, flags = unpack(data, 1)
            if size != len(data) - 1:
                raise CaptureError(f"{self._server.address}: found an event of {len(data) - 1} bytes, expected {size}")
            if kind == FORMAT:
                self._checksum = data[-5] == 1
            if self._checksum and zlib.crc32(data[1:-4]) != int.from_bytes(data[-4:], "little"):
                raise CaptureError(
                    f"{self._server.address}: an event after {self._place.file}:{self._place.byte} has a wrong checksum",
                    hint="the binary log is damaged, there or on the way; take a new snapshot",
                )
            body = data[20 : -4 if self._checksum else None]
            if kind == ROTATE:
                self._rotate(body, artificial=time == 0 or bool(flags & _ARTIFICIAL))
            elif kind == FORMAT:
                self._check(time, end)
            elif kind not in HEARTBEATS and not flags & _ARTIFICIAL and end:
                if end < self._place.byte:
                    raise CaptureError(
                        f"{self._server.address}: {self._place.file} goes beyond 4 GB, where places have no number",
                        hint="a new snapshot; and smaller transactions, a file of the binary log holds at least one",
                    )
                self._place = replace(self._place, byte=end)
            yield Event(kind, time, by, self._place, body)

    def _rotate(self, body: bytes, artificial: bool) -> None:
        """The next file, or the name of the one that is read. Its first event says when it was made."""
        file = body[8:].decode()
        if not artificial or file != self._place.file:
            self._place = Place(
                file, int.from_bytes(body[:8], "little"), self._place.made if file == self._place.file else 0
            )

    def _check(self, made: int, end: int) -> None:
        if not self._checked and self._start.made not in (0, made):
            raise gone(
                f"{self._server.address}: {self._place.file} is another file than the one read before: it was made at {made},"
                f" expected {self._start.made}; the server was restored from a backup, or is another one"
            )
        self._checked = True
        self._place = replace(self._place, made=made, byte=max(self._place.byte, end if end else 4))
