"""Delivery measured: rows that Spark holds into each kind of sink, exactly once, beside the plain way at least once.

Both sides begin with the same cached frame of Spark, as ``foreachBatch`` gives it: a changed row for every key. The plain way is
what one writes by hand for that sink: ``executemany`` with an upsert, a pipeline of commands, Spark's own writer. ``catch_up``
is a whole pipeline over a backlog on Kafka, beside plain Structured Streaming over the same topic.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import numpy as np
import pyarrow as pa

from millstream.bench import Result, alternate, plain
from millstream.bench.streams import Timed, rate, records_of, time_batches
from millstream.event import Event
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.runtime.run import Progress, run
from millstream.runtime.sink_dispatch import change_set_of
from millstream.sink import Sink
from millstream.sink.files import FileSink
from millstream.sink.redis import RedisSink
from millstream.sink.topic import TopicSink
from millstream.spark.session import spark_session
from millstream.store import Batch, Target, open_writer
from millstream.store.contract import WEIGHT
from millstream.testing import KafkaBroker, PostgresServer, RedisServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMES = ("sqlite", "postgres", "kafka", "redis", "files", "catch_up")
ROUNDS = 5
_CATCH_UPS = 3
_SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("total", pa.float64())])
_TARGET = Target("totals", _SCHEMA, ("k",))
_UPSERT = "INSERT INTO plain VALUES ({}, {}, {}) ON CONFLICT (k) DO UPDATE SET n = excluded.n, total = excluded.total"
_TABLE = "CREATE TABLE plain (k {0} PRIMARY KEY, n {0}, total {1})"

Write = Callable[["DataFrame"], None]


@dataclass(frozen=True)
class Pair:
    """Our way and the plain way into one kind of sink."""

    ours: Write
    plain: Write
    against: str


def measure(names: tuple[str, ...], scale: float, say: Callable[[str], None]) -> Iterator[Result]:
    """Measure what is named, one after the other."""
    spark = spark_session("millstream-bench", kafka=bool({"kafka", "catch_up"} & set(names)))
    rows = max(1_000, int(200_000 * scale))
    pairs: dict[str, Callable[[ExitStack, Path], Pair]] = {
        "sqlite": _sqlite, "postgres": _postgres, "kafka": _kafka, "redis": _redis, "files": _files,
    }  # fmt: skip
    frames = []
    for number in range(ROUNDS + 1):
        frames.append(spark.createDataFrame(_rows(rows, number)).cache())
        frames[-1].count()
    for name in names:
        if name in pairs:
            say(f"{name}: {rows:,} changed rows a batch")
            with ExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millstream-bench-")))
                pair = pairs[name](stack, folder)
                yield _measured(name, pair, frames, rows)
    if "catch_up" in names:
        with KafkaBroker(ordinary=True) as broker, tempfile.TemporaryDirectory(prefix="millstream-bench-") as place:
            yield _catch_up(spark, broker.url, Path(place), max(10_000, int(5_000_000 * scale)), say)


def _measured(name: str, pair: Pair, frames: Sequence[DataFrame], rows: int) -> Result:
    ours, theirs = iter(frames), iter(frames)
    _seconds(pair.ours, next(ours))
    _seconds(pair.plain, next(theirs))
    taken = alternate(lambda: _seconds(pair.ours, next(ours)), lambda: _seconds(pair.plain, next(theirs)), ROUNDS)
    return Result(name, rows / taken[0], "rows/s", pair.against, rows / taken[1])


def _seconds(write: Write, frame: DataFrame) -> float:
    began = time.monotonic()
    write(frame)
    return time.monotonic() - began


def _rows(count: int, number: int) -> pa.Table:
    chance = np.random.default_rng(number)
    columns = [np.arange(count), chance.integers(0, 1_000_000, count), chance.random(count).round(3)]
    return pa.table([pa.array(column) for column in columns], schema=_SCHEMA)


def _values(frame: DataFrame) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in frame.toArrow().columns), strict=True)


# each kind of sink


def _stored(stack: ExitStack, address: str) -> Write:
    """Into a store of views, with ledger and fence."""
    writer = stack.enter_context(open_writer(address))
    fence, number = writer.claim("bench"), iter(range(1_000))
    writer.prepare("bench", "bench", [_TARGET])

    def write(frame: DataFrame) -> None:
        writer.commit(Batch("bench", next(number), fence, changes={"totals": _weighted(frame)}))

    return write


def _sent(stack: ExitStack, sink: Sink) -> Write:
    """Into an sink, with the batch's number."""
    stack.enter_context(sink)
    number = iter(range(1, 1_000))

    def write(frame: DataFrame) -> None:
        sink.send(sink.pack(change_set_of(_TARGET, _weighted(frame))).payload, next(number), marked=True)

    return write


def _weighted(frame: DataFrame) -> pa.Table:
    table = frame.toArrow()
    return table.append_column(WEIGHT, pa.array(np.ones(table.num_rows, np.int64)))


def _sqlite(stack: ExitStack, folder: Path) -> Pair:
    db = apsw.Connection(str(folder / "plain.db"))
    stack.callback(db.close)
    db.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cache_size=-16000").fetchall()
    db.execute(_TABLE.format("INTEGER", "REAL"))

    def upsert(frame: DataFrame) -> None:
        with db:
            db.executemany(_UPSERT.format("?", "?", "?"), _values(frame))

    return Pair(_stored(stack, f"sqlite:{folder / 'views.db'}"), upsert, "executemany with an upsert")


