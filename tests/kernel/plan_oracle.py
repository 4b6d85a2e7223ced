"""What each operator means: all its rows at once, in plain Python, from what was admitted so far and the marks.

A *meaning* gives the rows of a relation, in a :class:`World`, and the mark up to which they are complete. There is nothing here of
batches, state, weights or nodes of a plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream.kernel.state.store import FOREVER, NEVER
from millstream.plan.spec import Order
from millstream.relation.nodes import Aggregation, Look, Ties
from tests.kernel import oracle
from tests.kernel.local import hashable
from tests.kernel.operators import test_over

Row = dict[str, Any]
Value = Callable[[Row], Any]


@dataclass
class World:
    """What is known at one moment: rows and marks by source, what the table's records said, and which rows are asked for."""

    rows: dict[str, list[Row]]
    marks: dict[str, int]
    said: list[tuple[int, Row | None, Any, dict[str, int]]]
    """Of each record of the table, in the order of each key's: its timestamp, its row or None, its key, the marks that it met."""
    final: bool = False
    known: dict[int, Seen] = field(default_factory=dict)

    def see(self, meaning: Meaning) -> Seen:
        """The rows of a relation; those that several relations share are made once."""
        if id(meaning) not in self.known:
            self.known[id(meaning)] = meaning(self)
        return self.known[id(meaning)]


@dataclass(frozen=True)
class Seen:
    """Rows, as often as they are there, and the mark before which no more come."""

    rows: list[Row]
    mark: int = NEVER


Meaning = Callable[[World], Seen]


def source(name: str) -> Meaning:
    """What was admitted of a source."""
    return lambda world: Seen(world.rows[name], world.marks.get(name, NEVER))


def where(below: Meaning, condition: Callable[[Row], bool]) -> Meaning:
    """The rows for which something is true."""

    def meaning(world: World) -> Seen:
        seen = world.see(below)
        return Seen([row for row in seen.rows if condition(row)], seen.mark)

    return meaning


def select(below: Meaning, columns: dict[str, Value]) -> Meaning:
    """Each row with these columns."""

    def meaning(world: World) -> Seen:
        seen = world.see(below)
        return Seen([{name: value(row) for name, value in columns.items()} for row in seen.rows], seen.mark)

    return meaning


def aggregate(
    below: Meaning, keys: Sequence[str], measures: Sequence[tuple[Aggregation, Value | None]], window: Window | None
) -> Meaning:
    """One row for each group, and window; ``measures`` come with a condition on the rows that they see."""

    def meaning(world: World) -> Seen:
        seen = world.see(below)
        made = []
        for key, rows in groups(seen.rows, keys):
            for times, inside in window(rows, seen.mark if world.final else FOREVER) if window else [({}, rows)]:
                values = {
                    each.name: oracle.aggregate(each, [row for row in inside if seeing is None or seeing(row)])
                    for each, seeing in measures
                }
                made.append({**key, **times, **values})
        return Seen(made, seen.mark)

    return meaning


Window = Callable[[list[Row], int], Iterable[tuple[Row, list[Row]]]]


def _bounds(start: int, end: int) -> Row:
    return {"window_start": oracle.stamp(start), "window_end": oracle.stamp(end)}


