"""Times in text: read as a grid they are what each is by itself, and what the calendar says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.decode import timestamps
from millstream.decode.timestamps import read_stamps

FORMS = ["%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f+00:00", "%Y-%m-%dT%H:%M:%S.%f"]
ODD = [
    "", "now", "2026-02-30T00:00:00Z", "2026-01-02T24:00:00Z", "2026-01-02T23:60:00Z", "2026-01-02T23:59:60Z", "2026-00-02T03:04:05Z",
    "2026-13-02T03:04:05Z", "2026-01-00T03:04:05Z", "2026-01-99T03:04:05Z", "1899-12-31T23:59:59Z", "2100-01-01T00:00:00Z",
    "2026-01-02T03:04:0:Z", "2026-01-02T03:04:0/Z", "2026-01-02T03:04:05z", "2026-01-02T03:04:05\n", "2026-01-02 03:04:05Z",
    "2026-01-02T03:04:05.1Z", "2026-01-02T03:04:05Z\n2026-01-02T03:04:05Z", "２26-01-02T03:04:05Z", "2026-01-02T03:04:05+01:00",
]  # fmt: skip


def one_by_one(texts: list[str | None], *, utc: bool) -> list[datetime | None]:
    known = {text: read_stamps([text], utc=utc).item() for text in set(texts)}
    return [known[text] for text in texts]


@settings(deadline=None)
@given(
    st.lists(st.datetimes(datetime(1900, 1, 1), datetime(2099, 12, 31)), min_size=1, max_size=4),
    st.sampled_from(FORMS),
    st.integers(0, 6),
    st.lists(st.none() | st.sampled_from(ODD), max_size=2),
    st.booleans(),
)
def test_many_texts_are_read_as_each_by_itself(
    moments: list[datetime], form: str, digits: int, odd: list[str | None], utc: bool
) -> None:
    texts: list[str | None] = [
        moment.strftime(form.replace("%f", f"{moment.microsecond:06}"[: digits + 1])) for moment in moments
    ]
    texts = texts * 70 + odd
    assert read_stamps(texts, utc=utc).to_list() == one_by_one(texts, utc=utc)


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_text_among_many_is_read_as_by_itself(odd: str) -> None:
    texts: list[str | None] = ["2026-01-02T03:04:05Z"] * 99
    for place in (0, 50, 98):
        mixed = [*texts[:place], odd, *texts[place + 1 :]]
        assert read_stamps(mixed, utc=True).to_list() == one_by_one(mixed, utc=True)


def test_every_day_is_that_of_the_calendar() -> None:
    days = [datetime(1900, 1, 1, 12, 34, 56, 789_000, UTC) + timedelta(number) for number in range(73_049)]
    texts = [day.isoformat(timespec="milliseconds") for day in days]
    assert days[-1].year == 2099
    grid = timestamps._grid(texts, timestamps._TIME)
    assert grid is not None, "all have one form"
    assert grid[1].all()
    assert read_stamps(texts, utc=False).to_list() == days


def test_no_day_is_there_that_the_calendar_has_not() -> None:
    texts = [
        f"{year}-{month:02}-{day:02} 00:00:00"
        for year in (1900, 2000, 2023, 2024)
        for month in range(14)
        for day in range(40)
    ]
    known = [_is_day(text) for text in texts]
    assert [moment is not None for moment in read_stamps(texts, utc=True)] == known


def _is_day(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def test_a_time_without_a_zone_is_read_in_utc_only() -> None:
    texts = ["2026-01-02T03:04:05"] * 99
    assert read_stamps(texts, utc=False).null_count() == 99
    assert read_stamps(texts, utc=True).null_count() == 0
