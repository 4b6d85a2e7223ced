"""Debezium's envelopes in Avro say what they say in JSON; what is none of them is told apart."""

from __future__ import annotations

import base64
import json
import math
import pickle
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream import Debezium, Registry
from millstream.errors import CodecError, ConfigError, RegistryUnavailable
from tests.debezium_avro import AvroConverter, key_schema, value_schema
from tests.schema_registry import SchemaRegistry

VARIABLE = {
    "type": "record",
    "name": "VariableScaleDecimal",
    "namespace": "io.debezium.data",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
    "connect.name": "io.debezium.data.VariableScaleDecimal",
}


def connect(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "connect.version": 1, "connect.name": name}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    said = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    return {**connect("bytes", "org.apache.kafka.connect.data.Decimal"), "scale": scale, "precision": precision,
            "connect.parameters": said, "logicalType": "decimal"}  # fmt: skip


COLUMNS = {
    "id": "long",
    "note": ["null", "string"],
    "n": ["null", "int"],
    "x": ["null", "double"],
    "f": ["null", "float"],
    "yes": ["null", "boolean"],
    "raw": ["null", "bytes"],
    "born": ["null", connect("int", "io.debezium.time.Date")],
    "day": ["null", connect("int", "org.apache.kafka.connect.data.Date") | {"logicalType": "date"}],
    "seen": ["null", connect("long", "io.debezium.time.MicroTimestamp")],
    "at": ["null", connect("long", "org.apache.kafka.connect.data.Timestamp") | {"logicalType": "timestamp-millis"}],
    "zoned": ["null", connect("string", "io.debezium.time.ZonedTimestamp")],
    "doc": ["null", connect("string", "io.debezium.data.Json")],
    "p": ["null", decimal(30, 4)],
    "v": ["null", VARIABLE],
    "w": ["null", "io.debezium.data.VariableScaleDecimal"],
    "list": ["null", {"type": "array", "items": ["null", "double"]}],
    "pairs": ["null", {"type": "map", "values": ["null", "string"]}],
}


