"""Spark reads the embedded log: ``spark.readStream.format("millstream")`` and ``spark.read.format("millstream")``.

Columns and option names are those of Spark's Kafka source: key, value, topic, partition, offset, timestamp, headers;
``subscribe`` (topics, by comma), ``startingOffsets``, ``endingOffsets`` (batch), ``startingTimestamp``,
``maxOffsetsPerTrigger``, ``minPartitions``; ``maxBytesPerTrigger``, estimated, is that of Spark's files. Ours are ``log`` (the address), ``archive`` (a folder: offsets that have
left the live log are read from there), ``group`` (the consumer group that shows the progress, ``spark-TOPIC`` unless
named), ``includeAppendTime``, ``includeHeaders`` (true unless said), ``assign`` (JSON, topic → partitions: only these, even if the topic grows),
``wholeAppends`` (a limit never cuts an append in two: all partitions are cut at one append time), and for pipelines ``decoder``
(see :mod:`millstream.spark.shortcut`) and ``watermarks``: files that only their owner can read, the latter with those that hold
after the last batch. A batch's offsets then have, under :data:`WATERMARKS`, the ones before it, so that Spark keeps them and a batch that is run again has the same.

All partitions of a micro-batch are cut in one read transaction, so at the end of whole append batches unless a limit
says otherwise. A range that is neither in the log nor in the archive is an error that names it, never a silent gap.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from millstream.errors import ConfigError, LogError
from millstream.event import TopicPartition, from_millis
from millstream.log.archive import SCHEMA, Archive, to_arrow
from millstream.log.contract import Bounds, check_offset
from millstream.log.scan import Part, Values, records_within, scan_rows, scan_values
from millstream.log.sqlite import SqliteLog
from millstream.log.store import first_appended_after, records_table
from millstream.spark import shortcut
from millstream.spark.private import check_ours

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from millstream.kernel.admit import Gate
    from millstream.kernel.decode import Decoder

Offsets = dict[str, dict[str, int]]
"""Topic → partition (as text, for JSON) → the next offset to read; as in Spark's Kafka source."""

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
WATERMARKS = ""
"""Where offsets keep watermarks: no topic has that name."""
CHUNK = 20_000
"""Records that are read and decoded at once; fewer where they are large."""
_SMALL = 10_000  # records


@dataclass(frozen=True)
class Options:
    """The options, read and checked once."""

    path: str
    topics: tuple[str, ...]
    starting: str
    ending: str
    starting_timestamp: int | None
    limit: int | None
    min_partitions: int
    group: str
    archive: str | None
    append_time: bool
    assign: str = ""
    whole_appends: bool = False
    headers: bool = True
    decoder: str = ""
    watermarks: str = ""
    max_bytes: int | None = None

    @property
    def columns(self) -> list[str]:
        """The columns to give, in order."""
        wanted = {"headers": self.headers, "append_time": self.append_time}
        return [name for name in SCHEMA.names if wanted.get(name, True)]

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Options:
        """Read what Spark hands over; its keys ignore case."""
        low = {name.lower(): value for name, value in options.items()}
        log, topics = low.get("log", ""), low.get("subscribe") or low.get("topic") or ""
        if not log.startswith("sqlite:"):
            raise ConfigError(
                f"option log: found {log!r}, expected sqlite:PATH", hint="a kafka:// log is read with format('kafka')"
            )
        if not topics:
            raise ConfigError(
                "option subscribe is missing", hint="name the topics: .option('subscribe', 'clicks,orders')"
            )
        names = tuple(name.strip() for name in topics.split(","))
        timestamp = low.get("startingtimestamp")
        return cls(
            path=str(Path(log.removeprefix("sqlite:")).absolute()),
            topics=names,
            starting=low.get("startingoffsets", ""),
            ending=low.get("endingoffsets", "latest"),
            starting_timestamp=_number("startingTimestamp", timestamp) if timestamp else None,
            limit=_number("maxOffsetsPerTrigger", low["maxoffsetspertrigger"])
            if low.get("maxoffsetspertrigger")
            else None,
            min_partitions=_number("minPartitions", low.get("minpartitions", "0")),
            group=low.get("group") or f"spark-{'-'.join(names)}",
            archive=low.get("archive"),
            append_time=low.get("includeappendtime", "false").lower() == "true",
            assign=low.get("assign", ""),
            whole_appends=low.get("wholeappends", "false").lower() == "true",
            headers=low.get("includeheaders", "true").lower() == "true",
            decoder=low.get("decoder", ""),
            watermarks=low.get("watermarks", ""),
            max_bytes=_number("maxBytesPerTrigger", low["maxbytespertrigger"])
            if low.get("maxbytespertrigger")
            else None,
        )


