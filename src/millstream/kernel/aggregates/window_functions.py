"""What a row's neighbours make of it: its rank, the value of the row before or after, aggregates over a frame of rows.

Rows come in one order, group after group; a frame is then a run of rows, and a call is a function of these runs. Counts and
sums are differences of running sums, exact as everywhere, so that a long frame costs no more than a short one, and
nothing outside of a frame leaves a trace in it. Least and greatest are found in runs of doubling length. Other aggregates look at each
row of each frame, and are refused where that is too much.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.errors import PipelineError, PlanError
from millstream.kernel.aggregates import sum_double
from millstream.kernel.aggregates.accumulators import ROWS, Linear, bags, look, rendered, sets_for_distinct, sizes
from millstream.kernel.zset import group_numbers, weigh
from millstream.plan.spec import Measure, Order, Reduce
from millstream.relation.nodes import Frame, Look

PAIRS = 20_000_000
"""Rows that all frames of a batch may have together, for aggregates that look at each of them."""

Positions = npt.NDArray[np.int64]
_ROW = "_row"
_FAR = 1 << 61


@dataclass(frozen=True)
class Layout:
    """Sorted rows, and where for each of them its group and its peers (rows of equal order) begin and end."""

    rows: pl.DataFrame
    order: tuple[Order, ...]
    first: Positions
    end: Positions
    peers_first: Positions
    peers_end: Positions

    @classmethod
    def of(cls, rows: pl.DataFrame, keys: list[str], order: tuple[Order, ...]) -> Layout:
        """Lay out rows that are sorted within their groups; groups are brought together."""
        at = group_numbers(rows, keys)
        by_group = np.argsort(at, kind="stable")
        rows, at = rows[by_group], at[by_group]
        new_group = _changes(at)
        new_peers = new_group.copy()
        for each in order:
            values = rows[each.column]
            new_peers[1:] |= values.ne_missing(values.shift(1)).to_numpy()[1:]
        return cls(rows, order, *_runs(new_group), *_runs(new_peers))

    def frames(self, frame: Frame) -> tuple[Positions, Positions]:
        """Where each row's frame begins and ends."""
        if frame.kind == "range":
            return self._ranges(frame)
        at = np.arange(self.rows.height)
        low = self.first if frame.before is None else np.maximum(at - frame.before, self.first)
        high = self.end if frame.after is None else np.minimum(at + frame.after + 1, self.end)
        return low, np.maximum(low, high)

    def _ranges(self, frame: Frame) -> tuple[Positions, Positions]:
        low = self.first if frame.before is None else self.peers_first
        high = self.end if frame.after is None else self.peers_end
        if not frame.before and not frame.after:
            return low, high
        values = self.rows[self.order[0].column]
        if not (values.dtype.is_integer() or values.dtype in (pl.Datetime, pl.Date)):
            raise PlanError(
                f"a frame of distances needs an order by a time or by whole numbers; found {values.dtype}",
                hint="frame.rows(…) counts rows, whatever the order",
            )
        whole = values.dt.epoch("us") if values.dtype == pl.Datetime else values.cast(pl.Int64)
        down = self.order[0].descending
        # Nulls are peers of each other and near to nothing else. They lie at the end where the order descends, else first.
        there, numbers = whole.is_not_null().to_numpy(), (-whole if down else whole).fill_null(_FAR if down else -_FAR)
        if frame.before:
            found = _search(numbers.to_numpy(), self.first, self.end, -frame.before)
            low = np.where(there, found, low)
        if frame.after:
            found = _search(numbers.to_numpy(), self.first, self.end, frame.after + 1)
            high = np.where(there, found, high)
        return low, high


def called(layout: Layout, calls: tuple[Look, ...]) -> pl.DataFrame:
    """The rows with a column for each call."""
    rows, made = layout.rows, []
    at = np.arange(rows.height)
    for call in calls:
        match call.function:
            case "row_number":
                made.append(pl.Series(call.name, at - layout.first + 1))
            case "rank":
                made.append(pl.Series(call.name, layout.peers_first - layout.first + 1))
            case "dense_rank":
                steps = np.cumsum(layout.peers_first == at)
                made.append(pl.Series(call.name, steps - steps[layout.first] + 1 if len(at) else steps))
            case "lag" | "lead":
                other = at - call.offset if call.function == "lag" else at + call.offset
                inside = (other >= layout.first) & (other < layout.end)
                where = pl.Series(np.where(inside, other, 0)).cast(pl.UInt32)
                value = rows[call.arguments[0]].gather(where) if len(at) else rows[call.arguments[0]]
                made.append(pl.select(pl.when(pl.Series(inside)).then(value).alias(call.name)).to_series())
    wanted = list(dict.fromkeys(call.frame for call in calls if call.frame is not None))
    for frame in wanted:
        low, high = layout.frames(frame)
        mine = [call for call in calls if call.frame == frame]
        for call in [each for each in mine if each.function in ("min", "max")]:
            made.append(_extreme(rows[call.arguments[0]], call.function == "max", low, high).alias(call.name))
        measures = tuple(
            Measure(call.name, call.function, call.arguments, call.fraction)  # type: ignore[arg-type]
            for call in mine
            if call.function not in ("min", "max")
        )
        made += _aggregated(rows, measures, low, high) if measures else []
    return rows.with_columns(made)


