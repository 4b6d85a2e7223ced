"""Calls of several threads done together: whoever finds nobody at work works for all that wait.

A commit costs the disk the same for one command and for a thousand, so those that come while one is under way share the next.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from millstream.errors import LogUnavailable


class Asked(Protocol):
    """Something asked for; it is over when it has an answer or an error."""

    error: BaseException | None

    @property
    def over(self) -> bool:
        """Whether there is an answer or an error."""
        ...


A = TypeVar("A", bound=Asked)


class Gathered(Generic[A]):
    """What is asked for by several threads; ``work`` makes each of those be over that ``take`` takes from the left of what waits."""

    def __init__(self, work: Callable[[list[A]], None], take: Callable[[deque[A]], list[A]]) -> None:
        self._work, self._take = work, take
        self._changed = threading.Condition()
        self._waiting: deque[A] = deque()
        self._working = False

    def ask(self, mine: Sequence[A]) -> None:
        """Wait until all of mine are over; they are begun in their order."""
        with self._changed:
            self._waiting.extend(mine)
        left = deque(mine)
        while True:
            with self._changed:
                while left and left[0].over:
                    left.popleft()
                if not left:
                    return
                if self._working:
                    self._changed.wait()
                    continue
                self._working = True
                taken = self._take(self._waiting)
            try:
                self._work(taken)
            except BaseException as error:
                for each in taken:
                    if not each.over:
                        each.error = error if isinstance(error, Exception) else _interrupted()
                if not isinstance(error, Exception):
                    raise
            finally:
                with self._changed:
                    self._working = False
                    self._changed.notify_all()


def _interrupted() -> LogUnavailable:
    return LogUnavailable(
        "the thread that did this was interrupted; whether it was appended is unknown",
        hint="do it again; a number or a key that is the same tells the log that it is a repeat",
    )
