"""A codec gives back what it took, and what does not fit is a CodecError, never something else."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.codec import Avro, Codec, Json, Text
from millstream.errors import CodecError

text = st.text(st.characters(exclude_categories=["Cs"]))
json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        text,
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=20,
)

PAGE: dict[str, Any] = {
    "type": "record",
    "name": "Page",
    "fields": [
        {"name": "user", "type": "long"},
        {"name": "page", "type": "string"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "score", "type": ["null", "double"]},
        {"name": "raw", "type": "bytes"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["VIEW", "CLICK"]}},
    ],
}
pages = st.fixed_dictionaries(
    {
        "user": st.integers(-(2**63), 2**63 - 1),
        "page": text,
        "tags": st.lists(text, max_size=4),
        "score": st.none() | st.floats(allow_nan=False),
        "raw": st.binary(max_size=50),
        "kind": st.sampled_from(["VIEW", "CLICK"]),
    }
)
ORDER_1: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "gone", "type": "string"}],
}
ORDER_2: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "price", "type": "double", "default": 1.5}],
}


def same(left: Any, right: Any) -> bool:
    """Equal, and a float stays a float: 1 == 1.0 would hide a change of type."""
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return isinstance(right, dict) and left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return type(left) is type(right) and left == right


# JSON


@given(json_values)
def test_json_gives_back_what_it_took(value: Any) -> None:
    assert same(Json().decode(Json().encode(value)), value)


@given(
    st.binary(max_size=40) | st.lists(st.sampled_from([b"{", b"}", b"[", b"]", b'"a"', b":", b",", b"1"])).map(b"".join)
)
def test_any_bytes_are_json_or_a_codec_error(data: bytes) -> None:
    try:
        value = Json().decode(data)
    except CodecError:
        return
    assert Json().decode(Json().encode(value)) == value


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [lambda x: x, lambda x: [1, x], lambda x: {"a": {"b": (x,)}}])
def test_json_refuses_numbers_that_json_does_not_have(number: float, where: Any) -> None:
    with pytest.raises(CodecError, match="NaN or an infinity"):
        Json().encode(where(number))


def test_a_null_beside_finite_numbers_is_fine() -> None:
    assert Json().encode({"a": None, "b": 1.5}) == b'{"a":null,"b":1.5}'


def test_json_writes_times_and_bytes_as_text() -> None:
    assert Json().encode({"at": datetime(2026, 1, 1, tzinfo=UTC), "raw": b"\xff"}) == (
        b'{"at":"2026-01-01T00:00:00Z","raw":"/w=="}'
    )


@pytest.mark.parametrize("value", [object(), {(1, 2): 3}, "\ud800", 1j])
def test_what_is_not_json_is_refused_by_type(value: Any) -> None:
    with pytest.raises(CodecError, match=f"cannot write {type(value).__name__} as JSON"):
        Json().encode(value)


@pytest.mark.parametrize("data", [b"", b"{", b'{"a":1} x', b"NaN", b'"\xff"', b"1e999", b"[" * 100_000])
def test_what_is_not_json_is_not_decoded(data: bytes) -> None:
    with pytest.raises(CodecError, match="not JSON"):
        Json().decode(data)


def test_an_error_shows_only_the_beginning_of_the_bytes() -> None:
    with pytest.raises(CodecError) as caught:
        Json().decode(b"x" * 10_000)
    assert len(str(caught.value)) < 300
    assert "…" in str(caught.value)


# text


@given(text)
def test_text_gives_back_what_it_took(value: str) -> None:
    assert Text().decode(Text().encode(value)) == value


@given(st.binary(max_size=30))
def test_any_bytes_are_text_or_a_codec_error(data: bytes) -> None:
    try:
        value = Text().decode(data)
    except CodecError:
        return
    assert Text().encode(value) == data


@pytest.mark.parametrize(("value", "why"), [(b"bytes", "expected str"), (7, "expected str"), ("\ud800", "as UTF-8")])
def test_what_is_not_text_is_refused(value: Any, why: str) -> None:
    with pytest.raises(CodecError, match=why):
        Text().encode(value)


# Avro


@given(pages)
def test_avro_gives_back_what_it_took(value: dict[str, Any]) -> None:
    assert same(Avro(PAGE).decode(Avro(PAGE).encode(value)), value)


@given(st.binary(max_size=60))
def test_any_bytes_are_avro_or_a_codec_error(data: bytes) -> None:
    try:
        value = Avro(PAGE).decode(data)
    except CodecError:
        return
    assert value.keys() == {field["name"] for field in PAGE["fields"]}


@given(pages, st.integers(0, 200))
def test_avro_cut_short_is_refused(value: dict[str, Any], cut: int) -> None:
    data = Avro(PAGE).encode(value)
    with pytest.raises(CodecError):
        Avro(PAGE).decode(data[: min(cut, len(data) - 1)])


def test_bytes_left_over_are_refused() -> None:
    with pytest.raises(CodecError, match="2 bytes left over"):
        Avro(ORDER_2).decode(Avro(ORDER_2).encode({"id": 7, "price": 2.0}) + b"xx")


def test_a_reader_schema_reads_what_an_older_one_wrote() -> None:
    written = Avro(ORDER_1).encode({"id": 7, "gone": "x"})
    assert Avro(ORDER_1, ORDER_2).decode(written) == {"id": 7, "price": 1.5}


def test_a_reader_schema_that_does_not_fit_is_a_codec_error() -> None:
    needs_more = {**ORDER_2, "fields": [{"name": "id", "type": "long"}, {"name": "new", "type": "string"}]}
    written = Avro(ORDER_1).encode({"id": 7, "gone": "x"})
    with pytest.raises(CodecError, match=r"reader's Avro schema does not fit.*new"):
        Avro(ORDER_1, needs_more).decode(written)


@pytest.mark.parametrize("value", [None, 5, {}, {"id": "x", "price": 1.0}, {"id": 1}, {"id": 1, "price": 1.0, "z": 2}])
def test_a_value_that_does_not_fit_the_schema_is_refused(value: Any) -> None:
    with pytest.raises(CodecError, match="does not fit the Avro schema"):
        Avro(ORDER_2).encode(value)


@pytest.mark.parametrize(
    "schema", [{"type": "nope"}, {}, {"type": "array"}, {"type": "enum", "name": "E"}, {"type": "record", "fields": []}]
)
def test_what_is_not_a_schema_is_refused_at_once(schema: dict[str, Any]) -> None:
    with pytest.raises(CodecError, match="not an Avro schema"):
        Avro(schema)
    with pytest.raises(CodecError, match="not an Avro schema"):
        Avro(ORDER_1, schema or {"type": "nope"})


def test_codecs_have_names_of_their_own() -> None:
    codecs: list[Codec] = [Json(), Text(), Avro(PAGE)]
    assert [codec.name for codec in codecs] == ["json", "text", "avro"]
