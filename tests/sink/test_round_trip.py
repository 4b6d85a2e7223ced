"""What a view sends to a topic is read from it as a table: the same rows, and those that went are gone; of every type of key."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from millstream import Event, Pipeline
from millstream.errors import NeedsSpark
from millstream.log import open_log
from millstream.runtime.run import run
from millstream.sink import ChangeSet
from millstream.sink.topic import TopicSink
from millstream.testing import KafkaBroker, Trial
from tests.contracts.log import name

STAMP = pl.Datetime("us", "UTC")
TEXTS = st.one_of(
    st.text(max_size=5), st.sampled_from(['"x"', '{"k":"x"}', "{", "null", "7", "", "'x'", '"x","y"', "é漢"])
)
TIMES = st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2099, 1, 1), timezones=st.just(dt.UTC))
KEYS: dict[str, tuple[pl.DataType, st.SearchStrategy[Any]]] = {
    "string": (pl.String(), TEXTS),
    "bigint": (pl.Int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    "int": (pl.Int32(), st.integers(-5, 5)),
    "double": (pl.Float64(), st.floats(allow_nan=False, allow_infinity=False).map(lambda x: x + 0.0)),
    "boolean": (pl.Boolean(), st.booleans()),
    "date": (pl.Date(), st.dates(dt.date(1970, 1, 1), dt.date(2099, 1, 1))),
    "timestamp": (STAMP, TIMES),
}
ONLY_SPARK: dict[str, tuple[pl.DataType, list[Any]]] = {
    "decimal(20,4)": (pl.Decimal(20, 4), [Decimal("1.5"), Decimal("-1234567890123456.7891"), Decimal(0)]),
    "binary": (pl.Binary(), [b"", b"\x00\xff", b"abc"]),
    "float": (pl.Float32(), [0.1, -3.5e30, 7.0]),
    "smallint": (pl.Int16(), [-32768, 0, 7]),
    "tinyint": (pl.Int8(), [-128, 0, 7]),
}


def pipeline(
    label: str, topics: dict[str, tuple[str, ...]], log: str = "sqlite:log.db", folder: Path = Path()
) -> Pipeline:
    """A table for each topic, by the types of its key, and a view with all of it."""
    made = Pipeline(label, log=log, to=f"sqlite:{folder / label}.views.db", checkpoint=str(folder / label), buckets=1)
    for topic, kinds in topics.items():
        columns = [f"k{at} {kind}" for at, kind in enumerate(kinds)]
        table = made.table(
            topic.replace("-", "_"),
            f"{', '.join(columns)}, n bigint",
            key=[f"k{at}" for at in range(len(kinds))],
            topic=topic,
        )
        made.view(f"of_{topic.replace('-', '_')}", table)
    return made


def change_sets(kinds: tuple[pl.DataType, ...], keys: list[tuple[Any, ...]], gone: list[bool]) -> list[ChangeSet]:
    """All keys with a number each, then some of them gone."""
    schema = {f"k{at}": kind for at, kind in enumerate(kinds)}
    rows = pl.DataFrame([(*key, at) for at, key in enumerate(keys)], schema=schema | {"n": pl.Int64()}, orient="row")
    left = rows.select(list(schema)).filter(pl.Series(gone, dtype=pl.Boolean))
    return [ChangeSet(rows, left.clear()), ChangeSet(rows.clear(), left)]


def left_of(keys: list[tuple[Any, ...]], gone: list[bool]) -> list[tuple[Any, ...]]:
    return [(*key, at) for at, key in enumerate(keys) if not gone[at]]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_rows_that_went_are_gone_from_the_table(data: st.DataObject, tmp_path: Path) -> None:
    kinds = tuple(data.draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=3)))
    keys = data.draw(st.lists(st.tuples(*(KEYS[kind][1] for kind in kinds)), min_size=1, max_size=6, unique=True))
    gone = data.draw(st.lists(st.booleans(), min_size=len(keys), max_size=len(keys)))
    with (
        TopicSink(
            open_log(f"sqlite:{tmp_path / 'sent.db'}"), "t", "p", tuple(f"k{at}" for at in range(len(kinds)))
        ) as sink,
        Trial(pipeline("reader", {"t": kinds})) as trial,
    ):
        for change_set in change_sets(tuple(KEYS[kind][0] for kind in kinds), keys, gone):
            trial.feed("t", sink.pack(change_set).payload)
        assert trial.counts("t")["malformed"] == 0
        assert sorted(tuple(row.values()) for row in trial.rows("of_t")) == sorted(left_of(keys, gone))


def test_a_group_without_a_key_is_no_row_of_a_table_and_is_counted(tmp_path: Path) -> None:
    with (
        TopicSink(open_log(f"sqlite:{tmp_path / 'sent.db'}"), "t", "p", ("k0",)) as sink,
        Trial(pipeline("reader", {"t": ("string",)})) as trial,
    ):
        for change_set in change_sets((pl.String(),), [(None,), ("x",)], [True, False]):
            trial.feed("t", sink.pack(change_set).payload)
        assert trial.rows("of_t") == [{"k0": "x", "n": 1}]
        assert [row["detail"] for row in trial.rejected("t")] == ["no value in column k0"] * 2


FOREIGN = [b'"x"', b"x", b'{"k0":"x"}', b'{ "shard": 3, "k0" : "x" }']
"""How other producers write the key of one column of text."""


@pytest.mark.parametrize("key", FOREIGN)
def test_the_keys_of_other_producers_are_understood(key: bytes) -> None:
    with Trial(pipeline("reader", {"t": ("string",)})) as trial:
        trial.feed("t", [Event(b'{"k0":"x","n":1}', key), Event(b'{"k0":"y","n":2}', b"y")])
        trial.feed("t", [Event(None, key)])
        assert trial.rows("of_t") == [{"k0": "y", "n": 2}]


def test_a_trial_deletes_by_text_that_looks_like_json() -> None:
    odd = ['"x"', "{", '{"k0":"x"}', "x"]
    with Trial(pipeline("reader", {"t": ("string",)})) as trial:
        trial.feed("t", [{"k0": text, "n": 1} for text in odd])
        trial.delete("t", [{"k0": text} for text in odd[:3]])
        assert trial.rows("of_t") == [{"k0": "x", "n": 1}]


def test_what_only_spark_can_tell_of_a_key_is_not_guessed() -> None:
    with Trial(pipeline("reader", {"t": ("string",)})) as trial, pytest.raises(NeedsSpark):
        trial.feed("t", [Event(None, b'"x')])


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "kafka":
        broker: KafkaBroker = request.getfixturevalue("kafka")
        return broker.url
    return f"sqlite:{tmp_path / 'log.db'}"


@pytest.mark.parametrize("url", ["kafka", "sqlite"], indirect=True)
def test_on_spark_rows_of_every_type_of_key_come_and_go(spark: SparkSession, url: str, tmp_path: Path) -> None:
    some: dict[str, tuple[pl.DataType, list[Any]]] = {
        "string": (pl.String(), ['"x"', "x", '{"k0":"x"}', "", '"x","y"', '"x', "null", "\x00é"]),
        "bigint": (pl.Int64(), [-(1 << 63), 0, (1 << 63) - 1]),
        "double": (pl.Float64(), [0.1, -1e300, 0.0]),
        "boolean": (pl.Boolean(), [True, False]),
        "date": (pl.Date(), [dt.date(1, 1, 1), dt.date(2026, 1, 31)]),
        "timestamp": (STAMP, [dt.datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=dt.UTC), dt.datetime(1900, 1, 1, tzinfo=dt.UTC)]),
        **ONLY_SPARK,
    }  # fmt: skip
    cases: dict[tuple[str, ...], list[tuple[Any, ...]]] = {
        (kind,): [(key,) for key in keys] for kind, (_, keys) in some.items()
    }
    cases[("string", "timestamp")] = [(text, time) for text in some["string"][1] for time in some["timestamp"][1]]
    if not url.startswith("sqlite:"):  # Spark reads keys alike on both engines
        cases = {kinds: keys for kinds, keys in cases.items() if kinds[0] in ("string", "decimal(20,4)")}
    topics = {f"{name()}-{at}": kinds for at, kinds in enumerate(cases)}
    foreign = name()
    with open_log(url) as log:
        log.create_topic(foreign)
        log.append(foreign, [Event(json.dumps({"k0": f"{at}", "n": at}).encode(), b"") for at in range(len(FOREIGN))])
        log.append(foreign, [Event(None, key.replace(b"x", b"%d" % at)) for at, key in enumerate(FOREIGN)])
        log.append(foreign, [Event(b'{"k0":"stays","n":9}', b'"gone"'), Event(None, b'{"k0":null}')])
    lefts = {}
    for topic, kinds in topics.items():
        keys = cases[kinds]
        gone = [at % 2 == 0 for at in range(len(keys))]
        with TopicSink(open_log(url), topic, "p", tuple(f"k{at}" for at in range(len(kinds)))) as sink:
            for number, change_set in enumerate(change_sets(tuple(some[kind][0] for kind in kinds), keys, gone)):
                sink.send(sink.pack(change_set).payload, number, marked=True)
            lefts[topic] = change_sets(tuple(some[kind][0] for kind in kinds), keys, gone)[0].rows.filter(
                ~pl.Series(gone)
            )
    made = pipeline("reader", topics | {foreign: ("string",)}, url, tmp_path)
    run(made, spark=spark, once=True)
    for topic, left in lefts.items():
        found = made.views[f"of_{topic.replace('-', '_')}"].to_polars()
        assert sorted(found.rows(), key=repr) == sorted(left.rows(), key=repr), topics[topic]
    assert made.views[f"of_{foreign.replace('-', '_')}"].to_polars().rows() == [("stays", 9)]
