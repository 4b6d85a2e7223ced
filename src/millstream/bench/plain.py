"""Plain Structured Streaming, as one would write it by hand: from_json, a query, RocksDB, an upsert into SQLite in foreachBatch.

It runs in a process of its own, whose JVM has all of its compilers: ours does without the second one, by which plain Spark
gains. It reads the same log by the same data source, and its table is the quickest that SQLite offers for its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import apsw

from millstream.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TYPES = {"bigint": "INTEGER", "int": "INTEGER", "double": "REAL", "string": "TEXT"}

P = ParamSpec("P")
T = TypeVar("T")


def apart(function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Call a function in a new process, and give what it gives."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments, **options).result()


def session(*, kafka: bool = False) -> SparkSession:
    """A session with our settings of Spark SQL and state, and the JVM's own compilers."""
    settings = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=4"}
    return spark_session("millstream-bench-plain", settings=settings, kafka=kafka)


def read(spark: SparkSession, log: str, topic: str, schema: str, limit: int) -> DataFrame:
    """A topic of JSON documents, with at most so many records a batch."""
    records = spark.readStream.format("millstream").options(log=log, subscribe=topic, startingOffsets="earliest")
    loaded = records.options(maxOffsetsPerTrigger=str(limit), wholeAppends="true").load()
    return loaded.selectExpr(f"from_json(cast(value AS string), '{schema}') AS d").select("d.*")


def write(frame: DataFrame, mode: str, folder: Path, key: Sequence[str] = ()) -> str:
    """Run the query over its backlog, into a table by ``key`` or, without one, only added to; give the query's name."""
    frame = frame.selectExpr(
        *(f"unix_micros(`{name}`) AS `{name}`" if kind == "timestamp" else f"`{name}`" for name, kind in frame.dtypes)
    )
    db = apsw.Connection(str(folder / "plain.db"))
    db.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cache_size=-16000").fetchall()
    db.execute("PRAGMA wal_autocheckpoint=4000").fetchall()
    db.execute(_table(frame, key))
    insert = f"INSERT {'OR REPLACE ' if key else ''}INTO made VALUES ({', '.join('?' * len(frame.columns))})"

    def upsert(some: DataFrame, _: int) -> None:
        rows = zip(*(column.to_pylist() for column in some.toArrow().columns), strict=True)
        with db:
            db.executemany(insert, rows)

    started = (
        frame.writeStream.queryName("plain")
        .outputMode(mode)
        .option("checkpointLocation", str(folder / "plain.checkpoint"))
        .foreachBatch(upsert)
        .trigger(availableNow=True)
        .start()
    )
    started.awaitTermination()
    db.close()
    return "plain"


def _table(frame: DataFrame, key: Sequence[str]) -> str:
    """A key that is one integer is the row's own number, the quickest there is; several columns are the order of the rows."""
    one = len(key) == 1
    columns = [
        f"{name} {_TYPES[kind]}{' PRIMARY KEY' if one and name == key[0] else ''}" for name, kind in frame.dtypes
    ]
    whole = f", PRIMARY KEY ({', '.join(key)})" if len(key) > 1 else ""
    return f"CREATE TABLE made ({', '.join(columns)}{whole}){' WITHOUT ROWID' if whole else ''}"
