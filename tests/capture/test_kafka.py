"""A capture into Kafka: the same promises, and large transactions that are cut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.capture.appender import Appender, Unit
from millstream.capture.control import CONTROL, read_known
from millstream.capture.loop import capture
from millstream.errors import CaptureFenced
from millstream.log import open_log
from millstream.log.contract import Log
from millstream.testing import KafkaBroker, MariaDbServer
from tests.capture.databases import MariaDb, writing
from tests.capture.process import Running, once, running, same, settings, started
from tests.capture.topics import envelopes, fold
from tests.waiting import until


@pytest.fixture
def database(mariadb: MariaDbServer) -> MariaDb:
    return MariaDb(mariadb)


@pytest.fixture
def log(kafka: KafkaBroker) -> Iterator[Log]:
    """The broker, without what an earlier test has captured."""
    with open_log(kafka.url) as log:
        for topic in log.topics():
            if topic.name == CONTROL:
                log.delete_topic(topic.name)
        until(lambda: CONTROL not in {topic.name for topic in log.topics()})
        yield log


@pytest.mark.parametrize("place", ["capture.snapshot", "capture.append", "capture.appended", "capture.acknowledge"])
def test_a_capture_into_kafka_that_is_killed_loses_nothing_and_repeats_nothing(
    log: Log, database: MariaDb, place: str
) -> None:
    database.made(rows=4500)
    arguments = [database.address, "--log", log.url, "--name", "shop", "--table", "a", "--table", "b"]
    with writing(database, seed=len(place)) as done:
        for times in (1, 2) if place == "capture.snapshot" else (2, 5):
            with started(*arguments, failpoint=f"{place}:kill@{times}") as process:
                until(lambda: process.poll() is not None, timeout=100)
                assert process.returncode == -9, process.stderr and process.stderr.read()
            database.run("DELETE FROM a WHERE id % 7 = 3")
        until(lambda: min(done) > 20, timeout=60)
    once(log, database)
    assert same(log, database) > 100


def test_of_two_captures_into_kafka_the_first_ends_and_nothing_comes_twice(log: Log, database: MariaDb) -> None:
    database.made(rows=3)
    once(log, database)
    first, second = database.source("a", "b"), database.source("a", "b", name="other")
    with open_log(log.url) as another:
        run = Running(another, first, settings(database))
        database.run("UPDATE a SET v = 10 WHERE id = 1")
        run.wait(1)
        owner = read_known(log)["shop"].owner
        with running(log, second, settings(database)) as other:
            until(lambda: read_known(log)["shop"].owner != owner, timeout=60)
            database.run("UPDATE a SET v = 11 WHERE id = 1", "UPDATE a SET v = 12 WHERE id = 2")
            other.wait(2)
            run.thread.join(60)
        assert isinstance(run.error, CaptureFenced), run.error
    first.close()
    second.close()
    assert same(log, database) == 3


def test_a_large_transaction_is_cut_and_goes_on_where_it_was_cut(
    log: Log, database: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.made()
    once(log, database)
    with database.session() as do:
        do("BEGIN")
        for one in range(25):
            do(f"INSERT INTO a VALUES ({one}, {one}, 'x')")
        do("UPDATE a SET v = v + 1")
        do("COMMIT")
    stopped, append = database.source("a", "b"), Appender._append

    def fail(appender: Appender, unit: Unit) -> None:
        if unit.progress is not None and unit.progress.done > 20:
            raise RuntimeError("the log is broken")
        append(appender, unit)

    with monkeypatch.context() as patch:
        patch.setattr(Appender, "_append", fail)
        patch.setattr("millstream.capture.appender.CHANGES", 1)  # each piece is an append of its own
        with pytest.raises(RuntimeError, match="the log is broken"):
            capture(log, stopped, settings(database, most=10), once=True)
    stopped.close()
    progress = read_known(log)["shop"].progress
    assert progress is not None
    assert (progress.done, progress.changes) == (20, 20)
    once(log, database, most=10)
    assert {row["v"] - int(key) for key, row in fold(log, database.topic("a")).items()} == {1}
    orders = [said["transaction"]["total_order"] for _, said in envelopes(log, database.topic("a")) if said]
    assert orders == list(range(1, 51))
    assert same(log, database) == 25
