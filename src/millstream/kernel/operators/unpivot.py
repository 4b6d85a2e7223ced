"""Rows that pass, each once for each of several columns. Nothing is kept, so what is taken back of a row is taken back of all of its."""

from __future__ import annotations

import polars as pl

from millstream.errors import PlanError
from millstream.kernel.kernel import State
from millstream.kernel.zset import WEIGHT
from millstream.plan.spec import Unpivot


class UnpivotKernel:
    """The kernel of :class:`~millstream.plan.spec.Unpivot`."""

    def __init__(self, spec: Unpivot) -> None:
        self.spec = spec

    def step(self, _state: State, rows: pl.DataFrame | None) -> pl.DataFrame | None:
        """Pass the rows on, if there are any."""
        return None if rows is None else self.through(rows)

    def through(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Pass the rows on, with their weights."""
        spec = self.spec
        types = {label: rows.schema[name] for label, name in zip(spec.labels, spec.values, strict=True)}
        if len(set(types.values())) > 1:
            found = ", ".join(f"{label} {kind}" for label, kind in types.items())
            raise PlanError(f"unpivot: expected value columns of one type; found {found}", hint="cast them to one")
        weight = pl.col(WEIGHT) if WEIGHT in rows.columns else pl.lit(1, pl.Int64).alias(WEIGHT)
        return pl.concat(
            rows.select(
                *spec.ids, pl.lit(label, pl.String).alias(spec.variable), pl.col(name).alias(spec.value), weight
            )
            for label, name in zip(spec.labels, spec.values, strict=True)
        )
