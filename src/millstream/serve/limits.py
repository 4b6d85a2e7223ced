"""What a server takes at most, of everyone and of each: bytes in memory, requests a second, depth, time.

Invariant: the bodies that are in memory, whether they are still being read or wait for the log, have no more than
``memory`` bytes together. They are counted as they arrive, not by what a client claims.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect, Request

from millstream.serve.refusal import Refusal
from millstream.serve_settings import ServeLimits

_SHARE = 0.5  # of the memory, for one owner
_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_OWNERS = 10_000  # whose rates are remembered


@dataclass
class Budget:
    """The bytes of bodies in memory, all and by owner."""

    most: int
    used: int = 0
    by_owner: dict[str, int] = field(default_factory=dict)

    def take(self, owner: str, size: int) -> None:
        """Count ``size`` bytes more; Refusal if there is no room: 503 for all, 429 for one who has more than a share."""
        mine = self.by_owner.get(owner, 0)
        if self.used + size > self.most:
            raise Refusal(503, "too many events wait for the log", hint="send fewer at once", after=1)
        if mine + size > self.most * _SHARE:
            raise Refusal(429, "too many of your events wait for the log", hint="wait for answers", after=1)
        self.used += size
        self.by_owner[owner] = mine + size

    def give(self, owner: str, size: int) -> None:
        """Count ``size`` bytes less."""
        self.used -= size
        left = self.by_owner.get(owner, 0) - size
        if left > 0:
            self.by_owner[owner] = left
        else:
            self.by_owner.pop(owner, None)


class Rates:
    """How many requests a second each owner may make: a bucket of tokens that holds those of two seconds."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, owner: str) -> None:
        """Count a request; Refusal 429, with how long to wait, if there were too many."""
        if not self._rate:
            return
        now = self._clock()
        room = max(1.0, 2 * self._rate)
        level, at = self._buckets.pop(owner, (room, now))
        level = min(room, level + (now - at) * self._rate)
        if level < 1:
            self._buckets[owner] = level, now
            raise Refusal(429, f"more than {self._rate:g} requests a second", after=(1 - level) / self._rate)
        self._buckets[owner] = level - 1, now
        if len(self._buckets) > _OWNERS:
            del self._buckets[next(iter(self._buckets))]  # the one that was used longest ago


class Body:
    """The body of one request while it is in memory; closed, its bytes are given back."""

    def __init__(self, budget: Budget, owner: str) -> None:
        self.data, self.size = b"", 0
        self._budget, self._owner = budget, owner

    async def read(self, request: Request, limits: ServeLimits) -> bytes:
        """All of it; Refusal if it is too large (413), too slow (408), or there is no room (429, 503)."""
        if int(request.headers.get("content-length") or 0) > limits.body:
            raise _too_large(limits)
        parts = []
        try:
            async with asyncio.timeout(limits.seconds):
                async for part in request.stream():
                    if self.size + len(part) > limits.body:
                        raise _too_large(limits)
                    self._budget.take(self._owner, len(part))
                    self.size += len(part)
                    parts.append(part)
        except TimeoutError:
            raise Refusal(408, f"the body did not arrive within {limits.seconds:g} s") from None
        except ClientDisconnect:
            raise Refusal(400, "the body ended early") from None
        self.data = b"".join(parts)
        return self.data

    def close(self) -> None:
        """Give its bytes back."""
        self._budget.give(self._owner, self.size)
        self.size = 0


def _too_large(limits: ServeLimits) -> Refusal:
    return Refusal(413, f"the body has more than {limits.body:,} bytes", hint="send it in several requests")


def is_deep(document: bytes, most: int) -> bool:
    """Whether a document of JSON is nested more than ``most`` deep.

    >>> is_deep(b'[[1, "[[["]]', 2), is_deep(b"[[[1]]]", 2)
    (False, True)
    """
    if document.count(b"[") + document.count(b"{") <= most:
        return False
    depth = 0
    for char in re.sub(rb"[^\[\]{}]+", b"", _TEXTS.sub(b"", document)):
        depth += 1 if char in b"[{" else -1
        if depth > most:
            return True
    return False
