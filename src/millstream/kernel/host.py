"""The host of kernels, without Spark: chunks in, chunks out, state in a store.

Whoever brings the chunks of one (leader, bucket) together and offers a :class:`~millstream.kernel.state.store.Store` can host a
chain: Spark's ``transformWithState`` does it for streams, a grouped map for batches, a loop for tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec
import polars as pl
import pyarrow as pa

from millstream.errors import PipelineError
from millstream.kernel.admission.gate import Admission, admit
from millstream.kernel.arrow import one_frame
from millstream.kernel.exchange.bucket_labels import labels
from millstream.kernel.exchange.chunk import SIDES, Chunk, Kind, mark, read_last_step, read_mark
from millstream.kernel.exchange.handover import Near
from millstream.kernel.exchange.reports import Held
from millstream.kernel.exchange.send import send
from millstream.kernel.kernel import Kernel, Side, State
from millstream.kernel.operators.kernel_of import kernel_of
from millstream.kernel.schemas import input_frames
from millstream.kernel.state.fused_step import Shared
from millstream.kernel.state.store import FOREVER, NEVER, Memory, Meta, Store
from millstream.kernel.watermarks import Clock
from millstream.plan.build import ADMIT, DRIVER, Chain, Operator


@dataclass
class Host:
    """A chain, and how many partitions each feed's topic has: a mark counts only when all of them have passed it.

    ``types`` are those of each feed's expressions. A kernel with two inputs must know them before any row comes on one side.
    ``aside`` is the folder for large chunks (:mod:`millstream.spark.spill`), where all workers share one.
    """

    chain: Chain
    partitions: Mapping[int, int]
    types: Mapping[int, pl.Schema] = field(default_factory=dict)
    aside: str = ""
    admission: Admission = field(init=False, repr=False, compare=False)
    _kernels: dict[int, tuple[Operator, Kernel]] = field(default_factory=dict, repr=False)
    _followers: dict[int, list[int]] = field(default_factory=dict, repr=False)
    _inputs: dict[tuple[int, int], pl.DataFrame] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.admission = Admission(self.chain)
        for each in self.chain.operators:  # in the order of their numbers: the makers of rows come first
            if each.step is not None:
                self._followers.setdefault(each.step, []).append(each.number)

    def run(self, stage: int, leader: int, bucket: int, chunks: Iterable[Chunk], store: Store) -> Iterator[Chunk]:
        """Run one stage's part for one (leader, bucket); what is for a later stage passes through."""
        chunks = list(chunks)
        ours = [chunk for chunk in chunks if chunk.stage == stage]
        yield from (chunk for chunk in chunks if chunk.stage != stage)
        if not ours:
            return
        if stage == ADMIT:
            made = admit(self.chain.feed(leader), bucket, ours, store)
        else:
            made = self._run_step(leader, bucket, ours, store)
        yield from self.admission.passing.on(made, bucket)

    def _run_step(self, leader: int, bucket: int, chunks: list[Chunk], store: Store) -> Iterator[Chunk]:
        """Run the kernel that leads a step, then those that follow it, each on what came for it and what those before it made."""
        followers = self._followers.get(leader, ())
        if not followers:
            yield from self._run_kernel(leader, bucket, chunks, store)
            return
        shared = Shared(store)
        waiting: dict[int, list[Chunk]] = {number: [] for number in (leader, *followers)}
        for chunk in chunks:
            waiting[chunk.target].append(chunk)
        near = Near(frozenset(followers))
        for number in (leader, *followers):
            if not waiting[number] and number not in near.reached:
                continue
            for chunk in self._run_kernel(number, bucket, waiting[number], shared.part(number), near):
                if chunk.stage != DRIVER and chunk.target in waiting:
                    waiting[chunk.target].append(chunk)
                else:
                    yield chunk
        shared.flush()

    def run_stage(
        self, stage: int, chunks: Iterable[Chunk], stores: MutableMapping[tuple[int, int, int], Memory]
    ) -> list[Chunk]:
        """Run a whole stage here, bucket by bucket; ``stores`` makes what is missing: stage, leader, bucket → store."""
        groups: dict[tuple[int, int], list[Chunk]] = {}
        for chunk in chunks:
            groups.setdefault((chunk.leader, chunk.bucket), []).append(chunk)
        return [
            made
            for (leader, bucket), group in groups.items()
            for made in self.run(stage, leader, bucket, group, stores[stage, leader, bucket])
        ]

    def _run_kernel(
        self, target: int, bucket: int, chunks: list[Chunk], store: Store, near: Near | None = None
    ) -> Iterator[Chunk]:
        operator, kernel = self._kernel(target)
        near = near or Near()
        meta = Meta.read(store)
        clock = Clock.read(operator, self.partitions, meta.marks, chunks)
        for chunk in chunks:
            if chunk.kind in (Kind.MARK, Kind.STEPS):
                origin, time = read_mark(chunk.data) if chunk.kind == Kind.MARK else read_last_step(chunk.data)
                meta.marks[origin] = max(time, meta.marks.get(origin, NEVER))
        sums = _frame(chunks, Kind.SUMS, [])
        frames = [_frame(chunks, kind, near.take(target, kind)) for kind in SIDES[: operator.sides]]
        befores = meta.sides or [meta.mark] * len(operator.inputs)
        afters = [max(before, mark) for before, mark in zip(befores, self._marks(operator, meta, bucket), strict=True)]
        before, after = (_least(operator, marks) for marks in (befores, afters))
        schemas = self._schemas(operator, meta, frames, known=sums is not None)
        if schemas:
            sides = tuple(map(Side, befores, afters, schemas)) if operator.sides > 1 else ()
            state = State(store, meta, before, after, schemas[0], sides=sides, clock=clock)
            try:
                made = kernel.step(state, *frames, *([] if sums is None else [sums]))
                for port in operator.ports:
                    if made is None:
                        break
                    if port.stage != DRIVER and port.target in near.targets:
                        near.give(made, port)
                    else:
                        yield from send(made, port, bucket)
            except PipelineError as error:  # a kernel knows keys, and an expression rows, and not whose they are
                error.message = f"{self._views(operator)}: {error.message}"
                raise
            if state.tables:
                tables = state.tables.values()
                held = Held(
                    target,
                    bucket,
                    sum(table.rows for table in tables),
                    sum(table.bytes for table in tables),
                    sum(table.segments for table in tables),
                )
                yield Chunk.own(DRIVER, target, bucket, Kind.STATE, msgspec.msgpack.encode(held))
        meta.mark = after
        if operator.sides > 1:
            meta.sides = afters
        meta.write(store)
        said, says = (_least(operator, marks, operator.hold) for marks in (befores, afters))
        if says > said:
            for port in operator.ports:
                if port.marks:
                    yield from mark(f"{target}:{bucket}", says, port)

    def _views(self, operator: Operator) -> str:
        """The views that an operator works for."""
        reached = {operator.number}
        for each in sorted(self.chain.operators, key=lambda each: each.stage):
            if each.number in reached:
                reached |= {port.target for port in each.ports}
        names = [output.name for output in self.chain.outputs if output.number in reached]
        return f"view{'s' * (len(names) > 1)} {', '.join(names)}"

    def _schemas(
        self, operator: Operator, meta: Meta, frames: list[pl.DataFrame | None], *, known: bool
    ) -> list[pl.Schema]:
        """Columns and types of each side: of one input as they once came, of two as the chain says. None if not known yet.

        ``known`` says that they are as the chain says for one input too: sums have other columns.
        """
        if operator.sides > 1 or (known and not meta.schema and frames[0] is None):
            if not self.types:
                raise PipelineError(
                    "a join or an aggregate of partial sums needs the types of its input before its first row; the host got none",
                    hint="report this: Host(chain, partitions, types)",
                )
            if not self._inputs:
                self._inputs = input_frames(self.chain, self.types)
            inputs = [self._inputs[operator.number, side] for side in range(operator.sides)]
            if operator.sides > 1:
                return [each.schema for each in inputs]
            frames = [inputs[0]]
        if frames[0] is not None and not meta.schema:
            meta.schema = frames[0].clear().to_arrow().schema.serialize().to_pybytes()
        if not meta.schema:
            return []
        return [_schema(meta.schema)]

    def _kernel(self, number: int) -> tuple[Operator, Kernel]:
        if number not in self._kernels:
            operator = next(each for each in self.chain.operators if each.number == number)
            self._kernels[number] = operator, kernel_of(operator.spec)
        return self._kernels[number]

    def _marks(self, operator: Operator, meta: Meta, bucket: int) -> list[int]:
        """For each input the least mark of its parts; a part without a mark holds everything back."""
        return [self._mark(number, operator, meta, bucket) for number in operator.inputs]

    def _mark(self, number: int, taker: Operator, meta: Meta, bucket: int) -> int:
        if number in self.partitions:
            parts: Iterable[int] = range(self.partitions[number])
        else:
            maker, _ = self._kernel(number)
            if maker.passes:  # its marks bear the name of the operator that made its rows
                return min(self._mark(each, taker, meta, bucket) for each in maker.inputs)
            # In one step, rows of a bucket come from that bucket alone.
            near = maker.leader == taker.leader
            parts = (bucket,) if near else labels(maker.leader, self.chain.buckets, self.chain.tasks)
        return min((meta.marks.get(f"{number}:{part}", NEVER) for part in parts), default=NEVER)


