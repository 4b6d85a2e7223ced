"""What a batch does to a table, all in all: rows with weights become rows to store and keys to remove.

Invariant: for each key at most one row is stored and it is not removed as well, whatever the order of the changes; changes
that say otherwise contradict themselves and are an error that names the view and the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa

from millstream.errors import PipelineError
from millstream.store.comparable import comparable
from millstream.store.contract import WEIGHT, Target

PLACE = "\0place"  # no view has a column of such a name: none can be kept
"""A column that says which of the changes a row is one of; it is kept through the sums, for who wants the rows as they came."""


class Net(NamedTuple):
    """Rows to store, by key, and keys to remove; of a table without a key, rows with their net weight, and nothing to remove."""

    store: pl.DataFrame
    remove: pl.DataFrame

    def plain(self) -> Net:
        """The same without places."""
        return Net(*(part.drop(PLACE, strict=False) for part in self))


def net_of(target: Target, changes: Any, *, places: bool = False) -> Net:
    """The net change of a table in :func:`comparable` columns, with the place of each row if it is wanted; a Net is one already."""
    if isinstance(changes, Net):
        return changes
    frame = weighted(target, changes)
    if places:
        frame = frame.with_row_index(PLACE)
    if target.identity:
        return net_by_key(target, frame)
    summed = net_by_row(frame)
    return Net(summed, summed.clear().drop(WEIGHT))


def weighted(target: Target, changes: Any) -> pl.DataFrame:
    """The changes of a view as :func:`comparable` columns and their weights."""
    what = f"view {target.name!r}"
    frame = comparable(changes, target.schema.append(pa.field(WEIGHT, pa.int64())), what)
    if frame[WEIGHT].null_count():
        raise PipelineError(f"{what}: a change without a weight; nothing of the batch was written")
    return frame


def net_by_key(target: Target, changes: pl.DataFrame) -> Net:
    """The net change of a table with a key.

    A key with a row of weight +1 gets that row, whatever it had; a key with rows of negative weight only is removed.
    """
    key = list(target.identity)
    changes = one_zero(changes, key)
    place = [PLACE] if PLACE in changes.columns else []
    none = changes.select(*key, *place).clear()
    if (changes[WEIGHT] == 1).all() and changes.select(key).is_unique().all():
        return Net(changes.drop(WEIGHT).sort(key), none)
    summed = _sum(changes)
    if target.append and (summed[WEIGHT] < 0).any():
        raise _contradiction(
            target, summed.filter(pl.col(WEIGHT) < 0), key, "a row is taken back, but this view only grows"
        )
    plus = pl.col(WEIGHT).clip(lower_bound=0)
    by_key = summed.group_by(key).agg(plus.sum(), *(pl.col(name).first() for name in place))
    several = by_key.filter(pl.col(WEIGHT) > 1)
    if not several.is_empty():
        raise _contradiction(target, several, key, "more than one row for a key")
    return Net(
        summed.filter(pl.col(WEIGHT) > 0).drop(WEIGHT).sort(key),
        by_key.filter(pl.col(WEIGHT) == 0).select(*key, *place).sort(key),
    )


def net_by_row(changes: pl.DataFrame) -> pl.DataFrame:
    """The net weight of each row, for a table without a key; rows whose weights cancel are left out."""
    return _sum(one_zero(changes))


def one_zero(rows: pl.DataFrame, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """The rows with ``0.0`` for ``-0.0`` in these columns, or in all: as keys they are one."""
    real = [name for name in columns or rows.columns if rows[name].dtype == pl.Float64]
    return rows.with_columns(pl.when(pl.col(name) == 0).then(0.0).otherwise(pl.col(name)).alias(name) for name in real)


def describe(row: dict[str, object]) -> str:
    """A row for people, long values cut short."""
    return ", ".join(f"{name}={value!r:.60}" for name, value in row.items())


def _sum(changes: pl.DataFrame) -> pl.DataFrame:
    columns = [name for name in changes.columns if name not in (WEIGHT, PLACE)]
    place = [pl.col(PLACE).first()] if PLACE in changes.columns else []
    return changes.group_by(columns).agg(pl.col(WEIGHT).sum(), *place).filter(pl.col(WEIGHT) != 0)


def _contradiction(target: Target, rows: pl.DataFrame, key: list[str], what: str) -> PipelineError:
    first = describe(rows.select(key).row(0, named=True))
    return PipelineError(
        f"view {target.name!r}, key {first}: {what} ({rows.height} such); nothing of the batch was written",
        hint="the changes of a batch contradict each other: this is a bug of a kernel; please report it",
    )
