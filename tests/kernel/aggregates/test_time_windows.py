"""Windows and what looks at neighbours, as whole chains with admission, marks and buckets, against all rows at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millstream.errors import PlanError
from millstream.frame import rows, span
from millstream.kernel.schemas import raw_schemas
from millstream.kernel.state.store import FOREVER
from millstream.plan.build import Chain, ViewPlan, build_chain
from millstream.relation.nodes import Aggregation, Column, Emit, How, Late, Source
from millstream.relation.properties import natural_key
from millstream.relation.relation import Relation
from millstream.window import hopping, session, sliding, tumbling
from tests.kernel import oracle
from tests.kernel.local import STAMP, Local, Rec, hashable, types_by_name
from tests.kernel.operators import test_session
from tests.kernel.operators.test_aggregate import (
    LATENESS,
    PARTITIONS,
    SECOND,
    SIZE,
    SQL,
    TYPES,
    WINDOWED,
    batches,
    events,
    row,
    windowed_source,
)  # fmt: skip

few = settings(max_examples=3, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
seeds = given(seed=st.integers(0, (1 << 32) - 1))

Rows = list[dict[str, Any]]
Expected = Callable[[Rows, int], Counter[Any]]
COUNT = Aggregation("n", "count")
TOTAL = Aggregation("total", "sum", ("f",))


def chain_of(relation: Relation, emit: Emit = "changes", buckets: int = 2) -> Chain:
    view = ViewPlan("view", relation.node, "sqlite:x", emit, natural_key(relation.node))
    return build_chain([view], buckets=buckets, to="sqlite:x")


@dataclass(frozen=True)
class Case:
    """A relation over a stream, and what it should be: of the rows so far, as seen at a mark."""

    relation: Callable[[Relation], Relation]
    expected: Expected
    forgets: bool = True
    once: bool = True
    """Whether a final row is never taken back."""


def _hops(size: int, every: int) -> Case:
    def expected(rows: Rows, mark: int) -> Counter[Any]:
        return oracle.reduce(rows, ("k",), WINDOWED, size, mark, every)

    window = hopping("at", f"{size // SECOND} seconds", f"{every // SECOND} seconds")
    return Case(lambda stream: _windowed(stream, window), expected)


def _windowed(stream: Relation, window: Any, *keys: str) -> Relation:
    calls = {each.name: f"{each.function}({', '.join(each.arguments) or '*'})" for each in WINDOWED}
    calls["distinct_i"] = "count(DISTINCT i)"
    return stream.group_by(*(keys or ("k",)), window).agg(**calls)


def _sessions(rows: Rows, mark: int) -> Counter[Any]:
    return test_session.sessions(rows, ("k",), (COUNT, TOTAL), mark)  # type: ignore[arg-type]


def _slides(rows: Rows, mark: int) -> Counter[Any]:
    made: Counter[Any] = Counter()
    for each in rows:
        end = oracle.moment(each["at"])
        inside = [
            other
            for other in rows
            if hashable(other["k"]) == hashable(each["k"]) and end - SIZE <= oracle.moment(other["at"]) <= end
        ]
        if end < mark:
            measures = (oracle.aggregate(measure, inside) for measure in (COUNT, TOTAL))
            made[hashable((each["k"], oracle.stamp(end - SIZE), each["at"], *measures))] += 1
    return made


def _tops(rows: Rows, mark: int) -> Counter[Any]:
    groups = list(oracle.reduce(rows, ("k",), (COUNT,), SIZE, mark))
    starts = {group[1] for group in groups}
    place = lambda group: (-group[3], group[0] is not None, group[0])  # noqa: E731
    return Counter(
        group for start in starts for group in sorted((each for each in groups if each[1] == start), key=place)[:2]
    )


def _most(rows: Rows, mark: int) -> Counter[Any]:
    groups = list(oracle.reduce(rows, ("k",), (COUNT,), SIZE, mark, SIZE // 3))
    most = {start: max(group[3] for group in groups if group[1] == start) for _, start, *_ in groups}
    return Counter(group for group in groups if group[3] == most[group[1]])


def _meeting(how: How) -> Case:
    """Counts of windows with those of the rows with i > 0 in the same window."""

    def relation(stream: Relation) -> Relation:
        left = stream.group_by("k", tumbling("at", "1 minute")).agg(n="count(*)")
        right = stream.where("i > 0").group_by("k", tumbling("at", "1 minute")).agg(m="count(*)")
        return left.join(right, ["k", "window_start", "window_end"], how)

    def expected(rows: Rows, mark: int) -> Counter[Any]:
        some = [each for each in rows if each["i"] is not None and each["i"] > 0]
        partners = {group[:3]: group[3] for group in oracle.reduce(some, ("k",), (COUNT,), SIZE, mark)}
        groups = oracle.reduce(rows, ("k",), (COUNT,), SIZE, mark)
        kept = [each for each in groups if each[0] is not None or how in ("left", "anti")]  # null equals nothing
        found = [(each, None if each[0] is None else partners.get(each[:3])) for each in kept]
        if how == "anti":
            return Counter(each for each, partner in found if partner is None)
        return Counter((*each, partner) for each, partner in found if how == "left" or partner is not None)

    return Case(relation, expected)


def _first_meetings(rows: Rows, mark: int) -> Counter[Any]:
    met = sorted(_meeting("inner").expected(rows, mark), key=lambda each: (-each[3] - each[4], each[0]))
    ends = [each[2] for each in met]
    return Counter(each for at, each in enumerate(met) if each[2] not in ends[:at])


def _lags(rows: Rows, mark: int) -> Counter[Any]:
    groups = sorted(oracle.reduce(rows, ("k",), (COUNT,), SIZE, mark), key=lambda group: group[1])
    made: Counter[Any] = Counter()
    for group in groups:
        before = [other[3] for other in groups if other[0] == group[0] and other[1] < group[1]]
        lately = [*before[-2:], group[3]]
        made[*group, before[-1] if before else None, sum(lately) / len(lately)] += 1
    return made


def _firsts(rows: Rows, mark: int) -> Counter[Any]:
    return Counter(
        {
            tuple(each[name] for name in ("k", "at", "i")): 1
            for each in _first_rows(rows)
            if oracle.moment(each["at"]) < mark
        }
    )


def _first_rows(rows: Rows) -> Rows:
    made: Rows = []
    last: dict[Any, int] = {}
    place = lambda each: (each["at"], each["i"] is not None, each["i"])  # noqa: E731
    for each in sorted(rows, key=place):
        at = oracle.moment(each["at"])
        if each["k"] not in last or at > last[each["k"]] + SIZE:
            last[each["k"]] = at
            made.append(each)
    return made


def _totals(rows: Rows, mark: int) -> Counter[Any]:
    made: Counter[Any] = Counter()
    for each in rows:
        at = oracle.moment(each["at"])
        near = [
            other["i"] for other in rows if other["k"] == each["k"] and at - SIZE <= oracle.moment(other["at"]) <= at
        ]
        if at < mark:
            made[each["k"], each["at"], each["i"], oracle.total([value for value in near if value is not None])] += 1
    return made


CASES = {
    "hopping": _hops(SIZE, SIZE // 3),
    "hopping by no divisor": _hops(50 * SECOND, 20 * SECOND),
    "session": Case(
        lambda stream: stream.group_by("k", session("at", "20 seconds")).agg(n="count(*)", total="sum(f)"), _sessions
    ),
    "sliding": Case(
        lambda stream: stream.group_by("k", sliding("at", "1 minute")).agg(n="count(*)", total="sum(f)"), _slides
    ),
    "the first of each window": Case(
        lambda stream: (
            stream.group_by("k", tumbling("at", "1 minute")).agg(n="count(*)").top(2, "n DESC", "window_start")
        ),
        _tops,
    ),
    "those with most in each window": Case(
        lambda stream: (
            stream.group_by("k", hopping("at", "1 minute", "20 seconds"))
            .agg(n="count(*)")
            .top(1, "n DESC", ["window_start", "window_end"], ties="rank")
        ),
        _most,
    ),
    "windows that meet": _meeting("inner"),
    "windows that meet or do not": _meeting("left"),
    "windows that do not meet": _meeting("anti"),
    "the first of windows that meet": Case(
        lambda stream: _meeting("inner").relation(stream).top(1, "n + m DESC", "window_end"), _first_meetings
    ),
    "the window before, and a moving average": Case(
        lambda stream: (
            stream.group_by("k", tumbling("at", "1 minute"))
            .agg(n="count(*)")
            .over("k", "window_start", rows(2))
            .add(before="lag(n)", lately="avg(n)")
        ),
        _lags,
        forgets=False,
    ),
    "repeats": Case(lambda stream: stream.select("k", "at", "i").deduplicate("k", "1 minute"), _firsts),
    "windows of what is no repeat": Case(
        lambda stream: (
            stream.select("k", "at", "i")
            .deduplicate("k", "1 minute")
            .group_by(tumbling("at", "1 minute"))
            .agg(n="count(*)")
        ),
        lambda rows, mark: oracle.reduce(_first_rows(rows), (), (COUNT,), SIZE, mark),
    ),
    "sessions over a union": Case(
        lambda stream: (
            stream.select("k", "at", "f")
            .union(stream.where("i > 0").select("k", "at", "f"))
            .group_by("k", session("at", "20 seconds"))
            .agg(n="count(*)", total="sum(f)")
        ),
        lambda rows, mark: _sessions(
            [*rows, *(each for each in rows if each["i"] is not None and each["i"] > 0)], mark
        ),
    ),
    "sums of the last minute": Case(
        lambda stream: stream.select("k", "at", "i").over("k", "at", span("1 minute")).add(total="sum(i)"), _totals
    ),
}


def check(chance: Random, name: str, late: Late = "drop") -> None:
    """Changes and final rows are what all rows give, as far as the mark lets them be seen; in the end no state is left."""
    case = CASES[name]
    source = windowed_source(late, LATENESS if late == "correct" else 0)
    relation = case.relation(Relation(source))
    types = {0: TYPES}
    locals_ = {
        emit: Local(chain_of(relation, emit), PARTITIONS, types, chance.randrange(100)) for emit in ("changes", "final")
    }
    judge = oracle.Judge(source, PARTITIONS)
    for records in events(chance):
        judge.batch(records)
        there = [record.values for record in judge.admitted]
        for emit, local in locals_.items():
            local.batch(records)
            assert local.view("view") == case.expected(there, judge.mark if emit == "final" else FOREVER), emit
    for local in locals_.values():
        local.close()
        assert local.view("view") == case.expected([record.values for record in judge.admitted], FOREVER)
        if case.forgets:
            assert (local.state_rows, local.kept_segments) == (0, 0)
    if case.once and late != "correct":
        taken_back = [found for sent in locals_["final"].sent for found in sent.get("view", {}).values() if found < 0]
        assert not taken_back


@pytest.mark.parametrize("late", ["drop", "correct"])
@pytest.mark.parametrize("name", CASES)
@seeds
@few
def test_whole_chains_are_what_all_rows_give(name: str, late: Late, seed: int) -> None:
    check(Random(seed), name, late)


def check_tables(chance: Random, name: str) -> None:
    """Over a table and over a stream without time: after every batch what all rows give."""
    table = chance.random() < 0.5
    columns = tuple(Column(name, kind) for name, kind in SQL.items())
    source = Source("table" if table else "stream", "t", "t", columns, key=("id",) if table else ())
    relation, expected = TABLES[name]
    chain = chain_of(relation(Relation(source)))
    local = Local(chain, PARTITIONS, {0: TYPES}, seed=chance.randrange(100))
    seen: list[Rec] = []
    for records in batches(chance, lambda: row(chance), table):
        seen += records
        local.batch(records)
        there = oracle.latest(seen, ("id",)) if table else [record.values for record in seen]
        assert local.view("view") == expected(there)  # type: ignore[arg-type]


def _spread(frame: pl.DataFrame) -> pl.DataFrame:
    """A function of a user's: the least and the greatest of a key."""
    return frame.select(pl.col("i").min().alias("least"), pl.col("i").max().alias("most"), pl.len().alias("n"))


