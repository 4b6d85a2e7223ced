"""Random plans over random logs: streamed = batch, after every batch and however the log is cut.

``MILLSTREAM_PLANS=5000 pytest tests/kernel/test_plans.py`` tries more of them. A failure names its seed.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from millstream.errors import PipelineError
from millstream.kernel import host
from millstream.kernel.arrow import from_bytes, to_bytes
from millstream.kernel.exchange import chunk
from millstream.kernel.kernel import Kernel, State
from millstream.kernel.operators.kernel_of import kernel_of
from millstream.kernel.state.segments import PLACE, Table
from millstream.kernel.state.store import Memory, Meta
from millstream.plan import spec as specs
from millstream.plan.build import Chain, ViewPlan, build_chain
from millstream.relation.nodes import Emit, Join, Node, Percolate, inputs_of
from millstream.relation.properties import has_window, natural_key
from tests.kernel.local import Local, Rec, hashable
from tests.kernel.oracle import stamp
from tests.kernel.plan_log import START, Log, Shop, cut, feed, random_log, running, uneven
from tests.kernel.plans import OPERATORS, Author, Plan
from tests.kernel.shop import sizes, sources

PLANS = int(os.environ.get("MILLSTREAM_PLANS", "40"))
some = settings(max_examples=PLANS, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
seeds = given(seed=st.integers(0, (1 << 32) - 1))


def views_of(chance: Random, author: Author) -> list[tuple[Plan, Emit]]:
    """Some views, of which one may be over what another is over; with the final rows of those that have an end."""
    plans = [author.plan(chance.randint(1, 5))]
    if chance.random() < 0.4:
        plans.append(author.plan(chance.randint(1, 2), chance.choice((None, plans[0]))))
    emits: list[tuple[Plan, Emit]] = [(plan, "changes") for plan in plans]
    return emits + [(plan, "final") for plan in plans if has_window(plan.relation.node)]


def chain_of(views: list[tuple[Plan, Emit]], buckets: int, tasks: int) -> Chain:
    made = [
        ViewPlan(f"v{number}", plan.relation.node, "sqlite:x", emit, natural_key(plan.relation.node))
        for number, (plan, emit) in enumerate(views)
    ]
    return build_chain(made, buckets=buckets, to="sqlite:x", tasks=tasks)


def agree(local: Local, shop: Shop, views: list[tuple[Plan, Emit]]) -> None:
    """Every view is what all admitted rows give."""
    worlds = {emit: shop.world(emit == "final") for emit in ("changes", "final")}
    for number, (plan, emit) in enumerate(views):
        found = local.view(f"v{number}")
        names = plan.relation.columns
        rows = worlds[emit].see(plan.meaning).rows
        expected = Counter(hashable(tuple(row[name] for name in names)) for row in rows)
        at = [names.index(name) for name in natural_key(plan.relation.node)]
        told = {tuple(row[place] for place in at) for row in expected}
        assert not at or len(told) == expected.total(), f"the key {at} of\n{plan.relation}\ndoes not tell rows apart"
        assert found == expected, f"{emit} of\n{plan.relation}\nmore: {found - expected}\nless: {expected - found}"


def run(
    chain: Chain, log: list[Log], shop: Shop, local: Local, views: list[tuple[Plan, Emit]], each: bool = True
) -> None:
    """Run all batches, then close; look at the views after each batch, or at the end only."""
    for number, records in enumerate(log):
        again = local.copy() if number == 1 else None
        shop.batch(records)
        local.batch(feed(chain, records))
        if each:
            agree(local, shop, views)
        if again is not None:
            again.batch(feed(chain, records))
            assert again.sent[-1] == local.sent[-1], "a batch that runs again gives other changes"
    if not each:
        agree(local, shop, views)
    local.close()
    shop.closed = True
    agree(local, shop, views)


def check(chance: Random, few: bool = False, windows: bool = False, newer: bool = False) -> None:
    """One plan over one log: right after every batch, and the same with other batches, buckets, tasks and speeds of topics."""
    declared, partitions = sources(chance), chance.choice((1, 2))
    views = views_of(chance, Author(chance, declared, few, windows, newer))
    log = random_log(chance, declared, partitions, chance.choice((8, 25, 45)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "kernel_of", in_time(kernel_of))
        patch.setattr(chunk, "PIECE", chance.choice((300, chunk.PIECE)))
        chain = chain_of(views, chance.choice((1, 2, 5)), chance.choice((1, 2)))
        local = running(chain, partitions, chance.randrange(100))
        run(chain, cut(chance, log), Shop(declared, partitions), local, views)
        check_once(local, declared, views)
        chain = chain_of(views, chance.choice((1, 3, 8)), chance.choice((1, 3)))
        other = running(chain, partitions, chance.randrange(100))
        log = log if any(asks_what_came_first(plan.relation.node) for plan, _ in views) else uneven(chance, log)
        run(chain, cut(chance, log), Shop(declared, partitions), other, views, each=False)


def asks_what_came_first(node: Node) -> bool:
    """Whether the answer depends on which of two topics was read first: a table as it was is asked, and nothing else."""
    asks = isinstance(node, Percolate) or (isinstance(node, Join) and bool(node.as_of or node.latest))
    return asks or any(map(asks_what_came_first, inputs_of(node)))


def check_once(local: Local, declared: dict[str, Any], views: list[tuple[Plan, Emit]]) -> None:
    """Where nothing is late, a final row is said once and never taken back."""
    if any(source.time and source.time.lateness for source in declared.values()):
        return
    for number, (plan, emit) in enumerate(views):
        if emit == "final" and plan.once:
            sent = [each.get(f"v{number}", Counter()) for each in local.sent]
            assert all(weight > 0 for each in sent for weight in each.values()), "a final row was taken back"
            said = Counter(row for each in sent for row in each)
            assert all(times == 1 for times in said.values()), "a final row was said again"


def in_time(usual: Callable[[specs.Spec], Kernel]) -> Callable[[specs.Spec], Kernel]:
    """Kernels that look at what comes: no row may be older than the mark it meets allows."""

    def made(spec: specs.Spec) -> Kernel:
        kernel = usual(spec)
        step = kernel.step

        def checked(state: State, *frames: pl.DataFrame | None) -> pl.DataFrame | None:
            for side, frame in enumerate(frames):
                found = _time(spec, side)
                if frame is not None and found is not None and frame.height:
                    name, late = found
                    times = frame[name] if frame[name].dtype == pl.Int64 else frame[name].dt.epoch("us")
                    before = state.sides[side].before if state.sides else state.before
                    if side and isinstance(spec, specs.Reduce):  # sums: of a pane, whose last row may be as old as that
                        late += math.gcd(spec.size or 0, spec.every or spec.size or 0) - 1
                    least = times.min()
                    assert least is None or least >= before - late, f"{spec}: older than its mark"  # type: ignore[operator]
            return step(state, *frames)

        kernel.step = checked  # type: ignore[misc]
        return kernel

    return made


def _time(spec: specs.Spec, side: int) -> tuple[str, int] | None:
    """The column of the time of what comes, and how late it may be."""
    match spec:
        case specs.Reduce(size=int()):
            return "window_start", spec.lateness
        case specs.Session():
            return spec.time, spec.lateness
        case specs.IntervalJoin():
            return "_t", spec.lateness[side]
        case specs.TableJoin(horizon=specs.Horizon(time, span)):
            return time, span
        case specs.AsOfJoin() | specs.Percolate() if side == 0:
            return "_t", spec.lateness
        case specs.Over(until=specs.Horizon(time, span)) | specs.Reduce(horizon=specs.Horizon(time, span)):
            return time, span
        case specs.Over() | specs.Deduplicate() | specs.Top() | specs.Groups() if spec.horizon is not None:
            return spec.horizon.time, spec.horizon.span
        case _:
            return None


@pytest.mark.timeout(300 + 5 * PLANS)
@example(seed=9943223)  # both sides of a join call a column k, and mean two
@seeds
@some
def test_a_plan_gives_after_every_batch_what_all_rows_give(seed: int) -> None:
    check(Random(seed), few=seed % 4 > 0)


@pytest.mark.timeout(300 + 5 * PLANS)
@seeds
@some
def test_a_plan_over_rows_of_windows_gives_what_all_rows_give(seed: int) -> None:
    check(Random(seed), few=seed % 4 > 0, windows=True)


@pytest.mark.timeout(300 + 5 * PLANS)
@seeds
@some
def test_a_plan_of_the_newer_operators_gives_what_all_rows_give(seed: int) -> None:
    check(Random(seed), few=seed % 4 > 0, windows=seed % 3 == 0, newer=True)


def test_plans_are_of_all_operators() -> None:
    taken: Counter[str] = Counter()
    for seed in range(100):
        chance = Random(seed)
        author = Author(chance, sources(chance), newer=seed % 2 > 0)
        views_of(chance, author)
        taken.update(author.taken)
    assert min(taken[name] for name in OPERATORS) >= 5, taken


def test_lists_that_are_all_empty_can_be_read_after_a_gather() -> None:
    lists = pl.DataFrame({"x": [[1, 2], [], None, []]}, schema={"x": pl.List(pl.Int64)})
    lists = lists.with_columns(pl.struct(pl.col("x").alias("y")).alias("z"))
    gathered = pl.concat([lists, lists])[np.array([1, 2, 3])]
    for rows in (gathered, pl.concat([gathered, lists.head(1), gathered])):
        assert from_bytes(to_bytes(rows)).equals(rows)
        placed = rows.with_columns(pl.int_range(pl.len(), dtype=pl.UInt64).alias(PLACE))
        store, meta = Memory(), Meta()
        Table(store, meta, "rows", 0).save(placed)
        loaded = Table(store, meta, "rows", 0).load(placed[PLACE].to_numpy())
        assert loaded is not None
        assert loaded.equals(placed)


def test_a_function_of_groups_without_a_key_is_asked_about_all_rows() -> None:
    chance = Random(1)
    declared = sources(chance)
    author = Author(chance, declared)
    stream = author.sources["b"]
    relation = stream.relation.map_groups(sizes("n", "least", "j"), [], "n long, least long")
    chain = build_chain([ViewPlan("v", relation.node, "sqlite:x", "changes", ())], buckets=2, to="sqlite:x")
    local = running(chain, 1, 0)
    for number, value in enumerate((5, 3)):
        local.batch([Rec(0, 0, number, START, {"k": number, "j": value, "bt": stamp(START)})])
    assert local.view("v") == Counter({(2, 3): 1})
    relation = stream.relation.map_groups(lambda frame: frame, [], "n long")
    chain = build_chain([ViewPlan("v", relation.node, "sqlite:x", "changes", ())], buckets=2, to="sqlite:x")
    with pytest.raises(PipelineError, match="all rows: expected a Polars frame with columns n; found columns k, j"):
        running(chain, 1, 0).batch([Rec(0, 0, 0, START, {"k": 1, "j": 1, "bt": stamp(START)})])
