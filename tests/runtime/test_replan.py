"""A planned batch that neither a store nor a sink has is forgotten, and nobody can send it any more; otherwise it stays."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from millstream.errors import MillstreamError, SparkError
from millstream.failpoint import armed
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.relation.nodes import Place
from millstream.relation.sinks import SinkDefinition
from millstream.runtime.offset_log import newest_planned
from millstream.runtime.ownership import open_sinks
from millstream.runtime.replan import unplan
from millstream.runtime.run import Progress, run
from millstream.runtime.sink_dispatch import IMPATIENT, Patience, Sender, change_set_of
from millstream.runtime.sink_marks import EPOCH, Marks
from millstream.sink import Sink
from millstream.sink.files import FileSink, committed_files
from millstream.sink.function import FunctionSink
from millstream.sink.topic import TopicSink
from millstream.store import Entry, Target, open_writer
from millstream.testing import RedisServer
from tests.runtime.shop_file import TEXT, append_clicks, load, write_shop

SCHEMA = pa.schema([("n", pa.int64())])
WANTED = SinkDefinition("out", "v", "the place", "exactly_once", "stop", Place("f.py", 1))
STORED = Entry("c", 2, 1, {}, {}, {}, datetime.now(UTC))


class Shop:
    """A checkpoint at which batch 3 is planned and not done, with two sinks that have batch 2."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "check"
        for part, number in (("offsets", 2), ("commits", 2), ("offsets", 3)):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
            (self.folder / part / str(number)).write_text("v1\n{}\n")
        self.opened: dict[str, Callable[[], Sink]] = {
            "topic": lambda: TopicSink(open_log(f"sqlite:{folder / 'log.db'}"), "out", "p", ()),
            "files": lambda: FileSink(folder / "files", "json"),
        }
        self.all: list[Sink] = []
        self.sinks = self.open_sinks()
        for sender in self.senders():
            sender.send(2, rows(0))

    def open_sinks(self) -> dict[str, tuple[SinkDefinition, Sink]]:
        made = {name: (replace(WANTED, name=name), opened()) for name, opened in self.opened.items()}
        self.all += [sink for _, sink in made.values()]
        return made

    def senders(self) -> list[Sender]:
        made = [
            Sender(wanted, Target("v", SCHEMA), sink, 7, self.folder, IMPATIENT) for wanted, sink in self.sinks.values()
        ]
        for sender in made:
            sender.begin(2, lambda: rows(0).drop_columns("_weight"), lambda: None)
        return made

    def unplan(self, fresh: int = 8) -> str:
        return unplan(self.folder, {"store": STORED}, self.sinks, 7, fresh, IMPATIENT)

    def sent(self) -> dict[str, list[int]]:
        with open_log(str(self.sinks["topic"][1]._log.url)) as log:  # type: ignore[attr-defined]
            topic = [json.loads(r.value or b"")["n"] for r in log.read("out", 0, 0)]
        files = [
            json.loads(line)["n"]
            for file in committed_files(self.folder.parent / "files")
            for line in file.read_text().splitlines()
        ]
        return {"topic": sorted(topic), "files": sorted(files)}


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": numbers, "_weight": [1] * len(numbers)}, SCHEMA.append(pa.field("_weight", pa.int64())))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    yield made
    for sink in made.all:
        sink.close()


def test_a_batch_that_nobody_has_is_forgotten_and_who_was_left_behind_cannot_send_it(shop: Shop) -> None:
    zombies = shop.senders()
    shop.sinks = shop.open_sinks()
    assert shop.unplan() == ""
    assert newest_planned(shop.folder) == 2
    for zombie in zombies:
        with suppress(MillstreamError):
            zombie.send(3, rows(1, 2, 3, 4))
    for sender in shop.senders():
        sender.send(3, rows(1, 2))
        sender.send(3, rows(1, 2))
        sender.send(4, rows(3, 4))
    assert shop.sent() == {name: [0, 1, 2, 3, 4] for name in shop.sinks}
    assert shop.unplan(9) == ""  # nothing is planned beyond what is stored
    for sender in shop.senders():
        sender.send(5, rows(5))
    assert shop.sent() == {name: [0, 1, 2, 3, 4, 5] for name in shop.sinks}


def test_a_batch_that_a_sink_has_stays_and_the_others_get_it_as_it_was_planned(shop: Shop) -> None:
    shop.senders()[1].send(3, rows(1, 2, 3, 4))
    assert shop.unplan().endswith("sink files has it")
    assert newest_planned(shop.folder) == 3
    for sender in shop.senders():
        sender.send(3, rows(1, 2, 3, 4))
    assert shop.sent() == {name: [0, 1, 2, 3, 4] for name in shop.sinks}


