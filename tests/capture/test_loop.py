"""A capture of real databases into real logs: nothing is lost, nothing comes twice, whoever dies when."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from millstream.capture import rows as rows_module
from millstream.capture.appender import CHANGES, Appender, Unit
from millstream.capture.control import CONTROL, read_known, request
from millstream.capture.diff import compare
from millstream.capture.loop import capture
from millstream.capture.outbox import Outbox
from millstream.capture.reading import records_of
from millstream.errors import (
    CaptureError,
    CaptureFenced,
    CaptureGap,
    CaptureUnavailable,
    LogUnavailable,
    RowRefused,
    TableChanged,
)
from millstream.event import Event
from millstream.log import open_log
from millstream.log.contract import Log
from tests.capture.databases import Database, MariaDb, Postgres, Sqlite, writing
from tests.capture.process import Running, once, running, same, settings, started
from tests.capture.topics import envelopes, fold
from tests.waiting import until

KILLS = int(os.environ.get("MILLSTREAM_KILLS", "3"))
PLACES = ("capture.snapshot", "capture.handover", "capture.append", "log.append.in_transaction", "capture.appended", "capture.acknowledge")  # fmt: skip


@pytest.fixture(params=["mariadb", "postgres", "sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    pytest.importorskip(f"millstream.capture.{'mysql' if request.param == 'mariadb' else request.param}.source")
    found: Database
    if request.param == "mariadb":
        found = MariaDb(request.getfixturevalue("mariadb"))
    elif request.param == "postgres":
        found = Postgres(request.getfixturevalue("logical"))
    else:
        found = Sqlite(tmp_path / "shop.db")
    yield found
    found.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_log(f"sqlite:{tmp_path}/log.db") as log:
        yield log


def test_rows_come_first_and_then_every_change_under_its_key(log: Log, database: Database) -> None:
    database.made(rows=2)
    assert once(log, database).rows == 2
    database.run(
        "UPDATE a SET v = 7 WHERE id = 0",
        "DELETE FROM a WHERE id = 1",
        "INSERT INTO a VALUES (5, 5, 'five')",
        "UPDATE a SET id = 6 WHERE id = 5",
    )
    assert once(log, database).changes == 4
    found = [
        (key, said and (said["op"], said["source"]["snapshot"])) for key, said in envelopes(log, database.topic("a"))
    ]
    read, changed = "true", "false"
    assert found == [
        (b"0", ("r", read)),
        (b"1", ("r", read)),
        (b"0", ("u", changed)),
        (b"1", ("d", changed)),
        (b"1", None),
        (b"5", ("c", changed)),
        (b"5", ("d", changed)),
        (b"5", None),
        (b"6", ("c", changed)),
    ]
    assert same(log, database) == 2
    times = [record.time for record in records_of(log, database.topic("a"))]
    assert times[:2] == [datetime(1970, 1, 1, tzinfo=UTC)] * 2
    assert abs((datetime.now(UTC) - times[2]).total_seconds()) < 120


def test_a_transaction_over_two_tables_is_one_append(log: Log, database: Database) -> None:
    database.made(rows=3)
    once(log, database)
    with database.session() as do:
        for one in range(3):
            do("BEGIN")
            do(f"INSERT INTO b SELECT id, v, t FROM a WHERE id = {one}")
            do(f"DELETE FROM a WHERE id = {one}")
            do("COMMIT")
    once(log, database)
    appended = {
        topic: {record.appended for record in records_of(log, topic) if record.timestamp > 0}
        for topic in (database.topic("a"), database.topic("b"))
    }
    assert appended[database.topic("a")] == appended[database.topic("b")]
    positions = {record.appended for record in records_of(log, CONTROL) if record.key == b"shop"}
    assert appended[database.topic("a")] <= positions
    assert same(log, database) == 3


def test_emptying_a_table_deletes_each_of_its_rows(log: Log, database: Database) -> None:
    database.made(rows=3)
    once(log, database)
    database.run("INSERT INTO a VALUES (9, 9, 'nine')", database.empty_a, "INSERT INTO a VALUES (1, 1, 'again')")
    once(log, database)
    assert {key: row["t"] for key, row in fold(log, database.topic("a")).items()} == {b"1": "again"}
    assert same(log, database) == 1


def test_a_table_of_too_many_rows_is_not_emptied_in_memory_unless_it_may_be(log: Log, database: Database) -> None:
    if isinstance(database, Sqlite):
        pytest.skip("there each row is deleted by itself")
    database.made(rows=3)
    once(log, database)
    database.run(database.empty_a)
    with pytest.raises(CaptureError, match="holds 3 rows, more than 2 to delete at once") as found:
        once(log, database, truncate=2)
    assert "--truncate 3" in found.value.hint
    assert len(fold(log, database.topic("a"))) == 3
    once(log, database, truncate=3)
    assert same(log, database) == 0


@pytest.mark.parametrize("place", PLACES)
def test_a_capture_that_is_killed_anywhere_loses_nothing_and_repeats_nothing(
    log: Log, database: Database, place: str
) -> None:
    database.made(rows=4500)
    arguments = [database.address, "--log", log.url, "--name", "shop", "--table", "a", "--table", "b"]
    with writing(database, seed=len(place)) as done:
        for times in (2, 5) if place not in ("capture.snapshot", "capture.handover") else (1, 2):
            with started(*arguments, failpoint=f"{place}:kill@{times}") as process:
                until(lambda: process.poll() is not None, timeout=60)
                assert process.returncode == -9, process.stderr and process.stderr.read()
            if place == "capture.handover":
                break  # once it is passed it does not come again
            database.run("DELETE FROM a WHERE id % 7 = 3")
        until(lambda: min(done) > 20, timeout=60)
    once(log, database)
    assert same(log, database) > 100


def test_kills_at_random_moments_lose_nothing_and_repeat_nothing(log: Log, database: Database) -> None:
    database.made(rows=2500)
    chance = random.Random(5)
    arguments = [database.address, "--log", log.url, "--name", "shop", "--table", "a", "--table", "b"]
    with writing(database, seed=50):
        for _ in range(KILLS):
            known = read_known(log).get("shop")
            before = known.progress.changes if known and known.progress else 0
            wanted = before + chance.randrange(1, 200)
            with started(*arguments) as process:
                until(lambda: process.poll() is not None or _changes(log) >= wanted, timeout=60)  # noqa: B023
                assert process.poll() is None, process.stderr and process.stderr.read()
                process.kill()
    once(log, database)
    assert same(log, database) > 0


def _changes(log: Log) -> int:
    known = read_known(log).get("shop")
    return known.progress.changes if known and known.progress else 0


@pytest.mark.parametrize("sweeps", [True, False])
def test_a_snapshot_that_was_broken_off_leaves_no_row_that_went_since(
    log: Log, database: Database, sweeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.made(rows=40_000)
    arguments = [database.address, "--log", log.url, "--name", "shop", "--table", "a", "--table", "b"]
    with started(*arguments, failpoint="capture.snapshot:kill@18") as process:  # no more than 24,000 rows wait
        until(lambda: process.poll() is not None, timeout=60)
    assert any(True for _ in records_of(log, database.topic("a")))
    database.run("DELETE FROM a WHERE id < 100")
    if not sweeps:  # the mutant: what the topic holds already is not looked at
        monkeypatch.setattr(rows_module.Rows, "_stale", lambda *_: {})
    once(log, database)
    if sweeps:
        assert same(log, database) == 39_900
    else:
        with pytest.raises(AssertionError):
            same(log, database)


def test_of_two_captures_of_one_name_one_ends_and_nothing_comes_twice(log: Log, database: Database) -> None:
    database.made(rows=3)
    once(log, database)
    # MariaDB itself would end the connection of the first under one name; a SQLite file is locked by it.
    named = "other" if isinstance(database, MariaDb) else "shop"
    first, second = database.source("a", "b"), database.source("a", "b", name=named)
    run = Running(log, first, settings(database))
    database.run("UPDATE a SET v = 10 WHERE id = 1")
    run.wait(1)
    if isinstance(database, Sqlite):
        with pytest.raises(CaptureUnavailable):
            capture(log, second, settings(database), once=True)
        run.stop.set()
    else:
        owner = read_known(log)["shop"].owner
        with running(log, second, settings(database)) as other:
            until(lambda: read_known(log)["shop"].owner != owner, timeout=60)
            database.run("UPDATE a SET v = 11 WHERE id = 1", "UPDATE a SET v = 12 WHERE id = 2")
            run.thread.join(60)  # at its next append; PostgreSQL's slot is its own until then
            assert isinstance(run.error, CaptureFenced)
            first.close()
            other.wait(2)
    first.close()
    second.close()
    once(log, database)
    assert same(log, database) == 3


def test_a_table_that_is_new_in_the_list_is_read_while_the_others_go_on(log: Log, database: Database) -> None:
    database.made(rows=5)
    database.run("INSERT INTO b SELECT * FROM a")
    once(log, database, "a")
    with writing(database, seed=9) as done:
        until(lambda: min(done) > 10)
        once(log, database)
        until(lambda: min(done) > 20)
    once(log, database)
    assert same(log, database) > 0


def test_a_table_is_read_again_when_it_is_asked_for_while_changes_go_on(log: Log, database: Database) -> None:
    database.made(rows=2500)
    once(log, database)
    topic = database.topic("a")
    stray = b'{"before":null,"after":{"id":77777,"v":1,"t":null},"source":{"txId":null},"op":"r"}'
    log.append(topic, [Event(stray, b"77777")])  # a row that the database does not have
    with pytest.raises(AssertionError):
        same(log, database)
    source = database.source("a", "b")
    with writing(database, seed=3) as done, running(log, source, settings(database)) as run:
        run.wait(5)
        request(log, "shop", database.full("a"))
        until(lambda: b"77777" not in fold(log, topic), timeout=60)
        until(lambda: min(done) > 20)
    source.close()
    once(log, database)
    assert same(log, database) > 0
    assert read_known(log)["shop"].requests == []
    assert read_known(log)["shop"].tables[database.full("a")].rows > 1000
    read = [r.timestamp > 0 for r in records_of(log, topic) if r.value is not None and b'"op":"r"' in r.value]
    assert read == sorted(read)  # those of the first snapshot hold since ever, those of the second from then on
    assert (read[0], read[-1]) == (False, True)


def test_a_column_that_goes_stops_the_capture_unless_it_may_go_on(log: Log, database: Database) -> None:
    database.made(rows=2)
    once(log, database)
    database.run("UPDATE a SET v = 3 WHERE id = 0")
    database.alter("ALTER TABLE a DROP COLUMN t")
    database.run("UPDATE a SET v = 4 WHERE id = 1")
    with pytest.raises(TableChanged, match="column t is gone"):
        once(log, database)
    assert once(log, database, on_change="continue").caught_up
    assert {key: row["v"] for key, row in fold(log, database.topic("a")).items()} == {b"0": 3, b"1": 4}
    assert once(log, database).changes == 0


def test_a_column_that_comes_is_welcome(log: Log, database: Database) -> None:
    database.made(rows=1)
    once(log, database)
    database.run("UPDATE a SET v = 3")
    database.alter("ALTER TABLE a ADD COLUMN w integer")
    database.run("UPDATE a SET w = 4")
    once(log, database)
    assert fold(log, database.topic("a"))[b"0"]["w"] == 4
    assert read_known(log)["shop"].tables[database.full("a")].columns["w"] in ("int", "bigint")


def test_a_row_that_is_too_large_stops_or_is_a_dead_letter(log: Log, database: Database) -> None:
    database.made(rows=2)
    once(log, database)
    topic = log.topic(database.topic("a"))
    log.alter_topic(topic.name, settings=replace(topic.settings, max_record_bytes=700))
    database.run(f"UPDATE a SET t = '{'x' * 390}' WHERE id = 1", "UPDATE a SET v = 9 WHERE id = 0")
    with pytest.raises(RowRefused, match=f"topic {topic.name} takes up to 700"):
        once(log, database)
    once(log, database, refused="dead_letter")
    assert {key: row["v"] for key, row in fold(log, topic.name).items()} == {b"0": 9}
    ((_, letter),) = envelopes(log, "shop.dead")
    assert letter is not None
    assert (letter["key"], letter["op"]) == ("1", "u")


def test_rows_of_an_outbox_become_events_of_the_topics_that_are_allowed(log: Log, database: Database) -> None:
    database.made()
    columns = "id integer NOT NULL PRIMARY KEY, aggregatetype varchar(99), aggregateid varchar(99), type varchar(99), payload varchar(99)"
    database.run(f"CREATE TABLE outbox ({columns})", "INSERT INTO outbox VALUES (1, 'orders.eu', '5', 'before', '{}')")
    chosen = {"outbox": Outbox("outbox", ("orders.*",))}
    once(log, database, "a", "outbox", **chosen)
    with database.session() as do:
        do("BEGIN")
        do("INSERT INTO a VALUES (1, 1, 'order')")
        do("""INSERT INTO outbox VALUES (2, 'orders.eu', '7', 'placed', '{"n": 1}')""")
        do("DELETE FROM outbox WHERE id = 2")
        do("COMMIT")
    once(log, database, "a", "outbox", **chosen)
    (event,) = records_of(log, "orders.eu")
    assert (event.key, event.value, dict(event.headers)) == (b"7", b'{"n": 1}', {"id": b"2", "type": b"placed"})
    database.run("INSERT INTO outbox VALUES (3, 'secrets', '8', 'placed', '{}')")
    with pytest.raises(RowRefused, match="topic secrets is not allowed"):
        once(log, database, "a", "outbox", **chosen)
    once(log, database, "a", "outbox", refused="dead_letter", **chosen)
    ((_, letter),) = envelopes(log, "shop.dead")
    assert letter is not None
    assert "secrets" in letter["why"]
    assert {topic.name for topic in log.topics()} == {CONTROL, database.topic("a"), "orders.eu", "shop.dead"}


def test_a_difference_is_found_while_both_move_and_a_new_snapshot_mends_it(log: Log, database: Database) -> None:
    database.made(rows=2000)
    once(log, database)
    topic, place = database.topic("a"), {"file": "x.1", "byte": 0, "lsn": "0/0", "seq": 0}
    source, looking = database.source("a", "b"), database.source("a", "b")
    strays = [
        ({"source": place, "after": {"id": 77777, "v": 1, "t": None}}, b"77777"),
        ({"source": place, "after": {"id": 1500, "v": -1, "t": "row 1500"}}, b"1500"),
    ]
    with writing(database, seed=6), running(log, source, settings(database)) as run:  # they touch no row above 600
        run.wait(20)
        assert [each.equal for each in compare(log, looking, "shop")] == [True, True]
        log.append(topic, [*(Event(json.dumps(said).encode(), key) for said, key in strays), Event(None, b"1998")])
        run.wait(40)
        found = next(each for each in compare(log, looking, "shop") if each.topic == topic)
        assert (found.missing, found.extra, found.other) == (1, 1, 1)
        assert {each.key: each.kind for each in found.examples} == {
            "1998": "missing",
            "77777": "extra",
            "1500": "other",
        }
        request(log, "shop", database.full("a"))
        until(lambda: not read_known(log)["shop"].requests, timeout=60)
        assert [each.equal for each in compare(log, looking, "shop")] == [True, True]
    source.close()
    looking.close()


def test_what_has_caught_up_is_compared_though_no_capture_runs(log: Log, database: Database) -> None:
    database.made(rows=20)
    database.run("CREATE TABLE other (id integer NOT NULL PRIMARY KEY)")
    once(log, database)
    source, soon = database.source("a", "b"), timedelta(seconds=5)
    for _ in range(2):  # to look at PostgreSQL makes its log longer
        assert [(each.rows, each.equal) for each in compare(log, source, "shop", patience=soon)] == [
            (20, True),
            (0, True),
        ]
    if not isinstance(database, Sqlite):  # whose log has nothing of others
        database.run("INSERT INTO other VALUES (1)", *(["CHECKPOINT"] if isinstance(database, Postgres) else []))
        assert all(each.equal for each in compare(log, source, "shop", patience=soon))
    database.run("UPDATE a SET v = 7 WHERE id = 3")
    with pytest.raises(CaptureUnavailable, match="has not come to where the database is"):
        list(compare(log, source, "shop", patience=timedelta(seconds=1)))
    assert once(log, database).changes == 1  # nothing was taken by who looked
    source.close()


@pytest.mark.parametrize("early", [False, True])
def test_the_database_forgets_nothing_that_is_not_in_the_log(
    log: Log, database: Database, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(database, MariaDb):
        pytest.skip("its binary log is kept by time, whatever is acknowledged")
    database.made(rows=1)
    once(log, database)
    database.run("UPDATE a SET v = 1", "UPDATE a SET v = 2")

    append = Appender._append

    def fail(appender: Appender, unit: Unit) -> None:
        if unit.changes:
            raise RuntimeError("the log is broken")
        append(appender, unit)

    def acknowledge(run: Any) -> None:  # the mutant: what was handed to the appender counts as there
        run._source.acknowledge(run._progress.position)

    with monkeypatch.context() as patch:
        patch.setattr(Appender, "_append", fail)
        if early:
            patch.setattr("millstream.capture.loop._Run._acknowledge", acknowledge)
        with pytest.raises(RuntimeError, match="the log is broken"):
            once(log, database)
    if early:
        with pytest.raises(CaptureGap):
            once(log, database)
    else:
        assert once(log, database).changes == 2
        assert same(log, database) == 1


def test_a_log_that_is_away_for_a_moment_is_waited_for(
    log: Log, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.made(rows=3)
    away = iter([False, True, False, False, True])

    def fail(place: str) -> None:  # once before an append, and once when it is done and nobody knows
        if place in ("capture.append", "capture.appended") and next(away, False):
            raise LogUnavailable("away")

    monkeypatch.setattr("millstream.capture.appender.failpoint", fail)
    once(log, database)
    database.run("UPDATE a SET v = 8")
    once(log, database)
    assert next(away, None) is None
    assert same(log, database) == 3


def test_the_control_topic_is_cleaned_while_it_runs(log: Log, database: Database) -> None:
    database.made(rows=1)
    once(log, database)
    source = database.source("a", "b")
    with running(log, source, settings(database, clean=0.1)) as run:
        for change in range(1, 31):
            database.run(f"UPDATE a SET v = {change + 10}")
            run.wait(change)
        until(lambda: len(list(records_of(log, CONTROL))) < 15, timeout=60)
    source.close()
    assert once(log, database).changes == 0
    assert same(log, database) == 1


def test_a_transaction_beyond_what_goes_in_together_is_still_one_append(log: Log, database: Database) -> None:
    database.made(rows=CHANGES + 2000)
    once(log, database)
    database.run("UPDATE a SET v = v + 1")
    assert once(log, database).changes == CHANGES + 2000
    assert len({record.appended for record in records_of(log, database.topic("a")) if record.timestamp > 0}) == 1
    assert same(log, database) == CHANGES + 2000
