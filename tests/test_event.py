"""Times are whole milliseconds, the same forth and back; events and records are plain values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.event import Event, Record, TopicPartition, from_millis, to_millis

zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
times = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=zones)
EDGE = to_millis(datetime(9999, 12, 31, tzinfo=UTC))


@given(st.integers(-62_135_596_800_000, EDGE))
def test_milliseconds_come_back_unchanged(millis: int) -> None:
    assert to_millis(from_millis(millis)) == millis
    assert from_millis(millis).tzinfo is UTC


@given(times)
def test_a_time_loses_less_than_a_millisecond_and_never_moves_forward(time: datetime) -> None:
    assert timedelta(0) <= time - from_millis(to_millis(time)) < timedelta(milliseconds=1)


@given(times, times)
def test_milliseconds_keep_the_order_of_times(one: datetime, two: datetime) -> None:
    if one <= two:
        assert to_millis(one) <= to_millis(two)


def test_the_zone_does_not_matter_but_must_be_there() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert to_millis(noon.astimezone(timezone(timedelta(hours=5)))) == to_millis(noon) == 1_767_268_800_000
    with pytest.raises(ValueError, match="needs a zone: 2026-01-01T00:00:00 has none"):
        to_millis(datetime(2026, 1, 1))


def test_times_before_the_epoch_round_down_too() -> None:
    assert to_millis(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == -1


def test_an_event_needs_only_a_value() -> None:
    assert Event(b"x") == (b"x", None, None, ())


def test_a_record_shows_its_times_in_utc() -> None:
    record = Record("t", 0, 7, b"k", b"v", 1500, 2500)
    assert record.time == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    assert record.append_time == datetime(1970, 1, 1, 0, 0, 2, 500_000, tzinfo=UTC)
    assert record.headers == ()


def test_a_partition_reads_as_topic_and_number() -> None:
    assert str(TopicPartition("orders", 3)) == "orders/3"
