"""A chain without Spark: records in, batch by batch, and the views as dictionaries of rows.

Expressions are column names, times in microseconds, the start of a tumbling window, and what kernels compute themselves.
"""

from __future__ import annotations

import copy
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa

from millstream.kernel.admission.record import column_of
from millstream.kernel.aggregates import preaggregate
from millstream.kernel.arrow import from_bytes
from millstream.kernel.exchange.chunk import Chunk, Kind
from millstream.kernel.exchange.reports import Count, Held
from millstream.kernel.host import Host
from millstream.kernel.state import segments
from millstream.kernel.state.store import FOREVER, Memory
from millstream.kernel.zset import WEIGHT
from millstream.plan.build import DRIVER, Chain, Feed
from millstream.plan.spec import JoinSpec
from millstream.scalar.compile import compile_scalar

_WINDOW = re.compile(r"timestamp_micros\(unix_micros\((\w+)\) - pmod\(unix_micros\(\w+\), (\d+)\)\)")
STAMP = pl.Datetime("us", "UTC")


@dataclass
class Rec:
    """One record: where it is, when it was appended (µs), its columns; ``bad``, ``beat`` and ``deleted`` as admission takes them."""

    feed: int
    partition: int
    offset: int
    append: int = 0
    values: dict[str, Any] = field(default_factory=dict)
    bad: str | None = None
    beat: int | None = None
    deleted: bool = False
    stamp: int | None = None
    """Its own timestamp (µs); the append unless said."""


