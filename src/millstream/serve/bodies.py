"""The body of a request as events, by its content type: one document of JSON, a line each, or CloudEvents.

Invariant: a value of JSON reaches the log as the bytes that were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from millstream.errors import ConfigError
from millstream.event import Event
from millstream.json_event import to_event
from millstream.serve import cloudevents
from millstream.serve.limits import is_deep
from millstream.serve.refusal import Refusal
from millstream.serve_settings import ServeLimits

JSON = "application/json"
LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines")
_SHOWN = 100  # bad events of one request that are told


def events_of(headers: Mapping[str, str], query: Mapping[str, str], body: bytes, limits: ServeLimits) -> list[Event]:
    """The events of a body. Refusal 415 for a content type that is not taken, 400 with the events that are none.

    ``headers`` have names in lower case. ``query`` may name the fields of JSON that are the key and the time, ``key_field`` and
    ``time_field``, or the ``key`` of a single event.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if f"{cloudevents.PREFIX}specversion" in headers:
        return _read([body], lambda data: cloudevents.from_headers(headers, data), limits, deep=kind == JSON)
    if kind == cloudevents.STRUCTURED:
        return _read([body], cloudevents.from_document, limits)
    if kind == cloudevents.BATCH:
        return _read(_members(body), cloudevents.from_document, limits)
    if kind in LINES:
        lines = (line for line in map(bytes.strip, body.split(b"\n")) if line)
        return _read(lines, lambda line: to_event(line, query.get("key_field"), query.get("time_field")), limits)
    if kind == JSON:
        event = _read([body], lambda data: to_event(data, query.get("key_field"), query.get("time_field")), limits)[0]
        return [event._replace(key=query["key"].encode()) if "key" in query else event]
    taken = f"{JSON}, {LINES[0]}, {cloudevents.STRUCTURED} or {cloudevents.BATCH}"
    raise Refusal(415, f"found content type {kind[:80] or 'none'!r}, expected {taken}")


def _read(
    documents: Iterable[bytes], read: Callable[[bytes], Event], limits: ServeLimits, *, deep: bool = True
) -> list[Event]:
    """The events of documents; those that are none are told together."""
    events, bad = list[Event](), list[tuple[int, str]]()
    for place, document in enumerate(documents):
        if place >= limits.events:
            raise Refusal(413, f"more than {limits.events:,} events", hint="send them in several requests")
        try:
            if deep and is_deep(document, limits.depth):
                raise ConfigError(f"nested more than {limits.depth} deep")
            events.append(read(document))
        except ConfigError as error:
            bad.append((place, error.message))
            if len(bad) == _SHOWN:
                break
    if bad:
        raise Refusal(400, f"{bad[0][1]}; nothing was appended", events=bad)
    if not events:
        raise Refusal(400, "found no event")
    return events


def _members(body: bytes) -> list[bytes]:
    """The documents of a batch; each is checked by itself."""
    try:
        return [bytes(each) for each in msgspec.json.decode(body, type=list[msgspec.Raw])]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Refusal(400, "found no array of JSON, expected a batch of CloudEvents") from None
