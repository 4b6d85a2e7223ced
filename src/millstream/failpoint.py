"""Named places where a test can make the process die, stop or fail; they cost one comparison when unused.

``MILLSTREAM_FAILPOINT=log.append.before_commit:kill@3`` kills the process the third time it passes that place. Several
are separated by commas. Actions: ``kill`` (SIGKILL), ``stop`` (SIGSTOP), ``raise`` (a RuntimeError).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def _parse(text: str) -> dict[str, list[tuple[str, int]]]:
    points: dict[str, list[tuple[str, int]]] = {}
    for part in filter(None, text.split(",")):
        name, _, action = part.strip().partition(":")
        what, _, count = action.partition("@")
        if what not in ("kill", "stop", "raise"):
            raise ValueError(f"MILLSTREAM_FAILPOINT: found {part!r}, expected NAME:kill|stop|raise[@COUNT]")
        points.setdefault(name, []).append((what, int(count or 1)))
    return points


_points = _parse(os.environ.get("MILLSTREAM_FAILPOINT", ""))
_passed: dict[str, int] = {}


def failpoint(name: str) -> None:
    """Pass the place called ``name``."""
    if not _points or name not in _points:
        return
    _passed[name] = _passed.get(name, 0) + 1
    for what, count in _points[name]:
        if _passed[name] == count:
            if what == "raise":
                raise RuntimeError(f"failpoint {name}")
            if what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            # To this very thread: another might get to it later, and this one would go on until then.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


@contextmanager
def armed(name: str) -> Iterator[None]:
    """Let the place called ``name`` raise the next time this process passes it, as long as this lasts."""
    before = _points.get(name)
    _points[name] = [("raise", _passed.get(name, 0) + 1)]
    try:
        yield
    finally:
        _points.pop(name)
        if before is not None:
            _points[name] = before
