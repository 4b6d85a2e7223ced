"""Event sourcing measured, beside the package eventsourcing on SQLite, with the same aggregate and the same commands in the same run.

Every commit on both sides is durable, so one command after the other goes as fast as the disk syncs: that rate is measured too, and told
beside. What many commands cost is not bound by it, since they share transactions here.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.bench import Result, alternate
from millstream.bench import eventsourcing_worker as worker
from millstream.bench.erase import measure as erase
from millstream.bench.plain import apart
from millstream.sourcing import Decider, EventStore, Request
from millstream.spark.environment import Package, python_with

NAMES = ("commands", "commands_many", "replay", "erase")
PACKAGE = Package("eventsourcing", "9.5.6", "eventsourcing.sqlite", "1 MB", "Python 3.10 or later")
_AGGREGATES = 10_000
_THREADS = 16
_ROUNDS = 5
_AGAINST = f"{PACKAGE.name} {PACKAGE.version} on SQLite"


@dataclass(frozen=True)
class Deposit:
    """A command: more money."""

    amount: int


@dataclass(frozen=True)
class Deposited:
    """Its event."""

    amount: int


@dataclass(frozen=True)
class Account:
    """The state."""

    balance: int = 0


ACCOUNT = Decider(
    Account(),
    lambda _, command: [Deposited(command.amount)],
    lambda state, event: Account(state.balance + event.amount),
    events=Deposited,
    commands=Deposit,
)


def measure(names: tuple[str, ...], scale: float, say: Callable[[str], None]) -> Iterator[Result]:
    """Measure what is named, ours and theirs in turn; erasure, which they have not, beside reading."""
    beside = {"commands": _commands, "commands_many": _commands_many, "replay": _replay}
    python = python_with(PACKAGE, PACKAGE.name, say) if beside.keys() & {*names} else Path()
    for name in names:
        say(name)
        with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
            yield beside[name](python, Path(folder), scale) if name in beside else erase(Path(folder), scale)


def _commands(python: Path, folder: Path, scale: float) -> Result:
    """One command after the other to one aggregate, in turns: the disk is not as quick at every moment."""
    count = max(100, int(1_000 * scale))
    processor: dict[str, float] = {}
    turn = itertools.count()

    def ours() -> float:
        found = apart(execute_each, str(folder / f"ours-{next(turn)}.db"), count)
        processor["ours"] = found["processor"]
        return count / found["seconds"]

    def theirs() -> float:
        found = _theirs(python, "commands", folder / f"{next(turn)}", count, 1)
        processor["theirs"] = found["processor"]
        return float(count / found["seconds"])

    value, baseline = alternate(ours, theirs, _ROUNDS)
    note = (
        f"the disk syncs {syncs_per_second(folder):,.0f} times/s; of the processor: {1e6 * processor['ours'] / count:,.0f} µs"
        f" a command, theirs {1e6 * processor['theirs'] / count:,.0f} µs"
    )
    return Result("commands", value, "commands/s", _AGAINST, baseline, note)


def _commands_many(python: Path, folder: Path, scale: float) -> Result:
    """Commands to ten thousand aggregates in turn."""
    count = max(2_000, int(40_000 * scale) // worker.TOGETHER * worker.TOGETHER)
    fewer = max(1_000, count // 10 // worker.TOGETHER * worker.TOGETHER)
    ours = apart(execute_many, str(folder / "ours.db"), count)
    threads = apart(execute_in_threads, str(folder / "threads.db"), fewer)
    theirs = _theirs(python, "commands", folder, fewer, _AGGREGATES)
    together = _theirs(python, "together", folder, fewer, _AGGREGATES)
    note = (
        f"{_THREADS} threads that execute one by one: {fewer / threads['seconds']:,.0f} commands/s;"
        f" theirs, a thousand aggregates saved at once: {fewer / together['seconds']:,.0f} commands/s"
    )
    return Result("commands_many", count / ours["seconds"], "commands/s", _AGAINST, fewer / theirs["seconds"], note)


def _replay(python: Path, folder: Path, scale: float) -> Result:
    """One aggregate of many events, read and folded from the first on."""
    count = max(5_000, int(100_000 * scale))
    ours = apart(replay, str(folder / "ours.db"), count)
    theirs = _theirs(python, "replay", folder, count, 1)
    return Result("replay", count / ours["seconds"], "events/s", _AGAINST, count / theirs["seconds"])


def execute_each(file: str, count: int) -> dict[str, float]:
    """Execute one command after the other."""
    with EventStore(f"sqlite:{file}", "accounts", ACCOUNT) as store:
        store.execute("a0", Deposit(1))
        return worker.timed(lambda: [store.execute("a0", Deposit(1)) for _ in range(count)])


def execute_many(file: str, count: int) -> dict[str, float]:
    """Execute a list of commands to aggregates that are there already."""
    with _filled(file) as store:
        requests = [Request(f"a{i % _AGGREGATES}", Deposit(1)) for i in range(count)]
        return worker.timed(lambda: store.execute_all(requests))


def execute_in_threads(file: str, count: int) -> dict[str, float]:
    """Execute as many commands, each by itself, in some threads."""
    with _filled(file) as store:

        def work(number: int) -> None:
            for i in range(number, count, _THREADS):
                store.execute(f"a{i % _AGGREGATES}", Deposit(1))

        def all_of_them() -> None:
            threads = [threading.Thread(target=work, args=(number,)) for number in range(_THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        return worker.timed(all_of_them)


def replay(file: str, count: int) -> dict[str, float]:
    """Load an aggregate of many events, from the first on."""
    with EventStore(f"sqlite:{file}", "accounts", ACCOUNT) as store:
        store.execute_all(Request("a0", Deposit(1)) for _ in range(count))
        return worker.timed(lambda: store.state("a0"))


def syncs_per_second(folder: Path) -> float:
    """How often the disk syncs a page that was written to a file, over half a second."""
    with (folder / "syncs").open("wb", buffering=0) as file:
        done, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < 0.5:
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            done += 1
    return done / passed


def _filled(file: str) -> EventStore[Account]:
    store = EventStore(f"sqlite:{file}", "accounts", ACCOUNT)
    store.execute_all(Request(f"a{i}", Deposit(1)) for i in range(_AGGREGATES))
    return store


def _theirs(python: Path, what: str, folder: Path, count: int, aggregates: int) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    file = folder / f"theirs-{what}.db"
    done = subprocess.run(
        [str(python), worker.__file__, what, str(file), str(count), str(aggregates)],
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found
