"""The bank in a database: money moves between two tables that are captured, and no state of the views has a penny more or less."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from pyspark.sql import SparkSession

from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.runtime.run import Progress, run
from tests.capture.conftest import logical  # noqa: F401  a fixture
from tests.capture.databases import Database, MariaDb, Postgres
from tests.capture.process import once, running, same, settings

ACCOUNTS, EACH, BATCHES = 40, 1000, 5


class Client:
    """One who moves money between the tables, in transactions of which some are rolled back; and one who looks at every commit of the views."""

    def __init__(self, database: Database, views: Path) -> None:
        self.database, self.views, self.over = database, views, threading.Event()
        self.moved = 0
        self.seen: dict[int, tuple[int, int]] = {}

    def move(self) -> None:
        chance = random.Random(8)
        with self.database.session() as do:
            while not self.over.wait(0.005):
                do("BEGIN")
                for _ in range(chance.randrange(1, 4)):
                    payer, payee, amount = (*chance.sample(range(ACCOUNTS), 2), chance.randrange(1, 90))
                    first, second = chance.sample("ab", 2)
                    do(f"UPDATE {first} SET v = v - {amount} WHERE id = {payer}")
                    do(f"UPDATE {second} SET v = v + {amount} WHERE id = {payee}")
                do(chance.choice(["COMMIT", "COMMIT", "ROLLBACK"]))
                self.moved += 1

    def look(self) -> None:
        while not self.over.wait(0.002):
            try:
                db = apsw.Connection(str(self.views), flags=apsw.SQLITE_OPEN_READONLY)
                try:
                    batch, one, other = db.execute(
                        "SELECT (SELECT max(batch) FROM millstream_ledger), (SELECT total FROM in_a), (SELECT total FROM in_b)"
                    ).fetchall()[0]
                finally:
                    db.close()
            except (apsw.CantOpenError, apsw.SQLError, apsw.BusyError):
                continue  # not made yet
            if batch is not None and one is not None:
                self.seen[int(batch)] = (int(one), int(str(other)))


@pytest.fixture(params=["mariadb", "postgres"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    mariadb = request.param == "mariadb"
    server = request.getfixturevalue("mariadb" if mariadb else "logical")
    found: Database = MariaDb(server) if mariadb else Postgres(server)
    yield found
    found.close()


def test_no_state_of_the_views_is_one_that_the_database_never_had(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    database.made()
    for each in "ab":
        database.run(f"INSERT INTO {each} VALUES {', '.join(f'({one}, {EACH}, null)' for one in range(ACCOUNTS))}")
    made = Pipeline(
        "bank", log=f"sqlite:{tmp_path}/log.db", to=f"sqlite:{tmp_path}/views.db", checkpoint=str(tmp_path / "check"), buckets=2
    )  # fmt: skip
    for name in "ab":
        table = made.table(name, "id int, v long", key="id", topic=database.topic(name), codec="debezium")
        made.view(f"in_{name}", table.group_by().agg(total="sum(v)", n="count(*)"))
    client, stop = Client(database, tmp_path / "views.db"), threading.Event()

    def enough(progress: Progress) -> None:
        if len(client.seen) > BATCHES and (progress.batch or 0) > BATCHES:
            stop.set()

    threads = [threading.Thread(target=client.move), threading.Thread(target=client.look)]
    source = database.source("a", "b")
    with open_log(made.log) as log:
        once(log, database)
        with running(log, source, settings(database)):
            for thread in threads:
                thread.start()
            try:
                run(made, spark=spark, progress=enough, stop=stop)
            finally:
                client.over.set()
                for thread in threads:
                    thread.join()
        source.close()
        once(log, database)
        assert same(log, database) == 2 * ACCOUNTS
    run(made, spark=spark, once=True)
    assert client.moved > 20
    assert {sum(totals) for totals in client.seen.values()} == {2 * ACCOUNTS * EACH}
    assert len({one for one, _ in client.seen.values()}) > 2  # money did move between the tables
    found = [made.views[f"in_{name}"].to_arrow().to_pylist()[0] for name in "ab"]
    assert (found[0]["total"] + found[1]["total"], found[0]["n"], found[1]["n"]) == (
        2 * ACCOUNTS * EACH,
        ACCOUNTS,
        ACCOUNTS,
    )
