"""A table of rows inside one bucket, cut into small segments so that a batch reads and writes only what it touches.

Every row has a *place*, a 64-bit number in column ``_p``: the second at which it expires in the high half, the hash of
its key in the low half. Rows lie in order of place, and a segment holds a run of places, like a leaf of a B-tree:
small windows share a segment, a large one has many, and what expires lies at the front. Rows of one place are never cut
apart. A segment is one Arrow record batch without its schema, which the directory has once, compressed: every byte of it goes
through a socket and two serializers.
"""

from __future__ import annotations

import re
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from millstream.errors import KeyTooLarge
from millstream.kernel.arrow import to_arrow
from millstream.kernel.state.hash import hash_columns
from millstream.kernel.state.store import FOREVER, Directory, Meta, Store

Places: TypeAlias = npt.NDArray[np.uint64]
Segments: TypeAlias = dict[int, bytes]

PLACE = "_p"
LIMIT = 16_384
"""Bytes of a segment, before compression. Each one touched costs a call and is written whole: with 128 KB a batch of 1,000 events
on 5 M rows wrote some 100 MB. With 8 KB such a batch was no faster, and one that touches everything was slower."""

_LARGER, _MANY = 4, 64
"""A batch that changes rows for many segments makes each of them up to so many times as large: half of the calls' time is in their
number. One that changes little cuts those that it touches as small as ever."""

MOST_BYTES = 128 << 20
"""Bytes of the rows of one place, before compression: they are one segment, and read and written together."""

_CODEC = pa.Codec("lz4_raw")
_PLAIN = b"\xff\xff\xff\xff"  # how Arrow begins what is not compressed: segments of format 1
_TABLE = 40  # segment numbers of different tables differ above this bit
_SECOND = 1_000_000
_HALF = np.uint64(32)
_LOW = np.uint64((1 << 32) - 1)
_QUARTER = np.uint64(16)
_SHORT = np.uint64((1 << 16) - 1)
_ODD = np.uint64(0x9E3779B1)


def place(rows: pl.DataFrame, columns: list[str], expires: str | None = None) -> Places:
    """The place of each row: ``columns`` are hashed; ``expires`` names a column of microseconds."""
    return placed(hash_columns([rows[name] for name in columns], rows.height), rows[expires] if expires else None)


def placed(hashed: npt.NDArray[np.uint32], expires: pl.Series | None = None) -> Places:
    """The places of rows with these hashes; ``expires`` are microseconds."""
    low: Places = hashed.astype(np.uint64)
    return low if expires is None else (_seconds(expires.to_numpy()) << _HALF) | low


def ordered_place(rows: pl.DataFrame, columns: list[str], expires: str | None = None) -> Places:
    """The place of each row, by the order of a first column of whole numbers: ids that grow with time then lie side by side.

    What is recent is what a batch touches, so it touches few segments. Any other column is hashed, as by :func:`place`.
    """
    if not columns or not rows.schema[columns[0]].is_integer():
        return place(rows, columns, expires)
    numbers = rows[columns[0]].cast(pl.Int64).fill_null(0).to_numpy().astype(np.uint64)
    if len(columns) == 1:
        low: Places = (numbers ^ ((numbers >> _HALF) * _ODD)) & _LOW
    else:  # groups of one first key must not be all in one place
        low = ((numbers & _SHORT) << _QUARTER) | (place(rows, columns) & _SHORT)
    return low if expires is None else (_seconds(rows[expires].to_numpy()) << _HALF) | low


def first_place(micros: int) -> np.uint64:
    """The first place of what expires in that second."""
    return np.uint64(_seconds(np.array([micros]))[0] << _HALF)


