"""Random plans: a relation of a few operators, and what it means.

Each operator is said twice, as an author writes it and as :mod:`tests.kernel.plan_oracle` has it. One that does not fit, because
there is no column of the kind or no event time, is passed over for another; ``taken`` says which were not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from random import Random
from typing import Any

from millstream.frame import rows, span
from millstream.plan.build import micros
from millstream.plan.spec import Order
from millstream.relation.nodes import Aggregation, Frame, Look, Source, Ties
from millstream.relation.properties import event_time, is_stream, lateness
from millstream.relation.relation import Relation
from millstream.window import hopping, session, sliding, tumbling
from tests.kernel import plan_oracle as means
from tests.kernel import shop
from tests.kernel.plan_oracle import Meaning, Row, Value
from tests.kernel.shop import SECOND

PLAIN = ("int", "float", "text", "time", "rank")
NUMBERS = ("int", "float")


@dataclass(frozen=True)
class Plan:
    """A relation, the kinds of its columns, and what it means."""

    relation: Relation
    kinds: dict[str, str]
    meaning: Meaning
    once: bool = False
    """Whether a final row of it is said once, where nothing is late."""
    windows: bool = False
    """Whether its rows are of windows, and nobody has gathered them yet."""

    @property
    def time(self) -> str | None:
        """Its event time, if there is one."""
        return event_time(self.relation.node)

    @property
    def is_stream(self) -> bool:
        """Whether its rows are facts."""
        return is_stream(self.relation.node)

    def of(self, *kinds: str) -> list[str]:
        """Its columns of these kinds."""
        return [name for name, kind in self.kinds.items() if kind in kinds]


class Unfit(Exception):
    """An operator that does not fit a plan."""


class Author:
    """Makes plans over some sources; names of columns are never used twice.

    With ``few`` groups are mostly told by columns of few values, so that they have several rows, which come and go. With ``windows``
    plans are of rows that have windows, and groups are mostly of one. With ``newer`` they are of the newer operators, too; without, a seed gives
    the plan that it gave before there were these.
    """

    def __init__(
        self,
        chance: Random,
        sources: dict[str, Source],
        few: bool = False,
        windows: bool = False,
        newer: bool = False,
    ) -> None:
        self.chance, self.few, self.windows, self.newer = chance, few, windows, newer
        self.sources = {
            name: Plan(Relation(source), shop.kinds(name), means.source(name)) for name, source in sources.items()
        }
        names = list(self.sources["a"].kinds)
        self.sources["a"] = replace(self.sources["a"], relation=self.sources["a"].relation.select(*names))
        self.taken: list[str] = []
        self._numbers = count()

    def name(self) -> str:
        """A name that no column has."""
        return f"c{next(self._numbers)}"

    def plan(self, length: int, base: Plan | None = None) -> Plan:
        """A plan of some operators, on another one or a source. Its last operator is a kernel."""
        plan = base or (self.in_windows() if self.windows else self.sources[self.chance.choice("aaabbu")])
        names = [name for name in OPERATORS if self.newer or name not in _NEWER]
        for number in range(length):
            last = number == length - 1
            plan = self.step(plan, [name for name in names if not (last and name in ("where", "select"))])
        return plan

    def in_windows(self) -> Plan:
        """Rows of a stream with their windows."""
        plan = self.sources[self.chance.choice("aab")]
        if self.chance.random() < 0.4:
            plan = self.step(plan, ["where", "select", "deduplicate", "as-of join", "interval join"])
        if plan.time is None:
            return self.in_windows()
        made, meaning = _window(self, plan, self.chance.choice(("tumbling", "hopping")))
        times = {"window_start": "time", "window_end": "time"}
        meant = means.windowed(plan.meaning, meaning)
        return Plan(plan.relation.windowed(made), plan.kinds | times, meant, once=True, windows=True)

    def step(self, plan: Plan, names: list[str]) -> Plan:
        """The plan with one more operator: the first that fits of these, in any order, those that seldom fit rather before others."""
        for name in sorted(names, key=lambda name: self.chance.random() ** (1 / _OFTEN.get(name, 1)), reverse=True):
            try:
                made = OPERATORS[name](self, plan)
            except Unfit:
                continue
            self.taken.append(name)
            return made
        raise Unfit

    def some(self, found: Sequence[str], most: int = 2, least: int = 0) -> list[str]:
        """Some of these columns."""
        if len(found) < least:
            raise Unfit
        return self.chance.sample(found, self.chance.randint(least, min(most, len(found))))

    def one(self, found: Sequence[str]) -> str:
        """One of these columns."""
        return self.some(found, 1, 1)[0]

    def keys(self, plan: Plan, most: int = 2, least: int = 0) -> list[str]:
        """Some columns to tell groups by."""
        if (known := _windows_of(plan)) and self.chance.random() < 0.7:
            others = [name for name in plan.of("int", "text") if name not in known]
            return [self.one(known), *self.some(others, most - 1)]
        if not self.few:
            return self.some(plan.of(*PLAIN), most, least)
        few = plan.of("int", "text")
        return self.some(few if len(few) >= least and self.chance.random() < 0.8 else plan.of(*PLAIN), most, least)

    def condition(self, plan: Plan) -> tuple[str, Callable[[Row], bool]]:
        """A condition, and what it means."""
        column = self.one(plan.of("int", "float", "text", "rank"))
        text = plan.kinds[column] == "text"
        least = self.chance.choice((0, 1))
        written, true = self.chance.choice(_TEXTS if text else _WHOLES)
        return written.format(c=column, n=least), lambda row: bool(true(row[column], least))


_WHOLES: tuple[tuple[str, Callable[[Any, int], Any]], ...] = (
    ("{c} > {n}", lambda v, n: v is not None and (v != v or v > n)),
    ("{c} IS NOT NULL", lambda v, n: v is not None),
    ("{c} IS NULL OR {c} <= {n}", lambda v, n: v is None or v <= n),
)
_TEXTS: tuple[tuple[str, Callable[[Any, int], Any]], ...] = (
    ("{c} = 'a'", lambda v, n: v == "a"),
    ("{c} <> 'b'", lambda v, n: v is not None and v != "b"),
    ("{c} IS NULL OR {c} = ''", lambda v, n: not v),
)
_EXPRESSIONS: dict[str, tuple[tuple[str, Callable[[Any], Any]], ...]] = {
    "int": (
        ("{c} + 1", lambda v: None if v is None else v + 1),
        ("coalesce({c}, 0)", lambda v: 0 if v is None else v),
        ("CASE WHEN {c} > 0 THEN 1 ELSE {c} END", lambda v: 1 if v is not None and v > 0 else v),
    ),
    "text": (
        ("upper({c})", lambda v: None if v is None else v.upper()),
        ("coalesce({c}, 'z')", lambda v: "z" if v is None else v),
    ),
}


def _where(author: Author, plan: Plan) -> Plan:
    written, true = author.condition(plan)
    return replace(plan, relation=plan.relation.where(written), meaning=means.where(plan.meaning, true))


def _select(author: Author, plan: Plan) -> Plan:
    written: list[str] = []
    columns: dict[str, Value] = {}
    kinds: dict[str, str] = {}
    for name, kind in plan.kinds.items():
        chance = author.chance.random()
        if chance < 0.15 and name != plan.time:
            continue
        if chance < 0.4 and kind in _EXPRESSIONS:
            text, value = author.chance.choice(_EXPRESSIONS[kind])
            there = author.name()
            written.append(f"{text.format(c=name)} AS {there}")
            columns[there] = lambda row, name=name, value=value: value(row[name])  # type: ignore[misc]
        else:
            there = author.name() if chance < 0.6 else name
            written.append(f"{name} AS {there}" if there != name else name)
            columns[there] = lambda row, name=name: row[name]  # type: ignore[misc]
        kinds[there] = kind
    if not written:
        raise Unfit
    return replace(
        plan, relation=plan.relation.select(*written), kinds=kinds, meaning=means.select(plan.meaning, columns)
    )


def _measures(
    author: Author, plan: Plan
) -> tuple[dict[str, str], list[tuple[Aggregation, Value | None]], dict[str, str]]:
    """Aggregates as they are written, as they are meant, and of which kind they are."""
    written, meant, kinds = {}, [], {}
    for _ in range(author.chance.randint(1, 3)):
        name = author.name()
        functions = ["count", "count(*)", "count_distinct", "min", "max", "min_by", "max_by"]
        functions += ["sum", "avg", "percentile", "collect_list", "collect_set"]
        function: Any = author.chance.choice(functions)
        match function:
            case "count(*)":
                text, made = "count(*)", Aggregation(name, "count")
                kinds[name] = "int"
            case "sum" | "avg" | "percentile":
                column = author.one(plan.of(*NUMBERS))
                text = f"median({column})" if function == "percentile" else f"{function}({column})"
                made = Aggregation(name, function, (column,), 0.5)
                kinds[name] = plan.kinds[column] if function == "sum" else "float"
            case "collect_list" | "collect_set":
                column = author.one(plan.of("int"))
                text, made, kinds[name] = f"{function}({column})", Aggregation(name, function, (column,)), "list"
            case "min_by" | "max_by":
                column, by = author.one(plan.of(*PLAIN)), author.one(plan.of("int", "time", "text"))
                text, made = f"{function}({column}, {by})", Aggregation(name, function, (column, by))
                kinds[name] = plan.kinds[column]
            case _:
                column = author.one(plan.of(*PLAIN))
                inner = f"DISTINCT {column}" if function == "count_distinct" else column
                text, made = f"{function.split('_')[0]}({inner})", Aggregation(name, function, (column,))
                kinds[name] = "int" if "count" in function else plan.kinds[column]
        seeing = None
        if author.chance.random() < 0.2:
            condition, seeing = author.condition(plan)
            text = f"{text} FILTER (WHERE {condition})"
        written[name] = text
        meant.append((made, seeing))
    return written, meant, kinds


def _aggregate(author: Author, plan: Plan, window: str = "") -> Plan:
    keys = author.keys(plan)
    written, meant, kinds = _measures(author, plan)
    made, meaning = _window(author, plan, window) if window else (None, None)
    relation = plan.relation.group_by(*keys, *([made] if made else [])).agg(**written)
    times = {"window_start": "time", "window_end": "time"} if window else {}
    if any(key in times for key in keys):
        raise Unfit
    return Plan(
        relation,
        {key: plan.kinds[key] for key in keys} | times | kinds,
        means.aggregate(plan.meaning, keys, meant, meaning),
        once=bool(window),
    )


def _window(author: Author, plan: Plan, name: str) -> tuple[Any, means.Window]:
    time = plan.time
    if time is None or not plan.is_stream:
        raise Unfit
    size = author.chance.choice((5, 10, 20))
    length = timedelta(seconds=size)
    match name:
        case "tumbling":
            return tumbling(time, length), means.hopping(time, size * SECOND, size * SECOND)
        case "hopping":
            every = author.chance.choice((2, 4, 5))
            return hopping(time, length, timedelta(seconds=every)), means.hopping(time, size * SECOND, every * SECOND)
        case "session":
            return session(time, length), means.session(time, size * SECOND)
        case _:
            return sliding(time, length), means.sliding(time, size * SECOND)


def _windowed(window: str) -> Callable[[Author, Plan], Plan]:
    return lambda author, plan: _aggregate(author, plan, window)


def _distinct(author: Author, plan: Plan) -> Plan:
    return Plan(plan.relation.distinct(), plan.kinds, means.distinct(plan.meaning))


def _order(author: Author, plan: Plan, time: str | None = None) -> tuple[str, tuple[Order, ...]]:
    chosen = [time] if time else author.some(plan.of("int", "float", "text", "time", "rank"), 2, 1)
    order = tuple(Order(name, not time and author.chance.random() < 0.4) for name in chosen)
    return ", ".join(f"{each.column} DESC" if each.descending else each.column for each in order), order


def _top(author: Author, plan: Plan) -> Plan:
    size, per = author.chance.randint(1, 3), author.keys(plan, 1 if author.few else 2)
    written, order = _order(author, plan)
    ties: Ties | None = author.chance.choice((None, None, "rank", "dense_rank"))
    meaning = means.top(plan.meaning, size, order, per, ties)
    once = plan.once and bool(set(per) & set(_windows_of(plan)))
    return Plan(plan.relation.top(size, written, per, ties=ties), plan.kinds, meaning, once)


def _over(author: Author, plan: Plan) -> Plan:
    per = author.keys(plan, 1)
    by_time = plan.time if author.chance.random() < 0.6 else None
    written, order = _order(author, plan, by_time)
    frame = _frame(author, plan, order)
    looks, meant, kinds = {}, [], {}
    for _ in range(author.chance.randint(1, 2)):
        name = author.name()
        function: Any = author.chance.choice(
            ("row_number", "rank", "dense_rank", "lag", "lead", "count", "sum", "max", "collect_list")
        )
        if function in ("row_number", "rank", "dense_rank"):
            looks[name], look, kinds[name] = f"{function}()", Look(name, function), "rank"
        elif function in ("lag", "lead"):
            column, away = author.one(plan.of(*PLAIN)), author.chance.randint(1, 2)
            looks[name] = f"{function}({column}, {away})"
            look, kinds[name] = Look(name, function, (column,), offset=away), plan.kinds[column]
        else:
            column = author.one(plan.of("int") if function == "collect_list" else plan.of(*NUMBERS))
            looks[name] = f"{function}({column})"
            look = Look(name, function, (column,), frame or Frame("range", None, 0))
            kinds[name] = {"count": "int", "collect_list": "list"}.get(function, plan.kinds[column])
        meant.append(look)
    back = all(each.function != "lead" and (each.frame is None or each.frame.after == 0) for each in meant)
    time = plan.time if back and order[0] == Order(plan.time or "") else None
    return Plan(
        plan.relation.over(per, written, frame).add(**looks),
        plan.kinds | kinds,
        means.over(plan.meaning, per, order, meant, time),
        once=time is not None,
    )


def _frame(author: Author, plan: Plan, order: tuple[Order, ...]) -> Frame | None:
    near: list[Frame | None] = [None, rows(2), rows(1, 1), rows(None, None)]
    kind = plan.kinds[order[0].column]
    if len(order) == 1 and kind in ("int", "time"):
        near += [span("10 seconds"), span("4 seconds", "3 seconds")] if kind == "time" else [span(1), span(2, 1)]
    return author.chance.choice(near)


def _deduplicate(author: Author, plan: Plan) -> Plan:
    if plan.time is None:
        raise Unfit
    ids, within = author.keys(plan, 2, 1), author.chance.choice((None, 8, 15))
    return Plan(
        plan.relation.deduplicate(ids, timedelta(seconds=within) if within else None),
        plan.kinds,
        means.deduplicate(plan.meaning, ids, within and within * SECOND, plan.time),
        once=True,
    )


def _explode(author: Author, plan: Plan) -> Plan:
    array, name = author.one(plan.of("list")), author.name()
    return Plan(
        plan.relation.explode(array, name), plan.kinds | {name: "int"}, means.explode(plan.meaning, array, name)
    )


def _unpivot(author: Author, plan: Plan) -> Plan:
    kind = author.chance.choice(("int", "float", "text"))
    values, variable, value = author.some(plan.of(kind), 3, 1), author.name(), author.name()
    others = [name for name in plan.kinds if name not in values or author.chance.random() < 0.2]
    ids = others if author.chance.random() < 0.7 else author.some(others, 3)
    return Plan(
        plan.relation.unpivot(ids, values, variable, value),
        {name: plan.kinds[name] for name in ids} | {variable: "text", value: kind},
        means.unpivot(plan.meaning, ids, values, variable, value),
        windows=plan.windows and bool({"window_start", "window_end"} & set(ids)),
    )


def _map_batches(author: Author, plan: Plan) -> Plan:
    of, one, two = author.one(plan.of("int")), author.name(), author.name()
    time = plan.time if author.chance.random() < 0.7 else None

    def pairs(row: Row) -> list[Row]:
        kept = {time: row[time]} if time else {}
        return [{one: row[of], two: each} | kept for each in ((row[of], 10 - row[of]) if row[of] is not None else ())]

    schema = f"{one} long, {two} long" + (f", {time} timestamp" if time else "")
    return Plan(
        plan.relation.map_batches(shop.pairs(one, two, of, time), schema),
        {one: "int", two: "int"} | ({time: "time"} if time else {}),
        means.map_batches(plan.meaning, pairs),
    )


def _map_groups(author: Author, plan: Plan) -> Plan:
    keys, of = author.keys(plan), author.one(plan.of("int"))
    counted, least = author.name(), author.name()
    function = author.chance.choice((shop.sizes, shop.numbers))

    def sizes(found: list[Row]) -> list[Row]:
        known = [row[of] for row in found if row[of] is not None]
        return [{counted: len(found), least: min(known, default=None)}]

    def numbers(found: list[Row]) -> list[Row]:
        return [{counted: number, least: row[of]} for number, row in enumerate(found)]

    meant = sizes if function is shop.sizes else numbers
    return Plan(
        plan.relation.map_groups(function(counted, least, of), keys, f"{counted} long, {least} long"),
        {key: plan.kinds[key] for key in keys} | {counted: "int", least: "int"},
        means.map_groups(plan.meaning, keys, meant),
    )


def _match(author: Author, plan: Plan) -> Plan:
    """Runs in which a column rises, in an order by all columns, so that there are no ties; not one of the event time, so that nothing waits for it."""
    per, of = author.keys(plan, 1), author.one(plan.of("int"))
    columns = author.chance.sample(plan.of(*PLAIN), len(plan.of(*PLAIN)))
    if columns[0] == plan.time:
        columns = [*columns[1:], columns[0]]
    if columns[0] == plan.time:
        raise Unfit
    order = tuple(Order(name, author.chance.random() < 0.3) for name in columns)
    names = [author.name() for _ in range(3)]
    overlap = author.chance.random() < 0.3
    relation = plan.relation.match(
        "X Y+",
        {"Y": f"{of} > PREV({of})"},
        dict(zip(names, (f"X.{of}", f"LAST(Y.{of})", "count(*)"), strict=True)),
        partition=per,
        order=", ".join(each.column + " DESC" * each.descending for each in order),
        skip="to next row" if overlap else "past last row",
    )
    kinds = {key: plan.kinds[key] for key in per} | dict.fromkeys(names, "int")
    return Plan(relation, kinds, means.match(plan.meaning, per, order, of, names, overlap))


def _union(author: Author, plan: Plan) -> Plan:
    """With part of itself, or with columns of the same kinds of another plan."""
    other = author.chance.choice((plan, _another(author, plan.is_stream)))
    shared = {name: kind for name, kind in plan.kinds.items() if other.of(kind)}
    if not shared:
        raise Unfit
    if len(shared) < len(plan.kinds):
        below = means.select(plan.meaning, {name: lambda row, name=name: row[name] for name in shared})  # type: ignore[misc]
        plan = replace(plan, relation=plan.relation.select(*shared), kinds=shared, meaning=below)
    written: list[str] = []
    columns: dict[str, Callable[[dict[str, Any]], Any]] = {}
    for name, kind in plan.kinds.items():
        same = other.time if name == plan.time and other.time else author.one(other.of(kind))
        if name.startswith("window_") and same != name:
            raise Unfit  # these names are for windows alone
        written.append(f"{same} AS {name}" if same != name else name)
        columns[name] = lambda row, same=same: row[same]  # type: ignore[misc]
    more = replace(
        other, relation=other.relation.select(*written), kinds=plan.kinds, meaning=means.select(other.meaning, columns)
    )
    if author.chance.random() < 0.5:
        more = _where(author, more) if more.of("int", "float", "text", "rank") else more
    return Plan(plan.relation.union(more.relation), plan.kinds, means.union((plan.meaning, more.meaning)))


def _windows_of(plan: Plan) -> list[str]:
    """The columns of its windows, if its rows are of some and have them still."""
    return [name for name in ("window_start", "window_end") if plan.windows and name in plan.kinds]


def _another(author: Author, stream: bool) -> Plan:
    """Another plan for the other side: a stream with its time, or a table."""
    plan = author.sources[author.chance.choice("ab" if stream else "auu")]
    if plan.is_stream and not stream:
        plan = author.step(plan, ["aggregate", "tumbling", "session", "distinct", "top", "map_groups"])
    for _ in range(author.chance.randint(0, 1)):
        names = ["where", "select", "deduplicate", "explode"] if stream else ["where", "select", "aggregate", "top"]
        plan = author.step(plan, names)
    return plan


def _renamed(author: Author, plan: Plan, keep: Sequence[str]) -> tuple[Plan, dict[str, str]]:
    """With new names for all columns but some, so that they can stand beside others; and these names."""
    names = {name: name if name in keep else author.name() for name in plan.kinds}
    columns: dict[str, Value] = {there: lambda row, name=name: row[name] for name, there in names.items()}  # type: ignore[misc]
    written = [f"{name} AS {there}" if name != there else name for name, there in names.items()]
    kinds = {names[name]: kind for name, kind in plan.kinds.items()}
    meaning = means.select(plan.meaning, columns)
    return replace(plan, relation=plan.relation.select(*written), kinds=kinds, meaning=meaning), names


def _join(author: Author, plan: Plan, other: Plan, hows: str) -> tuple[Plan, means.Joining, list[str]]:
    """The other side with names of its own, how the two meet, and that as it is written. A column that both have may be one."""
    kinds = [author.chance.choice(("int", "int", "text", "float"))]
    kinds += ["text"] if author.chance.random() < 0.2 else []
    if windows := [name for name in ("window_start", "window_end") if name in plan.kinds and name in other.kinds]:
        windows = windows if author.chance.random() < 0.6 else []
        kinds = kinds if author.chance.random() < 0.5 or not windows else []
    pairs = {author.one(plan.of(kind)): author.one(other.of(kind)) for kind in kinds} | {each: each for each in windows}
    merged = [one for one, two in pairs.items() if one == two and author.chance.random() < 0.7]
    other, names = _renamed(author, other, merged)
    # A column that is one of both is no column of the other side any more.
    on = tuple((one, names[two]) for one, two in pairs.items() if one in merged or two not in merged)
    joining = means.Joining(tuple(plan.kinds), tuple(other.kinds), on, author.chance.choice(hows.split()))
    return other, joining, [one if one in merged else f"{one} = {two}" for one, two in on]


def _beside(plan: Plan, other: Plan, joining: means.Joining, relation: Relation, meaning: Meaning) -> Plan:
    kinds = plan.kinds if joining.how in ("semi", "anti") else other.kinds | plan.kinds
    return Plan(relation, {name: kinds[name] for name in relation.columns}, meaning)


def _interval_join(author: Author, plan: Plan) -> Plan:
    if plan.time is None:
        raise Unfit
    other, joining, on = _join(author, plan, _another(author, True), "inner left right full")
    low, high = author.chance.choice(((-5, 5), (0, 8), (-10, -2), (3, 6), (0, 0), (-1, 30)))
    within = timedelta(seconds=low), timedelta(seconds=high)
    assert other.time is not None
    times = plan.time, other.time
    relation = plan.relation.join(other.relation, on, joining.how, within=within)  # type: ignore[arg-type]
    meaning = means.interval_join(joining, plan.meaning, other.meaning, times, low * SECOND, high * SECOND)
    return _beside(plan, other, joining, relation, meaning)


def _as_of_join(author: Author, plan: Plan) -> Plan:
    if plan.time is None:
        raise Unfit
    table = author.sources["u"]
    counts: Callable[[Row], bool] = lambda row: True  # noqa: E731
    if author.chance.random() < 0.4:
        written, counts = author.condition(table)
        table = replace(table, relation=table.relation.where(written))
    other, names = _renamed(author, table, ())
    mine, how = author.one(plan.of("int")), author.chance.choice(("inner", "left"))
    joining = means.Joining(tuple(plan.kinds), tuple(other.kinds), ((mine, names["id"]),), how)

    late = micros(lateness(plan.relation.node))

    def said(row: Row) -> Row | None:
        return {names[name]: value for name, value in row.items()} if counts(row) else None

    relation = plan.relation.join(other.relation, f"{mine} = {names['id']}", how, as_of=plan.time)  # type: ignore[arg-type]
    return _beside(plan, other, joining, relation, means.as_of_join(joining, plan.meaning, plan.time, said, late))


def _percolate(author: Author, plan: Plan) -> Plan:
    """With conditions that the table's rows are made into: each has a number to compare with."""
    if plan.time is None:
        raise Unfit
    table, sign = author.sources["u"], author.chance.choice(("<", ">=", "="))
    number, mine = author.one(table.of("int")), author.one(plan.of("int"))
    key, value, condition = (author.name() for _ in range(3))
    made = f"concat('{mine} {sign} ', coalesce(cast({number} AS string), '0'))"
    queries = table.relation.select(f"id AS {key}", f"{number} AS {value}", f"{made} AS {condition}")
    holds = {"<": int.__lt__, ">=": int.__ge__, "=": int.__eq__}[sign]
    late = micros(lateness(plan.relation.node))

    def met(row: Row, said: Row) -> Row | None:
        is_true = row[mine] is not None and holds(row[mine], said[number] or 0)
        return {**row, key: said["id"], value: said[number]} if is_true else None

    relation = plan.relation.percolate(queries, condition, f"{mine} long")
    kinds = plan.kinds | {key: table.kinds["id"], value: table.kinds[number]}
    return Plan(relation, kinds, means.percolate(plan.meaning, plan.time, met, late))