class Local:
    """A running chain. ``batch`` feeds it; ``rows`` holds each view as rows with their multiplicity.

    ``sent`` is what each batch brought to the sink, net, by view. Segments are small, so that a few rows make many of them. Of some
    batches rows are sent, of others what they come to.
    """

    limit = 256

    def __init__(self, chain: Chain, partitions: int, types: dict[int, dict[str, Any]], seed: int = 0) -> None:
        self.chain, self.types = chain, types
        self.host = Host(chain, {feed.number: partitions for feed in chain.feeds}, self._schemas())
        self.stores: dict[tuple[int, int, int], Memory] = defaultdict(Memory)
        self.rows: dict[str, Counter[tuple[Any, ...]]] = {output.name: Counter() for output in chain.outputs}
        self.keyed: dict[str, dict[tuple[Any, ...], tuple[Any, ...]]] = {output.name: {} for output in chain.outputs}
        self.sent: list[dict[str, Counter[tuple[Any, ...]]]] = []
        self.following: dict[tuple[int, int], int] = {}
        self.counts: list[Count] = []
        self.rejects: list[tuple[Any, ...]] = []
        self.held: dict[tuple[int, int], Held] = {}
        self.shuffled = random.Random(seed)

    def batch(self, records: Sequence[Rec]) -> None:
        """Run one micro-batch."""
        usual = segments.LIMIT, preaggregate.SHARE
        segments.LIMIT, preaggregate.SHARE = self.limit, self.shuffled.choice((0, usual[1], math.inf))
        try:
            self._batch(records)
        finally:
            segments.LIMIT, preaggregate.SHARE = usual

    def _batch(self, records: Sequence[Rec]) -> None:
        chunks: list[Chunk] = []
        for place in sorted({(record.feed, record.partition) for record in records}):
            chosen = [record for record in records if (record.feed, record.partition) == place]
            self.following[place] = chosen[-1].offset + 1
            half = len(chosen) // 2 or 1
            for part in (chosen[:half], chosen[half:]):
                if part:
                    chunks += self.host.admission.pack(self._decode(part))
        for stage in self.chain.stages:
            self.shuffled.shuffle(chunks)  # a shuffle keeps no order
            chunks = self.host.run_stage(stage, chunks, self.stores)
        self._sink(chunks)

    def close(self) -> None:
        """Say in every partition of every feed that tells time that nothing more will come."""
        self.batch(
            [
                Rec(feed.number, partition, self.following.get((feed.number, partition), 0), beat=FOREVER)
                for feed in self.chain.feeds
                if feed.source.time is not None
                for partition in range(self.host.partitions[feed.number])
            ]
        )

    def copy(self) -> Local:
        """The same chain with the same state, from here on on its own."""
        return copy.deepcopy(self)

    @property
    def state_rows(self) -> int:
        """Rows that all kernels keep, as they last said."""
        return sum(held.rows for held in self.held.values())

    @property
    def kept_segments(self) -> int:
        """Segments in all stores of kernels."""
        return sum(len(store.segments) for (stage, _, _), store in self.stores.items() if stage)

    def _schemas(self) -> dict[int, pl.Schema]:
        """The types of the feeds' expressions, as Spark would know them."""
        schemas = {}
        for feed in self.chain.feeds:
            base = pl.DataFrame(schema={**self.types[feed.number], "_timestamp": STAMP})
            made = {each.name: self._evaluate(base, each.expression, feed).dtype for each in feed.expressions}
            schemas[feed.number] = pl.Schema(made)
        return schemas

    def _decode(self, records: Sequence[Rec]) -> pa.RecordBatch:
        columns: dict[str, pl.Series] = {
            "_feed": pl.Series([record.feed for record in records], dtype=pl.Int32),
            "_partition": pl.Series([record.partition for record in records], dtype=pl.Int32),
            "_o": pl.Series([record.offset for record in records], dtype=pl.Int64),
            "_a": pl.Series([record.append for record in records], dtype=pl.Int64),
            "_bad": pl.Series([record.bad for record in records], dtype=pl.String),
            "_beat": pl.Series([record.beat for record in records], dtype=pl.Int64),
            "_deleted": pl.Series([record.deleted for record in records], dtype=pl.Boolean),
        }
        for feed in self.chain.feeds:
            base = pl.DataFrame(
                {
                    name: pl.Series(
                        [record.values.get(name) if record.feed == feed.number else None for record in records],
                        dtype=dtype,
                    )
                    for name, dtype in self.types[feed.number].items()
                }
            )
            stamps = pl.Series([record.append if record.stamp is None else record.stamp for record in records])
            base = base.with_columns(stamps.cast(pl.Int64).cast(STAMP).alias("_timestamp"))
            if feed.source.time is not None and feed.number == records[0].feed:
                columns["_t"] = base[feed.source.time.column].dt.epoch("us")
            if feed.source.sequence is not None and feed.number == records[0].feed:
                columns["_who"] = base[feed.source.sequence.producer].cast(pl.String)
                columns["_nth"] = base[feed.source.sequence.number]
            for each in feed.expressions:
                columns[column_of(feed, each.name)] = self._evaluate(base, each.expression, feed)
        return pl.DataFrame(columns).to_arrow().combine_chunks().to_batches()[0]

    def _evaluate(self, base: pl.DataFrame, sql: str, feed: Feed) -> pl.Series:
        if window := _WINDOW.fullmatch(sql):
            micros, size = base[window[1]].dt.epoch("us"), int(window[2])
            return (micros - micros % size).cast(STAMP)
        if condition := re.fullmatch(r"coalesce\(\((\w+) > (-?\d+)\), false\)", sql):
            return (base[condition[1]] > int(condition[2])).fill_null(False)
        if moment := re.fullmatch(r"unix_micros\((\w+)\)", sql):
            return base[moment[1]].dt.epoch("us")
        if sql == "true":
            return pl.Series([True] * base.height, dtype=pl.Boolean)
        if sql not in base.columns and (scalar := compile_scalar(sql, base.schema)) is not None:
            return base.with_columns(scalar.value.alias("_value"))["_value"]
        return base[sql]

    def _sink(self, chunks: Sequence[Chunk]) -> None:
        names = {output.number: output for output in self.chain.outputs}
        net: dict[str, Counter[tuple[Any, ...]]] = defaultdict(Counter)
        for chunk in chunks:
            assert chunk.stage == DRIVER
            if chunk.kind == Kind.COUNT:
                self.counts.append(msgspec.msgpack.decode(chunk.data, type=Count))
            elif chunk.kind == Kind.REJECT:
                self.rejects += from_bytes(chunk.data).rows()
            elif chunk.kind == Kind.STATE:
                held = msgspec.msgpack.decode(chunk.data, type=Held)
                self.held[held.kernel, held.bucket] = held
            else:
                output = names[chunk.target]
                frame = from_bytes(chunk.data)
                weights = frame[WEIGHT].to_list() if WEIGHT in frame.columns else [1] * frame.height
                extra = ("_topic", "_partition", "_offset") if output.append else ()
                chosen = frame.select(*output.columns, *extra)
                for row, weight in zip(chosen.rows(), weights, strict=True):
                    net[output.name][hashable(row)] += weight
        self.sent.append({name: Counter({row: n for row, n in rows.items() if n}) for name, rows in net.items()})
        for output in self.chain.outputs:
            indexes = [output.columns.index(name) for name in output.key]
            view = self.keyed[output.name]
            changes = net[output.name]
            if output.key:
                stored: set[tuple[Any, ...]] = set()
                for row, weight in changes.items():
                    if weight < 0:
                        view.pop(tuple(row[index] for index in indexes), None)
                for row, weight in changes.items():
                    if weight > 0:
                        key = tuple(row[index] for index in indexes)
                        assert weight == 1, (row, weight)
                        assert key not in stored, ("two rows of one key", row)
                        stored.add(key)
                        view[key] = row
            else:
                total = self.rows[output.name]
                for row, weight in changes.items():
                    total[row] += weight
                    assert total[row] >= 0, row
                    if not total[row]:
                        del total[row]

    def view(self, name: str) -> Counter[tuple[Any, ...]]:
        """A view as rows with their multiplicity."""
        return self.rows[name] + Counter(self.keyed[name].values())


def types_by_name(chain: Chain, types: dict[str, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The types of each source's columns, by the number of its feed."""
    return {feed.number: types[feed.source.name] for feed in chain.feeds}


def retracting(chain: Chain, retract: bool) -> Chain:
    """The chain with every kernel that feeds views alone told whether to take back what it said before."""
    operators = tuple(
        replace(each, spec=replace(each.spec, retract=retract))
        if all(port.stage == DRIVER for port in each.ports) and not isinstance(each.spec, JoinSpec)
        else each
        for each in chain.operators
    )
    return replace(chain, operators=operators)


def hashable(value: Any) -> Any:
    """Lists as tuples, NaN as a word, so that rows can be compared and counted."""
    if isinstance(value, tuple | list):
        return tuple(hashable(item) for item in value)
    return "NaN" if isinstance(value, float) and value != value else value
