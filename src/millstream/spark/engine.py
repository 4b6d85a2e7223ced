"""What the data source asks of a log, whichever engine keeps it: its bounds, where to cut it, and ranges as Arrow batches.

Both cut at one append time for all partitions, so that what was in the log first is read first.
"""

from __future__ import annotations

import json
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.event import TopicPartition
from millstream.log.archive import Archive, archive_of, reaching_back, to_arrow
from millstream.log.checks import check_offset
from millstream.log.contract import Bounds
from millstream.log.embedded.engine import SqliteLog
from millstream.log.embedded.file import first_appended_after, records_table
from millstream.log.embedded.scan import Part, Values, records_within, scan_rows, scan_values
from millstream.spark import fast_path
from millstream.spark.internals import kafka_messages
from millstream.spark.options import Options
from millstream.spark.private_folder import check_ours

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from millstream.decode.decoder import Decoder
    from millstream.kernel.admission.gate import Gate
    from millstream.log.kafka.engine import KafkaLog

CHUNK = 20_000
"""Records that are read and decoded at once; fewer where they are large."""
_RECENT = 2.0  # seconds


class Engine(Protocol):
    """A log as a source sees it, in one process; it is opened when it is first asked."""

    distant: bool
    """Whether the log may be unavailable for a while."""

    def bounds(self) -> dict[str, dict[int, Bounds]]:
        """The bounds of each partition."""

    def records_within(self, ranges: Sequence[Part], size: int) -> int:
        """An estimate of how many records of these ranges have ``size`` bytes together."""

    def offsets_at(self, topic: str, time: datetime) -> dict[int, int]:
        """The first offsets of events that are not older than a time."""

    def cut(self, ranges: Sequence[Part], limit: int) -> list[int]:
        """Where to cut ranges that together are larger than the limit: all at one append time."""

    def read(self, part: Part, gate: Gate | None) -> Iterator[pa.RecordBatch]:
        """The records of a range, in the columns of the options; with a decoder, its chunks and what it leaves."""

    def show(self, group: str, places: Mapping[TopicPartition, int]) -> None:
        """Show the progress as a consumer group."""

    def close(self) -> None:
        """Let go of what is open."""


@dataclass(frozen=True)
class Attached:
    """What is in the files that options name, read where they were written: workers of a cluster do not see them."""

    pickled: bytes = b""
    client: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def decoder(self) -> Decoder | None:
        """The decoder, if there is one."""
        return fast_path.from_bytes(self.pickled) if self.pickled else None


def attached(options: Options) -> Attached:
    """Read the files that options name."""
    pickled = check_ours(options.decoder).read_bytes() if options.decoder else b""
    return Attached(pickled, json.loads(check_ours(options.kafka).read_bytes()) if options.kafka else {})


def engine_for(options: Options, files: Attached) -> Engine:
    """The engine of the log that the options name."""
    return Embedded(options, files) if options.log.embedded else OnKafka(options, files)


class _Reading:
    """What both engines need: the options, and the files that they name."""

    def __init__(self, options: Options, files: Attached) -> None:
        self.options, self.files = options, files

    @property
    def decoder(self) -> Decoder | None:
        return self.files.decoder


class Past(NamedTuple):
    """Archived records: their offsets, when they were appended, and whether there are more, of which nothing need be known."""

    offsets: list[int]
    times: list[int]
    more: bool


