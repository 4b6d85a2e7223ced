"""What an engine can do that another cannot, asked of an address or of an open log.

Invariant: who does something on one engine only asks for what that needs, not for the engine's name; and nothing is opened to know it.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.address import parse_log


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do. A new one says here what it can."""

    local_file: bool
    """The log is a file of this machine: it answers at once, and is not away for a while."""
    maintains: bool
    """Retention and compaction happen when they are asked for; otherwise brokers do that in their own time."""
    sequences_expire: bool
    """The number of a producer that appends nothing for long is forgotten."""
    batch: int
    """So many events of one append, and the append itself costs little beside them."""
    stamps: bool
    """The log itself says of every record when it was appended; otherwise a topic's setting may leave that to its producers."""


EMBEDDED = Capabilities(local_file=True, maintains=True, sequences_expire=False, batch=1_000, stamps=True)
KAFKA = Capabilities(local_file=False, maintains=False, sequences_expire=True, batch=50_000, stamps=False)


def capabilities_of(address: str) -> Capabilities:
    """What the engine of the log at an address can do; ConfigError if it is no address of a log."""
    return EMBEDDED if parse_log(address).embedded else KAFKA
