"""Large values that an update leaves as they were are in every row, as they were then and not as they are now."""

from __future__ import annotations

import random
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millstream.capture import loop as loop_module
from millstream.capture.appender import Unit
from millstream.capture.control import CONTROL, read_known, request
from millstream.capture.large import Large
from millstream.capture.loop import Report, capture
from millstream.capture.outbox import Outbox
from millstream.capture.reading import records_of
from millstream.errors import CaptureError
from millstream.event import Record
from millstream.log import open_log
from millstream.log.contract import Log
from millstream.testing import KafkaBroker, PostgresServer
from tests.capture.databases import Postgres
from tests.capture.process import COMMAND, once, same, settings, started
from tests.capture.topics import envelopes
from tests.waiting import until

SEED = 11


@pytest.fixture
def database(logical: PostgresServer) -> Iterator[Postgres]:
    """Tables with large values: ``a``, and ``b`` that tells them, so what is done to both must come to the same."""
    found = Postgres(logical)
    for table in ("a", "b"):
        found.run(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v int, t text, u text[])",
            f"ALTER TABLE {table} ALTER t SET STORAGE EXTERNAL, ALTER u SET STORAGE EXTERNAL",
        )
    found.run("ALTER TABLE b REPLICA IDENTITY FULL")
    yield found
    found.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_log(f"sqlite:{tmp_path}/log.db") as log:
        yield log


def both(*statements: str) -> list[str]:
    """Statements for one table, done to both in one transaction."""
    return ["BEGIN", *(each.format(table) for each in statements for table in ("a", "b")), "COMMIT"]