class Embedded(_Reading):
    """The embedded log, and its archive."""

    distant = False
    _opened: SqliteLog | None = None

    @property
    def log(self) -> SqliteLog:
        """The log, opened in this process."""
        if self._opened is None:
            self._opened = SqliteLog(self.options.log.place, create=False)
        return self._opened

    def archive(self, topic: str) -> Archive | None:
        """The archive of a topic: where the option names it, or the topic itself, if it is asked for."""
        wanted = self.options.archive or self.options.archives
        return archive_of(self.log, topic, self.options.archive) if wanted else None

    def bounds(self) -> dict[str, dict[int, Bounds]]:
        """The bounds of each partition, with the archive."""
        bounds = self.log.snapshot(self.options.topics)
        if self.options.assign:
            chosen = json.loads(self.options.assign)
            bounds = {
                topic: {p: bound for p, bound in found.items() if p in chosen[topic]} for topic, found in bounds.items()
            }
        return {topic: reaching_back(self.archive(topic), found) for topic, found in bounds.items()}

    def records_within(self, ranges: Sequence[Part], size: int) -> int:
        """As the log and the archive estimate it."""
        archives = {part.topic: self.archive(part.topic) for part in ranges}
        return records_within(self.log, ranges, size, archives)

    def offsets_at(self, topic: str, time: datetime) -> dict[int, int]:
        """As the log says."""
        return self.log.offsets_at(topic, time)

    def cut(self, ranges: Sequence[Part], limit: int) -> list[int]:
        """The latest time up to which there are no more than the limit; at least that of the first append."""
        past = {part: self._past(part, limit) for part in ranges}
        with self.log.store.read() as db:
            tables = {part: records_table(self.log.row(part.topic, db).id, part.partition) for part in ranges}

            def after(part: Part, millis: int) -> int:
                old = past[part]
                if (place := bisect_right(old.times, millis)) < len(old.offsets):
                    return old.offsets[place]
                first = old.offsets[-1] + 1 if old.offsets else part.start
                return first if old.more else first_appended_after(db, tables[part], first, part.end, millis)

            def at(millis: int) -> list[int]:
                return [after(part, millis) for part in ranges]

            def appended(part: Part, offset: int) -> int:
                old, table = past[part], tables[part]
                if old.offsets and offset <= old.offsets[-1]:
                    return old.times[bisect_left(old.offsets, offset)]
                found = db.execute(
                    f"SELECT appended FROM {table} WHERE offset >= ? ORDER BY offset LIMIT 1", (offset,)
                ).get
                return int(found or 0)

            low = min(appended(part, part.start) for part in ranges)
            high = max(appended(part, part.end - 1) for part in ranges)
            while low < high:
                middle = (low + high + 1) // 2
                count = sum(offset - part.start for offset, part in zip(at(middle), ranges, strict=True))
                low, high = (middle, high) if count <= limit else (low, middle - 1)
            return at(low)

    def _past(self, part: Part, limit: int) -> Past:
        """The part of a range that is archived and no longer live, no longer than a limit makes necessary."""
        archive = self.archive(part.topic)
        live = self.log.bounds(part.topic)[part.partition].start if archive else part.start
        if archive is None or part.start >= live:
            return Past([], [], more=False)
        offsets, times = archive.appended(part.partition, part.start, limit)
        count = bisect_left(offsets, live)
        return Past(offsets[:count], times[:count], more=count == len(offsets) > limit)

    def read(self, part: Part, gate: Gate | None) -> Iterator[pa.RecordBatch]:
        """Read the archived part that is no longer live, then the live part."""
        live, decoder = part.start, self.decoder
        archive = self.archive(part.topic)
        bounds = self.log.bounds(part.topic) if archive else {}
        if archive and live < bounds[part.partition].start:
            whole = reaching_back(archive, bounds)[part.partition]
            check_offset(TopicPartition(part.topic, part.partition), live, whole)
            live = min(bounds[part.partition].start, part.end)
            for batch in archive.read(part.partition, part.start, live):
                yield from self._batch(batch, gate)
        while live < part.end:
            rest = part._replace(start=live)
            if decoder is not None and (values := self._values(decoder, rest)) is not None:
                yield from self._shortened(decoder, rest, values, gate)
                live = int(values.offsets[-1]) + 1
            elif rows := scan_rows(self.log, rest, CHUNK):
                yield from self._batch(to_arrow(part.topic, part.partition, rows), gate)
                live = rows[-1][0] + 1
            else:
                return  # compaction has left nothing of the rest

    def _batch(self, batch: pa.RecordBatch, gate: Gate | None) -> Iterator[pa.RecordBatch]:
        if self.decoder is not None:
            yield from fast_path.shorten_batch(self.decoder, batch, gate)
        else:
            yield batch.select(self.options.columns)

    def _values(self, decoder: Decoder, part: Part) -> Values | None:
        return None if decoder.wants_all(part.topic) else scan_values(self.log, part, CHUNK, decoder.reserved)

    def _shortened(self, decoder: Decoder, part: Part, values: Values, gate: Gate | None) -> Iterator[pa.RecordBatch]:
        """Chunks by the values alone; what is left is read again, whole."""

        def raw(left: npt.NDArray[np.bool_]) -> pa.RecordBatch:
            rows = scan_rows(self.log, part._replace(end=int(values.offsets[-1]) + 1), CHUNK, sys.maxsize)
            return to_arrow(part.topic, part.partition, list(compress(rows, left)))

        records = fast_path.records_of(values)
        yield from fast_path.shorten(decoder, part.topic, part.partition, records, raw, gate)

    def show(self, group: str, places: Mapping[TopicPartition, int]) -> None:
        """Commit them."""
        self.log.commit_group(group, places)

    def close(self) -> None:
        """Let go of the file."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None


class OnKafka(_Reading):
    """Topics of a Kafka cluster."""

    distant = True

    def __init__(self, options: Options, files: Attached) -> None:
        super().__init__(options, files)
        if options.archive:
            raise ConfigError("archive: on Kafka a stream cannot begin in an archive")
        self._opened: KafkaLog | None = None
        self._starts: dict[TopicPartition, int] = {}
        self._asked = -_RECENT

    @property
    def log(self) -> KafkaLog:
        """The log, opened in this process."""
        if self._opened is None:
            from millstream.log.kafka.append_times import AppendTimes
            from millstream.log.kafka.engine import KafkaLog
            from millstream.log.kafka.sizes import Sizes

            self._opened = KafkaLog(self.options.log.place, client=self.files.client or None)
            self._times, self._sizes = AppendTimes(self._opened), Sizes(self._opened)
        return self._opened

    def bounds(self) -> dict[str, dict[int, Bounds]]:
        """Up to the last stable offsets; of partitions that are named in one question, as Spark asks again and again.

        Where they start is asked now and then. Who reads what is gone by then hears of it from the broker.
        """
        if not self.options.assign:
            return {topic: self.log.bounds(topic) for topic in self.options.topics}
        chosen: dict[str, list[int]] = json.loads(self.options.assign)
        places = [TopicPartition(topic, p) for topic in self.options.topics for p in chosen[topic]]
        ends = self.log.ends(places)
        if time.monotonic() - self._asked > _RECENT:
            self._starts, self._asked = self.log.starts(places), time.monotonic()
        found: dict[str, dict[int, Bounds]] = {topic: {} for topic in self.options.topics}
        for place in places:
            found[place.topic][place.partition] = Bounds(self._starts[place], ends[place])
        return found

    def records_within(self, ranges: Sequence[Part], size: int) -> int:
        """Estimated from samples."""
        self.log  # noqa: B018  (opens it)
        return self._sizes.within(ranges, size)

    def offsets_at(self, topic: str, time: datetime) -> dict[int, int]:
        """As the log says."""
        return self.log.offsets_at(topic, time)

    def cut(self, ranges: Sequence[Part], limit: int) -> list[int]:
        """By the times of records; more than the limit of one time are cut, in the order of topics."""
        self.log  # noqa: B018  (opens it)
        return self._times.cut(ranges, limit)

    def read(self, part: Part, gate: Gate | None) -> Iterator[pa.RecordBatch]:
        """By a consumer that this process keeps."""
        from millstream.log.kafka.messages import to_batch
        from millstream.log.kafka.names import client_settings
        from millstream.log.kafka.scan import scan

        decoder, settings = self.decoder, self.files.client or client_settings(self.options.log.place, {})
        if decoder is not None and not decoder.wants_all(part.topic):
            yield from self._shortened(decoder, settings, part, gate)
            return
        for messages in scan(settings, part, CHUNK, self.options.patience):
            batch = to_batch(part.topic, part.partition, messages)
            if decoder is None:
                yield batch.select(self.options.columns)
            else:
                yield from fast_path.shorten_batch(decoder, batch, gate)

    def _shortened(
        self, decoder: Decoder, settings: Mapping[str, str], part: Part, gate: Gate | None
    ) -> Iterator[pa.RecordBatch]:
        """Chunks by the values alone; of what is left the rest is read, too."""
        from millstream.log.kafka.messages import Messages, to_batch
        from millstream.log.kafka.scan import scan

        for messages in scan(settings, part, CHUNK, self.options.patience, kind=kafka_messages.taker(settings)):

            def raw(left: npt.NDArray[np.bool_], messages: Messages = messages) -> pa.RecordBatch:
                return to_batch(part.topic, part.partition, messages[left])

            records = fast_path.records_of_messages(messages)
            yield from fast_path.shorten(decoder, part.topic, part.partition, records, raw, gate)

    def show(self, group: str, places: Mapping[TopicPartition, int]) -> None:
        """A pipeline's ledger shows it; writing a group would need a right that reading does not."""

    def close(self) -> None:
        """Let go of the connections."""
        if self._opened is not None:
            with suppress(Exception):
                self._sizes.close()
                self._opened.close()
            self._opened = None