def test_a_batch_that_comes_while_sinks_are_sealed_stays_and_is_nowhere_twice(shop: Shop) -> None:
    class Overtaken(FileSink):
        def seal(self, sequence: int, *, after: int | None) -> bool:
            change_set = change_set_of(Target("v", SCHEMA), rows(1, 2, 3, 4))
            self.send(self.pack(change_set).payload, (7 << EPOCH) + 4, marked=True)  # by who was left behind
            return super().seal(sequence, after=after)

    shop.sinks["files"] = (shop.sinks["files"][0], Overtaken(shop.folder.parent / "files", "json"))
    assert shop.unplan().endswith("sink files has a part of it")
    assert newest_planned(shop.folder) == 3
    shop.sinks = shop.open_sinks()
    for sender in shop.senders():
        sender.send(3, rows(1, 2, 3, 4))
        sender.send(4, rows(5))
    assert shop.sent() == {name: [0, 1, 2, 3, 4, 5] for name in shop.sinks}


def test_a_kill_right_after_a_sink_was_sealed_leaves_one_that_goes_on(shop: Shop) -> None:
    Marks(shop.folder, "topic", 7).seal(8)
    assert shop.sinks["topic"][1].seal(8 << EPOCH, after=(7 << EPOCH) + 3)
    shop.sinks = shop.open_sinks()
    assert shop.unplan(9) == ""
    for sender in shop.senders():
        sender.send(3, rows(1))
    assert shop.sent() == {name: [0, 1] for name in shop.sinks}


def test_where_nobody_knows_what_a_sink_has_the_batch_stays(shop: Shop) -> None:
    shop.sinks["tell"] = (replace(WANTED, mode="at_least_once"), FunctionSink(print, "p"))
    assert "sink tell gets batches at least once" in shop.unplan()
    assert newest_planned(shop.folder) == 3


def test_a_sink_that_lost_what_it_acknowledged_gets_that_first(shop: Shop) -> None:
    for path in (shop.folder.parent / "files" / "_manifest").glob("*.json"):
        path.unlink()
    shop.sinks = shop.open_sinks()
    assert "sink files lacks what it acknowledged" in shop.unplan()


def test_a_batch_that_was_planned_too_large_is_planned_again_with_sinks(spark: SparkSession, tmp_path: Path) -> None:
    with RedisServer() as server:
        file = write_shop(tmp_path, TEXT.replace("by_user", "users"))
        append_clicks(tmp_path, 0, 50)

        def made() -> Pipeline:
            pipeline = load(file)
            raw = pipeline.view("raw", pipeline.streams["clicks"].select("user", "amount"))
            pipeline.sink("all", raw, "topic:all")
            pipeline.sink("kept", raw, f"files:{tmp_path}/kept?format=json")
            pipeline.sink("fast", pipeline.views["users"], server.url)
            return pipeline

        def sent() -> tuple[list[float], list[float], dict[int, int]]:
            with open_log(made().log) as log:
                topic = [json.loads(r.value or b"")["amount"] for r in log.read("all", 0, 0)]
            files = [
                json.loads(line)["amount"]
                for each in committed_files(tmp_path / "kept")
                for line in each.read_text().splitlines()
            ]
            [(_, redis)] = [(n, o) for n, o in opened.items() if n == "fast"]
            found = map(json.loads, redis._client.hgetall("millstream:{users}").values())  # type: ignore[attr-defined]
            return sorted(topic), sorted(files), {row["user"]: row["n"] for row in found}

        def held() -> tuple[list[float], list[float], dict[int, int]]:
            raw = sorted(made().views["raw"].to_arrow()["amount"].to_pylist())
            return raw, raw, {row["user"]: row["n"] for row in made().views["users"].to_arrow().to_pylist()}

        def batches() -> int:
            with open_writer(made().to) as sink:
                return len(sink.entries("shop"))

        run(made(), spark=spark, once=True)
        append_clicks(tmp_path, 50, 150)
        with armed("run.before_delivery"), pytest.raises(SparkError):
            run(made(), spark=spark, once=True)  # a batch of 150 is planned, and cannot be done
        with ExitStack() as stack:
            opened = open_sinks(stack, made(), Patience(threading.Event(), lambda _: None, 5.0))
            assert newest_planned(tmp_path / "check") == 1
            run(made(), spark=spark, once=True, rate_limit=50)
            assert batches() == 4
            assert sent() == held()
            append_clicks(tmp_path, 200, 150)
            with armed("sink.after_send"), pytest.raises(SparkError):
                run(made(), spark=spark, once=True)  # a sink has it
            seen: list[Progress] = []
            run(made(), spark=spark, once=True, rate_limit=50, progress=seen.append)
            assert "stays as it was planned" in seen[0].waiting
            assert batches() == 5
            assert sent() == held()
