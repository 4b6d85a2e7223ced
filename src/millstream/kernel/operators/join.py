"""Joins of all rows of two sides by equal keys: inner, outer, semi and anti; right under inserts, deletes and updates on either.

State is both sides, placed by key; a batch reads the keys that it touches. Pairs are bilinear, so their change is
Δleft × right after + left before × Δright, with weights multiplied. Rows without a partner are a function of a key's rows:
what they are now less what they were. A key with a null in it equals nothing, so such rows are never kept: they are without a
partner as they come and as they go.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from millstream.errors import KeyTooLarge, PlanError
from millstream.kernel.kernel import Side, State
from millstream.kernel.state.segments import PLACE, Table, ordered_place, place, widths
from millstream.kernel.zset import WEIGHT, weighed
from millstream.plan.spec import TableJoin

MOST = 5_000_000
"""Pairs that one bucket may make in one batch: a key with thousands of rows on both sides would fill the memory."""

MOST_BYTES = 256 << 20
"""Bytes of those pairs, estimated before any is made; while they are made and sent on there are some copies of them."""

OTHER = "_w"  # the weight of the other side, while pairs are made


class TableJoinKernel:
    """The kernel of :class:`~millstream.plan.spec.TableJoin`."""

    def __init__(self, spec: TableJoin) -> None:
        self.spec = spec
        self.keys = key_names(spec.keys)
        # By place too: Polars finds no NaN by a single key where it takes both columns for sorted, as those of one row are.
        self.on = [*self.keys, PLACE]

    def step(self, state: State, left: pl.DataFrame | None, right: pl.DataFrame | None) -> pl.DataFrame | None:
        """Change both tables, and say what that changes of their join."""
        if left is None and right is None:
            self._expire(state)
            return None
        types = key_types(state.sides, self.keys)
        if self.spec.insert_only:
            return self._grow(state, types, left, right)
        came = [
            changes(rows, side, types, names)
            for rows, side, names in zip((left, right), state.sides, (self.spec.left, self.spec.right), strict=True)
        ]
        unknown = [rows.filter(pl.any_horizontal(pl.col(self.keys).is_null())) for rows in came]
        known = [self._placed(rows.drop_nulls(self.keys)) for rows in came]
        touched = pl.concat([rows.select(self.on) for rows in known]).unique()
        olds, news = [], []
        for name, rows in zip(("left", "right"), known, strict=True):
            old, new = change(state.table(name), rows, touched)
            olds.append(old)
            news.append(new)
        self._expire(state)
        alone = pl.concat([self._alone(news), self._alone(olds).with_columns(-pl.col(WEIGHT))])
        made = [self._alone(unknown, self.keys), weighed(alone, [name for name in alone.columns if name != WEIGHT])]
        if self.spec.how not in ("semi", "anti"):
            made += [pairs(known[0], news[1], self.on), pairs(olds[0], known[1], self.on)]
            return outcome(made, state.sides, types, self.spec.left, self.spec.right)
        return outcome(made, state.sides, types, self.spec.left)

    def _grow(
        self, state: State, types: dict[str, pl.DataType], left: pl.DataFrame | None, right: pl.DataFrame | None
    ) -> pl.DataFrame:
        """Let both sides grow: nothing is looked up to be changed, and what comes is kept as it is."""
        came = [
            self._placed(inserts(rows, side, types, names).drop_nulls(self.keys))
            for rows, side, names in zip((left, right), state.sides, (self.spec.left, self.spec.right), strict=True)
        ]
        places = np.concatenate([rows[PLACE].to_numpy() for rows in came])
        olds = []
        for name, rows in zip(("left", "right"), came, strict=True):
            old = state.table(name).load(places)
            olds.append(rows.clear() if old is None else old.select(rows.columns))
            state.table(name).save(pl.concat([olds[-1], rows]))
        self._expire(state)
        made = [pairs(came[0], pl.concat([olds[1], came[1]]), self.on), pairs(olds[0], came[1], self.on)]
        return outcome(made, state.sides, types, self.spec.left, self.spec.right)

    def _placed(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with their place by key, and by when that key can change no more."""
        horizon, by = self.spec.horizon, ordered_place if self.spec.insert_only else place
        if horizon is None:
            return rows.with_columns(pl.Series(PLACE, by(rows, self.keys)))
        expires = rows.select(*self.keys, (pl.col(horizon.time).dt.epoch("us") + horizon.span + 1).alias("_x"))
        return rows.with_columns(pl.Series(PLACE, by(expires, self.keys, "_x")))

    def _expire(self, state: State) -> None:
        if self.spec.horizon is not None and state.after > state.before:
            for name in ("left", "right"):
                if name in state.meta.tables:
                    state.table(name).expire(state.after)

    def _alone(self, rows: list[pl.DataFrame], on: list[str] | None = None) -> pl.DataFrame:
        """The rows that are there for themselves: those without a partner, or of a semi join those with one."""
        left, right, how, on = *rows, self.spec.how, on or self.on
        left_alone = left.join(right, on=on, how="semi" if how == "semi" else "anti")
        right_alone = right.join(left, on=on, how="anti")
        shown = [left_alone] if how not in ("inner", "right") else []
        shown += [right_alone] if how in ("right", "full") else []
        return pl.concat([left.clear(), *shown], how="diagonal")


