"""The parts of aggregates: columns that add up, and bags of values for what does not.

Counts and sums are *linear*: a few columns per group, added to on insert and subtracted from on delete, exact for
doubles too. Least and greatest join them as long as nothing is ever taken back. Everything else looks at the values
themselves, each kept with how often it is there; if nothing is ever taken back and only the best one matters, only that one.
Approximate aggregates have a sketch in place of their values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from millstream.errors import PipelineError
from millstream.kernel.aggregates import sketches, sum_double, sum_integer
from millstream.kernel.zset import WEIGHT, matched
from millstream.plan.spec import Measure, Reduce

ROWS = "_n"
"""The column that counts a group's rows: a group is there while it is not zero."""

_ROOM = 1 << 62


@dataclass(frozen=True, slots=True)
class Bag:
    """Values kept for one aggregate: ``columns`` are the value and, for min_by and max_by, what orders it."""

    name: str
    function: str
    columns: tuple[str, ...]
    best_only: bool
    fractions: tuple[float, ...] = ()
    """The percentiles that are wanted; they share their values."""

    @property
    def sketched(self) -> bool:
        """Whether a sketch is kept in place of the values."""
        return self.function.startswith("approx_")


def bag_name(measure: Measure) -> str:
    """The name of an aggregate's bag; two that say the same share one."""
    return f"bag_{measure.function}_{'_'.join(measure.arguments)}"


def bags(spec: Reduce) -> list[Bag]:
    """The bags that a reduction keeps."""
    kept = [each for each in spec.measures if not each.is_linear(spec.insert_only)]
    fractions = {
        bag_name(each): tuple(sorted({other.fraction for other in kept if bag_name(other) == bag_name(each)}))
        for each in kept
        if each.function.endswith("percentile")
    }
    return _distinct(
        [
            Bag(name := bag_name(each), each.function, each.arguments, _best_only(each, spec), fractions.get(name, ()))
            for each in kept
        ]
    )


def _best_only(measure: Measure, spec: Reduce) -> bool:
    return spec.insert_only and measure.function in ("min_by", "max_by")


def distincts(spec: Reduce) -> list[str]:
    """The arguments whose distinct values are counted."""
    return list(dict.fromkeys(each.arguments[0] for each in spec.measures if each.function == "count_distinct"))


