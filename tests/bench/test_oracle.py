"""The oracle's answers over a few events that one can work out by hand, and what it says of wrong ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.bench.nexmark.oracle import QUESTIONS, Oracle
from millstream.bench.nexmark.queries import PATTERNS

URL = "https://www.nexmark.com/a/b/c/item.htm?query=1"


def at(second: float, day: str = "2026-01-01 00:00") -> str:
    return f"{day}:{second:06.3f}"


def person(number: int, when: str, name: str = "Ann", state: str = "OR") -> dict[str, Any]:
    row = {
        "id": number,
        "name": name,
        "emailAddress": "",
        "creditCard": "",
        "city": "Bend",
        "state": state,
        "extra": "",
    }
    return {"event_type": 0, "person": row, "auction": None, "bid": None, "dateTime": when}


def auction(number: int, seller: int, when: str, expires: str, category: int = 10) -> dict[str, Any]:
    row = {
        "id": number,
        "itemName": f"i{number}",
        "description": "d",
        "initialBid": 1,
        "reserve": 2,
        "expires": expires,
    }
    row |= {"seller": seller, "category": category, "extra": "x"}
    return {"event_type": 1, "person": None, "auction": row, "bid": None, "dateTime": when}


def bid(
    auction: int, bidder: int, price: int, when: str, *, channel: str = "Apple", url: str = URL, extra: str = "cab"
) -> dict[str, Any]:
    row = {"auction": auction, "bidder": bidder, "price": price, "channel": channel, "url": url, "extra": extra}
    return {"event_type": 2, "person": None, "auction": None, "bid": row, "dateTime": when}


EVENTS = [
    person(1, at(1)),
    person(2, at(2), "Bob", "WA"),
    person(3, at(11), "Cem", "CA"),
    auction(10, 1, at(3), at(20)),
    auction(11, 2, at(4), at(30), 11),
    auction(12, 1, at(15), at(30), 11),
    auction(13, 3, at(12), at(13), 10),
    bid(10, 2, 100, at(2.999)),  # before it opened
    bid(10, 2, 5_000, at(3)),
    bid(10, 3, 20_000, at(20), channel="channel-7", url=f"{URL}&channel_id=7&x=1"),
    bid(10, 3, 90_000_000, at(20.001), channel="channel-8"),  # after it closed
    bid(11, 2, 2_000_000, at(5), channel="GOOGLE"),
    bid(11, 3, 2_000_000, at(5), extra="ccc"),  # a tie
    bid(12, 3, 7, at(15), channel="Baidu"),  # the moment it opened, and a gap after the bidder's last
    bid(12, 2, 4, "2026-01-02T12:00:00.000Z", channel="Facebook"),
]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    folder = tmp_path_factory.mktemp("data")
    lines = [json.dumps(event) for event in EVENTS]
    (folder / "a.jsonl").write_text("\n".join(lines[:6]) + "\n")
    (folder / "b.jsonl").write_text("\n".join(lines[6:]) + "\n")
    with Oracle(folder) as made:
        yield made


def bag(rows: list[list[Any]]) -> list[list[Any]]:
    return sorted(rows, key=repr)


ANSWERS: dict[str, list[list[Any]]] = {
    "q2": [],
    "q3": [["Ann", "Bend", "OR", 10], ["Cem", "Bend", "CA", 13]],
    "q4": [[10, 20_000], [11, (2_000_000 + 7) // 2]],
    "q6": [[1, (20_000 + 7) // 2], [2, 2_000_000]],
    "q8": [[1, "Ann", at(0)], [2, "Bob", at(0)], [3, "Cem", at(10)]],
    "q11": [
        [2, 3, at(2.999), at(15)],
        [2, 1, "2026-01-02 12:00:00.000", "2026-01-02 12:00:10.000"],
        [3, 4, at(5), at(30.001)],
    ],
    "q12": [[2, 4], [3, 4]],
    "q14": [
        [11, 2, 1_816_000.0, "nightTime", at(5), "cab", 1],
        [11, 3, 1_816_000.0, "nightTime", at(5), "ccc", 3],
    ],
    "q15": [
        ["2026-01-01", 7, 3, 1, 3, 2, 2, 1, 2, 3, 2, 1, 2],
        ["2026-01-02", 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0],
    ],
    "q17": [
        [10, "2026-01-01", 4, 2, 1, 1, 100, 90_000_000, 90_025_100 // 4, 90_025_100],
        [11, "2026-01-01", 2, 0, 0, 2, 2_000_000, 2_000_000, 2_000_000, 4_000_000],
        [12, "2026-01-01", 1, 1, 0, 0, 7, 7, 7, 7],
        [12, "2026-01-02", 1, 1, 0, 0, 4, 4, 4, 4],
    ],
    "q21": [
        [10, 2, 100, "Apple", "0"],
        [10, 2, 5_000, "Apple", "0"],
        [10, 3, 20_000, "channel-7", "7"],
        [11, 2, 2_000_000, "GOOGLE", "1"],
        [11, 3, 2_000_000, "Apple", "0"],
        [12, 3, 7, "Baidu", "3"],
        [12, 2, 4, "Facebook", "2"],
    ],
}


@pytest.mark.parametrize("query", ANSWERS)
def test_an_answer_is_what_one_works_out(oracle: Oracle, query: str) -> None:
    assert bag(oracle.answer(query)) == bag(ANSWERS[query])


def test_every_bid_is_in_some_answers(oracle: Oracle) -> None:
    last = [12, 2, 4, "2026-01-02 12:00:00.000", "cab"]
    assert len(oracle.answer("q0")) == 8
    assert last in oracle.answer("q0")
    assert [12, 2, 3.632, *last[3:]] in oracle.answer("q1")
    assert [*last, "2026-01-02", "12:00"] in oracle.answer("q10")
    assert [*last[:4], "12"] in oracle.answer("q13")
    assert [12, 2, 4, "Facebook", "a", "b", "c"] in oracle.answer("q22")


def test_hopping_windows_begin_before_the_first_bid(oracle: Oracle) -> None:
    found = oracle.answer("q5")
    before = "2025-12-31 23:59:54.000"
    assert [row for row in found if row[2] == before] == [[10, 2, before, at(4)]]
    first = [row for row in found if row[2] == at(0)]
    assert bag(first) == [[10, 2, at(0), at(10)], [11, 2, at(0), at(10)]], "both that tie"


def test_the_highest_bids_of_a_window_may_be_several(oracle: Oracle) -> None:
    first = [row for row in oracle.answer("q7") if row[3] < at(10)]
    assert bag(first) == [[11, 2_000_000, 2, at(5), "cab"], [11, 2_000_000, 3, at(5), "ccc"]]


def test_a_winning_bid_is_valid_and_comes_with_its_auction(oracle: Oracle) -> None:
    found = {row[0]: row for row in oracle.answer("q9")}
    assert found.keys() == {10, 11, 12}
    assert found[10] == [10, "i10", "d", 1, 2, at(3), at(20), 1, 10, "x", 10, 3, 20_000, at(20), "cab"]


def test_the_last_minute_of_a_channel(oracle: Oracle) -> None:
    found = {(row[0], row[1]): row[2:] for row in oracle.answer("q16")}
    assert found["Facebook", "2026-01-02"] == ["12:00", 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0]
    assert found["Apple", "2026-01-01"] == ["00:00", 3, 2, 0, 1, 2, 1, 0, 1, 2, 1, 0, 1]


def test_the_join_of_bids_with_auctions_is_of_one_category(oracle: Oracle) -> None:
    found = oracle.answer("q20")
    assert len(found) == 4, "also those that are not valid"
    assert found[0][7:] == ["i10", "d", 1, 2, at(3), at(20), 1, 10, "x"]


def mistakes(oracle: Oracle, query: str) -> list[str]:
    """The wrong answers that are not told, and the right one if it is; of a query with an answer."""
    right = oracle.answer(query)
    wrong = {"shorter": right[1:], "longer": [*right, right[0]], "narrower": [row[:-1] for row in right]}
    for place in range(len(right[0])):
        other = [list(row) for row in right]
        value = other[0][place]
        other[0][place] = (
            value + 1 if isinstance(value, int | float) else value[:-1] + ("1" if value[-1] == "0" else "0")
        )
        wrong[f"column {place}"] = other
    said = {name: oracle.compare(query, answer) for name, answer in ({"right": right} | wrong).items()}
    assert "missing" in said["shorter"]
    assert "too many" in said["longer"]
    return [name for name, why in said.items() if bool(why) == (name == "right")]


@pytest.mark.parametrize("query", [query for query in QUESTIONS if query not in PATTERNS])
def test_the_right_answer_is_right_and_others_are_not(oracle: Oracle, query: str) -> None:
    if query == "q2":
        assert oracle.compare(query, []) == ""
        assert oracle.compare(query, [[123, 1]]) != ""
        return
    assert mistakes(oracle, query) == []


def test_ties_may_fall_either_way_but_not_out_of_it(oracle: Oracle) -> None:
    right = oracle.answer("q9")
    (mine,) = [row for row in right if row[0] == 11]
    others = [row for row in right if row[0] != 11]
    assert mine[11] in (2, 3)
    swapped = [*mine[:11], 5 - mine[11], *mine[12:14], "ccc" if mine[11] == 2 else "cab"]
    assert oracle.compare("q9", [*others, swapped]) == ""
    mixed = [*swapped[:14], mine[14]]
    assert "cannot be there" in oracle.compare("q9", [*others, mixed])

    right = oracle.answer("q19")
    tied = [row for row in right if row[0] == 11]
    others = [row for row in right if row[0] != 11]
    (first, second) = sorted(tied, key=lambda row: row[7])
    turned = [[*second[:7], 1], [*first[:7], 2]]
    assert oracle.compare("q19", [*others, *turned]) == ""
    assert "cannot be there" in oracle.compare("q19", [*others, turned[0], [*turned[0][:7], 2]]), "one bid used twice"
    assert oracle.compare("q19", [*others, turned[0], [*turned[1][:7], 1]]) != "", "the same rank twice"


def test_processing_time_is_compared_by_its_sums(oracle: Oracle) -> None:
    assert oracle.compare("q12", [[2, 1], [3, 4], [2, 3]]) == ""
    assert oracle.compare("q12", [[2, 1], [3, 4], [2, 2]]) != ""


def test_times_may_be_written_with_t_and_z(oracle: Oracle) -> None:
    right = oracle.answer("q8")
    assert oracle.compare("q8", [[*row[:2], row[2].replace(" ", "T") + "Z"] for row in right]) == ""


def test_a_value_of_another_kind_is_told(oracle: Oracle) -> None:
    assert "another type" in oracle.compare("q12", [["many", 1]])