def hopping(column: str, size: int, every: int) -> Window:
    """Windows of a size, of which one starts every so often."""

    def window(rows: list[Row], mark: int) -> Iterable[tuple[Row, list[Row]]]:
        inside: dict[int, list[Row]] = defaultdict(list)
        for row in rows:
            at = oracle.moment(row[column])
            for start in range(at // every * every, at - size, -every):
                inside[start].append(row)
        return [(_bounds(start, start + size), found) for start, found in inside.items() if start + size <= mark]

    return window


def session(column: str, gap: int) -> Window:
    """Windows of rows at most a gap apart."""

    def window(rows: list[Row], mark: int) -> Iterable[tuple[Row, list[Row]]]:
        found: list[list[Row]] = []
        for row in sorted(rows, key=lambda each: each[column]):
            if not found or oracle.moment(row[column]) > oracle.moment(found[-1][-1][column]) + gap:
                found.append([])
            found[-1].append(row)
        ends = [oracle.moment(each[-1][column]) + gap for each in found]
        return [
            (_bounds(oracle.moment(each[0][column]), end), each)
            for each, end in zip(found, ends, strict=True)
            if end < mark
        ]

    return window


def sliding(column: str, size: int) -> Window:
    """For each row the window that ends with it."""

    def window(rows: list[Row], mark: int) -> Iterable[tuple[Row, list[Row]]]:
        times = [oracle.moment(row[column]) for row in rows]
        return [
            (_bounds(end - size, end), [row for row, at in zip(rows, times, strict=True) if end - size <= at <= end])
            for end in times
            if end < mark
        ]

    return window


def windowed(below: Meaning, window: Window) -> Meaning:
    """Each row once for every window that holds it; final ones when that is over."""

    def meaning(world: World) -> Seen:
        seen = world.see(below)
        found = window(seen.rows, seen.mark if world.final else FOREVER)
        return Seen([{**row, **times} for times, inside in found for row in inside], seen.mark)

    return meaning


def distinct(below: Meaning) -> Meaning:
    """Each row once."""

    def meaning(world: World) -> Seen:
        seen = world.see(below)
        return Seen(list({hashable(tuple(row.values())): row for row in seen.rows}.values()), seen.mark)

    return meaning


def top(below: Meaning, count: int, order: Sequence[Order], per: Sequence[str], ties: Ties | None = None) -> Meaning:
    """The first rows of each group, or those of the first ranks."""

    def meaning(world: World) -> Seen:
        seen = world.see(below)
        found = [in_order(rows, order) for _, rows in groups(seen.rows, per)]
        return Seen([row for rows in found for row in first(rows, count, order, ties)], seen.mark)

    return meaning


def first(rows: list[Row], count: int, order: Sequence[Order], ties: Ties | None) -> list[Row]:
    """The first of sorted rows: by number, or by the rank that those of equal order share."""
    places = [tuple(hashable(_rank(row[each.column])) for each in order) for row in rows]
    ranks = {
        None: range(len(rows)),
        "rank": [places.index(place) for place in places],
        "dense_rank": [len(set(places[: places.index(place)])) for place in places],
    }
    return [row for row, rank in zip(rows, ranks[ties], strict=True) if rank < count]


def over(
    below: Meaning, per: Sequence[str], order: Sequence[Order], looks: Sequence[Look], time: str | None
) -> Meaning:
    """Each row, and what its neighbours make of it; ``time`` is set where a row is final when the mark has passed it."""

    def meaning(world: World) -> Seen:
        seen = world.see(below)
        made = []
        for _, rows in groups(seen.rows, per):
            ordered = in_order(rows, order)
            for at, row in enumerate(ordered):
                if world.final and time is not None and oracle.moment(row[time]) >= seen.mark:
                    continue
                made.append({**row, **{each.name: test_over.look(each, ordered, at, tuple(order)) for each in looks}})
        return Seen(made, seen.mark)

    return meaning


def match(
    below: Meaning, per: Sequence[str], order: Sequence[Order], of: str, names: Sequence[str], overlap: bool
) -> Meaning:
    """Runs of rows in which a column rises: where they begin, how high they come, how long they are. The longest from each first row."""

    def meaning(world: World) -> Seen:
        seen = world.see(below)
        made = []
        for key, rows in groups(seen.rows, per):
            values = [row[of] for row in in_order(rows, order)]
            start = 0
            while start < len(values):
                end = start + 1
                while end < len(values) and None not in values[end - 1 : end + 1] and values[end] > values[end - 1]:
                    end += 1
                if end > start + 1:
                    found = (values[start], values[end - 1], end - start)
                    made.append({**key, **dict(zip(names, found, strict=True))})
                start = start + 1 if overlap or end == start + 1 else end
        return Seen(made, seen.mark)

    return meaning


def deduplicate(below: Meaning, ids: Sequence[str], within: int | None, time: str) -> Meaning:
    """Of rows with one id the first, and the next when enough time has passed."""

    def meaning(world: World) -> Seen:
        seen = world.see(below)
        made = []
        for _, rows in groups(seen.rows, ids):
            last: int | None = None
            for row in in_order(rows, (Order(time),)):
                at = oracle.moment(row[time])
                if last is None or (within is not None and at > last + within):
                    last = at
                    if not world.final or at < seen.mark:
                        made.append(row)
        return Seen(made, seen.mark)

    return meaning


def union(parts: Sequence[Meaning]) -> Meaning:
    """The rows of all."""

    def meaning(world: World) -> Seen:
        seen = [world.see(part) for part in parts]
        return Seen([row for each in seen for row in each.rows], min(each.mark for each in seen))

    return meaning


def explode(below: Meaning, array: str, name: str) -> Meaning:
    """A row for each element."""

    def meaning(world: World) -> Seen:
        seen = world.see(below)
        return Seen([{**row, name: value} for row in seen.rows for value in row[array] or ()], seen.mark)

    return meaning


def unpivot(below: Meaning, ids: Sequence[str], values: Sequence[str], variable: str, value: str) -> Meaning:
    """A row for each of several columns."""

    def meaning(world: World) -> Seen:
        seen = world.see(below)
        made = [
            {**{name: row[name] for name in ids}, variable: column, value: row[column]}
            for row in seen.rows
            for column in values
        ]
        return Seen(made, seen.mark)

    return meaning


def map_batches(below: Meaning, function: Callable[[Row], list[Row]]) -> Meaning:
    """What a function makes of each row."""

    def meaning(world: World) -> Seen:
        seen = world.see(below)
        return Seen([made for row in seen.rows for made in function(row)], seen.mark)

    return meaning


def map_groups(below: Meaning, keys: Sequence[str], function: Callable[[list[Row]], list[Row]]) -> Meaning:
    """What a function makes of each group, whose rows are sorted."""

    def meaning(world: World) -> Seen:
        seen = world.see(below)
        return Seen(
            [{**key, **made} for key, rows in groups(seen.rows, keys) for made in function(in_order(rows, ()))],
            seen.mark,
        )

    return meaning


@dataclass(frozen=True)
class Joining:
    """How two relations meet: their columns, the pairs that must be equal, and which of those are one column."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    on: tuple[tuple[str, str], ...]
    how: str

    def match(self, one: Row, other: Row) -> bool:
        """Whether the keys are equal; null equals nothing."""
        pairs = [(hashable(one[left]), hashable(other[right])) for left, right in self.on]
        return all(a is not None and a == b for a, b in pairs)

    def pair(self, one: Row | None, other: Row | None) -> Row:
        """A row of the join; a column that both have is one."""
        made = dict.fromkeys((*self.left, *self.right)) | (other or {}) | (one or {})
        return {name: made[name] for name in dict.fromkeys((*self.left, *self.right))}

    def rows(
        self, left: list[Row], right: list[Row], near: Callable[[Row, Row], bool] = lambda one, other: True
    ) -> tuple[list[Row], list[Row], list[Row]]:
        """The pairs, and the rows of each side that have no partner."""
        found = [
            (i, j)
            for i, one in enumerate(left)
            for j, other in enumerate(right)
            if self.match(one, other) and near(one, other)
        ]
        partners = {i for i, _ in found}, {j for _, j in found}
        alone = [
            [row for number, row in enumerate(rows) if number not in with_one]
            for rows, with_one in zip((left, right), partners, strict=True)
        ]
        return [self.pair(left[i], right[j]) for i, j in found], alone[0], alone[1]


def table_join(joining: Joining, left: Meaning, right: Meaning) -> Meaning:
    """The pairs there are, and rows without a partner."""

    def meaning(world: World) -> Seen:
        rows = world.see(left).rows
        made, ones, others = joining.rows(rows, world.see(right).rows)
        how = joining.how
        if how in ("semi", "anti"):
            without = {id(row) for row in ones}
            return Seen([row for row in rows if (id(row) in without) == (how == "anti")])
        made += [joining.pair(row, None) for row in ones if how in ("left", "full")]
        made += [joining.pair(None, row) for row in others if how in ("right", "full")]
        return Seen(made)

    return meaning


def interval_join(
    joining: Joining, left: Meaning, right: Meaning, times: tuple[str, str], low: int, high: int
) -> Meaning:
    """Pairs with right time − left time in [low, high], and rows without a partner when none can come any more."""

    def meaning(world: World) -> Seen:
        one, two = world.see(left), world.see(right)

        def near(row: Row, other: Row) -> bool:
            return low <= oracle.moment(other[times[1]]) - oracle.moment(row[times[0]]) <= high

        made, ones, others = joining.rows(one.rows, two.rows, near)
        if joining.how in ("left", "full"):
            made += [joining.pair(row, None) for row in ones if oracle.moment(row[times[0]]) + high < two.mark]
        if joining.how in ("right", "full"):
            made += [joining.pair(None, row) for row in others if oracle.moment(row[times[1]]) - low < one.mark]
        hold = (-low, 0) if joining.how == "right" else (0, high)
        return Seen(made, min(_less(one.mark, hold[0]), _less(two.mark, hold[1])))

    return meaning


def _less(mark: int, hold: int) -> int:
    return mark if mark in (NEVER, FOREVER) else mark - hold


def as_of_join(joining: Joining, left: Meaning, time: str, said: Callable[[Row], Row | None], lateness: int) -> Meaning:
    """Each row with what the table said at its time, as far as it was said while such a row could still be admitted.

    ``said`` makes of the table's row what the join sees of it.
    """

    def meaning(world: World) -> Seen:
        seen = world.see(left)
        ((mine, _),) = joining.on
        history: dict[Any, list[tuple[int, Row | None]]] = defaultdict(list)
        for valid, row, key, marks in world.said:
            since = history[key][-1][0] if history[key] else NEVER
            met = World({name: [] for name in world.rows}, marks, []).see(left).mark
            history[key].append((max(valid, since, met - lateness), row and said(row)))
        made = []
        for row in seen.rows:
            held = [found for valid, found in history.get(row[mine], []) if valid <= oracle.moment(row[time])]
            other = held[-1] if held and row[mine] is not None else None
            if other is not None or joining.how == "left":
                made.append(joining.pair(row, other))
        return Seen(made, seen.mark)

    return meaning


def percolate(left: Meaning, time: str, met: Callable[[Row, Row], Row | None], lateness: int) -> Meaning:
    """Each row with all that the table said at its time that it meets, as far as it was said while such a row could still be admitted."""

    def meaning(world: World) -> Seen:
        seen = world.see(left)
        history: dict[Any, list[tuple[int, Row | None]]] = defaultdict(list)
        for valid, row, key, marks in world.said:
            since = history[key][-1][0] if history[key] else NEVER
            mark = World({name: [] for name in world.rows}, marks, []).see(left).mark
            history[key].append((max(valid, since, mark - lateness), row))
        made = []
        for row in seen.rows:
            for said in history.values():
                held = [found for valid, found in said if valid <= oracle.moment(row[time])]
                if held and held[-1] is not None and (pair := met(row, held[-1])) is not None:
                    made.append(pair)
        return Seen(made, seen.mark)

    return meaning


def history() -> Meaning:
    """Each row that a table had, with the span in which it held: what comes after it in offset order ends it, at its own time or later."""

    def meaning(world: World) -> Seen:
        spans: dict[Any, list[Row]] = defaultdict(list)
        since: dict[Any, int] = defaultdict(lambda: NEVER)
        for valid, row, key, _ in world.said:
            since[key] = max(valid, since[key])
            for open_ in spans[key]:
                open_["valid_to"] = open_["valid_to"] or oracle.stamp(since[key])
            if row is not None:
                spans[key].append({**row, "valid_from": oracle.stamp(since[key]), "valid_to": None})
        return Seen([row for rows in spans.values() for row in rows if row["valid_from"] != row["valid_to"]])

    return meaning


def groups(rows: Iterable[Row], keys: Sequence[str]) -> list[tuple[Row, list[Row]]]:
    """Rows with equal keys together, and the columns of the key."""
    found: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple(hashable(row[name]) for name in keys)].append(row)
    return [({name: each[0][name] for name in keys}, each) for each in found.values()]


def in_order(rows: Iterable[Row], order: Sequence[Order]) -> list[Row]:
    """Sorted by an order, then by all columns from the left, ascending."""
    made = list(rows)
    names = list(made[0]) if made else []
    for each in reversed([*order, *map(Order, names)]):
        made.sort(key=lambda row, name=each.column: _rank(row[name]), reverse=each.descending)  # type: ignore[misc]
    return made


def _rank(value: Any) -> Any:
    """Null before everything, NaN after; of lists element by element."""
    if isinstance(value, list | tuple):
        return 1, tuple(map(_rank, value))
    return (0, 0) if value is None else (2, 0) if value != value else (1, value)
