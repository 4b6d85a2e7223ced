"""A table's history against a plain list of what its records said."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream import Pipeline
from millstream.errors import PlanError
from millstream.kernel.kernel import State
from millstream.kernel.operators.history import HistoryKernel
from millstream.kernel.state.segments import Table, place
from millstream.kernel.state.store import Memory, Meta
from millstream.plan import spec
from millstream.relation.nodes import History
from millstream.window import tumbling
from tests.kernel.local import STAMP, Local, Rec, hashable
from tests.kernel.operators.test_changelog import KEYS, PARTITIONS, TABLE, TYPES, VALUES, few, view, views_of
from tests.kernel.oracle import stamp

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
HISTORY = History(TABLE)
SPANS = {0: {**TYPES[0], "_timestamp": STAMP}}
KEY = (1.0, "a")


def said(offset: int, at: int, key: tuple[Any, Any] = KEY, v: Any = None, gone: bool = False, part: int = 0) -> Rec:
    values = {"k": key[0], "l": key[1]} if gone else {"k": key[0], "l": key[1], "v": v, "n": offset}
    time = START + at * SECOND
    return Rec(0, part, offset, time, {**values, "_timestamp": stamp(time)}, deleted=gone, stamp=time)


def script(chance: Random) -> list[list[Rec]]:
    """Records whose times mostly grow, stand still now and then, and sometimes go back."""
    following, made, now = [0] * PARTITIONS, [], 0
    for _ in range(chance.randint(1, 6)):
        records = []
        for _ in range(chance.randint(1, 8)):
            key, now = chance.choice(KEYS), now + chance.choice((0, 0, 1, 5))
            part = [hashable(each) for each in KEYS].index(hashable(key)) % PARTITIONS
            at = now - chance.choice((0, 0, 0, 4, 30))
            records.append(said(following[part], at, key, chance.choice(VALUES), chance.random() < 0.3, part))
            following[part] += 1
        made.append(records)
    return made


def spans_of(seen: Sequence[Rec]) -> Counter[tuple[Any, ...]]:
    """The rows and when they held, record by record; the records of a key come in the order of their offsets."""
    found: dict[Any, list[tuple[int, Any]]] = {}
    for each in seen:
        key = hashable((each.values["k"], each.values["l"]))
        before = found.setdefault(key, [])
        at = max([each.stamp or 0, *(time for time, _ in before)])
        row = None if each.deleted else tuple(each.values[name] for name in ("k", "l", "v", "n"))
        before.append((at, row))
    made: Counter[tuple[Any, ...]] = Counter()
    for records in found.values():
        for (at, row), (to, _) in zip(records, [*records[1:], (None, None)], strict=True):
            if row is not None and at != to:
                made[hashable((*row, stamp(at), None if to is None else stamp(to)))] += 1
    return made


def running() -> Local:
    return Local(views_of(view(HISTORY, ("k", "l", "valid_from"))), PARTITIONS, SPANS)


@given(seed=st.integers(0, (1 << 32) - 1))
@few
def test_every_batch_leaves_all_that_the_table_was_and_a_repeat_says_the_same(seed: int) -> None:
    local, seen = running(), list[Rec]()
    for records in script(Random(seed)):
        before = spans_of(seen)
        seen += records
        again = local.copy()
        local.batch(records)
        again.batch(records)
        assert local.view("view") == spans_of(seen)
        sent = local.sent[-1].get("view", Counter())
        assert again.sent[-1].get("view", Counter()) == sent
        assert {row: n for row, n in sent.items() if n > 0} == dict(spans_of(seen) - before)
        assert {row: -n for row, n in sent.items() if n < 0} == dict(before - spans_of(seen))


def held(*batches: Sequence[Rec]) -> list[tuple[Any, int, int | None]]:
    """The value of each row, and the seconds from and until which it held."""
    local = running()
    for batch in batches:
        local.batch(batch)

    def second(time: Any) -> int | None:
        return None if time is None else round(time.timestamp()) - START // SECOND

    return sorted((row[2], second(row[4]) or 0, second(row[5])) for row in local.view("view"))


def test_a_row_holds_until_the_next_of_its_key_and_the_last_one_holds_still() -> None:
    one, two, other = said(0, 1, v=1.5), said(1, 9, v=2.5), said(2, 5, (2.0, "a"), v=7.0)
    assert held([one]) == [(1.5, 1, None)]
    assert held([one], [two, other]) == held([one, two, other]) == [(1.5, 1, 9), (2.5, 9, None), (7.0, 5, None)]


def test_a_tombstone_ends_a_row_and_what_comes_later_begins_another() -> None:
    one, gone, back = said(0, 1, v=1.5), said(1, 4, gone=True), said(2, 6, v=2.5)
    assert held([one], [gone]) == [(1.5, 1, 4)]
    assert held([one], [gone], [back]) == held([one, gone, back]) == [(1.5, 1, 4), (2.5, 6, None)]
    assert held([gone]) == held([said(0, 1, gone=True)], [said(1, 2, gone=True)]) == []


def test_a_record_that_claims_to_be_older_takes_over_where_the_one_before_did() -> None:
    one, two, older = said(0, 1, v=1.5), said(1, 8, v=2.5), said(2, 3, v=3.5)
    assert held([one], [two], [older]) == held([one, two, older]) == [(1.5, 1, 8), (3.5, 8, None)]
    assert held([one], [said(1, 8, gone=True)], [older]) == [(1.5, 1, 8), (3.5, 8, None)]


def test_a_row_that_held_for_no_time_is_left_out() -> None:
    assert held([said(0, 1, v=1.5)], [said(1, 1, v=2.5)]) == [(2.5, 1, None)]
    assert held([said(0, 1, v=1.5), said(1, 1, gone=True)]) == []


def test_a_record_that_says_the_same_again_is_a_row_of_its_own() -> None:
    assert held([said(0, 1, v=math.pi)], [said(1, 2, v=math.pi)]) == [(math.pi, 1, 2), (math.pi, 2, None)]


def test_its_state_is_one_record_of_each_key() -> None:
    kernel, store, meta = HistoryKernel(spec.History(("k",), ("v",))), Memory(), Meta()
    rows = pl.DataFrame({"k": [1, 1, 2], "v": [1, 2, 3], "valid_from": [stamp(START)] * 3})
    rows = rows.with_columns(pl.col("valid_from").cast(STAMP), _deleted=pl.lit(False))
    for batch in range(20):
        state = State(store, meta, 0, 0, rows.schema)
        numbers, later = pl.Series("_offset", range(3 * batch, 3 * batch + 3)), pl.duration(seconds=pl.col("_offset"))
        kernel.step(state, rows.with_columns(numbers).with_columns(pl.col("valid_from") + later))
    kept = Table(store, meta, "rows", 0).load(place(rows, ["k"]))
    assert kept is not None
    assert sorted(kept["v"]) == [2, 3]


def test_it_is_said_of_tables_alone_and_its_rows_are_known_by_key_and_time() -> None:
    shop = Pipeline("shop")
    users = shop.table("users", "id long, city string", key="id")
    clicks = shop.stream("clicks", "user long, at timestamp", time="at")
    view_ = shop.view("were", users.history().where("city = 'x'"))
    assert view_.columns == ("id", "city", "valid_from", "valid_to")
    assert view_.key == ("id", "valid_from")
    for wrong in (clicks, users.where("id > 1"), clicks.group_by("user", tumbling("at", "1 minute")).agg(n="count(*)")):
        with pytest.raises(PlanError, match=r"test_history\.py:\d+: history: expected a table"):
            wrong.history()
    with pytest.raises(PlanError, match="valid_to"):
        shop.table("odd", "id long, valid_to timestamp", key="id").history()
    with pytest.raises(PlanError, match="as_of"):
        clicks.join(users.history().select("id", "city"), on="user = id", as_of="at")
