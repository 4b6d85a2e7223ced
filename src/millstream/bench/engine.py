"""The engine measured: JSON records in the log to a view in SQLite, beside plain Structured Streaming over the same records.

Both sides read the same embedded log, with the same state store and sink; both are timed by Spark's own clock for a whole
micro-batch, once warm.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from millstream.bench import Result, plain
from millstream.bench.streams import COLD, PARTITIONS, ROUNDS, Timed, delays, filled, rate, records_of, time_batches
from millstream.event import Event
from millstream.kernel.host import Host
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.runtime.run import Progress, run
from millstream.runtime.setup import chain_of
from millstream.spark import fast_path, stages
from millstream.spark.lowering import decode
from millstream.spark.records import batch_records
from millstream.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMES = (
    "reduce", "distinct", "keys_growth", "state_growth", "checkpoint_bytes", "delay_p50", "delay_p99", "start",
)  # fmt: skip
_SCHEMA = "k long, v long"


def measure(names: tuple[str, ...], scale: float, say: Callable[[str], None]) -> Iterator[Result]:
    """Measure what is named, one after the other."""
    spark = spark_session("millstream-bench")
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as name:
        folder = Path(name)
        if {"reduce", "checkpoint_bytes", "keys_growth"} & set(names):
            yield from _reduce(spark, folder / "reduce", scale, names, say)
        if "distinct" in names:
            yield from _distinct(spark, folder / "distinct", scale, say)
        if "state_growth" in names:
            yield from _state_growth(spark, folder / "state", scale, say)
        if {"delay_p50", "delay_p99"} & set(names):
            yield from _delay(spark, folder / "delay", scale, names, say)
    if "start" in names:
        with tempfile.TemporaryDirectory(prefix="millstream-bench-") as name:
            yield _start(Path(name), say)


# what is measured


def _reduce(
    spark: SparkSession, folder: Path, scale: float, names: tuple[str, ...], say: Callable[[str], None]
) -> Iterator[Result]:
    """Keyed count and sum over 100,000 keys; then over a million."""
    batch, keys = max(1000, int(400_000 * scale)), max(100, int(100_000 * scale))
    say(f"reduce: {batch:,} records a batch, {keys:,} keys")
    log = _filled(folder, (_events(batch, keys, round_) for round_ in range(ROUNDS + COLD)))
    seen: list[Progress] = []
    ours = time_batches(spark, lambda: _run(folder, log, "count(*)", "sum(v)", limit=batch, seen=seen))
    writing = [each.write_seconds for each in seen]
    size = _written(folder / "ours.checkpoint")
    theirs = plain.apart(_plain, folder, log, batch, _count_and_sum)
    if "reduce" in names:
        yield Result("reduce", rate(ours), "events/s", "plain Structured Streaming", rate(theirs))
        yield from _where(spark, folder, log, ours, statistics.median(writing[COLD:] or writing) / batch * 1e6)
    if "checkpoint_bytes" in names:
        written = _written(folder / "plain.checkpoint") / (batch * len(theirs))
        yield Result(
            "checkpoint_bytes", size / (batch * len(ours)), "bytes/event", "plain Structured Streaming", written
        )
    if "keys_growth" in names:
        many = keys * 10
        say(f"keys_growth: {many:,} keys")
        other = folder.with_name("keys")
        first = (_every(many, low, batch) for low in range(0, many, batch))
        grown = _filled(other, _chained(first, (_events(batch, many, round_) for round_ in range(ROUNDS + 1))))
        timed = time_batches(spark, lambda: _run(other, grown, "count(*)", "sum(v)", limit=batch))
        yield Result(
            "keys_growth",
            1e6 / rate(timed[-ROUNDS:]),
            "µs/event",
            f"{keys:,} instead of {many:,} keys",
            1e6 / rate(ours),
        )


def _distinct(spark: SparkSession, folder: Path, scale: float, say: Callable[[str], None]) -> Iterator[Result]:
    batch, keys = max(1000, int(200_000 * scale)), max(100, int(1_000 * scale))
    say(f"distinct: {batch:,} records a batch, {keys:,} keys")
    log = _filled(folder, (_events(batch, keys, round_, values=50_000) for round_ in range(ROUNDS + COLD)))
    ours = time_batches(spark, lambda: _run(folder, log, "count(distinct v)", limit=batch))
    theirs = plain.apart(_plain, folder, log, batch, _count_distinct)
    yield Result(
        "distinct", rate(ours), "events/s", "dropDuplicates + groupBy on plain Structured Streaming", rate(theirs)
    )


def _state_growth(spark: SparkSession, folder: Path, scale: float, say: Callable[[str], None]) -> Iterator[Result]:
    """Batches of 1,000 events over much state and over little."""
    costs = []
    for rows in (max(5_000, int(5_000_000 * scale)), max(500, int(50_000 * scale))):
        say(f"state_growth: {rows:,} rows of state, batches of 1,000")
        place = folder / str(rows)
        step = 500_000
        log = _filled(place, (_every(rows, low, step) for low in range(0, rows, step)))
        _run(place, log, "count(*)", "sum(v)", limit=step)
        with open_log(log) as opened:
            for round_ in range(2 * ROUNDS + COLD):
                opened.append("events", _events(1_000, rows, round_))
                time.sleep(0.002)  # an append time of its own: a batch takes whole append times
        timed = time_batches(spark, partial(_run, place, log, "count(*)", "sum(v)", limit=1_000))
        costs.append(statistics.median(each.seconds for each in timed))
    yield Result("state_growth", costs[0] * 1000, "ms/batch", "a hundredth of the state", costs[1] * 1000)


def _delay(
    spark: SparkSession, folder: Path, scale: float, names: tuple[str, ...], say: Callable[[str], None]
) -> Iterator[Result]:
    """From the append of an event to the commit of the view that counts it, at 5,000 events a second."""
    seconds = max(5.0, 30.0 * scale)
    say(f"delay: 5,000 events/s for {seconds:.0f} s")
    log = _filled(folder, iter([_events(5_000, 1_000, 0)]))
    pipeline = _pipeline(folder, log, "count(*)", "sum(v)")
    appends = (_events(50, 1_000, round_) for round_ in range(int(seconds * 100)))
    found = delays(spark, pipeline, "events", appends, 0.01)
    for name, share in (("delay_p50", 0.5), ("delay_p99", 0.99)):
        if name in names:
            yield Result(name, found[int(share * (len(found) - 1))] * 1000, "ms")


def _start(folder: Path, say: Callable[[str], None]) -> Result:
    """From the shell's prompt to the first result of ``run --once`` on a small log."""
    say("start: millstream run --once on 1,000 records")
    _filled(folder, iter([_events(1_000, 10, 0)]))
    file = folder / "small.py"
    file.write_text(
        "from millstream import Pipeline\n"
        "small = Pipeline('small', log='sqlite:log.db')\n"
        f"events = small.stream('events', '{_SCHEMA}')\n"
        "small.view('totals', events.group_by('k').agg(n='count(*)'))\n"
    )
    taken = []
    for _ in range(ROUNDS):
        began = time.monotonic()
        program = [sys.executable, "-c", "from millstream.cli import main; main()"]
        command = [*program, "run", "small.py", "--once", "--rebuild", "--json"]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None  # noqa: S101
            process.stdout.readline()
            taken.append(time.monotonic() - began)
    return Result("start", statistics.median(taken), "s")