def by_key(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """The rows with their place by key."""
    return rows.with_columns(pl.Series(PLACE, place(rows, keys)))


def change(table: Table, rows: pl.DataFrame, touched: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Change a table; give the rows of the touched keys as they were and as they are."""
    loaded = table.load(touched[PLACE].to_numpy())
    if loaded is None:
        loaded = rows.clear()
    old = loaded.join(touched, on=touched.columns, how="semi")
    rest = loaded.join(touched, on=touched.columns, how="anti")
    new = weighed(pl.concat([old, rows.select(old.columns)]), [name for name in old.columns if name != WEIGHT])
    new = new.select(old.columns)
    table.save(pl.concat([rest, new]))
    return old, new


def key_names(count: int) -> list[str]:
    """The columns that must be equal."""
    return [f"_k{index}" for index in range(count)]


def key_types(sides: tuple[Side, ...], keys: list[str]) -> dict[str, pl.DataType]:
    """One type for each key of both sides; refused where equal values of the two would not be found in one bucket."""
    types = {}
    for name in keys:
        one, other = (side.schema[name] for side in sides)
        if one == other:
            types[name] = one
        elif one.is_integer() and other.is_integer():
            types[name] = pl.Int64()
        elif one.is_float() and other.is_float():
            types[name] = pl.Float64()
        elif isinstance(one, pl.Decimal) and isinstance(other, pl.Decimal):
            types[name] = pl.Decimal(38, max(one.scale, other.scale))
        else:
            raise PlanError(
                f"join: its {int(name[2:]) + 1}. equality compares {one} with {other}; expected one type on both sides",
                hint='cast one of them: on="cast(a AS bigint) = b"',
            )
    return types


def changes(
    rows: pl.DataFrame | None, side: Side, types: dict[str, pl.DataType], names: tuple[str, ...]
) -> pl.DataFrame:
    """What a batch brings of one side: its keys in the common type, equal rows as one, with their weight."""
    return weighed(inserts(rows, side, types, names), [*types, *names])


def inserts(
    rows: pl.DataFrame | None, side: Side, types: dict[str, pl.DataType], names: tuple[str, ...]
) -> pl.DataFrame:
    """The same of rows that only come: equal ones are left apart."""
    wanted = {**types, **{name: side.schema[name] for name in names}}
    if rows is None:
        return pl.DataFrame(schema={**wanted, WEIGHT: pl.Int64()})
    weight = pl.col(WEIGHT) if WEIGHT in rows.columns else pl.lit(1, pl.Int64).alias(WEIGHT)
    return rows.select(*(pl.col(name).cast(dtype) for name, dtype in wanted.items()), weight)


def pairs(left: pl.DataFrame, right: pl.DataFrame, on: list[str]) -> pl.DataFrame:
    """Each row with each of its partners."""
    check_pairs(left, right, on)
    both = left.join(right.rename({WEIGHT: OTHER}), on=on, how="inner")
    return both.with_columns((pl.col(WEIGHT) * pl.col(OTHER)).alias(WEIGHT)).drop(OTHER)


def check_pairs(left: pl.DataFrame, right: pl.DataFrame, on: list[str]) -> None:
    """Refuse to make more pairs than memory has room for, naming the key that has most of them."""
    most = min(left.height, right.height)
    if most and left.height * right.height > MOST:  # of a key with that many on the smaller side
        most = (left if left.height < right.height else right).group_by(on).len()["len"].max()  # type: ignore[assignment]
    at_most = most * max(left.height, right.height)
    if not at_most or (at_most <= MOST and at_most * (_widest(left) + _widest(right)) <= MOST_BYTES):
        return
    counts = _sized(left, on, "_n", "_left").join(_sized(right, on, "_m", "_right"), on=on)
    size = pl.col("_left") * pl.col("_m") + pl.col("_right") * pl.col("_n")
    counts = counts.with_columns((pl.col("_n") * pl.col("_m")).alias("_pairs"), size.alias("_bytes"))
    found, size_found = int(counts["_pairs"].sum()), int(counts["_bytes"].sum())
    if found > MOST or size_found > MOST_BYTES:
        worst = counts.sort("_pairs" if found > MOST else "_bytes").tail(1).row(0, named=True)
        key = ", ".join(repr(worst[name]) for name in on if name.startswith("_k"))
        raise KeyTooLarge(
            f"a join would make {found:,} pairs of rows, {size_found >> 20:,} MB, in one batch of one bucket;"
            f" at most {MOST:,} and {MOST_BYTES >> 20:,} MB are allowed."
            f" The key {key} has {worst['_n']:,} rows with {worst['_m']:,} partners each",
            hint=KeyTooLarge.advice,
        )


def _widest(rows: pl.DataFrame) -> int:
    """About how many bytes the longest row has."""
    return int(widths(rows).to_numpy().max(initial=0))


def _sized(rows: pl.DataFrame, on: list[str], count: str, size: str) -> pl.DataFrame:
    """For each key how many rows it has, and how many bytes."""
    rows = rows.select(*on, widths(rows).alias(size))
    return rows.group_by(on).agg(pl.len().cast(pl.Int64).alias(count), pl.col(size).sum())


def outcome(
    made: Sequence[pl.DataFrame], sides: tuple[Side, ...], types: dict[str, pl.DataType], *columns: tuple[str, ...]
) -> pl.DataFrame:
    """What a join says, in one frame: keys, the columns of the left and of the right, null where a row has none, and weights."""
    schema = dict(types)
    for side, names in zip(sides, columns, strict=False):
        schema |= {name: side.schema[name] for name in names}
    empty = pl.DataFrame(schema={**schema, WEIGHT: pl.Int64()})
    said = [each.select(name for name in empty.columns if name in each.columns) for each in made if each.height]
    return pl.concat([empty, *said], how="diagonal")
