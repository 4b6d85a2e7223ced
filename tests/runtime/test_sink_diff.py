"""From the database to the last place that is derived from it: each link is compared, and what differs is named."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import apsw
import polars as pl
import pytest
import redis
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from millstream.cli import execute
from millstream.event import Event
from millstream.load import load_pipeline
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.runtime.run import run
from millstream.runtime.sink_diff import SinkDifference, compare_sinks
from millstream.sink.files import committed_files
from millstream.testing import RedisServer
from tests.capture.databases import Sqlite
from tests.capture.process import once
from tests.sink.opensearch_server import State, opensearch
from tests.waiting import until

TEXT = """
from millstream import Pipeline

shop = Pipeline("shop", log="sqlite:{folder}/log.db", to="sqlite:{folder}/views.db", checkpoint="{folder}/check", buckets=2)
a = shop.table("a", "id int, v int, t string", key="id", topic="shop.a", codec="debezium")
rows = a.select(
    "id", "v", "t", "v / 8D AS part", "cast(v AS decimal(12, 2)) AS price", "timestamp_micros(v) AS at", "split(t, ' ') AS words",
    "cast(t AS binary) AS raw", "named_struct('x', v, 'y', t) AS deep", "v > 3 AS much",
)
whole = shop.view("whole", rows)
flat = shop.view("flat", a)
counted = shop.view("counted", a.group_by("v % 5 AS rest").agg(n="count(*)", most="max(t)"))
bare = shop.view("bare", a.select("v"), key=())
gone = shop.view("gone", a, to="nowhere")
shop.sink("topic", whole, "topic:out")
shop.sink("files", flat, "files:{folder}/files")
shop.sink("lines", whole, "files:{folder}/lines?format=json")
shop.sink("parts", counted, "files:{folder}/parts?partition=rest")
shop.sink("words", whole, "search:{folder}/words.db?columns=t")
shop.sink("lake", whole, "delta:{folder}/lake")
shop.sink("hash", counted, "redis://{redis}")
shop.sink("cache", counted, "redis://{redis}/1?ttl=1h")
shop.sink("documents", flat, "opensearch://{opensearch}/flat?tls=false")
shop.sink("bag", bare, "topic:bag")
shop.sink("unkept", gone, "topic:unkept")
shop.sink("called", flat, len)
"""
SKIPPED = {"cache", "parts", "bag", "unkept", "called"}


class World:
    """A database that is captured, a pipeline of what is captured, and all its sinks."""

    def __init__(self, folder: Path, spark: SparkSession, hashes: RedisServer, documents: tuple[str, State]) -> None:
        self.folder, self.spark, self.hashes, self.state = folder, spark, hashes, documents[1]
        self.database = Sqlite(folder / "shop.db")
        self.file = folder / "shop.py"
        text = TEXT.replace("{folder}", str(folder)).replace("{opensearch}", documents[0])
        self.file.write_text(text.replace("{redis}", hashes.url.removeprefix("redis://").partition("/")[0]))

    def pipeline(self) -> Pipeline:
        return load_pipeline(str(self.file))

    def follow(self) -> None:
        """Bring the topic and all that is behind it to where the database is."""
        with open_log(f"sqlite:{self.folder}/log.db") as log:
            once(log, self.database)
        run(self.pipeline(), spark=self.spark, once=True)

    def spoil(self) -> None:
        """Change every place by hand: in each a row goes, or one is another."""
        with open_log(f"sqlite:{self.folder}/log.db", create=False) as log:
            log.append("out", [Event(None, b'{"id":3}'), Event(b'{"id":4,"v":-1}', b'{"id":4}'), Event(b"{}", b'{"id":77}')])  # fmt: skip
        file = committed_files(self.folder / "files")[0]
        frame = pl.read_parquet(file)
        frame.with_columns(v=pl.when(pl.col("id") == 33).then(-1).otherwise(pl.col("v"))).write_parquet(file)
        line = committed_files(self.folder / "lines")[0]
        line.write_bytes(b"".join(each + b"\n" for each in line.read_bytes().splitlines() if b'"id":33,' not in each))
        with apsw.Connection(str(self.folder / "words.db")) as db:
            db.execute("DELETE FROM millstream_rows WHERE key = '{\"id\":3}'")
        DeltaTable(self.folder / "lake").delete("id = 3")
        with redis.Redis.from_url(self.hashes.url) as client:
            client.hset("millstream:{counted}", '{"rest":1}', "{}")
            client.hset("millstream:{counted}", '{"rest":9}', "{}")
        del self.state.indexes["flat"].documents['{"id":3}']


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession) -> Iterator[World]:
    with RedisServer() as hashes, opensearch() as documents:
        found = World(tmp_path, spark, hashes, documents)
        found.database.made(rows=60)
        found.follow()
        found.database.run("UPDATE a SET v = v + 1 WHERE id < 20", "DELETE FROM a WHERE id > 50", "INSERT INTO a VALUES (99, NULL, 'ü \"')")  # fmt: skip
        found.follow()
        yield found


def counts(found: SinkDifference) -> tuple[int, int, int]:
    return found.missing, found.extra, found.other


def test_what_somebody_has_changed_in_a_sink_is_found_and_named(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    code = execute(["capture", "diff", str(world.file), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert (code, said["equal"]) == (0, True), said
    places = {(each["kind"], each["name"]): each for each in said["places"]}
    assert [name for kind, name in places if kind == "table"] == ["a", "b"]
    assert {name for kind, name in places if kind == "view"} >= {"whole", "flat", "counted", "bare", "gone"}
    assert {name for (kind, name), each in places.items() if kind == "sink" and each["skipped"]} == SKIPPED
    assert {each["rows"] for (_, name), each in places.items() if name in ("topic", "files", "lines", "words", "lake", "documents")} == {52}  # fmt: skip

    world.spoil()
    found = {each.sink: each for each in compare_sinks(world.pipeline(), patience=timedelta(0))}
    assert {name: counts(each) for name, each in found.items() if name not in SKIPPED} == {
        "topic": (1, 1, 1),
        "files": (0, 0, 1),
        "lines": (1, 0, 0),
        "words": (1, 0, 0),
        "lake": (1, 0, 0),
        "hash": (0, 1, 1),
        "documents": (1, 0, 0),
    }
    assert found["topic"].examples == ('{"id":3}: missing', '{"id":4}: other', '{"id":77}: extra')
    with apsw.Connection(str(world.folder / "views.db")) as db:
        db.execute("UPDATE flat SET t = 'other' WHERE id = 7")
    code = execute(["capture", "diff", str(world.file)])
    captured = capsys.readouterr()
    assert code == 1
    assert 'topic: {"id":77}: extra' in captured.err
    assert "cache: not compared; rows expire" in captured.err
    assert [line.split()[-1] for line in captured.out.splitlines() if " flat " in line] == ["no"]


def test_sinks_that_move_are_no_difference(world: World) -> None:
    stop, over, pipeline = threading.Event(), threading.Event(), world.pipeline()

    def write() -> None:
        number = 0
        with open_log(f"sqlite:{world.folder}/log.db") as log:
            while not over.wait(0.05):
                number += 1
                world.database.run(f"UPDATE a SET v = {number} WHERE id % 7 = {number % 7}")
                once(log, world.database)

    def look() -> None:
        try:
            for batches in range(4):
                until(lambda: len(committed_files(world.folder / "lines")) > before + batches, timeout=60)  # noqa: B023
                seen.extend(compare_sinks(world.pipeline()))
        finally:
            over.set()
            stop.set()

    before, seen = len(committed_files(world.folder / "lines")), list[SinkDifference]()
    threads = [threading.Thread(target=write), threading.Thread(target=look)]
    for each in threads:
        each.start()
    run(pipeline, spark=world.spark, stop=stop)
    for each in threads:
        each.join(60)
    assert len(seen) == 4 * len(pipeline.sinks)
    assert [each for each in seen if not each.equal] == []
    assert {each.sink for each in seen if not each.skipped and not each.moving} == set(pipeline.sinks) - SKIPPED


def test_a_pipeline_that_has_not_run_has_nothing_to_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "shop.py"
    file.write_text(
        "from millstream import Pipeline\n"
        f"shop = Pipeline('shop', log='sqlite:{tmp_path}/log.db', to='sqlite:{tmp_path}/views.db', checkpoint='{tmp_path}/check')\n"
        "shop.view('all', shop.table('a', 'id int', key='id', topic='shop.a'))\n"
    )
    with open_log(f"sqlite:{tmp_path}/log.db", create=True) as log:
        log.create_topic("shop.a")
    assert execute(["capture", "diff", str(file)]) == 1
    assert "millstream run" in capsys.readouterr().err
