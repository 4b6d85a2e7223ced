"""How a run goes: its progress, as people see it, and what the threads of the run tell each other.

Batches are delivered in a thread of Spark's, leases are kept in others, and whoever started the run waits for it: they meet here and
nowhere else. The first failure is the one that counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from millstream.errors import TakenOver
from millstream.pipeline import Pipeline
from millstream.runtime.phases.options import Options
from millstream.runtime.sink_dispatch import Patience

PATIENCE = 60.0
"""Seconds that a batch gets to end after someone asked to stop, and that a run with an end waits for a sink, or for the log."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How a run is doing. ``records`` and what follows count since its start; ``lag`` is records not yet in the views.

    ``seconds`` is what the last batch took, ``write_seconds`` the part of it in the sinks. ``waiting`` says for which sink,
    store or disk, or that for the log, the run waits, and why.

    :param pipeline: its name
    :param batch: the number of the last batch
    :param records: how many were read
    :param admitted: how many of them count
    :param late: how many came too late
    :param duplicate: how many were repeats
    :param future: how many were ahead of their append by too much
    :param malformed: how many did not decode
    :param erased: how many were of subjects that have been forgotten
    :param rate: records a second in the last batch
    :param lag: records that are not yet in the views
    :param watermark: the time up to which events are complete
    :param state_rows: rows of state
    :param state_bytes: bytes of state
    :param seconds: how long the last batch took
    :param write_seconds: the part of it in the stores
    :param waiting: what the run waits for; empty if for nothing

    >>> done = Progress("shop", batch=3, records=10, admitted=9, late=1)
    >>> done.admitted, done.late, done.waiting
    (9, 1, '')
    """

    pipeline: str
    batch: int | None = None
    records: int = 0
    admitted: int = 0
    late: int = 0
    duplicate: int = 0
    future: int = 0
    malformed: int = 0
    erased: int = 0
    rate: float = 0.0
    lag: int = 0
    watermark: datetime | None = None
    state_rows: int = 0
    state_bytes: int = 0
    seconds: float = 0.0
    write_seconds: float = 0.0
    waiting: str = ""


class Course:
    """The course of one run of a pipeline. ``stop`` is set by a caller that wants it to end, and by the run itself where it cannot go on."""

    def __init__(
        self, pipeline: Pipeline, options: Options, report: Callable[[Progress], None], stop: threading.Event
    ) -> None:
        self.pipeline, self.options, self.report, self.stop = pipeline, options, report, stop
        self.progress = Progress(pipeline.name)
        self.failure: BaseException | None = None
        self.reached: dict[str, dict[int, int]] = {}
        """The offsets that the views have reached."""
        self.delivered = threading.Event()
        self.ending = False
        """Whether the query is being stopped, so that what it was at is cut off."""
        self.begun = False
        """Whether a query of this run has started."""
        self.longest = PATIENCE
        self.patience = Patience(stop, self.wait, self.longest if options.once else None)

    def wait(self, why: str) -> None:
        """Say what is waited for; nothing, if it is over."""
        self.progress = replace(self.progress, waiting=why)
        self.report(self.progress)

    def begin_again(self) -> None:
        """Make ready for another query: what was forgotten for a rebuild is forgotten."""
        self.failure, self.ending = None, False
        self.delivered.clear()
        self.options = replace(self.options, rebuild=False)

    def advance(self, progress: Progress, reached: dict[str, dict[int, int]]) -> None:
        """Say that a batch is in the views."""
        self.progress, self.reached = progress, reached
        self.delivered.set()
        self.report(progress)

    def fail(self, error: BaseException) -> None:
        """Keep what went wrong, unless something did before."""
        self.failure = self.failure or error

    def lose(self, error: TakenOver) -> None:
        """End the run, as its pipeline is someone else's now."""
        self.fail(error)
        self.stop.set()
