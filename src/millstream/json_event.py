"""A document of JSON as an event: the document stays as it is, and fields of it may be its key and its time. And a record as JSON can say it."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import msgspec

from millstream.errors import ConfigError
from millstream.event import Event, Record


def to_event(line: bytes, key_field: str | None = None, time_field: str | None = None) -> Event:
    """An event for a document of JSON, which stays as it is; raises ConfigError with what was found and expected."""
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"not JSON: {error}") from error
    if not key_field and not time_field:
        return Event(line)
    if not isinstance(value, dict):
        raise ConfigError(f"found {type(value).__name__}, expected an object")
    key, at = None, None
    if key_field:
        if value.get(key_field) is None:
            raise ConfigError(f"no field {key_field!r} for the key")
        found = value[key_field]
        key = found.encode() if isinstance(found, str) else msgspec.json.encode(found)
    if time_field:
        if value.get(time_field) is None:
            raise ConfigError(f"no field {time_field!r} for the time")
        try:
            at = parse_time(value[time_field])
        except ConfigError as error:
            raise ConfigError(f"field {time_field!r}: {error.message}") from error
    return Event(line, key, at)


def parse_time(value: Any) -> datetime:
    """A time out of JSON: ISO 8601 text (UTC unless it says otherwise), or a number of seconds or milliseconds."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"found {value!r}, expected a time as text or a number")
    try:
        if isinstance(value, str):
            time = datetime.fromisoformat(value)
            return time if time.tzinfo else time.replace(tzinfo=UTC)
        # 1e11 seconds is the year 5138, 1e11 milliseconds was 1973: nobody means the other one.
        return datetime.fromtimestamp(value / 1000 if abs(value) >= 1e11 else value, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigError(f"found {value!r}, expected a time: {error}") from error


def readable(data: bytes | None) -> Any:
    """What JSON output shows of bytes: the JSON in them, else their text, else base64."""
    if data is None:
        return None
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def record_object(record: Record) -> dict[str, Any]:
    """A record for JSON output."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "time": record.time,
        "key": None if record.key is None else _text(record.key),
        "value": readable(record.value),
        "headers": {name: _text(value) for name, value in record.headers},
    }


def _text(data: bytes) -> Any:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
