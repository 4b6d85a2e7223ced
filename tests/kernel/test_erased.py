"""Records of somebody who was forgotten: they are judged like before, and nobody else's answer changes."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.kernel.admission import gate, verdicts
from millstream.kernel.admission.record import ERASED
from millstream.plan.build import Feed
from tests.kernel.plan_log import Log, Shop, cut, feed, random_log, running
from tests.kernel.plans import Author
from tests.kernel.shop import sources
from tests.kernel.test_plans import agree, chain_of, views_of

some = settings(max_examples=40, deadline=None)


class Forgetting(Shop):
    """What is left when some are forgotten: their records raise marks as before, and are in no view."""

    def batch(self, records: Log) -> None:
        for name, record in records:
            if name == "u":
                self.met.append(self.marks)
            before = len(self.judges[name].admitted)
            self.judges[name].batch([replace(record, bad=None) if record.bad == ERASED else record])
            if record.bad == ERASED and len(self.judges[name].admitted) > before:
                self.judges[name].admitted.pop()
                if name == "u":
                    self.met.pop()


def blanked(log: Log, chance: Random) -> Log:
    """The log with one subject's records erased: those of one key, and the newest of each partition."""
    subject = chance.choice((0, 1, 2))
    newest: dict[Any, Any] = {}
    for name, record in log:
        time = record.values.get({"a": "at", "b": "bt"}.get(name, ""))
        place = name, record.partition
        if time is not None and record.bad is None and (place not in newest or newest[place][0] < time):
            newest[place] = time, record.offset
    made: Log = []
    for name, record in log:
        mine = record.values.get("id" if name == "u" else "k") == subject
        mine |= newest.get((name, record.partition), (None, None))[1] == record.offset
        if mine and record.bad is None and record.beat is None:
            kept: dict[str, Any] = {
                each: record.values[each] for each in ("at", "bt", "who", "nth", "id") if each in record.values
            }
            record = replace(record, bad=ERASED, values=kept, deleted=record.deleted)
        made.append((name, record))
    return made


def check(seed: int) -> None:
    """A plan over a log with erased records gives what it gives without their rows, batch by batch; the counts add up."""
    chance = Random(seed)
    declared, partitions = sources(chance), chance.choice((1, 2))
    views = views_of(chance, Author(chance, declared, few=seed % 4 > 0, windows=seed % 3 == 0))
    log = blanked(random_log(chance, declared, partitions, chance.choice((8, 25, 45))), chance)
    chain = chain_of(views, chance.choice((1, 2, 5)), chance.choice((1, 2)))
    local, shop = running(chain, partitions, chance.randrange(100)), Forgetting(declared, partitions)
    for records in cut(chance, log):
        shop.batch(records)
        local.batch(feed(chain, records))
        agree(local, shop, views)
    local.close()
    shop.closed = True
    agree(local, shop, views)
    for each in local.counts:
        told = each.admitted + each.late + each.duplicate + each.future + each.malformed + each.erased
        assert each.records == told
    assert all(reason != "erased" for *_, reason, _ in local.rejects), "an erased record is no dead letter"


@given(seed=st.integers(0, (1 << 32) - 1))
@some
def test_a_plan_over_a_log_with_erased_records_gives_what_the_others_give(seed: int) -> None:
    check(seed)


def test_the_oracle_notices_when_an_erased_record_no_longer_raises_the_watermark() -> None:
    usual = verdicts.judge

    def judge(feed: Feed, rows: pl.DataFrame, *others: Any) -> verdicts.Verdicts:
        if "_t" in rows.columns:
            rows = rows.with_columns(pl.when(pl.col("_bad").ne_missing(ERASED)).then("_t").alias("_t"))
        return usual(feed, rows, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "judge", judge)
        with pytest.raises(AssertionError):
            list(map(check, range(60)))
