"""A place in a server's binary log, which is where a capture goes on.

It is the end of a transaction: server, file and byte; beside it the time at which the file was made, which tells it from another file of that
name, and the transaction's GTID, for people. While XA transactions are prepared and not yet decided, ``since`` is where the first of them
begins: reading goes on there, and what ended before the position is passed over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from millstream.capture.contract import Position
from millstream.errors import CaptureError


@dataclass(frozen=True, slots=True)
class Place:
    """A byte of a file; ``made`` is when the file was, in seconds since 1970."""

    file: str
    byte: int
    made: int

    @property
    def order(self) -> tuple[int, int]:
        """What later places are greater by."""
        return int(self.file.rpartition(".")[2]), self.byte


@dataclass(frozen=True, slots=True)
class At:
    """A position, read."""

    server: str
    place: Place
    gtid: str = ""
    since: Place | None = None

    @property
    def start(self) -> Place:
        """Where reading begins."""
        return self.since or self.place

    def moved(self, place: Place, gtid: str, since: Place | None) -> At:
        """Later, on the same server."""
        return replace(self, place=place, gtid=gtid, since=since)

    def said(self) -> Position:
        """As JSON."""
        found: dict[str, Any] = {"server": self.server, **_place(self.place), "gtid": self.gtid}
        return found | ({"since": _place(self.since)} if self.since else {})


def read_position(position: Position) -> At:
    """Read a position; CaptureError for one of another source."""
    try:
        since = position.get("since")
        return At(str(position["server"]), _read(position), str(position["gtid"]), _read(since) if since else None)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CaptureError(
            f"found the position {dict(position)!r}, which is none in the binary log of MariaDB or MySQL",
            hint="it is that of another source: another name for this capture, or a new snapshot",
        ) from error


def _place(place: Place) -> dict[str, Any]:
    return {"file": place.file, "byte": place.byte, "made": place.made}


def _read(found: Position) -> Place:
    return Place(str(found["file"]), int(found["byte"]), int(found["made"]))
