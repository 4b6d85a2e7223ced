"""Changes that a connector sends again are dropped, wherever it begins again and wherever batches end; the tombstones among them too."""

from __future__ import annotations

from random import Random
from typing import Any

import polars as pl
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millstream.plan.build import ViewPlan, build_chain
from millstream.relation.nodes import Column, Source
from millstream.relation.nodes import Sequence as Numbered
from tests.kernel.local import Local, Rec

COLUMNS = (Column("id", "string"), Column("v", "long"), Column("nth", "long"))
TABLE = Source("table", "t", "t", COLUMNS, "debezium", key=("id",), sequence=Numbered("id", "nth"))
TYPES: dict[int, dict[str, Any]] = {0: {"id": pl.String, "v": pl.Int64, "nth": pl.Int64}}

Change = list[dict[str, Any]]
"""The records of one change: of a delete there are two."""


def upsert(key: str, nth: int | None, v: int) -> Change:
    return [{"id": key, "nth": nth, "v": v}]


def delete(key: str, nth: int) -> Change:
    return [{"id": key, "nth": nth, "deleted": True}, {"id": key, "nth": None, "deleted": True}]


def history(chance: Random) -> list[Change]:
    """A snapshot, then changes of a few keys, many of which go and come back."""
    there = {key for key in "abc" if chance.random() < 0.5}
    made = [upsert(key, None, -1) for key in sorted(there)]
    for nth in range(10, 10 + chance.randrange(20)):
        key = chance.choice("abc")
        if key in there and chance.random() < 0.5:
            there.discard(key)
            made.append(delete(key, nth))
        else:
            there.add(key)
            made.append(upsert(key, nth, nth))
    return made


def rows_after(changes: list[Change]) -> dict[str, int]:
    rows: dict[str, int] = {}
    for record in (record for change in changes for record in change):
        rows.pop(record["id"], None)
        if not record.get("deleted"):
            rows[record["id"]] = record["v"]
    return rows


def replayed(chance: Random, changes: list[Change]) -> list[tuple[int, dict[str, Any]]]:
    """What is in the topic, each with how many changes had been sent until then: some are sent again, from an earlier one on."""
    first = sum(change[0]["nth"] is None for change in changes)
    at, reached, made = 0, 0, []
    while at < len(changes):
        reached = max(reached, at + 1)
        made += [(reached, record) for record in changes[at]]
        at += 1
        if at > first and chance.random() < 0.15:
            at = chance.randrange(first, at + 1)
    return made


def compacted(chance: Random, sent: list[tuple[int, dict[str, Any]]]) -> list[tuple[int, dict[str, Any]]]:
    """Without what compaction takes out of a beginning of the topic: what a later record of its key there replaces."""
    until = chance.randrange(len(sent) + 1)
    last = {record["id"]: index for index, (_, record) in enumerate(sent[:until])}
    return [each for index, each in enumerate(sent) if index >= until or last[each[1]["id"]] == index]


def check_replays(chance: Random) -> None:
    """The table is that of the changes sent so far at the end of every batch; after compaction it is so in the end."""
    changes = history(chance)
    whole = replayed(chance, changes)
    for sent in (whole, compacted(chance, whole)):
        chain = build_chain([ViewPlan("all", TABLE, "sqlite:x", "changes", ("id",))], buckets=2, to="sqlite:x")
        local = Local(chain, 1, TYPES)
        cuts = sorted(chance.sample(range(len(sent) + 1), min(len(sent), 5)))
        for low, high in zip([0, *cuts], [*cuts, len(sent)], strict=True):
            if low == high:
                continue
            local.batch(
                [
                    Rec(0, 0, offset, offset, {"v": None} | values, deleted=values.get("deleted", False))
                    for offset, (_, values) in enumerate(sent[low:high], low)
                ]
            )
            found = {row[0]: row[1] for row in local.view("all")}
            if sent is whole:
                assert found == rows_after(changes[: sent[high - 1][0]])
        assert {row[0]: row[1] for row in local.view("all")} == rows_after(changes)


@settings(max_examples=25, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(seed=st.integers(0, (1 << 32) - 1))
def test_a_table_does_not_go_back_when_changes_are_sent_again(seed: int) -> None:
    check_replays(Random(seed))


def test_a_tombstone_that_is_sent_again_does_not_delete_the_row_that_came_back() -> None:
    gone, back = delete("a", 20), upsert("a", 30, 3)
    sent = [*upsert("a", 10, 1), *gone, *back, *gone, *back, *upsert("a", 40, 4)]
    for cut in range(1, len(sent)):
        chain = build_chain([ViewPlan("all", TABLE, "sqlite:x", "changes", ("id",))], buckets=2, to="sqlite:x")
        local, seen = Local(chain, 1, TYPES), []
        for low, high in ((0, cut), (cut, len(sent) - 1), (len(sent) - 1, len(sent))):
            if low < high:
                local.batch(
                    [
                        Rec(0, 0, at, at, {"v": None} | values, deleted=values.get("deleted", False))
                        for at, values in enumerate(sent[low:high], low)
                    ]
                )
                seen.append(sorted(local.view("all")))
        assert seen[-2:] == [[("a", 3, 30)], [("a", 4, 40)]] or cut == len(sent) - 1
        assert seen[-1] == [("a", 4, 40)]
        assert [reason for *_, reason, _ in local.rejects] == ["duplicate"] * 3
