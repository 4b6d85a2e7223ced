"""Records that have left the live log, or are about to, as Parquet files that Spark reads beside it.

``ROOT/TOPIC/PARTITION/FIRST-NEXT.parquet`` holds the records with FIRST ≤ offset < NEXT. The names are the whole book-
keeping: a file is complete or absent (written aside, synced, renamed), ranges touch and never overlap, and where the
archive of a partition ends, the live log goes on. Copying comes before deleting, so a crash in between costs nothing.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pyarrow as pa

from millstream.durable import replace_file, sync
from millstream.errors import LogError, LogUnavailable, OffsetOutOfRange
from millstream.event import Headers, Record
from millstream.failpoint import failpoint
from millstream.log.checks import start_offsets
from millstream.log.contract import Bounds, Log, Start
from millstream.log.embedded.file import MOST_BYTES

if TYPE_CHECKING:
    import pyarrow.parquet as pq

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("append_time", pa.timestamp("us", "UTC")),
    ]
)
"""The columns of Spark's Kafka source, and the append time."""

_CHUNK = 50_000
_FILE_RECORDS = 1_000_000


class Piece(NamedTuple):
    """One file: records with ``first`` ≤ offset < ``next``."""

    first: int
    next: int
    path: Path


class Archive:
    """The archive of one topic.

    :param root: the folder of archives; each topic has a folder in it
    :param topic: the topic's name
    :raises LogError: by its methods, if the files are of another topic of that name

    >>> Archive("archive", "clicks").span(0) is None  # nothing is archived yet
    True
    """

    def __init__(self, root: str | Path, topic: str) -> None:
        self.topic = topic
        self.folder = Path(root) / topic
        self._identity = self.folder / "topic.id"

    def pieces(self, partition: int) -> list[Piece]:
        """The files of a partition in order."""
        folder = self.folder / str(partition)
        return sorted(
            Piece(int(path.stem[:20]), int(path.stem[21:]), path) for path in folder.glob("[0-9]*-[0-9]*.parquet")
        )

    def check(self, log: Log) -> None:
        """Refuse a topic that is not the one whose records are archived here, but another of its name."""
        if (wanted := self._known()) and log.topic_id(self.topic) not in ("", wanted):
            raise LogError(
                f"archive {self.folder}: it is of a topic {self.topic} that was deleted and made again since",
                hint="move the old archive away, or give the topic another: `millstream topics alter`",
            )

    def span(self, partition: int) -> tuple[int, int] | None:
        """First and next offset of what is archived."""
        pieces = self.pieces(partition)
        return (pieces[0].first, pieces[-1].next) if pieces else None

    def take(self, log: Log, upto: Mapping[int, int] | None = None) -> int:
        """Copy what is not archived yet, up to the given offsets or the end; give the number of records.

        Raises OffsetOutOfRange if the live log has already lost what should come next.
        """
        taken = 0
        with self._alone():
            self.check(log)
            if not self._known():
                replace_file(self._identity, log.topic_id(self.topic).encode())
            for partition, bounds in log.bounds(self.topic).items():
                end = min(bounds.end, (upto or {}).get(partition, bounds.end))
                span = self.span(partition)
                offset = span[1] if span else bounds.start
                if offset > bounds.end:
                    raise OffsetOutOfRange(
                        f"archive {self.folder}, partition {partition}: it reaches to offset {offset - 1}, the topic only"
                        f" to {bounds.end - 1}",
                        missing=(bounds.end, offset),
                        hint="was the topic deleted and made again? move the old archive away first",
                    )
                if offset < bounds.start:
                    raise OffsetOutOfRange(
                        f"archive {self.folder}, partition {partition}: offsets {offset} to {bounds.start - 1}"
                        " were deleted before they were archived",
                        missing=(offset, bounds.start),
                        hint="archive into a new folder, and more often than the topic's retention",
                    )
                while offset < end:
                    count, offset = self._write(log, partition, offset, min(end, offset + _FILE_RECORDS))
                    taken += count
        return taken

    def appended(self, partition: int, start: int, most: int) -> tuple[list[int], list[int]]:
        """Offsets from ``start`` on, and when each was appended (milliseconds), until there are more than ``most`` of them."""
        import pyarrow.parquet as pq  # slow to load, and rarely needed

        offsets: list[int] = []
        times: list[int] = []
        for piece in self.pieces(partition):
            if piece.next > start and len(offsets) <= most:
                table = pq.read_table(piece.path, columns=["offset", "append_time"])
                low = int(table["offset"].to_numpy().searchsorted(start))
                offsets += table["offset"].slice(low).to_pylist()
                times += table["append_time"].slice(low).cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
        return offsets, times

    def about(self, partition: int, start: int, end: int) -> float:
        """About how many bytes the archived records with start ≤ offset < end have: as many as others of their file."""
        import pyarrow.parquet as pq  # slow to load, and rarely needed

        total = 0.0
        for piece in self.pieces(partition):
            if (common := min(piece.next, end) - max(piece.first, start)) > 0:
                total += common * _bytes(pq.read_metadata(piece.path)) / (piece.next - piece.first)
        return total

    def first_since(self, partition: int, time: datetime, end: int) -> int | None:
        """The first offset before ``end`` whose record's time is at or after ``time``; None if there is none."""
        import pyarrow.compute as pc  # slow to load, and rarely needed
        import pyarrow.parquet as pq

        for piece in self.pieces(partition):
            if piece.first < end:
                table = pq.read_table(piece.path, columns=["offset", "timestamp"])
                since = pc.greater_equal(table["timestamp"], pa.scalar(time, pa.timestamp("us", "UTC")))
                found = pc.min(table["offset"].filter(since)).as_py()
                if found is not None:
                    return int(found) if found < end else None
        return None

    def read(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Archived records with start ≤ offset < end, in order."""
        import pyarrow.parquet as pq  # slow to load, and rarely needed

        for piece in self.pieces(partition):
            if piece.first < end and piece.next > start:
                table = pq.ParquetFile(piece.path)
                some = max(1, min(_CHUNK, MOST_BYTES * table.metadata.num_rows // max(1, _bytes(table.metadata))))
                for batch in table.iter_batches(some):
                    offsets = batch.column("offset").to_numpy()
                    low, high = offsets.searchsorted(start), offsets.searchsorted(end)
                    if low < high:
                        yield batch.slice(low, high - low)

    def rewrite(self, partition: int, change: Callable[[pa.RecordBatch], pa.RecordBatch | None]) -> int:
        """Let each batch of a partition's files become what ``change`` gives, or stay if that is nothing; give how many did not stay.

        Places and names stay. A file is replaced as a whole; of what it was before nothing is kept.
        """
        import pyarrow.parquet as pq  # slow to load, and rarely needed

        changed = 0
        with self._alone():
            fresh = self.folder / str(partition) / ".fresh"
            for piece in self.pieces(partition):
                batches = [(batch, change(batch)) for batch in pq.ParquetFile(piece.path).iter_batches(_CHUNK)]
                if all(new is None for _, new in batches):
                    continue
                try:
                    with pq.ParquetWriter(fresh, SCHEMA, compression="zstd") as writer:
                        for batch, new in batches:
                            writer.write_batch(batch if new is None else new)
                            changed += new is not None
                    sync(fresh)
                    failpoint("archive.before_rewrite")
                    os.replace(fresh, piece.path)
                    sync(fresh.parent)
                finally:
                    fresh.unlink(missing_ok=True)
        return changed

    def _known(self) -> str:
        """The id of the topic that is archived here; archives of before do not say."""
        return self._identity.read_text(encoding="utf-8") if self._identity.exists() else ""

    def _write(self, log: Log, partition: int, first: int, end: int) -> tuple[int, int]:
        """Write one file; give its number of records and the offset after it."""
        import pyarrow.parquet as pq  # slow to load, and rarely needed

        folder = self.folder / str(partition)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # One name for all that is unfinished, unlike replace_file's: the file after a kill may end elsewhere.
        path, fresh = folder / f"{first:020d}-{end:020d}.parquet", folder / ".fresh"
        count, offset = 0, first
        try:
            with (
                pq.ParquetWriter(fresh, SCHEMA, compression="zstd") as writer,
                log.reader(self.topic, {partition: first}) as reader,
            ):
                while offset < end:
                    records = [record for record in reader.poll(_CHUNK, timeout=10.0) if record.offset < end]
                    if records:
                        writer.write_batch(to_arrow(self.topic, partition, [_row(record) for record in records]))
                        count += len(records)
                    elif reader.positions[partition] < end:
                        raise LogUnavailable(
                            f"{log.url}: no answer while archiving {self.topic}/{partition} from offset {offset}"
                        )
                    offset = reader.positions[partition]
            sync(fresh)
            failpoint("archive.before_rename")
            os.replace(fresh, path)
            sync(folder)
        finally:
            fresh.unlink(missing_ok=True)
        return count, end

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One archiver at a time: two would write overlapping ranges."""
        self.folder.mkdir(
            mode=0o700, parents=True, exist_ok=True
        )  # the records of the log, which is for its owner alone
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def archive_of(log: Log, topic: str, folder: str | None = None) -> Archive | None:
    """The archive of a topic in a folder, or else in the one that its settings name; None if there is none."""
    root = folder or log.topic(topic).settings.archive
    if not root:
        return None
    archive = Archive(log.archive_path(root), topic)
    archive.check(log)
    return archive


def reaching_back(archive: Archive | None, bounds: Mapping[int, Bounds]) -> dict[int, Bounds]:
    """What there is to read of each partition, the archive included, where the live log goes on from it."""
    found = dict(bounds)
    for partition, bound in bounds.items():
        span = archive.span(partition) if archive else None
        if span and bound.start <= span[1] <= bound.end:
            found[partition] = Bounds(min(span[0], bound.start), bound.end)
    return found


def whole_bounds(log: Log, topic: str) -> dict[int, Bounds]:
    """What there is to read of a topic, its archive included."""
    return reaching_back(archive_of(log, topic), log.bounds(topic))


def whole_offsets(log: Log, topic: str, start: Start) -> dict[int, int]:
    """Turn a start into an offset per partition, as :func:`~millstream.log.checks.start_offsets` does, in the log and its archive."""
    archive, live = archive_of(log, topic), log.bounds(topic)
    bounds = reaching_back(archive, live)
    found = start_offsets(log, topic, start, bounds)
    if archive is not None and isinstance(start, datetime):
        for partition, bound in live.items():
            if bounds[partition].start < bound.start:
                before = archive.first_since(partition, start, bound.start)
                found[partition] = found[partition] if before is None else before
    return found


Row: TypeAlias = tuple[int, int, int, bytes | None, bytes | None, Headers | None]
"""Offset, timestamp, append time, key, value, headers: what the embedded log stores, in its order."""


def to_arrow(topic: str, partition: int, rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows of one partition as an Arrow batch of :data:`SCHEMA`, column by column."""
    return columns_to_arrow(topic, partition, *(zip(*rows, strict=True) if rows else ((),) * 6))


def columns_to_arrow(
    topic: str,
    partition: int,
    offsets: Sequence[int],
    timestamps: Sequence[int],
    appended: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Headers | None],
) -> pa.RecordBatch:
    """The same of what rows consist of."""
    count = len(offsets)
    kind = SCHEMA.field("headers").type
    pairs = pa.nulls(count, kind)
    if any(headers):
        pairs = pa.array([[{"key": k, "value": v} for k, v in found] if found else None for found in headers], kind)
    return pa.record_batch(
        [
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.repeat(topic, count),
            pa.repeat(pa.scalar(partition, pa.int32()), count),
            pa.array(offsets, pa.int64()),
            _times(timestamps),
            pairs,
            _times(appended),
        ],
        schema=SCHEMA,
    )


def _bytes(facts: pq.FileMetaData) -> int:
    """The bytes of the records of a file, not compressed."""
    return sum(facts.row_group(i).total_byte_size for i in range(facts.num_row_groups))


def _row(record: Record) -> Row:
    return record.offset, record.timestamp, record.appended, record.key, record.value, record.headers


def _times(millis: Sequence[int]) -> pa.Array:
    return pa.array(millis, pa.int64()).cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