def _postgres(stack: ExitStack, _: Path) -> Pair:
    import psycopg

    server = stack.enter_context(PostgresServer())
    connection = stack.enter_context(psycopg.connect(server.address, autocommit=True))
    connection.execute(_TABLE.format("bigint", "double precision"))

    def upsert(frame: DataFrame) -> None:
        with connection.transaction(), connection.cursor() as cursor:
            cursor.executemany(_UPSERT.format("%s", "%s", "%s"), list(_values(frame)))

    return Pair(_stored(stack, server.address), upsert, "executemany with an upsert")


def _kafka(stack: ExitStack, _: Path) -> Pair:
    broker = stack.enter_context(KafkaBroker(ordinary=True))
    with open_log(broker.url) as log:
        log.create_topic("plain", 2)
        log.create_topic("ours", 2)

    def write(frame: DataFrame) -> None:
        records = frame.selectExpr("to_json(struct(k)) AS key", "to_json(struct(*)) AS value")
        records.write.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap).option(
            "topic", "plain"
        ).save()

    ours = _sent(stack, TopicSink(open_log(broker.url), "ours", "bench", ("k",)))
    return Pair(ours, write, "Spark's Kafka sink, at least once")


def _redis(stack: ExitStack, _: Path) -> Pair:
    import redis

    server = stack.enter_context(RedisServer())
    client = stack.enter_context(redis.Redis.from_url(server.url))

    def write(frame: DataFrame) -> None:
        with client.pipeline(transaction=False) as commands:
            for at, row in enumerate(_values(frame)):
                commands.hset("plain", str(row[0]), json.dumps(dict(zip(_SCHEMA.names, row, strict=True))))
                if at % 10_000 == 9_999:
                    commands.execute()
            commands.execute()

    return Pair(_sent(stack, RedisSink(server.url, "totals", "bench", ("k",))), write, "HSET by pipelines of 10,000")


def _files(stack: ExitStack, folder: Path) -> Pair:
    def write(frame: DataFrame) -> None:
        frame.write.mode("append").parquet(str(folder / "plain"))

    return Pair(_sent(stack, FileSink(folder / "ours", "parquet")), write, "Spark's Parquet writer, append")


# catching up


def _catch_up(spark: SparkSession, url: str, folder: Path, records: int, say: Callable[[str], None]) -> Result:
    """Count and sum of 100,000 keys over a backlog, both sides in turn; the first batches of each run, which warm a JVM, do not count."""
    batch = max(2_000, records // 12)
    say(f"catch_up: {records:,} records into Kafka")
    with open_log(url) as log:
        log.create_topic("events", 4)
        for first in range(0, records, 100_000):
            log.append("events", _events(min(100_000, records - first), first))
    say(f"catch_up: {records:,} records, {batch:,} a batch, {_CATCH_UPS} rounds")

    def one(side: Callable[[Path], list[Timed]]) -> float:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            found = rate(side(Path(place)))
        say(f"catch_up: {side.__name__.strip('_')} {found:,.0f} records/s")
        return found

    def ours(place: Path) -> list[Timed]:
        return time_batches(spark, lambda: _run_catch_up(spark, url, place, batch), cold=3)

    def plain_spark(place: Path) -> list[Timed]:
        return plain.apart(_plain_catch_up, url, place, batch)

    mine, theirs = alternate(lambda: one(ours), lambda: one(plain_spark), _CATCH_UPS)
    return Result("catch_up", mine, "records/s", "plain Structured Streaming from Kafka", theirs)


def _run_catch_up(spark: SparkSession, url: str, folder: Path, batch: int) -> tuple[str, dict[int, int]]:
    pipeline = Pipeline("ours", log=url, to=f"sqlite:{folder / 'views.db'}", checkpoint=str(folder / "ours.checkpoint"))
    events = pipeline.stream("events", "k long, v long")
    pipeline.view("totals", events.group_by("k").agg(n="count(*)", s="sum(v)"))
    seen: list[Progress] = []
    run(pipeline, spark=spark, once=True, rate_limit=batch, progress=seen.append)
    return pipeline.name, records_of(seen)


def _plain_catch_up(url: str, folder: Path, batch: int) -> list[Timed]:
    spark = plain.session(kafka=True)
    records = spark.readStream.format("kafka").option("kafka.bootstrap.servers", url.removeprefix("kafka://"))
    records = records.options(subscribe="events", startingOffsets="earliest", maxOffsetsPerTrigger=str(batch))
    parsed = records.load().selectExpr("from_json(cast(value AS string), 'k long, v long') AS d").select("d.*")
    made = parsed.groupBy("k").agg({"*": "count", "v": "sum"}).toDF("k", "n", "s")
    return time_batches(spark, lambda: (plain.write(made, "update", folder, ("k",)), {}), cold=3)


def _events(count: int, seed: int) -> list[Event]:
    chance = np.random.default_rng(seed)
    keys, values = chance.integers(0, 100_000, count).tolist(), chance.integers(0, 1_000, count).tolist()
    return [Event(b'{"k":%d,"v":%d}' % pair, key=b"%d" % pair[0]) for pair in zip(keys, values, strict=True)]
