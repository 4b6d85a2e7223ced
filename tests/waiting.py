"""Wait for a condition, with a bound; tests never sleep for luck."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], *, timeout: float = 30.0, what: str = "the condition") -> T:
    """Give the first true result of ``condition``; fail after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout} s; last seen: {result!r}")
        time.sleep(0.01)
    return result
