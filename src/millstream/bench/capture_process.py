"""One capture up to now, measured in the process that does it, which has nothing else loaded: so its memory is that of the capture.

What is timed is from the first call to the append of the last row or change. ``once`` goes on beyond that, until the database
says that there is nothing more.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from millstream.capture.loop import Settings, capture
from millstream.capture.opening import open_source
from millstream.event import Event
from millstream.log.contract import Ack
from millstream.log.embedded.engine import SqliteLog

_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class Captured:
    """What was read, in which seconds, those of the processor among them, and the most memory that the process ever had, in MiB."""

    count: int
    seconds: float
    cpu: float
    memory: float


class _Timed(SqliteLog):
    """A log that knows when data was last appended to it, by the clock and by the processor."""

    last = (0.0, 0.0)

    def append_all(
        self,
        batches: Mapping[str, Sequence[Event]],
        *,
        producer: str | None = None,
        sequence: int | None = None,
        own: bool = False,
    ) -> dict[str, Ack]:
        acks = super().append_all(batches, producer=producer, sequence=sequence, own=own)
        if any(events for topic, events in batches.items() if not topic.startswith("millstream.")):
            self.last = time.monotonic(), time.process_time()
        return acks


def capture_once(address: str, table: str, log: Path) -> Captured:
    """Capture a table up to what is committed now."""
    source = open_source(address, [table], "bench")
    try:
        with _Timed(log) as opened:
            began, busy = time.monotonic(), time.process_time()
            done = capture(opened, source, Settings("bench", address), once=True)
            at, cpu = opened.last
        return Captured(done.rows + done.changes, at - began, cpu - busy, peak_memory())
    finally:
        source.close()


def peak_memory() -> float:
    """The most memory that this process has had resident, in MiB."""
    if _STATUS.exists():  # what getrusage says on Linux begins with the memory of the process that started this one
        said = _STATUS.read_text().partition("VmHWM:")[2]
        return int(said.split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
