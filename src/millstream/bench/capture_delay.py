"""How old a view of a database is: from a COMMIT to the commit of the view that has it in, while transactions come steadily.

The database is captured by ``millstream capture start``, a process of its own, into the embedded log; a pipeline reads the topic and keeps the
table as a view in SQLite. A transaction writes its number into the rows it changes, so the highest number in the view says which transactions are in.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import psycopg

from millstream.bench.capture_process import capture_once
from millstream.bench.plain import apart
from millstream.errors import MachineError
from millstream.pipeline import Pipeline
from millstream.runtime.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1000
EVERY, CHANGES = 0.01, 10
"""Seconds between transactions, and changes of each."""
_COLUMNS = "id long, customer long, status string, note string, n long"
_PATIENCE = 60.0

Do = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Followed:
    """A database with a table of :data:`ROWS` rows, the table's name, and the topic that it is captured into."""

    address: str
    table: str
    topic: str


def delays(spark: SparkSession, place: Followed, folder: Path, seconds: float) -> list[float]:
    """Seconds from COMMIT to view of each transaction, in order of length.

    The first transaction finds out that all of it runs, and is not counted. What has not come some time after the last has waited
    that long at least.
    """
    log = folder / "log.db"
    apart(capture_once, place.address, place.table, log)  # so that the topic is there
    views = Pipeline("follow", log=f"sqlite:{log}", to=f"sqlite:{folder / 'views.db'}", checkpoint=str(folder / "run"))
    table = views.table("orders", _COLUMNS, key="id", topic=place.topic, codec="debezium")
    views.view("now", table)
    commits = _Commits(place, seconds)
    with _capturing(place, log, folder) as check:
        writer = threading.Thread(target=commits.write, daemon=True)
        writer.start()
        seen = _view(folder / "views.db")
        run(views, spark=spark, progress=lambda _: commits.seen(seen()), stop=commits.stop)
        commits.stop.set()
        writer.join()
        check()
    return commits.delays()


class _Commits:
    """Transactions written steadily, and when each was seen."""

    def __init__(self, place: Followed, seconds: float) -> None:
        self.stop = threading.Event()
        self._place, self._count = place, max(1, int(seconds / EVERY))
        self._began = threading.Event()
        self._lock = threading.Lock()
        self._pending: dict[int, float] = {}
        self._found: list[float] = []

    def seen(self, number: int) -> None:
        """The view has all up to this number."""
        now = time.monotonic()
        with self._lock:
            for each in [each for each in self._pending if each <= number]:
                self._found.append(now - self._pending.pop(each))
        if number:
            self._began.set()

    def write(self) -> None:
        """Commit one, and when that is in the view all others; stop when they are."""
        try:
            with _session(self._place.address) as do:
                self._commit(do, 1)
                if not self._began.wait(2 * _PATIENCE):
                    return
                with self._lock:
                    self._found.clear()
                began = time.monotonic()
                for number in range(self._count):
                    if self.stop.is_set():
                        return
                    self._commit(do, number + 2)
                    time.sleep(max(0.0, began + (number + 1) * EVERY - time.monotonic()))
                ended = time.monotonic()
                while self._pending and time.monotonic() < ended + _PATIENCE:
                    time.sleep(0.02)
        finally:
            self.stop.set()

    def delays(self) -> list[float]:
        """All of them, in order of length; MachineError if some were never begun."""
        now = time.monotonic()
        found = sorted([*self._found, *(now - at for at in self._pending.values())])
        if not self._began.is_set() or len(found) != self._count:
            raise MachineError(
                f"follow: found {len(found)} of {self._count} transactions written and followed",
                hint="look at the database's log",
            )
        return found

    def _commit(self, do: Do, number: int) -> None:
        first = number * CHANGES % ROWS
        do("BEGIN")
        do(f"UPDATE {self._place.table} SET n = {number} WHERE id >= {first} AND id < {first + CHANGES}")
        with self._lock:
            self._pending[number] = time.monotonic()
        do("COMMIT")


@contextmanager
def _session(address: str) -> Iterator[Do]:
    if address.startswith("sqlite:"):
        with closing(apsw.Connection(address.removeprefix("sqlite:"))) as db:
            db.set_busy_timeout(10_000)
            yield lambda statement: db.execute(statement).fetchall()
    else:
        with psycopg.connect(address, autocommit=True) as postgres:
            yield lambda statement: postgres.execute(statement.encode())


@contextmanager
def _capturing(place: Followed, log: Path, folder: Path) -> Iterator[Callable[[], None]]:
    """The capture as users start it; what it gives raises if that has ended."""
    program = [sys.executable, "-c", "from millstream.cli import main; main()"]
    options = ["--table", place.table, "--name", "bench", "--log", f"sqlite:{log}"]
    said = folder / "capture.txt"
    with said.open("w") as errors:
        process = subprocess.Popen(
            [*program, "capture", "start", place.address, *options], stdout=subprocess.DEVNULL, stderr=errors
        )

    def check() -> None:
        if process.poll() is not None:
            told = said.read_text().strip().splitlines() or ["it said nothing"]
            raise MachineError(f"follow: the capture ended: {told[0]}")

    try:
        yield check
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _view(path: Path) -> Callable[[], int]:
    """What asks for the highest number in the view; it is asked from the thread of the run's progress, which opens the file."""
    opened: list[apsw.Connection] = []

    def highest() -> int:
        if not opened:
            opened.append(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY))
        return opened[0].execute("SELECT coalesce(max(n), 0) FROM now").get  # type: ignore[no-any-return]

    return highest
