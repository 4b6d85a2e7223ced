"""A sink that lacks what it has acknowledged is noticed, between two batches and between two runs, and gets all of its view again."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
import redis
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from millstream.errors import CheckpointMismatch, PipelineError, SinkForgot, SinkUnavailable
from millstream.log import open_log
from millstream.log.kafka.engine import KafkaLog
from millstream.log.kafka.sequence import SEQUENCES
from millstream.relation.nodes import Place
from millstream.relation.sinks import Mode, SinkDefinition
from millstream.runtime.ownership import clear_sinks, open_sinks
from millstream.runtime.run import Progress, run
from millstream.runtime.sink_dispatch import IMPATIENT, Patience, Sender
from millstream.sink import ChangeSet, Sink
from millstream.sink.delta import DeltaSink
from millstream.sink.files import FileSink, committed_files
from millstream.sink.redis import RedisSink
from millstream.sink.search import SearchSink
from millstream.sink.search_file import search
from millstream.sink.topic import TopicSink
from millstream.store import Target
from millstream.testing import KafkaBroker, RedisServer
from tests.contracts.log import name
from tests.runtime.shop_file import append_clicks, load, write_shop

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
TARGET = Target("totals", SCHEMA, ("k",))
WANTED = SinkDefinition("out", "totals", "the place", "exactly_once", "stop", Place("f.py", 1))
Rows = dict[str, int]


class View:
    """A view and its sink: batches are sent, then stored, as a run does it."""

    def __init__(self, folder: Path, opened: Callable[[], Sink], mode: Mode = "exactly_once") -> None:
        self.folder, self.opened, self.wanted = folder, opened, replace(WANTED, mode=mode)
        self.rows: Rows = {}
        self.batch: int | None = None
        self.said: list[str] = []

    def start(self) -> None:
        patience = Patience(threading.Event(), self.said.append, 5.0)
        self.sink = self.opened()
        self.sender = Sender(self.wanted, TARGET, self.sink, 3, self.folder, patience)
        self.sender.begin(self.batch, self.table, lambda: None)

    def again(self) -> None:
        self.sink.close()
        self.start()

    def table(self) -> pa.Table:
        return pa.table({"k": list(self.rows), "n": list(self.rows.values())}, SCHEMA)

    def send(self, new: Rows, gone: tuple[str, ...] = (), *, stored: bool = True) -> None:
        changed = [(key, n, -1) for key, n in self.rows.items() if key in (*new, *gone)]
        changed += [(key, n, 1) for key, n in new.items()]
        batch = 0 if self.batch is None else self.batch + 1
        columns = [list(column) for column in zip(*changed, strict=True)]
        names = SCHEMA.append(pa.field("_weight", pa.int64()))
        self.sender.send(batch, pa.table(columns, names))
        if stored:
            self.batch = batch
            self.rows = {key: n for key, n in (self.rows | new).items() if key not in gone}


def through_what_it_forgets(view: View, found: Callable[[], Rows], forget: Callable[[], None]) -> None:
    view.start()
    view.send({"a": 1, "b": 2})
    forget()
    view.again()  # between two runs
    assert found() == {"a": 1, "b": 2}
    assert "forgotten" in view.said[-1]
    view.send({"c": 3}, gone=("a",))
    told = len(view.said)
    view.again()  # nothing was forgotten, nothing is sent again
    assert len(view.said) == told
    view.send({"d": 4}, stored=False)  # a kill between the send and the store: the batch comes again
    view.again()
    view.send({"d": 4})
    assert len(view.said) == told
    assert found() == {"b": 2, "c": 3, "d": 4}


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


def test_redis_that_was_flushed_or_lost_its_newest_batches(server: RedisServer, tmp_path: Path) -> None:
    with redis.Redis.from_url(server.url) as client:
        view = View(tmp_path, lambda: RedisSink(server.url, "totals", "p", ("k",)))

        def found() -> Rows:
            return {row["k"]: row["n"] for row in map(json.loads, client.hgetall("millstream:{totals}").values())}

        through_what_it_forgets(view, found, client.flushall)
        client.flushall()
        view.send({"e": 5}, gone=("b",))  # between two batches
        assert found() == view.rows == {"c": 3, "d": 4, "e": 5}
        before = client.dump("millstream:{totals}"), client.get("millstream:{totals}:p")
        view.send({"f": 6}, gone=("c",))
        client.delete("millstream:{totals}")  # a failover to a replica that is a batch behind
        client.restore("millstream:{totals}", 0, before[0])
        client.set("millstream:{totals}:p", before[1])
        view.send({"g": 7})
        assert found() == view.rows == {"d": 4, "e": 5, "f": 6, "g": 7}


def test_a_folder_that_was_deleted_and_one_that_was_put_back(tmp_path: Path) -> None:
    folder, old = tmp_path / "files", tmp_path / "old"
    view = View(tmp_path, lambda: FileSink(folder, "parquet"))

    def found() -> Rows:
        changes = [row for file in committed_files(folder) for row in pl.read_parquet(file).to_dicts()]
        return {row["k"]: row["n"] for row in {row["k"]: row for row in changes}.values() if row["_weight"] == 1}

    through_what_it_forgets(view, found, lambda: shutil.rmtree(folder))
    shutil.copytree(folder, old)
    view.send({"e": 5})
    shutil.rmtree(folder)
    shutil.move(old, folder)
    with pytest.raises(SinkForgot, match=r"sink out: files in .*; only a part of it is gone") as caught:
        view.send({"f": 6})
    assert "another name" in caught.value.hint
    with pytest.raises(SinkForgot):
        view.again()


def test_a_cache_that_was_flushed(server: RedisServer, tmp_path: Path) -> None:
    with redis.Redis.from_url(server.url) as client:
        view = View(tmp_path, lambda: RedisSink(server.url, "cached", "p", ("k",), timedelta(hours=1)))

        def found() -> Rows:
            rows = [json.loads(client.get(key) or b"") for key in client.scan_iter("millstream:{cached}:{*")]
            return {row["k"]: row["n"] for row in rows}

        through_what_it_forgets(view, found, client.flushall)
        client.delete("millstream:{cached}:p")  # the number alone: rows that are no more must not stay
        view.send({"e": 5}, gone=("b",))
        assert found() == view.rows == {"c": 3, "d": 4, "e": 5}


def test_a_text_index_that_was_deleted_and_one_that_was_put_back(tmp_path: Path) -> None:
    path, old = tmp_path / "index.db", tmp_path / "old.db"
    view = View(tmp_path, lambda: SearchSink(path, ["k"], "unicode61", "totals", "p", ("k",)))

    def found() -> Rows:
        return {hit.row["k"]: hit.row["n"] for hit in search(path, list("abcdefg"), limit=100, either=True)}

    def forget() -> None:
        for file in tmp_path.glob("index.db*"):
            file.unlink()

    through_what_it_forgets(view, found, forget)
    forget()
    view.send({"e": 5})  # between two batches
    assert found() == view.rows
    view.sink.close()
    shutil.copy(path, old)
    view.start()
    view.send({"f": 6}, gone=("b",))
    forget()
    shutil.copy(old, path)
    view.send({"g": 7})
    assert found() == view.rows == {"c": 3, "d": 4, "e": 5, "f": 6, "g": 7}


def test_a_delta_table_that_was_deleted_and_one_that_was_put_back(tmp_path: Path) -> None:
    folder, old = tmp_path / "table", tmp_path / "old"
    view = View(tmp_path, lambda: DeltaSink(folder, "totals", "p", ("k",)))

    def found() -> Rows:
        rows = pl.DataFrame(DeltaTable(folder).to_pyarrow_table()).to_dicts()
        return {row["k"]: row["n"] for row in rows}

    through_what_it_forgets(view, found, lambda: shutil.rmtree(folder))
    shutil.copytree(folder, old)
    view.send({"e": 5}, gone=("b",))
    shutil.rmtree(folder)
    shutil.move(old, folder)
    view.send({"f": 6})
    assert found() == view.rows == {"c": 3, "d": 4, "e": 5, "f": 6}
    view.again()
    assert found() == view.rows


@pytest.fixture(params=["sqlite", "kafka"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "kafka":
        broker: KafkaBroker = request.getfixturevalue("kafka")
        return broker.url
    return f"sqlite:{tmp_path / 'log.db'}"


def test_a_topic_that_was_deleted(url: str, tmp_path: Path) -> None:
    topic = name()
    view = View(tmp_path, lambda: TopicSink(open_log(url), topic, f"p-{topic}", ("k",)))
    with open_log(url) as log:

        def found() -> Rows:
            newest: dict[Any, Any] = {}
            for partition, bound in log.bounds(topic).items():
                newest |= {r.key: r.value for r in log.read(topic, partition, bound.start, bound.end)}
            rows = [json.loads(value) for value in newest.values() if value is not None]
            return {row["k"]: row["n"] for row in rows}

        through_what_it_forgets(view, found, lambda: log.delete_topic(topic))


def test_a_number_of_kafka_that_expired_is_given_back_if_the_topic_is_the_one_that_it_was(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic = name()
    view = View(tmp_path, lambda: TopicSink(open_log(kafka.url), topic, f"p-{topic}", ()))  # only added to
    with open_log(kafka.url) as log:
        assert isinstance(log, KafkaLog)

        def expire() -> None:  # as after offsets.retention.minutes without a change
            admin = AdminClient({"bootstrap.servers": kafka.url.removeprefix("kafka://")})
            [done] = admin.delete_consumer_groups([f"{SEQUENCES}p-{topic}"]).values()
            done.result(30)
            assert log.stored_sequence(topic, f"p-{topic}") is None

        def found() -> list[int]:
            return sorted(json.loads(record.value or b"")["n"] for record in log.read(topic, 0, 0))

        view.start()
        view.send({"a": 1})
        view.send({"b": 2})
        expire()
        view.again()  # between two runs
        view.send({"c": 3})
        expire()
        view.send({"d": 4})  # between two batches
        assert found() == [1, 2, 3, 4]
        assert view.said == []
        view.send({"e": 5}, stored=False)
        expire()
        (tmp_path / "offsets").mkdir()
        (tmp_path / "offsets" / "4").touch()  # it was begun, and nobody knows whether it is there
        with pytest.raises(SinkForgot):
            view.again()
        log.delete_topic(topic)
        view.again()
        assert found() == [1, 2, 3, 4]


def test_a_view_that_is_kept_nowhere_cannot_be_sent_again(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    view = View(tmp_path, lambda: FileSink(folder, "parquet"))
    view.start()
    view.send({"a": 1})

    def nowhere() -> pa.Table:
        raise CheckpointMismatch("kept nowhere", hint="run with --rebuild")

    view.table = nowhere  # type: ignore[method-assign]
    shutil.rmtree(folder)
    with pytest.raises(SinkForgot, match="kept nowhere") as caught:
        view.again()
    assert "--rebuild" in caught.value.hint


def test_a_sink_that_is_away_at_the_start_is_waited_for(tmp_path: Path) -> None:
    file = write_shop(tmp_path)
    append_clicks(tmp_path, 0, 5)
    pipeline = load(file)
    pipeline.sink("fast", pipeline.views["by_user"], "redis://127.0.0.1:1/0")
    seen: list[str] = []
    stop = threading.Event()

    def watch(progress: Progress) -> None:
        seen.append(progress.waiting)
        if len(seen) == 2:
            stop.set()

    with pytest.raises(SinkUnavailable):  # nobody came, and someone asked to stop
        run(pipeline, progress=watch, stop=stop)
    assert [text.partition(":")[0] for text in seen] == ["sink fast"] * 2


def test_a_rebuild_does_not_add_rows_twice_unless_it_is_asked_to(tmp_path: Path) -> None:
    file = write_shop(tmp_path)
    append_clicks(tmp_path, 0, 5)
    pipeline = load(file)
    raw = pipeline.view("raw", pipeline.streams["clicks"].select("user"))
    pipeline.sink("out", raw, "topic:out")
    frame = pl.DataFrame({"user": [1]})
    with TopicSink(open_log(pipeline.log), "out", "millstream.shop.out", ()) as sink:  # as an earlier run did
        sink.send(sink.pack(ChangeSet(frame, frame.clear())).payload, 1, marked=True)
    with pytest.raises(PipelineError, match="sink out to topic:out: view raw has no key, so all its rows") as caught:
        run(pipeline, rebuild=True, once=True)
    assert "--send-again" in caught.value.hint
    with ExitStack() as stack, open_log(pipeline.log) as log:
        sinks = open_sinks(stack, pipeline)
        clear_sinks(sinks, pipeline, 9, tmp_path, IMPATIENT, ran=False, again=True)
        assert log.bounds("out")[0].end == 1  # nothing of it can be taken back, and it is asked for
