"""The answers to the patterns over a few bids that one can work out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millstream.bench.nexmark.oracle import Oracle
from millstream.bench.nexmark.queries import PATTERNS
from tests.bench.test_oracle import at, auction, bid, mistakes, person


def oracle_of(folder: Path, *events: dict[str, Any]) -> Oracle:
    """What is right over these events, in files of two lines each."""
    for first in range(0, len(events), 2):
        lines = (json.dumps(event) + "\n" for event in events[first : first + 2])
        (folder / f"{first:02}.jsonl").write_text("".join(lines))
    return Oracle(folder)


def over(folder: Path, query: str, *prices: int) -> list[list[Any]]:
    """The answer over bids of one pair at seconds 0, 1, 2 …: what stands behind the pair, times as seconds."""
    with oracle_of(folder, *(bid(7, 3, price, at(second)) for second, price in enumerate(prices))) as oracle:
        rows = oracle.answer(query)
    assert all(row[:2] == [7, 3] for row in rows)
    return [[float(value[-6:]) if isinstance(value, str) else value for value in row[2:]] for row in rows]


@pytest.mark.parametrize(
    ("prices", "expected"),
    [
        ((9, 5, 7), [[0, 1, 2]]),
        ((9, 8, 5, 7), [[0, 2, 3]]),
        ((9, 5, 7, 4, 6), [[0, 1, 2], [2, 3, 4]]),  # the next begins at the last row
        ((9, 5, 7, 8, 4, 6), [[0, 1, 2], [3, 4, 5]]),
        ((9, 5), []),  # it has not risen
        ((9, 5, 5, 7), []),  # what stays is neither lower nor higher
        ((5, 7, 9), []),
        ((9, 9, 5, 5, 4, 6), [[3, 4, 5]]),
    ],
)
def test_prices_fall_and_rise(prices: tuple[int, ...], expected: list[list[int]], tmp_path: Path) -> None:
    assert over(tmp_path, "cep0", *prices) == expected


@pytest.mark.parametrize(
    ("prices", "one_by_one", "from_each"),
    [
        ((20_000, 100, 201, 30_000), [[1, 2, 150]], [[1, 2, 150], [2, 2, 201]]),  # an average is truncated
        (
            (100, 15_000, 14_900),
            [[0, 1, 7_550]],
            [[0, 1, 7_550]],
        ),  # (100 + 15,000 + 14,900) / 3 = 10,000 is not under it
        ((100, 15_000, 14_899), [], []),  # still open: under it until the end
        (
            (1, 1, 19_998, 19_999),
            [[1, 2, 9_999]],
            [[1, 2, 9_999]],
        ),  # the first is open, the next is not; nor is the last
        ((10_000, 9_999, 90_000, 5, 90_000), [[1, 1, 9_999], [3, 3, 5]], [[1, 1, 9_999], [3, 3, 5]]),
        ((5, 90_000, 90_000), [[0, 0, 5]], [[0, 0, 5]]),
        ((5, 6), [], []),
    ],
)
def test_runs_stay_under_an_average(
    prices: tuple[int, ...], one_by_one: list[list[int]], from_each: list[list[int]], tmp_path: Path
) -> None:
    assert over(tmp_path, "cep1", *prices) == one_by_one
    assert over(tmp_path, "cep2", *prices) == from_each


@pytest.mark.parametrize(
    ("prices", "expected"),
    [
        ((100, 49), [[1, 51]]),
        ((100, 50), []),  # neither above nor under
        ((100, 60, 300, 40), [[3, 60]]),
        ((100, 50, 40), []),
        ((100, 99, 98, 97, 20), [[4, 80]]),
        ((100, 99, 98, 97, 90, 30), [[5, 69]]),  # 5 s after the first is too late, after the second it is not
        ((100, 20, 200, 10), [[1, 80], [3, 190]]),
        ((300, 200, 100), [[1, 100]]),  # the next begins behind the drop
    ],
)
def test_prices_drop_in_time(prices: tuple[int, ...], expected: list[list[int]], tmp_path: Path) -> None:
    assert over(tmp_path, "cep3", *prices) == expected


def test_bids_of_one_time_are_in_the_order_of_the_files(tmp_path: Path) -> None:
    for name, prices, rows in (("a", (9, 5, 7), 1), ("b", (5, 9, 7), 0), ("c", (7, 9, 5), 0)):
        (tmp_path / name).mkdir()
        with oracle_of(tmp_path / name, *(bid(7, 3, price, at(1)) for price in prices)) as oracle:
            assert oracle.answer("cep0") == [[7, 3, at(1), at(1), at(1)]] * rows


def test_a_late_bid_is_where_its_time_is(tmp_path: Path) -> None:
    with oracle_of(tmp_path, bid(7, 3, 5, at(1)), bid(7, 3, 7, at(2)), bid(7, 3, 9, at(0.5))) as oracle:
        assert oracle.answer("cep0") == [[7, 3, at(0.5), at(1), at(2)]]


def test_pairs_do_not_see_each_other(tmp_path: Path) -> None:
    events = [person(1, at(0)), auction(7, 1, at(0), at(30))]
    for second, price in enumerate((9, 5, 7)):
        events += [bid(7, 3, price, at(second)), bid(7, 4, 10 - second, at(second)), bid(8, 3, 1, at(second))]
    with oracle_of(tmp_path, *events) as oracle:
        assert oracle.answer("cep0") == [[7, 3, at(0), at(1), at(2)]]


@pytest.mark.parametrize("query", PATTERNS)
def test_the_right_matches_are_right_and_others_are_not(query: str, tmp_path: Path) -> None:
    prices = (100, 300, 200, 100, 30_000, 20_000, 70_000, 9_000, 100, 90_000)
    with oracle_of(tmp_path, *(bid(7, 3, price, at(second)) for second, price in enumerate(prices))) as oracle:
        assert len(oracle.answer(query)) > 1
        assert mistakes(oracle, query) == []