def _history(author: Author, plan: Plan) -> Plan:
    """Of the table; what was there is let go of."""
    table = author.sources["u"]
    kinds = table.kinds | {"valid_from": "time", "valid_to": "time"}
    return Plan(table.relation.history(), kinds, means.history())


def _regular_join(author: Author, plan: Plan) -> Plan:
    """Of tables, of streams, or of one of each."""
    stream = author.chance.random() < (0.5 if plan.is_stream else 0.2)
    like = author.windows and author.chance.random() < 0.7
    beside = author.in_windows() if like else _another(author, stream)
    other, joining, on = _join(author, plan, beside, "inner inner left right full semi anti")
    relation = plan.relation.join(other.relation, on, joining.how)  # type: ignore[arg-type]
    return _beside(plan, other, joining, relation, means.table_join(joining, plan.meaning, other.meaning))


OPERATORS: dict[str, Callable[[Author, Plan], Plan]] = {
    "where": _where,
    "select": _select,
    "aggregate": _aggregate,
    "tumbling": _windowed("tumbling"),
    "hopping": _windowed("hopping"),
    "session": _windowed("session"),
    "sliding": _windowed("sliding"),
    "distinct": _distinct,
    "top": _top,
    "over": _over,
    "deduplicate": _deduplicate,
    "explode": _explode,
    "unpivot": _unpivot,
    "map_batches": _map_batches,
    "map_groups": _map_groups,
    "match": _match,
    "union": _union,
    "interval join": _interval_join,
    "as-of join": _as_of_join,
    "regular join": _regular_join,
    "history": _history,
    "percolate": _percolate,
}
_NEWER = ("unpivot", "map_batches", "history", "percolate", "match")
_OFTEN = {
    "tumbling": 2, "hopping": 2, "session": 3, "sliding": 2, "deduplicate": 3, "interval join": 7, "as-of join": 4, "regular join": 3,
    "explode": 2, "percolate": 4, "unpivot": 6, "match": 6, "map_batches": 3, "map_groups": 0.6, "distinct": 0.6, "over": 1.5,
}  # fmt: skip
"""How much more often than others an operator is tried first."""
