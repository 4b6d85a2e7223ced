"""Confluent's framing: a zero, the id of the writer's schema in four bytes, and then the value.

Invariant: Avro is read by the schema that it was written by, which the registry tells by its id, never by a guess. JSON says
itself what it is, and Protobuf by its class, so neither is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from millstream.codec import Avro, Json
from millstream.errors import CodecError, ConfigError
from millstream.registry import Registry, Schema

HEAD = 5
"""Bytes before the value; Protobuf has the place of its message in the file besides."""

Kind = Literal["avro", "json", "protobuf"]


def frame(number: int, body: bytes) -> bytes:
    """Bytes of a value behind the id of its schema."""
    return b"\0" + number.to_bytes(4, "big") + body


def unframe(data: bytes) -> tuple[int, bytes]:
    """The id and the value's own bytes; CodecError if these are not framed.

    >>> unframe(frame(7, b"{}"))
    (7, b'{}')
    """
    if len(data) < HEAD or data[0] != 0:
        raise CodecError(
            f"not framed by Confluent's convention: found {data[:20]!r}, expected a zero and the id of a schema",
            hint="was it written without a registry? read it with Json(), Text() or Avro(schema)",
        )
    return int.from_bytes(data[1:HEAD], "big"), data[HEAD:]


class Confluent:
    """Values of a topic whose schemas are in a registry, as Confluent's serialisers write and read them.

    Avro is read by the writer's schema, and resolved to ``schema`` if that is given. JSON is not checked against its schema.
    Protobuf needs the generated class of the message. Without ``schema`` a value is written by the newest one of the subject, as
    it is when the first value is written.

    :param registry: the registry, or its address
    :param subject: what the schema is registered under, by custom ``TOPIC-value``
    :param schema: the schema to write by and, with Avro, to read into
    :param kind: ``"avro"``, ``"json"`` or ``"protobuf"``
    :param message: the generated class, for Protobuf
    :param register: whether to register a schema that the subject does not have
    :raises ConfigError: if these do not go together
    :raises CodecError: by ``encode`` and ``decode``, if a value does not fit, or the registry does not know its schema
    :raises RegistryUnavailable: by ``encode`` and ``decode``, if the registry does not answer

    >>> Confluent("http://localhost:8081", "clicks-value", kind="json").name
    'confluent-json'
    """

    def __init__(
        self,
        registry: Registry | str,
        subject: str,
        schema: Mapping[str, Any] | None = None,
        *,
        kind: Kind = "avro",
        message: type[Any] | None = None,
        register: bool = False,
    ) -> None:
        if kind not in ("avro", "json", "protobuf"):
            raise ConfigError(f'kind: found {kind!r}, expected "avro", "json" or "protobuf"')
        if (kind == "protobuf") != (message is not None) or (kind == "protobuf" and schema is not None):
            raise ConfigError(f'kind {kind}: message is for "protobuf", which has no other schema')
        if message is not None and not hasattr(message, "DESCRIPTOR"):
            raise ConfigError(f"message: found {message!r}, expected a class that protoc has generated")
        if register and schema is None:
            raise ConfigError(
                "register: there is no schema to register", hint="Confluent(registry, subject, schema, …)"
            )
        self.name = f"confluent-{kind}"
        self.kind, self.subject, self.schema = kind, subject, schema
        self.registry = Registry(registry) if isinstance(registry, str) else registry
        self._register, self._id = register, -1
        self._values: _Values = _JsonValues()
        if message is not None:
            self._values = _ProtobufValues(message)
        elif kind == "avro":
            self._values = _AvroValues(self.registry, schema)

    def encode(self, value: Any) -> bytes:
        """Give the bytes of a value, behind the id of the schema that it is written by."""
        if self._id < 0:
            kind = self.kind.upper()
            if self.schema is None:
                self._id, found = self.registry.latest(self.subject)
                if found.kind != kind:
                    raise CodecError(f"subject {self.subject}: its schema is {found.kind}, expected {kind}")
            else:
                wanted = Schema(kind, json.dumps(self.schema))
                self._id = self.registry.id_of(self.subject, wanted, register=self._register)
        return frame(self._id, self._values.encode(self._id, value))

    def decode(self, data: bytes) -> Any:
        """Give the value of framed bytes."""
        return self._values.decode(*unframe(data))


class _Values(Protocol):
    """The bytes behind the frame."""

    def encode(self, number: int, value: Any) -> bytes: ...

    def decode(self, number: int, body: bytes) -> Any: ...


def _text_of(registry: Registry, number: int, kind: str) -> str:
    found = registry.schema(number)
    if found.kind != kind:
        raise CodecError(
            f"schema id {number}: found {found.kind}, expected {kind}", hint=f'kind="{found.kind.lower()}"'
        )
    if found.refers:
        raise CodecError(
            f"schema id {number} refers to other schemas, which is not read", hint="register it in one piece"
        )
    return found.text


class _AvroValues:
    def __init__(self, registry: Registry, reader: Mapping[str, Any] | None) -> None:
        self._registry, self._reader = registry, reader
        self._known: dict[tuple[int, bool], Avro] = {}

    def _codec(self, number: int, *, reading: bool) -> Avro:
        if (number, reading) not in self._known:
            schema = json.loads(_text_of(self._registry, number, "AVRO"))
            if isinstance(schema, list):
                raise CodecError(f"schema id {number}: a union outside of a record is not read")
            writer = {"type": schema} if isinstance(schema, str) else schema
            self._known[number, reading] = Avro(writer, self._reader if reading else None)
        return self._known[number, reading]

    def encode(self, number: int, value: Any) -> bytes:
        return self._codec(number, reading=False).encode(value)

    def decode(self, number: int, body: bytes) -> Any:
        return self._codec(number, reading=True).decode(body)


class _JsonValues:
    def __init__(self) -> None:
        self._json = Json()

    def encode(self, _: int, value: Any) -> bytes:
        return self._json.encode(value)

    def decode(self, _: int, body: bytes) -> Any:
        return self._json.decode(body)


class _ProtobufValues:
    """A message behind its place in the file: how many numbers, and the numbers from the outermost message inwards."""

    def __init__(self, message: type[Any]) -> None:
        self._message = message
        place, inner = list[int](), message.DESCRIPTOR
        while inner is not None:
            outer = inner.containing_type
            siblings = inner.file.message_types_by_name.values() if outer is None else outer.nested_types
            place.insert(0, [each.full_name for each in siblings].index(inner.full_name))
            inner = outer
        self._place = place

    def encode(self, _: int, value: Any) -> bytes:
        if not isinstance(value, self._message):
            raise CodecError(f"cannot write {type(value).__name__}; expected {self._message.__name__}")
        place = b"\0" if self._place == [0] else b"".join(map(_varint, [len(self._place), *self._place]))
        body: bytes = value.SerializeToString()
        return place + body

    def decode(self, number: int, body: bytes) -> Any:
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

        try:
            count, at = _read_varint(body, 0)
            place = list[int]()
            for _ in range(count):
                index, at = _read_varint(body, at)
                place.append(index)
            if (place or [0]) != self._place:
                raise CodecError(
                    f"schema id {number}: found the message at {place or [0]} of its file, expected"
                    f" {self._message.DESCRIPTOR.full_name} at {self._place}",
                    hint="give the class of that message",
                )
            return self._message.FromString(body[at:])
        except (IndexError, DecodeError) as error:
            raise CodecError(f"not Protobuf of {self._message.__name__}: {error}; found {body[:40]!r}") from error


def _varint(number: int) -> bytes:
    """A number from zero on, in zigzag and seven bits a byte."""
    left, out = number << 1, bytearray()
    while left > 127:
        out.append(left & 127 | 128)
        left >>= 7
    return bytes([*out, left])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = data[at]
        found, at, shift = found | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            break
    if found & 1 or shift > 35:
        raise IndexError("a number below zero or too large in the place of the message")
    return found >> 1, at
