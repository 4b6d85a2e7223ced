"""Bytes ↔ values. A codec is two pure functions that undo each other; what does not fit is a :class:`CodecError`.

The log itself only ever sees bytes. Codecs serve people who hold Python values and the ends of pipelines.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from millstream.errors import CodecError, MachineError


class Codec(Protocol):
    """Encode a value to bytes and back; ``None`` is never passed, it is a tombstone and stays one."""

    name: str

    def encode(self, value: Any) -> bytes:
        """Give the bytes of a value."""
        ...

    def decode(self, data: bytes) -> Any:
        """Give the value of bytes that `encode` made."""
        ...


class Json:
    """JSON as UTF-8. Datetimes become RFC 3339 text, bytes base64; both come back as text.

    :raises CodecError: by ``encode`` and ``decode``, if a value does not fit

    >>> Json().decode(Json().encode({"user": 7, "page": "/"}))
    {'user': 7, 'page': '/'}
    """

    name = "json"

    def encode(self, value: Any) -> bytes:
        """Give compact JSON; NaN and infinities are refused, since JSON has none."""
        try:
            encoded = msgspec.json.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise CodecError(f"cannot write {type(value).__name__} as JSON: {error}") from error
        if b"null" in encoded and _has_non_finite(value):
            raise CodecError("cannot write NaN or an infinity as JSON", hint="send null or a text instead")
        return encoded

    def decode(self, data: bytes) -> Any:
        """Parse one JSON document."""
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CodecError(f"not JSON: {error}; found {_excerpt(data)}") from error


class Text:
    """UTF-8 text.

    :raises CodecError: by ``encode`` and ``decode``, if a value does not fit

    >>> Text().encode("ü")
    b'\\xc3\\xbc'
    """

    name = "text"

    def encode(self, value: Any) -> bytes:
        """Give the UTF-8 bytes of a str."""
        if not isinstance(value, str):
            raise CodecError(f"cannot write {type(value).__name__} as text; expected str")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise CodecError(f"cannot write this text as UTF-8: {error}") from error

    def decode(self, data: bytes) -> str:
        """Read UTF-8."""
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise CodecError(f"not UTF-8: {error}; found {_excerpt(data)}") from error


class Avro:
    """Avro binary of one schema, without a container and without a schema id.

    Needs the extra ``millstream[avro]``. A ``reader`` schema reads what an older ``schema`` wrote, by Avro's own rules.

    :param schema: the Avro schema that values are written by
    :param reader: the schema that they are read by, if it is another
    :raises MachineError: if fastavro is not installed
    :raises CodecError: if it is no schema; by ``encode`` and ``decode``, if a value does not fit

    >>> clicks = Avro({"type": "record", "name": "Click", "fields": [{"name": "page", "type": "string"}]})
    >>> clicks.decode(clicks.encode({"page": "/"}))
    {'page': '/'}
    """

    name = "avro"

    def __init__(self, schema: Mapping[str, Any], reader: Mapping[str, Any] | None = None) -> None:
        try:
            import fastavro
        except ImportError as error:
            raise MachineError("Avro needs fastavro", hint="pip install 'millstream[avro]'") from error
        self._avro = fastavro
        try:
            self._writer = fastavro.parse_schema(dict(schema))
            self._reader = fastavro.parse_schema(dict(reader)) if reader else None
        except KeyError as error:
            raise CodecError(f"not an Avro schema: {error} is missing") from error
        except (fastavro.schema.SchemaParseException, ValueError, TypeError) as error:
            raise CodecError(f"not an Avro schema: {error}") from error

    def encode(self, value: Any) -> bytes:
        """Give the bytes of a value that fits the schema."""
        out = io.BytesIO()
        try:
            self._avro.schemaless_writer(out, self._writer, value, strict=True)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise CodecError(f"the value does not fit the Avro schema: {error}") from error
        return out.getvalue()

    def decode(self, data: bytes) -> Any:
        """Read one value, all of the bytes and no more."""
        source = io.BytesIO(data)
        try:
            value = self._avro.schemaless_reader(source, self._writer, self._reader)
        except self._avro.read.SchemaResolutionError as error:
            raise CodecError(f"the reader's Avro schema does not fit the writer's: {error}") from error
        except (ValueError, EOFError, IndexError, KeyError, OverflowError, MemoryError, RecursionError) as error:
            raise CodecError(
                f"not Avro of this schema: {error or type(error).__name__}; found {_excerpt(data)}"
            ) from error
        if source.tell() != len(data):
            raise CodecError(f"not Avro of this schema: {len(data) - source.tell()} bytes left over")
        return value


def _excerpt(data: bytes) -> str:
    return repr(data[:40]) + ("…" if len(data) > 40 else "")


def _has_non_finite(value: Any) -> bool:
    if isinstance(value, float):
        return value != value or value in (float("inf"), float("-inf"))
    if isinstance(value, Mapping):
        return any(map(_has_non_finite, value.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(_has_non_finite, value))
    return False
