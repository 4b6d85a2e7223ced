"""Chunks on their way out: unions, explodes and unpivots happen here, where their rows are made, and are no stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from millstream.kernel.arrow import from_bytes
from millstream.kernel.exchange.chunk import Chunk, Kind, mark, read_mark
from millstream.kernel.exchange.send import send
from millstream.kernel.kernel import PassingKernel
from millstream.kernel.operators.kernel_of import kernel_of
from millstream.plan.build import DRIVER, Chain, Operator


@dataclass
class Passing:
    """The operators of a chain that keep nothing and pass on what comes, with their kernels."""

    chain: Chain
    _kernels: dict[int, tuple[Operator, PassingKernel]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for each in self.chain.operators:
            if each.passes:
                kernel = kernel_of(each.spec)
                assert isinstance(kernel, PassingKernel)  # noqa: S101
                self._kernels[each.number] = each, kernel

    def on(self, chunks: Iterable[Chunk], bucket: int) -> Iterator[Chunk]:
        """What becomes of chunks that were made in a bucket: those for others as they are, those for operators that pass passed on."""
        for chunk in chunks:
            if chunk.stage == DRIVER or chunk.target not in self._kernels:
                yield chunk
                continue
            operator, kernel = self._kernels[chunk.target]
            if chunk.kind == Kind.MARK:
                said = read_mark(chunk.data)
                sent = [each for port in operator.ports if port.marks for each in mark(*said, port)]
            else:
                rows = kernel.through(from_bytes(chunk.data))
                sent = [each for port in operator.ports for each in send(rows, port, bucket)]
            yield from self.on(sent, bucket)