def some(chance: random.Random, count: int) -> list[str]:
    """Transactions of any kind: values that are large or not, keys that move, savepoints, rollbacks, tables that are emptied."""
    found: list[str] = []
    for _ in range(count):
        said = ["SAVEPOINT s"]
        for _ in range(chance.randrange(1, 6)):
            one, other, letter = chance.randrange(8), chance.randrange(8), chance.choice("pqrs")
            large = f"repeat('{letter}', {chance.choice([3, 5000])})"
            said.append(
                chance.choice(
                    [
                        f"INSERT INTO {{}} VALUES ({one}, 0, {large}, ARRAY[{large}]) ON CONFLICT (id) DO UPDATE SET v = {{}}.v + 1",
                        f"INSERT INTO {{}} VALUES ({one}, 0, {large}, NULL) ON CONFLICT (id) DO UPDATE SET t = {large}",
                        f"UPDATE {{}} SET v = v + 1 WHERE id <> {one}",
                        f"UPDATE {{}} SET u = ARRAY[t, t] WHERE id = {one}",
                        f"UPDATE {{}} SET id = {other} WHERE id = {one} AND NOT EXISTS (SELECT FROM {{}} WHERE id = {other})",
                        f"DELETE FROM {{}} WHERE id = {one}",
                        *(["TRUNCATE {}"] if chance.random() < 0.1 else []),
                        "ROLLBACK TO SAVEPOINT s",
                    ]
                )
            )
        found.append("BEGIN")
        for each in said:
            found += [each] if "{}" not in each else [each.replace("{}", table) for table in ("a", "b")]
        found.append(chance.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"]))
    return found


def do(database: Postgres, statements: list[str]) -> None:
    with database.session() as session:
        for each in statements:
            session(each)


def history(log: Log, database: Postgres, table: str) -> list[tuple[bytes, Any]]:
    """Everything that was said of the rows of a table, without what the database told of them before."""
    return [(key, said and (said["op"], said["after"])) for key, said in envelopes(log, database.topic(table))]


def texts(log: Log, database: Postgres) -> list[str]:
    return [said["after"]["t"][:1] for _, said in envelopes(log, database.topic("a")) if said and said["after"]]


def begun(log: Log, database: Postgres) -> None:
    do(
        database,
        both(
            "INSERT INTO {} VALUES (1, 0, repeat('x', 5000), NULL), (2, 0, repeat('y', 5000), ARRAY[repeat('z', 5000)])"
        ),
    )
    once(log, database)


def test_a_value_is_what_it_was_then_and_not_what_it_is_now(log: Log, database: Postgres) -> None:
    begun(log, database)
    do(
        database,
        both(
            "UPDATE {} SET v = 1 WHERE id = 1",
            "UPDATE {} SET t = repeat('p', 5000) WHERE id = 1",
            "UPDATE {} SET v = 2 WHERE id = 1",
        ),
    )
    do(database, both("UPDATE {} SET id = 3 WHERE id = 1", "UPDATE {} SET id = 1 WHERE id = 2", "UPDATE {} SET v = 3"))
    do(
        database,
        both(
            "DELETE FROM {} WHERE id = 3",
            "INSERT INTO {} VALUES (3, 0, repeat('q', 5000), NULL)",
            "UPDATE {} SET v = 4 WHERE id = 3",
        ),
    )
    once(log, database)
    assert texts(log, database) == list("xyxpppypyqq")
    assert history(log, database, "a") == history(log, database, "b")
    assert same(log, database) == 4


@pytest.mark.parametrize("mutant", ["", "never later", "not of the unit", "not of the topic"])
def test_whatever_is_done_and_whoever_is_killed_rows_are_as_if_they_were_told(
    log: Log, database: Postgres, mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(SEED)
    begun(log, database)
    if mutant == "never later":  # what is put in after the topic was read is not known
        monkeypatch.setattr(Large, "put", lambda *_: None)
    elif mutant == "not of the unit":  # what the same transaction did before is not known
        monkeypatch.setattr(Large, "_rest", lambda *_: None)
    elif mutant == "not of the topic":
        monkeypatch.setattr(loop_module, "records_of", lambda *_: ())
    try:
        for _ in range(3):
            do(database, some(chance, 40))
            once(log, database)
            if not mutant:
                do(database, some(chance, 20))
                arguments = [database.address, "--log", log.url, "--name", "shop", "--table", "a", "--table", "b"]
                place = chance.choice(["capture.append", "log.append.in_transaction", "capture.appended"])
                with started(*arguments, failpoint=f"{place}:kill@1") as process:
                    until(lambda: process.poll() is not None, timeout=60)
                    assert process.returncode == -9, process.stderr and process.stderr.read()
        once(log, database)
        equal = history(log, database, "a") == history(log, database, "b")
    except CaptureError:
        equal = False
    assert equal is not bool(mutant)
    if not mutant:
        assert same(log, database) > 0
        assert len(history(log, database, "a")) > 200


@pytest.mark.parametrize("waits", [True, False])
def test_an_update_that_comes_before_the_rows_of_an_added_table_waits_for_them(
    log: Log, database: Postgres, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(database, both("INSERT INTO {} VALUES (1, 0, repeat('x', 5000), NULL), (2, 0, repeat('y', 5000), NULL)"))
    once(log, database, "b")
    source = database.source("a", "b")
    snapshot = source.snapshot

    def then_update(tables: Any) -> Any:
        do(database, both("UPDATE {} SET v = 7"))  # it is told, and it is in the rows
        found = snapshot(tables)
        do(database, both("UPDATE {} SET v = 8 WHERE id = 1", "UPDATE {} SET id = 5 WHERE id = 2"))
        return found

    monkeypatch.setattr(source, "snapshot", then_update)
    if not waits:  # the mutant
        monkeypatch.setattr(loop_module._Run, "_last", lambda run, *asked: run._transactions.last(*asked))
        with pytest.raises(CaptureError, match="no row before tells it"):
            capture(log, source, settings(database), once=True)
        source.close()
        return
    capture(log, source, settings(database), once=True)
    source.close()
    once(log, database)
    assert texts(log, database) == list("xyxy")
    assert same(log, database) == 4


def test_who_is_stopped_while_an_update_waits_for_rows_ends_at_once(
    log: Log, database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(database, both("INSERT INTO {} VALUES (1, 0, repeat('x', 5000), NULL)"))
    once(log, database, "b")
    source, stop = database.source("a", "b"), threading.Event()
    snapshot = source.snapshot

    def then_update(tables: Any) -> Any:
        found = snapshot(tables)
        do(database, both("UPDATE {} SET v = 8"))
        return found

    def told(report: Report) -> None:
        if report.rows:
            stop.set()

    monkeypatch.setattr(source, "snapshot", then_update)
    said = capture(log, source, settings(database), stop=stop, report=told)
    source.close()
    assert (said.rows, said.changes) == (1, 0)
    once(log, database)
    assert same(log, database) == 2


def test_rows_of_an_outbox_that_are_updated_need_no_value(log: Log, database: Postgres) -> None:
    database.run(
        "CREATE TABLE outbox (id int PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload text)",
        "ALTER TABLE outbox ALTER payload SET STORAGE EXTERNAL",
    )
    chosen = {"outbox": Outbox("outbox", ("orders",))}
    once(log, database, "a", "outbox", **chosen)
    database.run("INSERT INTO outbox VALUES (1, 'orders', '7', 'placed', repeat('x', 5000))", "UPDATE outbox SET type = 'sent'")  # fmt: skip
    once(log, database, "a", "outbox", **chosen)
    assert [len(record.value or b"") for record in records_of(log, "orders")] == [5000]


def test_a_table_that_is_read_again_gets_its_values_from_its_rows(
    log: Log, database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(log, database)
    do(database, both("UPDATE {} SET v = 7"))
    request(log, "shop", database.full("a"))
    source = database.source("a", "b")
    snapshot = source.snapshot

    def then_update(tables: Any) -> Any:
        found = snapshot(tables)
        do(database, both("UPDATE {} SET v = 8 WHERE id = 1"))
        return found

    monkeypatch.setattr(source, "snapshot", then_update)
    capture(log, source, settings(database), once=True)
    source.close()
    assert read_known(log)["shop"].requests == []
    assert texts(log, database) == list("xyxyxyx")
    assert same(log, database) == 4


def test_a_transaction_that_brokers_get_in_parts_goes_on_with_the_values_of_its_part(
    kafka: KafkaBroker, database: Postgres
) -> None:
    with open_log(kafka.url) as log:
        if any(topic.name == CONTROL for topic in log.topics()):
            log.delete_topic(CONTROL)
            until(lambda: CONTROL not in {topic.name for topic in log.topics()})
        begun(log, database)
        moves = [
            f"UPDATE {{}} SET id = id + 10, v = v + 1, t = CASE WHEN id % 20 = 1 THEN repeat('{each}', 5000) ELSE t END"
            for each in "pqrs"
        ]
        do(database, both(*moves))
        for _ in range(2):
            with pytest.MonkeyPatch.context() as patch:
                puts = iter(range(2))
                put = loop_module._Run._put

                def fails(run: Any, unit: Any, puts: Any = puts, put: Any = put) -> None:
                    if unit.changes and next(puts, None) is None:
                        run._appender.drain()
                        raise KeyboardInterrupt
                    put(run, unit)

                patch.setattr(loop_module._Run, "_put", fails)
                with pytest.raises(KeyboardInterrupt):
                    once(log, database, most=3)
        known = read_known(log)["shop"].progress
        assert known is not None
        assert known.cut
        once(log, database, most=3)
        assert history(log, database, "a") == history(log, database, "b")
        assert same(log, database) == 4


def test_a_value_that_no_row_has_told_is_an_error_whose_cure_helps(log: Log, database: Postgres) -> None:
    begun(log, database)
    topic = log.topic(database.topic("a"))
    log.alter_topic(topic.name, settings=replace(topic.settings, max_record_bytes=4000))
    do(database, both("UPDATE {} SET t = repeat('p', 9000) WHERE id = 1"))
    once(log, database, refused="dead_letter")
    log.alter_topic(topic.name, settings=topic.settings)
    do(database, both("UPDATE {} SET v = 1 WHERE id = 1"))
    with pytest.raises(CaptureError, match=r"public\.a: an update of the row id = 1 left t as it was") as found:
        once(log, database)
    mend, _, then = found.value.hint.partition("; then ")
    assert then.startswith("`millstream capture remove`")
    database.run(mend)
    subprocess.run([*COMMAND, "capture", "remove", "shop", "--yes", "--log", log.url], check=True, timeout=60)
    once(log, database)
    do(database, both("UPDATE {} SET v = 2 WHERE id = 1"))
    once(log, database)
    assert same(log, database) == 4


def _record(key: bytes, value: bytes) -> Record:
    return Record("t", 0, 0, key, value, 0, 0, ())


def test_a_null_in_the_topic_is_no_value_that_lies_out_of_line() -> None:
    large = Large(lambda _: [_record(b"1", b'{"after":{"id":1,"t":null,"u":"x"}}')])
    assert large.last(Unit(), "t", b"1", "u") == "x"
    for key, column in ((b"1", "t"), (b"1", "w"), (b"2", "u")):
        with pytest.raises(KeyError):
            large.last(Unit(), "t", key, column)
    large.close()


def test_a_temporary_file_that_has_no_room_is_an_error_with_a_cure() -> None:
    large = Large(lambda _: (_record(b"%d" % number, b"x" * 9000) for number in range(100)))
    large._db.execute("PRAGMA max_page_count = 30").fetchall()
    with pytest.raises(CaptureError, match=r"last rows of topic t: .*full") as found:
        large.last(Unit(), "t", b"1", "u")
    assert "TMPDIR" in found.value.hint
    large.close()
