"""The verdicts on the records of a partition, and where each record goes by its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.kernel.admission.record import ERASED, FAILED
from millstream.kernel.arrow import to_bytes
from millstream.kernel.exchange.chunk import Chunk, Kind, tell
from millstream.kernel.exchange.reports import Count
from millstream.kernel.exchange.send import send
from millstream.kernel.state.store import FOREVER, NEVER
from millstream.kernel.watermarks import Micros, steps_of
from millstream.log.heartbeat import Beat
from millstream.plan.build import DRIVER, ORIGIN, Feed, micros

ADMITTED, LATE, DUPLICATE, FUTURE, MALFORMED, HEARTBEAT, GONE = range(7)
REASONS = ("admitted", "late", "duplicate", "future", "malformed", "heartbeat", "erased")

_YEAR = 31_556_952 * 1_000_000  # microseconds, on average
_REACH = 8000 * _YEAR  # from 1970 on


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What became of each row, the watermark that each one met, and the watermark after them all.

    ``course`` is the watermark before each row and each heartbeat of the ledger between them, ``appended`` when these came.
    """

    codes: npt.NDArray[np.int8]
    met: Micros
    watermark: int
    course: Micros
    appended: Micros


def judge(
    feed: Feed,
    rows: pl.DataFrame,
    watermark: int,
    repeats: npt.NDArray[np.bool_] | None = None,
    told: Sequence[Beat] = (),
) -> Verdicts:
    """Sort the rows of one partition, which are in the order of their offsets, into verdicts.

    ``repeats`` says of which rows it is known that they were here before. ``told`` are heartbeats of the partition in the order of
    their offsets; those behind the last row are left out.
    """
    size = rows.height
    codes = np.zeros(size, np.int8)
    met = course = np.full(size, watermark, np.int64)
    appended = rows["_a"].to_numpy()
    if repeats is not None:
        codes[repeats] = DUPLICATE
    time = feed.source.time
    bad = rows["_bad"].is_not_null().to_numpy()
    gone = (rows["_bad"] == ERASED).fill_null(False).to_numpy() if bad.any() else np.zeros(size, bool)
    bad = bad & ~gone
    beat = rows["_beat"].is_not_null().to_numpy()
    if time is not None:
        times = rows["_t"].fill_null(NEVER).to_numpy()
        newest = appended + micros(time.ahead)
        codes[(codes == ADMITTED) & (times > newest)] = FUTURE
        beats = rows["_beat"].fill_null(NEVER).to_numpy()
        far = (beats > newest) & (beats < FOREVER)
        codes[far], beat = FUTURE, beat & ~far
        raised = np.where(codes == ADMITTED, times - micros(time.delay), NEVER)
        raised = np.where(bad, NEVER, raised)
        raised = np.where(beat, beats, raised)
        appended, raised, places = _with_beats(rows, raised, told)
        highest = np.maximum.accumulate(np.concatenate([[watermark], raised]))
        course, watermark = highest[:-1], int(highest[-1])
        met = course[places]
        codes[(codes == ADMITTED) & (times < met - micros(time.lateness))] = LATE
    codes[gone & (codes == ADMITTED)] = GONE
    codes[bad] = MALFORMED
    codes[beat] = HEARTBEAT
    return Verdicts(codes, met, watermark, course, appended)


def _with_beats(rows: pl.DataFrame, raised: Micros, beats: Sequence[Beat]) -> tuple[Micros, Micros, Micros]:
    """When rows came, and to what they raise the watermark, with heartbeats in between; and the places of the rows among these.

    A heartbeat comes before the record of its offset.
    """
    appended, offsets = rows["_a"].to_numpy(), rows["_o"].to_numpy()
    between = [beat for beat in beats if len(offsets) and beat.offset <= offsets[-1]]
    at = np.searchsorted(offsets, np.array([beat.offset for beat in between], np.int64))
    places = np.arange(len(offsets)) + np.searchsorted(at, np.arange(len(offsets)), side="right")
    return (
        np.insert(appended, at, [_came(beat) for beat in between]),
        np.insert(raised, at, [beat.time for beat in between]),
        places,
    )


def outcome(feed: Feed, partition: int, rows: pl.DataFrame, verdicts: Verdicts) -> Iterator[Chunk]:
    """Send judged rows where they belong, rejects and counts to the driver."""
    codes, source = verdicts.codes, feed.source
    counts = np.bincount(codes, minlength=len(REASONS))
    rows = rows.with_columns(
        pl.lit(source.topic).alias(ORIGIN[0]),
        pl.lit(partition, pl.Int32).alias(ORIGIN[1]),
        pl.col("_o").alias(ORIGIN[2]),
    )
    good = rows if counts[ADMITTED] == len(codes) else rows.filter(codes == ADMITTED)
    late = None
    if counts[LATE] and any(port.late for port in feed.ports):  # nothing of an erased one is to be seen there
        late = rows.filter(codes == LATE).filter(pl.col("_bad").is_null())
    bare = good.drop(ORIGIN if source.kind == "stream" else ORIGIN[:2])  # a changelog needs the order
    for port in feed.ports:
        if port.late:
            if late is not None:
                yield from send(late, port, partition)
        else:
            yield from send(good if port.stage == DRIVER else bare, port, partition)
    if feed.clocks and (steps := steps_of(verdicts.appended, verdicts.course, verdicts.watermark)).marks.size:
        for port in feed.clocks:
            yield from tell(f"{feed.number}:{partition}", steps, port)
    refused = (codes != ADMITTED) & (codes != HEARTBEAT) & (codes != GONE)
    if refused.any():
        yield Chunk.own(DRIVER, feed.number, partition, Kind.REJECT, to_bytes(_rejects(rows, verdicts, refused)))
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
        erased=int(counts[GONE]),
        wild=wild,
        heartbeats=int(counts[HEARTBEAT]),
        watermark=verdicts.watermark if verdicts.watermark > NEVER else None,
        appended=int(rows.filter(codes != HEARTBEAT)["_a"].max()) if counts[HEARTBEAT] < len(codes) else None,  # type: ignore[arg-type]
    )
    yield Chunk.own(DRIVER, feed.number, partition, Kind.COUNT, msgspec.msgpack.encode(count))


def after(feed: Feed, partition: int, watermark: int, beats: Sequence[Beat]) -> tuple[int, list[Chunk]]:
    """The watermark after the heartbeats behind a partition's last record, and what is told of it, marks aside."""
    rising = [beat for beat in beats if beat.time > watermark]
    if not rising:
        return watermark, []
    reached = max(beat.time for beat in rising)
    count = Count(feed.source.topic, partition, 0, 0, 0, 0, 0, 0, 0, 0, 0, reached)
    chunks = [Chunk.own(DRIVER, feed.number, partition, Kind.COUNT, msgspec.msgpack.encode(count))]
    times, told = (
        np.array(each, np.int64) for each in zip(*((_came(beat), beat.time) for beat in rising), strict=True)
    )
    steps = steps_of(times, np.maximum.accumulate(np.concatenate([[watermark], told]))[:-1], reached)
    return reached, chunks + [each for port in feed.clocks for each in tell(f"{feed.number}:{partition}", steps, port)]


def _came(beat: Beat) -> int:
    """When a heartbeat came: one that no batch had before comes after everything that its batch reads."""
    return FOREVER if beat.appended is None else beat.appended


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