class Linear:
    """The columns that add up: what one batch adds to each group, how to add it to what is there, what it means."""

    def __init__(self, spec: Reduce, schema: pl.Schema) -> None:
        self.spec, self.schema = spec, schema
        wanted = [(each.function, each.arguments[0]) for each in spec.measures if each.arguments]
        self.counted = _distinct([name for function, name in wanted if function in ("count", "sum", "avg")])
        summed = _distinct([name for function, name in wanted if function in ("sum", "avg")])
        self.floats = [name for name in summed if schema[name].is_float()]
        self.wholes = [name for name in summed if name not in self.floats]
        extremes = [each for each in wanted if each[0] in ("min", "max")] if spec.insert_only else []
        self.extremes = _distinct(extremes)
        self.distinct = distincts(spec)

    @property
    def added(self) -> list[str]:
        """Columns whose sum over batches is what we keep."""
        limbs = [limb for name in self.floats for limb in sum_double.columns_of(f"{name}_f_")[:-1]]
        limbs += [
            limb
            for name in self.wholes
            for limb in sum_integer.limb_names(sum_integer.limb_count(self._whole(name)), f"{name}_s_")
        ]
        return [ROWS, *(f"{name}_n" for name in self.counted), *(f"{name}_d" for name in self.distinct), *limbs]

    @property
    def columns(self) -> list[str]:
        """All columns that we keep."""
        rests = [f"{name}_f_rest" for name in self.floats]
        return [*self.added, *rests, *(f"{name}_{function}" for function, name in self.extremes)]

    def _whole(self, name: str) -> pl.DataType:
        dtype = self.schema[name]
        return dtype if isinstance(dtype, pl.Decimal) else pl.Int64()

    def delta(self, rows: pl.DataFrame, group: list[str]) -> pl.DataFrame:
        """What a batch adds to each of its groups."""
        slices = list(rows.iter_slices(sum_double.MAX_ROWS)) or [rows]
        parts = [self._delta(part, group) for part in slices]
        return parts[0] if len(parts) == 1 else self._total(pl.concat(parts), group)

    def total(self, parts: pl.DataFrame, group: list[str]) -> pl.DataFrame:
        """Add up the columns of several parts of each group."""
        slices = [self._total(part, group) for part in parts.iter_slices(sum_double.MAX_ROWS)]
        return slices[0] if len(slices) == 1 else self._total(pl.concat(slices) if slices else parts, group)

    def _total(self, parts: pl.DataFrame, group: list[str]) -> pl.DataFrame:
        sums = [pl.col(name).sum() for name in self.added]
        sums += [pl.col(f"{name}_f_rest").drop_nulls() for name in self.floats]
        for function, name in self.extremes:
            column = f"{name}_{function}"
            sums.append(_extreme(function, column, parts.schema[column]))
        return self.normal(parts.group_by(group).agg(sums)).select(*group, *self.columns)

    def _delta(self, rows: pl.DataFrame, group: list[str]) -> pl.DataFrame:
        weighted = WEIGHT in rows.columns
        weight = rows[WEIGHT] if weighted else pl.repeat(1, rows.height, dtype=pl.Int64, eager=True)
        made: list[pl.Series] = []
        sums: list[pl.Expr] = [(pl.col(WEIGHT).sum() if weighted else pl.len().cast(pl.Int64)).alias(ROWS)]
        for name in self.counted:
            there = pl.when(pl.col(name).is_not_null()).then(pl.col(WEIGHT)).otherwise(0).sum()
            sums.append((there if weighted else pl.col(name).count().cast(pl.Int64)).alias(f"{name}_n"))
        narrow = [name for name in self.wholes if self._fits(rows[name], weight)]
        for name in self.wholes:
            if name in narrow:  # the plain sum cannot overflow: take limbs of the sums, not of every row
                product = pl.col(name).cast(pl.Int64) * pl.col(WEIGHT) if weighted else pl.col(name).cast(pl.Int64)
                sums.append(product.sum().alias(f"{name}_plain"))
            else:
                limbs = sum_integer.split(rows[name], weight, f"{name}_s_")
                made += limbs.get_columns()
                sums += [pl.col(limb).sum() for limb in limbs.columns]
        for name in self.floats:
            made += sum_double.split(rows[name], weight, f"{name}_f_").get_columns()
            sums += sum_double.adding(f"{name}_f_")
        for function, name in self.extremes:
            sums.append(_extreme(function, name, rows.schema[name]).alias(f"{name}_{function}"))
        delta = (rows.with_columns(made) if made else rows).group_by(group).agg(sums)
        for name in narrow:
            ones = pl.repeat(1, delta.height, dtype=pl.Int64, eager=True)
            delta = delta.with_columns(sum_integer.split(delta[f"{name}_plain"], ones, f"{name}_s_").get_columns())
        delta = delta.with_columns(pl.lit(0, pl.Int64).alias(f"{name}_d") for name in self.distinct)
        return self.normal(delta).select(*group, *self.columns)

    def _fits(self, values: pl.Series, weight: pl.Series) -> bool:
        if isinstance(values.dtype, pl.Decimal):
            return False
        low, high, heavy = values.min(), values.max(), weight.abs().max()
        if low is None or high is None:
            return True
        return max(abs(int(low)), abs(int(high))) * int(heavy or 0) * len(values) < _ROOM  # type: ignore[arg-type]

    def combine(self, both: pl.DataFrame) -> pl.DataFrame:
        """Add what was there (columns with ``_b``, null for a new group) to what came."""
        sums: list[pl.Expr | pl.Series]
        sums = [(pl.col(name).fill_null(0) + pl.col(f"{name}_b").fill_null(0)).alias(name) for name in self.added]
        for function, name in self.extremes:
            column = f"{name}_{function}"
            if both.schema[column].is_nested():
                sums.append(_better(function, both[column], both[f"{column}_b"]))
                continue
            new, old = pl.col(column), pl.col(f"{column}_b")
            better = new < old if function == "min" else new > old
            sums.append(pl.when(old.is_null() | better).then(new).otherwise(old).alias(column))
        for name in self.floats:
            rests = pl.concat_list(f"{name}_f_rest", f"{name}_f_rest_b").list.drop_nulls()
            sums.append(rests.alias(f"{name}_f_rest"))
        return self.normal(both.with_columns(sums))

    def normal(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Bring sums to the one form that they have."""
        for name in self.wholes:
            frame = sum_integer.normalise(frame, f"{name}_s_")
        for name in self.floats:
            frame = sum_double.normalise(frame, f"{name}_f_")
        return frame

    def render(self, frame: pl.DataFrame, suffix: str = "") -> list[pl.Series]:
        """The aggregates that these columns stand for; null in rows that stand for no group."""
        if suffix:
            frame = frame.select(pl.col(f"{name}{suffix}").alias(name) for name in self.columns)
        return [
            self._render(frame, each).alias(each.name)
            for each in self.spec.measures
            if each.is_linear(self.spec.insert_only)
        ]

    def _render(self, frame: pl.DataFrame, measure: Measure) -> pl.Series:
        if not measure.arguments:
            return frame[ROWS]
        name = measure.arguments[0]
        match measure.function:
            case "count":
                return frame[f"{name}_n"]
            case "count_distinct":
                return frame[f"{name}_d"]
            case "min" | "max":
                return frame[f"{name}_{measure.function}"]
        count = frame[f"{name}_n"]
        some = count > 0
        if name in self.floats:
            value = sum_double.render(_no_nulls(frame, f"{name}_f_"), f"{name}_f_")
        else:
            value = self._whole_sum(frame, measure, name)
        if measure.function == "avg":
            value = value.cast(pl.Float64) / count.cast(pl.Float64)
        return frame.select(pl.when(some).then(value)).to_series()

    def _whole_sum(self, frame: pl.DataFrame, measure: Measure, name: str) -> pl.Series:
        dtype = self.schema[name]
        wanted: Any = pl.Int64()
        if isinstance(dtype, pl.Decimal):
            wanted = pl.Decimal(min(38, dtype.precision + 10), dtype.scale)
        elif measure.function == "avg":
            wanted = pl.Decimal(38, 0)  # the mean of longs is always there, also where their sum is no long
        value, overflow = sum_integer.render(_no_nulls(frame, f"{name}_s_"), wanted, f"{name}_s_")
        if overflow.any():
            raise PipelineError(
                f"{measure.name}: a sum does not fit {'a decimal of 38 digits' if isinstance(dtype, pl.Decimal) else 'a long'}",
                hint="sum a wider type: sum(cast(… AS decimal(38, 0))) or sum(cast(… AS double))",
            )
        return value


def _no_nulls(frame: pl.DataFrame, prefix: str) -> pl.DataFrame:
    limbs = [name for name in frame.columns if name.startswith(f"{prefix}l")]
    return frame.with_columns(pl.col(limbs).fill_null(0))


def _extreme(function: str, name: str, dtype: pl.DataType) -> pl.Expr:
    """The least or the greatest; NaN is greater than everything, as in Spark. Nested values go by the order they are sorted in."""
    column = pl.col(name)
    if dtype.is_nested():
        ordered = column.drop_nulls().sort()
        return ordered.first() if function == "min" else ordered.last()
    if function == "min":
        return column.min()
    return column.nan_max() if dtype.is_float() else column.max()


def _better(function: str, one: pl.Series, other: pl.Series) -> pl.Series:
    """Of two columns of nested values the lesser or the greater in each row; they have no comparison but their order."""
    pairs = pl.DataFrame({"_value": pl.concat([one, other]), "_row": np.tile(np.arange(len(one)), 2)})
    return pairs.group_by("_row").agg(_extreme(function, "_value", one.dtype)).sort("_row")["_value"].alias(one.name)


def _distinct(names: list[Any]) -> list[Any]:
    return list(dict.fromkeys(names))


def look(bag: Bag, values: pl.DataFrame, group: list[str]) -> pl.DataFrame:
    """What an aggregate makes of the values in its bag, for each group that has any."""
    if bag.sketched:
        return sketches.looked(bag.function, values, bag.fractions, group)
    there = values.filter(pl.col(ROWS) > 0)
    value = bag.columns[0]
    match bag.function:
        case "min" | "max":
            return there.group_by(group).agg(_extreme(bag.function, value, values.schema[value]).alias("_value"))
        case "min_by" | "max_by":
            return best(bag, there, group).select(*group, pl.col(value).alias("_value"))
        case "percentile":
            return _percentiles(there, value, bag.fractions, group)
        case "collect_set":
            return there.group_by(group).agg(pl.col(value).sort().alias("_value"))
        case _:
            repeated = pl.col(value).repeat_by(pl.col(ROWS)).explode()
            return there.select(*group, pl.col(value), ROWS).group_by(group).agg(repeated.sort().alias("_value"))


def best(bag: Bag, values: pl.DataFrame, group: list[str]) -> pl.DataFrame:
    """The first (or last) row of each group by order; ties are broken by the value, never by arrival."""
    value, order = bag.columns
    ordered = values.sort(order, value, descending=bag.function == "max_by", nulls_last=True)
    return ordered.unique(group, keep="first", maintain_order=True)


def _percentiles(there: pl.DataFrame, value: str, fractions: tuple[float, ...], group: list[str]) -> pl.DataFrame:
    """Percentiles as Spark's: between the two values next to the place, in proportion. NaN is the greatest number."""
    there = there.select(*group, pl.col(value).cast(pl.Float64).alias("_v"), ROWS).sort("_v")
    there = there.with_columns(
        (pl.col(ROWS).sum().over(group) - 1).alias("_last"), pl.col(ROWS).cum_sum().over(group).alias("_sum")
    )
    made = []
    for fraction in fractions:
        at = pl.col("_last") * fraction
        low, high = at.floor(), at.ceil()
        below = pl.col("_v").filter(pl.col("_sum") > low).first()
        above = pl.col("_v").filter(pl.col("_sum") > high).first()
        between = below * (high - at).first() + above * (at - low).first()
        made.append(pl.when(below == above).then(below).otherwise(between).alias(f"_value_{fraction}"))
    return there.group_by(group).agg(made)


def rendered(
    linear: Linear, frame: pl.DataFrame, looked: dict[str, pl.DataFrame], group: list[str], suffix: str = ""
) -> pl.DataFrame:
    """The rows that groups make: what tells them apart, then their aggregates in the order they were asked for.

    ``looked`` is what was seen in each bag, by group; ``suffix`` is that of the columns that add up.
    """
    made = frame.select(group).with_columns(linear.render(frame, suffix))
    for each in linear.spec.measures:
        if each.is_linear(linear.spec.insert_only):
            continue
        value = f"_value_{each.fraction}" if each.function.endswith("percentile") else "_value"
        seen = looked[bag_name(each)].select(*group, pl.col(value).alias(each.name))
        made = matched(made, seen, group, "left", maintain_order="left")
        if each.function.startswith("collect"):  # a group without values has an empty list, as in Spark
            made = made.with_columns(pl.col(each.name).fill_null(pl.lit([], made.schema[each.name])))
        elif each.function == "approx_count_distinct":
            made = made.with_columns(pl.col(each.name).fill_null(0))
    return made.select(*group, *(each.name for each in linear.spec.measures))


def sets_for_distinct(measures: tuple[Measure, ...]) -> tuple[Measure, ...]:
    """The same with sets for the counts of distinct values, for kernels that have no table of values; see :func:`sizes`."""
    return tuple(
        replace(each, function="collect_set") if each.function == "count_distinct" else each for each in measures
    )


def sizes(made: pl.DataFrame, measures: tuple[Measure, ...]) -> pl.DataFrame:
    """Sets back to how many values they have."""
    counted = [each.name for each in measures if each.function == "count_distinct"]
    return made.with_columns(pl.col(name).list.len().cast(pl.Int64) for name in counted)
