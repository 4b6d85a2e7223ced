"""Spark reads the log: ``spark.readStream.format("millstream")`` and ``spark.read.format("millstream")``.

Columns and option names are those of Spark's Kafka source: key, value, topic, partition, offset, timestamp, headers;
``subscribe`` (topics, by comma), ``startingOffsets``, ``endingOffsets`` (batch), ``startingTimestamp``,
``maxOffsetsPerTrigger``, ``minPartitions``; ``maxBytesPerTrigger``, estimated, is that of Spark's files. Ours are ``log`` (the address), ``archive`` (a folder: offsets that have
left the live log are read from there; with ``archives`` from where each topic has its own), ``group`` (the consumer group that shows the progress, ``spark-TOPIC`` unless
named), ``includeAppendTime``, ``includeHeaders`` (true unless said), ``assign`` (JSON, topic → partitions: only these, even if the topic grows),
``wholeAppends`` (a limit never cuts an append in two: all partitions are cut at one append time), and for pipelines ``decoder``
(see :mod:`millstream.spark.fast_path`), ``kafka`` and ``watermarks``: files that only their owner can read, with the settings of a Kafka
client, and with the watermarks that hold after the last batch; beside it lies one with heartbeats that no batch has yet. A batch's offsets then
have, under :data:`WATERMARKS`, the ones before it, and under :data:`BEATS` the heartbeats that it has, so that Spark keeps them and a batch
that is run again has the same. ``patience`` is for how many seconds a broker that is away is waited for.

On the embedded log all partitions of a micro-batch are cut in one read transaction, so at the end of whole append batches unless
a limit says otherwise. A range that is neither in the log nor in the archive is an error that names it, never a silent gap.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from millstream.errors import ConfigError, LogError, LogUnavailable
from millstream.event import TopicPartition, from_millis
from millstream.kernel.state.store import NEVER
from millstream.log.checks import check_offset
from millstream.log.contract import Bounds
from millstream.log.embedded.scan import Part
from millstream.log.heartbeat import Beat
from millstream.spark import fast_path
from millstream.spark.engine import Attached, attached, engine_for
from millstream.spark.options import BEATS, WATERMARKS, Offsets, Options, beats_beside, beats_of, places_of
from millstream.spark.private_folder import check_ours
from millstream.spark.write import BatchWriter, Place, StreamWriter

TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "long",
    "timestamp": "timestamp",
    "headers": "array<struct<key: string, value: binary>>",
    "append_time": "timestamp",
}
_SMALL = 10_000  # records
_MOMENT = 0.2  # seconds


class Task(InputPartition):
    """What one task reads, one range after the other; and the watermarks of all partitions before it, and their heartbeats in it."""

    def __init__(self, ranges: Sequence[Part], watermarks: Offsets, beats: Sequence[Beat] = ()) -> None:
        self.ranges, self.watermarks, self.beats = list(ranges), watermarks, beats


class MillstreamSource(DataSource):
    """The data source called ``millstream``; :mod:`millstream.spark.write` is its other direction."""

    @classmethod
    def name(cls) -> str:
        """What goes into ``format(…)``."""
        return "millstream"

    def schema(self) -> str:
        """Spark's Kafka columns, and the append time if an option asks for it. With a decoder: chunks, and these columns for records that it leaves."""
        if Options.of(self.options).decoder:
            return fast_path.DDL
        return ", ".join(f"{name} {TYPES[name]}" for name in Options.of(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """A reader for a batch."""
        return BatchReader(Options.of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """A reader for a stream."""
        return StreamReader(Options.of(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """A writer for a batch."""
        return BatchWriter(Place.of(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """A writer for a stream."""
        return StreamWriter(Place.of(self.options, schema, overwrite))


class _Planner:
    """What both readers share: where to start, where the log ends, how to cut it into tasks, how to read a task."""

    def __init__(self, options: Options, files: Attached | None = None) -> None:
        self.options, self.files = options, files or attached(options)
        self.engine = engine_for(options, self.files)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.options, self.files)  # a task opens the log itself, but may not see our files

    def ends(self) -> Offsets:
        """The end of every partition, at one moment."""
        return ends_of(self.engine.bounds())

    def resolve(self, text: str) -> Offsets:
        """Turn ``earliest``, ``latest`` or JSON (−2 earliest, −1 latest) into offsets."""
        bounds = self.engine.bounds()
        given: Mapping[str, Mapping[str, int]] = {}
        if text not in ("earliest", "latest"):
            try:
                given = json.loads(text)
                if set(given) != set(self.options.topics) or not all(isinstance(v, dict) for v in given.values()):
                    raise ValueError(f"it must name the topics {', '.join(self.options.topics)}")
            except (ValueError, AttributeError, TypeError) as error:
                raise ConfigError(
                    f"offsets: found {text!r}: {error}",
                    hint='expected earliest, latest or JSON like {"clicks": {"0": 17}}',
                ) from error
        resolved: Offsets = {}
        for topic, found in bounds.items():
            resolved[topic] = {}
            for partition, bound in found.items():
                offset = {"earliest": -2, "latest": -1}.get(text, given.get(topic, {}).get(str(partition), -2))
                resolved[topic][str(partition)] = bound.start if offset == -2 else bound.end if offset == -1 else offset
        return resolved

    def start(self, default: str) -> Offsets:
        """Where a new query begins."""
        if self.options.starting_timestamp is not None and not self.options.starting:
            return self.at(self.options.starting_timestamp)
        return self.resolve(self.options.starting or default)

    def at(self, millis: int) -> Offsets:
        """The first offset of every partition that is not before a time, or its end."""
        time = from_millis(millis)
        return {
            topic: {str(p): offset for p, offset in self.engine.offsets_at(topic, time).items() if p in found}
            for topic, found in self.engine.bounds().items()
        }

    def tasks(self, start: Offsets, end: Offsets) -> list[Task]:
        """Cut [start, end) into tasks: a range each, or all in one if there is little, as a task costs more than it."""
        watermarks: Any = end.get(WATERMARKS, {})
        beats = beats_of(end)
        ranges = self.ranges(places_of(start), places_of(end))
        silent = {(beat.topic, beat.partition) for beat in beats} - {(each.topic, each.partition) for each in ranges}
        ranges += [Part(t, p, end[t][str(p)], end[t][str(p)]) for t, p in sorted(silent)]
        if ranges and not self.options.min_partitions and sum(each.end - each.start for each in ranges) <= _SMALL:
            return [Task(ranges, watermarks, beats)]
        return [Task([each], watermarks, beats) for each in ranges]

    def ranges(self, start: Offsets, end: Offsets) -> list[Part]:
        """Cut [start, end) into ranges; partitions that are new begin at their first offset."""
        known = self.engine.distant and all(p in start.get(t, {}) for t in end for p in end[t])
        bounds = {} if known else self.engine.bounds()  # who reads from a distant log looks for itself
        total = sum(end[t][p] - start.get(t, {}).get(p, 0) for t in end for p in end[t])
        share = -(-total // self.options.min_partitions) if self.options.min_partitions else total
        ranges: list[Part] = []
        for topic, partitions in end.items():
            for name, upto in partitions.items():
                first = start[topic][name] if known else start.get(topic, {}).get(name, bounds[topic][int(name)].start)
                if first < upto and not known:
                    check_offset(TopicPartition(topic, int(name)), first, bounds[topic][int(name)])
                for low in range(first, upto, max(share, 1)):
                    ranges.append(Part(topic, int(name), low, min(low + share, upto)))
        return ranges

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read one task."""
        if not isinstance(partition, Task):  # None is Spark's way to say that there is nothing to read
            return
        decoder = self.files.decoder
        for each in partition.ranges:
            gate, place = None, (each.topic, each.partition)
            beats = [beat for beat in partition.beats if (beat.topic, beat.partition) == place]
            if decoder is not None:
                gate = decoder.gate(
                    each.topic, partition.watermarks.get(each.topic, {}).get(str(each.partition)), beats
                )
            if each.start < each.end:
                yield from self.engine.read(each, gate)
            if decoder is not None:
                left = decoder.tell(beats) if gate is None else decoder.leave(*place, gate)
                yield from fast_path.rows_of(decoder, left)


class BatchReader(_Planner, DataSourceReader):
    """``spark.read``: from startingOffsets (earliest) to endingTimestamp, or endingOffsets (latest)."""

    def partitions(self) -> Sequence[InputPartition]:
        """Fix the range now; what comes later is not read."""
        last = self.options.ending_timestamp
        return self.tasks(self.start("earliest"), self.resolve(self.options.ending) if last is None else self.at(last))


class StreamReader(_Planner, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream``: from startingOffsets (latest, as with Kafka) on."""

    def __init__(self, options: Options, files: Attached | None = None) -> None:
        super().__init__(options, files)
        self._target: Offsets | None = None
        self._shown: Offsets = {}
        self._seen: Offsets = {}

    def initialOffset(self) -> Offsets:  # noqa: N802
        """Where a query without a checkpoint begins."""
        return self.start("latest")

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """``maxOffsetsPerTrigger``."""
        return ReadMaxRows(self.options.limit) if self.options.limit else ReadAllAvailable()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """The end, or as far as the limit lets us; where we were, while a distant log is away and may be waited for."""
        self.commit(start)  # Spark asks only after it has finished what lies before, and commit() comes a batch late
        until = time.monotonic() + self.options.patience
        while True:
            try:
                return self._latest(start, limit)
            except LogUnavailable:
                if not self.engine.distant or time.monotonic() > until:
                    raise
            time.sleep(_MOMENT)
            if math.isinf(self.options.patience):
                return start  # Spark asks again, and can be stopped in between

    def _latest(self, start: Offsets, limit: ReadLimit) -> Offsets:
        places, bounds = places_of(start), self.engine.bounds()
        for topic, found in places.items():
            for p, at in found.items():  # a log that ends before is not the one that was read
                check_offset(TopicPartition(topic, int(p)), at, bounds[topic][int(p)])
        end = self._target or ends_of(bounds)
        self._seen = end
        if isinstance(limit, ReadMaxRows):
            end = self._within(places, end, limit.max_rows)
        if not self.options.watermarks:
            return end
        known = json.loads(check_ours(self.options.watermarks).read_bytes())
        beats = self._due(places, end, known)
        if end == places and not beats:
            return start  # nothing new, whatever the watermarks are now
        told: dict[str, Any] = {BEATS: msgspec.to_builtins(beats)} if beats else {}
        return {**end, WATERMARKS: known, **told}

    def _due(self, start: Offsets, end: Offsets, watermarks: Offsets) -> list[Beat]:
        """The heartbeats that come in a batch: those that it reaches and that still raise something."""
        waiting = msgspec.json.decode(check_ours(beats_beside(self.options.watermarks)).read_bytes(), type=list[Beat])
        due = [
            beat
            for beat in waiting
            if beat.reached(end) and beat.time > watermarks.get(beat.topic, {}).get(str(beat.partition), NEVER)
        ]
        placed = [
            beat._replace(offset=end[beat.topic][str(beat.partition)])
            if beat.appended is None
            else beat._replace(offset=max(beat.offset, start.get(beat.topic, {}).get(str(beat.partition), 0)))
            for beat in due
        ]
        return sorted(placed, key=lambda beat: (beat.topic, beat.partition, beat.offset, beat.time))

    def _within(self, start: Offsets, end: Offsets, limit: int) -> Offsets:
        """Go at most ``limit`` records towards end, and about as many bytes as there may be.

        What is left after a cut is looked at again: it is fewer records, so it is seen better, and they may be the large ones.
        """
        shorten = self._cut_at_append if self.options.whole_appends else cut
        end = shorten(start, end, limit)
        while self.options.max_bytes is not None:
            waiting = parts_between(start, end)
            count = sum(part.end - part.start for part in waiting)
            fitting = self.engine.records_within(waiting, self.options.max_bytes) if count else 0
            if fitting >= count or (shorter := shorten(start, end, fitting)) == end:
                break
            end = shorter
        return end

    def _cut_at_append(self, start: Offsets, end: Offsets, limit: int) -> Offsets:
        """Go at most ``limit`` records towards end, all partitions up to one append time; at least to the first."""
        waiting = parts_between(start, end)
        if sum(part.end - part.start for part in waiting) <= limit:
            return end
        reached = {
            (part.topic, str(part.partition)): at
            for part, at in zip(waiting, self.engine.cut(waiting, limit), strict=True)
        }
        return {t: {p: reached.get((t, p), upto) for p, upto in found.items()} for t, found in end.items()}

    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        """The end, for the lag in a query's progress; of a distant log as it was last seen, because it may be away by now."""
        return self._seen if self._seen and self.engine.distant else self.ends()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Everything up to now, and no more."""
        self._target = self.ends()

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Tasks of a micro-batch."""
        return self.tasks(start, end)

    def commit(self, end: Offsets) -> None:
        """Commit the offsets as a consumer group, to show the progress. Spark's checkpoint is the progress: another user of the group stops nothing."""
        end = places_of(end)
        if end == self._shown:
            return
        self._shown = end
        places = {TopicPartition(t, int(p)): offset for t, found in end.items() for p, offset in found.items()}
        with suppress(LogError):
            self.engine.show(self.options.group, places)

    def stop(self) -> None:
        """Let go of the log."""
        self.engine.close()


def ends_of(bounds: Mapping[str, Mapping[int, Bounds]]) -> Offsets:
    """Where each partition ends."""
    return {topic: {str(p): bound.end for p, bound in found.items()} for topic, found in bounds.items()}


def parts_between(start: Offsets, end: Offsets) -> list[Part]:
    """What lies between two offsets, partition by partition."""
    return [
        Part(t, int(p), first, upto)
        for t, found in end.items()
        for p, upto in found.items()
        if (first := start.get(t, {}).get(p, 0)) < upto
    ]


def cut(start: Offsets, end: Offsets, limit: int) -> Offsets:
    """Go at most ``limit`` records from start towards end, in proportion to what each partition has waiting.

    >>> cut({"t": {"0": 0, "1": 0}}, {"t": {"0": 90, "1": 10}}, 10)
    {'t': {'0': 9, '1': 1}}
    """
    waiting = {(t, p): upto - start.get(t, {}).get(p, 0) for t, found in end.items() for p, upto in found.items()}
    total = sum(waiting.values())
    if total <= limit:
        return end
    taken = {place: count * limit // total for place, count in waiting.items()}
    for place, count in waiting.items():  # rounding down leaves a few: they go to the first that have any
        if taken[place] < count and sum(taken.values()) < limit:
            taken[place] += 1
    return {t: {p: start.get(t, {}).get(p, 0) + taken[t, p] for p in found} for t, found in end.items()}
