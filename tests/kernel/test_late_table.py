"""Joins as of a time with a table that comes late: the answer is a function of the log, whatever the batches.

A record of the table is seen by the events whose time it has reached and that could still be admitted when it was appended. Here that
is plain Python over the whole log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millstream.kernel.state.store import FOREVER, NEVER
from millstream.plan.build import Chain, micros
from millstream.relation.nodes import Deduplicate, Equality, Join, Node, output_columns, sources_of
from tests.kernel import oracle
from tests.kernel.local import Local, Rec, hashable, types_by_name
from tests.kernel.operators.test_asof_join import IDS, TYPES, USERS
from tests.kernel.operators.test_interval_join import KEYS, SECOND, Row, chain_of, pairs, stream, table

some = settings(max_examples=8, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
seeds = given(seed=st.integers(0, (1 << 32) - 1))
HIGH = 6 * SECOND


def left_side(chance: Random, kind: str) -> tuple[Node, dict[str, int]]:
    """What the table is joined to, and by how much its mark is behind that of each of its streams."""
    late = chance.choice((0, 0, 4)) * SECOND
    a, b = (stream(name, chance.choice((0, 3)) * SECOND, late) for name in "ab")
    match kind:
        case "stream":
            return a, {"a": 0}
        case "deduplicate":
            return Deduplicate(a, ("k", "v"), timedelta(seconds=3)), {"a": 0}
        case _:
            within = timedelta(seconds=-2), timedelta(microseconds=HIGH)
            return Join(a, b, (Equality("k", "k", "k"),), "inner", within=within), {"a": 0, "b": HIGH}


def random_log(chance: Random, chain: Chain, partitions: int) -> list[Rec]:
    """Records of all topics in the order of their appends; the table is ahead of the streams, or behind them."""
    following: Counter[Any] = Counter()
    log: list[Rec] = []
    now = 1000 * SECOND
    for _ in range(chance.randint(10, 15 * len(chain.feeds))):
        now += chance.choice((0, 0, 1, 1, 2)) * SECOND
        feed = chance.choice(chain.feeds)
        at = now + chance.randrange(-6, 3) * SECOND
        place = feed.number, chance.randrange(partitions)
        if feed.source.time is None:
            key, at = chance.choice((*IDS, 1.0)), now - chance.choice((0, 5, 20, 60)) * SECOND
            place = feed.number, IDS.index(key) % partitions
            deleted = chance.random() < 0.2
            values: Row = {"id": key} if deleted else {"id": key, "c": str(len(log)), "n": len(log)}
            log.append(Rec(*place, following[place], now, values, deleted=deleted, stamp=at))
        elif chance.random() < 0.1:
            log.append(Rec(*place, following[place], now, beat=at))
        else:
            values = {"k": chance.choice((*KEYS, *4 * (1.0,))), feed.source.time.column: oracle.stamp(at)}
            values |= {"v": len(log)} if feed.source.name == "a" else {"w": len(log)}
            log.append(Rec(*place, following[place], now, values))
        following[place] += 1
    return log


def cut(chance: Random, log: Sequence[Rec], how: str) -> list[list[Rec]]:
    """The log in batches, none of which ends within an append time."""
    times = sorted({record.append for record in log})
    ends = {"one": times[-1:], "each": times}.get(how) or sorted({*chance.sample(times, len(times) // 2), times[-1]})
    return [
        [record for record in log if low < record.append <= high] for low, high in zip([0, *ends], ends, strict=False)
    ]


def mark_before(
    log: Sequence[Rec], numbers: dict[str, int], node: Node, holds: dict[str, int], partitions: int, append: int
) -> int:
    """The mark of the left side after all that was appended before."""
    marks = []
    for source in sources_of(node):
        judge = oracle.Judge(source, partitions)
        judge.batch([each for each in log if each.feed == numbers[source.name] and each.append < append])
        marks.append(judge.mark if judge.mark in (NEVER, FOREVER) else judge.mark - holds[source.name])
    return min(marks)


def check(chance: Random, kind: str) -> None:
    """One log in several cuts: each has what the definition says."""
    left, holds = left_side(chance, kind)
    partitions = chance.choice((1, 2))
    lateness = max(micros(source.time.lateness) for source in sources_of(left) if source.time)
    node = Join(left, USERS, (Equality("k", "id"),), "left", as_of="at")
    chain = chain_of((node, "changes"), buckets=chance.choice((1, 3)))
    numbers = {feed.source.name: feed.number for feed in chain.feeds}
    log = random_log(chance, chain, partitions)
    said: dict[Any, list[tuple[int, Row | None]]] = {}
    for record in log:
        if record.feed == numbers["users"]:
            open_since = mark_before(log, numbers, left, holds, partitions, record.append) - lateness
            versions = said.setdefault(hashable(record.values["id"]), [])
            since = max([record.stamp or 0, open_since, *(since for since, _ in versions)])
            versions.append((since, None if record.deleted else record.values))
    names = [name for name in output_columns(node) if name != "id"]
    rows = []
    for row in left_rows(log, numbers, left, partitions):
        found = [value for since, value in said.get(hashable(row["k"]), ()) if since <= oracle.moment(row["at"])]
        answer = (found[-1] if found and row["k"] is not None else None) or {"c": None, "n": None}
        rows.append({**dict.fromkeys(names), **row, "c": answer["c"], "n": answer["n"]})
    for how in ("one", chance.choice(("each", "some"))):
        local = Local(chain, partitions, types_by_name(chain, TYPES), chance.randrange(100))
        for batch in cut(chance, log, how):
            local.batch(batch)
        at = [output_columns(node).index(name) for name in names]
        assert Counter({tuple(row[place] for place in at): n for row, n in local.view("v0").items()}) == table(
            rows, names
        ), how


def left_rows(log: Sequence[Rec], numbers: dict[str, int], left: Node, partitions: int) -> list[Row]:
    """What is admitted, and what becomes of it before the join; no event comes twice."""
    found = []
    for source in sources_of(left):
        judge = oracle.Judge(source, partitions)
        judge.batch([each for each in log if each.feed == numbers[source.name]])
        found.append([record.values for record in judge.admitted])
    if not isinstance(left, Join):
        return found[0]
    return pairs(found[0], found[1], left, (NEVER, NEVER), output_columns(left))


@pytest.mark.parametrize("kind", ["stream", "deduplicate", "interval join"])
@some
@seeds
def test_a_table_that_comes_late_gives_the_same_whatever_the_batches(kind: str, seed: int) -> None:
    check(Random(seed), kind)
