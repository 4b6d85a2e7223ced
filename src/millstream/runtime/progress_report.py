"""Telling how a run goes on, to a callback and to the logger ``millstream``; where that fails, the run goes on all the same.

Starts, ends and batches are told at INFO, waits at WARNING, faults at ERROR; what programs want of them is in ``extra``, under ``facts``. No
handler is added: where the lines go is for whoever runs us to say.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.pipeline import Pipeline
    from millstream.runtime.run import Progress

T = TypeVar("T")
P = ParamSpec("P")
_log = logging.getLogger("millstream")
_run = logging.getLogger("millstream.run")


def guarded(report: Callable[[T], None] | None) -> Callable[[T], None]:
    """The report, with its own errors kept from who calls it; the first one is logged."""
    failed = False

    def told(progress: T) -> None:
        nonlocal failed
        try:
            if report is not None:
                report(progress)
        except Exception as error:
            if not failed:
                failed = True
                _log.warning("a progress report failed, the run goes on: %r", error)

    return told


def logged(report: Callable[[Progress], None]) -> Callable[[Progress], None]:
    """The report, and before it a line in the log: for each batch, and for each wait when it begins and when it is over."""
    waiting, batch = "", None

    def told(progress: Progress) -> None:
        nonlocal waiting, batch
        facts = {"pipeline": progress.pipeline, "batch": progress.batch}
        if progress.waiting and progress.waiting != waiting:
            extra = {"facts": {**facts, "waiting": progress.waiting}}
            _run.warning("%s: waits for %s", progress.pipeline, progress.waiting, extra=extra)
        elif waiting and not progress.waiting:
            _run.info("%s: goes on", progress.pipeline, extra={"facts": facts})
        if progress.batch is not None and progress.batch != batch and not progress.waiting:
            batch = progress.batch
            line = "%s: batch %d in %.1f s, records in this run %d, lag %d"
            so_far = (progress.pipeline, batch, progress.seconds, progress.records, progress.lag)
            names = (
                "seconds",
                "records",
                "rate",
                "lag",
                "admitted",
                "late",
                "duplicate",
                "future",
                "malformed",
                "erased",
            )
            told_too = {name: getattr(progress, name) for name in names}
            _run.info(line, *so_far, extra={"facts": {**facts, **told_too}})
        waiting = progress.waiting
        report(progress)

    return told


@contextmanager
def run_logged(pipeline: str, what: str) -> Iterator[None]:
    """Log that something of a pipeline begins, and how it ends; an error is raised on."""
    facts = {"pipeline": pipeline}
    _run.info("%s: %s begins", pipeline, what, extra={"facts": facts})
    try:
        yield
    except Exception as error:
        kind = type(error).__name__
        why = error.message if isinstance(error, MillstreamError) else str(error)
        _run.error("%s: %s failed: %s: %s", pipeline, what, kind, why, extra={"facts": {**facts, "error": kind}})
        raise
    _run.info("%s: %s has ended", pipeline, what, extra={"facts": facts})


def logs(
    what: str,
) -> Callable[[Callable[Concatenate[Pipeline, P], T]], Callable[Concatenate[Pipeline, P], T]]:
    """Let a function of a pipeline log that it begins, and how it ends."""

    def wrap(function: Callable[Concatenate[Pipeline, P], T]) -> Callable[Concatenate[Pipeline, P], T]:
        @wraps(function)
        def begun(pipeline: Pipeline, /, *args: P.args, **given: P.kwargs) -> T:
            with run_logged(pipeline.name, what):
                return function(pipeline, *args, **given)

        return begun

    return wrap
