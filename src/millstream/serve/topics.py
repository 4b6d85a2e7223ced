"""``POST /topics/{topic}`` and ``POST /webhooks/{name}``: a request becomes events, and is answered when they are durable."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from millstream.errors import UnknownTopic
from millstream.event import Event
from millstream.log.checks import check_topic_name
from millstream.log.contract import Log, Topic
from millstream.log.embedded.batch import RESERVED
from millstream.secret import resolve
from millstream.serve import journal, signature
from millstream.serve.access import Access
from millstream.serve.bodies import events_of
from millstream.serve.committer import Append, Committer
from millstream.serve.journal import Position
from millstream.serve.limits import Body, Budget, Rates
from millstream.serve.refusal import Refusal
from millstream.serve_settings import ServeSettings

_FRESH = 1.0  # seconds for which what a topic is like is remembered
_KEY = 255  # characters of an idempotency key
_HEADER_BYTES = 80  # what a header of ours adds to an event, at most


class Topics:
    """What takes events."""

    def __init__(
        self,
        log: Log,
        committer: Committer,
        access: Access,
        settings: ServeSettings,
        sealed: Collection[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._log, self._committer, self._access, self._limits = log, committer, access, settings.limits
        self._budget, self._rates = Budget(settings.limits.memory), Rates(settings.limits.rate)
        self._sealed = frozenset(sealed)
        self._known: dict[str, tuple[Topic, float]] = {}
        self._webhooks = {
            name: (each.topic, [signature.secret_of(resolve(text, environ)) for text in each.secrets])
            for name, each in settings.webhooks.items()
        }

    async def post(self, request: Request) -> Response:
        """Append the events of a body to the topic that the path names."""
        name = request.path_params["topic"]
        owner = self._access.check(request, "write", name)
        self._rates.take(owner)
        key = request.headers.get("idempotency-key")
        if key is not None and not 0 < len(key) <= _KEY:
            raise Refusal(400, f"Idempotency-Key: found {len(key)} characters, expected 1 to {_KEY}")
        topic = await self._topic(name)
        body = Body(self._budget, owner)
        try:
            data = await body.read(request, self._limits)
            asked = (request.headers.get("content-type", "") + "?" + request.url.query).encode()
            digest = hashlib.blake2b(asked + b"\0" + data, digest_size=16)
            for header, value in sorted(request.headers.items()):
                if header.startswith("ce-"):
                    digest.update(f"\0{header}:{value}".encode())
            events = events_of(request.headers, request.query_params, data, self._limits)
            return await self._append(topic, events, len(data), owner, key, digest.digest())
        finally:
            body.close()

    async def webhook(self, request: Request) -> Response:
        """Append a signed webhook, once for its id, to the topic that the settings name."""
        name = request.path_params["name"]
        if name not in self._webhooks:
            raise Refusal(404, "there is no such webhook")
        topic, secrets = self._webhooks[name]
        owner = f"webhook {name}"
        self._rates.take(owner)
        body = Body(self._budget, owner)
        try:
            data = await body.read(request, self._limits)
            identity = signature.verify(secrets, request.headers, data)
            headers = {"content-type": request.headers.get("content-type", "application/json")}
            events = [
                each._replace(headers=(*each.headers, (signature.ID, identity.encode())))
                for each in events_of(headers, {}, data, self._limits)
            ]
            digest = hashlib.blake2b(data, digest_size=16).digest()
            return await self._append(await self._topic(topic), events, len(data), owner, identity, digest)
        finally:
            body.close()

    async def _append(
        self, topic: Topic, events: list[Event], size: int, owner: str, key: str | None, digest: bytes
    ) -> Response:
        _check(topic, events)
        hashed = None if key is None else journal.key_of(owner, topic.name, key)
        append = Append(topic.name, events, size, hashed, digest)
        done, repeated = await run_in_threadpool(self._committer.submit, append)
        position = await self._answer(done)
        offsets = position.offsets or [None] * len(position.partitions)
        told = {
            "topic": topic.name,
            "events": len(events),
            "positions": list(zip(position.partitions, offsets, strict=True)),
        }
        headers = {"Idempotency-Replayed": "true"} if repeated else {}
        return Response(msgspec.json.encode(told), 200, headers, media_type="application/json")

    async def _answer(self, done: Future[Position]) -> Position:
        """Wait for the answer, which others may wait for as well."""
        try:
            async with asyncio.timeout(self._limits.seconds):
                return await asyncio.shield(asyncio.wrap_future(done))
        except TimeoutError:
            raise Refusal(503, "not appended in time; whether the events will be is unknown", after=1) from None

    async def _topic(self, name: str) -> Topic:
        """The topic of that name; asked of the log at most once a second."""
        now = time.monotonic()
        if (known := self._known.get(name)) is not None and now - known[1] < _FRESH:
            return known[0]
        if check_topic_name(name).startswith(journal.PREFIX):
            raise Refusal(403, "that topic is the server's own")
        if name in self._sealed:
            raise Refusal(
                403,
                f"topic {name} is sealed where it is produced, and this server does not seal",
                hint=f"`millstream produce {name} --seal`, or a Producer with seal=…",
            )
        try:
            topic = await run_in_threadpool(self._log.topic, name)
        except UnknownTopic:
            raise Refusal(404, f"there is no topic {name}", hint=f"`millstream topics create {name}`") from None
        self._known[name] = topic, now
        return topic


def _check(topic: Topic, events: list[Event]) -> None:
    """Refuse what the log would refuse, before it joins what others send."""
    bad = []
    for place, event in enumerate(events):
        size = len(event.value or b"") + len(event.key or b"") + _HEADER_BYTES
        size += sum(len(name) + len(value) + 10 for name, value in event.headers)
        if size > topic.settings.max_record_bytes:
            bad.append((place, f"{size:,} bytes, topic {topic.name} takes up to {topic.settings.max_record_bytes:,}"))
        elif event.key is None and topic.settings.compacts:
            bad.append((place, f"no key, and topic {topic.name} is compacted by key"))
        elif event.key is not None and (prefix := next(filter(event.key.startswith, RESERVED), None)) is not None:
            bad.append((place, f"keys that begin with {prefix.decode()} are reserved for {RESERVED[prefix]}"))
    if bad:
        raise Refusal(422, f"{bad[0][1]}; nothing was appended", events=bad[:100])
