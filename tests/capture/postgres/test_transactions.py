"""Streamed transactions, several at once, from messages that are written here: what is held, forgotten and told."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.capture.contract import Column, Table
from millstream.capture.postgres.pgoutput import (
    Attribute,
    Begin,
    Commit,
    Relation,
    Row,
    StreamAbort,
    StreamStart,
    StreamStop,
    Truncate,
)
from millstream.capture.postgres.position import At
from millstream.capture.postgres.rows import Mapped
from millstream.capture.postgres.transactions import Transactions
from millstream.errors import CaptureError
from tests.capture.postgres.test_pgoutput import encode


def mapped(relation: Relation) -> Mapped | None:
    if relation.name == "other":
        return None
    names = [each.name for each in relation.columns]
    table = Table("public", relation.name, tuple(Column(name, "text", "string") for name in names), ("id",))
    return Mapped(table, tuple((name, None) for name in names))


def relation(*names: str, xid: int = 0, number: int = 7, name: str = "a") -> Relation:
    return Relation(number, "public", name, "d", tuple(Attribute(each == "id", each, 25, -1) for each in names), xid)


def came(*values: bytes, xid: int = 0, number: int = 7) -> Row:
    return Row("I", number, "", (), values, xid)


def told(reader: Transactions, *messages: Any) -> list[list[dict[str, Any]]]:
    found = [reader.read(encode(each)) for each in messages]
    return [[dict(change.after or {}) for change in each.changes] for each in found if each is not None]


def reader() -> Transactions:
    return Transactions(mapped, At("s", 1, 100))


def test_pieces_of_open_transactions_are_told_when_each_commits() -> None:
    messages = (
        StreamStart(1, True), relation("id", xid=1), came(b"a", xid=1), StreamStop(),
        StreamStart(2, True), relation("id", xid=2), came(b"b", xid=2), StreamStop(),
        StreamStart(1, False), came(b"c", xid=1), StreamStop(),
        Commit(200, 210, 0, 2), Commit(220, 230, 0, 1),
    )  # fmt: skip
    assert told(reader(), *messages) == [[{"id": "b"}], [{"id": "a"}, {"id": "c"}]]


def test_a_part_that_was_rolled_back_is_not_told_nor_a_whole() -> None:
    messages = (
        StreamStart(1, True), relation("id", xid=1), came(b"a", xid=1), came(b"gone", xid=5), StreamStop(),
        StreamAbort(1, 5),
        StreamStart(1, False), relation("id", xid=6), came(b"c", xid=6), StreamStop(),
        StreamStart(2, True), relation("id", xid=2), came(b"gone too", xid=2), StreamStop(), StreamAbort(2, 2),
        Commit(220, 230, 0, 1),
    )  # fmt: skip
    assert told(reader(), *messages) == [[{"id": "a"}, {"id": "c"}]]


def test_what_an_open_transaction_did_to_a_table_is_seen_by_others_when_it_commits() -> None:
    messages = (
        relation("id"),
        StreamStart(1, True), relation("id", "v", xid=1), came(b"a", b"1", xid=1), StreamStop(),
        Begin(150, 0, 9), came(b"b"), Commit(150, 160, 0),
        Commit(220, 230, 0, 1),
        Begin(250, 0, 9), came(b"c", b"2"), Commit(250, 260, 0),
    )  # fmt: skip
    assert told(reader(), *messages) == [[{"id": "b"}], [{"id": "a", "v": "1"}], [{"id": "c", "v": "2"}]]


def test_an_older_description_does_not_replace_a_newer_one() -> None:
    messages = (
        StreamStart(1, True), relation("id", xid=1), came(b"a", xid=1), StreamStop(),
        Begin(150, 0, 9), relation("id", "v"), came(b"b", b"1"), Commit(150, 160, 0),
        Commit(220, 230, 0, 1),
        Begin(250, 0, 9), came(b"c", b"2"), Commit(250, 260, 0),
    )  # fmt: skip
    assert told(reader(), *messages) == [[{"id": "b", "v": "1"}], [{"id": "a"}], [{"id": "c", "v": "2"}]]


def test_what_ended_before_the_position_is_not_told_again_and_others_only_move_it() -> None:
    read = reader()
    old = (relation("id"), Begin(90, 0, 1), came(b"a"), Commit(90, 100, 0))
    assert told(read, *old) == []
    others = (relation("id", number=8, name="other"), Begin(110, 0, 1), came(b"a", number=8), Commit(110, 120, 0))
    assert told(read, *others) == []
    assert read.here().position["lsn"] == f"0/{120:X}"


def test_how_far_the_server_has_looked_counts_only_between_transactions() -> None:
    read = reader()
    read.looked(150)
    assert read.lsn == 150
    told(read, relation("id"), Begin(180, 0, 1), came(b"a"))
    read.looked(170)
    assert read.lsn == 150
    read.restarted()
    read.looked(160)
    assert read.lsn == 160


def test_a_truncation_empties_each_table_of_ours() -> None:
    read = reader()
    messages = (
        relation("id"),
        relation("id", number=8, name="other"),
        Begin(150, 0, 1),
        Truncate((7, 8), False, False),
    )
    for each in messages:
        read.read(encode(each))
    transaction = read.read(encode(Commit(150, 160, 0)))
    assert transaction is not None
    assert [(each.table.name, each.op) for each in transaction.changes] == [("a", "t")]


def test_rows_that_stand_nowhere_are_refused() -> None:
    with pytest.raises(CaptureError, match="was not described"):
        told(reader(), Begin(150, 0, 1), came(b"a"))
    with pytest.raises(CaptureError, match="outside of a transaction"):
        told(reader(), relation("id"), came(b"a"))
    with pytest.raises(CaptureError, match="outside of a transaction"):
        told(reader(), Commit(150, 160, 0))
    with pytest.raises(CaptureError, match="2 values, expected 1"):
        told(reader(), relation("id"), Begin(150, 0, 1), came(b"a", b"b"), Commit(150, 160, 0))
