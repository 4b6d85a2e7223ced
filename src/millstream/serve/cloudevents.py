"""CloudEvents 1.0 over HTTP as events of the log, as the binding for Kafka has them.

The data is the value, as it was sent; attributes are headers ``ce_…`` and ``content-type``; ``time`` is the record's time;
``partitionkey``, else ``subject``, is the key. An event without data has no value, which is a tombstone where there is a key.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from datetime import datetime
from urllib.parse import unquote

import msgspec

from millstream.errors import ConfigError
from millstream.event import Event, to_millis

STRUCTURED, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
PREFIX = "ce-"
_NAME = re.compile(r"[a-z0-9]{1,64}")
_NEEDED = ("id", "source", "type")
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})")
_JSON = re.compile(r"[\w.+-]+/([\w.-]+\+)?json(\s*;.*)?", re.IGNORECASE)


def from_headers(headers: Mapping[str, str], body: bytes) -> Event:
    """An event in binary mode: attributes in headers, the body is the data. ConfigError says what is wrong with it."""
    found = {
        name.lower().removeprefix(PREFIX): unquote(value)
        for name, value in headers.items()
        if name.lower().startswith(PREFIX)
    }
    kind = headers.get("content-type")
    return _event(found, body if body or kind else None, kind)


def from_document(document: bytes) -> Event:
    """An event in structured mode: one document of JSON. ConfigError says what is wrong with it."""
    try:
        members = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ConfigError("found no object of JSON, expected a CloudEvent") from None
    raw, encoded = members.pop("data", None), members.pop("data_base64", None)
    kind = members.pop("datacontenttype", None)
    content = "application/json" if kind is None else _text("datacontenttype", kind)
    found = {name: _text(name, value) for name, value in members.items() if bytes(value) != b"null"}
    if raw is not None and encoded is not None:
        raise ConfigError("found both data and data_base64, expected one of them")
    data = None if raw is None or bytes(raw) == b"null" else bytes(raw)
    if data is not None and not _JSON.fullmatch(content) and data.startswith(b'"'):
        data = msgspec.json.decode(data, type=str).encode()
    if encoded is not None:
        try:
            data = base64.b64decode(_text("data_base64", encoded), validate=True)
        except (binascii.Error, ValueError):
            raise ConfigError("data_base64: not base64") from None
    return _event(found, data, content if data is not None else None)


def _text(name: str, value: msgspec.Raw) -> str:
    """An attribute as text: booleans and integers have a form of their own in JSON."""
    read = msgspec.json.decode(value)
    if isinstance(read, bool):
        return "true" if read else "false"
    if isinstance(read, int):
        return str(read)
    if isinstance(read, str):
        return read
    raise ConfigError(f"{name}: found {type(read).__name__}, expected text, a number without a fraction or a boolean")


def _event(attributes: Mapping[str, str], data: bytes | None, content: str | None) -> Event:
    if attributes.get("specversion") != "1.0":
        raise ConfigError(f"specversion: found {attributes.get('specversion')!r}, expected '1.0'")
    for name in _NEEDED:
        if not attributes.get(name):
            raise ConfigError(f"{name}: found none, expected a text that is not empty")
    for name in attributes:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"found an attribute {name!r:.80}, expected a name of a-z and 0-9")
    key = attributes.get("partitionkey") or attributes.get("subject")
    headers = [(f"ce_{name}", value.encode()) for name, value in attributes.items()]
    if content:
        headers.append(("content-type", content.encode()))
    at = _time(attributes["time"]) if attributes.get("time") else None
    return Event(data, None if key is None else key.encode(), at, tuple(headers))


def _time(text: str) -> datetime:
    try:
        if not _TIME.fullmatch(text):
            raise ValueError(text)
        at = datetime.fromisoformat(text.upper())
        to_millis(at)
    except (ValueError, OverflowError):
        raise ConfigError(f"time: found {text!r:.80}, expected a time as in RFC 3339") from None
    return at