class Task(InputPartition):
    """What one task reads, one range after the other; and the watermarks of all partitions before it."""

    def __init__(self, ranges: Sequence[Part], watermarks: Offsets) -> None:
        self.ranges, self.watermarks = list(ranges), watermarks


class MillstreamSource(DataSource):
    """The data source called ``millstream``."""

    @classmethod
    def name(cls) -> str:
        """What goes into ``format(…)``."""
        return "millstream"

    def schema(self) -> str:
        """Spark's Kafka columns, and the append time where asked for; with a decoder chunks, and such columns for what is left."""
        if Options.of(self.options).decoder:
            return shortcut.DDL
        return ", ".join(f"{name} {TYPES[name]}" for name in Options.of(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Read once."""
        return BatchReader(Options.of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Read on and on."""
        return StreamReader(Options.of(self.options))


class _Planner:
    """What both readers share: where to start, where the log ends, how to cut it into tasks, how to read a task."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._opened: SqliteLog | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_opened": None}  # a task opens the log itself

    @property
    def log(self) -> SqliteLog:
        """The log, opened in this process."""
        if self._opened is None:
            self._opened = SqliteLog(self.options.path, create=False)
        return self._opened

    def archive(self, topic: str) -> Archive | None:
        """The archive of a topic, where one is named."""
        return Archive(self.log.archive_path(self.options.archive), topic) if self.options.archive else None

    def bounds(self) -> dict[str, dict[int, Bounds]]:
        """What there is to read, the archive included."""
        bounds = self.log.snapshot(self.options.topics)
        if self.options.assign:
            chosen = json.loads(self.options.assign)
            bounds = {
                topic: {p: bound for p, bound in found.items() if p in chosen[topic]} for topic, found in bounds.items()
            }
        for topic in self.options.topics:
            if archive := self.archive(topic):
                for partition, bound in bounds[topic].items():
                    span = archive.span(partition)
                    if span and span[1] >= bound.start:
                        bounds[topic][partition] = Bounds(min(span[0], bound.start), bound.end)
        return bounds

    def ends(self) -> Offsets:
        """The end of every partition, at one moment."""
        return ends_of(self.bounds())

    def resolve(self, text: str) -> Offsets:
        """Turn ``earliest``, ``latest`` or JSON (−2 earliest, −1 latest) into offsets."""
        bounds = self.bounds()
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
            time = from_millis(self.options.starting_timestamp)
            return {
                topic: {str(p): offset for p, offset in self.log.offsets_at(topic, time).items()}
                for topic in self.options.topics
            }
        return self.resolve(self.options.starting or default)

    def tasks(self, start: Offsets, end: Offsets) -> list[Task]:
        """Cut [start, end) into tasks: a range each, or all in one if there is little, as a task costs more than it."""
        watermarks: Any = end.get(WATERMARKS, {})
        ranges = self.ranges(places_of(start), places_of(end))
        if ranges and not self.options.min_partitions and sum(each.end - each.start for each in ranges) <= _SMALL:
            return [Task(ranges, watermarks)]
        return [Task([each], watermarks) for each in ranges]

    def ranges(self, start: Offsets, end: Offsets) -> list[Part]:
        """Cut [start, end) into ranges; partitions that are new begin at their first offset."""
        bounds = self.bounds()
        total = sum(end[t][p] - start.get(t, {}).get(p, 0) for t in end for p in end[t])
        share = -(-total // self.options.min_partitions) if self.options.min_partitions else total
        ranges: list[Part] = []
        for topic, partitions in end.items():
            for name, upto in partitions.items():
                bound = bounds[topic][int(name)]
                first = start.get(topic, {}).get(name, bound.start)
                if first < upto:
                    check_offset(TopicPartition(topic, int(name)), first, bound)
                for low in range(first, upto, max(share, 1)):
                    ranges.append(Part(topic, int(name), low, min(low + share, upto)))
        return ranges

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read one task."""
        if not isinstance(partition, Task):  # None is Spark's way to say that there is nothing to read
            return
        for each in partition.ranges:
            decoder, gate = self._decoder, None
            if decoder is not None:
                gate = decoder.gate(each.topic, partition.watermarks.get(each.topic, {}).get(str(each.partition)))
            yield from self._read(each, gate)
            if decoder is not None and gate is not None:
                yield from shortcut.rows_of(decoder, decoder.leave(each.topic, each.partition, gate))

    def _read(self, part: Part, gate: Gate | None) -> Iterator[pa.RecordBatch]:
        """First what is archived, then what is live."""
        live = part.start
        archive = self.archive(part.topic)
        span = archive.span(part.partition) if archive else None
        if archive and span and span[0] <= part.start < span[1]:
            live = min(span[1], part.end)
            for batch in archive.read(part.partition, part.start, live):
                yield from self._batch(batch, gate)
        while live < part.end:
            rest = part._replace(start=live)
            if self._decoder is not None and (values := self._values(self._decoder, rest)) is not None:
                yield from self._shortened(self._decoder, rest, values, gate)
                live = int(values.offsets[-1]) + 1
            elif rows := scan_rows(self.log, rest, CHUNK):
                yield from self._batch(to_arrow(part.topic, part.partition, rows), gate)
                live = rows[-1][0] + 1
            else:
                return  # compaction has left nothing of the rest

    @property
    def _decoder(self) -> Decoder | None:
        return shortcut.from_file(self.options.decoder) if self.options.decoder else None

    def _batch(self, batch: pa.RecordBatch, gate: Gate | None) -> Iterator[pa.RecordBatch]:
        if self._decoder is not None:
            yield from shortcut.shorten_batch(self._decoder, batch, gate)
        else:
            yield batch.select(self.options.columns)

    def _values(self, decoder: Decoder, part: Part) -> Values | None:
        return None if decoder.wants_all(part.topic) else scan_values(self.log, part, CHUNK, decoder.reserved)

    def _shortened(self, decoder: Decoder, part: Part, values: Values, gate: Gate | None) -> Iterator[pa.RecordBatch]:
        """Chunks by the values alone; what is left is read again, whole."""

        def raw(left: npt.NDArray[np.bool_]) -> pa.RecordBatch:
            rows = scan_rows(self.log, part._replace(end=int(values.offsets[-1]) + 1), CHUNK, sys.maxsize)
            return to_arrow(part.topic, part.partition, list(compress(rows, left)))

        records = shortcut.records_of(values)
        yield from shortcut.shorten(decoder, part.topic, part.partition, records, raw, gate)


class BatchReader(_Planner, DataSourceReader):
    """``spark.read``: from startingOffsets (earliest) to endingOffsets (latest)."""

    def partitions(self) -> Sequence[InputPartition]:
        """Fix the range now; what comes later is not read."""
        return self.tasks(self.start("earliest"), self.resolve(self.options.ending))


class StreamReader(_Planner, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream``: from startingOffsets (latest, as with Kafka) on."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._target: Offsets | None = None
        self._shown: Offsets = {}

    def initialOffset(self) -> Offsets:  # noqa: N802
        """Where a query without a checkpoint begins."""
        return self.start("latest")

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """``maxOffsetsPerTrigger``."""
        return ReadMaxRows(self.options.limit) if self.options.limit else ReadAllAvailable()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """The end, or as far as the limit lets us, each partition getting its share of it."""
        self.commit(start)  # Spark asks only after it has finished what lies before, and commit() comes a batch late
        places, bounds = places_of(start), self.bounds()
        for topic, found in places.items():
            for p, at in found.items():  # a log that ends before is not the one that was read
                check_offset(TopicPartition(topic, int(p)), at, bounds[topic][int(p)])
        end = self._target or ends_of(bounds)
        if isinstance(limit, ReadMaxRows):
            most = limit.max_rows
            if self.options.max_bytes is not None:
                waiting = [
                    Part(t, int(p), places.get(t, {}).get(p, 0), upto)
                    for t, found in end.items()
                    for p, upto in found.items()
                ]
                most = min(most, records_within(self.log, waiting, self.options.max_bytes))
            end = (self._cut_at_append if self.options.whole_appends else cut)(places, end, most)
        if not self.options.watermarks:
            return end
        if end == places:
            return start  # nothing new, whatever the watermarks are now
        return {**end, WATERMARKS: json.loads(check_ours(self.options.watermarks).read_bytes())}

    def _cut_at_append(self, start: Offsets, end: Offsets, limit: int) -> Offsets:
        """Go at most ``limit`` records towards end, all partitions up to one append time; at least to the first."""
        waiting = [(t, p, start.get(t, {}).get(p, 0), upto) for t, found in end.items() for p, upto in found.items()]
        waiting = [place for place in waiting if place[2] < place[3]]
        if sum(upto - first for *_, first, upto in waiting) <= limit:
            return end
        with self.log.store.read() as db:
            tables = {topic: self.log.row(topic, db).id for topic in end}

            def at(millis: int) -> list[int]:
                return [
                    first_appended_after(db, records_table(tables[topic], int(p)), first, upto, millis)
                    for topic, p, first, upto in waiting
                ]

            def appended(topic: str, p: str, offset: int) -> int:
                table = records_table(tables[topic], int(p))
                found = db.execute(
                    f"SELECT appended FROM {table} WHERE offset >= ? ORDER BY offset LIMIT 1", (offset,)
                ).get
                return int(found or 0)

            low = min(appended(topic, p, first) for topic, p, first, _ in waiting)
            high = max(appended(topic, p, upto - 1) for topic, p, _, upto in waiting)
            while low < high:  # the latest time up to which there are no more than the limit
                middle = (low + high + 1) // 2
                count = sum(offset - first for offset, (_, _, first, _) in zip(at(middle), waiting, strict=True))
                low, high = (middle, high) if count <= limit else (low, middle - 1)
            reached = dict(zip(((topic, p) for topic, p, *_ in waiting), at(low), strict=True))
        return {t: {p: reached.get((t, p), upto) for p, upto in found.items()} for t, found in end.items()}

    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        """The end, for the lag in a query's progress."""
        return self.ends()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Everything up to now, and no more."""
        self._target = self.ends()

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Tasks of a micro-batch."""
        return self.tasks(start, end)

    def commit(self, end: Offsets) -> None:
        """Show the progress as a consumer group. Showing it is not the progress: who uses the group's name stops nothing."""
        end = places_of(end)
        if end == self._shown:
            return
        self._shown = end
        places = {TopicPartition(t, int(p)): offset for t, found in end.items() for p, offset in found.items()}
        with suppress(LogError):
            self.log.commit_group(self.options.group, places)

    def stop(self) -> None:
        """Let go of the file."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def ends_of(bounds: Mapping[str, Mapping[int, Bounds]]) -> Offsets:
    """Where each partition ends."""
    return {topic: {str(p): bound.end for p, bound in found.items()} for topic, found in bounds.items()}


def places_of(offsets: Offsets) -> Offsets:
    """Offsets without the watermarks that may be with them."""
    return {topic: found for topic, found in offsets.items() if topic != WATERMARKS}


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


def _number(name: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise ConfigError(f"option {name}: found {text!r}, expected a whole number")
    return value
