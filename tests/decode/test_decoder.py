"""Decoding without Spark: what is taken, and what is left to it (that both say the same is proved in tests/spark)."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream import Clock, Pipeline
from millstream.decode.decoder import Decoder, FeedDecoder, Records
from millstream.decode.json_lines import Joined
from millstream.framed import frame
from millstream.kernel.admission.gate import Admission
from millstream.kernel.arrow import from_bytes
from millstream.kernel.exchange.chunk import Kind
from millstream.plan.build import ADMIT
from millstream.runtime.setup import chain_of


def decoder(schema: str = "k long, v long", *select: str, kind: str = "stream", **options: Any) -> Decoder:
    pipeline = Pipeline("p", log="sqlite:never.db")
    define = pipeline.stream if kind == "stream" else pipeline.table
    pipeline.view("out", define("events", schema, **options).select(*(select or ("*",))))
    chain = chain_of(pipeline)
    return Decoder(Admission(chain), utc=True)


def records(*values: bytes | None, keys: list[bytes | None] | None = None) -> Records:
    offsets = np.arange(len(values), dtype=np.int64)
    return Records(offsets, offsets, offsets, keys, values)


def packed(made: Decoder, given: Records) -> tuple[list[pl.DataFrame], list[int]]:
    chunks, left = made.pack("events", 0, given)
    return [from_bytes(chunk.data) for chunk in chunks if chunk.kind == Kind.CHANGES], np.flatnonzero(left).tolist()


def test_records_of_plain_types_are_packed_and_the_odd_one_is_left() -> None:
    frames, left = packed(decoder(), records(b'{"k": 1, "v": 2}', b'{"k": "one"}', b"{", None, b'{"v": 5}'))
    assert left == [1, 2, 3]
    (rows,) = frames
    assert rows.select("k", "v", "_offset").rows() == [(1, 2, 0), (None, 5, 4)]


@pytest.mark.parametrize("joined", [False, True])
def test_json_framed_for_a_schema_registry_loses_its_frame_and_what_has_none_is_left(joined: bool) -> None:
    values = [frame(10, b'{"k": 1}'), b'{"k": 2}', frame(2**32 - 1, b'{"k": 3, "v": 4}'), b"\0\0\0\0", frame(1, b"{")]
    made = decoder(codec="confluent-json")
    for wanted in (values, [values[0], values[2]]):
        given = records(*wanted)
        if joined:
            given = given._replace(values=Joined(b"\n".join(wanted), np.array(list(map(len, wanted)), np.int64)))
        frames, left = packed(made, given)
        assert left == [index for index, value in enumerate(wanted) if value not in (values[0], values[2])]
        assert [row[:2] for row in frames[0].select("k", "v").rows()] == [(1, None), (3, 4)]


def test_a_heartbeat_is_left_and_what_only_has_a_key_like_one_is_not() -> None:
    keys = [b"1", b"millstream.heartbeat.0", b"millstream.heartbeat.0", b"millstream.heartbeat.x", None]
    beat = b'{"time":5,"pipeline":"p"}'
    frames, left = packed(decoder(), records(b'{"k": 1}', beat, b'{"k": 1}', beat, beat, keys=keys))
    assert left == [1]
    assert frames[0]["_offset"].to_list() == [0, 2, 3, 4]


def test_a_stream_with_event_time_goes_to_admission_with_its_time() -> None:
    made = decoder("k long, at timestamp", time="at")
    chunks, left = made.pack("events", 0, records(b'{"at": "1970-01-01T00:00:01Z"}', b'{"k": 1}'))
    assert np.flatnonzero(left).tolist() == [1]
    (chunk,) = chunks
    assert chunk.stage == ADMIT
    assert from_bytes(chunk.data)["_t"].to_list() == [1_000_000]


TWICE = [
    b'{"k": 0, "at": "1970-01-01T00:00:01Z"}',
    b'{"k": 1, "at": "garbage", "at": "1970-01-01T00:00:02Z"}',
    rb'{"k": 2, "\u0061t": "garbage", "at": "1970-01-01T00:00:03Z"}',
    b'{"k": 3, "at": "1970-01-01T00:00:04Z", "who": "at", "at2": {"at": 1}}',
    b'{"k": 4, "who": "\\u00e9", "at": "1970-01-01T00:00:05Z"}',
]


@pytest.mark.parametrize("joined", [False, True])
def test_a_time_that_comes_twice_is_left_to_spark_which_minds_the_first(joined: bool) -> None:
    values = TWICE if not joined else Joined(b"\n".join(TWICE), np.array(list(map(len, TWICE)), np.int64))
    offsets = np.arange(len(TWICE), dtype=np.int64)
    frames, left = packed(decoder("k long, at timestamp"), Records(offsets, offsets, offsets, None, values))
    assert left == [1, 2]
    assert [row[0] for row in frames[0].select("k").rows()] == [0, 3, 4]


def test_fields_of_one_name_in_two_structs_are_no_repetition() -> None:
    value = b'{"before": {"at": "1970-01-01T00:00:01Z"}, "after": {"at": "1970-01-01T00:00:02Z"}}'
    made = decoder("before struct<at: timestamp>, after struct<at: timestamp>", "before.at AS b", "after.at AS a")
    assert packed(made, records(value))[1] == []


def test_processing_time_is_that_of_the_append() -> None:
    made = decoder("k long", time="_append_time")
    chunks, left = made.pack("events", 0, records(b'{"k": 1}', b'{"k": "one"}', b'{"k": 3}'))
    assert np.flatnonzero(left).tolist() == [1]
    assert from_bytes(chunks[0].data)["_t"].to_list() == [0, 2]


def test_a_table_takes_records_with_a_value_and_a_key_in_it() -> None:
    frames, left = packed(decoder(kind="table", key="k"), records(b'{"k": 1, "v": 2}', b'{"v": 2}', None))
    assert left == [1, 2]
    assert frames[0]["_deleted"].to_list() == [False]


KEYED: list[tuple[bytes | None, bytes | None]] = [
    (b"1", b'{"k": 1, "v": 2}'), (b"-7", None), (b'{"k":8,"v":9}', None), (b"x", None), (None, None), (b"9223372036854775807", None), (b"\xff", None),
    (b"2", b'{"k": 2, "v": 3}'), (b'{"k":"8"}', None), (b'"8"', None), (b"+8", None), (b" 8", None),
]  # fmt: skip


@pytest.mark.parametrize("joined", [False, True])
def test_a_tombstone_is_a_row_that_is_gone_with_the_key_of_its_record(joined: bool) -> None:
    keys, values = (list(each) for each in zip(*KEYED, strict=True))
    given = records(*values, keys=keys)
    if joined:
        lengths = np.array([-1 if value is None else len(value) for value in values], np.int64)
        given = given._replace(values=Joined(b"\n".join(value for value in values if value is not None), lengths))
    frames, left = packed(decoder(kind="table", key="k"), given)
    rows = pl.concat(frames).sort("_offset")
    assert rows.select("_offset", "k", "_deleted").rows() == [(0, 1, False), (1, -7, True), (2, 8, True), (7, 2, False)]
    assert rows.filter("_deleted").drop("k", "_offset", "_deleted", "_c0").null_count().row(0) == (2,)
    assert left == [3, 4, 5, 6, 8, 9, 10, 11]
    assert packed(decoder(kind="table", key="k"), given._replace(keys=None))[1] == [
        i for i, (_, v) in enumerate(KEYED) if v is None
    ]


def test_a_chunk_with_tombstones_is_decoded_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    made = decoder(kind="table", key="k")
    feed = made.feeds["events"]
    assert isinstance(feed, FeedDecoder)

    def never(value: bytes) -> None:
        raise AssertionError(f"{value!r} is decoded by itself")

    monkeypatch.setattr(feed._rows, "_decode", never)
    values = Joined(b'{"k": 1}\n{"k": 2}', np.array([8, -1, 8], np.int64))
    frames, left = packed(made, records(*values, keys=[None, b"5", None])._replace(values=values))
    assert (pl.concat(frames).sort("_offset")["k"].to_list(), left) == ([1, 5, 2], [])


@pytest.mark.parametrize(
    ("schema", "select", "options"),
    [
        ("k array<long>", (), {}),
        ("k decimal(38, 18)", (), {}),
        ("k float", (), {}),
        ("k string", ("regexp_replace(k, 'a', 'b') AS r",), {}),
        ("line string", (), {"codec": "text"}),
        ("k long, at timestamp, said timestamp", (), {"time": "at", "clock": Clock(sent="said")}),
    ],
)
def test_what_only_spark_can_do_is_left_to_spark(schema: str, select: tuple[str, ...], options: dict[str, Any]) -> None:
    made = decoder(schema, *select, **options)
    assert not made.useful
    assert made.pack("events", 0, records(b"{}"))[1].all()


def test_what_depends_on_the_zone_is_computed_where_that_is_utc() -> None:
    made = decoder("at timestamp", "date_format(at, 'HH:mm') AS minute")
    frames, left = packed(made, records(b'{"at": "2026-01-31T12:34:56Z"}'))
    assert (frames[0]["minute"].to_list(), left) == (["12:34"], [])
    elsewhere = Decoder(made.admission, utc=False)
    assert dict(elsewhere.feeds) == {"events": "date_format(at, 'HH:mm')"}


def test_keys_and_timestamps_are_asked_for_where_an_expression_looks_at_them() -> None:
    assert not decoder().wants_all("events")
    assert decoder("k long", "_key AS key").wants_all("events")
    assert decoder("k long", "_timestamp AS said").wants_all("events")


def test_an_overflow_is_left_to_spark_which_knows_what_to_say() -> None:
    made = decoder("k long", "k + 1 AS more")
    frames, left = packed(made, records(b'{"k": 1}', b'{"k": 9223372036854775807}'))
    assert left == [1]
    assert frames[0]["more"].to_list() == [2]


GOOD = [b'{"k": 1}', b'{"k":2,"v":3}', b"{}", b'{"k": 1,\n"v": 2}', b'{"zz": "' + b"z" * 1000 + b'"}']
ODD = [
    b'{"k": 1,', b'"v": 2}', b'{"k": 5}{"k": 6}', b'{"k": 7}\n{"k": 8}', b"", b"\n", b' {"k": 1}', b'{"k": 1}\n', b"}", b"{",
    b'{"zz": "}', b'{"}', b'{"zz": {}', b'{"zz": [{}', b'{"k": 1}]}', b'{"k": 1}}', b'{"k": "x"}', b"null", b'{"k": 9}\0',
    b'{"zz": ' + b"9" * 1000 + b"}",
]  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.sampled_from(GOOD) | st.sampled_from(ODD), max_size=8))
@example([b'{"k": 1,', b'"v": 2}', b'{"k": 5}{"k": 6}'])
@example([b'{"zz": ', b'{"k": 1}}', b'{"k": 5}{"k": 6}'])
@example([b'{"zz": {}', b'{"k": 5}{"k": 6}', b'{"k": 1}'])
def test_values_in_one_piece_are_decoded_as_each_by_itself(values: list[bytes]) -> None:
    given = records(*values)
    joined = Joined(b"\n".join(values), np.array([len(value) for value in values], np.int64))
    made = decoder()
    alone, together = packed(made, given), packed(made, given._replace(values=joined))
    assert together[1] == alone[1]
    assert [rows.rows() for rows in together[0]] == [rows.rows() for rows in alone[0]]


def test_a_sequence_in_one_piece_is_a_sequence() -> None:
    values = [b"a", b"", b"\n", b"bcd"]
    joined = Joined(b"\n".join(values), np.array([len(value) for value in values]))
    assert (list(joined), joined[-1], joined[1:3]) == (values, b"bcd", [b"", b"\n"])
    with pytest.raises(IndexError):
        joined[4]


def test_a_decoder_survives_the_way_to_a_worker() -> None:
    made: Decoder = pickle.loads(pickle.dumps(decoder()))
    assert packed(made, records(b'{"k": 1}'))[1] == []
