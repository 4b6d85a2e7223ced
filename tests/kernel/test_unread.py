"""Rows that nobody gets: computed in full where they are made, and no further; all else is as if somebody did."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from millstream.kernel.exchange.chunk import Chunk, Kind
from millstream.plan.build import DRIVER, Chain, ViewPlan, build_chain
from millstream.relation.nodes import Named, Node, Select, Source, Where
from tests.kernel.local import Local, Rec
from tests.kernel.operators.test_aggregate import COLUMNS, EVERYTHING, TYPES, aggregate_of

STREAM = Source("stream", "s", "s", COLUMNS)
SUMS = aggregate_of(STREAM, ["k"])
VIEWS: dict[str, Node] = {
    "all": Select(STREAM, tuple(Named(name, name) for name in ("id", "s", "f"))),
    "few": Where(STREAM, "i > 3"),
    "sums": SUMS,
    "small": Select(SUMS, (Named("k", "k"), Named("n", "cast(sum_i AS int)"))),
    "rare": Where(aggregate_of(STREAM, ["g"], EVERYTHING[:1]), "n < 3"),
}


def chain(*names: str) -> Chain:
    keys = {"sums": ("k",), "small": ("k",)}
    views = [ViewPlan(name, VIEWS[name], "sqlite:x", "changes", keys.get(name, ())) for name in names]
    return build_chain(views, buckets=2, to="sqlite:x")


def records(size: int, high: int = 9, seed: int = 1) -> list[Rec]:
    chance = Random(seed)
    values = [
        {"id": number, "k": chance.randrange(5), "g": chance.choice("abc"), "i": chance.randrange(high), "f": chance.random(), "s": "x"}
        for number in range(size)
    ]  # fmt: skip
    return [Rec(0, number % 2, number // 2, values=each) for number, each in enumerate(values)]


class Seen(Local):
    """A chain that remembers what reached the sink."""

    def _sink(self, chunks: Sequence[Chunk]) -> None:
        self.reached = [(chunk.target, chunk.kind) for chunk in chunks]
        super()._sink(chunks)

    @property
    def views_reached(self) -> set[str]:
        names = {output.number: output.name for output in self.chain.outputs}
        return {names[target] for target, kind in self.reached if kind == Kind.CHANGES}


def test_of_views_that_nobody_gets_no_row_reaches_the_sink_and_the_others_are_as_they_were() -> None:
    whole, unread = (
        Seen(each, 2, {0: TYPES}) for each in (chain(*VIEWS), chain(*VIEWS).unread(["all", "small", "rare"]))
    )
    for number in range(3):
        some = records(90)[number * 30 : number * 30 + 30]
        whole.batch(some)
        unread.batch(some)
        assert whole.views_reached == set(VIEWS)
        assert unread.views_reached == {"few", "sums"}
        assert Kind.COUNT in [kind for _, kind in unread.reached]
    assert {name: unread.rows[name] for name in ("few", "sums")} == {name: whole.rows[name] for name in ("few", "sums")}
    assert sorted(map(repr, unread.counts)) == sorted(map(repr, whole.counts))  # chunks are shuffled
    assert unread.held == whole.held


def test_what_only_spark_can_compute_of_them_goes_on_to_it() -> None:
    alone = Seen(chain("small").unread(["small"]), 2, {0: TYPES})
    alone.batch(records(20))
    assert alone.views_reached == set()
    alone.batch([Rec(0, 0, 50, values={"id": 1, "k": 1, "i": 1 << 40})])  # no int: what Spark says to it must be said
    assert alone.views_reached == {"small"}


@pytest.mark.parametrize("name", VIEWS)
def test_only_ports_of_such_views_change(name: str) -> None:
    before, after = chain(*VIEWS), chain(*VIEWS).unread([name])
    ports = [port for feed in after.feeds for port in feed.ports]
    ports += [port for operator in after.operators for port in operator.ports]
    marked = [port for port in ports if port.unread is not None]
    assert [(port.stage, port.unread.name) for port in marked if port.unread] == [(DRIVER, name)]
    assert before.unread([]) == before
    assert after.outputs == before.outputs