@lru_cache(maxsize=64)
def _schema(data: bytes) -> pl.Schema:
    """A schema as it was written down; each bucket has the same."""
    empty = pl.from_arrow(pa.ipc.read_schema(pa.py_buffer(data)).empty_table())
    assert isinstance(empty, pl.DataFrame)  # noqa: S101
    return empty.schema


def _least(operator: Operator, marks: list[int], hold: tuple[int | None, ...] = ()) -> int:
    """The least of the marks of those inputs that tell time, each lowered by its hold."""
    timed = [
        (mark, lowered)
        for mark, held, lowered in zip(
            marks, operator.hold or (0,) * len(marks), hold or (0,) * len(marks), strict=True
        )
        if held is not None
    ]
    ends = (NEVER, FOREVER)  # before any time and after every time, whatever is taken from it
    return min((mark if mark in ends else mark - (lowered or 0) for mark, lowered in timed), default=NEVER)


def _frame(chunks: list[Chunk], kind: Kind, near: list[pl.DataFrame]) -> pl.DataFrame | None:
    data = [chunk.data for chunk in chunks if chunk.kind == kind]
    frames = [*([one_frame(data)] if data else ()), *near]
    return pl.concat(frames, how="diagonal_relaxed") if len(frames) > 1 else frames[0] if frames else None
