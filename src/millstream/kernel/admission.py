"""Admission: every record of a partition is admitted, late, duplicate, future or malformed, in the order of offsets.

The verdict on a record depends on the records before it in its partition and on nothing else: not on where batches end,
not on any clock. The watermark at a record is the highest time at earlier offsets less the stream's delay, or what a
heartbeat has raised it to. A record below it, by more than the allowed lateness, is late. One that claims to be from the
future moves nothing, be it a heartbeat.

Rows come with these columns besides the feed's expressions: ``_o`` offset, ``_a`` append time, ``_t`` event time (both in
microseconds), ``_bad`` why it cannot be used, ``_wild`` whether its clock was far off, ``_beat`` the time of a heartbeat,
``_who`` and ``_nth`` producer and sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.errors import PipelineError
from millstream.kernel.arrow import to_bytes
from millstream.kernel.exchange.chunk import Chunk, Kind, mark, tell
from millstream.kernel.exchange.reports import Count
from millstream.kernel.exchange.send import send
from millstream.kernel.state.segments import PLACE, Table, place
from millstream.kernel.state.store import FOREVER, NEVER, Meta, Store
from millstream.kernel.watermarks import steps_of
from millstream.log.heartbeat import Heartbeat
from millstream.plan.build import ORIGIN, SINK, Feed, micros

ADMITTED, LATE, DUPLICATE, FUTURE, MALFORMED, HEARTBEAT = range(6)
REASONS = ("admitted", "late", "duplicate", "future", "malformed", "heartbeat")

FAILED = "failed: "
"""How the reason begins why a record cannot be used on which an expression failed. It is counted as malformed."""
_YEAR = 31_556_952 * 1_000_000  # microseconds, on average
_REACH = 8000 * _YEAR  # from 1970 on

IGNORED = NEVER
"""The time of a heartbeat that is meant for another pipeline."""


def beat_of(said: Heartbeat, pipeline: str) -> int:
    """The time of a heartbeat, as admission takes it."""
    if said.pipeline not in (None, pipeline):
        return IGNORED
    return FOREVER if said.time is None else said.time


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What became of each row, the watermark that each one met, and the watermark after them all."""

    codes: npt.NDArray[np.int8]
    met: npt.NDArray[np.int64]
    watermark: int


@dataclass
class Gate:
    """The admission of what a batch holds of one partition, where its records are read: piece by piece, in order of offsets.

    It shuts at the first record that only Spark can decode. What comes after waits for that, to be judged together.
    """

    before: int
    watermark: int
    shut: bool = False


def judge(feed: Feed, rows: pl.DataFrame, watermark: int, seen: npt.NDArray[np.int64] | None = None) -> Verdicts:
    """Sort the rows of one partition, which are in the order of their offsets, into verdicts.

    ``seen`` is, for each row, the highest sequence that its producer has used before.
    """
    size = rows.height
    codes = np.zeros(size, np.int8)
    met = np.full(size, watermark, np.int64)
    if seen is not None:
        numbers = rows["_nth"].fill_null(NEVER).to_numpy()
        codes[(numbers <= seen) & rows["_nth"].is_not_null().to_numpy()] = DUPLICATE
    time = feed.source.time
    bad = rows["_bad"].is_not_null().to_numpy()
    beat = rows["_beat"].is_not_null().to_numpy()
    if time is not None:
        times = rows["_t"].fill_null(NEVER).to_numpy()
        newest = rows["_a"].to_numpy() + micros(time.ahead)
        codes[(codes == ADMITTED) & (times > newest)] = FUTURE
        beats = rows["_beat"].fill_null(NEVER).to_numpy()
        far = (beats > newest) & (beats < FOREVER)
        codes[far], beat = FUTURE, beat & ~far
        raised = np.where(codes == ADMITTED, times - micros(time.delay), NEVER)
        raised = np.where(bad, NEVER, raised)
        raised = np.where(beat, beats, raised)
        highest = np.maximum.accumulate(np.concatenate([[watermark], raised]))
        met, watermark = highest[:-1], int(highest[-1])
        codes[(codes == ADMITTED) & (times < met - micros(time.lateness))] = LATE
    codes[bad] = MALFORMED
    codes[beat] = HEARTBEAT
    return Verdicts(codes, met, watermark)


