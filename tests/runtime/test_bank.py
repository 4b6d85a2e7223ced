"""The bank: money moves between accounts while it is counted, and no commit that anyone can see has a penny more or less."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from pathlib import Path

import apsw
from pyspark.sql import SparkSession

from millstream.event import Event
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.runtime.run import Progress, run
from millstream.runtime.verify import verify

ACCOUNTS, EACH, BATCHES = 12, 1000, 6


def bank(folder: Path) -> Pipeline:
    made = Pipeline(
        "bank",
        log=f"sqlite:{folder / 'log.db'}",
        to=f"sqlite:{folder / 'views.db'}",
        checkpoint=str(folder / "check"),
        buckets=4,
    )
    entries = made.stream("entries", "account long, amount long")
    balances = entries.group_by("account").agg(balance="sum(amount)", n="count(*)")
    made.view("balances", balances)
    made.view("total", balances.group_by().agg(total="sum(balance)", accounts="count(*)"))
    return made


def entry(account: int, amount: int) -> Event:
    return Event(json.dumps({"account": account, "amount": amount}).encode(), key=str(account).encode())


class Clients:
    """One who moves money, and one who looks at every commit."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.over = folder, threading.Event()
        self.balances: Counter[int] = Counter()
        self.seen: dict[int, tuple[int, int, int, str]] = {}
        self.errors: list[BaseException] = []

    def move(self) -> None:
        chance = random.Random(4)
        with open_log(f"sqlite:{self.folder / 'log.db'}", create=False) as log:
            while not self.over.wait(0.01):
                payer, payee = chance.sample(range(ACCOUNTS), 2)
                amount = chance.randrange(1, 500)
                log.append("entries", [entry(payer, -amount), entry(payee, amount)])
                self.balances.update({payer: -amount, payee: amount})

    def look(self) -> None:
        while not self.over.wait(0.002):
            try:
                db = apsw.Connection(str(self.folder / "views.db"), flags=apsw.SQLITE_OPEN_READONLY)
                try:
                    found = db.execute(
                        "SELECT (SELECT max(batch) FROM millstream_ledger), (SELECT sum(balance) FROM balances),"
                        " (SELECT count(*) FROM balances), (SELECT group_concat(total) FROM total)"
                    ).fetchone()
                finally:
                    db.close()
            except (apsw.CantOpenError, apsw.SQLError, apsw.BusyError):
                continue  # not made yet
            if found is not None and found[0] is not None:
                before = self.seen.setdefault(found[0], found)
                if before != found:
                    self.errors.append(AssertionError((before, found)))


def test_every_commit_that_can_be_seen_has_all_the_money(spark: SparkSession, tmp_path: Path) -> None:
    pipeline, stop, clients = bank(tmp_path), threading.Event(), Clients(tmp_path)
    with open_log(pipeline.log, create=True) as log:
        log.create_topic("entries", 3)
        log.append("entries", [entry(account, EACH) for account in range(ACCOUNTS)])
        clients.balances.update(dict.fromkeys(range(ACCOUNTS), EACH))

    def enough(progress: Progress) -> None:
        if (progress.batch or 0) >= BATCHES:
            stop.set()

    threads = [threading.Thread(target=clients.move), threading.Thread(target=clients.look)]
    for thread in threads:
        thread.start()
    try:
        run(pipeline, spark=spark, rate_limit=41, progress=enough, stop=stop)
    finally:
        clients.over.set()
        for thread in threads:
            thread.join()
    assert not clients.errors
    assert len(clients.seen) >= BATCHES - 1
    money = ACCOUNTS * EACH
    assert {seen[1:] for seen in clients.seen.values()} == {(money, ACCOUNTS, str(money))}

    done = run(pipeline, spark=spark, once=True)
    assert done.lag == 0
    balances = {row["account"]: row["balance"] for row in pipeline.views["balances"].to_arrow().to_pylist()}
    assert balances == dict(clients.balances)
    assert pipeline.views["total"].to_arrow().to_pylist() == [{"total": money, "accounts": ACCOUNTS}]
    verified = verify(pipeline, spark=spark)
    assert verified.equal, verified
