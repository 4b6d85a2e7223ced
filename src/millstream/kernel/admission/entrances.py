"""The entrances to admission: at once, the gate, waiting, with state; :mod:`millstream.kernel.admission` says which is taken when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from millstream.errors import PipelineError
from millstream.kernel.admission.conditions import Conditions
from millstream.kernel.admission.record import COLUMNS, column_of, is_used
from millstream.kernel.admission.repeats import repeats_of
from millstream.kernel.admission.verdicts import Verdicts, after, judge, outcome
from millstream.kernel.arrow import from_bytes, to_bytes
from millstream.kernel.exchange.chunk import Chunk, Kind, beats_chunk, mark, read_beats, read_mark
from millstream.kernel.passing import Passing
from millstream.kernel.state.store import NEVER, Meta, Store
from millstream.log.heartbeat import Beat
from millstream.plan.build import ADMIT, Chain, Feed


@dataclass
class Gate:
    """The admission of what a batch holds of one partition, where its records are read: piece by piece, in order of offsets.

    It shuts at the first record that only Spark can decode. What comes after waits for that, to be judged together.
    """

    before: int
    watermark: int
    shut: bool = False
    beats: Sequence[Beat] = ()
    """The heartbeats of the partition in the batch, in order of offsets."""


@dataclass
class Admission:
    """The admission of a chain's feeds wherever it needs no stage of its own: records in, chunks out."""

    chain: Chain
    passing: Passing = field(init=False, repr=False, compare=False)
    conditions: Conditions = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.passing = Passing(self.chain)
        self.conditions = Conditions.of(self.chain)

    def pack(self, batch: pa.RecordBatch) -> Iterator[Chunk]:
        """Pack decoded records, in the order of their offsets, for the first stage that wants them."""
        rows = pl.from_arrow(batch)
        assert isinstance(rows, pl.DataFrame)  # noqa: S101
        for (number, partition), part in rows.partition_by(
            "_feed", "_partition", as_dict=True, maintain_order=True
        ).items():
            feed = self.chain.feed(int(number))
            used = [name for name in COLUMNS if is_used(feed, name)]
            taken = part.select(
                *used, *(pl.col(column_of(feed, each.name)).alias(each.name) for each in feed.expressions)
            )
            yield from self.pack_feed(feed, int(partition), taken)

    def pack_feed(self, feed: Feed, partition: int, rows: pl.DataFrame) -> Iterator[Chunk]:
        """Pack records of one partition, decoded: for admission, or past it where it needs no state."""
        rows = self.conditions.judged(feed, rows)
        if feed.judged:
            yield Chunk.own(ADMIT, feed.number, partition, Kind.CHANGES, to_bytes(rows))
        else:
            yield from self.passing.on(admit_at_once(feed, partition, rows), partition)

    def pass_gate(
        self, feed: Feed, partition: int, rows: pl.DataFrame | None, gate: Gate, *, whole: bool
    ) -> Iterator[Chunk]:
        """Admit a piece of a partition's records where they are read; ``whole`` says that none of it is left to Spark."""
        if not whole and not gate.shut:
            gate.shut = True
            yield Chunk.own(ADMIT, feed.number, partition, Kind.MARK, msgspec.msgpack.encode(("", gate.watermark)))
        if rows is None or not rows.height:
            return
        if gate.shut:
            yield Chunk.own(ADMIT, feed.number, partition, Kind.CHANGES, to_bytes(rows))
            return
        verdicts = judge(feed, rows, gate.watermark, told=gate.beats)
        gate.watermark = verdicts.watermark
        yield from self.passing.on(outcome(feed, partition, rows, verdicts), partition)

    def leave_gate(self, feed: Feed, partition: int, gate: Gate) -> Iterator[Chunk]:
        """Say how far a partition has come, at the end of its records; behind a gate that has shut, more is said later."""
        if not gate.shut:
            gate.watermark, told = after(feed, partition, gate.watermark, gate.beats)
            yield from told
        elif gate.beats:
            yield beats_chunk(feed.number, partition, gate.beats)
        if gate.watermark > gate.before:
            marks = [
                each
                for port in feed.ports
                if port.marks
                for each in mark(f"{feed.number}:{partition}", gate.watermark, port)
            ]
            yield from self.passing.on(marks, partition)

    def tell(self, beats: Iterable[Beat]) -> list[Chunk]:
        """Heartbeats for partitions that are admitted in a stage."""
        feeds = {feed.source.topic: feed.number for feed in self.chain.feeds if feed.source.time is not None}
        return [beats_chunk(feeds[beat.topic], beat.partition, [beat]) for beat in beats if beat.topic in feeds]

    def is_waiting(self, stage: int, target: int) -> bool:
        """Whether a chunk waits for others before a gate that has shut."""
        return stage == ADMIT and not self.chain.staged(self.chain.feed(target))

    def admit_waiting(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """Judge what has waited, once all records of the partitions are decoded."""
        groups: dict[tuple[int, int], list[Chunk]] = {}
        for chunk in chunks:
            groups.setdefault((chunk.target, chunk.bucket), []).append(chunk)
        for (target, partition), group in groups.items():
            feed = self.chain.feed(target)
            (before,) = (read_mark(chunk.data)[1] for chunk in group if chunk.kind == Kind.MARK)
            rows, beats = _told(group)
            gate = Gate(before, before, beats=beats)
            yield from self.pass_gate(feed, partition, rows, gate, whole=True)
            yield from self.leave_gate(feed, partition, gate)


def admit_at_once(feed: Feed, partition: int, rows: pl.DataFrame) -> Iterator[Chunk]:
    """Judge rows of a feed whose admission needs no state: only what cannot be decoded is refused."""
    yield from outcome(feed, partition, rows, judge(feed, rows, NEVER))


def _told(chunks: Iterable[Chunk]) -> tuple[pl.DataFrame | None, list[Beat]]:
    """The rows and the heartbeats of one partition, in order."""
    frames = [from_bytes(chunk.data) for chunk in chunks if chunk.kind == Kind.CHANGES]
    beats = [beat for chunk in chunks if chunk.kind == Kind.BEATS for beat in read_beats(chunk.data)]
    return pl.concat(frames).sort("_o") if frames else None, sorted(beats, key=lambda beat: (beat.offset, beat.time))


def admit(feed: Feed, partition: int, chunks: Sequence[Chunk], store: Store) -> Iterator[Chunk]:
    """Judge what a batch holds of one partition and send it on; the partition's watermark is kept in ``store``."""
    rows, beats = _told(chunks)
    meta = Meta.read(store)
    before = watermark = meta.facts.get("watermark", NEVER)
    if rows is not None:
        verdicts = _judged(feed, partition, rows, meta, store, before, beats)
        watermark = verdicts.watermark
        yield from outcome(feed, partition, rows, verdicts)
    meta.facts["watermark"], told = after(feed, partition, watermark, beats)
    meta.write(store)
    yield from told
    if meta.facts["watermark"] > before:
        for port in feed.ports:
            if port.marks:
                yield from mark(f"{feed.number}:{partition}", meta.facts["watermark"], port)


def _judged(
    feed: Feed, partition: int, rows: pl.DataFrame, meta: Meta, store: Store, before: int, beats: Sequence[Beat]
) -> Verdicts:
    """The verdicts on what a batch holds of one partition, whose watermark is ``before``; ``meta`` learns how far it has come."""
    expected = np.concatenate([[meta.facts.get("next", 0)], rows["_o"].to_numpy() + 1])
    if (again := rows["_o"].to_numpy() < expected[:-1]).any():
        place = int(again.argmax())
        raise PipelineError(
            f"{feed.source.topic}/{partition}: offset {rows['_o'][place]} came again, {expected[place]} was expected",
            hint="report this: a batch must hold each record once",
        )
    repeats = repeats_of(feed, rows, meta, store) if feed.source.sequence is not None else None
    meta.facts["next"] = int(expected[-1])
    return judge(feed, rows, before, repeats, beats)
