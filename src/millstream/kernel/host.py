"""The host of kernels, without Spark: chunks in, chunks out, state in a store.

Whoever brings the chunks of one (kernel, bucket) together and offers a :class:`~millstream.kernel.state.Store` can host a
chain: Spark's ``transformWithState`` does it for streams, a grouped map for batches, a loop for tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
import polars as pl
import pyarrow as pa

from millstream.kernel.admit import admit, admit_at_once
from millstream.kernel.changelog import ChangelogKernel
from millstream.kernel.chunk import Chunk, Kind, from_bytes, mark, one_frame, read_mark, send, to_bytes
from millstream.kernel.kernel import Kernel, State
from millstream.kernel.reduce import ReduceKernel
from millstream.kernel.spread import labels
from millstream.kernel.state import NEVER, Meta, Store
from millstream.plan.chain import ADMIT, SINK, Chain, Feed, Operator
from millstream.plan.spec import Changelog, Spec

COLUMNS = ("_o", "_a", "_t", "_bad", "_beat", "_wild", "_who", "_nth", "_deleted")
"""What the first step gets of every record besides the feed's expressions; see :mod:`millstream.kernel.admit`."""


class Held(msgspec.Struct, array_like=True):
    """What one bucket of one kernel keeps."""

    kernel: int
    bucket: int
    rows: int
    bytes: int
    segments: int


def column_of(feed: Feed, name: str) -> str:
    """The name of a feed's expression among those of all feeds."""
    return f"_f{feed.number}{name}"


def kernel_of(spec: Spec) -> Kernel:
    """The kernel that does what a spec says."""
    return ChangelogKernel(spec) if isinstance(spec, Changelog) else ReduceKernel(spec)


@dataclass
class Host:
    """A chain, and how many partitions each feed's topic has: a mark counts only when all of them have passed it."""

    chain: Chain
    partitions: Mapping[int, int]
    _kernels: dict[int, tuple[Operator, Kernel]] = field(default_factory=dict, repr=False)

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
        if feed.judged:
            yield Chunk(ADMIT, feed.number, partition, Kind.CHANGES, to_bytes(rows))
        else:
            yield from admit_at_once(feed, partition, rows)

    def run(self, stage: int, target: int, bucket: int, chunks: Iterable[Chunk], store: Store) -> Iterator[Chunk]:
        """Run one stage's part for one (target, bucket); what is for a later stage passes through."""
        chunks = list(chunks)
        ours = [chunk for chunk in chunks if chunk.stage == stage]
        yield from (chunk for chunk in chunks if chunk.stage != stage)
        if not ours:
            return
        if stage == ADMIT:
            yield from admit(self.chain.feed(target), bucket, [from_bytes(chunk.data) for chunk in ours], store)
        else:
            yield from self._run_kernel(target, bucket, ours, store)

    def _run_kernel(self, target: int, bucket: int, chunks: list[Chunk], store: Store) -> Iterator[Chunk]:
        operator, kernel = self._kernel(target)
        meta = Meta.read(store)
        changes = [chunk.data for chunk in chunks if chunk.kind == Kind.CHANGES]
        rows = one_frame(changes) if changes else None
        for chunk in chunks:
            if chunk.kind == Kind.MARK:
                origin, time = read_mark(chunk.data)
                meta.marks[origin] = max(time, meta.marks.get(origin, NEVER))
        before, after = meta.mark, max(meta.mark, self._mark(operator, meta))
        if rows is not None and not meta.schema:
            meta.schema = rows.clear().to_arrow().schema.serialize().to_pybytes()
        if meta.schema:
            empty = pl.from_arrow(pa.ipc.read_schema(pa.py_buffer(meta.schema)).empty_table())
            state = State(store, meta, before, after, empty.schema)  # type: ignore[union-attr]
            made = kernel.step(state, rows)
            if made is not None:
                for port in operator.ports:
                    yield from send(made, port, bucket)
            if state.tables:
                tables = state.tables.values()
                held = Held(
                    target,
                    bucket,
                    sum(table.rows for table in tables),
                    sum(table.bytes for table in tables),
                    sum(table.segments for table in tables),
                )
                yield Chunk(SINK, target, bucket, Kind.STATE, msgspec.msgpack.encode(held))
        meta.mark = after
        meta.write(store)
        if after > before:
            for port in operator.ports:
                if port.marks:
                    yield from mark(f"{target}:{bucket}", after, port)

    def _kernel(self, number: int) -> tuple[Operator, Kernel]:
        if number not in self._kernels:
            operator = next(each for each in self.chain.operators if each.number == number)
            self._kernels[number] = operator, kernel_of(operator.spec)
        return self._kernels[number]

    def _mark(self, operator: Operator, meta: Meta) -> int:
        """The least of what all who feed this operator have said; one that has said nothing holds everything back."""
        feeds = {feed.number for feed in self.chain.feeds}
        chain = self.chain
        origins = [
            f"{number}:{part}"
            for number in operator.inputs
            for part in (
                range(self.partitions[number]) if number in feeds else labels(number, chain.buckets, chain.tasks)
            )
        ]
        return min((meta.marks.get(origin, NEVER) for origin in origins), default=NEVER)


def is_used(feed: Feed, name: str) -> bool:
    """Whether admission of this feed looks at one of :data:`COLUMNS`."""
    source = feed.source
    match name:
        case "_t":
            return source.time is not None
        case "_wild":
            return source.time is not None and source.time.sent is not None
        case "_who" | "_nth":
            return source.sequence is not None
        case "_deleted":
            return source.kind == "table"
        case _:
            return True