def admit(feed: Feed, partition: int, frames: Sequence[pl.DataFrame], store: Store) -> Iterator[Chunk]:
    """Judge what a batch holds of one partition and send it on; the partition's watermark is kept in ``store``."""
    rows = pl.concat(frames).sort("_o")
    meta = Meta.read(store)
    expected = np.concatenate([[meta.facts.get("next", 0)], rows["_o"].to_numpy() + 1])
    if (again := rows["_o"].to_numpy() < expected[:-1]).any():
        place = int(again.argmax())
        raise PipelineError(
            f"{feed.source.topic}/{partition}: offset {rows['_o'][place]} came again, {expected[place]} was expected",
            hint="report this: a batch must hold each record once",
        )
    seen = _sequences(rows, meta, store) if feed.source.sequence is not None else None
    before = meta.facts.get("watermark", NEVER)
    verdicts = judge(feed, rows, before, seen)
    meta.facts["next"], meta.facts["watermark"] = int(expected[-1]), verdicts.watermark
    meta.write(store)
    yield from outcome(feed, partition, rows, verdicts)
    if verdicts.watermark > before:
        for port in feed.ports:
            if port.marks:
                yield from mark(f"{feed.number}:{partition}", verdicts.watermark, port)


def admit_at_once(feed: Feed, partition: int, rows: pl.DataFrame) -> Iterator[Chunk]:
    """Judge rows of a feed whose admission needs no state: only what cannot be decoded is refused."""
    yield from outcome(feed, partition, rows, judge(feed, rows, NEVER))


def outcome(feed: Feed, partition: int, rows: pl.DataFrame, verdicts: Verdicts) -> Iterator[Chunk]:
    """Send judged rows where they belong, rejects and counts to the sink."""
    codes, source = verdicts.codes, feed.source
    counts = np.bincount(codes, minlength=len(REASONS))
    rows = rows.with_columns(
        pl.lit(source.topic).alias(ORIGIN[0]),
        pl.lit(partition, pl.Int32).alias(ORIGIN[1]),
        pl.col("_o").alias(ORIGIN[2]),
    )
    good = rows if counts[ADMITTED] == len(codes) else rows.filter(codes == ADMITTED)
    late = rows.filter(codes == LATE) if counts[LATE] and any(port.late for port in feed.ports) else None
    bare = good.drop(ORIGIN if source.kind == "stream" else ORIGIN[:2])  # a changelog needs the order
    for port in feed.ports:
        if port.late:
            if late is not None:
                yield from send(late, port, partition)
        else:
            yield from send(good if port.stage == SINK else bare, port, partition)
    if feed.clocks and (steps := steps_of(rows["_a"].to_numpy(), verdicts.met, verdicts.watermark)).marks.size:
        for port in feed.clocks:
            yield from tell(f"{feed.number}:{partition}", steps, port)
    refused = (codes != ADMITTED) & (codes != HEARTBEAT)
    if refused.any():
        yield Chunk.own(SINK, feed.number, partition, Kind.REJECT, to_bytes(_rejects(rows, verdicts, refused)))
    wild = (
        int((rows["_wild"].fill_null(False).to_numpy() & (codes != HEARTBEAT)).sum()) if "_wild" in rows.columns else 0
    )
    count = Count(
        source.topic,
        partition,
        next=int(rows["_o"][-1]) + 1,
        records=len(codes) - int(counts[HEARTBEAT]),
        admitted=int(counts[ADMITTED]),
        late=int(counts[LATE]),
        duplicate=int(counts[DUPLICATE]),
        future=int(counts[FUTURE]),
        malformed=int(counts[MALFORMED]),
        wild=wild,
        heartbeats=int(counts[HEARTBEAT]),
        watermark=verdicts.watermark if verdicts.watermark > NEVER else None,
        appended=int(rows.filter(codes != HEARTBEAT)["_a"].max()) if counts[HEARTBEAT] < len(codes) else None,  # type: ignore[arg-type]
    )
    yield Chunk.own(SINK, feed.number, partition, Kind.COUNT, msgspec.msgpack.encode(count))


