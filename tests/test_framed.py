"""Values framed by Confluent's convention, against a registry over real HTTP and bytes of Confluent's own serialisers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto  # type: ignore[import-untyped]
from google.protobuf.duration_pb2 import Duration  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CodecError, ConfigError, RegistryUnavailable
from millstream.event import Event
from millstream.framed import Confluent, frame, unframe
from millstream.log.embedded.engine import SqliteLog
from millstream.registry import Registry
from tests.schema_registry import SchemaRegistry

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "note", "type": ["null", "string"]}],
}
LATER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "price", "type": "double", "default": 1.5}],
}
JSON: dict[str, Any] = {"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}}

# What confluent-kafka 2.16.0 made of {"id": 7, "note": "ü"}, Duration(seconds=7, nanos=5), FieldDescriptorProto(name="x") and
# DescriptorProto.ExtensionRange(start=3): AvroSerializer(client, ORDER), JSONSerializer(…), ProtobufSerializer(class, client,
# {"use.deprecated.format": False}), each called with SerializationContext(topic, MessageField.VALUE), against this very registry.
AVRO_BYTES = b"\x00\x00\x00\x00\x01\x0e\x02\x04\xc3\xbc"
JSON_BYTES = b'\x00\x00\x00\x00\x02{"id":7,"note":"\xc3\xbc"}'
DURATION_BYTES = b"\x00\x00\x00\x00\x03\x00\x08\x07\x10\x05"
FIELD_BYTES = b"\x00\x00\x00\x00\x04\x02\x08\n\x01x"
RANGE_BYTES = b"\x00\x00\x00\x00\x04\x04\x04\x00\x08\x03"


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with closing(SchemaRegistry()) as served:
        served.add("orders-value", ORDER)
        served.add("json-value", JSON, "JSON")
        served.add("duration-value", "the descriptor", "PROTOBUF")
        served.add("descriptor-value", "another", "PROTOBUF")
        yield served


def test_bytes_of_confluents_own_serialisers_are_read_and_ours_are_the_same(registry: SchemaRegistry) -> None:
    value = {"id": 7, "note": "ü"}
    for codec, data in (
        (Confluent(registry.url, "orders-value"), AVRO_BYTES),
        (Confluent(registry.url, "orders-value", ORDER), AVRO_BYTES),
        (Confluent(registry.url, "json-value", kind="json"), JSON_BYTES),
    ):
        assert codec.decode(data) == value
        assert codec.encode(value) == data
    for subject, message, data in (
        ("duration-value", Duration(seconds=7, nanos=5), DURATION_BYTES),
        ("descriptor-value", FieldDescriptorProto(name="x"), FIELD_BYTES),
        ("descriptor-value", DescriptorProto.ExtensionRange(start=3), RANGE_BYTES),
    ):
        framed = Confluent(registry.url, subject, kind="protobuf", message=type(message))
        assert framed.decode(data) == message
        assert framed.encode(message) == data


def test_a_value_is_read_by_the_schema_it_was_written_by_and_resolved_to_the_readers(registry: SchemaRegistry) -> None:
    first = registry.add("orders-value", ORDER)
    second = registry.add("orders-value", LATER)
    old = Confluent(registry.url, "orders-value", ORDER).encode({"id": 7, "note": None})
    new = Confluent(registry.url, "orders-value").encode({"id": 8, "price": 2.0})
    assert (unframe(old)[0], unframe(new)[0]) == (first, second)
    reader = Confluent(registry.url, "orders-value", LATER)
    assert [reader.decode(data) for data in (old, new)] == [{"id": 7, "price": 1.5}, {"id": 8, "price": 2.0}]
    as_written = Confluent(registry.url, "orders-value")
    assert [as_written.decode(data) for data in (old, new)] == [{"id": 7, "note": None}, {"id": 8, "price": 2.0}]
    with pytest.raises(CodecError, match="reader's Avro schema does not fit"):
        Confluent(registry.url, "orders-value", ORDER).decode(new)


def test_an_id_is_asked_for_once_and_what_is_unknown_each_time(registry: SchemaRegistry) -> None:
    codec = Confluent(registry.url, "orders-value")
    for _ in range(5):
        codec.decode(AVRO_BYTES)
    assert registry.asked == ["GET /schemas/ids/1"]
    unknown = frame(5, b"\x0e\x00\x00")
    for _ in range(2):
        with pytest.raises(CodecError, match=r"schema id 5: Schema not found \(HTTP 404\)") as caught:
            codec.decode(unknown)
    assert "another registry" in caught.value.hint
    assert not isinstance(caught.value, RegistryUnavailable)
    registry.add("orders-value", LATER)
    assert codec.decode(frame(5, b"\x0e" + b"\0" * 8)) == {"id": 7, "price": 0.0}


def test_a_schema_is_registered_only_where_that_is_wanted(registry: SchemaRegistry) -> None:
    value = {"id": 1, "price": 1.0}
    with pytest.raises(CodecError, match=r"the schema of subject new-value: Schema not found"):
        Confluent(registry.url, "new-value", LATER).encode(value)
    codec = Confluent(registry.url, "new-value", LATER, register=True)
    assert unframe(codec.encode(value))[0] == 5
    assert codec.decode(codec.encode(value)) == value
    assert registry.asked.count("POST /subjects/new-value/versions") == 1
    assert Confluent(registry.url, "new-value", LATER).encode(value) == codec.encode(value)
    with pytest.raises(CodecError, match="subject json-value: its schema is JSON, expected AVRO"):
        Confluent(registry.url, "json-value").encode(value)


def test_a_registry_that_is_away_is_an_error_that_a_retry_may_end() -> None:
    with closing(SchemaRegistry()) as served:
        url = served.url
    codec = Confluent(url, "orders-value")
    with pytest.raises(RegistryUnavailable, match=f"registry {url}: schema id 1: .*refused") as caught:
        codec.decode(AVRO_BYTES)
    assert "curl" in caught.value.hint


def test_a_user_and_a_password_are_references_and_never_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "s3cret:ü")
    (tmp_path / "user").write_text("ann")
    with closing(SchemaRegistry(("ann", "s3cret:ü"))) as served:
        served.add("orders-value", ORDER)
        with pytest.raises(CodecError, match="HTTP 401") as caught:
            Confluent(served.url, "orders-value").decode(AVRO_BYTES)
        assert "password" in caught.value.hint
        registry = Registry(served.url, user=f"${{file:{tmp_path / 'user'}}}", password="${env:REGISTRY_PASSWORD}")
        assert Confluent(registry, "orders-value").decode(AVRO_BYTES) == {"id": 7, "note": "ü"}
        assert "s3cret" not in f"{registry!r} {vars(registry)}"


@pytest.mark.parametrize(
    ("url", "more", "why"),
    [
        ("localhost:8081", {}, "expected http"),
        ("ftp://localhost", {}, "expected http"),
        ("http://ann:word@localhost", {}, "secret"),
        ("http://ann@localhost", {}, "a user in the address"),
        ("http://localhost", {"user": "ann"}, "go together"),
        ("http://localhost", {"user": "ann", "password": "word"}, "secret"),
    ],
)
def test_an_address_that_cannot_be_and_a_secret_written_out_are_refused(url: str, more: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        Registry(url, **more)
    assert "word" not in str(caught.value).replace("password", "")


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "xml"},
        {"kind": "protobuf"},
        {"message": Duration},
        {"kind": "protobuf", "message": object},
        {"register": True},
    ],
)
def test_options_that_do_not_go_together_are_refused(options: Any) -> None:
    with pytest.raises(ConfigError):
        Confluent("http://localhost", "s", **options)


@pytest.mark.parametrize(
    ("kind", "data", "why"),
    [
        ("avro", b'{"id":7}', "not framed.*zero"),
        ("avro", b"\0\0\0\0", "not framed"),
        ("avro", b"", "not framed"),
        ("avro", JSON_BYTES, "found JSON, expected AVRO"),
        ("avro", AVRO_BYTES[:-1], "not Avro of this schema"),
        ("avro", AVRO_BYTES + b"x", "left over"),
        ("json", b"\0\0\0\0\2{", "not JSON"),
        ("protobuf", b"\0\0\0\0\3", "not Protobuf of Duration"),
        ("protobuf", FIELD_BYTES, r"found the message at \[4\].*expected google.protobuf.Duration at \[0\]"),
        ("protobuf", DURATION_BYTES[:-1], "not Protobuf of Duration"),
    ],
)
def test_what_does_not_fit_is_an_error_that_says_why(
    registry: SchemaRegistry, kind: Any, data: bytes, why: str
) -> None:
    message = Duration if kind == "protobuf" else None
    with pytest.raises(CodecError, match=why):
        Confluent(registry.url, "orders-value", kind=kind, message=message).decode(data)


def test_a_schema_that_refers_to_others_is_refused(registry: SchemaRegistry) -> None:
    number = registry.add("orders-value", ORDER, references=[{"name": "x", "subject": "x", "version": 1}])
    with pytest.raises(CodecError, match="refers to other schemas"):
        Confluent(registry.url, "orders-value").decode(frame(number, b""))


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_a_codec_error(data: bytes) -> None:
    for kind, message in (("json", None), ("protobuf", FieldDescriptorProto)):
        codec = Confluent("http://localhost:1", "s", kind=kind, message=message)  # type: ignore[arg-type]
        with suppress(CodecError):
            codec.decode(b"\0" + data)


def test_values_go_through_a_log_and_back(registry: SchemaRegistry, tmp_path: Path) -> None:
    codec = Confluent(registry.url, "orders-value")
    with SqliteLog(tmp_path / "log.db") as log:
        log.create_topic("orders")
        values = [{"id": number, "note": None if number % 2 else "even"} for number in range(10)]
        log.append("orders", [Event(codec.encode(value)) for value in values])
        assert [codec.decode(record.value or b"") for record in log.read("orders", 0, 0)] == values
