"""``millstream bench log``: the event log beside the bare engine, on records of 100 bytes in 4 partitions."""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from millstream.bench import Result, alternate
from millstream.bench.log_kafka import append_kafka
from millstream.event import Event
from millstream.log.contract import Log
from millstream.log.embedded.engine import SqliteLog
from millstream.log.embedded.file import Store, create_records_table
from millstream.log.partitioner import partitions_of

PARTITIONS = 4
BATCH = 1000
NAMES = ("append", "append_kafka", "read", "spark_read", "delay_p99", "append_growth")


def measure(names: tuple[str, ...], scale: float, say: Callable[[str], None]) -> Iterator[Result]:
    """Measure what is named; ``scale`` below 1 measures less of it, and less well."""
    batches = [_events(i) for i in range(max(10, int(100 * scale)))]
    gc.collect()
    gc.freeze()  # the prepared events are ours alone: the collector must not go through them while something is measured
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as name:
        folder = Path(name)
        if "append" in names:
            say("append: durable batches of 1,000")
            yield append(folder, batches)
        if "append_kafka" in names:
            say("append_kafka: a local broker")
            yield from append_kafka(batches, PARTITIONS)
        if "read" in names:
            say("read: in Python")
            yield read(folder, batches)
        if "spark_read" in names:
            say("spark_read: 2 M records into Spark")
            yield spark_read(folder, batches, int(2_000_000 * scale))
        if "delay_p99" in names:
            say("delay: 1,000 events/s from one process to another")
            yield from delay(folder, 10.0 * scale)
        if "append_growth" in names:
            say("append_growth: from 1 M to 10 M records")
            yield append_growth(folder, batches, int(10_000_000 * scale))


def _events(batch: int) -> list[Event]:
    return [Event(os.urandom(100), b"user-%d" % ((batch * BATCH + i) * 7919 % 10_000)) for i in range(BATCH)]


def _log(folder: Path, name: str) -> SqliteLog:
    log = SqliteLog(folder / f"{name}.db")
    log.create_topic("t", PARTITIONS)
    return log


def _bare(folder: Path, name: str) -> Any:
    """A plain apsw connection with the very pragmas and tables of the log."""
    db = Store(folder / f"{name}.db").db
    for partition in range(PARTITIONS):
        create_records_table(db, 0, partition)
    return db


def _rows(batches: list[list[Event]], offsets: list[int]) -> list[list[list[tuple[Any, ...]]]]:
    """The rows of the same events, made beforehand."""
    prepared = []
    for batch in batches:
        rows: list[list[tuple[Any, ...]]] = [[] for _ in range(PARTITIONS)]
        for partition, event in zip(
            partitions_of([event.key or b"" for event in batch], PARTITIONS), batch, strict=True
        ):
            rows[partition].append(
                (offsets[partition], 1_800_000_000_000, 1_800_000_000_000, event.key, event.value, None)
            )
            offsets[partition] += 1
        prepared.append(rows)
    return prepared


def append(folder: Path, batches: list[list[Event]], rounds: int = 7) -> Result:
    """Our append against a loop of inserts."""
    log, db, offsets = _log(folder, "append"), _bare(folder, "append-bare"), [0] * PARTITIONS

    def ours() -> float:
        begun = time.perf_counter()
        for batch in batches:
            log.append("t", batch)
        return len(batches) * BATCH / (time.perf_counter() - begun)

    def theirs() -> float:
        prepared = _rows(batches, offsets)
        begun = time.perf_counter()
        for rows in prepared:
            db.execute("BEGIN IMMEDIATE")
            for partition in range(PARTITIONS):
                db.executemany(f"INSERT INTO records_0_{partition} VALUES (?, ?, ?, ?, ?, ?)", rows[partition])
            db.execute("COMMIT")
        return len(batches) * BATCH / (time.perf_counter() - begun)

    ours(), theirs()
    value, baseline = alternate(ours, theirs, rounds)
    log.close()
    return Result("append", value, "records/s", "bare apsw inserts, same pragmas", baseline)


