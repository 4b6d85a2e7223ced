"""Appends on a condition, and the records of one key."""

from __future__ import annotations

import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.errors import BadEvent, UnknownTopic
from millstream.event import Event
from millstream.log.conditional import Conditional
from millstream.log.contract import TopicSettings
from millstream.log.embedded.engine import SqliteLog

STORED = Path(__file__).parent.parent.parent / "runtime" / "stored"
INDEXED = TopicSettings(indexed=True)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    with SqliteLog(tmp_path / "log.db") as opened:
        opened.create_topic("carts", 3, INDEXED)
        opened.create_topic("answers", 1, INDEXED)
        yield opened


def unit(key: bytes, last: int | None, count: int = 1) -> Conditional:
    events = [Event(b"%d" % i, key) for i in range(count)]
    return Conditional({"carts": events, "answers": [Event(b"yes", key)]}, {("carts", key): last})


def offsets(log: SqliteLog, topic: str, key: bytes) -> list[int]:
    return [record.offset for record in log.of_key(topic, key)]


def plan(log: SqliteLog, key: bytes) -> str:
    row = log.known("carts")
    tables = [f"records_{row.id}_{p}" for p in range(row.topic.partitions)]
    with log.store.read() as db:
        found = [
            db.execute(f"EXPLAIN QUERY PLAN SELECT * FROM {t} WHERE key = ? AND offset > 5 ORDER BY offset", (key,)).get
            for t in tables
        ]
    return str([each[3] for each in found])


def test_only_the_units_whose_condition_holds_are_appended_and_each_has_its_own_offsets(log: SqliteLog) -> None:
    first = log.append_if([unit(b"a", None, 2), unit(b"b", None), unit(b"c", 7)])
    assert first[2] is None
    assert first[0] is not None
    assert first[1] is not None
    assert first[0]["carts"].offsets == offsets(log, "carts", b"a")
    assert first[1]["answers"].offsets == offsets(log, "answers", b"b") == [1]
    second = log.append_if([unit(b"a", None), unit(b"a", first[0]["carts"].offsets[-1], 3), unit(b"c", None)])
    assert second[0] is None
    assert second[1] is not None
    assert len(second[1]["carts"].offsets) == 3
    assert len(offsets(log, "carts", b"a")) == 5
    assert log.append_if([unit(b"a", None)]) == [None]
    assert len(offsets(log, "carts", b"a")) == 5


def test_what_has_one_transaction_has_one_append_time_and_a_bad_event_leaves_nothing(log: SqliteLog) -> None:
    log.append_if([unit(b"a", None, 2), unit(b"b", None)])
    times = {record.appended for key in (b"a", b"b") for record in log.of_key("carts", key)}
    assert len(times) == 1
    bad = Conditional({"carts": [Event(b"x", b"n"), Event("text", b"n")]}, {})  # type: ignore[arg-type]
    with pytest.raises(BadEvent):
        log.append_if([unit(b"new", None), bad])
    assert log.of_key("carts", b"new") == []


def test_a_unit_without_events_tells_whether_its_condition_holds(log: SqliteLog) -> None:
    asked = [Conditional({}, {("carts", b"a"): None}), Conditional({}, {("carts", b"a"): 0})]
    assert log.append_if(asked) == [{}, None]
    assert log.append_if([]) == []


def test_an_unknown_topic_is_named(log: SqliteLog) -> None:
    with pytest.raises(UnknownTopic, match="nowhere"):
        log.append_if([Conditional({}, {("nowhere", b"a"): None})])
    with pytest.raises(UnknownTopic, match="nowhere"):
        log.of_key("nowhere", b"a")


def test_records_of_a_key_come_in_order_and_from_where_one_asks(log: SqliteLog) -> None:
    for i in range(20):
        log.append("carts", [Event(b"%d" % i, b"a"), Event(b"-", b"%d" % i)])
    found = log.of_key("carts", b"a")
    assert [record.value for record in found] == [b"%d" % i for i in range(20)]
    assert log.of_key("carts", b"a", after=found[16].offset) == found[17:]
    assert log.of_key("carts", b"a", after=found[3].offset, limit=2) == found[4:6]
    assert log.of_key("carts", b"a", newest_first=True, limit=1) == found[-1:]
    assert log.of_key("carts", b"none") == []


def test_a_topic_gets_its_index_when_it_is_asked_for_and_loses_it_again(log: SqliteLog) -> None:
    assert "_key (key=? AND rowid>?)" in plan(log, b"a")
    log.alter_topic("carts", settings=TopicSettings())
    assert "_key" not in plan(log, b"a")
    log.append("carts", [Event(b"x", b"a")])
    assert len(log.of_key("carts", b"a")) == 1
    log.alter_topic("carts", partitions=5, settings=INDEXED)
    assert plan(log, b"a").count("_key (key=? AND rowid>?)") == 5
    log.alter_topic("carts", partitions=6)
    assert plan(log, b"a").count("_key (key=? AND rowid>?)") == 6
    log.delete_topic("carts")


@pytest.mark.parametrize("stored", sorted(STORED.glob("log1-*")), ids=lambda path: path.name.split(".")[0])
def test_a_topic_of_an_earlier_version_can_be_indexed(tmp_path: Path, stored: Path) -> None:
    with tarfile.open(stored) as packed:
        packed.extractall(tmp_path, filter="data")
    file = next(path for path in tmp_path.rglob("*.db") if b"CREATE TABLE consumer_group" in path.read_bytes())
    with SqliteLog(file, create=False) as log:
        topic = log.topics()[0]
        assert topic.settings.indexed is False
        records = [r for p in range(topic.partitions) for r in log.read(topic.name, p, log.bounds(topic.name)[p].start)]
        key = next(record.key for record in records if record.key is not None)
        before = log.of_key(topic.name, key)
        assert before == [record for record in records if record.key == key]
        log.alter_topic(topic.name, settings=INDEXED)
        assert log.of_key(topic.name, key) == before
        last = before[-1].offset
        assert log.append_if([Conditional({topic.name: [Event(b"x", key)]}, {(topic.name, key): last})])[0]


def test_of_many_who_append_on_one_condition_one_succeeds(tmp_path: Path, log: SqliteLog) -> None:
    won: list[int] = []

    def attempt(number: int) -> None:
        for last in range(10):
            if log.append_if(
                [Conditional({"carts": [Event(b"%d" % number, b"k")]}, {("carts", b"k"): last - 1 if last else None})]
            )[0]:
                won.append(last)

    threads = [threading.Thread(target=attempt, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(len(offsets(log, "carts", b"k"))))
