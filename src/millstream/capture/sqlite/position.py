"""A place among the changes of one capture: its id, the number of a change, and when that was made, in milliseconds since 1970.

The time tells a change from another of the same number: a file that was restored from a backup gives the numbers behind it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from millstream.capture.contract import Position
from millstream.errors import CaptureError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = 2440587.5


@dataclass(frozen=True, slots=True)
class At:
    """A position, read."""

    capture: str
    seq: int
    made: int

    def said(self) -> Position:
        """As JSON."""
        return {"capture": self.capture, "seq": self.seq, "made": self.made}

    @property
    def time(self) -> datetime | None:
        """When the change was made, by the clock of the application."""
        return _EPOCH + timedelta(milliseconds=self.made) if self.made else None


def milliseconds(day: float) -> int:
    """The milliseconds since 1970 of a Julian day."""
    return round((day - _EPOCH_DAY) * 86_400_000)


def read_position(position: Position) -> At:
    """Read a position; CaptureError for one of another source."""
    try:
        return At(str(position["capture"]), int(position["seq"]), int(position["made"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CaptureError(
            f"found the position {dict(position)!r}, which is none in a SQLite file",
            hint="it is that of another source: another name for this capture, or a new snapshot",
        ) from error
