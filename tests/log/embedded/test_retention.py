"""What the embedded log forgets, when, and what it keeps or archives first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from millstream.errors import LogCorrupt, LogError, OffsetOutOfRange
from millstream.event import Event
from millstream.log.archive import Archive, whole_offsets
from millstream.log.contract import Bounds, Maintenance, TopicSettings
from millstream.log.embedded.engine import SqliteLog
from tests.contracts.log import read_all, values
from tests.log.embedded.test_group import Clock

SECOND = timedelta(seconds=1)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(tmp_path: Path, clock: Clock) -> Iterator[SqliteLog]:
    with SqliteLog(tmp_path / "log.db", clock=clock) as opened:
        yield opened


def fill(log: SqliteLog, first: int, count: int) -> None:
    log.append("t", [Event(b"%04d" % i) for i in range(first, first + count)])


def start(log: SqliteLog) -> int:
    return log.bounds("t")[0].start


# retention while appending


def test_appending_expires_at_most_twice_what_it_adds(log: SqliteLog, clock: Clock) -> None:
    log.create_topic("t", 1, TopicSettings(retention=10 * SECOND))
    fill(log, 0, 100)
    clock.now += 20_000
    fill(log, 100, 5)
    assert start(log) == 0  # it goes by the append before
    clock.now += 1000
    fill(log, 105, 5)
    assert start(log) == 10
    clock.now += 1000
    fill(log, 110, 7)
    assert start(log) == 24


def test_appending_looks_at_retention_once_a_second_and_remembers_what_it_may_do(log: SqliteLog, clock: Clock) -> None:
    log.create_topic("t", 1, TopicSettings(retention=10 * SECOND))
    fill(log, 0, 100)
    clock.now += 20_000
    fill(log, 99, 1)
    clock.now += 1000
    fill(log, 100, 1)
    assert start(log) == 2
    for i in range(4):
        clock.now += 200
        fill(log, 101 + i, 5)
        assert start(log) == 2
    clock.now += 200
    fill(log, 121, 5)
    assert start(log) == 2 + 2 * 25


def test_appending_to_a_topic_that_keeps_everything_expires_nothing(log: SqliteLog, clock: Clock) -> None:
    log.create_topic("t", 1, TopicSettings(cleanup="compact", retention=SECOND, retention_bytes=1))
    for i in range(5):
        log.append("t", [Event(b"%d" % i, b"%d" % i)])
        clock.now += 5000
    assert log.maintain("t").expired == 0
    assert start(log) == 0


def test_an_append_is_acknowledged_even_if_what_should_expire_cannot_be_read(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "log.db"
    with SqliteLog(path, clock=clock) as log:
        log.create_topic("t", 1, TopicSettings(retention=10 * SECOND))
        log.append("t", [Event(b"%04d" % i + b"x" * 2000) for i in range(200)])
    data = bytearray(path.read_bytes())
    data[data.index(b"0020xxxx") + 500] ^= 1
    path.write_bytes(data)
    clock.now += 20_000
    with SqliteLog(path, clock=clock) as log:
        assert log.append("t", [Event(b"new")] * 5).offsets == list(range(200, 205))
        assert values(log.read("t", 0, 200)) == ["new"] * 5
        with pytest.raises(LogCorrupt):
            log.maintain("t")


# retention by age and size


def test_age_goes_by_the_time_of_the_append_not_of_the_event(log: SqliteLog, clock: Clock) -> None:
    log.create_topic("t", 1, TopicSettings(retention=10 * SECOND))
    fill(log, 0, 3)
    clock.now += 10_000
    assert log.maintain("t") == Maintenance(3, 0)
    assert log.bounds("t")[0] == Bounds(3, 3)
    fill(log, 3, 1)
    clock.now -= 100_000  # a clock set back takes nothing away and gives nothing back
    assert log.maintain("t") == Maintenance(0, 0)
    fill(log, 4, 1)
    records = read_all(log, "t")
    assert records[1].appended == records[0].appended + 1


def test_after_an_append_ten_years_ahead_time_goes_on_and_retention_with_it(tmp_path: Path, clock: Clock) -> None:
    years, hour = 10 * 365 * 86_400_000, 3_600_000
    with SqliteLog(tmp_path / "log.db", clock=clock) as log:
        log.create_topic("t", 1, TopicSettings(retention=timedelta(hours=1)))
        fill(log, 0, 100)
        clock.now += years
        fill(log, 100, 1)
        assert start(log) == 0  # one append under a wrong clock deletes nothing
        clock.now -= years
        for i in range(10):
            clock.now += 60_000
            fill(log, 101 + i, 1)
    with SqliteLog(tmp_path / "log.db", clock=clock) as log:  # also for the next process
        clock.now += 60_000
        fill(log, 111, 1)
        appended = [record.appended for record in log.read("t", 0, 101)]
        assert [later - sooner for sooner, later in pairwise(appended)] == [60_000] * 10
        assert log.maintain("t").expired == 0
        clock.now += hour - 11 * 60_000
        assert log.maintain("t").expired == 100  # what came under the right clock
        clock.now += 5 * 60_000
        assert log.maintain("t").expired == 6  # what came since, by the topic's own time
        clock.now += 2 * hour
        assert log.maintain("t").expired == 6


def test_a_clock_that_is_right_again_is_followed_again(log: SqliteLog, clock: Clock) -> None:
    log.create_topic("t")
    began = clock.now
    for moment in (5000, 4000, 4400, 4900, 9000, 9000, 8000, 9001, 8500):
        clock.now = began + moment
        fill(log, 0, 1)
    found = [record.appended - began for record in log.read("t", 0, 0)]
    assert found == [5000, 5001, 5401, 5901, 9000, 9000, 9001, 9001, 9002]


@pytest.mark.parametrize(("limit", "left"), [(1, 0), (3, 0), (4, 1), (7, 1), (8, 2), (39, 9), (40, 10), (1000, 10)])
def test_size_keeps_what_fits_and_never_more(log: SqliteLog, limit: int, left: int) -> None:
    log.create_topic("t", 1, TopicSettings(retention_bytes=limit))
    fill(log, 0, 10)  # 4 bytes each; appending may expire too
    log.maintain("t")
    assert values(read_all(log, "t")) == [f"{i:04d}" for i in range(10 - left, 10)]


def test_keys_and_headers_count_towards_the_size(log: SqliteLog) -> None:
    log.create_topic("t")
    log.append("t", [Event(b"v" * 10, b"k" * 10, headers=(("h", b"x" * 30),)) for _ in range(10)])
    with log.store.read() as db:
        size = db.execute("SELECT bytes FROM partition").get
    log.alter_topic("t", settings=TopicSettings(retention_bytes=size - 1))
    assert log.maintain("t").expired == 1
    log.alter_topic("t", settings=TopicSettings(retention_bytes=size // 10))
    assert log.maintain("t").expired == 8
    assert log.maintain("t").expired == 0


def test_the_time_index_follows_what_has_expired(log: SqliteLog, clock: Clock) -> None:
    log.create_topic("t")
    for _ in range(10):
        fill(log, 0, 1000)
        clock.now += 1
    count = "SELECT count(*) FROM time_index"
    with log.store.read() as db:
        assert db.execute(count).get == 2  # 10,000 offsets are two whole blocks of 4,096 and a part of a third
    log.alter_topic("t", settings=TopicSettings(retention_bytes=4 * 3000))
    log.maintain("t")
    assert start(log) == 7000
    with log.store.read() as db:
        assert db.execute(count).get == 1
    log.alter_topic("t", settings=TopicSettings(retention_bytes=4 * 100))
    log.maintain("t")
    assert start(log) == 9900
    with log.store.read() as db:
        assert db.execute(count).get == 0


# compaction


def upsert(log: SqliteLog, key: str, text: str | None) -> None:
    log.append("t", [Event(None if text is None else text.encode(), key.encode())])


def test_records_younger_than_the_lag_neither_go_nor_replace(log: SqliteLog, clock: Clock) -> None:
    log.create_topic("t", 1, TopicSettings(cleanup="compact", compaction_lag=10 * SECOND))
    upsert(log, "k", "1")
    upsert(log, "k", "2")
    clock.now += 9000
    upsert(log, "k", "3")
    upsert(log, "k", "4")
    assert log.maintain("t").compacted == 0
    clock.now += 1000
    assert log.maintain("t").compacted == 1
    assert values(read_all(log, "t")) == ["2", "3", "4"]
    clock.now += 9000
    assert log.maintain("t").compacted == 2
    assert values(read_all(log, "t")) == ["4"]


def test_after_an_append_ten_years_ahead_compaction_goes_by_the_time_of_the_topic(log: SqliteLog, clock: Clock) -> None:
    settings = TopicSettings(cleanup="compact", compaction_lag=10 * SECOND, tombstone_retention=20 * SECOND)
    log.create_topic("t", 1, settings)
    years = 10 * 365 * 86_400_000

    def left() -> list[str | None]:
        log.maintain("t")
        return [None if record.value is None else record.value.decode() for record in read_all(log, "t")]

    upsert(log, "k", "1")
    clock.now += 5000
    upsert(log, "k", "2")
    clock.now += years
    upsert(log, "k", "3")
    clock.now -= years
    upsert(log, "k", "4")
    upsert(log, "gone", None)
    assert left() == ["1", "2", "3", "4", None]
    clock.now += 9999
    assert left() == ["1", "2", "3", "4", None]  # the first two are not yet both old
    clock.now += 1
    assert left() == ["4", None]
    clock.now += 9999
    upsert(log, "k", "5")
    assert left() == ["4", None, "5"]
    clock.now += 1
    assert left() == ["4", "5"]
    clock.now += 9999
    assert left() == ["5"]


def test_a_tombstone_is_kept_for_its_time_and_takes_the_key_with_it(log: SqliteLog, clock: Clock) -> None:
    log.create_topic("t", 1, TopicSettings(cleanup="compact", tombstone_retention=10 * SECOND))
    upsert(log, "k", "1")
    upsert(log, "k", None)
    upsert(log, "other", "x")
    assert log.maintain("t").compacted == 1
    clock.now += 9999
    assert log.maintain("t").compacted == 0
    assert [r.value for r in read_all(log, "t")] == [None, b"x"]
    clock.now += 1
    assert log.maintain("t").compacted == 1
    assert [r.value for r in read_all(log, "t")] == [b"x"]
    upsert(log, "k", "back")
    assert values(read_all(log, "t")) == ["x", "back"]


def test_what_was_compacted_once_is_replaced_by_what_comes_later(log: SqliteLog) -> None:
    log.create_topic("t", 1, TopicSettings(cleanup="compact"))
    for turn in range(5):
        upsert(log, "a", f"a{turn}")
        upsert(log, "b", f"b{turn}")
        log.maintain("t")
        assert values(read_all(log, "t")) == [f"a{turn}", f"b{turn}"]


def test_readers_and_groups_go_on_over_what_compaction_took(log: SqliteLog) -> None:
    log.create_topic("t", 1, TopicSettings(cleanup="compact"))
    for i in range(20):
        upsert(log, f"{i % 2}", str(i))
    reader = log.reader("t", {0: 5})
    waiting = log.reader("t")
    assert values(waiting.poll(3)) == ["0", "1", "2"]
    with log.consumer("t", "g") as member:
        assert values(member.poll(7, 0)) == [str(i) for i in range(7)]
        log.maintain("t")
        assert log.bounds("t")[0] == Bounds(0, 20)  # offsets stay what they were
        for each in (reader, waiting):
            assert values(each.poll()) == ["18", "19"]
            assert each.positions == {0: 20}
        assert values(member.poll(7, 0)) == ["18", "19"]
        member.commit()
    upsert(log, "0", "20")
    assert values(waiting.poll()) == ["20"]
    assert [r.offset for r in log.read("t", 0, 0)] == [18, 19, 20]
    assert log.read("t", 0, 3, 1)[0].offset == 18


def test_a_reader_at_the_end_of_what_compaction_emptied_has_reached_the_end(log: SqliteLog) -> None:
    log.create_topic("t", 1, TopicSettings(cleanup="compact", tombstone_retention=timedelta(0)))
    upsert(log, "k", "1")
    upsert(log, "k", None)
    with log.reader("t") as reader:
        log.maintain("t")
        assert reader.poll() == []
        assert reader.positions == {0: 2}


# archiving


def archived(archive: Archive) -> list[str]:
    return [row["value"].decode() for rows in archive.read(0, 0, 10**9) for row in rows.to_pylist()]


def test_what_expires_is_archived_first_beside_the_log(log: SqliteLog, clock: Clock, tmp_path: Path) -> None:
    log.create_topic("t", 1, TopicSettings(retention=10 * SECOND, archive="cold"))
    fill(log, 0, 50)
    clock.now += 10_000
    fill(log, 50, 10)
    assert start(log) == 0  # appending does not expire what must be archived
    assert log.maintain("t").expired == 50
    archive = Archive(tmp_path / "cold", "t")
    assert archived(archive) == [f"{i:04d}" for i in range(50)]
    assert archive.span(0) == (0, 50)
    assert [path for path in (tmp_path / "cold").rglob("*") if path.is_dir() and path.stat().st_mode & 0o077] == []
    assert values(read_all(log, "t")) == [f"{i:04d}" for i in range(50, 60)]


def test_a_time_or_an_offset_is_found_in_the_archive_too(log: SqliteLog, clock: Clock) -> None:
    log.create_topic("t", 1, TopicSettings(retention=10 * SECOND, archive="cold"))
    times = []
    for first in (0, 10, 20):
        clock.now += 4_000
        times.append(datetime.fromtimestamp(clock.now / 1000, UTC))
        fill(log, first, 10)
    clock.now += 4_000
    assert log.maintain("t").expired == 10
    starts = [times[0] - SECOND, times[0], times[0] + SECOND, times[1], times[2], times[2] + SECOND]
    assert [whole_offsets(log, "t", each)[0] for each in starts] == [0, 0, 10, 10, 20, 30]
    assert whole_offsets(log, "t", {0: 4}) == {0: 4}
    with pytest.raises(OffsetOutOfRange, match="offset 31 is beyond the end"):
        whole_offsets(log, "t", {0: 31})


def test_an_absolute_archive_is_where_it_says(log: SqliteLog, tmp_path: Path) -> None:
    elsewhere = tmp_path / "far" / "away"
    log.create_topic("t", 1, TopicSettings(retention_bytes=40, archive=str(elsewhere)))
    fill(log, 0, 50)
    log.maintain("t")
    assert archived(Archive(elsewhere, "t")) == [f"{i:04d}" for i in range(40)]


@pytest.mark.parametrize("settings", [{"retention": 10 * SECOND}, {"retention_bytes": 40}])
def test_nothing_that_expires_while_archiving_goes_unarchived(tmp_path: Path, settings: dict) -> None:  # type: ignore[type-arg]
    class Rushing(Clock):
        """Each look at it is a second later."""

        def __call__(self) -> int:
            self.now += 1000
            return self.now

    clock = Rushing()
    with SqliteLog(tmp_path / "log.db", clock=clock) as log, SqliteLog(tmp_path / "log.db", clock=clock) as other:
        log.create_topic("t", 1, TopicSettings(archive="cold", **settings))
        archive = Archive(tmp_path / "cold", "t")
        for turn in range(12):
            fill(log, 10 * turn, 5)
            if turn % 3 == 0:
                archive.take(other, upto={0: start(log)})  # someone else archives too: nothing is in it twice
            fill(other, 10 * turn + 5, 5)
            log.maintain("t")
            everything = archived(archive) + values(read_all(log, "t"))
            assert everything == [f"{i:04d}" for i in range(10 * turn + 10)]
        assert start(log) > 0


class Meanwhile(SqliteLog):
    """Once archiving has begun, someone else appends as much again."""

    more: Sequence[Event] = ()

    def bounds(self, topic: str) -> dict[int, Bounds]:
        found = super().bounds(topic)
        if self.more:
            more, self.more = self.more, ()
            self.append(topic, more)
        return found


def test_records_appended_between_archiving_and_deleting_are_safe(tmp_path: Path) -> None:
    with Meanwhile(tmp_path / "log.db") as log:
        log.create_topic("t", 1, TopicSettings(retention_bytes=40, archive="cold"))
        fill(log, 0, 20)
        log.more = [Event(b"%04d" % i) for i in range(20, 40)]
        log.maintain("t")
        assert not log.more
        assert archived(Archive(tmp_path / "cold", "t")) + values(read_all(log, "t")) == [f"{i:04d}" for i in range(40)]


def test_an_archive_of_an_earlier_topic_of_that_name_is_not_taken_for_ours(log: SqliteLog, tmp_path: Path) -> None:
    settings = TopicSettings(retention_bytes=40, archive="cold")
    log.create_topic("t", 1, settings)
    fill(log, 0, 50)
    log.maintain("t")
    log.delete_topic("t")
    log.create_topic("t", 1, settings)
    fill(log, 100, 30)
    with pytest.raises(LogError, match="it is of a topic t that was deleted and made again"):
        log.maintain("t")
    (tmp_path / "cold" / "t" / "topic.id").unlink()  # archives of before do not say
    with pytest.raises(OffsetOutOfRange, match="it reaches to offset 39, the topic only to 29"):
        log.maintain("t")
    assert len(read_all(log, "t")) == 30


def test_an_archive_that_missed_something_says_what(log: SqliteLog, tmp_path: Path) -> None:
    log.create_topic("t", 1, TopicSettings(retention_bytes=40))
    fill(log, 0, 10)
    archive = Archive(tmp_path / "cold", "t")
    archive.take(log)
    for i in range(3):
        fill(log, 10 + 10 * i, 10)
    log.maintain("t")
    with pytest.raises(OffsetOutOfRange, match="offsets 10 to 29 were deleted before they were archived") as caught:
        archive.take(log)
    assert caught.value.missing == (10, 30)
