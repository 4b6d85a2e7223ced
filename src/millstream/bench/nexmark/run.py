"""Nexmark measured: each query over the same events, timed whole, its answer compared with the oracle's; and others beside it.

A rate is events divided by the wall time from the start of a query to its end: all events are in and every window is closed.
The engine is up by then and has run the same query over a few events. The view is kept nowhere: every row is computed and, as where
others write to ``blackhole``, let go; q10 writes its files. Whether it is right is seen in one more run, which stores the view and is
not timed.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from millstream.bench.nexmark import peers
from millstream.bench.nexmark.data import TOPIC, fill, read_folder, write_folder
from millstream.bench.nexmark.oracle import Oracle, plain_rows
from millstream.bench.nexmark.peers.layout import Input, fill_closed
from millstream.bench.nexmark.queries import PATTERNS, fill_side, pipeline_of, topic_of
from millstream.pipeline import Pipeline
from millstream.runtime.run import run
from millstream.sink.files import committed_files
from millstream.spark.session import spark_session, stop_session
from millstream.store import open_reader
from millstream.store.contract import WEIGHT
from millstream.testing import KafkaBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS = "millstream"
_WARM = 20_000
_WARM_TOPIC, _TENTH_TOPIC = f"{TOPIC}_warm", f"{TOPIC}_tenth"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of a query on a system. ``correct`` is None where nobody looked, ``note`` says what is wrong or cannot be.

    ``kept`` says whether the timed run stored the view. ``ratio`` is our rate by this system's. ``growth`` is the cost of an event
    by that with a tenth of the events, in the time of batches alone: what a start costs would hide it.
    """

    name: str
    system: str
    events: int
    seconds: float | None = None
    correct: bool | None = None
    note: str = ""
    ratio: float | None = None
    growth: float | None = None
    kept: bool = False

    @property
    def value(self) -> float | None:
        """Events a second."""
        return self.events / self.seconds if self.seconds else None

    def to_dict(self) -> dict[str, Any]:
        """The fields that apply."""
        rounded = {"value": self.value and round(self.value), "seconds": self.seconds and round(self.seconds, 3)}
        fields = {"name": self.name, "system": self.system, **rounded, "unit": "events/s", "events": self.events}
        fields |= {"correct": self.correct, "note": self.note or None, "kept": self.kept}
        fields |= {"ratio": self.ratio and round(self.ratio, 3), "growth": self.growth and round(self.growth, 3)}
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to measure, and on what. ``batch`` bounds the records of a batch; ``out`` takes the answers as JSON.

    ``store`` lets the timed runs store their views.
    """

    queries: Sequence[str]
    events: int = 1_000_000
    seed: int = 0
    data: Path | None = None
    out: Path | None = None
    log: str = "sqlite"
    repeat: int = 1
    batch: int | None = None
    growth: bool = False
    compare: Sequence[str] = ()
    store: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where everything lies while it is measured."""

    folder: Path
    data: Path
    warm: Path
    log: str
    events: int
    numbers: count[int] = field(default_factory=count)


def measure(wanted: Wanted, folder: Path, say: Say) -> Iterator[Measured]:
    """Measure what is wanted, query by query, then the other systems; everything is made in a folder."""
    with ExitStack() as stack:
        place = _prepared(stack, wanted, folder, say)
        say("the right answers, by DuckDB")
        oracle = stack.enter_context(Oracle(place.data))
        spark = spark_session("millstream-bench", kafka=wanted.log == "kafka")
        mine = {}
        for query in wanted.queries:
            mine[query] = _ours(spark, wanted, place, oracle, query, say)
            yield mine[query]
        if wanted.compare:
            stop_session()
            yield from _others(wanted, place, mine, say)


@dataclass(frozen=True, slots=True)
class Timed:
    """A query that ran to its end: seconds in all, seconds in batches, and the pipeline with its views."""

    seconds: float
    busy: float
    pipeline: Pipeline


def timed(
    spark: SparkSession, query: str, place: Place, *, topic: str = TOPIC, batch: int | None = None, kept: bool = True
) -> Timed:
    """Run a query over a topic to its end."""
    number = next(place.numbers)
    folder = place.folder / f"run-{number}"
    batches: dict[int | None, float] = {}
    began = time.monotonic()
    pipeline = pipeline_of(query, place.log, folder, name=f"{query}_{number}", topic=topic_of(query, topic), kept=kept)
    run(
        pipeline,
        spark=spark,
        close=True,
        rate_limit=batch,
        progress=lambda done: batches.update({done.batch: done.seconds}),
    )
    return Timed(time.monotonic() - began, sum(batches.values()), pipeline)


def answer_of(pipeline: Pipeline, query: str) -> pa.Table:
    """The final content of a query's view; that of q12 without its windows."""
    with open_reader(pipeline.to) as store:
        table = store.table(query)
    columns = pipeline.views[query].columns
    return table.select(list(columns[:2] if query == "q12" else columns))


