"""What reaches the end of the chain, sorted: each view's changes, the rejects, the counts, and what kernels keep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import polars as pl

from millstream.kernel.arrow import from_bytes, one_frame
from millstream.kernel.exchange.chunk import Chunk, Kind
from millstream.kernel.exchange.reports import Count, Held
from millstream.kernel.zset import WEIGHT
from millstream.plan.build import Chain


@dataclass
class Arrived:
    """One batch in the driver; ``changes`` are raw columns and a weight, for each view that changed."""

    changes: dict[str, pl.DataFrame] = field(default_factory=dict)
    rejects: list[pl.DataFrame] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)


def unpack(chain: Chain, chunks: Iterable[Chunk]) -> Arrived:
    """Sort the chunks of one batch; several counts of one partition become one."""
    arrived = Arrived()
    views: dict[int, list[bytes | memoryview]] = {}
    counts: dict[tuple[str, int], Count] = {}
    for chunk in chunks:
        match chunk.kind:
            case Kind.CHANGES:
                views.setdefault(chunk.target, []).append(chunk.data)
            case Kind.REJECT:
                arrived.rejects.append(from_bytes(chunk.data))
            case Kind.COUNT:
                count = msgspec.msgpack.decode(chunk.data, type=Count)
                place = count.topic, count.partition
                counts[place] = _add(counts[place], count) if place in counts else count
            case Kind.STATE:
                arrived.held.append(msgspec.msgpack.decode(chunk.data, type=Held))
    arrived.counts = list(counts.values())
    for output in chain.outputs:
        if output.number in views:
            rows = one_frame(views[output.number])
            if WEIGHT not in rows.columns:
                rows = rows.with_columns(pl.lit(1, pl.Int64).alias(WEIGHT))
            arrived.changes[output.name] = rows
    return arrived


def _add(one: Count, other: Count) -> Count:
    summed = {
        name: getattr(one, name) + getattr(other, name)
        for name in ("records", "admitted", "late", "duplicate", "future", "malformed", "erased", "wild", "heartbeats")
    }
    latest = {
        name: max((value for each in (one, other) if (value := getattr(each, name)) is not None), default=None)
        for name in ("appended", "watermark", "next")
    }
    return msgspec.structs.replace(one, **latest, **summed)