def _where(spark: SparkSession, folder: Path, log: str, ours: list[Timed], sink: float) -> Iterator[Result]:
    """Where the time of a batch goes: reading, decoding and packing, which are one step, alone as a batch job over the same records."""
    pipeline = _pipeline(folder, log, "count(*)", "sum(v)")
    chain = chain_of(pipeline)
    host = Host(chain, {feed.number: PARTITIONS for feed in chain.feeds})
    with open_log(log) as opened:
        bounds = opened.bounds("events")
    start = {"events": {p: b.start for p, b in bounds.items()}}
    end = {"events": {p: b.end for p, b in bounds.items()}}
    count = sum(b.end - b.start for b in bounds.values())
    short = batch_records(spark, log, start, end, kafka={}, decoder=fast_path.decoder_for(spark, host))
    packed = stages.pack(decode(short, chain, pipeline.name), host)
    packing = statistics.median(_seconds(packed) for _ in range(ROUNDS)) / count * 1e6
    yield Result("reduce.source_json_packing", packing, "µs/event")
    whole = statistics.median(each.seconds / each.records for each in ours) * 1e6
    yield Result("reduce.shuffle_kernel_state", max(0.0, whole - packing - sink), "µs/event")
    yield Result("reduce.sink", sink, "µs/event")


