"""A pipeline run in this process: log, chain, admission, kernels and stores are the real ones; a loop takes the place of Spark.

A batch has the same steps as on Spark. The offsets that it will read are written down; then it is computed, delivered, and its state is
stored. A process that dies in between runs that batch again, from the state before it, and the ledger says whether a store has it.
"""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from millstream.failpoint import failpoint
from millstream.kernel.state.store import Memory
from millstream.local.batch import Local
from millstream.local.repeats import asked_again
from millstream.log.embedded.engine import SqliteLog
from millstream.log.heartbeat import Beat
from millstream.pipeline import Pipeline
from millstream.plan.build import Chain, ViewPlan, build_chain
from millstream.relation.nodes import source_of
from millstream.runtime.checkpoint import open_checkpoint
from millstream.runtime.delivery import Delivery, Position
from millstream.runtime.heartbeats import Heartbeats
from millstream.store import open_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Offsets = dict[str, dict[int, int]]
T = TypeVar("T")


class Planned(msgspec.Struct):
    """What a batch reads: up to these offsets, with these heartbeats. Written before it runs."""

    batch: int
    ends: Offsets
    beats: list[Beat] = []


class Stored(msgspec.Struct):
    """What is known after a batch: what it read, and the state of every bucket (stage, leader, bucket, meta, segments)."""

    batch: int = -1
    ends: Offsets = {}
    buckets: list[tuple[int, int, int, bytes | None, dict[int, bytes]]] = []


class Engine:
    """A running pipeline in a folder of its own. Its views are kept there too, in one file for each of its stores."""

    def __init__(
        self, pipeline: Pipeline, folder: Path, partitions: int, clock: Callable[[], int], spark: SparkSession | None
    ) -> None:
        self.pipeline, self.folder, self.spark, self._clock = pipeline, folder, spark, clock
        self._said: list[Beat] = []
        self.chain = _chain(pipeline, folder)
        counts = {feed.source.topic: partitions for feed in self.chain.feeds}
        self.local = Local(pipeline.name, self.chain, counts, spark, pipeline.views.values())
        self.log = SqliteLog(folder / "log.db", clock=clock)
        for relation in (*pipeline.streams.values(), *pipeline.tables.values()):
            self.log.create_topic(source_of(relation.node).topic, partitions)
        self.start()

    def start(self) -> None:
        """Read what is stored. A batch that was begun and not stored is run again."""
        self._stack = ExitStack()
        writers = {}
        for address in dict.fromkeys(each.to for each in self.chain.outputs):
            writer = self._stack.enter_context(open_writer(address, letters=self.pipeline.dead_letters))
            writers[address] = writer, writer.claim(self.pipeline.name, takeover=True)
            wanted = [self.local.targets[each.name] for each in self.chain.outputs if each.to == address]
            writer.prepare(self.pipeline.name, self.pipeline.fingerprint(), wanted)
        partitions = self.local.host.partitions
        starts = {feed.source.topic: dict.fromkeys(range(partitions[feed.number]), 0) for feed in self.chain.feeds}
        last = next(iter(writers.values()))[0].last(self.pipeline.name)
        checkpoint = open_checkpoint(self.folder / "checkpoint", self.pipeline, self.chain, starts, last, 1)
        self.position = Position(checkpoint.start, {topic: dict(found) for topic, found in checkpoint.start.items()})
        if last is not None:
            self.position = Position.restore(checkpoint.start, last.offsets, last.state)
        self.delivery = Delivery(
            self.chain,
            self.local.targets,
            checkpoint.id,
            writers,
            self.position,
            self.spark,
            views=self.pipeline.views,
        )
        self.heartbeats = Heartbeats(self.log, self.chain, self.position)
        self.done = _read(self._path("state"), Stored) or Stored(ends=starts)
        self.stores: defaultdict[tuple[int, int, int], Memory] = defaultdict(Memory)
        for stage, target, bucket, meta, segments in self.done.buckets:
            self.stores[stage, target, bucket] = store = Memory()
            store.put(segments)
            if meta is not None:
                store.set_meta(meta)
        planned = _read(self._path("offsets"), Planned)
        if planned is not None and planned.batch > self.done.batch:
            self._run(planned)

    def stop(self) -> None:
        """Drop everything in memory, as a crash does; only files are left."""
        self._stack.close()

    def close(self) -> None:
        """Stop, and close the log."""
        self.stop()
        self.log.close()

    def step(self) -> None:
        """Run one batch over all that is not read yet, if there is anything."""
        ends = self._ends()
        waiting = [
            beat._replace(offset=ends[beat.topic][beat.partition], ends=None) for beat in self.heartbeats.waiting()
        ]
        if ends != self.done.ends or waiting or self._said:
            planned = Planned(self.done.batch + 1, ends, [*self._said, *waiting])
            _write(self._path("offsets"), planned)
            self._said = []
            self._run(planned)

    def say(self, topic: str, moment: int) -> None:
        """Let no partition of a topic have a time before a moment (µs), from what it holds now on."""
        ends = self._ends()
        named = _named(ends)
        for partition, end in ends[topic].items():
            self._said.append(Beat(topic, partition, end, moment, self._clock() * 1000, named))

    def _ends(self) -> Offsets:
        return {topic: {p: bound.end for p, bound in self.log.bounds(topic).items()} for topic in self.done.ends}

    def _run(self, planned: Planned) -> None:
        began, stores = time.monotonic(), copy.deepcopy(self.stores)  # a batch that fails leaves them as they were
        chunks = self.local.run(self.log, self.done.ends, planned.ends, stores, planned.beats)
        failpoint("run.before_delivery")
        self.delivery.commit(chunks, planned.batch, _named(planned.ends), began, planned.beats)
        failpoint("run.after_delivery")
        self.heartbeats.settle()
        buckets = [(*place, store.meta(), store.segments) for place, store in stores.items()]
        self.stores, self.done = stores, Stored(planned.batch, planned.ends, buckets)
        _write(self._path("state"), self.done)

    def _path(self, name: str) -> Path:
        return self.folder / "checkpoint" / name


def _named(ends: Offsets) -> dict[str, dict[str, int]]:
    """Offsets as JSON can say them."""
    return {topic: {str(p): end for p, end in found.items()} for topic, found in ends.items()}


def _chain(pipeline: Pipeline, folder: Path) -> Chain:
    """The chain that runs, in one bucket: how many there are changes no answer, and one is fastest for few rows."""
    pipeline.validate()
    places: dict[str, str] = {}
    for address in (pipeline.to, *(view.to for view in pipeline.views.values())):
        places.setdefault(address, f"sqlite:{folder / f'views-{len(places)}.db'}")
    views = [
        ViewPlan(view.name, view.node, places[view.to], view.emit, view.key, view.refused)
        for view in pipeline.views.values()
    ]
    return asked_again(build_chain(views, buckets=1, to=places[pipeline.to], functions=pipeline.udf.all))


def _write(path: Path, what: msgspec.Struct) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.msgpack.encode(what))
    fresh.rename(path)  # not durable: what crashes in a trial is a process, and a machine's crash ends the trial


def _read(path: Path, kind: type[T]) -> T | None:
    return msgspec.msgpack.decode(path.read_bytes(), type=kind) if path.exists() else None
