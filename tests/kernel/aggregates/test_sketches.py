"""Approximate aggregates against exact answers: how far they are off, what they do with odd values, and what state they leave."""

from __future__ import annotations

import bisect
import math
import sys
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from random import Random
from typing import Any

import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millstream import Pipeline, Relation
from millstream.errors import MachineError, PipelineError, PlanError
from millstream.explain.explain import explain
from millstream.frame import rows
from millstream.kernel.aggregates.sketches import looked, merged, sketched
from millstream.kernel.state.store import FOREVER, Meta
from millstream.plan.spec import Measure, Reduce, Session
from millstream.relation.nodes import Emit
from millstream.window import session, sliding, tumbling
from tests.kernel.alone import SECOND, TYPES, Alone, Change, Row, Script
from tests.kernel.local import STAMP
from tests.kernel.oracle import moment, stamp

few = settings(max_examples=5, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
seeds = given(seed=st.integers(0, (1 << 32) - 1))

SIZE = GAP = 20 * SECOND
FRACTIONS = (0.0, 0.01, 0.25, 0.5, 0.9, 0.99, 1.0)
OFF = 0.08
"""How far the rank of an answer for p may be off, times p·(1 − p); one place is always allowed."""

SHAPES: dict[str, Any] = {
    "normal": lambda chance: chance.gauss(0, 1),
    "long tail": lambda chance: chance.lognormvariate(2, 3),
    "few values": lambda chance: float(chance.randrange(10)),
    "two heaps": lambda chance: chance.gauss(0, 1) + chance.choice((0, 1e6)),
    "all scales": lambda chance: 2.0 ** chance.randrange(-300, 300),
    "integers": lambda chance: chance.randrange(-(1 << 53), 1 << 53),
}


def off_by(values: list[float], answer: float, fraction: float) -> float:
    """How far, in parts of all values, an answer lies from the place it should have."""
    low, high = bisect.bisect_left(values, answer), bisect.bisect_right(values, answer)
    at = fraction * (len(values) - 1)
    return max(0.0, low - at - 1, at - high) / len(values)


def in_parts(chance: Random, values: list[Any], dtype: Any, function: str) -> pl.DataFrame:
    """The sketch of all values, which came in several batches, and its sketches merged one by one."""
    frame = pl.DataFrame({"g": [0] * len(values), "v": pl.Series(values, dtype=dtype)})
    cuts = sorted(chance.randrange(len(values) + 1) for _ in range(chance.choice((0, 3, 20))))
    made = None
    for low, high in zip([0, *cuts], [*cuts, len(values)], strict=True):
        came = sketched(function, frame[low:high], "v", ["g"])
        made = came if made is None else merged(function, pl.concat([made, came]), ["g"])
    assert made is not None
    return made


@few
@seeds
@pytest.mark.parametrize("shape", SHAPES)
def test_a_percentile_has_nearly_the_rank_that_was_asked_for(shape: str, seed: int) -> None:
    chance = Random(seed)
    values = [SHAPES[shape](chance) for _ in range(chance.choice((1, 2, 50, 3_000, 20_000)))]
    dtype = pl.Int64 if shape == "integers" else pl.Float64
    made = looked("approx_percentile", in_parts(chance, values, dtype, "approx_percentile"), FRACTIONS, ["g"])
    values.sort()
    for fraction in FRACTIONS:
        (answer,) = made[f"_value_{fraction}"]
        assert off_by(values, answer, fraction) <= OFF * fraction * (1 - fraction), (fraction, answer)
    assert (made["_value_0.0"][0], made["_value_1.0"][0]) == (values[0], values[-1])


@few
@seeds
@pytest.mark.parametrize("shape", ["integers", "doubles", "text", "lists"])
def test_distinct_values_are_counted_within_five_percent_however_they_came(shape: str, seed: int) -> None:
    chance = Random(seed)
    size = chance.choice((1, 20, 1_000, 30_000))
    makers: dict[str, Callable[[int], Any]] = {
        "integers": int,
        "doubles": lambda n: n / 7,
        "text": str,
        "lists": lambda n: [n, None],
    }
    values: list[Any] = [makers[shape](chance.randrange(size)) for _ in range(size)]
    dtype = pl.Series(values).dtype
    (answer,) = looked(
        "approx_count_distinct", one := in_parts(chance, values, dtype, "approx_count_distinct"), (), ["g"]
    )["_value"]
    exact = len(set(map(str, values)))
    assert abs(answer - exact) <= 0.05 * exact
    chance.shuffle(values)
    assert one.rows() == in_parts(chance, values, dtype, "approx_count_distinct").rows(), (
        "other batches, another sketch"
    )


def test_few_distinct_values_are_counted_exactly() -> None:
    for size in range(1, 50):
        made = in_parts(Random(size), list(range(size)), pl.Int64, "approx_count_distinct")
        assert looked("approx_count_distinct", made, (), ["g"])["_value"].to_list() == [size]


def test_nan_and_both_zeros_are_one_value_each() -> None:
    values = [0.0, -0.0, math.nan, -math.nan, None, math.inf, 1.5]
    made = in_parts(Random(1), values, pl.Float64, "approx_count_distinct")
    assert looked("approx_count_distinct", made, (), ["g"])["_value"].to_list() == [4]


def test_nan_is_the_greatest_and_the_infinities_keep_their_places() -> None:
    values = [None, math.nan, math.inf, 2.0, None, -math.inf, 1.0, 1e301, -1.7e308, math.nan]
    for seed in range(5):
        made = in_parts(Random(seed), values, pl.Float64, "approx_percentile")
        fractions = [place / 7 for place in range(8)]
        (row,) = looked("approx_percentile", made, fractions, ["g"]).drop("g").rows()
        expected = [-math.inf, -math.inf, 1.0, 2.0, math.inf, math.inf, math.nan, math.nan]
        assert str(row) == str(tuple(expected))


def test_decimals_are_numbers_and_text_is_none() -> None:
    made = in_parts(Random(1), [Decimal("1.25"), None, Decimal("9.75")], pl.Decimal(9, 2), "approx_percentile")
    assert looked("approx_percentile", made, (0.0, 1.0), ["g"]).drop("g").rows() == [(1.25, 9.75)]
    with pytest.raises(PipelineError, match="expected numbers; found String"):
        in_parts(Random(1), ["a"], pl.String, "approx_percentile")


MEASURES = (
    Measure("n", "count", ()),
    Measure("middle", "approx_percentile", ("i",), 0.5),
    Measure("high", "approx_percentile", ("i",), 1.0),
    Measure("kinds", "approx_count_distinct", ("s",)),
)


WINDOWED = {**TYPES, "window_start": STAMP}


def windowed(row: Row) -> Change:
    """The row as a reduction by windows gets it: with its time where the start of its window will be."""
    return {**row, "window_start": row["at"]}, 1


def sketches_of(alone: Alone) -> list[dict[int, bytes]]:
    """The segments of the tables of sketches, as they are stored."""
    tables = [at for at, name in enumerate(Meta.read(alone.store).tables) if "approx" in name]
    return [{n: data for n, data in alone.store.segments.items() if n >> 40 == at} for at in tables]


def exact(rows_: list[dict[str, Any]]) -> tuple[Any, ...]:
    """What :data:`MEASURES` must be for few rows; the middle is checked by its rank."""
    numbers = sorted(row["i"] for row in rows_ if row["i"] is not None)
    return len(rows_), numbers, numbers[-1] if numbers else None, len({row["s"] for row in rows_} - {None})


def agree(found: dict[Any, tuple[Any, ...]], expected: dict[Any, list[dict[str, Any]]]) -> None:
    assert set(found) == set(expected)
    for key, (n, middle, high, kinds) in found.items():
        count, numbers, greatest, different = exact(expected[key])
        assert (n, high, kinds) == (count, greatest, different), key
        assert (middle is None) if not numbers else off_by(numbers, middle, 0.5) == 0, key


@few
@seeds
@pytest.mark.parametrize("emit", ["changes", "final"])
@pytest.mark.parametrize("every", [None, SIZE // 2], ids=["tumbling", "hopping"])
def test_windows_hold_what_came_in_them_and_are_forgotten(emit: Emit, every: int | None, seed: int) -> None:
    chance = Random(seed)
    lateness = chance.choice((0, 45 * SECOND))
    alone = Alone(Reduce(("k",), MEASURES, SIZE, emit, lateness, every=every), WINDOWED)
    script = Script(chance, lateness=lateness)
    for _ in range(chance.randint(2, 8)):
        alone.batch([windowed(row) for row, _ in script.batch()], script.mark)
        expected = defaultdict(list)
        for row in script.there:
            at = moment(row["at"])
            for start in range(at - at % (every or SIZE), at - SIZE, -(every or SIZE)):
                if emit == "changes" or start + SIZE <= script.mark:
                    expected[row["k"], stamp(start)].append(row)
        agree({(row[0], row[1]): row[2:6] for row in alone.rows}, expected)
    script.close()
    alone.batch([], script.mark)
    assert (alone.held, alone.segments) == (0, 0)


@few
@seeds
@pytest.mark.parametrize("emit", ["changes", "final"])
def test_sessions_that_merge_have_one_sketch(emit: Emit, seed: int) -> None:
    chance = Random(seed)
    alone, script = Alone(Session(("k",), MEASURES, "at", GAP, emit)), Script(chance)
    for _ in range(chance.randint(2, 8)):
        alone.batch(script.batch(), script.mark)
        expected = defaultdict(list)
        for key in {row["k"] for row in script.there}:
            mine: list[dict[str, Any]] = []
            ordered = sorted((row for row in script.there if row["k"] == key), key=lambda row: row["at"])
            for row, next_ in zip(ordered, [*ordered[1:], None], strict=True):
                mine.append(row)
                end = row["at"] + timedelta(microseconds=GAP)
                if next_ is None or next_["at"] > end:
                    if emit == "changes" or moment(end) < script.mark:
                        expected[key, mine[0]["at"], end] = mine
                    mine = []
        agree({row[:3]: row[3:7] for row in alone.rows}, expected)
    script.close()
    alone.batch([], script.mark)
    assert (alone.held, alone.segments) == (0, 0)


@pytest.mark.parametrize(
    "spec",
    [Reduce(("k",), MEASURES), Reduce((), MEASURES, SIZE), Session(("k",), MEASURES, "at", GAP)],
    ids=["groups", "windows", "sessions"],
)
def test_a_batch_that_runs_again_leaves_the_same_state(spec: Reduce | Session) -> None:
    chance = Random(7)
    one, other = Alone(spec, WINDOWED, 16_384), Alone(spec, WINDOWED, 16_384)
    for batch in range(4):
        changes: list[Change] = [
            windowed({"k": n % 3, "at": stamp(chance.randrange(SIZE)), "i": chance.randrange(10**6), "s": str(n)})
            for n in range(batch, 12_000 + batch)
        ]
        one.batch(changes)
        other.batch(chance.sample(changes, len(changes)))
        assert one.rows == other.rows
        assert all(sketches_of(one))
        assert sketches_of(one) == sketches_of(other)


def test_state_does_not_grow_with_the_rows() -> None:
    alone = Alone(Reduce((), MEASURES), limit=16_384)
    chance, sizes = Random(3), []
    for _ in range(10):
        alone.batch([({"i": chance.randrange(10**9), "s": str(chance.random())}, 1) for _ in range(5_000)])
        sizes.append(sum(map(len, alone.store.segments.values())))
    assert sizes[-1] < 16_000
    assert sizes[-1] < 1.5 * sizes[2]


@pytest.mark.parametrize(
    "spec", [Reduce(("k",), MEASURES), Session(("k",), MEASURES, "at", GAP)], ids=["groups", "sessions"]
)
def test_a_row_counts_as_often_as_it_came_and_cannot_be_taken_back(spec: Reduce | Session) -> None:
    alone, row = Alone(spec), {"k": 1, "at": stamp(0), "s": "a"}
    alone.batch([({**row, "i": 1}, 1), ({**row, "i": 9}, 3)])
    assert [each[-4:] for each in alone.rows] == [(4, 9.0, 9.0, 1)]
    with pytest.raises(ValueError, match="negative"):
        alone.batch([({**row, "i": 9}, -1)])


def test_a_group_of_nulls_has_no_percentile_and_no_values() -> None:
    alone = Alone(Reduce(("k",), MEASURES), dict(TYPES))
    alone.batch([({"k": 1}, 1)])
    assert set(alone.rows) == {(1, 1, None, None, 0)}
    alone.batch([({"k": 1, "i": 4, "s": "a"}, 1), ({"k": 1}, 1)], FOREVER)
    assert set(alone.rows) == {(1, 3, 4.0, 4.0, 1)}


def shop() -> tuple[Pipeline, Relation, Relation]:
    made = Pipeline("shop", log="sqlite:log.db", to="sqlite:views.db")
    clicks = made.stream("clicks", "user long, ms double, at timestamp", time="at", late="correct", lateness="1 minute")
    return made, clicks, made.table("users", "id long, age long", key="id")


def test_rows_that_can_be_taken_back_are_refused_where_it_is_said() -> None:
    _, clicks, users = shop()
    taken_back = [
        users.group_by(),
        clicks.group_by("user").agg(n="count(*)", ms="sum(ms)").group_by(),
        clicks.join(users, on="user = id", as_of="at").group_by(),
        clicks.deduplicate("user").group_by(),
    ]
    for grouped in taken_back:
        column = "age" if grouped is taken_back[0] else "ms"
        with pytest.raises(
            PlanError, match=r"test_sketches.*: aggregate p: approx_percentile is for rows that only come"
        ) as caught:
            grouped.agg(p=f"approx_percentile({column}, 0.5)")
        assert "percentile(e, p) is exact" in caught.value.hint


def test_sliding_windows_and_frames_keep_their_rows_and_refuse_sketches() -> None:
    _, clicks, _ = shop()
    with pytest.raises(PlanError, match="approx_count_distinct saves nothing over a sliding window"):
        clicks.group_by("user", sliding("at", "1 minute")).agg(n="approx_count_distinct(user)")
    with pytest.raises(PlanError, match="approx_percentile saves nothing over a frame"):
        clicks.over(partition="user", order="at", frame=rows(2, 0)).add(p="approx_percentile(ms, 0.5)")


def test_a_percentile_needs_to_know_which() -> None:
    _, clicks, _ = shop()
    with pytest.raises(PlanError, match="approx_percentile takes 2 arguments; found 1"):
        clicks.group_by().agg(p="approx_percentile(ms)")
    with pytest.raises(PlanError, match="a number from 0 to 1; found 95"):
        clicks.group_by().agg(p="approx_percentile(ms, 95)")


def test_without_the_library_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    _, clicks, _ = shop()
    with pytest.raises(MachineError, match="needs the library datasketches") as caught:
        clicks.group_by().agg(n="approx_count_distinct(user)")
    assert "pip install 'millstream[sketches]'" in caught.value.hint
    clicks.group_by().agg(n="count(DISTINCT user)")


def test_explain_says_that_an_answer_is_approximate_and_what_verify_makes_of_it() -> None:
    made, clicks, _ = shop()
    made.view("slow", clicks.group_by(tumbling("at", "1 minute")).agg(p="approx_percentile(ms, 0.99)"))
    made.view("people", clicks.group_by(session("at", "1 minute")).agg(n="approx_count_distinct(user)"))
    made.view("ever", clicks.group_by().agg(n="approx_count_distinct(user)"))
    told = str(explain(made))
    assert "a sketch of ms: approx_percentile(ms, 0.99) is approximate" in told
    assert "a sketch of user: approx_count_distinct(user) is approximate" in told
    slow, people, ever = explain(made).views
    assert [bool(each.not_replayable) for each in (slow, people, ever)] == [True, False, False]
    assert "not replayable: view slow" in told
    assert "verify may find other rows" in told
    assert not ever.unbounded, "a sketch does not grow"
