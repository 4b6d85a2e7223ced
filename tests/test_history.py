"""The history checker finds each kind of error when it is planted, and nothing in a history without one."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.history import Line, Stored, check, load, value

Plant = Callable[[list[Line], list[Stored]], tuple[list[Line], list[Stored]]]
COUNT = 5


def clean(seed: int = 7) -> tuple[list[Line], list[Stored]]:
    """Three producers, two partitions, some failures, some that nobody knows the end of, some repeats."""
    chance = random.Random(seed)
    lines: list[Line] = []
    records: list[Stored] = []
    ends = [0, 0]
    for turn in range(60):
        producer, sequence = f"p{turn % 3}", turn // 3
        lines.append(Line("invoke", producer, sequence, COUNT))
        outcome = chance.choice(["ok", "ok", "ok", "fail", "info, kept", "info, gone", "repeated"])
        if outcome == "fail":
            lines.append(Line("fail", producer, sequence, COUNT))
            continue
        if outcome == "info, gone":
            lines.append(Line("info", producer, sequence, COUNT))
            continue
        places = []
        for index in range(COUNT):
            partition = index % 2
            places.append((partition, ends[partition]))
            records.append(Stored(partition, ends[partition], value(producer, sequence, index)))
            ends[partition] += 1
        told = Line("ok", producer, sequence, COUNT, tuple(p for p, _ in places), tuple(o for _, o in places))
        if outcome == "ok":
            lines.append(told)
        if outcome == "repeated":  # the acknowledgement was lost, the repeat got the same one
            lines += [Line("info", producer, sequence, COUNT), Line("invoke", producer, sequence, COUNT), told]
    return lines, records


def renumbered(records: list[Stored]) -> list[Stored]:
    ends = [0, 0]
    result = []
    for record in sorted(records):
        result.append(record._replace(offset=ends[record.partition]))
        ends[record.partition] += 1
    return result


def acknowledged(lines: list[Line]) -> Line:
    return next(line for line in lines if line.type == "ok" and line.sequence >= 5)


def lose_a_batch(lines: list[Line], records: list[Stored]) -> tuple[list[Line], list[Stored]]:
    gone = acknowledged(lines)
    return lines, [r for r in records if not r.value.startswith(f"{gone.producer}:{gone.sequence}:")]


def tear_a_batch(lines: list[Line], records: list[Stored]) -> tuple[list[Line], list[Stored]]:
    torn = acknowledged(lines)
    lines = [line for line in lines if line is not torn]  # not even acknowledged: still all or nothing
    return lines, [r for r in records if r.value != value(torn.producer, torn.sequence, COUNT - 1)]


def repeat_a_record(lines: list[Line], records: list[Stored]) -> tuple[list[Line], list[Stored]]:
    end = max(r.offset for r in records if r.partition == 0) + 1
    last = max((r for r in records if r.partition == 0), key=lambda r: r.offset)
    return lines, [*records, last._replace(offset=end)]


def swap_two(lines: list[Line], records: list[Stored]) -> tuple[list[Line], list[Stored]]:
    own = [r for r in sorted(records) if r.partition == 0 and r.value.startswith("p1:")]
    one, two = own[3], own[4]
    swapped = {one: one._replace(value=two.value), two: two._replace(value=one.value)}
    return lines, [swapped.get(r, r) for r in records]


def keep_what_failed(lines: list[Line], records: list[Stored]) -> tuple[list[Line], list[Stored]]:
    sequence = 99
    lines = [*lines, Line("invoke", "p0", sequence, COUNT), Line("fail", "p0", sequence, COUNT)]
    ends = [max(r.offset for r in records if r.partition == p) + 1 for p in (0, 1)]
    more = [Stored(i % 2, ends[i % 2] + i // 2, value("p0", sequence, i)) for i in range(COUNT)]
    return lines, records + more


def invent_a_record(lines: list[Line], records: list[Stored]) -> tuple[list[Line], list[Stored]]:
    end = max(r.offset for r in records if r.partition == 1) + 1
    return lines, [*records, Stored(1, end, value("p9", 0, 0))]


def leave_a_hole(lines: list[Line], records: list[Stored]) -> tuple[list[Line], list[Stored]]:
    last = max(records, key=lambda r: (r.partition, r.offset))
    lines = [line for line in lines if line.type != "ok"]
    return lines, [r._replace(offset=r.offset + 1) if r == last else r for r in records]


def move_a_record(lines: list[Line], records: list[Stored]) -> tuple[list[Line], list[Stored]]:
    """The right records in the right order, none of them where the acknowledgements said."""
    return lines, [r._replace(offset=r.offset + 1) for r in records if r.partition == 0] + [
        r for r in records if r.partition == 1
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_right_history_has_no_problems(seed: int) -> None:
    assert check(*clean(seed)) == []


@pytest.mark.parametrize(
    ("plant", "kinds"),
    [
        (lose_a_batch, {"lost", "hole"}),
        (tear_a_batch, {"torn", "hole"}),
        (repeat_a_record, {"duplicated"}),
        (swap_two, {"reordered", "lost"}),
        (keep_what_failed, {"aborted"}),
        (invent_a_record, {"invented"}),
        (leave_a_hole, {"hole"}),
        (move_a_record, {"lost", "hole"}),
    ],
)
@pytest.mark.parametrize("seed", [7, 8, 9])
def test_a_planted_error_is_found_and_named(plant: Plant, kinds: set[str], seed: int) -> None:
    assert {problem.kind for problem in check(*plant(*clean(seed)))} == kinds


def test_a_loss_at_the_end_leaves_no_hole_and_is_found() -> None:
    lines, records = lose_a_batch(*clean())
    lines = [line for line in lines if line.type != "ok" or line == acknowledged(lines)]
    assert {problem.kind for problem in check(lines, renumbered(records))} == {"lost"}


def test_an_append_without_an_end_may_be_there_or_not() -> None:
    lines = [Line("invoke", "p", 0, 2)]
    assert check(lines, []) == []
    assert check(lines, [Stored(0, 0, "p:0:0"), Stored(0, 1, "p:0:1")]) == []


def test_a_failure_that_was_repeated_and_killed_may_be_there() -> None:
    lines = [Line("invoke", "p", 0, 1), Line("fail", "p", 0, 1), Line("invoke", "p", 0, 1)]
    assert check(lines, [Stored(0, 0, "p:0:0")]) == []


def test_a_history_survives_a_half_written_line(tmp_path: Path) -> None:
    whole = [Line("invoke", "p", 0, 2), Line("ok", "p", 0, 2, (0, 0), (0, 1))]
    path = tmp_path / "history"
    path.write_text("".join(line.dump() for line in whole) + whole[0].dump()[:20])
    assert load(path) == whole
