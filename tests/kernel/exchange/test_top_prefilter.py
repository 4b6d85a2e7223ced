"""What is not sent to a top because it cannot be among the first: the first are the same, whoever chose before."""

from __future__ import annotations

from random import Random

import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millstream.kernel.exchange.top_prefilter import promising
from millstream.plan.spec import Order, Top
from millstream.relation.nodes import Ties
from tests.kernel.alone import TYPES, Alone, Row, any_row

few = settings(max_examples=15, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
seeds = given(seed=st.integers(0, (1 << 32) - 1))
COLUMNS = tuple(TYPES)
DOUBLES = (None, 0.0, -0.0, 1.5, -2.0)


def some_row(chance: Random, nan: bool) -> Row:
    row = any_row(chance, chance.randrange(3))
    return row if nan else row | {"f": chance.choice(DOUBLES)}


def check(chance: Random) -> None:
    """A top that gets what is left of every piece shows after it what one shows that gets everything."""
    keys = chance.choice(((), ("k",), ("k", "f"), ("s",)))
    order = tuple(Order(name, chance.random() < 0.5) for name in chance.sample(("i", "f", "s", "at"), 2))
    ties: Ties | None = chance.choice((None, "rank", "dense_rank"))
    spec = Top(keys, COLUMNS, order, chance.choice((1, 1, 2, 3)), ties=ties)
    everything, chosen, nan = Alone(spec), Alone(spec), chance.random() < 0.3
    for _ in range(3):
        rows = [some_row(chance, nan) for _ in range(chance.randint(1, 30))]
        left = promising(pl.DataFrame(rows, schema=TYPES), spec).rows(named=True)
        everything.batch([(row, 1) for row in rows])
        chosen.batch([(row, 1) for row in left])
        assert chosen.rows == everything.rows, spec


@seeds
@few
def test_the_first_are_the_same_without_those_that_cannot_be_among_them(seed: int) -> None:
    check(Random(seed))


@pytest.mark.parametrize(
    ("count", "ties", "left"),
    [(1, None, [9, 9]), (1, "rank", [9, 9]), (2, "rank", [9, 9]), (3, None, [9, 9, 5]), (2, "dense_rank", [9, 9, 5])],
)
def test_what_has_enough_better_ones_is_left_out(count: int, ties: Ties | None, left: list[int]) -> None:
    rows = pl.DataFrame({"k": [1] * 6, "i": [3, 9, 1, 5, 9, 2]})
    spec = Top(("k",), ("k", "i"), (Order("i", True),), count, ties=ties)
    assert sorted(promising(rows, spec)["i"], reverse=True) == left
    assert promising(rows.drop("k"), Top((), ("i",), spec.order, count, ties=ties)).height == len(left)


def test_what_cannot_be_compared_is_left_to_the_top() -> None:
    rows = pl.DataFrame({"f": [1.0, float("nan"), 2.0], "xs": [[1], [2], [3]], "b": [True, False, None]})
    for column in rows.columns:
        assert promising(rows, Top((), tuple(rows.columns), (Order(column),), 1)).height == 3
    assert promising(rows, Top(("xs",), tuple(rows.columns), (Order("f"),), 1)).height == 3
