"""How to run: the options of a run, checked, and the default limits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from millstream.errors import ConfigError

RATE_LIMIT = 4_000_000
"""The default limit for the records of a batch: what they change passes through the driver's memory."""
BYTE_LIMIT = 1 << 30
"""The default limit for the bytes of a batch of the embedded log, approximately: records of up to 268 bytes are bounded by their number alone."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to run. ``once`` stops when everything that was there at the start is done; ``close`` then ends all time.

    ``rate_limit`` bounds the records of a batch, ``byte_limit`` their bytes; an append is never cut in two. ``rebuild`` forgets
    views and checkpoint first, and is refused where the log has lost what they were made from, unless ``forget_history``; it adds
    all rows of views without a key to their sinks again only with ``send_again``. ``takeover`` takes the pipeline from whoever
    runs it. ``beside`` builds a version beside the one that is stored, for
    :mod:`millstream.runtime.rebuild`: under names of its own, and nothing is sent to sinks. Without ``heartbeats``
    windows close only by what comes.
    """

    once: bool = False
    close: bool = False
    interval: timedelta = timedelta(0)
    rate_limit: int = RATE_LIMIT
    takeover: bool = False
    rebuild: bool = False
    beside: bool = False
    heartbeats: bool = True
    byte_limit: int = BYTE_LIMIT
    send_again: bool = False
    forget_history: bool = False

    def __post_init__(self) -> None:
        for name in ("rate_limit", "byte_limit"):
            given: int = getattr(self, name)
            if given < 1:
                raise ConfigError(f"{name}: found {given}, expected at least 1")
