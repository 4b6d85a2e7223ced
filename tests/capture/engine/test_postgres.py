"""Debezium's engine over a real PostgreSQL, held to our own reader: nothing is lost, nothing comes twice, whichever process dies when."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from millstream.capture.control import read_known
from millstream.capture.loop import Settings
from millstream.capture.opening import open_source
from millstream.engine.source import DebeziumSource
from millstream.errors import CaptureError
from millstream.log import open_log
from millstream.testing import PostgresServer
from tests.capture.databases import Postgres, writing
from tests.capture.process import Running, running, started
from tests.capture.topics import assert_same, envelopes, fold
from tests.waiting import until

pytestmark = pytest.mark.campaign  # the engine is large to install
TABLES = ("a", "b", "wide")
PLACES = ("capture.append", "log.append.in_transaction", "capture.appended", "capture.acknowledge")
WIDE = ("CREATE TABLE wide (id int PRIMARY KEY, v int, t text)", "ALTER TABLE wide ALTER t SET STORAGE EXTERNAL")
"""Values that lie out of line are not sent again."""


class Engine:
    """A database, and a file that tells the engine where it is."""

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self.database = Postgres(server)
        self.file, self.log = folder / "shop.properties", open_log(f"sqlite:{folder}/log.db")
        self.file.write_text(
            "connector.class=io.debezium.connector.postgresql.PostgresConnector\n"
            f"database.hostname=127.0.0.1\ndatabase.port={server.port}\ndatabase.user=millstream\n"
            f"database.dbname={self.database.address.rpartition('/')[2]}\nslot.name={self.database.address.rpartition('/')[2]}\n"
        )
        self._marks = 0

    @property
    def address(self) -> str:
        return f"debezium:{self.file}"

    @property
    def settings(self) -> Settings:
        return Settings("shop", self.address)

    def source(self, *tables: str) -> DebeziumSource:
        found = open_source(self.address, [f"public.{each}" for each in tables], "shop")
        assert isinstance(found, DebeziumSource)
        return found

    def arguments(self) -> list[str]:
        named = [part for each in TABLES for part in ("--table", f"public.{each}")]
        return [self.address, "--log", self.log.url, "--name", "shop", *named]

    def changes(self) -> int:
        known = read_known(self.log).get("shop")
        return known.progress.changes if known and known.progress else 0

    @contextmanager
    def captured(self) -> Iterator[subprocess.Popen[bytes]]:
        """A capture for as long as the block lasts; then it is killed."""
        with started(*self.arguments()) as process:
            try:
                before = self.changes()
                until(lambda: process.poll() is not None or self.changes() > before, timeout=120)
                assert process.poll() is None, process.stderr and process.stderr.read()
                yield process
            finally:
                process.kill()

    def mark(self) -> None:
        """Commit a row and let a capture go on until it is in the topic."""
        self._marks += 1
        number = 1_000_000 + self._marks
        self.database.run(f"INSERT INTO b VALUES ({number}, 0, 'mark')")
        source = self.source(*TABLES)
        with running(self.log, source, self.settings) as run:
            topic = self.database.topic("b")
            until(lambda: str(number).encode() in fold(self.log, topic) or run.error, timeout=120)
        source.close()

    def same(self, *tables: str) -> int:
        """Hold the topics to what our own reader finds."""
        ours = self.database.source(*tables, name="ours")
        ours.prepare(None)
        try:
            return assert_same(self.log, ours, "shop", tables)
        finally:
            ours.remove()
            ours.close()


def engine_of(process: subprocess.Popen[bytes]) -> int:
    """The id of the process with the engine that a capture has started; none of a question about tables."""
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = each.read_text().rpartition(")")[2].split()[1]
            if int(parent) == process.pid and "worker.py" in (each.parent / "cmdline").read_text():
                return int(each.parent.name)
        except (OSError, IndexError):
            continue
    return 0


@pytest.fixture
def shop(engine: Path, logical: PostgresServer, tmp_path: Path) -> Iterator[Engine]:
    made = Engine(logical, tmp_path)
    made.database.made(rows=2500)
    made.database.run(*WIDE, "INSERT INTO wide SELECT g, 0, repeat('x', 5000) FROM generate_series(1, 20) g")
    yield made
    made.log.close()
    made.database.close()


def test_rows_come_first_and_then_whole_transactions(shop: Engine) -> None:
    source = shop.source(*TABLES)
    with running(shop.log, source, shop.settings) as run:
        run.wait(2520)
        with shop.database.session() as do:
            for each in (
                "BEGIN", "UPDATE a SET v = -1 WHERE id = 7", "DELETE FROM a WHERE id = 8", "INSERT INTO b VALUES (1, 2, 'x')", "UPDATE a SET id = 8 WHERE id = 9",
                "SAVEPOINT s", "DELETE FROM a", "ROLLBACK TO SAVEPOINT s", "UPDATE wide SET v = 1 WHERE id < 3", "COMMIT",
                "BEGIN", "DELETE FROM a", "ROLLBACK", "TRUNCATE wide", "INSERT INTO wide VALUES (1, 1, repeat('y', 5000))", "UPDATE wide SET v = 2",
            ):  # fmt: skip
                do(each)
        until(lambda: run.error or len(fold(shop.log, shop.database.topic("wide"))) == 1, timeout=60)
        until(lambda: run.error or fold(shop.log, shop.database.topic("wide"))[b"1"]["v"] == 2, timeout=60)
    source.close()
    assert shop.same(*TABLES) == 2501
    found = [(key, said) for key, said in envelopes(shop.log, shop.database.topic("a"))]
    changed = [(key, said and said["op"]) for key, said in found[2500:]]
    assert changed == [(b"7", "u"), (b"8", "d"), (b"8", None), (b"9", "d"), (b"9", None), (b"8", "c")]
    one = {said["source"]["txId"] for _, said in found[2500:] if said}
    assert one == {said["source"]["txId"] for _, said in envelopes(shop.log, shop.database.topic("b")) if said}
    assert len(one) == 1


def engine_killed(shop: Engine, changes: int) -> None:
    """A capture whose engine dies after so many changes; it ends, and says so."""
    with shop.captured() as process:
        wanted = shop.changes() + changes
        until(lambda: shop.changes() > wanted or process.poll() is not None, timeout=120)
        os.kill(until(lambda: engine_of(process)), signal.SIGKILL)
        assert process.wait(60) == 1
        assert process.stderr is not None
        assert b"killed by signal 9" in process.stderr.read()


@pytest.mark.parametrize("killed", ["capture", "engine"])
def test_whoever_is_killed_nothing_is_lost_and_nothing_comes_twice(shop: Engine, killed: str) -> None:
    chance = random.Random(len(killed))
    with writing(shop.database, seed=5) as done:
        with started(*shop.arguments(), failpoint="capture.appended:kill@2") as process:  # within the snapshot
            until(lambda: process.poll() is not None, timeout=120)
            assert process.returncode == -9, process.stderr and process.stderr.read()
        shop.database.run("DELETE FROM a WHERE id % 7 = 3")  # nothing of them may stay
        for place in PLACES if killed == "capture" else ("", "", ""):
            if place:
                with started(*shop.arguments(), failpoint=f"{place}:kill@{chance.randrange(9, 20)}") as process:
                    until(lambda: process.poll() is not None, timeout=120)
                    assert process.returncode == -9, process.stderr and process.stderr.read()
                continue
            engine_killed(shop, chance.randrange(50, 700))
        assert min(done) > 30
    shop.mark()
    assert shop.same(*TABLES) > 100


def test_types_are_declared_and_written_as_our_own_reader_does(shop: Engine) -> None:
    shop.database.run(
        "CREATE TABLE kinds (id bigint, part text, n numeric(12, 3), x float8, yes boolean, d date, ts timestamp, tz timestamptz, raw bytea, u uuid,"
        " j jsonb, s smallint, PRIMARY KEY (id, part))",
        "INSERT INTO kinds VALUES (1, 'ü', 12.5, 0.1, true, '2026-01-31', '2026-01-31 12:00:00.123456', '2026-01-31 13:00:00+01', '\\x00ff',"
        " '123e4567-e89b-12d3-a456-426614174000', '{\"a\": 1}', 7), (2, 'b', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    )
    theirs, ours = shop.source("kinds"), shop.database.source("kinds", name="ours")
    ours.prepare(None)
    (table,), (own,) = theirs.tables(), ours.tables()
    assert (table.full_name, table.key) == (own.full_name, own.key)
    types = {column.name: column.type for column in table.columns}
    assert types["n"] == "decimal(12, 3)"
    assert {name: types[name] for name in ("id", "d", "ts", "tz", "x")} == {
        "id": "bigint", "d": "date", "ts": "timestamp", "tz": "timestamp", "x": "double",
    }  # fmt: skip
    with running(shop.log, theirs, shop.settings) as run:
        run.wait(2)
    found = [said["after"] for _, said in envelopes(shop.log, "shop.public.kinds") if said]
    with ours.snapshot([own]) as snapshot:
        (wanted,) = snapshot.rows(own)
    assert [plain(each) for each in found] == [plain(each) for each in wanted]
    theirs.close()
    ours.close()


def plain(row: Any) -> dict[str, Any]:
    """A row with times as times: the forms of text differ."""
    made = json.loads(json.dumps(dict(row)))
    for name in ("ts", "tz"):
        if made[name] is not None:
            made[name] = datetime.fromisoformat(made[name]).replace(tzinfo=UTC)
    if made["n"] is not None:
        made["n"] = float(made["n"])
    return made


def test_what_cannot_be_captured_is_refused(shop: Engine) -> None:
    shop.database.run("CREATE TABLE keyless (id int)")
    for table, why in (("nowhere", "there is no table public.nowhere"), ("keyless", "has no primary key")):
        source = shop.source(table)
        with pytest.raises(CaptureError, match=why):
            source.tables()
        source.close()
    source = shop.source("a")
    with running(shop.log, source, shop.settings) as run:
        run.wait(2500)
    source.close()
    added = Running(shop.log, both := shop.source("a", "b"), shop.settings)
    added.thread.join(60)
    both.close()
    assert isinstance(added.error, CaptureError)
    assert "not again those of public.b" in added.error.message
    shop.database.run(*dropped(shop))
    lost = Running(shop.log, source := shop.source("a"), shop.settings)
    lost.thread.join(120)
    source.close()
    assert isinstance(lost.error, CaptureError), "a slot that is gone is a gap"


def dropped(shop: Engine) -> list[str]:
    """What takes the slot away."""
    name = shop.database.address.rpartition("/")[2]
    active = f"FROM pg_replication_slots WHERE slot_name = '{name}'"
    return [f"SELECT pg_terminate_backend(active_pid, 10000) {active} AND active", f"SELECT pg_drop_replication_slot('{name}')", "INSERT INTO a VALUES (-5, 0, 'lost')"]  # fmt: skip
