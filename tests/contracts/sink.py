"""What every sink promises, against the real thing.

A subclass gives the fixtures ``again``, which opens the sink of view ``totals`` anew, as another process would, and
``sent``, what is there now: the newest row of each key by its name, as JSON says it.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any

import polars as pl
import pytest

from millstream.errors import MillstreamError
from millstream.sink import ChangeSet, Sink

SCHEMA = {"name": pl.String, "n": pl.Int64, "total": pl.Float64}
KEY = ("name",)
Rows = dict[str, tuple[int, float | None]]


def change_set(rows: Rows, gone: tuple[str, ...] = ()) -> ChangeSet:
    frame = pl.DataFrame([(name, *row) for name, row in rows.items()], schema=SCHEMA, orient="row")
    return ChangeSet(frame, pl.DataFrame({"name": list(gone)}, schema={"name": pl.String}))


def send(sink: Sink, sequence: int, rows: Rows, gone: tuple[str, ...] = (), marked: bool = True) -> None:
    payload, refused = sink.pack(change_set(rows, gone))
    assert not refused
    assert not sink.send(payload, sequence, marked=marked)


class SinkContract:
    @pytest.fixture
    def sink(self, again: Callable[[], Sink]) -> Iterator[Sink]:
        with again() as opened:
            yield opened

    def test_a_new_one_has_no_number_and_nothing_in_it(self, sink: Sink, sent: Callable[[], Rows]) -> None:
        assert sink.last() is None
        assert sent() == {}

    def test_rows_come_change_and_go(self, sink: Sink, sent: Callable[[], Rows]) -> None:
        send(sink, 1, {"ann": (1, 0.5), "bob": (2, None), "eve": (3, -1.0)})
        send(sink, 2, {"ann": (7, 0.25)}, gone=("bob",))
        assert sent() == {"ann": (7, 0.25), "eve": (3, -1.0)}
        send(sink, 3, {"bob": (9, 1e300)}, gone=("ann", "eve"))
        assert sent() == {"bob": (9, 1e300)}

    def test_the_number_of_a_batch_is_there_with_it_and_for_the_next_process(
        self, sink: Sink, again: Callable[[], Sink]
    ) -> None:
        send(sink, 4_294_967_297, {"ann": (1, 1.0)})
        assert sink.last() == 4_294_967_297
        sink.close()
        with again() as other:
            assert other.last() == 4_294_967_297

    def test_a_batch_that_is_there_is_not_taken_again(self, sink: Sink, sent: Callable[[], Rows]) -> None:
        send(sink, 5, {"ann": (1, 1.0)})
        send(sink, 6, {"ann": (2, 2.0)})
        send(sink, 6, {"ann": (2, 2.0)})
        send(sink, 5, {"ann": (1, 1.0)})
        assert sent() == {"ann": (2, 2.0)}
        assert sink.last() == 6

    def test_numbers_may_have_gaps(self, sink: Sink, sent: Callable[[], Rows]) -> None:
        send(sink, 1, {"ann": (1, 1.0)})
        send(sink, 1 << 33, {"bob": (1, 1.0)})
        assert sent() == {"ann": (1, 1.0), "bob": (1, 1.0)}

    def test_a_zombie_changes_nothing(self, sink: Sink, again: Callable[[], Sink], sent: Callable[[], Rows]) -> None:
        send(sink, 1, {"ann": (1, 1.0)})
        with again() as newer:
            assert newer.last() == 1
            send(newer, (1 << 32) + 1, {"ann": (5, 5.0)})
            with suppress(MillstreamError):  # refused or ignored: either way nothing changes
                send(sink, 2, {"ann": (2, 2.0), "mal": (1, 1.0)})
            assert sent() == {"ann": (5, 5.0)}
            send(newer, (1 << 32) + 2, {"bob": (6, 6.0)})
        assert sent() == {"ann": (5, 5.0), "bob": (6, 6.0)}

    def test_one_that_is_sealed_takes_nothing_below(
        self, sink: Sink, again: Callable[[], Sink], sent: Callable[[], Rows]
    ) -> None:
        send(sink, 5, {"ann": (1, 1.0)})
        with again() as newer:
            assert not newer.seal(1 << 32, after=4)
            for _ in range(2):  # as if the first answer was lost
                assert newer.seal(1 << 32, after=5)
            with suppress(MillstreamError):
                send(sink, 6, {"ann": (2, 2.0), "mal": (1, 1.0)})
            assert (newer.last(), sent()) == (1 << 32, {"ann": (1, 1.0)})
            send(newer, (1 << 32) + 1, {"bob": (6, 6.0)})
        assert sent() == {"ann": (1, 1.0), "bob": (6, 6.0)}

    def test_what_it_holds_is_told_by_key_if_it_can_be(self, sink: Sink, sent: Callable[[], Rows]) -> None:
        if (found := sink.held()) is None:
            pytest.skip("a cache, or folders by columns: nobody can say what should be there")
        assert list(found) == []
        send(sink, 1, {f"user {number}": (number, number / 8) for number in range(2_500)})
        send(sink, 2, {"user 0": (7, None), 'ü"': (8, 1e300)}, gone=("user 1", "user 2"))
        told = list(sink.held() or ())
        rows = {json.loads(key)["name"]: json.loads(row) for key, row in told}
        assert len(told) == len(rows) == 2_499
        assert named(list(rows.values())) == sent()
        assert all(json.loads(key) == {"name": json.loads(row)["name"]} for key, row in told)
        assert set(rows["user 0"]) == {"name", "n", "total"}

    def test_nothing_to_send_is_nothing_sent(self, sink: Sink, sent: Callable[[], Rows]) -> None:
        send(sink, 1, {})
        assert sent() == {}

    def test_many_rows_at_once(self, sink: Sink, sent: Callable[[], Rows]) -> None:
        rows: Rows = {f"user {number}": (number, number / 8) for number in range(7_500)}
        send(sink, 1, rows)
        send(sink, 2, {}, gone=tuple(list(rows)[:6_001]))
        assert sent() == dict(list(rows.items())[6_001:])

    def test_names_are_data_whatever_they_hold(self, sink: Sink, sent: Callable[[], Rows]) -> None:
        odd: Rows = {'"; DROP\n': (1, 1.0), "ü\t漢": (2, 2.0), "": (3, 3.0), "{}": (4, 4.0), "\x00": (5, 5.0)}
        send(sink, 1, odd)
        assert sent() == odd
        send(sink, 2, {}, gone=tuple(odd)[1:])
        assert sent() == {'"; DROP\n': (1, 1.0)}

    def test_every_type_of_value_can_be_packed(self, sink: Sink) -> None:
        frame = pl.DataFrame(
            {
                "name": ["ann", "bob"],
                "at": [dt.datetime(2026, 1, 1, 12, 0, 0, 5, tzinfo=dt.UTC), None],
                "day": [dt.date(2026, 1, 1), None],
                "price": [Decimal("1.50"), None],
                "raw": [b"\x00\xff", None],
                "tags": [["a", None], []],
                "deep": [{"x": 1, "y": [1.5]}, None],
                "yes": [True, None],
            }
        ).with_columns(pl.col("at").dt.convert_time_zone("UTC"))
        payload, refused = sink.pack(ChangeSet(frame, frame.clear().select("name")))
        assert len(payload) and not refused  # noqa: PT018
        assert not sink.send(payload, 1, marked=True)
        assert sink.last() == 1


class JsonSinkContract(SinkContract):
    """The same, where rows are JSON."""

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_a_value_that_json_has_no_word_for_is_refused_and_its_neighbours_are_not(
        self, sink: Sink, sent: Callable[[], Rows], value: float
    ) -> None:
        payload, refused = sink.pack(change_set({"ann": (1, 1.0), "bob": (2, value), "eve": (3, None)}))
        assert [each.why for each in refused] == ["JSON has neither NaN nor infinities"]
        assert "bob" in refused[0].row
        sink.send(payload, 1, marked=True)
        assert sent() == {"ann": (1, 1.0), "eve": (3, None)}


def named(rows: list[dict[str, Any]]) -> Rows:
    return {row["name"]: (row["n"], row["total"]) for row in rows}