def _of_groups(rows: Rows) -> Counter[Any]:
    made: Counter[Any] = Counter()
    for key in {each["k"] for each in rows}:
        mine = [each["i"] for each in rows if each["k"] == key]
        known = [value for value in mine if value is not None]
        made[key, min(known, default=None), max(known, default=None), len(mine)] += 1
    return made


TABLES: dict[str, tuple[Callable[[Relation], Relation], Callable[[Rows], Counter[Any]]]] = {
    "distinct": (
        lambda relation: relation.select("k", "s").distinct(),
        lambda rows: Counter({(each["k"], each["s"]): 1 for each in rows}),
    ),
    "map_groups": (
        lambda relation: relation.map_groups(_spread, "k", "least long, most long, n long"),
        _of_groups,
    ),
    "union": (
        lambda relation: relation.select("k", "i").union(relation.where("i > 0").select("k", "i")),
        lambda rows: (
            Counter((each["k"], each["i"]) for each in rows)
            + Counter((each["k"], each["i"]) for each in rows if each["i"] is not None and each["i"] > 0)
        ),
    ),
    "union with an aggregate": (
        lambda relation: relation.select("k", "i").union(relation.group_by("k").agg(i="count(*)")),
        lambda rows: (
            Counter((each["k"], each["i"]) for each in rows) + Counter(Counter(each["k"] for each in rows).items())
        ),
    ),
    "percentiles": (
        lambda relation: relation.group_by("k").agg(half="median(i)", high="percentile(i, 0.9)"),
        lambda rows: oracle.reduce(
            rows,
            ("k",),
            (Aggregation("half", "percentile", ("i",), 0.5), Aggregation("high", "percentile", ("i",), 0.9)),
        ),
    ),
}


