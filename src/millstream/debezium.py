"""Debezium's envelopes behind the ids of their schemas in a registry, as the JSON that Debezium's own converter writes of them.

Invariants: a value is read by the schema it was written by, never by a guess. What comes out says the same as JSON, but for decimals, which
are numbers as text where JSON has bytes. Who reads envelopes reads JSON, so there is one meaning of an envelope.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias

import msgspec

from millstream.codec import Avro
from millstream.errors import CodecError
from millstream.framed import HEAD, unframe
from millstream.registry import Registry

_VARIABLE = "io.debezium.data.VariableScaleDecimal"
_EIGHT_BYTES = "schema id 0: ids of eight bytes, as Apicurio's converter writes them, are not read; let it write Confluent's, of four bytes: apicurio.registry.as-confluent=true"
_FLOAT = struct.Struct("<f")

_Say: TypeAlias = Callable[[Any], Any]
"""Makes what JSON has of a value of Avro."""


class Debezium:
    """A codec for ``table``: the topic of a Debezium connector whose values, and keys, are Avro or JSON with schemas in a registry.

    What stands behind no id is read as with ``codec="debezium"``. Needs the extra ``millstream[avro]``.

    :param registry: the registry, or its address
    :raises ConfigError: if the address is none
    :raises MachineError: if fastavro is not installed

    >>> Debezium("http://localhost:8081").registry
    Registry('http://localhost:8081')
    """

    name = "debezium-avro"

    def __init__(self, registry: Registry | str) -> None:
        self.registry = Registry(registry) if isinstance(registry, str) else registry
        Avro({"type": "null"})  # so that it is said here if the library is missing
        self._readers: dict[int, _Say] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"registry": self.registry.with_login(), "_readers": {}}  # another process has another environment

    def to_json(self, data: bytes) -> bytes:
        """Give a value or a key as JSON; what is not framed as it is.

        :raises CodecError: if it is not what its schema says, or the registry does not know its schema
        :raises RegistryUnavailable: if the registry does not answer
        """
        if data[:1] != b"\0":
            return data
        number, body = unframe(data)
        return self._reader(number)(body)  # type: ignore[no-any-return]

    def as_value(self, data: bytes | None) -> bytes | None:
        """The same for the reader of a topic: of a value that is not what its schema says, why; it is no JSON, so the record is malformed."""
        return None if data is None else self._told(data)

    def as_key(self, data: bytes | None) -> bytes | None:
        """The same for a key; one that cannot be read tells nothing."""
        return None if data is None else data if data[:1] != b"\0" else self._told(data)

    def _told(self, data: bytes) -> bytes:
        if data[:1] != b"\0":
            return data
        if len(data) < HEAD:
            return b"cut off: no id of a schema"
        number, body = unframe(data)
        read = self._reader(number)
        try:
            return read(body)  # type: ignore[no-any-return]
        except CodecError:
            return f"not what schema id {number} says".encode()

    def _reader(self, number: int) -> _Say:
        if number not in self._readers:
            if number == 0:
                raise CodecError(_EIGHT_BYTES)
            found = self.registry.schema(number)
            if found.kind not in ("AVRO", "JSON") or found.refers:
                why = "refers to other schemas" if found.refers else f"is {found.kind}"
                raise CodecError(
                    f"schema id {number} {why}; envelopes of Debezium are read in Avro or JSON, in one piece"
                )
            self._readers[number] = bytes if found.kind == "JSON" else _reader_of(found.text, number)
        return self._readers[number]


def _reader_of(text: str, number: int) -> _Say:
    """What turns the bytes of Avro of a schema into JSON."""
    schema = json.loads(text)
    codec = Avro(_wrapped(_bare(schema)))
    said = _Conversions(number).of(Avro(_wrapped(schema))._writer)

    def read(body: bytes) -> bytes:
        value = codec.decode(body)
        return msgspec.json.encode(value if said is None else said(value))

    return read


def _wrapped(schema: Any) -> Mapping[str, Any]:
    if isinstance(schema, list):
        raise CodecError("a union outside of a record is not read")
    return {"type": schema} if isinstance(schema, str) else schema


def _bare(schema: Any) -> Any:
    """A schema without logical types: a value then is what is written, which is what JSON has."""
    if isinstance(schema, dict):
        return {key: _bare(value) for key, value in schema.items() if key != "logicalType"}
    return [_bare(each) for each in schema] if isinstance(schema, list) else schema


class _Conversions:
    """Which values of a schema are not in JSON as they are in Python; None for those that are."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._named: dict[str, list[_Say | None]] = {}

    def of(self, schema: Any) -> _Say | None:
        """The conversion of a parsed schema, whose names are full."""
        if isinstance(schema, list):
            return self._union([each for each in schema if each != "null"])
        if isinstance(schema, str):
            if schema in self._named:
                return self._again(self._named[schema])
            return {"float": _float, "double": _double}.get(schema)
        match schema["type"]:
            case "record" | "error":
                return self._record(schema)
            case "array":
                items = self.of(schema["items"])
                return None if items is None else partial(_list, items)
            case "map":
                values = self.of(schema["values"])
                return None if values is None else partial(_map, values)
            case "bytes" | "fixed" if schema.get("logicalType") == "decimal":
                return partial(_decimal, scale=schema.get("scale", 0))
            case "fixed" | "enum":
                return None
            case inner:
                return self.of(inner)

    def _union(self, branches: list[Any]) -> _Say | None:
        made = [self.of(each) for each in branches]
        if len(branches) > 1 and any(made):
            raise CodecError(
                f"schema id {self._number}: a union of several types, with decimals or fractions, is not read"
            )
        inner = made[0] if made else None
        return None if inner is None else partial(_optional, inner)

    def _record(self, schema: Mapping[str, Any]) -> _Say | None:
        holder = self._named.setdefault(schema["name"], [])
        if schema.get("connect.name") == _VARIABLE:
            found: _Say | None = _variable
        else:
            fields = [(each["name"], self.of(each["type"])) for each in schema["fields"]]
            changed = [(name, said) for name, said in fields if said is not None]
            found = partial(_fields, changed) if changed else None
        holder.append(found)
        return found

    def _again(self, holder: list[_Say | None]) -> _Say | None:
        """The conversion of a name; of one that stands within itself it is not known yet."""
        if holder:
            return holder[0]

        def later(value: Any) -> Any:
            return value if holder[0] is None else holder[0](value)

        return later


def _fields(changed: list[tuple[str, _Say]], value: dict[str, Any]) -> dict[str, Any]:
    for name, said in changed:
        value[name] = said(value[name])
    return value


def _optional(said: _Say, value: Any) -> Any:
    return None if value is None else said(value)


def _list(said: _Say, value: list[Any]) -> list[Any]:
    return [said(each) for each in value]


def _map(said: _Say, value: dict[str, Any]) -> dict[str, Any]:
    return {key: said(each) for key, each in value.items()}


def _double(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _float(value: float) -> float | str:
    """The shortest number that is the same in four bytes: 0.1, and not all the digits that these have in eight."""
    if not math.isfinite(value):
        return _double(value)
    for digits in range(6, 10):
        short = float(f"{value:.{digits}g}")
        if _FLOAT.unpack(_FLOAT.pack(short))[0] == value:
            return short
    return value


def _decimal(value: bytes, scale: int) -> str:
    """A number as text, of the bytes of a whole number and its scale."""
    sign, digits, _ = Decimal(int.from_bytes(value, "big", signed=True)).as_tuple()
    return format(Decimal((sign, digits, -scale)), "f")


def _variable(value: Mapping[str, Any]) -> str:
    return _decimal(value["value"], value["scale"])
