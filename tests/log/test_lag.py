"""Lag: who is behind, by how much, and whose unread records are about to go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import ConfigError, GenerationFenced, LogError, OffsetOutOfRange, UnknownTopic
from millstream.event import Event, TopicPartition
from millstream.log.contract import TopicSettings
from millstream.log.embedded.engine import SqliteLog
from millstream.log.lag import Move, group_lag, parse_start, plan_reset, reset
from tests.contracts.log import committed


class Past:
    """The real time, less so many seconds: what is appended now has waited that long."""

    ago = 0.0

    def __call__(self) -> int:
        return int((time.time() - self.ago) * 1000)


@pytest.fixture
def clock() -> Past:
    return Past()


@pytest.fixture
def log(tmp_path: Path, clock: Past) -> Iterator[SqliteLog]:
    with SqliteLog(tmp_path / "log.db", clock=clock) as opened:
        yield opened


def fill(log: SqliteLog, count: int, topic: str = "t", size: int = 10) -> None:
    log.append(topic, [Event(b"x" * size) for _ in range(count)])


def commit(log: SqliteLog, offset: int, topic: str = "t", partition: int = 0, group: str = "g") -> None:
    log.commit_group(group, {TopicPartition(topic, partition): offset})


# counting


def test_a_group_is_shown_in_every_partition_of_its_topics_committed_or_not(log: SqliteLog) -> None:
    log.create_topic("t", 3)
    log.create_topic("never")
    fill(log, 30)
    commit(log, 4, partition=1)
    rows = group_lag(log)
    assert [(r.topic, r.partition, r.committed, r.end, r.records) for r in rows] == [
        ("t", 0, 0, 10, 10),
        ("t", 1, 4, 10, 6),
        ("t", 2, 0, 10, 10),
    ]


def test_groups_and_topics_can_be_chosen(log: SqliteLog) -> None:
    for topic in ("t", "u"):
        log.create_topic(topic)
        for group in ("g", "h"):
            commit(log, 0, topic, group=group)
    assert {(r.group, r.topic) for r in group_lag(log)} == {("g", "t"), ("g", "u"), ("h", "t"), ("h", "u")}
    assert {(r.group, r.topic) for r in group_lag(log, groups=["h"])} == {("h", "t"), ("h", "u")}
    assert {(r.group, r.topic) for r in group_lag(log, topic="u")} == {("g", "u"), ("h", "u")}
    assert group_lag(log, groups=["none"]) == []


def test_members_are_counted(log: SqliteLog) -> None:
    log.create_topic("t")
    commit(log, 0)
    with log.consumer("t", "g"), log.consumer("t", "g"):
        assert group_lag(log)[0].members == 2
    assert group_lag(log)[0].members == 0


def test_a_group_of_a_deleted_topic_is_not_behind(log: SqliteLog) -> None:
    log.create_topic("t")
    commit(log, 0)
    log.delete_topic("t")
    assert group_lag(log) == []


def test_a_group_at_the_end_or_past_it_is_not_behind(log: SqliteLog) -> None:
    log.create_topic("t")
    fill(log, 5)
    for offset in (5, 9):
        commit(log, offset)
        assert (group_lag(log)[0].records, group_lag(log)[0].seconds, group_lag(log)[0].warning) == (0, 0.0, "")


def test_seconds_are_how_long_the_first_unread_record_has_waited(log: SqliteLog, clock: Past) -> None:
    log.create_topic("t")
    for clock.ago in (500, 300, 100):
        fill(log, 1)
    clock.ago = 0
    for offset, seconds in ((0, 500), (1, 300), (2, 100)):
        commit(log, offset)
        assert seconds <= group_lag(log)[0].seconds < seconds + 20


# warnings


@pytest.mark.parametrize(("waited", "warned"), [(0, False), (700, False), (850, True), (999, True), (5000, True)])
def test_a_warning_comes_with_a_fifth_of_the_retention_left(
    log: SqliteLog, clock: Past, waited: int, warned: bool
) -> None:
    log.create_topic("t", 1, TopicSettings(retention=timedelta(seconds=1000)))
    clock.ago = waited
    fill(log, 1)
    clock.ago = 0
    commit(log, 0)
    (row,) = group_lag(log)
    assert ("the first unread record expires in" in row.warning) == warned
    commit(log, 1)
    assert group_lag(log)[0].warning == ""


def test_a_warning_comes_when_size_is_about_to_take_what_is_unread(log: SqliteLog) -> None:
    log.create_topic("t", 1, TopicSettings(retention_bytes=1000))
    fill(log, 50)
    commit(log, 0)
    assert group_lag(log)[0].warning == ""  # never full yet
    fill(log, 80)
    log.maintain("t")
    assert log.bounds("t")[0] == (30, 130)
    for offset, warning in [
        (29, "offsets 29 to 29 are gone, unread"),
        (30, "only 0 records lie between retention and the first unread one"),
        (40, "only 10 records lie between retention and the first unread one"),
        (60, ""),
    ]:
        commit(log, offset)
        assert group_lag(log)[0].warning == warning


def test_what_is_gone_is_named_and_only_what_is_left_is_counted(log: SqliteLog) -> None:
    log.create_topic("t", 1, TopicSettings(retention_bytes=50))
    commit(log, 2)
    fill(log, 20)
    log.maintain("t")
    (row,) = group_lag(log)
    assert (row.committed, row.records, row.warning) == (2, 5, "offsets 2 to 14 are gone, unread")


def test_a_topic_that_keeps_everything_never_warns(log: SqliteLog, clock: Past) -> None:
    log.create_topic("t")
    log.create_topic("c", 1, TopicSettings(cleanup="compact", retention=timedelta(seconds=1)))
    clock.ago = 10**6
    fill(log, 5)
    log.append("c", [Event(b"x", b"k")])
    commit(log, 0)
    commit(log, 0, "c")
    assert [row.warning for row in group_lag(log)] == ["", ""]


# moving


def test_a_plan_names_what_was_and_what_will_be_and_does_nothing(log: SqliteLog) -> None:
    log.create_topic("t", 2)
    fill(log, 20)
    commit(log, 3)
    moves = plan_reset(log, "g", "t", {1: 7, 0: 5})
    assert moves == [Move("t", 0, 3, 5), Move("t", 1, None, 7)]
    assert committed(log, "g") == {TopicPartition("t", 0): 3}
    reset(log, "g", moves)
    assert committed(log, "g") == {TopicPartition("t", 0): 5, TopicPartition("t", 1): 7}


def test_a_group_that_is_new_can_be_placed(log: SqliteLog) -> None:
    log.create_topic("t")
    fill(log, 5)
    reset(log, "new", plan_reset(log, "new", "t", "latest"))
    assert committed(log, "new") == {TopicPartition("t", 0): 5}


def test_a_place_that_is_not_there_is_refused_before_anything_moves(log: SqliteLog) -> None:
    log.create_topic("t")
    fill(log, 5)
    with pytest.raises(OffsetOutOfRange):
        plan_reset(log, "g", "t", 6)
    with pytest.raises(ConfigError, match="no partition 1"):
        plan_reset(log, "g", "t", {1: 0})
    with pytest.raises(UnknownTopic):
        plan_reset(log, "g", "nowhere", "earliest")
    assert log.groups() == []


def test_a_work_queue_and_a_group_at_work_are_not_moved(log: SqliteLog) -> None:
    log.create_topic("t")
    log.worker("t", "q")
    with pytest.raises(LogError, match="work queue"):
        plan_reset(log, "q", "t", "earliest")
    moves = plan_reset(log, "g", "t", "earliest")
    with log.consumer("t", "g"), pytest.raises(GenerationFenced, match="live members"):
        reset(log, "g", moves)


# reading a start from a command line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("0", 0),
        ("17", 17),
        ("0:17,1:4", {0: 17, 1: 4}),
        ("3:0", {3: 0}),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("2026-01-31T12:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
    ],
)
def test_a_start_is_read_from_text(text: str, expected: object) -> None:
    assert parse_start(text) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "-1", "1:2:3", "0:", ":4", "0:1,", "a:1", "²", "0:1;1:2"])
def test_a_text_that_is_no_start_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigError, match="expected earliest, latest") as caught:
        parse_start(text)
    assert "0:17,1:4" in caught.value.hint


@given(st.dictionaries(st.integers(0, 999), st.integers(0, 2**63), min_size=1))
def test_any_offsets_per_partition_are_read_back(offsets: dict[int, int]) -> None:
    assert parse_start(",".join(f"{partition}:{offset}" for partition, offset in offsets.items())) == offsets


@given(st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)))
def test_any_time_is_read_back(when: datetime) -> None:
    assert parse_start(when.isoformat()) == when