def bytes_of(whole: int) -> bytes:
    return whole.to_bytes((whole.bit_length() // 8) + 1, "big", signed=True)


def scaled(whole: int, scale: int) -> str:
    """A number as Java's ``toPlainString`` writes it."""
    digits = str(abs(whole)).rjust(scale + 1, "0")
    return ("-" if whole < 0 else "") + (f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits)


def number(value: float) -> float | str:
    return value if math.isfinite(value) else "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


LONG, INT = st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=9) | st.just("__debezium_unavailable_value")
ROW = st.fixed_dictionaries(
    {"id": LONG},
    optional={
        "note": TEXT, "n": INT, "x": st.floats(), "yes": st.booleans(), "raw": st.binary(max_size=5), "born": INT, "day": INT, "seen": LONG, "at": LONG,
        "zoned": TEXT, "doc": TEXT, "list": st.lists(st.none() | st.floats(), max_size=3), "pairs": st.dictionaries(TEXT, st.none() | TEXT, max_size=2),
        "f": st.integers(-999_999, 999_999).map(lambda whole: whole / 1000), "p": st.integers(-(10**30) + 1, 10**30 - 1),
        "v": st.tuples(LONG, st.integers(0, 9)), "w": st.tuples(st.integers(-(10**40), 10**40), st.integers(0, 9)),
    },
)  # fmt: skip


def in_avro(row: dict[str, Any] | None) -> dict[str, Any] | None:
    """A row as it is in Avro."""
    if row is None:
        return None
    made = {name: row.get(name) for name in COLUMNS}
    if "p" in row:
        made["p"] = Decimal(row["p"]).scaleb(-4) if abs(row["p"]) < 10**20 else bytes_of(row["p"])
    for name in {"v", "w"} & set(row):
        made[name] = {"value": bytes_of(row[name][0]), "scale": row[name][1]}
    return made


def in_json(row: dict[str, Any] | None) -> dict[str, Any] | None:
    """The same as Debezium's JSON converter has it, with decimals as text."""
    if row is None:
        return None
    made = {name: row.get(name) for name in COLUMNS}
    for name in {"x"} & set(row):
        made[name] = number(row[name])
    if "raw" in row:
        made["raw"] = base64.b64encode(row["raw"]).decode()
    if "list" in row:
        made["list"] = [None if each is None else number(each) for each in row["list"]]
    if "p" in row:
        made["p"] = scaled(row["p"], 4)
    for name in {"v", "w"} & set(row):
        made[name] = scaled(*row[name])
    return made


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    made = SchemaRegistry()
    yield made
    made.close()


@given(op=st.sampled_from("crud"), before=st.none() | ROW, row=ROW, lsn=st.none() | LONG, cut=st.booleans())
@settings(max_examples=200, deadline=None)
def test_an_envelope_in_avro_is_what_it_is_in_json(
    registry: SchemaRegistry, op: str, before: dict[str, Any] | None, row: dict[str, Any], lsn: int | None, cut: bool
) -> None:
    value = AvroConverter(registry, "shop.public.users-value", value_schema(COLUMNS))
    codec, after = Debezium(registry.url), None if op == "d" else row
    source = {"version": "3.0", "connector": "postgresql", "name": "shop", "ts_ms": 5, "snapshot": "false", "db": "shop", "sequence": None,
              "schema": "public", "table": "users", "txId": 7, "lsn": lsn, "xmin": None}  # fmt: skip
    rest = {"source": source, "op": op, "ts_ms": 17}
    rest["transaction"] = {"id": "7:1", "total_order": 1, "data_collection_order": 1} if cut else None
    framed = value({"before": in_avro(before), "after": in_avro(after), **rest})
    assert json.loads(codec.to_json(framed)) == {"before": in_json(before), "after": in_json(after), **rest}
    key = AvroConverter(registry, "shop.public.users-key", key_schema({"id": "long"}))
    assert json.loads(codec.to_json(key({"id": row["id"]}))) == {"id": row["id"]}


def test_a_fraction_of_four_bytes_has_the_digits_that_it_needs(registry: SchemaRegistry) -> None:
    write = AvroConverter(registry, "f", {"type": "record", "name": "f", "fields": [{"name": "f", "type": "float"}]})
    for value in (0.1, -2.5, 1e30, 3.4028235e38, 16777216.0, 0.0, float("nan"), float("-inf")):
        found = json.loads(Debezium(registry.url).to_json(write({"f": value})))["f"]
        assert found == number(value), value


def test_a_schema_may_name_what_stands_around_it(registry: SchemaRegistry) -> None:
    tree = {"type": "record", "name": "tree", "fields": [{"name": "x", "type": "double"}, {"name": "in", "type": ["null", "tree"]}]}  # fmt: skip
    value = {"x": float("inf"), "in": {"x": 1.0, "in": {"x": float("nan"), "in": None}}}
    found = Debezium(registry.url).to_json(AvroConverter(registry, "tree", tree)(value))
    assert json.loads(found) == {"x": "Infinity", "in": {"x": 1.0, "in": {"x": "NaN", "in": None}}}


def test_what_is_no_envelope_is_told_to_the_reader_and_what_the_registry_does_not_know_stops(
    registry: SchemaRegistry,
) -> None:
    codec, write = Debezium(registry.url), AvroConverter(registry, "k-key", key_schema({"id": "long"}))
    framed = write({"id": 5})
    assert (codec.as_value(None), codec.as_key(None), codec.as_value(b'{"op":"d"}'), codec.as_key(b"5")) == (
        None, None, b'{"op":"d"}', b"5",
    )  # fmt: skip
    why = f"not what schema id {write.number} says".encode()
    assert codec.as_value(framed[:5]) == codec.as_value(framed + b"x") == codec.as_key(framed[:-1]) == why
    assert codec.as_value(b"\0\0") == b"cut off: no id of a schema"
    for text in (why, b"cut off: no id of a schema"):
        with pytest.raises(msgspec.DecodeError):
            msgspec.json.decode(text)
    with pytest.raises(CodecError, match="eight bytes, as Apicurio's converter"):
        codec.as_value(b"\0" + (7).to_bytes(8, "big") + b"\2")
    with pytest.raises(CodecError, match="schema id 999"):
        codec.as_value(b"\0" + (999).to_bytes(4, "big") + b"\2")
    several = {"type": "record", "name": "s", "fields": [{"name": "s", "type": ["null", "float", "string"]}]}
    with pytest.raises(CodecError, match="a union of several types"):
        codec.as_value(AvroConverter(registry, "s", several)({"s": "x"}))
    message = registry.add("proto", 'syntax = "proto3"; message X {}', "PROTOBUF")
    with pytest.raises(CodecError, match="is PROTOBUF; envelopes of Debezium are read in Avro or JSON"):
        codec.as_value(b"\0" + message.to_bytes(4, "big"))


def test_json_with_a_schema_in_the_registry_is_read_too(registry: SchemaRegistry) -> None:
    told = registry.add("j-value", {"type": "object"}, "JSON")
    assert Debezium(registry.url).to_json(b"\0" + told.to_bytes(4, "big") + b'{"op":"d"}') == b'{"op":"d"}'


def test_who_asks_goes_with_it_to_another_process_and_an_id_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    private = SchemaRegistry(login=("ann", "s3cret"))
    try:
        write = AvroConverter(private, "k", key_schema({"id": "long"}))
        monkeypatch.setenv("REGISTRY_WORD", "s3cret")
        codec = Debezium(Registry(private.url, user="ann", password="${env:REGISTRY_WORD}"))
        sent = pickle.dumps(codec)
        monkeypatch.delenv("REGISTRY_WORD")
        with pytest.raises(ConfigError, match="no such environment variable"):
            codec.to_json(write({"id": 1}))
        there: Debezium = pickle.loads(sent)
        assert [json.loads(there.to_json(write({"id": each}))) for each in (1, 2)] == [{"id": 1}, {"id": 2}]
        assert len(private.asked) == 1
        assert "s3cret" not in repr(vars(there)) + repr(there.registry)
    finally:
        private.close()
    with pytest.raises(RegistryUnavailable):
        Debezium(private.url).to_json(write({"id": 1}))
