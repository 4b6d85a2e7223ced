"""Plain Structured Streaming over files, in a process of its own whose JVM has all of its compilers, with state in RocksDB.

Queries are files beside this one; the first lines of a file say what is not in its SQL: ``mode: update`` for one whose rows
change, the ``key`` of such rows, and ``closing`` for one that gives a window's rows only when something later has come. What Spark
refuses is tried all the same, and the reason is Spark's own.
"""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from millstream.bench.nexmark.peers.layout import READERS, Input, aged
from millstream.spark.session import spark_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

BATCH = 256 << 20
"""Bytes that a micro-batch reads at most: large ones are quickest, and this is what still fits when there is more."""
RECORDS = BATCH // 320
"""About as much from Kafka, where Spark counts records."""
SETTINGS = {
    "spark.driver.memory": "4g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=4",
    "spark.sql.shuffle.partitions": str(READERS),
}
_HERE = Path(__file__).parent
_SCHEMA = """event_type INT,
    person STRUCT<id: BIGINT, name: STRING, emailAddress: STRING, creditCard: STRING, city: STRING, state: STRING, extra: STRING>,
    auction STRUCT<id: BIGINT, itemName: STRING, description: STRING, initialBid: BIGINT, reserve: BIGINT, expires: TIMESTAMP,
        seller: BIGINT, category: BIGINT, extra: STRING>,
    bid STRUCT<auction: BIGINT, bidder: BIGINT, price: BIGINT, channel: STRING, url: STRING, extra: STRING>,
    dateTime TIMESTAMP"""
_KINDS = ("person", "auction", "bid")
_PARTITIONED = {"q10": ("dt", "hm")}

Rows = list[list[Any]]


@dataclass(frozen=True, slots=True)
class Question:
    """A query's text, and how it is run."""

    text: str
    mode: str = "append"
    key: tuple[str, ...] = ()
    closing: bool = False


class Spark:
    """A session in a process of its own; :meth:`close` ends it."""

    def __init__(self, say: Callable[[str], None], *, kafka: bool) -> None:
        say("spark: starting")
        self._folder = tempfile.TemporaryDirectory(prefix="millstream-spark-")
        self._work = Path(self._folder.name)
        self._laid: dict[Path, Path] = {}
        self._numbers = count()
        self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        self._pool.submit(_session, kafka).result()

    def seconds(self, system: str, query: str, given: Input) -> float | str:  # noqa: ARG002
        """Time a query from its start to its end; or say why Spark does not run it."""
        found = self._run(query, given, False)
        return found if isinstance(found, str) else found[0]

    def answer(self, system: str, query: str, given: Input) -> Rows | str:  # noqa: ARG002
        """Give the final content of a query; or say why Spark does not run it."""
        found = self._run(query, given, True)
        return found if isinstance(found, str) else found[1]

    def close(self) -> None:
        """End the process, and forget what it wrote."""
        self._pool.submit(stop_session).result()
        self._pool.shutdown()
        self._folder.cleanup()

    def _run(self, query: str, given: Input, keep: bool) -> tuple[float, Rows] | str:
        if not given.bootstrap:
            if given.folder not in self._laid:
                self._laid[given.folder] = aged(given.folder, self._work / f"in-{next(self._numbers)}")
            given = Input(self._laid[given.folder])
        work = self._work / f"run-{next(self._numbers)}"
        work.mkdir()
        try:
            return self._pool.submit(_run, query, given, work, keep).result()
        finally:
            shutil.rmtree(work, ignore_errors=True)


def question(query: str) -> Question:
    """Read a query's file."""
    text = (_HERE / "spark" / f"{query}.sql").read_text()
    head = dict(re.findall(r"^-- (mode|key): (.+)$", text, re.MULTILINE))
    key = tuple(head.get("key", "").split(", ")) if "key" in head else ()
    return Question(text, head.get("mode", "append"), key, "-- closing\n" in text)


def _session(kafka: bool) -> None:
    # It prints every refusal with its whole stack; the reason is told anyway.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    spark_session("nexmark-plain", settings=SETTINGS, kafka=kafka)


def _run(query: str, given: Input, work: Path, keep: bool) -> tuple[float, Rows] | str:
    """Run a query in this process: its seconds, and its rows where they are kept."""
    from pyspark.errors import AnalysisException, StreamingQueryException

    asked, spark = question(query), spark_session()
    kept = _Kept(asked.key)
    began = time.perf_counter()
    try:
        _views(spark, given, closing=asked.closing)
        made = spark.sql(asked.text)
        writer = made.writeStream.outputMode(asked.mode).option("checkpointLocation", str(work / "checkpoint"))
        writer = _into(writer, query, work, kept if keep else None)
        writer.trigger(availableNow=True).start().awaitTermination()
    except AnalysisException as error:
        return f"refused: {str(error).strip().splitlines()[0].split('. ')[0].strip(' ;')}"
    except StreamingQueryException as error:
        return f"failed: {str(error).splitlines()[0]}"
    seconds = time.perf_counter() - began
    return seconds, kept.rows([name for name in made.columns if not name.startswith("_")])


def _into(writer: DataStreamWriter, query: str, work: Path, kept: _Kept | None) -> DataStreamWriter:
    if kept is not None:
        return writer.foreachBatch(kept.add)
    if query in _PARTITIONED:
        return writer.format("csv").option("path", str(work / "out")).partitionBy(*_PARTITIONED[query])
    return writer.format("noop")


def _views(spark: SparkSession, given: Input, *, closing: bool) -> None:
    read = _topic(spark, given, closing) if given.bootstrap else _files(spark, given.folder, closing)
    for number, kind in enumerate(_KINDS):
        some = read.where(f"event_type = {number}").withWatermark("dateTime", "4 seconds")
        some.selectExpr(f"{kind}.*", "dateTime").createOrReplaceTempView(kind)
    spark.range(10_000).selectExpr("id AS key", "cast(id AS string) AS value").createOrReplaceTempView("side_input")


def _files(spark: SparkSession, laid: Path, closing: bool) -> DataFrame:
    folders = f"{laid}/{{events,closing}}" if closing else f"{laid}/events"
    return spark.readStream.schema(_SCHEMA).option("maxBytesPerTrigger", BATCH).json(folders)


def _topic(spark: SparkSession, given: Input, closing: bool) -> DataFrame:
    options = {
        "kafka.bootstrap.servers": given.bootstrap,
        "subscribe": given.closed if closing else given.topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(RECORDS),
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "true",
    }
    records = spark.readStream.format("kafka").options(**options).load()
    return records.selectExpr(f"from_json(cast(value AS string), '{_SCHEMA}') AS event").select("event.*")


class _Kept:
    """The rows of all batches; of those with a key, the last."""

    def __init__(self, key: tuple[str, ...]) -> None:
        self._key = key
        self._rows: dict[Any, dict[str, Any]] = {}

    def add(self, frame: DataFrame, _: int) -> None:
        """Take the rows of a batch."""
        some = pl.DataFrame(frame.toArrow()).with_columns(
            pl.selectors.datetime().dt.to_string("%Y-%m-%d %H:%M:%S%.3f"), pl.selectors.decimal().cast(pl.Float64)
        )
        for row in some.iter_rows(named=True):
            key = repr([row[name] for name in self._key]) if self._key else len(self._rows)
            self._rows[key] = row

    def rows(self, columns: list[str]) -> Rows:
        """What is left, in these columns."""
        return [[row[name] for name in columns] for row in self._rows.values()]