def _seconds(micros: npt.NDArray[np.int64]) -> Places:
    # Clipped, not wrapped: an order that stays the same is all that is needed of it.
    return np.clip(micros // _SECOND, 0, (1 << 32) - 1).astype(np.uint64)


def widths(rows: pl.DataFrame) -> pl.Series:
    """About how many bytes each row has: those of its text, and of anything else what it has on average."""
    other = [column for column in rows if column.dtype not in (pl.String, pl.Binary)]
    fixed = sum(column.estimated_size() for column in other) // max(rows.height, 1) + 8 * (rows.width - len(other))
    texts = [pl.col(name).str.len_bytes() for name, kind in rows.schema.items() if kind == pl.String]
    texts += [pl.col(name).bin.size() for name, kind in rows.schema.items() if kind == pl.Binary]
    long = [each.fill_null(0).cast(pl.Int64) for each in texts]
    return rows.select(pl.sum_horizontal(pl.repeat(fixed, pl.len(), dtype=pl.Int64), *long).alias("_bytes")).to_series()


def check_places(rows: pl.DataFrame) -> None:
    """Refuse to keep more than :data:`MOST_BYTES` in one place; rows are in the order of their places."""
    if rows.estimated_size() <= MOST_BYTES:
        return
    sizes = widths(rows).to_numpy()
    starts = np.flatnonzero(np.diff(rows[PLACE].to_numpy(), prepend=np.uint64(0)) != 0)
    starts = np.unique(np.append(0, starts))
    found = np.add.reduceat(sizes, starts)
    if found.max() > MOST_BYTES:
        one = rows.drop(PLACE).row(int(starts[found.argmax()]), named=True)
        keys = [
            name for name in one if re.fullmatch(r"_k\d+", name)
        ]  # those of a join; others are named, and come first
        keys = keys or [name for name in one if not name.startswith("_")][:4]
        shown = ", ".join(f"{name.replace('_k', 'key ')} = {one[name]!r:.60}" for name in keys)
        raise KeyTooLarge(
            f"{shown}: {found.max() >> 20:,} MB of rows to be kept for one key; at most {MOST_BYTES >> 20:,} MB are allowed",
            hint=KeyTooLarge.advice,
        )


class Table:
    """One table of a bucket during one batch: :meth:`load` some places, change the rows, :meth:`save` them back."""

    def __init__(self, store: Store, meta: Meta, name: str, index: int) -> None:
        self._store = store
        self._known = meta.tables.setdefault(name, Directory())
        self._base = index << _TABLE
        self._schema = pa.ipc.read_schema(pa.py_buffer(self._known.schema)) if self._known.schema else None
        self._starts: Places = np.frombuffer(self._known.starts, np.uint64)
        self._numbers = np.frombuffer(self._known.numbers, np.uint32)
        self._rows = np.frombuffer(self._known.rows, np.uint32)
        self._sizes = np.frombuffer(self._known.sizes, np.uint32)
        self._touched: npt.NDArray[np.intp] = np.zeros(0, np.intp)
        self._rest: pl.DataFrame | None = None

    @property
    def rows(self) -> int:
        """Rows in all segments."""
        return int(self._rows.sum())

    @property
    def bytes(self) -> int:
        """Bytes of all segments."""
        return int(self._sizes.sum())

    @property
    def segments(self) -> int:
        """How many there are."""
        return len(self._starts)

    def load(self, places: Places, span: tuple[int, int] | None = None) -> pl.DataFrame | None:
        """The rows of these places, and those that expire within ``span``; None if there is no segment that could hold one.

        What a batch changes must be of places that it loaded. Other rows of the same segments stay here, for :meth:`save`.
        """
        wanted = np.zeros(len(self._starts), bool)
        if len(self._starts):
            wanted[self._at(places)] = True
            if span is not None:
                # To the last place of that second: times that are clipped, those before 1970, all lie in one second.
                low, high = self._at(np.array([first_place(span[0]), first_place(span[1]) | _LOW]))
                wanted[low : high + 1] = True
        self._touched = np.flatnonzero(wanted)
        self._rest = None
        if not len(self._touched):
            return None
        found = self._store.get([self._base + int(number) for number in self._numbers[self._touched]])
        batches = [pa.ipc.read_record_batch(_unpacked(data), self._schema) for data in found]
        frame = pl.from_arrow(pa.Table.from_batches(batches, self._schema).combine_chunks())
        assert isinstance(frame, pl.DataFrame)  # noqa: S101
        there = frame[PLACE].to_numpy()
        asked = np.isin(there, places)
        if span is not None:
            asked |= (there >= first_place(span[0])) & (there <= first_place(span[1]) | _LOW)
        self._rest = frame.filter(~asked)
        return frame.filter(asked)

    def save(self, rows: pl.DataFrame) -> None:
        """Replace what was loaded by these rows; new rows must be of places that were loaded."""
        if not rows.height and not len(self._touched):
            return
        changed = rows.height
        if self._rest is not None and self._rest.height:
            rows = pl.concat([self._rest, rows.select(self._rest.columns).cast(self._rest.schema)])
        rows = rows.sort(PLACE)
        check_places(rows)
        places = rows[PLACE].to_numpy()
        batch = _one_batch(rows)
        if self._schema is None:
            self._schema = batch.schema
            self._known.schema = batch.schema.serialize().to_pybytes()
        elif batch.schema != self._schema:
            batch = batch.cast(self._schema)
        each = max(batch.nbytes, 1) / max(rows.height, 1)
        limit = max(1, int(min(max(LIMIT, changed * each / _MANY), LIMIT * _LARGER) / each))
        if not len(self._starts):
            self._starts, self._numbers = np.zeros(1, np.uint64), np.array([self._next()], np.uint32)
            self._rows = self._sizes = np.zeros(1, np.uint32)
            self._touched = np.zeros(1, np.intp)
        made: Segments = {}
        touched = self._repack(batch, places, limit, made)
        kept = np.ones(len(self._starts), bool)
        kept[touched] = False
        parts = [(self._starts[kept], self._numbers[kept], self._rows[kept], self._sizes[kept])]
        emptied: list[int] = []
        for run in _runs(touched) if len(touched) else ():
            first, last = int(run[0]), int(run[-1])
            low = int(np.searchsorted(places, self._starts[first]))
            more = last + 1 < len(self._starts)
            high = int(np.searchsorted(places, self._starts[last + 1])) if more else len(places)
            cuts = _cuts(places[low:high], self._starts[first : last + 1], limit)
            old = [int(number) for number in self._numbers[first : last + 1]]
            parts.append(self._cut(batch, places, [low + cut for cut in cuts], high, self._starts[first], old, made))
            emptied += old
        self._store.put(made)
        self._store.remove([self._base + number for number in emptied])
        starts, numbers, counts, sizes = (np.concatenate(column) for column in zip(*parts, strict=True))
        self._known.newest = max(self._known.newest, int(places[-1]) if len(places) else 0)
        if len(touched):
            order = np.argsort(starts, kind="stable")
            starts, numbers, counts, sizes = starts[order], numbers[order], counts[order], sizes[order]
        self._keep(starts, numbers, counts, sizes)

    def _repack(self, batch: pa.RecordBatch, places: Places, limit: int, made: Segments) -> npt.NDArray[np.intp]:
        """Pack anew the touched segments that may stay as they are cut, which are most; give the others."""
        touched = self._touched
        ends = np.append(self._starts[1:], np.uint64(0))[touched]
        lows = np.searchsorted(places, self._starts[touched])
        highs = np.where(touched + 1 < len(self._starts), np.searchsorted(places, ends), len(places))
        counts = highs - lows
        lengths = np.array([len(run) for run in _runs(touched)])
        least = np.repeat(np.where(lengths == 1, 1, max(1, limit // 4)), lengths)
        # A run with one that must be cut is cut as a whole: its neighbours may take or give rows.
        fine = np.logical_and.reduceat((counts <= limit) & (counts >= least), np.cumsum(lengths) - lengths)
        fine = np.repeat(fine, lengths)
        self._rows, self._sizes = self._rows.copy(), self._sizes.copy()
        for at, low, count in zip(touched[fine].tolist(), lows[fine].tolist(), counts[fine].tolist(), strict=True):
            data = _packed(batch.slice(low, count))
            made[self._base + int(self._numbers[at])] = data
            self._rows[at], self._sizes[at] = count, len(data)
        others: npt.NDArray[np.intp] = touched[~fine]
        return others

    def _cut(
        self,
        batch: pa.RecordBatch,
        places: Places,
        cuts: list[int],
        high: int,
        start: np.uint64,
        old: list[int],
        made: Segments,
    ) -> tuple[Places, npt.NDArray[np.uint32], npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
        """Cut one run of segments anew, under the numbers it had, which are taken from ``old``, and new ones if there are more."""
        starts, numbers, counts, sizes = [], [], [], []
        for index, (low, end) in enumerate(zip(cuts, [*cuts[1:], high], strict=False)):  # no cuts if no row is left
            number = old.pop() if old else self._next()
            data = _packed(batch.slice(low, end - low))
            made[self._base + number] = data
            starts.append(start if index == 0 else places[low])
            numbers.append(number)
            counts.append(end - low)
            sizes.append(len(data))
        return (
            np.array(starts, np.uint64),
            np.array(numbers, np.uint32),
            np.array(counts, np.uint32),
            np.array(sizes, np.uint32),
        )

    def expire(self, micros: int) -> None:
        """Forget what expires before ``micros``, segment by segment: one that holds a later row stays whole."""
        limit = first_place(micros)
        # A segment ends where the next one starts, and the last one with the last place there is.
        gone = int(np.searchsorted(self._starts[1:], limit, side="right"))
        gone = len(self._starts) if self._known.newest < limit or micros >= FOREVER else gone
        if gone:
            self._store.remove([self._base + int(number) for number in self._numbers[:gone]])
            self._keep(self._starts[gone:], self._numbers[gone:], self._rows[gone:], self._sizes[gone:])

    def _keep(
        self,
        starts: Places,
        numbers: npt.NDArray[np.uint32],
        rows: npt.NDArray[np.uint32],
        sizes: npt.NDArray[np.uint32],
    ) -> None:
        if len(starts):
            starts = starts.copy()
            starts[0] = 0  # whatever lies before the first segment belongs to it
        self._starts, self._numbers, self._rows, self._sizes = starts, numbers, rows, sizes
        self._touched, self._rest = np.zeros(0, np.intp), None
        known = self._known
        known.starts, known.numbers = starts.tobytes(), numbers.tobytes()
        known.rows, known.sizes = rows.tobytes(), sizes.tobytes()

    def _at(self, places: Places) -> npt.NDArray[np.intp]:
        return np.searchsorted(self._starts, places, side="right") - 1

    def _next(self) -> int:
        self._known.next += 1
        return self._known.next


def _runs(touched: npt.NDArray[np.intp]) -> list[npt.NDArray[np.intp]]:
    """Segments side by side, together."""
    return np.split(touched, np.flatnonzero(np.diff(touched) > 1) + 1)


def _cuts(places: Places, starts: Places, limit: int) -> list[int]:
    """Where segments begin in a run of rows: where they did, unless that makes one too large, or small ones side by side."""
    if not len(places):
        return []
    cuts = np.unique(np.append(np.searchsorted(places, starts[1:]), 0))
    cuts = cuts[cuts < len(places)]
    sizes = np.diff(np.append(cuts, len(places)))
    if sizes.max() > limit or (len(sizes) > 1 and sizes.min() < limit // 4):
        count = -(-len(places) // max(1, limit * 3 // 4))  # room to grow, or every segment splits with the next batch
        wanted = places[np.arange(count) * len(places) // count]
        cuts = np.unique(np.searchsorted(places, wanted))  # to the first row of that place: a place is never cut apart
    return [int(cut) for cut in cuts]


def _packed(batch: pa.RecordBatch) -> bytes:
    data = batch.serialize()
    packed: bytes = _CODEC.compress(data, asbytes=True)
    return len(data).to_bytes(4, "little") + packed


def _unpacked(data: bytes) -> pa.Buffer:
    if data.startswith(_PLAIN):
        return pa.py_buffer(data)
    return _CODEC.decompress(memoryview(data)[4:], decompressed_size=int.from_bytes(data[:4], "little"))


def _one_batch(rows: pl.DataFrame) -> pa.RecordBatch:
    table = to_arrow(rows).combine_chunks()
    batches = table.to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)