@pytest.mark.parametrize("name", TABLES)
@seeds
@few
def test_operators_without_time_are_what_all_rows_give(name: str, seed: int) -> None:
    check_tables(Random(seed), name)


@pytest.mark.parametrize("name", [*CASES, *TABLES])
def test_types_are_known_before_any_row_comes(name: str) -> None:
    stream = Relation(windowed_source("drop", 0))
    relation = CASES[name].relation(stream) if name in CASES else TABLES[name][0](stream)
    chain = chain_of(relation)
    local = Local(chain, PARTITIONS, {0: TYPES})
    known = raw_schemas(chain, local.host.types)["view"]
    assert tuple(known) == relation.columns
    local.batch([Rec(0, 0, i, 0, {**row(Random(1)), "at": oracle.stamp(0), "k": i, "i": i}) for i in (0, 1)])
    found = pl.DataFrame([list(each) for each in local.view("view")], schema=known, orient="row")
    assert found.height


def test_explode_gives_a_row_for_each_element_and_none_for_an_empty_array() -> None:
    columns = (Column("id", "long"), Column("tags", "array<string>"))
    relation = Relation(Source("table", "t", "t", columns, key=("id",))).explode("tags", as_="tag")
    assert relation.columns == ("id", "tags", "tag")
    counted = chain_of(relation.group_by("tag").agg(n="count(*)"))
    local = Local(counted, 1, {0: {"id": pl.Int64, "tags": pl.List(pl.String)}})
    local.batch(
        [Rec(0, 0, at, values={"id": at, "tags": tags}) for at, tags in enumerate((["a", "b", "a"], [], None, ["b"]))]
    )
    assert local.view("view") == Counter({("a", 2): 1, ("b", 2): 1})
    local.batch([Rec(0, 0, 4, values={"id": 0, "tags": ["c"]})])
    assert local.view("view") == Counter({("b", 1): 1, ("c", 1): 1})


