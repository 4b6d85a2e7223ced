"""Row patterns and stored queries measured, over Nexmark's events: Nexmark's own patterns beside Flink's, and many beside few.

``cep0`` to ``cep3`` are queries of ``bench nexmark``, timed as there, and a wrong answer is an error. ``many_N`` is N patterns in one pass over
the bids, ``percolate_N`` as many stored queries; they stand beside the fewest of their kind that are measured in the same run. All of them read the
same events.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.bench import Result
from millstream.bench.nexmark import peers
from millstream.bench.nexmark.data import TOPIC, fill, read_folder, write_folder
from millstream.bench.nexmark.peers.layout import Input
from millstream.bench.nexmark.queries import PATTERNS, topic_of
from millstream.bench.nexmark.run import OURS, Wanted
from millstream.bench.nexmark.run import measure as measure_queries
from millstream.bench.rules import patterns, stored_queries
from millstream.errors import MillstreamError
from millstream.event import Event
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.relation.nodes import Emit
from millstream.relation.relation import Relation
from millstream.runtime.run import run
from millstream.spark.session import spark_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANY, PERCOLATE = (1, 10, 100), (100, 10_000)
NAMES = (*PATTERNS, *(f"many_{number}" for number in MANY), *(f"percolate_{number}" for number in PERCOLATE))
SYSTEMS = ("flink", "flink_heap")

_WARM = 20_000
_BIDS = (
    "event_type int, bid struct<auction: bigint, bidder: bigint, price: bigint, channel: string>, dateTime timestamp"
)
_LOOKED_AT = "auction bigint, bidder bigint, price bigint, channel string"
_BEFORE = datetime(1970, 1, 1, tzinfo=UTC)
_EVENTS, _FEW, _STORED = topic_of(PATTERNS[0]), topic_of(PATTERNS[0], f"{TOPIC}_warm"), "stored_queries"

Say = Callable[[str], None]
Rates = dict[str, float]


@dataclass(frozen=True, slots=True)
class Asked:
    """What to measure; ``repeat`` times each, of which the median counts."""

    names: Sequence[str] = NAMES
    events: int = 1_000_000
    seed: int = 0
    repeat: int = 1
    compare: Sequence[str] = ()


def measure(asked: Asked, folder: Path, say: Say) -> Iterator[Result]:
    """Measure what is asked for; everything is made in a folder."""
    say(f"making {asked.events:,} events")
    data = write_folder(folder / "data", asked.events, asked.seed)
    if queries := [name for name in asked.names if name in PATTERNS]:
        yield from _queries(asked, queries, data, folder, say)
    if others := [name for name in asked.names if name not in PATTERNS]:
        yield from _rules(asked, others, data, folder, say)


def _queries(asked: Asked, queries: Sequence[str], data: Path, folder: Path, say: Say) -> Iterator[Result]:
    """Nexmark's patterns; MillstreamError if an answer of ours is wrong."""
    wanted = Wanted(queries, seed=asked.seed, data=data, repeat=asked.repeat, compare=asked.compare)
    ours: Rates = {}
    for each in measure_queries(wanted, folder / "queries", say):
        if each.system != OURS:
            yield from _beside(each.name, ours[each.name], each.system, each.value, each.note)
            continue
        if not each.correct:
            raise MillstreamError(f"{each.name}: a wrong answer: {each.note}")
        ours[each.name] = each.value or 0.0
        if not asked.compare:
            yield Result(each.name, ours[each.name], "events/s")