def _seconds(frame: DataFrame) -> float:
    began = time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    return time.monotonic() - began


# both sides


def _pipeline(folder: Path, log: str, *aggregates: str) -> Pipeline:
    pipeline = Pipeline(
        "ours", log=log, to=f"sqlite:{folder / 'ours.views.db'}", checkpoint=str(folder / "ours.checkpoint")
    )
    events = pipeline.stream("events", _SCHEMA)
    pipeline.view("totals", events.group_by("k").agg(**{f"a{index}": text for index, text in enumerate(aggregates)}))
    return pipeline


def _run(
    folder: Path, log: str, *aggregates: str, limit: int, seen: list[Progress] | None = None
) -> tuple[str, dict[int, int]]:
    """Run ours; give the query's name, and the records of each batch."""
    pipeline = _pipeline(folder, log, *aggregates)
    progress = seen if seen is not None else []
    run(pipeline, spark=spark_session(), once=True, rate_limit=limit, progress=progress.append)
    return pipeline.name, records_of(progress)


def _plain(folder: Path, log: str, limit: int, query: Callable[[DataFrame], DataFrame]) -> list[Timed]:
    spark = plain.session()
    made = query(plain.read(spark, log, "events", _SCHEMA, limit))
    return time_batches(spark, lambda: (plain.write(made, "update", folder, ("k",)), {}))


def _count_and_sum(parsed: DataFrame) -> DataFrame:
    return parsed.groupBy("k").agg({"*": "count", "v": "sum"}).toDF("k", "n", "s")


def _count_distinct(parsed: DataFrame) -> DataFrame:
    return parsed.dropDuplicates(["k", "v"]).groupBy("k").count().withColumnRenamed("count", "n")


def _written(checkpoint: Path) -> float:
    """Bytes of state that the newest batches wrote."""
    sizes = [path.stat().st_size for path in (checkpoint / "state").rglob("*.changelog")]
    batches = {path.name.split("_")[0].split(".")[0] for path in (checkpoint / "state").rglob("*.changelog")}
    return sum(sizes) / max(1, len(batches)) * ROUNDS


# records


def _filled(folder: Path, appends: Iterable[list[Event]]) -> str:
    return filled(folder, ["events"], ({"events": events} for events in appends))


def _events(count: int, keys: int, seed: int, values: int = 1_000) -> list[Event]:
    chosen = np.random.default_rng(seed)
    ids, amounts = chosen.integers(0, keys, count).tolist(), chosen.integers(0, values, count).tolist()
    return [Event(b'{"k":%d,"v":%d}' % pair, key=b"%d" % pair[0]) for pair in zip(ids, amounts, strict=True)]


def _every(keys: int, low: int, count: int) -> list[Event]:
    return [Event(b'{"k":%d,"v":1}' % key, key=b"%d" % key) for key in range(low, min(low + count, keys))]


def _chained(*parts: Iterator[list[Event]]) -> Iterator[list[Event]]:
    for part in parts:
        yield from part
