"""Streaming queries timed: logs to feed them, and Spark's own clock for whole micro-batches, once they are warm."""

from __future__ import annotations

import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.event import Event
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.runtime.run import Progress, run
from millstream.store import open_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = 3
COLD = 20
"""Batches that are not counted: the JVM still compiles."""
PARTITIONS = 4
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Timed:
    """One micro-batch: records, and seconds of the whole of it."""

    records: int
    seconds: float


@contextmanager
def _listening(spark: SparkSession, found: list[tuple[str, int, Timed]]) -> Iterator[None]:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            progress = event.progress
            if progress.numInputRows:
                seconds = progress.durationMs["triggerExecution"] / 1000
                found.append((progress.name, progress.batchId, Timed(progress.numInputRows, seconds)))

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            pass

    listener = Listener()
    spark.streams.addListener(listener)
    try:
        yield
        time.sleep(1)  # the last event comes by another thread
    finally:
        spark.streams.removeListener(listener)


def time_batches(spark: SparkSession, work: Callable[[], tuple[str, dict[int, int]]], cold: int = COLD) -> list[Timed]:
    """Run a query over its backlog and give its batches, without the first, which are cold.

    ``work`` gives the query's name, and the records of batches where Spark does not count them.
    """
    found: list[tuple[str, int, Timed]] = []
    with _listening(spark, found):
        name, records = work()
    batches = [Timed(records.get(batch, timed.records), timed.seconds) for of, batch, timed in found if of == name]
    return batches[cold:] or batches[-1:]


def records_of(progress: Sequence[Progress]) -> dict[int, int]:
    """The records of each batch of ours: Spark counts what comes in packed as one."""
    records, before = {}, 0
    for each in progress:
        assert each.batch is not None  # noqa: S101
        records[each.batch], before = each.records - before, each.records
    return records


def rate(timed: list[Timed]) -> float:
    """Records a second, the median over batches."""
    return statistics.median(each.records / each.seconds for each in timed)


def filled(folder: Path, topics: Sequence[str], appends: Iterable[Mapping[str, list[Event]]]) -> str:
    """A new log in a new folder, with these appends in it, each at a time of its own; give its address."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    log = f"sqlite:{folder / 'log.db'}"
    with open_log(log, create=True) as opened:
        for topic in topics:
            opened.create_topic(topic, PARTITIONS)
        for events in appends:
            for topic, some in events.items():
                opened.append(topic, some)
            time.sleep(0.002)  # a batch takes whole append times
    return log


def delays(
    spark: SparkSession, pipeline: Pipeline, topic: str, appends: Iterable[list[Event]], every: float
) -> list[float]:
    """Seconds from each append to the commit of a batch that has it, in order of length; one append ``every`` seconds.

    The pipeline runs meanwhile, and appends begin when it has done a first batch. What it has not done some time after the last
    append has waited that long at least.
    """
    pending: list[tuple[int, int, float]] = []
    found: list[float] = []
    warm, stop, lock = threading.Event(), threading.Event(), threading.Lock()

    def seen(_: Progress) -> None:
        now = time.monotonic()
        warm.set()
        entry = writer.last(pipeline.name)
        offsets = entry.offsets[topic] if entry else {}
        with lock:
            found.extend(now - at for partition, offset, at in pending if offsets.get(partition, 0) > offset)
            pending[:] = [each for each in pending if offsets.get(each[0], 0) <= each[1]]

    def produce() -> None:
        warm.wait(2 * _PATIENCE)
        began = time.monotonic()
        with open_log(pipeline.log) as opened:
            for number, events in enumerate(appends):
                at = time.monotonic()
                ack = opened.append(topic, events)
                last = dict(zip(ack.partitions, ack.offsets, strict=True))
                with lock:
                    pending.extend((partition, offset, at) for partition, offset in last.items())
                time.sleep(max(0.0, began + (number + 1) * every - time.monotonic()))
        ended = time.monotonic()
        while pending and time.monotonic() < ended + _PATIENCE:
            time.sleep(0.05)
        stop.set()

    with open_writer(pipeline.to) as writer:
        producer = threading.Thread(target=produce, daemon=True)
        producer.start()
        run(pipeline, spark=spark, progress=seen, stop=stop)
        producer.join()
    return sorted(found + [time.monotonic() - at for _, _, at in pending])
