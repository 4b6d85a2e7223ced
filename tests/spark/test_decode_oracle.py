"""Records decoded without the JVM against Spark's own decoding: the same values in every record that is not left to Spark."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
from pyspark.sql import SparkSession

from millstream import Pipeline
from millstream.decode.decoder import Decoder, FeedDecoder, Records
from millstream.kernel.admission.gate import Admission
from millstream.kernel.admission.record import column_of
from millstream.plan.build import Chain
from millstream.runtime.setup import chain_of
from millstream.spark.lowering import decode
from millstream.spark.records import COLUMNS

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = "n bigint, i int, h smallint, y tinyint, x double, s string, b boolean, at timestamp, d date, p decimal(10, 2), q decimal(38, 6), r decimal(5, 5)"

DECIMALS = [
    "0", "-0", "-0.0", "1", "1.255", "1.245", "-1.255", "1.2549999999999999999", "0.005", "0.0049999999999999999999", "1e3", "1E-2", "1e400",
    "1.25e1", "1e-400", "99999999.99", "99999999.994", "99999999.995", "100000000", "9999999999999.994", "123456789012345678901234567890.5",
    "0.000005", "0.0000051", "0.123454999999999999999", "0.99999", "0.999995", "1" * 39, "1" * 400, "1" * 950, '"1.5"', '"+1.5"', '"-1.5"',
    '".5"', '"5."', '"007.5"', '"0.12345"', '"1e2"', '""', '" 1.5"', '"NaN"', "NaN", '"1,000.5"', '"１.5"', '"1_0"', "true", "null", "[1]",
    "{}", '"abc"', '"1.255"', '"99999999.99"', '"999999999999999999999.999999"', r'"\u0031"', '"-"', '"1.5\\n"', '"00000000000000.5"', "00.5",
]  # fmt: skip

VALUES: dict[str, list[str]] = {
    "n": ["0", "-0", "1", "-1", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "1.0", "1e2", '"7"', '""',
          "true", "null", "00", "+1", "[1]", "{}", "1" * 40],
    "i": ["5", "2147483647", "2147483648", "-2147483648", "-2147483649", "1.5", "null", "false"],
    "h": ["5", "32767", "32768", "null"],
    "y": ["5", "-128", "128", "null"],
    "x": ["0", "-0", "-0.0", "1", "0.1", "1e308", "1e309", "5e-324", "1e-400", "NaN", '"NaN"', '"Infinity"', '"1.5"', "null",
          "12345678901234567890", "123456789012345678901234567890.5", "2.2250738585072011e-308", "1.", ".5", "1" * 400, "1" * 950],
    "s": ['"a"', '""', '"é😀"', r'"\u00e9\ud83d\ude00"', r'"\ud800"', r'"\n\t\/\\\""', '"a\x01b"', "7", "1.50", "true", '{"a": [1, 2]}',
          "null", '"\x7f"', r'"\x41"', "'q'", '"' + "z" * 2000 + '"', '"a\x00b"'],
    "b": ["true", "false", "null", '"true"', "1", "True"],
    "at": ['"2026-01-02T03:04:05Z"', '"2026-01-02T03:04:05.1Z"', '"2026-01-02T03:04:05.123456Z"', '"2026-01-02T03:04:05.1234567Z"',
           '"2026-01-02T03:04:05+00:00"', '"2026-01-02T03:04:05+01:00"', '"2026-01-02 03:04:05"', '"2026-01-02T03:04:05"', '"2026-01-02"',
           '"2026-02-30T00:00:00Z"', '"2026-01-02T24:00:00Z"', '"2026-01-02T23:59:60Z"', '"1969-12-31T23:59:59.999999Z"',
           '"1900-01-01T00:00:00Z"', '"0001-01-01T00:00:00Z"', '"12026-01-02T03:04:05Z"', '"2026-1-2T3:4:5Z"', "1767323045", '"now"',
           '"2026-01-02T03:04:05z"', '" 2026-01-02T03:04:05Z"', '"2026-01-02T03:04:05.Z"', "null", '"２026-01-02T03:04:05Z"'],
    "d": ['"2026-01-02"', '"2024-02-29"', '"2023-02-29"', '"2026-1-2"', '"2026-01-02T00:00:00"', '"1900-01-01"', "20000", "null"],
    "p": ["1.5", *DECIMALS],
    "q": ["123456789.123456", *DECIMALS],
    "r": ["0.12345", *DECIMALS],
}  # fmt: skip
WHOLE = [
    b"", b" ", b"null", b"[]", b"{}", b"{} ", b"{}{}", b"{}x", b'[{"n": 1}]', b'{"n": 1', b'{"n": 1,}', b"{'n': 1}", b'{"n": 1} {"n": 2}',
    b'{"n": 1, "n": 2}', b'{"n": 1, "n": null}', b'{"n": "x", "n": 2}', b'{"\\u006e": 5}', b'{"N": 5}', b'{"zz": {"n": 4}, "n": 5}',
    b'{"zz": "\xff", "n": 6}', b'{"s": "\xff"}', b'{"s": "\xed\xa0\x80"}', b'{"\xff": 1, "n": 7}', b'\xef\xbb\xbf{"n": 8}', b'\n{"n":\t9\r}\n',
    b'/* c */ {"n": 1}', b'{"n": 1} // c', b'{"zz": 01, "n": 1}', b'{"zz": ' + b"9" * 1200 + b', "n": 1}', b'{"zz": 1e99999, "n": 1}',
    b'{"zz": ' + b"[" * 1200 + b"]" * 1200 + b', "n": 1}', b'{"zz": ' + b"[" * 700 + b"]" * 700 + b', "n": 1}', b"\0", b'{"n": 1}\0', b"plain",
    b'{"zz": tru}', b'{"zz": "a\nb"}', b'{"a\nb": 1}', b'{"n" 1}', b'{n: 1}', b'{"n": Infinity}', b'"text"', b"17",
    *(b'{"%s": %s, "%s": %s}' % (name, each.encode(), name, VALUES[name.decode()][0].encode()) for name in (b"at", b"d") for each in VALUES[name.decode()]),
    *(b'{"p": %s, "p": 1.5}' % each.encode() for each in DECIMALS), *(b'{"p": "1.5", "p": %s}' % each.encode() for each in DECIMALS),
]  # fmt: skip


def some_records(seed: int, count: int) -> list[bytes]:
    """Documents of mostly good fields, with an odd one here and there, and some that are no documents at all."""
    chosen = random.Random(seed)
    made = []
    for _ in range(count):
        fields = []
        for name, texts in VALUES.items():
            if chosen.random() < 0.8:
                text = texts[0] if chosen.random() < 0.9 else chosen.choice(texts)
                gap = chosen.choice(["", " ", "\n\t"])
                fields.append(f"{gap}{json.dumps(name)}{gap}:{gap}{text}{gap}")
        chosen.shuffle(fields)
        value = ("{" + ",".join(fields) + "}").encode()
        if chosen.random() < 0.1:
            place = chosen.randrange(len(value) + 1)
            value = (
                value[:place] + chosen.choice([b"", b"\xff", b"}", b'"', b",", b"0", b" ", b"\\"]) + value[place + 1 :]
            )
        made.append(value)
    return made


def chain(schema: str, **options: Any) -> Chain:
    pipeline = Pipeline("oracle", log="sqlite:never.db")
    events = pipeline.stream("events", schema, **options)
    pipeline.view("all", events.select("*", "_key AS k", "_offset AS o", "_append_time AS came", "_timestamp AS said"))
    pipeline.view(
        "some",
        events.where("x > 0.5 AND n IS NOT NULL").group_by("b").agg(m="sum(cast(i AS bigint) + 1)", c="count(*)"),
    )
    return chain_of(pipeline)


def both(spark: SparkSession, plan: Chain, values: list[bytes | None]) -> tuple[pl.DataFrame, pl.DataFrame, list[bool]]:
    """The records as Spark decodes them, and as the decoder does, which leaves some out."""
    keys = [[None, b"k", "é".encode(), b"\xff"][index % 4] for index in range(len(values))]
    rows = [
        (key, value, "events", 3, offset, EPOCH + timedelta(seconds=offset), EPOCH + timedelta(seconds=2 * offset))
        for offset, (key, value) in enumerate(zip(keys, values, strict=True))
    ]
    kinds = ("binary", "binary", "string", "int", "bigint", "timestamp", "timestamp")
    ddl = ", ".join(f"{name} {kind}" for name, kind in zip(COLUMNS, kinds, strict=True))
    native = pl.from_arrow(decode(spark.createDataFrame(rows, ddl), plan, "oracle").toArrow())
    assert isinstance(native, pl.DataFrame)
    (feed,) = plan.feeds
    decoder = Decoder(Admission(plan), utc=True)
    offsets = np.arange(len(values), dtype=np.int64)
    known = decoder.feeds["events"]
    assert isinstance(known, FeedDecoder)
    records = Records(offsets, offsets * 1_000_000, offsets * 2_000_000, keys, values)
    ours, left = known.decode(3, records)
    expected = native.sort("_o").select(
        *(name for name in ours.columns if name.startswith("_") and name in native.columns),
        *(pl.col(column_of(feed, each.name)).alias(each.name) for each in feed.expressions),
    )
    return expected, ours, left.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_what_is_decoded_without_spark_is_what_spark_decodes(spark: SparkSession, seed: int) -> None:
    values: list[bytes | None] = [*WHOLE, None, *some_records(seed, 2_500)]
    expected, ours, left = both(spark, chain(SCHEMA), values)
    kept = expected.filter(~pl.Series(left))
    assert 600 < kept.height < 2_400, "some are left to Spark, and most are not"
    assert ours.schema == kept.schema
    for name in ours.columns:
        unequal = ours[name].ne_missing(kept[name])
        wrong = [values[offset] for offset in ours.filter(unequal)["_o"]]
        assert not wrong, (
            name,
            wrong[:3],
            ours.filter(unequal)[name][:3].to_list(),
            kept.filter(unequal)[name][:3].to_list(),
        )
        if ours[name].dtype == pl.Float64:  # -0.0 is not 0.0 to everyone
            signs = [np.signbit(each[name].fill_null(1.0).to_numpy()).tolist() for each in (ours, kept)]
            assert signs[0] == signs[1]


def test_with_an_event_time_a_record_without_it_is_left_to_spark(spark: SparkSession) -> None:
    values: list[bytes | None] = list(some_records(7, 800))
    expected, ours, left = both(spark, chain(SCHEMA, time="at"), values)
    kept = expected.filter(~pl.Series(left))
    assert kept.height > 200
    assert kept["_bad"].null_count() == kept.height
    assert ours["_t"].to_list() == kept["_t"].to_list()


def nested(kind: str = SCHEMA) -> Chain:
    """Fields of a struct that holds every kind of column, and no use of some of them."""
    pipeline = Pipeline("oracle", log="sqlite:never.db")
    events = pipeline.stream("events", f"doc struct<{kind}>, n bigint, unused int, other struct<a: int, b: string>")
    wanted = [f"doc.{name} AS doc_{name}" for name in VALUES if name not in ("h", "b")]
    pipeline.view("all", events.where("doc.x IS NULL OR doc.x > -1").select(*wanted, "n", "other.A AS a"))
    return chain_of(pipeline)


@pytest.mark.parametrize("seed", range(2))
def test_fields_of_a_struct_are_what_spark_makes_of_them(spark: SparkSession, seed: int) -> None:
    chosen = random.Random(seed)
    others = [
        b"",
        b', "unused": "x"',
        b', "other": {"a": 1, "b": 7}',
        b', "other": {"A": 1}',
        b', "other": 3',
        b', "other": null',
    ]
    values: list[bytes | None] = [
        b'{"doc": ' + value + b', "n": 3' + chosen.choice(others) + b"}"
        for value in [*WHOLE, *some_records(seed, 1_500)]
    ]
    values += [
        b'{"doc": null, "n": 1}',
        b'{"n": 1}',
        b'{"doc": {"n": 1}, "doc": null}',
        b'{"doc": {"n": 1}, "doc": {"i": 2}}',
    ]
    expected, ours, left = both(spark, nested(), values)
    kept = expected.filter(~pl.Series(left))
    assert kept.height > 700
    assert ours.schema == kept.schema
    for name in ours.columns:
        unequal = ours[name].ne_missing(kept[name])
        assert not unequal.any(), (name, [values[offset] for offset in ours.filter(unequal)["_o"]][:3])


def test_what_nothing_uses_is_not_looked_at(spark: SparkSession) -> None:
    values: list[bytes | None] = [
        b'{"n": 1, "unused": "x"}',
        b'{"n": 1, "other": {"a": 1, "b": {}}}',
        b'{"n": "x"}',
        b'{"n": 1, "other": {"a": "x"}}',
    ]
    expected, _, left = both(spark, nested(), values)
    assert left == [False, False, True, True]
    assert expected["_bad"].is_not_null().to_list() == [False, False, True, True]


COMPUTED = [
    "0.908 * n", "0.908 * i > 1.5", "date_format(at, 'yyyy-MM-dd')", "date_format(at, 'HH:mm:ss.SSS')", "hour(at)", "cast(at AS date)",
    "date_trunc('minute', at)", "at + INTERVAL 1 DAY", "year(d)", "split(s, 'a')[0]", "split_part(s, 'a', 2)", "round(x)",
    "CASE lower(s) WHEN 'a' THEN '0' ELSE nullif(regexp_extract(s, '([a-z]+)$', 1), '') END",
    "length(s) - length(replace(s, 'z', ''))", "CASE WHEN hour(at) >= 8 AND hour(at) <= 18 THEN 'day' ELSE 'night' END",
]  # fmt: skip


def test_what_is_computed_without_spark_is_what_spark_computes(spark: SparkSession) -> None:
    pipeline = Pipeline("oracle", log="sqlite:never.db")
    events = pipeline.stream("events", SCHEMA)
    pipeline.view("all", events.select(*(f"{sql} AS c{index}" for index, sql in enumerate(COMPUTED))))
    values: list[bytes | None] = [*WHOLE, *some_records(11, 1_500)]
    expected, ours, left = both(spark, chain_of(pipeline), values)
    kept = expected.filter(~pl.Series(left))
    assert kept.height > 500
    assert ours.schema == kept.schema
    for name in ours.columns:
        unequal = ours[name].ne_missing(kept[name])
        assert not unequal.any(), (name, [values[offset] for offset in ours.filter(unequal)["_o"]][:3])
