"""Admission against a model that takes one record at a time: the same verdicts, wherever batches are cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millstream.errors import PipelineError
from millstream.kernel.admission.record import IGNORED
from millstream.kernel.state.store import FOREVER, NEVER
from millstream.plan.build import ViewPlan, build_chain
from millstream.relation.nodes import Column, EventTime, Late, Source
from millstream.relation.nodes import Sequence as Numbered
from tests.kernel import oracle
from tests.kernel.local import STAMP, Local, Rec

SECOND = 1_000_000
PARTITIONS = 2
COLUMNS = (Column("v", "long"), Column("at", "timestamp"), Column("who", "string"), Column("nth", "long"))
TYPES: dict[int, dict[str, Any]] = {0: {"v": pl.Int64, "at": STAMP, "who": pl.String, "nth": pl.Int64}}
COUNTED = ("admitted", "late", "duplicate", "future", "malformed", "heartbeats")
REASON = {"heartbeats": "heartbeat"}
few = settings(max_examples=4, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
seeds = given(seed=st.integers(0, (1 << 32) - 1))


def source_of(late: Late = "drop", numbered: bool = True, timed: bool = True) -> Source:
    lateness = timedelta(seconds=20) if late == "correct" else timedelta(0)
    return Source(
        "stream",
        "clicks",
        "clicks-topic",
        COLUMNS,
        time=EventTime("at", timedelta(seconds=10), lateness, late, timedelta(hours=1)) if timed else None,
        sequence=Numbered("who", "nth") if numbered else None,
    )


def running(source: Source) -> Local:
    chain = build_chain([ViewPlan("all", source, "sqlite:x", "changes", ())], buckets=2, to="sqlite:x")
    return Local(chain, PARTITIONS, TYPES)


def some_records(chance: Random, count: int = 30) -> list[Rec]:
    """Records of all kinds, at the edges of every rule."""
    now, made, following, numbers = chance.choice((0, 1_700_000_000 * SECOND)), [], [0] * PARTITIONS, Counter[str]()
    for i in range(count):
        part = chance.randrange(PARTITIONS)
        now += chance.choice((0, 1, SECOND, 15 * SECOND))
        at = now - chance.choice(
            (0, 0, 10 * SECOND - 1, 10 * SECOND, 10 * SECOND + 1, 30 * SECOND, 30 * SECOND + 1, 90 * SECOND)
        )
        append = chance.choice((now, at - 3600 * SECOND, at - 3600 * SECOND - 1))
        who = chance.choice("abc")
        numbers[who] += chance.choice((1, 1, 1, 0, -1, 5))
        values = {
            "v": i,
            "at": oracle.stamp(at),
            "who": who,
            "nth": chance.choice((numbers[who], numbers[who], numbers[who], None)),
        }
        bad = beat = None
        if chance.random() < 0.1:
            bad = chance.choice(("not JSON", ""))
            nothing: dict[str, object] = {"v": None}
            values = chance.choice((values, nothing))
        elif chance.random() < 0.15:
            beat, values = chance.choice((now, now + 1, at, now + 20 * SECOND, IGNORED)), {}
        made.append(Rec(0, part, following[part], append, values, bad, beat))
        following[part] += chance.choice((1, 1, 1, 4))
    return made


def verdicts_of(local: Local) -> dict[tuple[int, int], str]:
    """What became of every record that can be told: rejects by their reason, rows of the view as admitted."""
    found = {(partition, offset): reason for _, partition, offset, _, _, reason, _ in local.rejects}
    for _, _, _, _, topic, partition, offset in local.view("all"):
        assert topic == "clicks-topic"
        assert (partition, offset) not in found, "admitted and rejected"
        found[partition, offset] = "admitted"
    return found


def check_verdicts(chance: Random, late: Late = "drop", numbered: bool = True, timed: bool = True) -> None:
    """Verdicts, counts and watermarks are the model's, whatever the batches."""
    source = source_of(late, numbered, timed)
    records = some_records(chance)
    judge = oracle.Judge(source, PARTITIONS)
    judge.batch(records)
    told = {place: reason for place, (reason, _) in judge.verdicts.items() if reason != "heartbeat"}
    for cuts in ([], sorted(chance.sample(range(1, len(records)), 5))):
        local = running(source)
        for low, high in zip([0, *cuts], [*cuts, len(records)], strict=True):
            batch, before = records[low:high], len(local.counts)
            local.batch(batch)
            counts = local.counts[before:]
            assert all(
                each.records == each.admitted + each.late + each.duplicate + each.future + each.malformed
                for each in counts
            )
            for partition in {record.partition for record in batch}:
                ours = [record for record in batch if record.partition == partition]
                mine = [count for count in counts if count.partition == partition]
                assert len(mine) == 1 or not (timed or numbered)  # without state a partition may come in pieces
                found = {name: sum(getattr(each, name) for each in mine) for name in COUNTED}
                assert sum(found.values()) == len(ours)
                assert Counter(judge.verdicts[each.partition, each.offset][0] for each in ours) == Counter(
                    {REASON.get(name, name): number for name, number in found.items()}
                )
                assert max(each.next for each in mine) == ours[-1].offset + 1
            assert {count.partition for count in counts} == {record.partition for record in batch}
        assert verdicts_of(local) == told
        for partition, state in enumerate(judge.partitions):
            last = [count.watermark for count in local.counts if count.partition == partition]
            wanted = state.watermark if state.watermark > NEVER else None
            assert not last or last[-1] == wanted
        for _, partition, offset, _, _, reason, detail in local.rejects:
            (record,) = [each for each in records if (each.partition, each.offset) == (partition, offset)]
            if reason == "malformed":
                assert detail == record.bad
            elif reason == "late":
                met = oracle.stamp(judge.verdicts[partition, offset][1])
                assert detail is not None
                assert detail.startswith(f"the watermark was {met:%Y-%m-%d %H:%M:%S}")
        if late == "route":
            rows = Counter((*each.values.values(), "clicks-topic", each.partition, each.offset) for each in judge.late)
            assert local.view("clicks_late") == rows


