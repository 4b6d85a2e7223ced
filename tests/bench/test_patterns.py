"""Row patterns and stored queries measured, over little; and what many of them find."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from millstream.bench.nexmark.data import fill, read_folder, write_folder
from millstream.bench.nexmark.pattern_oracle import Bid, bids_in_order
from millstream.bench.nexmark.peers import close_peers
from millstream.bench.nexmark.peers.layout import Input
from millstream.bench.nexmark.peers.on_flink import Flink, statements
from millstream.bench.patterns import NAMES, Asked, many, measure, percolate, pipeline_of
from millstream.bench.rules import SHAPES, for_flink, patterns, stored_queries, thresholds
from millstream.cli import cli
from millstream.runtime.run import run

EVENTS = 6_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("events") / "data", EVENTS, seed=5)


def falls(bids: list[Bid], above: int) -> Iterator[tuple[Any, ...]]:
    """What a pattern of many finds, by a plain loop."""
    at = 0
    while at < len(bids):
        low = at
        while low + 1 < len(bids) and bids[low + 1].price < bids[low].price:
            low += 1
        up = low + 1
        found = bids[at].price > above and low > at and up < len(bids) and bids[up].price > bids[low].price
        if found and bids[up].time - bids[at].time < timedelta(seconds=5):
            yield bids[at].time, bids[up].time, bids[low].price
            at = up + 1
        else:
            at += 1


def expected(folder: Path, count: int) -> list[tuple[Any, ...]]:
    pairs = bids_in_order(folder)
    return sorted(
        (*pair, name, *row)
        for name, above in thresholds(count).items()
        for pair, bids in pairs.items()
        for row in falls(bids, above)
    )


def filled(folder: Path, place: Path) -> str:
    log = f"sqlite:{place / 'log.db'}"
    fill(log, read_folder(folder), topic="nexmark_by_auction", by_auction=True)
    return log


def test_the_first_rules_of_many_are_those_of_few() -> None:
    assert list(patterns(100).items())[:10] == list(patterns(10).items())
    assert stored_queries(10_000, EVENTS)[:100] == stored_queries(100, EVENTS)
    assert len(set(stored_queries(10_000, 1_000_000))) > 9_000


def test_stored_queries_have_twenty_shapes() -> None:
    shapes = [re.sub(r"\d+", "0", text) for text in stored_queries(1_000, EVENTS)]
    assert len(set(shapes)) == SHAPES
    assert shapes[:SHAPES] * 50 == shapes


def test_flink_is_asked_for_as_many_patterns() -> None:
    (text,) = statements("many_3", {})
    assert text == for_flink(3)
    assert re.findall(r"price > (\d+)", text) == list(map(str, thresholds(3).values()))


def test_many_patterns_find_what_a_loop_for_each_finds(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    pipeline = pipeline_of(filled(folder, tmp_path), tmp_path, "many", many(7))
    run(pipeline, spark=spark, close=True)
    found = pipeline.views["found"].to_polars()
    naive = found.with_columns(found["begun"].dt.replace_time_zone(None), found["ended"].dt.replace_time_zone(None))
    rows = naive.select("auction", "bidder", "pattern", "begun", "ended", "lowest").rows()
    assert len({row[2] for row in rows}) == 7
    assert sorted(rows) == expected(folder, 7)


def test_stored_queries_meet_the_bids_that_they_ask_for(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    log = filled(folder, tmp_path)
    pipeline = pipeline_of(log, tmp_path, "stored", percolate(400, log, EVENTS))
    run(pipeline, spark=spark, close=True)
    texts = stored_queries(400, EVENTS)
    found = pipeline.views["found"].to_polars()
    bids = [event["bid"] for lines in read_folder(folder) for event in map(json.loads, lines) if event["bid"]]
    met = [
        (each, bid["auction"], bid["bidder"], bid["price"])
        for each, text in enumerate(texts)
        for meets in [as_python(text)]
        for bid in bids
        if meets(**bid)
    ]
    assert len({each % SHAPES for each, *_ in met}) > 10
    assert sorted(found.select("id", "auction", "bidder", "price").rows()) == sorted(met)


def as_python(text: str) -> Callable[..., bool]:
    """A condition on a bid, as Python reads it."""
    text = re.sub(r"(\w+) BETWEEN (\d+) AND (\d+)", r"\2 <= \1 <= \3", text)
    text = re.sub(r"(\w+) LIKE '(.*?)%'", r"\1.startswith('\2')", text)
    text = re.sub(r"contains_words\((\w+), '(.*?)'\)", r"set('\2'.split()) <= set(\1.lower().split('-'))", text)
    text = re.sub(" = ", " == ", text).replace("<>", "!=").replace("AND", "and").replace("NOT", "not")
    made: Callable[..., bool] = eval(f"lambda auction, bidder, price, channel, **_: {text}")
    return made


def test_each_has_its_rate_and_many_stand_beside_few(spark: SparkSession, tmp_path: Path) -> None:
    names = ("cep1", "many_1", "many_10", "percolate_100")
    found = {each.name: each for each in measure(Asked(names, 3_000), tmp_path, lambda _: None)}
    assert tuple(found) == names
    assert all(each.value > 0 and each.unit == "events/s" for each in found.values())
    assert (found["many_10"].against, found["many_10"].baseline) == ("many_1", found["many_1"].value)
    assert [each.against for name, each in found.items() if name != "many_10"] == [None, None, None]


def test_the_command_prints_them(spark: SparkSession) -> None:
    done = CliRunner().invoke(cli, ["bench", "patterns", "--only", "many_1", "--events", "2000", "--json"])
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)["results"]
    assert (found["name"], found["unit"]) == ("many_1", "events/s")


@pytest.mark.parametrize("arguments", [["--only", "cep4"], ["--compare", "spark"]])
def test_what_there_is_not_is_told(arguments: list[str]) -> None:
    done = CliRunner().invoke(cli, ["bench", "patterns", *arguments])
    assert done.exit_code == 2
    assert "expected some of" in done.output


@pytest.mark.peers
@pytest.mark.timeout(1800)
def test_flink_finds_the_same_and_stands_beside_us(folder: Path, tmp_path: Path) -> None:
    flink = Flink(lambda _: None, kafka=False)
    try:
        answer = flink.answer("flink_heap", "many_7", Input(folder))
    finally:
        flink.close()
    assert not isinstance(answer, str), answer
    wanted = [list(row) for row in expected(folder, 7)]
    assert len(answer) == len(wanted)
    assert sorted(row[:3] + row[5:] for row in answer) == sorted(row[:3] + row[5:] for row in wanted)
    try:
        names = ("cep0", "many_1")
        found = list(measure(Asked(names, 3_000, compare=("flink_heap",)), tmp_path, lambda _: None))
    finally:
        close_peers()
    beside = {each.name: each for each in found if each.against == "flink_heap"}
    assert list(beside) == ["cep0.flink_heap", "many_1.flink_heap"]
    assert all((each.ratio or 0) > 0 for each in beside.values())


def test_the_names_are_those_that_are_promised() -> None:
    assert NAMES == (
        "cep0",
        "cep1",
        "cep2",
        "cep3",
        "many_1",
        "many_10",
        "many_100",
        "percolate_100",
        "percolate_10000",
    )