def aggregated(
    rows: pl.DataFrame,
    name: str,
    function: str,
    arguments: tuple[str, ...],
    fraction: float,
    low: Positions,
    high: Positions,
) -> pl.Series:
    """One aggregate over runs of rows, each from ``low`` up to ``high``."""
    if function in ("min", "max"):
        return _extreme(rows[arguments[0]], function == "max", low, high).alias(name)
    measure = Measure(name, function, arguments, fraction)  # type: ignore[arg-type]
    return _aggregated(rows, (measure,), low, high)[0]


def _aggregated(rows: pl.DataFrame, measures: tuple[Measure, ...], low: Positions, high: Positions) -> list[pl.Series]:
    spec = Reduce((), sets_for_distinct(measures), insert_only=False)
    linear = Linear(spec, rows.schema)
    numbered = rows.with_columns(pl.Series(_ROW, np.arange(rows.height, dtype=np.int64)))
    parts = linear.delta(numbered, [_ROW]).sort(_ROW)
    columns = {name: _run_sums(parts[name].to_numpy(), low, high) for name in linear.added}
    runs = pl.DataFrame({_ROW: np.arange(len(low), dtype=np.int64), **columns})
    runs = runs.with_columns(sum_double.between(parts[f"{name}_f_rest"], low, high) for name in linear.floats)
    runs = linear.normal(runs)
    looked = {}
    for bag in bags(spec):
        names = list(dict.fromkeys(bag.columns))
        which, others = _pairs(low, high)
        values = rows.select(names)[others].with_columns(pl.Series(_ROW, which)).drop_nulls(bag.columns[-1])
        looked[bag.name] = look(bag, weigh(values, [_ROW, *names], ROWS), [_ROW])
    made = sizes(rendered(linear, runs, looked, [_ROW]), measures)
    return [made[each.name] for each in measures]


def _run_sums(values: Positions, low: Positions, high: Positions) -> Positions:
    running = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    # May wrap around on the way; the difference is right all the same.
    summed: Positions = running[high] - running[low]
    return summed


def _extreme(values: pl.Series, greatest: bool, low: Positions, high: Positions) -> pl.Series:
    """The least or greatest of each run: of runs of 2, 4, 8, … rows, the two that cover it."""
    ranks = values.rank("dense").cast(pl.Int64)
    sign = 1 if greatest else -1
    worst = -(1 << 62)
    best = np.where(values.is_null().to_numpy(), worst, sign * ranks.fill_null(0).to_numpy())
    length = high - low
    found = np.full(len(low), worst)
    level = 1
    while level <= max(int(length.max(initial=0)), 0):
        here = (length >= level) & (length < 2 * level)
        found[here] = np.maximum(best[low[here]], best[high[here] - level])
        best = np.maximum(best[:-level], best[level:]) if len(best) > level else best[:0]
        level *= 2
    where = pl.DataFrame({"_rank": sign * found}).with_columns(pl.col("_rank").cast(pl.Int64))
    known = (
        pl.DataFrame({"_rank": ranks, "_value": values}).drop_nulls().unique("_rank", keep="first", maintain_order=True)
    )
    return where.join(known, on="_rank", how="left", maintain_order="left")["_value"]


def _pairs(low: Positions, high: Positions) -> tuple[Positions, Positions]:
    """Each row with each row of its frame."""
    length = high - low
    total = int(length.sum())
    if total > PAIRS:
        raise PipelineError(
            f"an aggregate over frames would look at {total:,} rows, {PAIRS:,} are the most",
            hint="count, sum, avg, min and max cost the same however long a frame is; or use a shorter frame",
        )
    which = np.repeat(np.arange(len(low)), length)
    inside = np.arange(total) - np.repeat(np.cumsum(length) - length, length)
    return which, low[which] + inside


def _search(numbers: Positions, first: Positions, end: Positions, distance: int) -> Positions:
    """For each row the first one of its group whose number is at least its own plus the distance."""
    low, high, wanted = first.copy(), end.copy(), numbers + distance
    while len(open_ := np.flatnonzero(low < high)):
        middle = (low[open_] + high[open_]) // 2
        below = numbers[middle] < wanted[open_]
        low[open_[below]] = middle[below] + 1
        high[open_[~below]] = middle[~below]
    return low


def _changes(values: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    changed = np.ones(len(values), np.bool_)
    changed[1:] = values[1:] != values[:-1]
    return changed


def _runs(begins: npt.NDArray[np.bool_]) -> tuple[Positions, Positions]:
    """For each row where its run begins and ends."""
    starts = np.flatnonzero(begins)
    lengths = np.diff(np.append(starts, len(begins)))
    return np.repeat(starts, lengths), np.repeat(starts + lengths, lengths)
