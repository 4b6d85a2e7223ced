"""Records of the engine as transactions, however they are cut into batches and wherever the engine begins again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.capture.contract import Change, Column, Position, Row, Table
from millstream.engine.child import Batch
from millstream.engine.transactions import Place, Transactions, place_of
from millstream.errors import CaptureError, CaptureGap

USERS = Table("public", "users", (Column("id", "int4", "int"), Column("t", "text", "string")), ("id",))
DAYS = Table("public", "days", (Column("id", "int4", "int"), Column("born", "date", "date")), ("id",))

LATER = Table("public", "days", (*DAYS.columns, Column("more", "float8", "double")), ("id",))


@dataclass(frozen=True)
class Record:
    """What the engine gives: a destination, a key, a value, and where it would begin again behind it."""

    destination: str
    key: Any
    value: Any
    offset: dict[str, str]


def offset(number: int, **said: Any) -> dict[str, str]:
    return {"key": '["shop",{"server":"shop"}]', "value": json.dumps({"lsn": number, **said})}


def change(number: int, op: str, row: dict[str, Any], table: str = "users", snapshot: str = "false") -> Record:
    before, after = (row, None) if op == "d" else (None, row)
    source = {"schema": "public", "table": table, "db": "shop", "snapshot": snapshot, "ts_ms": 5}
    value = {"before": before, "after": after, "op": op, "source": source, "transaction": None}
    return Record(f"shop.public.{table}", {"id": row["id"]}, value, offset(number))


def bound(number: int, status: str, called: str, count: int | None = None) -> Record:
    return Record("shop.millstream-transaction", {"id": called}, {"status": status, "id": called, "event_count": count, "ts_ms": 1000}, offset(number))  # fmt: skip


def beat(number: int, **said: Any) -> Record:
    return Record("millstream-heartbeat.shop", {}, {"ts_ms": 1}, offset(number, **said))


def batches(records: Sequence[Record], sizes: Sequence[int]) -> Iterator[Batch]:
    at, number = 0, 0
    for size in [*sizes, len(records)]:
        part = records[at : at + size]
        at, number = at + size, number + 1
        if part:
            offsets = {
                i: each.offset for i, each in enumerate(part) if "heartbeat" in each.destination or "-transaction" in each.destination
            }  # fmt: skip
            yield Batch(number, [(r.destination, json.dumps(r.key), json.dumps(r.value)) for r in part], offsets)


def made(place: Place = Place(), tables: Sequence[Table] = (USERS, DAYS), last: Any = None) -> Transactions:  # noqa: B008
    def unknown(table: Table, key: Row, column: str) -> Any:
        raise KeyError(column)

    return Transactions("shop", tables, place, "session", last or unknown, lambda: (USERS, LATER))


def read(found: Transactions, given: Iterator[Batch]) -> list[tuple[Position, str, list[Change]]]:
    return [(each.position, each.id, list(each.changes)) for batch in given for each in found.take(batch)]


def said(changes: Sequence[Change]) -> list[tuple[str, Any, Any]]:
    return [(each.op, each.before, each.after) for each in changes]


def named(found: list[tuple[Position, str, list[Change]]]) -> list[str]:
    """The transactions that changed something."""
    return [called for _, called, changes in found if called != "snapshot" and changes]


@st.composite
def histories(draw: st.DrawFn) -> list[Record]:
    """A snapshot, then transactions, with heartbeats between and within them."""
    made: list[Record] = []
    number = iter(range(1, 10_000))
    for each in range(draw(st.integers(0, 5))):
        made.append(change(next(number), "r", {"id": each, "t": "r"}, snapshot="true"))
    for transaction in range(draw(st.integers(1, 6))):
        made += [beat(next(number))] * draw(st.integers(0, 1))
        count = draw(st.integers(1, 4))
        made.append(bound(next(number), "BEGIN", str(transaction)))
        for each in range(count):
            made.append(
                change(next(number), draw(st.sampled_from("cud")), {"id": 100 * transaction + each, "t": "x\\n☃"})
            )
            made += [beat(next(number))] * draw(st.integers(0, 1))
        made.append(bound(next(number), "END", str(transaction), count))
    return made


@given(histories(), st.lists(st.integers(1, 7), max_size=12), st.integers(0, 30), st.booleans())
@settings(max_examples=300, deadline=None)
def test_whatever_the_batches_each_change_comes_once_and_transactions_whole(
    records: list[Record], sizes: list[int], stop: int, again: bool
) -> None:
    whole = read(made(), batches(records, [len(records)]))
    everything = [each for _, _, changes in whole for each in said(changes)]
    assert len(everything) == sum(1 for each in records if each.destination.startswith("shop.public"))
    cut = read(made(), batches(records, sizes))
    assert [each for _, _, changes in cut for each in said(changes)] == everything
    assert named(cut) == named(whole)
    kept = cut[:stop]
    if not kept or (place := place_of(kept[-1][0])).offset is None:
        return
    # the engine begins where the position says, or gives the last transaction once more
    at = 1 + next(i for i, each in enumerate(records) if each.offset == place.offset)
    ends = []
    if again and place.last and at > stop:
        ends = [bound(0, "END", place.last, 1)]
    elif again and place.last:
        at = min(at, next(i for i, each in enumerate(records) if each.key == {"id": place.last} and each.value.get("status") == "BEGIN"))  # fmt: skip
    rest = read(made(place), batches([*ends, *records[at:]], sizes[::-1]))
    assert [each for _, _, changes in [*kept, *rest] for each in said(changes)] == everything
    numbers = [position["seq"] for position, _, _ in [*kept, *rest]]
    assert numbers == sorted(set(numbers))


@given(histories(), st.lists(st.integers(1, 7), max_size=12))
@settings(max_examples=200, deadline=None)
def test_what_is_told_as_in_the_log_covers_whole_batches_only(records: list[Record], sizes: list[int]) -> None:
    ends: dict[str, int] = {}
    for batch in batches(records, sizes):
        ends |= {record[2]: batch.number for record in batch.records}
    came: set[str] = set()
    found = made()
    for batch in batches(records, sizes):
        for transaction in found.take(batch):
            list(transaction.changes)
            place, (_, covered) = place_of(transaction.position), transaction.position["engine"]["covered"]
            if place.offset is not None:
                at = next(i for i, each in enumerate(records) if each.offset == place.offset)
                came = {
                    json.dumps(each.value) for each in records[: at + 1] if each.destination.startswith("shop.public")
                }
                inside = [each for each in records[at + 1 :] if each.destination.startswith("shop.public")]
                assert all(
                    ends[json.dumps(each.value)] > covered for each in inside if json.dumps(each.value) not in came
                )


def test_a_snapshot_that_was_broken_off_is_taken_back_before_its_rows_come_again() -> None:
    rows = [change(n, "r", {"id": n, "t": "r"}, snapshot="true") for n in (1, 2)]
    ((first, _, _),) = read(made(), batches(rows, [2]))
    assert place_of(first) == Place(1, None, "", begun=True)
    records = [rows[1], beat(3, snapshot="INITIAL"), beat(4, snapshot="INITIAL", snapshot_completed=True)]
    found = read(made(place_of(first)), batches(records, [3]))
    assert [[(each.op, each.table.name) for each in changes] for _, _, changes in found] == [
        [("t", "users"), ("t", "days"), ("r", "users")],
        [],
    ]
    assert place_of(found[-1][0]).offset == records[-1].offset
    (empty,) = read(made(place_of(first)), batches([beat(9)], [1]))  # all rows were deleted meanwhile
    assert [each.op for each in empty[2]] == ["t", "t"]


def test_a_transaction_with_another_number_of_changes_than_its_end_says_is_a_gap() -> None:
    for records in (
        [bound(1, "BEGIN", "7"), change(2, "c", {"id": 1, "t": "x"}), bound(3, "END", "7", 2)],
        [bound(3, "END", "7", 0)],
        [bound(1, "BEGIN", "6"), bound(3, "END", "7", 0)],
    ):
        with pytest.raises(CaptureGap, match="transaction 7 ended with"):
            read(made(), batches(records, []))
    lost = [beat(1), change(2, "c", {"id": 1, "t": "x"})]
    with pytest.raises(CaptureGap, match="outside of a transaction"):
        read(made(), batches(lost, []))


def test_rows_are_as_our_other_captures_write_them() -> None:
    records = [
        bound(1, "BEGIN", "7"),
        change(2, "c", {"id": 1, "born": "2026-01-31Z"}, table="days"),
        change(3, "c", {"id": 2, "born": "2026-01-31Z", "more": 1.5}, table="days"),
        change(4, "d", {"id": 1, "born": "1970-01-01Z"}, table="days"),
        Record("shop.public.users", None, change(5, "t", {"id": 0}).value, offset(5)),
        change(6, "u", {"id": 3, "t": "__debezium_unavailable_value"}),
        bound(7, "END", "7", 5),
    ]
    ((_, _, changes),) = read(made(last=lambda table, key, column: (table.name, key, column)), batches(records, []))
    assert said(changes) == [
        ("c", None, {"id": 1, "born": "2026-01-31"}),
        ("c", None, {"id": 2, "born": "2026-01-31", "more": 1.5}),
        ("d", {"id": 1}, None),
        ("t", None, None),
        ("u", None, {"id": 3, "t": ("users", {"id": 3}, "t")}),
    ]
    assert [column.type for column in changes[1].table.columns] == ["int", "date", "double"]
    with pytest.raises(CaptureError, match="the value of t was not sent"):
        read(made(), batches([records[0], records[5], bound(7, "END", "7", 1)], []))
    with pytest.raises(CaptureError, match=r"none of public\.days"):
        read(made(tables=(DAYS,)), batches([records[0], records[5], bound(7, "END", "7", 1)], []))