def test_an_unpivoted_row_that_changes_or_goes_takes_all_of_its_rows_along() -> None:
    columns = (Column("id", "long"), Column("day", "double"), Column("night", "double"))
    rooms = Relation(Source("table", "t", "t", columns, key=("id",)))
    relation = rooms.unpivot("id", None, "part", "degrees")
    warm = relation.where("degrees IS NULL OR degrees > 1").group_by("part").agg(n="count(*)", s="sum(degrees)")
    types = {0: {"id": pl.Int64, "day": pl.Float64, "night": pl.Float64}}
    local = Local(chain_of(relation), 1, types)
    counted = Local(chain_of(warm), 1, types)

    def batch(*rows: Rec) -> None:
        local.batch(list(rows))
        counted.batch(list(rows))

    batch(
        Rec(0, 0, 0, values={"id": 1, "day": 2.0, "night": 3.0}),
        Rec(0, 0, 1, values={"id": 2, "day": None, "night": 0.5}),
    )
    assert local.view("view") == Counter([(1, "day", 2.0), (1, "night", 3.0), (2, "day", None), (2, "night", 0.5)])
    assert counted.view("view") == Counter({("day", 2, 2.0): 1, ("night", 1, 3.0): 1})
    batch(Rec(0, 0, 2, values={"id": 1, "day": 0.0, "night": 4.0}))
    assert local.view("view") == Counter([(1, "day", 0.0), (1, "night", 4.0), (2, "day", None), (2, "night", 0.5)])
    assert counted.view("view") == Counter({("day", 1, None): 1, ("night", 1, 4.0): 1})


