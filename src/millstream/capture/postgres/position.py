"""A place in a server's write-ahead log, which is where a capture goes on.

It is the end of a transaction's commit record: system, timeline and LSN. Beside it stand the publication and the captured tables by the numbers
that the catalog gave them: one that was dropped and made again under its name is another one, and its past is not in the slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millstream.capture.contract import Position
from millstream.errors import CaptureError


@dataclass(frozen=True, slots=True)
class At:
    """A position, read; ``tables`` maps names to the numbers of the table and of its entry in the publication."""

    system: str
    timeline: int
    lsn: int
    publication: int = 0
    tables: Mapping[str, str] = field(default_factory=dict)

    def said(self, lsn: int | None = None) -> Position:
        """As JSON; with another LSN if one is given."""
        return {
            "system": self.system,
            "timeline": self.timeline,
            "lsn": lsn_text(self.lsn if lsn is None else lsn),
            "publication": self.publication,
            "tables": self.tables,
        }


def read_position(position: Position) -> At:
    """Read a position; CaptureError for one of another source."""
    try:
        found: Any = position
        tables = {str(name): str(number) for name, number in found["tables"].items()}
        return At(str(found["system"]), int(found["timeline"]), lsn_of(found["lsn"]), int(found["publication"]), tables)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CaptureError(
            f"found the position {dict(position)!r}, which is none in PostgreSQL's log",
            hint="it is that of another source: another name for this capture, or a new snapshot",
        ) from error


def lsn_of(text: str) -> int:
    """An LSN as a number.

    >>> lsn_of("16/B374D848")
    97500059720
    """
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def lsn_text(lsn: int) -> str:
    """An LSN as the server writes it.

    >>> lsn_text(97500059720)
    '16/B374D848'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