def _prepared(stack: ExitStack, wanted: Wanted, folder: Path, say: Say) -> Place:
    data = wanted.data
    if data is None:
        say(f"making {wanted.events:,} events")
        data = write_folder(folder / "data", wanted.events, wanted.seed)
    warm = write_folder(folder / "warm", min(_WARM, wanted.events), wanted.seed + 1)
    log = f"sqlite:{folder / 'log.db'}"
    if wanted.log == "kafka":
        log = stack.enter_context(KafkaBroker(ordinary=True)).url
    say("filling the log")
    fill_side(log)
    events = 0
    for by_auction, query in {query in PATTERNS: query for query in wanted.queries}.items():
        filled = partial(fill, log, by_auction=by_auction)
        filled(read_folder(warm), topic=topic_of(query, _WARM_TOPIC))
        events = filled(read_folder(data), topic=topic_of(query))
        if wanted.growth:
            filled(_first(read_folder(data), events // 10), topic=topic_of(query, _TENTH_TOPIC))
    return Place(folder, data, warm, log, events)


def _ours(spark: SparkSession, wanted: Wanted, place: Place, oracle: Oracle, query: str, say: Say) -> Measured:
    say(f"{query}: warming")
    _forget(timed(spark, query, place, topic=_WARM_TOPIC, batch=wanted.batch, kept=wanted.store).pipeline)
    tenth = 0.0
    if wanted.growth:
        few = place.events // 10
        say(f"{query}: {few:,} events")
        small = timed(spark, query, place, topic=_TENTH_TOPIC, batch=wanted.batch, kept=wanted.store)
        tenth = small.busy / few
        _forget(small.pipeline)
    made, wrong = [], ""
    for number in range(wanted.repeat):
        say(f"{query}: {place.events:,} events" + (f", {number + 1} of {wanted.repeat}" if wanted.repeat > 1 else ""))
        done = timed(spark, query, place, batch=wanted.batch, kept=wanted.store)
        made.append(done)
        wrong = wrong or _beside(done.pipeline, query, oracle)
        if wanted.store:
            wrong = wrong or _stored(done.pipeline, query, oracle, wanted.out)
        _forget(done.pipeline)
    if not wanted.store:
        say(f"{query}: is it right?")
        again = timed(spark, query, place, batch=wanted.batch)
        wrong = wrong or _stored(again.pipeline, query, oracle, wanted.out)
        _forget(again.pipeline)
    growth = statistics.median(each.busy for each in made) / place.events / tenth if tenth else None
    seconds = statistics.median(each.seconds for each in made)
    return Measured(query, OURS, place.events, seconds, not wrong, wrong, growth=growth, kept=wanted.store)


def _stored(pipeline: Pipeline, query: str, oracle: Oracle, out: Path | None) -> str:
    """What is wrong with the view of a query; it is written to a folder, if one is named."""
    answer = answer_of(pipeline, query)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{query}.json").write_text(json.dumps(plain_rows(answer)))
    return oracle.compare(query, answer)


def _beside(pipeline: Pipeline, query: str, oracle: Oracle) -> str:
    """What is wrong with the files of a sink; only q10 has one."""
    for sink in pipeline.sinks.values():
        found = committed_files(str(sink.to).removeprefix("files:").partition("?")[0])
        folders = {"day": pl.String, "minute": pl.String}
        frame = pl.concat([pl.read_parquet(path, hive_partitioning=True, hive_schema=folders) for path in found])
        if frame[WEIGHT].min() != 1:
            return f"{query}: its files take something back"
        if wrong := oracle.compare(query, frame.select(pipeline.views[query].columns).to_arrow()):
            return f"{wrong} (in its files)"
    return ""


def _others(wanted: Wanted, place: Place, mine: dict[str, Measured], say: Say) -> Iterator[Measured]:
    """The same queries over the same files or topics on other systems; their answers are looked at over the few events."""
    broker = place.log.removeprefix("kafka://") if wanted.log == "kafka" else ""
    if broker and "spark" in wanted.compare:
        say("filling the log for Spark")
        for folder, topic in ((place.data, TOPIC), (place.warm, _WARM_TOPIC)):
            fill_closed(place.log, Input(folder, broker, topic))
    with Oracle(place.warm) as oracle:
        for system in wanted.compare:
            for query in wanted.queries:
                given = Input(place.data.absolute(), broker, topic_of(query))
                warm = Input(place.warm, broker, topic_of(query, _WARM_TOPIC))
                made = [peers.run_peer(system, query, given, place.events, warm, say=say) for _ in range(wanted.repeat)]
                taken = [each.seconds for each in made if each.seconds is not None]
                if len(taken) < len(made):
                    yield Measured(query, system, place.events, note=next(each.reason for each in made if each.reason))
                    continue
                seconds = statistics.median(taken)
                answer = peers.answer_of(system, query, warm, say=say)
                wrong = answer if isinstance(answer, str) else oracle.compare(query, answer)
                ours = mine[query].seconds
                ratio = seconds / ours if ours else None
                yield Measured(query, system, place.events, seconds, not wrong, wrong, ratio)
    peers.close_peers()


def _first(batches: Iterator[list[bytes]], events: int) -> Iterator[list[bytes]]:
    for batch in batches:
        if events <= 0:
            return
        yield batch[:events]
        events -= len(batch)


def _forget(pipeline: Pipeline) -> None:
    shutil.rmtree(Path(pipeline.checkpoint).parent, ignore_errors=True)