def read(folder: Path, batches: list[list[Event]], rounds: int = 7) -> Result:
    """Our reader against a bare SELECT over the same tables."""
    log = _log(folder, "read")
    for batch in batches:
        log.append("t", batch)
    count = len(batches) * BATCH

    def ours() -> float:
        begun, seen = time.perf_counter(), 0
        with log.reader("t") as reader:
            while seen < count:
                seen += len(reader.poll())
        return count / (time.perf_counter() - begun)

    def theirs() -> float:
        begun, seen = time.perf_counter(), 0
        for partition in range(PARTITIONS):
            for _ in log.store.db.execute(f"SELECT * FROM records_1_{partition} ORDER BY offset"):
                seen += 1
        return seen / (time.perf_counter() - begun)

    ours(), theirs()
    value, baseline = alternate(ours, theirs, rounds)
    log.close()
    return Result("read", value, "records/s", "bare apsw SELECT", baseline)


def spark_read(folder: Path, batches: list[list[Event]], records: int) -> Result:
    """Spark over the embedded log against Spark over the same rows in Parquet, through mapInArrow."""
    from millstream.spark.read import read_batch
    from millstream.spark.session import spark_session, stop_session

    log = _log(folder, "spark")
    for i in range(records // BATCH):
        log.append("t", batches[i % len(batches)])
    spark = spark_session()
    address, parquet = f"sqlite:{folder / 'spark.db'}", str(folder / "spark.parquet")
    # Without the nested headers: Spark's way of them into mapInArrow is quadratic in the size of a batch (measured:
    # 200,000 rows took 27 s with them and 0.5 s without), and the baseline is to be as good as it can be.
    read_batch(spark, address, "t").drop("headers").write.parquet(parquet)
    schema = spark.read.parquet(parquet).schema

    def rate(frame: Any) -> float:
        begun = time.perf_counter()
        (row,) = frame.selectExpr("count(value)", "sum(length(value))").collect()
        assert row[0] == records // BATCH * BATCH  # noqa: S101
        return records / (time.perf_counter() - begun)

    def ours() -> float:
        return rate(read_batch(spark, address, "t"))

    def theirs() -> float:
        return rate(spark.read.parquet(parquet).mapInArrow(_same, schema))

    ours(), theirs()
    value, baseline = alternate(ours, theirs, 3)
    stop_session()
    log.close()
    return Result("spark_read", value, "records/s", "Spark from Parquet through mapInArrow", baseline)


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


_SENDER = """
import sys, time
from millstream.event import Event
from millstream.log.embedded.engine import SqliteLog
log, count = SqliteLog(sys.argv[1]), int(sys.argv[2])
begun = time.monotonic()
for i in range(count):
    if (early := begun + i / 1000 - time.monotonic()) > 0:
        time.sleep(early)
    log.append("t", [Event(time.time_ns().to_bytes(8, "little") + bytes(92), b"user-%d" % i)])
"""


def delay(folder: Path, seconds: float) -> Iterator[Result]:
    """From just before the append in one process to the poll that gives it in another."""
    log, count = _log(folder, "delay"), max(500, int(1000 * seconds))
    delays: list[float] = []
    with log.reader("t", "latest") as reader:
        sender = subprocess.Popen([sys.executable, "-c", _SENDER, str(folder / "delay.db"), str(count)])
        deadline = time.monotonic() + 10 + 5 * seconds
        while len(delays) < count and time.monotonic() < deadline:
            for record in reader.poll(1000, timeout=1.0):
                delays.append((time.time_ns() - int.from_bytes((record.value or b"")[:8], "little")) / 1e6)
        sender.wait(30)
    log.close()
    delays.sort()
    yield Result("delay_p50", statistics.median(delays), "ms")
    yield Result("delay_p99", delays[int(len(delays) * 0.99)], "ms")


def append_growth(folder: Path, batches: list[list[Event]], records: int) -> Result:
    """Cost per record around the last tenth of the records against that around the first."""
    log: Log = _log(folder, "growth")
    costs: list[float] = []
    for i in range(records // BATCH):
        begun = time.perf_counter()
        log.append("t", batches[i % len(batches)])
        costs.append((time.perf_counter() - begun) / BATCH * 1e6)
    log.close()
    tenth = len(costs) // 10
    # Means, not medians: checkpoints are part of the cost, and come in one batch out of many.
    early, late = statistics.fmean(costs[tenth : 2 * tenth]), statistics.fmean(costs[-tenth:])
    return Result("append_growth", late, "µs/record", f"the same topic at {records // 10:,} records", early)
