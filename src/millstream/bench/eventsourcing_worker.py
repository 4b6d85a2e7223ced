"""The package eventsourcing on SQLite, in a process of its own: run by the Python that has it, which has nothing of ours, so this file stands alone.

Arguments: what to do, the file of the database, and how many commands, aggregates or events. The answer is JSON: seconds, and the processor's seconds.
Its cache of aggregates is on. A command loads its aggregate, decides and saves, which is a durable commit; ``together`` saves a thousand aggregates in one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

TOGETHER = 1000


def made(file: str) -> tuple[Any, Any]:
    """An application on a file, and its kind of aggregate."""
    application, domain = import_module("eventsourcing.application"), import_module("eventsourcing.domain")

    class Account(domain.Aggregate):  # type: ignore[misc,name-defined]
        """A balance."""

        def __init__(self, name: str) -> None:
            self.name, self.balance = name, 0

        @staticmethod
        def create_id(name: str) -> UUID:
            """The id is made of the name."""
            return uuid5(NAMESPACE_URL, name)

        @domain.event("Deposited")  # type: ignore[untyped-decorator]
        def deposit(self, amount: int) -> None:
            """Add to the balance."""
            self.balance += amount

    class Bank(application.Application[UUID]):  # type: ignore[misc,name-defined]
        """Accounts."""

    settings = {"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": file, "AGGREGATE_CACHE_MAXSIZE": "20000"}
    return Bank(env=settings), Account


def timed(work: Callable[[], object]) -> dict[str, float]:
    """The seconds of a piece of work, and those of the processor."""
    began, used = time.perf_counter(), time.process_time()
    work()
    return {"seconds": time.perf_counter() - began, "processor": time.process_time() - used}


def main(what: str, file: str, count: int, aggregates: int) -> dict[str, float]:
    """Do what is asked."""
    bank, account = made(file)
    names = [f"a{i}" for i in range(aggregates)]
    for first in range(0, aggregates, TOGETHER):
        bank.save(*(account(name) for name in names[first : first + TOGETHER]))

    def command(name: str) -> None:
        found = bank.repository.get(account.create_id(name))
        found.deposit(1)
        bank.save(found)

    def together() -> None:
        for first in range(0, count, TOGETHER):
            found = [
                bank.repository.get(account.create_id(names[i % aggregates])) for i in range(first, first + TOGETHER)
            ]
            for each in found:
                each.deposit(1)
            bank.save(*found)

    def commands() -> None:
        for i in range(count):
            command(names[i % aggregates])

    if what == "commands":
        return timed(commands)
    if what == "together":
        return timed(together)
    one = bank.repository.get(account.create_id(names[0]))
    for _ in range(count):
        one.deposit(1)
    bank.save(one)
    bank.repository.cache = None  # to be read and folded again
    return timed(lambda: bank.repository.get(account.create_id(names[0])))


if __name__ == "__main__":
    os.environ.pop("SQLITE_DBNAME", None)
    sys.stdout.write(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
