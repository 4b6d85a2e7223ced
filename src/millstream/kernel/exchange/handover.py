"""What kernels of one step hand to each other: rows of the same bucket, in the same process, which need not be packed."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from millstream.kernel.exchange.chunk import SIDES, Kind, shaped
from millstream.plan.build import Port


@dataclass
class Near:
    """Rows for kernels of the same step and bucket: they are handed over as they are, and never packed."""

    targets: frozenset[int] = frozenset()
    _given: dict[tuple[int, Kind], list[pl.DataFrame]] = field(default_factory=dict)

    @property
    def reached(self) -> set[int]:
        """The kernels that have rows here."""
        return {target for target, _ in self._given}

    def give(self, rows: pl.DataFrame, port: Port) -> None:
        """Leave rows for whoever takes them, as the port wants them."""
        rows = shaped(rows, port)
        if rows.height:
            self._given.setdefault((port.target, SIDES[port.side]), []).append(rows)

    def take(self, target: int, kind: Kind) -> list[pl.DataFrame]:
        """The rows for one input of a kernel."""
        return self._given.pop((target, kind), [])
