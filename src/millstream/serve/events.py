"""``GET /topics/{topic}/events``: the records of a topic as server-sent events, from a place on, for as long as the client listens.

The id of an event is the offsets to go on from, ``0:17,1:4``, so a client that comes back with it in ``Last-Event-ID`` gets what follows:
no gap, no repeat. If the log does not have that any more, it is told with an event ``reset``, which says where it goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import TypeAlias

import anyio
import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from millstream.erase.request import hides
from millstream.errors import ConfigError, OffsetOutOfRange
from millstream.event import Record
from millstream.json_event import record_object
from millstream.log.checks import check_topic_name, start_offsets
from millstream.log.contract import Log
from millstream.log.embedded.batch import RESERVED
from millstream.log.lag import parse_start
from millstream.serve import journal
from millstream.serve.access import Access
from millstream.serve.follow import Piece, Tail, Tails, read_piece
from millstream.serve.limits import Budget
from millstream.serve.refusal import Refusal
from millstream.serve_settings import ServeLimits

QUIET = 15.0
"""Seconds of silence after which a comment says that the connection lives."""
_PATIENCE = 30.0  # seconds that a client may take for one piece
_READERS = 4  # who read the log at places of their own at once
_PAUSE = 0.5  # seconds until there may be room for a piece
_FRESH = 1.0  # seconds for which it is known who is to be forgotten
Hides: TypeAlias = Callable[[bytes | None, bytes | None], bool]
"""Whether a record is of somebody who is to be forgotten."""


class EventStream:
    """An answer that goes on until the client leaves, is too slow, or the server ends."""

    def __init__(self, pieces: AsyncGenerator[bytes, None]) -> None:
        self._pieces = pieces

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        sending = asyncio.create_task(self._send(send, headers))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            await self._pieces.aclose()

    async def _send(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for piece in self._pieces:
            message: Message = {"type": "http.response.body", "body": piece, "more_body": True}
            async with asyncio.timeout(_PATIENCE):
                await send(message)
        await send({"type": "http.response.body", "body": b""})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Events:
    """Topics that are followed."""

    def __init__(self, log: Log, tails: Tails, access: Access, limits: ServeLimits) -> None:
        self._log, self._tails, self._access, self._limits = log, tails, access, limits
        self._budget = Budget(limits.memory)
        self._reading = anyio.CapacityLimiter(_READERS)
        self._hidden: dict[str, tuple[float, Hides | None]] = {}
        self.streams = 0

    async def get(self, request: Request) -> EventStream:
        """Follow the topic that the path names, from ``Last-Event-ID`` or ``?from=`` on; else from its end."""
        topic = check_topic_name(request.path_params["topic"])
        owner = self._access.check(request, "read", topic)
        if topic.startswith(journal.PREFIX):
            raise Refusal(403, "that topic is the server's own")
        if self.streams >= self._limits.streams:
            raise Refusal(503, "too many follow topics", after=5)
        start = request.headers.get("last-event-id") or request.query_params.get("from") or "latest"
        try:
            offsets, lost = await run_in_threadpool(_begin, self._log, topic, start)
        except ConfigError as error:
            raise Refusal(400, error.message) from None
        return EventStream(self._pieces(topic, offsets, lost, owner))

    async def _pieces(self, topic: str, offsets: dict[int, int], lost: str, owner: str) -> AsyncGenerator[bytes, None]:
        tail = self._tails.enter(topic)
        self.streams += 1
        try:
            await tail.begun()
            yield reset(offsets, lost) if lost else f"id: {identity(offsets)}\n: following\n\n".encode()
            place = tail.place(offsets)
            while not self._tails.ending.is_set():
                found = None if place is None else await tail.next(place, offsets, QUIET)
                if found is not None:
                    place, piece = found
                    offsets = piece.offsets
                    yield self._shown(topic, piece) if piece.records else b": still here\n\n"
                    continue
                async with aclosing(self._catch_up(topic, tail, offsets, owner)) as parts:
                    async for part, after in parts:
                        offsets = after
                        if part:
                            yield part
                place = tail.place(offsets)
        finally:
            self.streams -= 1
            self._tails.leave(topic, tail)

    def _shown(self, topic: str, piece: Piece) -> bytes:
        """Records as events, without those of somebody who is to be forgotten."""
        at, hidden = self._hidden.get(topic, (-_FRESH, None))
        if time.monotonic() - at > _FRESH:
            hidden = hides(self._log, topic)
            self._hidden[topic] = time.monotonic(), hidden
        return _text(piece, hidden)

    async def _catch_up(
        self, topic: str, tail: Tail, offsets: dict[int, int], owner: str
    ) -> AsyncGenerator[tuple[bytes, dict[int, int]], None]:
        """One piece out of the log, and where it ends. Its bytes are counted, whoever follows, until the client has taken them."""
        floor = tail.floor
        try:
            piece = await anyio.to_thread.run_sync(read_piece, self._log, topic, offsets, limiter=self._reading)
        except OffsetOutOfRange as error:
            bounds = await run_in_threadpool(self._log.bounds, topic)
            offsets = {
                partition: offsets.get(partition, 0)
                if bound.start <= offsets.get(partition, 0) <= bound.end
                else bound.start
                for partition, bound in bounds.items()
            }
            yield reset(offsets, error.message), offsets
            return
        if not piece.records:  # the log has nothing up to there: offsets without records, as a transaction leaves
            yield b"", {partition: max(at, floor.get(partition, 0)) for partition, at in piece.offsets.items()}
            return
        text = self._shown(topic, piece)
        try:
            self._budget.take(owner, len(text))
        except Refusal:
            await asyncio.sleep(_PAUSE)
            yield b"", offsets
            return
        try:
            yield text, piece.offsets
        finally:
            self._budget.give(owner, len(text))


def identity(offsets: Mapping[int, int]) -> str:
    """Offsets as the id of an event.

    >>> identity({1: 4, 0: 17})
    '0:17,1:4'
    """
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(offsets.items()))


def reset(offsets: Mapping[int, int], why: str) -> bytes:
    """The event that says that some are missing, and where it goes on."""
    return f"event: reset\nid: {identity(offsets)}\ndata: ".encode() + msgspec.json.encode({"reason": why}) + b"\n\n"


def _begin(log: Log, topic: str, start: str) -> tuple[dict[int, int], str]:
    """Offsets for all partitions, and what is missing if the log does not have the first of them any more."""
    bounds = log.bounds(topic)
    try:
        found = start_offsets(log, topic, parse_start(start), bounds)
        return {partition: found.get(partition, bound.start) for partition, bound in bounds.items()}, ""
    except OffsetOutOfRange as error:
        parsed = parse_start(start)
        asked = parsed if isinstance(parsed, Mapping) else dict.fromkeys(bounds, parsed)
        offsets = {}
        for partition, bound in bounds.items():
            at = asked.get(partition, bound.start)
            offsets[partition] = at if isinstance(at, int) and bound.start <= at <= bound.end else bound.start
        return offsets, error.message


def _text(piece: Piece, hidden: Hides | None) -> bytes:
    """Records as events. The id of each is where to go on behind it."""
    offsets = dict(piece.offsets)
    for record in reversed(piece.records):
        offsets[record.partition] = min(offsets[record.partition], record.offset)
    parts = []
    for record in piece.records:
        offsets[record.partition] = record.offset + 1
        reserved = record.key is not None and record.key.startswith(tuple(RESERVED))
        if not reserved and (hidden is None or not hidden(record.key, record.value)):
            parts.append(f"id: {identity(offsets)}\ndata: ".encode() + _document(record) + b"\n\n")
    return b"".join(parts)


def _document(record: Record) -> bytes:
    told = record_object(record)
    del told["topic"]
    return msgspec.json.encode(told)