@pytest.mark.parametrize("late", ["drop", "correct", "route"])
@seeds
@few
def test_verdicts_are_those_of_one_record_at_a_time_wherever_batches_end(late: Late, seed: int) -> None:
    check_verdicts(Random(seed), late)


@pytest.mark.parametrize(("numbered", "timed"), [(False, True), (True, False), (False, False)])
@seeds
@settings(few, max_examples=3)
def test_a_stream_without_time_or_numbers_is_judged_by_what_it_has(numbered: bool, timed: bool, seed: int) -> None:
    check_verdicts(Random(seed), numbered=numbered, timed=timed)


def rec(offset: int, at: int, *, append: int | None = None, partition: int = 0, **more: Any) -> Rec:
    """A record at a second."""
    values = {"v": offset, "at": oracle.stamp(at * SECOND), **more}
    return Rec(0, partition, offset, (at if append is None else append) * SECOND, values)


def reasons(batches: Sequence[Sequence[Rec]], source: Source) -> list[str]:
    local = running(source)
    for batch in batches:
        local.batch(batch)
    told = verdicts_of(local)
    return [told[record.partition, record.offset] for batch in batches for record in batch if record.beat is None]


def test_a_record_that_is_as_late_as_the_delay_is_admitted_and_one_microsecond_more_is_late() -> None:
    records = [rec(0, 100), rec(1, 90), Rec(0, 0, 2, 0, {"v": 2, "at": oracle.stamp(90 * SECOND - 1)})]
    assert reasons([records], source_of(numbered=False)) == ["admitted", "admitted", "late"]


def test_a_record_is_not_late_by_its_own_time() -> None:
    assert reasons([[rec(0, 5_000)]], source_of(numbered=False)) == ["admitted"]


def test_a_record_from_the_future_moves_no_watermark() -> None:
    records = [rec(0, 100), rec(1, 999_999, append=100), rec(2, 95)]
    assert reasons([records], source_of(numbered=False)) == ["admitted", "future", "admitted"]


def test_a_heartbeat_makes_what_is_below_it_late_and_an_ignored_one_nothing() -> None:
    for beat, reason in ((200 * SECOND, "late"), (IGNORED, "admitted")):
        batches = [[rec(0, 100)], [Rec(0, 0, 1, 0, beat=beat)], [rec(2, 150)]]
        assert reasons(batches, source_of(numbered=False)) == ["admitted", reason]


def test_a_heartbeat_from_the_future_is_refused_like_a_record_and_moves_nothing() -> None:
    local = running(source_of(numbered=False))
    local.batch([rec(0, 100), Rec(0, 0, 1, 100 * SECOND, beat=3_701 * SECOND), rec(2, 150)])
    assert [verdicts_of(local)[0, offset] for offset in range(3)] == ["admitted", "future", "admitted"]


def test_one_partition_does_not_make_another_late() -> None:
    batches = [[rec(0, 1_000, partition=0)], [rec(0, 5, partition=1)]]
    assert reasons(batches, source_of(numbered=False)) == ["admitted", "admitted"]


def test_a_repeat_is_a_duplicate_in_the_same_batch_and_in_the_next() -> None:
    first = [rec(0, 100, who="a", nth=1), rec(1, 100, who="a", nth=1)]
    second = [rec(2, 100, who="a", nth=1), rec(3, 100, who="a", nth=2), rec(4, 100, who="b", nth=1)]
    assert reasons([first, second], source_of()) == ["admitted", "duplicate", "duplicate", "admitted", "admitted"]


def test_offsets_that_come_again_are_refused() -> None:
    for again in (0, 3, 4):
        local = running(source_of())
        local.batch([rec(0, 100, who="a", nth=1), rec(4, 100, who="a", nth=2)])
        with pytest.raises(PipelineError, match=f"clicks-topic/0: offset {again} came again, 5 was expected"):
            local.batch([rec(again, 100, who="a", nth=3)])


def test_offsets_may_have_gaps() -> None:
    batches = [[rec(0, 100), rec(7, 101)], [rec(1_000_000, 102)]]
    assert reasons(batches, source_of(numbered=False)) == ["admitted"] * 3


def test_a_closed_partition_takes_nothing_more() -> None:
    batches = [[Rec(0, 0, 0, 0, beat=FOREVER)], [rec(1, 100)]]
    assert reasons(batches, source_of(numbered=False)) == ["late"]
