"""A function gets changes with ids that stay the same."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pytest

from millstream.errors import SinkUnavailable
from millstream.sink import ChangeSet
from millstream.sink.function import Change, FunctionSink, RejectChange
from millstream.store.contract import Refusal
from tests.contracts.sink import change_set


def test_changes_come_with_ids_and_the_same_ids_again() -> None:
    got: list[Sequence[Change]] = []
    sink = FunctionSink(got.append, "p")
    payload = sink.pack(change_set({"ann": (1, 1.0)}, gone=("bob",))).payload
    sink.send(payload, 7, marked=False)
    sink.send(payload, 7, marked=False)
    sink.send(payload, 8, marked=False)
    first = [Change("p/7/0", {"name": "ann", "n": 1, "total": 1.0}, 1), Change("p/7/1", {"name": "bob"}, -1)]
    assert got[:2] == [first, first]
    assert [change.id for change in got[2]] == ["p/8/0", "p/8/1"]


def test_rows_without_a_key_have_their_weight() -> None:
    got: list[Sequence[Change]] = []
    frame = pl.DataFrame({"n": [1, 2], "_weight": [3, -1]})
    sink = FunctionSink(got.append, "p")
    sink.send(sink.pack(ChangeSet(frame, frame.clear().drop("_weight"))).payload, 1, marked=False)
    assert [(change.row, change.weight) for change in got[0]] == [({"n": 1}, 3), ({"n": 2}, -1)]


def test_rows_that_are_only_added_have_ids_that_outlive_a_rebuild() -> None:
    got: list[Change] = []
    frame = pl.DataFrame({"n": [1, 2], "_topic": ["t", "t"], "_partition": [0, 1], "_offset": [7, 7]})
    with FunctionSink(got.extend, "p") as sink:
        payload = sink.pack(ChangeSet(frame, frame.clear())).payload
        sink.send(payload, 1, marked=False)
        sink.send(payload[1:], (5 << 32) + 3, marked=False)  # in another batch, of another checkpoint
    assert [change.id for change in got] == ["p/t/0/7", "p/t/1/7", "p/t/1/7"]
    with FunctionSink(got.extend, "p") as sink:  # rows that may go again are changes of a batch
        sink.send(sink.pack(ChangeSet(frame.with_columns(_weight=-1), frame.clear())).payload, 9, marked=False)
    assert [change.id for change in got[3:]] == ["p/9/0", "p/9/1"]


def test_a_change_that_is_refused_is_left_out_and_told() -> None:
    got: list[list[str]] = []

    def picky(changes: Sequence[Change]) -> None:
        for change in changes:
            if change.row["name"] == "bob":
                raise RejectChange(change, "not him")
        got.append([change.row["name"] for change in changes])

    sink = FunctionSink(picky, "p")
    refused = sink.send(
        sink.pack(change_set({"ann": (1, 1.0), "bob": (2, 2.0), "eve": (3, 3.0)})).payload, 1, marked=False
    )
    assert got == [["ann", "eve"]]
    assert refused == [Refusal("name='bob', n=2, total=2.0", "not him")]


def test_any_other_failure_is_worth_another_try() -> None:
    def broken(_: Sequence[Change]) -> None:
        raise OSError("no route")

    sink = FunctionSink(broken, "p")
    with pytest.raises(SinkUnavailable, match=r"broken\(\): OSError: no route"):
        sink.send(sink.pack(change_set({"ann": (1, 1.0)})).payload, 1, marked=False)
