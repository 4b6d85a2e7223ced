"""Nexmark's events are what the benchmark says they are, and the same each time."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from millstream.bench.nexmark.data import fill, read_folder, write_folder
from millstream.bench.nexmark.generator import BLOCK, HOT_CHANNELS, LATE, STATES, events
from millstream.log import open_log

COUNT = 100_000


@pytest.fixture(scope="module")
def made() -> list[dict[str, Any]]:
    found = [json.loads(value) for value in chain.from_iterable(events(COUNT, 7))]
    for event in found:
        event["at"] = datetime.fromisoformat(event["dateTime"])
    return found


def of(made: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event[kind] | {"at": event["at"]} for event in made if event[kind]]


def test_a_seed_says_all() -> None:
    first = list(events(3_000, 7))
    assert first == list(events(3_000, 7))
    prices = [re.findall(rb'"price":(\d+)', b"".join(next(events(3_000, seed)))) for seed in (7, 8)]
    assert prices[0] != prices[1]


def test_fewer_are_the_beginning_of_more() -> None:
    more = list(chain.from_iterable(events(BLOCK + 1_000, 3)))
    assert list(chain.from_iterable(events(BLOCK + 10, 3))) == more[: BLOCK + 10]


def test_one_person_to_three_auctions_to_forty_six_bids(made: list[dict[str, Any]]) -> None:
    assert Counter(event["event_type"] for event in made) == {0: COUNT // 50, 1: COUNT * 3 // 50, 2: COUNT * 46 // 50}
    kinds = ("person", "auction", "bid")
    assert all([kind for kind in kinds if event[kind]] == [kinds[event["event_type"]]] for event in made)


def test_time_goes_on_and_some_are_late(made: list[dict[str, Any]]) -> None:
    begin = datetime(2026, 1, 1)
    behind = [begin + timedelta(milliseconds=number // 10) - event["at"] for number, event in enumerate(made)]
    assert min(behind) == timedelta(0)
    assert timedelta(milliseconds=LATE * 0.95) < max(behind) <= timedelta(milliseconds=LATE)
    assert 0.05 < sum(late > timedelta(0) for late in behind) / COUNT < 0.2
    assert min(event["at"] for event in made) == begin


def test_ids_are_of_those_who_came_before(made: list[dict[str, Any]]) -> None:
    people: set[int] = set()
    auctions: set[int] = set()
    for event in made:
        if person := event["person"]:
            people.add(person["id"])
        elif auction := event["auction"]:
            assert auction["seller"] in people
            auctions.add(auction["id"])
        else:
            assert event["bid"]["auction"] in auctions
            assert event["bid"]["bidder"] in people
    assert people == set(range(1_000, 1_000 + len(people)))
    assert auctions == set(range(1_000, 1_000 + len(auctions)))


def test_some_are_hot(made: list[dict[str, Any]]) -> None:
    bids, auctions = of(made, "bid"), of(made, "auction")
    assert share(bid["auction"] % 100 == 0 for bid in bids) == pytest.approx(0.5, abs=0.02)
    assert share(bid["bidder"] % 100 == 1 for bid in bids) == pytest.approx(0.75, abs=0.02)
    assert share(auction["seller"] % 100 == 0 for auction in auctions) == pytest.approx(0.75, abs=0.03)
    assert share(bid["channel"] in HOT_CHANNELS for bid in bids) == pytest.approx(0.5, abs=0.01)
    assert {bid["channel"] for bid in bids} > set(HOT_CHANNELS)
    other = [bid for bid in bids if bid["channel"] not in HOT_CHANNELS]
    told = [bid for bid in other if "&channel_id=" in bid["url"]]
    assert all(bid["channel"] == f"channel-{bid['url'].rpartition('=')[2]}" for bid in told)
    assert 0.8 < len(told) / len(other) < 1
    assert not any("&channel_id=" in bid["url"] for bid in bids if bid["channel"] in HOT_CHANNELS)


def test_values_are_in_their_bounds(made: list[dict[str, Any]]) -> None:
    prices = sorted(bid["price"] for bid in of(made, "bid"))
    assert prices[0] >= 100
    assert prices[-1] <= 100_000_000
    assert prices[len(prices) // 2] == pytest.approx(100_000, rel=0.1)
    assert {person["state"] for person in of(made, "person")} == set(STATES)
    auctions = of(made, "auction")
    assert {auction["category"] for auction in auctions} == set(range(10, 15))
    runs = [datetime.fromisoformat(auction["expires"]) - auction["at"] for auction in auctions]
    assert min(runs) > timedelta(0)
    assert timedelta(milliseconds=140) < sum(runs, timedelta(0)) / len(runs) < timedelta(milliseconds=190)
    assert all(len(bid["url"].split("/")) == 7 for bid in of(made, "bid"))


@pytest.mark.parametrize(("kind", "numbers", "size"), [("person", 2, 200), ("auction", 7, 500)])
def test_rows_are_padded(made: list[dict[str, Any]], kind: str, numbers: int, size: int) -> None:
    sizes = [
        8 * numbers + sum(len(value) for name, value in row.items() if isinstance(value, str) and name != "expires")
        for row in of(made, kind)
    ]
    assert sum(sizes) / len(sizes) == pytest.approx(size, rel=0.05)


def test_bids_have_something_beside(made: list[dict[str, Any]]) -> None:
    extras = [len(bid["extra"]) for bid in of(made, "bid")]
    assert sum(extras) / len(extras) == pytest.approx(68, abs=1)
    assert len(set(extras)) > 20


def test_a_folder_gives_back_what_was_written(tmp_path: Path) -> None:
    count = BLOCK * 4 + 10
    folder = write_folder(tmp_path / "data", count, 5)
    assert len(list(folder.glob("*.jsonl"))) == 2
    assert list(chain.from_iterable(read_folder(folder))) == list(chain.from_iterable(events(count, 5)))


def test_a_folder_without_files_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="jsonl"):
        list(read_folder(tmp_path))


def test_a_log_is_filled_in_turn(tmp_path: Path) -> None:
    log = f"sqlite:{tmp_path / 'log.db'}"
    assert fill(log, events(60_000, 1)) == 60_000
    with open_log(log) as opened:
        bounds = opened.bounds("nexmark")
        assert [bound.end for bound in bounds.values()] == [15_000] * 4
        values = [record.value for record in opened.read("nexmark", 1, 0, 10)]
    assert values == next(events(60_000, 1))[1:40:4]


def share(found: Any) -> float:
    seen = list(found)
    return sum(seen) / len(seen)