def _rejects(rows: pl.DataFrame, verdicts: Verdicts, refused: npt.NDArray[np.bool_]) -> pl.DataFrame:
    codes = verdicts.codes[refused]
    stamp = pl.Datetime("us", "UTC")
    chosen = rows.filter(refused)
    return chosen.select(
        pl.col(ORIGIN[0]).alias("topic"),
        pl.col(ORIGIN[1]).alias("partition"),
        pl.col(ORIGIN[2]).alias("offset"),
        _writable(pl.col("_t") if "_t" in rows.columns else pl.lit(None, pl.Int64)).cast(stamp).alias("time"),
        pl.col("_a").cast(stamp).alias("append_time"),
        pl.when(pl.col("_bad").str.starts_with(FAILED).fill_null(False))
        .then(pl.lit("failed"))
        .otherwise(pl.Series([REASONS[code] for code in codes], dtype=pl.String))
        .alias("reason"),
        pl.when(pl.Series(codes == LATE))
        .then(pl.lit("the watermark was ") + pl.Series(verdicts.met[refused]).cast(stamp).cast(pl.String))
        .when(pl.Series(codes == FUTURE))
        .then(_future(rows, stamp))
        .otherwise(pl.col("_bad").str.strip_prefix(FAILED))
        .alias("detail"),
    )


def _writable(micros: pl.Expr) -> pl.Expr:
    """A time that has four digits of the year, as all that is to read it needs; else null."""
    return pl.when((micros > -1900 * _YEAR) & (micros < _REACH)).then(micros)


def _future(rows: pl.DataFrame, stamp: pl.Datetime) -> pl.Expr:
    """What is said of a record from the future: its time, and what a time thousands of years ahead may be."""
    if "_t" not in rows.columns:
        return pl.lit(None, pl.String)
    found = pl.coalesce("_t", "_beat")
    year = (1970 + found // _YEAR).cast(pl.String)
    far = pl.lit("; milliseconds that were read as seconds? timestamp_millis(…) AS at")
    return (
        pl.lit("its time is ")
        + pl.coalesce(_writable(found).cast(stamp).cast(pl.String), pl.lit("in the year ") + year)
        + pl.when(found - pl.col("_a") > 1000 * _YEAR).then(far).otherwise(pl.lit(""))
    )


def _sequences(rows: pl.DataFrame, meta: Meta, store: Store) -> npt.NDArray[np.int64]:
    """For each row the highest number its producer has used before it, and remember the highest of all."""
    table = Table(store, meta, "sequences", 0)
    used = rows.select("_who", pl.col("_nth").fill_null(NEVER)).with_row_index("_i")
    places = place(used, ["_who"])
    known = table.load(places)
    if known is None:
        known = pl.DataFrame(schema={"_who": rows.schema["_who"], "_nth": pl.Int64, PLACE: pl.UInt64})
    joined = used.join(known.select("_who", pl.col("_nth").alias("_kept")), on="_who", how="left", nulls_equal=True)
    joined = joined.sort("_i").with_columns(pl.col("_kept").fill_null(NEVER))
    running = pl.col("_nth").cum_max().shift(1).over("_who")
    before = joined.select(pl.max_horizontal("_kept", running.fill_null(NEVER))).to_series().to_numpy()
    newest = (
        pl.concat([known, used.with_columns(pl.Series(PLACE, places)).select("_who", "_nth", PLACE)])
        .group_by("_who")
        .agg(pl.col("_nth").max(), pl.col(PLACE).first())
    )
    table.save(newest)
    return before