def test_two_streams_in_a_union_hold_each_others_mark_back() -> None:
    columns = (Column("k", "long"), Column("at", "timestamp"))
    one, two = (
        Relation(Source("stream", name, name, columns, time=windowed_source("drop", 0).time)) for name in ("a", "b")
    )
    both = one.union(two).group_by(tumbling("at", "1 minute")).agg(n="count(*)")
    chain = chain_of(both, "final")
    types = {"k": pl.Int64, "at": STAMP}
    local = Local(chain, 1, types_by_name(chain, {"a": types, "b": types}))
    first, second = (feed.number for feed in chain.feeds)

    def event(feed: int, offset: int, at: int) -> Rec:
        return Rec(feed, 0, offset, at * SECOND, {"k": 1, "at": oracle.stamp(at * SECOND)})

    local.batch([event(first, 0, 1), event(first, 1, 200)])
    assert not local.view("view")
    local.batch([event(second, 0, 2), event(second, 1, 100)])
    assert local.view("view") == Counter({(oracle.stamp(0), oracle.stamp(SIZE), 2): 1})


def test_a_union_of_different_types_is_refused_before_any_row_comes() -> None:
    stream = Relation(windowed_source("drop", 0))
    chain = chain_of(stream.select("k", "i").union(stream.select("k", "f AS i")))
    local = Local(chain, PARTITIONS, {0: TYPES})
    with pytest.raises(PlanError, match="column i is of type Int64 in one relation and Float64 in another"):
        raw_schemas(chain, local.host.types)


@pytest.mark.parametrize("emit", ["changes", "final"])
@pytest.mark.parametrize("name", ["those with most in each window", "windows that meet or do not"])
def test_what_comes_after_windows_keeps_no_more_than_those_that_are_open(name: str, emit: Emit) -> None:
    """Forty minutes of it are as large as twenty."""
    chain = chain_of(CASES[name].relation(Relation(windowed_source("drop", 0))), emit)
    local = Local(chain, 1, {0: TYPES})
    held = []
    for number in range(80):
        at = oracle.stamp(number * 30 * SECOND)
        values = {"id": number, "k": number % 3, "at": at, "i": number % 2}
        local.batch([Rec(0, 0, number, number * 30 * SECOND, values)])
        held.append(local.state_rows)
    assert max(held[40:]) <= max(held[:40])
    assert max(held) <= 40
    local.close()
    assert local.kept_segments == 0
