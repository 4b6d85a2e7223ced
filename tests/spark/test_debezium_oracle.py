"""Debezium's envelopes: what the fast reader makes of each, and what a trial judges without Spark, is what Spark makes of it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from millstream import Pipeline
from millstream.decode.decoder import Decoder, FeedDecoder
from millstream.decode.leftovers import judge, to_records
from millstream.errors import NeedsSpark
from millstream.event import Record
from millstream.kernel.admission.gate import Admission
from millstream.kernel.admission.record import column_of
from millstream.plan.build import Chain
from millstream.relation.debezium import NOT_SENT, TRUNCATED, UNAVAILABLE, UNNUMBERED
from millstream.runtime.setup import chain_of
from millstream.spark.lowering import decode
from millstream.spark.records import COLUMNS
from tests.spark.test_decode_oracle import EPOCH

SCHEMA = "id long, note string, n int, x double, at timestamp, p decimal(12, 2), doc struct<a: long, b: string>"
Pair = tuple[bytes | None, bytes | None]


def chain(key: str | Sequence[str] = "id", schema: str = SCHEMA, **options: Any) -> Chain:
    pipeline = Pipeline("oracle")
    table = pipeline.table("parts", schema, key=key, codec="debezium", **options)
    pipeline.view("all", table.select("id", "note", "n", "x", "at", "p", "n + 1 AS more", "doc.a AS a", "doc.b AS b"))
    return chain_of(pipeline)


class Found(NamedTuple):
    """How many records were decoded without Spark, judged without it, and left to it; and what Spark made of all."""

    decoded: int
    judged: int
    left: int
    theirs: pl.DataFrame


def compare(spark: SparkSession, plan: Chain, pairs: Sequence[Pair]) -> Found:
    """Hold the decoder and the judge to Spark, record by record."""
    (feed,) = plan.feeds
    decoder = Decoder(Admission(plan), utc=True).feeds["parts"]
    assert isinstance(decoder, FeedDecoder)
    records = [Record("parts", 0, i, key, value, i * 1000, i * 2000) for i, (key, value) in enumerate(pairs)]
    decoded, left = decoder.decode(0, to_records(records))
    frames = []
    for record in (record for record, is_left in zip(records, left, strict=True) if is_left):
        try:
            frames.append(judge(decoder, "oracle", 0, [record]))
        except NeedsSpark:
            continue
    rows = [
        (r.key, r.value, r.topic, r.partition, r.offset, EPOCH + timedelta(seconds=r.offset), EPOCH + timedelta(seconds=2 * r.offset))
        for r in records
    ]  # fmt: skip
    kinds = ("binary", "binary", "string", "int", "bigint", "timestamp", "timestamp")
    ddl = ", ".join(f"{name} {kind}" for name, kind in zip(COLUMNS, kinds, strict=True))
    native = pl.DataFrame(decode(spark.createDataFrame(rows, ddl), plan, "oracle").toArrow()).sort("_o")
    for ours in (decoded, *frames):
        theirs = native.filter(pl.col("_o").is_in(ours["_o"].to_list()))
        usable = theirs["_bad"].is_null()
        for name in ours.columns:
            column = column_of(feed, name) if any(name == each.name for each in feed.expressions) else name
            same = ours[name].eq_missing(theirs[column]) | (~usable & (column != "_bad"))
            wrong = ours.filter(~same)["_o"].to_list()
            assert not wrong, (name, [pairs[i] for i in wrong[:3]], ours.filter(~same)[name][:3].to_list(),
                               theirs.filter(~same)[column][:3].to_list())  # fmt: skip
    judged = sum(each.height for each in frames)
    return Found(decoded.height, judged, int(left.sum()) - judged, native)


def wrap(value: Any) -> Any:
    return {"schema": {"type": "struct", "fields": [{"field": "before"}, {"field": "after"}]}, "payload": value}


ROWS = [
    {"id": 6, "note": "\t", "x": -0.0, "p": 2.5, "doc": {}}, {"id": 0, "n": -7, "at": None, "doc": {"a": None, "c": 1}},
    None, {}, {"id": 1}, {"id": 1, "note": "ü😀", "n": 5, "x": 0.5, "at": "2026-01-31T12:00:00Z", "p": 1.25, "doc": {"a": 1, "b": "x"}},
    {"id": 2, "note": None, "n": 2147483647, "x": 1e300, "at": "2026-01-31T12:00:00.123456Z", "p": "3.10", "doc": None, "more": [1, {"id": 7}]},
    {"id": -9223372036854775808, "note": '"after"', "p": 0.005}, {"id": 9223372036854775808}, {"id": "7"}, {"id": 3, "n": 2147483648},
    {"id": 3, "note": 7}, {"id": 3, "at": "soon"}, {"id": 3, "doc": {"a": "x"}}, {"id": 3, "doc": [1]}, {"note": "x"}, [], [1], "x", 7, True,
    {"id": 4, "note": UNAVAILABLE}, {"id": 4, "n": UNAVAILABLE}, {"id": 4, "doc": {"b": UNAVAILABLE}}, {"id": 4, "unused": UNAVAILABLE},
]  # fmt: skip
BEFORE = [None, {"id": 1}, {"id": "x"}, {"id": 2, "note": UNAVAILABLE, "at": "soon", "n": "x"}, {}, "x"]
SOURCES = [{"lsn": 5}, {"file": "bin.000002", "pos": 7, "row": 3}, None, {"lsn": "5"}]
KEYS = [None, b"7", b'{"id":8}', b'{"schema":{"type":"struct"},"payload":{"id":9}}', b'"x"', b"x", b"\xff", b'{"id":null,"payload":{"id":3}}',
        b'{"payload":{}}', b'{"id":5,"note":"k"}', b'{"other":1}', b"99999999999999999999", b"{"]  # fmt: skip
WHOLE = [
    b"", b"null", b"{}", b"[]", b'"x"', b"17", b"junk", b'{"op":"c"', b'{"op":5,"after":{"id":1}}', b'{"op":null,"after":{"id":1}}', b'{"op":"t"}',
    b'{"op":"m","after":{"id":1}}', b'{"op":"t","after":null,"before":null}', b'{"id":1,"note":"x"}', b'{"payload":null,"op":"c","after":{"id":1}}',
    b'{"payload":"x","op":"c","after":{"id":1}}', b'{"payload":{},"op":"c","after":{"id":1}}', b'{"payload":[{"op":"c","after":{"id":1}}]}',
    b'{"op":"c","after":{"id":"x"},"after":{"id":1}}', b'{"op":"c","after":{"id":1,"at":"x"},"after":{"id":1,"at":"2026-01-31T12:00:00Z"}}',
    b'{"op":"c","after":{"id":1,"at":"x","at":"2026-01-31T12:00:00Z"}}', b'{"op":"c","after":{"id":1},"op":"d","before":{"id":1}}',
    b'{"op":"c","\\u0061fter":{"id":1,"at":"x"},"after":{"id":1,"at":"2026-01-31T12:00:00Z"}}', b'{"op":"c","after":{"id":1,"\\u0061t":"x","at":"2026-01-31T12:00:00Z"}}',
    b'{"payload":{"op":"c","after":{"id":1,"at":"x"}},"payload":{"op":"c","after":{"id":1,"at":"2026-01-31T12:00:00Z"}}}',
    b'{"op":"c","after":{"id":1,"p":0.12345678901234567890123}}', b'{"op":"c","after":{"id":1,"x":NaN}}', b"{'op':'c','after':{'id':1}}",
    b'{"op":"c","after":{"id":1}} {"op":"c"}', b'{"op":"c","after":{"id":1}}\n{"op":"c","after":{"id":2}}', b'{"op":"u","before":null,"after":{"id":1,"note":"\xff"}}',
    b'{"op":"c","after":' + b'{"a":' * 1100 + b"1" + b"}" * 1100 + b"}", b'{"op":"\\u0063","after":{"id":1}}', b'{"OP":"c","after":{"id":1}}',
    b'{"op":"c","after":{"id":1,"note":"\\u005f_debezium_unavailable_value"}}', b'{"op":"c","after":{"id":1,"_op":5,"_lsn":"x"}}',
]  # fmt: skip


def envelopes(rows: Sequence[Any] = ROWS) -> list[bytes]:
    made = [
        {"op": op, "before": before, "after": after, "source": SOURCES[index % len(SOURCES)], "ts_ms": 17}
        for index, (op, before, after) in enumerate(itertools.product(["c", "u", "r", "d", "t", "x"], BEFORE, rows))
    ]
    return [json.dumps(wrap(each) if index % 3 == 0 else each).encode() for index, each in enumerate(made)]


@pytest.mark.parametrize("deduplicate", [False, True])
def test_odd_envelopes_are_read_as_spark_reads_them(spark: SparkSession, deduplicate: bool) -> None:
    pairs: list[Pair] = [(b"1", value) for value in envelopes()]
    pairs += [
        (key, value)
        for key in KEYS
        for value in (None, *WHOLE, b'{"op":"d"}', b'{"op":"d","before":{}}', b'{"op":"c","after":{}}')
    ]
    found = compare(spark, chain(deduplicate=deduplicate), pairs)
    assert found.decoded > 40
    assert found.judged > 600
    reasons = set(found.theirs["_bad"].drop_nulls())
    assert {TRUNCATED, NOT_SENT, "no value in column id"} <= reasons
    assert (UNNUMBERED in reasons) == deduplicate


@pytest.mark.parametrize("key", ["note", ["id", "note"], "p", "at", ["note", "payload"]])
def test_a_key_is_read_as_spark_reads_it_wherever_it_stands(spark: SparkSession, key: str | list[str]) -> None:
    keys = [*KEYS, b'{"id":3,"note":"k"}', b'{"note":"\xc3\xbc"}', b'{"payload":{"id":3,"note":"k"}}', b'{"note":"a","payload":{"id":3,"note":"k"}}',
            b'{"p":1.5}', b"1.50", b'{"at":"2026-01-31T12:00:00Z"}', b"2026-01-31T12:00:00Z", b'{"note":"a","payload":"b"}', b""]  # fmt: skip
    values = [
        None, b'{"op":"d","before":null}', b'{"op":"d","before":{"id":1,"note":"b","p":2.5,"at":"2026-01-31T12:00:00Z","payload":"c"}}',
        b'{"op":"c","after":{"id":1,"note":"b","p":2.5,"at":"2026-01-31T12:00:00Z","payload":"c"}}', b'{"op":"c","after":{"n":3}}',
    ]  # fmt: skip
    schema = SCHEMA + ", payload string"
    found = compare(spark, chain(key, schema), [(key, value) for key in keys for value in values])
    assert found.decoded >= len(keys)


TEXT = st.text(max_size=12) | st.sampled_from(
    ["", '"after"', '"payload":', "\\u0061", "\x00", "ünïcödé 😀", UNAVAILABLE]
)
LONG = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 2**63 - 1, -(2**63), 2**63])
COLUMN: dict[str, st.SearchStrategy[Any]] = {
    "id": LONG, "note": TEXT, "n": st.integers(-(2**31), 2**31 - 1) | st.sampled_from([2**31, 1.5, "x"]),
    "x": st.floats(allow_nan=False, allow_infinity=False), "at": st.datetimes().map(lambda at: at.isoformat() + "Z") | st.just("soon"),
    "p": st.decimals(-999999, 999999, places=2).map(float) | st.just("12.34"),
    "doc": st.fixed_dictionaries({}, optional={"a": LONG, "b": TEXT, "c": TEXT}),
    "extra": st.recursive(st.none() | TEXT, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2), max_leaves=4),
}  # fmt: skip
ROW = st.fixed_dictionaries(
    {"id": LONG}, optional={name: st.none() | each for name, each in COLUMN.items() if name != "id"}
)


@st.composite
def changes(draw: st.DrawFn) -> list[Pair]:
    """What a connector makes of one change: of a changed key three records, of a delete two."""
    row, op = draw(ROW), draw(st.sampled_from(["c", "u", "r", "d", "key"]))
    old = row | draw(st.sampled_from([{}, {"note": None}]))
    before = draw(st.sampled_from([None, {"id": row["id"]}, old]))
    source = draw(st.sampled_from([{"lsn": draw(LONG)}, {"file": "bin.000009", "pos": 4, "row": 0}]))
    wrapped, spaced, escaped = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())

    def record(key: Any, envelope: dict[str, Any] | None) -> Pair:
        name = json.dumps({"schema": {}, "payload": {"id": key}} if wrapped else {"id": key}).encode()
        if envelope is None:
            return name, None
        whole = json.dumps(
            wrap(envelope) if wrapped else envelope, ensure_ascii=escaped, separators=None if spaced else (",", ":")
        )
        if draw(st.integers(0, 9)) == 0:
            whole = whole.replace('"op":', '"op": "c", "op":', 1)
        return name, whole.encode()

    said = {"source": source, "ts_ms": 17}
    if op in ("c", "u", "r"):
        return [record(row["id"], {"before": before, "after": row, "op": op, **said})]
    gone = [record(row["id"], {"before": before, "after": None, "op": "d", **said}), record(row["id"], None)]
    if op == "d":
        return gone
    key = draw(LONG)
    return [*gone, record(key, {"before": None, "after": row | {"id": key}, "op": "c", **said})]


@pytest.mark.parametrize("deduplicate", [False, True])
def test_any_changes_are_read_as_spark_reads_them(spark: SparkSession, deduplicate: bool) -> None:
    plan, totals = chain(deduplicate=deduplicate), [0, 0]

    @settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(changes(), min_size=8, max_size=25))
    def run(parts: list[list[Pair]]) -> None:
        pairs = [pair for part in parts for pair in part]
        found = compare(spark, plan, pairs)
        totals[0] += found.decoded
        totals[1] += len(pairs)

    run()
    assert totals[0] > totals[1] / 3, "most are read without Spark"