def _beside(name: str, ours: float, system: str, theirs: float | None, note: str) -> Iterator[Result]:
    """Our rate by that of another system; that of Flink without fault tolerance has a name of its own."""
    called = name if system == SYSTEMS[0] else f"{name}.{system}"
    yield Result(called, ours, "events/s", system, theirs, f"{system}: {note}" if note else "")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where everything lies while rules are measured."""

    spark: SparkSession
    folder: Path
    log: str
    numbers: count[int]


def _rules(asked: Asked, names: Sequence[str], data: Path, folder: Path, say: Say) -> Iterator[Result]:
    warm = write_folder(folder / "few", min(_WARM, asked.events), asked.seed + 1)
    place = _Place(spark_session("millstream-bench"), folder, f"sqlite:{folder / 'log.db'}", count())
    say("filling the log")
    for made, topic in ((warm, _FEW), (data, _EVENTS)):
        fill(place.log, read_folder(made), topic=topic, by_auction=True)
    rates: Rates = {}
    for name in names:
        kind, number = name.split("_")
        rules = many(int(number)) if kind == "many" else percolate(int(number), place.log, asked.events)
        say(f"{name}: warming")
        _seconds(place, name, rules, _FEW)
        say(f"{name}: {asked.events:,} events")
        rates[name] = asked.events / statistics.median(
            _seconds(place, name, rules, _EVENTS) for _ in range(asked.repeat)
        )
        fewest = next(each for each in rates if each.startswith(kind))
        beside = (fewest, rates[fewest]) if fewest != name else (None, None)
        yield Result(name, rates[name], "events/s", *beside)
    if asked.compare:
        stop_session()
        yield from _on_flink(asked, rates, Input(data.absolute()), Input(warm), say)


def _on_flink(asked: Asked, rates: Mapping[str, float], given: Input, warm: Input, say: Say) -> Iterator[Result]:
    """Many patterns on Flink, which has no stored queries."""
    for system in asked.compare:
        for name in (name for name in rates if name.startswith("many")):
            made = [peers.run_peer(system, name, given, asked.events, warm, say=say) for _ in range(asked.repeat)]
            taken = [each.seconds for each in made if each.seconds is not None]
            theirs = asked.events / statistics.median(taken) if taken else None
            yield Result(f"{name}.{system}", rates[name], "events/s", system, theirs, made[-1].reason)
    peers.close_peers()


@dataclass(frozen=True, slots=True)
class Rules:
    """What is built of the bids, and when its rows are told: matches when they are final, what meets a stored query at once."""

    build: Callable[[Pipeline, Relation], Relation]
    emit: Emit


def many(number: int) -> Rules:
    """So many patterns in one pass over the bids."""
    by = ["auction", "bidder"]
    return Rules(lambda _, bids: bids.match_any(patterns(number), partition=by, order="dateTime, arrival"), "final")


def percolate(number: int, log: str, events: int) -> Rules:
    """So many stored queries, which are older than any event."""
    topic = f"{_STORED}_{number}"
    with open_log(log) as opened:
        opened.create_topic(topic, 1)
        queries = enumerate(stored_queries(number, events))
        rows = [(b"%d" % each, json.dumps({"id": each, "condition": text}).encode()) for each, text in queries]
        opened.append(topic, [Event(value, key, _BEFORE) for key, value in rows])

    def build(pipeline: Pipeline, bids: Relation) -> Relation:
        stored = pipeline.table(_STORED, "id bigint, condition string", key="id", topic=topic)
        return bids.percolate(stored, "condition", _LOOKED_AT)

    return Rules(build, "changes")


def pipeline_of(log: str, folder: Path, name: str, rules: Rules, topic: str = _EVENTS) -> Pipeline:
    """A pipeline with what is built of the bids, as the view ``found``."""
    pipeline = Pipeline(name, log=log, to=f"sqlite:{folder / 'views.db'}", checkpoint=str(folder / "checkpoint"))
    events = pipeline.stream("events", _BIDS, topic=topic, time="dateTime", delay="4 seconds", ahead="36500 days")
    columns = [f"bid.{name} AS {name}" for name in ("auction", "bidder", "price", "channel")]
    bids = events.where("event_type = 2").select(*columns, "dateTime", "_offset AS arrival")
    pipeline.view("found", rules.build(pipeline, bids), emit=rules.emit)
    return pipeline


def _seconds(place: _Place, name: str, rules: Rules, topic: str) -> float:
    """Run to the end, with a view that is kept nowhere."""
    number = next(place.numbers)
    folder = place.folder / f"rules-{number}"
    folder.mkdir()
    began = time.monotonic()
    pipeline = pipeline_of(place.log, folder, f"{name}_{number}", rules, topic)
    pipeline.views = {name: replace(view, kept=False) for name, view in pipeline.views.items()}
    run(pipeline, spark=place.spark, close=True)
    return time.monotonic() - began
