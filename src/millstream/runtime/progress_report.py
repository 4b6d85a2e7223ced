"""Telling how a run goes on can fail; the run goes on all the same."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_log = logging.getLogger("millstream")


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
