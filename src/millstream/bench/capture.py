"""Change capture measured: rows of a snapshot, then changes, from a real database into the embedded log; and how old a view of it is.

Each database has one table of seven columns. Its rows are read once; then each is updated, in transactions of a thousand, and captured. Each capture is a
process of its own, whose processor's seconds and memory at most stand beside the rate. Seconds of the processor compare better between machines. What is compared with SQLite are the same updates without triggers.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pymysql

from millstream.bench import Result
from millstream.bench.capture_delay import CHANGES, EVERY, ROWS, Followed, delays
from millstream.bench.capture_process import Captured, capture_once
from millstream.bench.debezium import Engine, engine_captured, engine_python, slot
from millstream.bench.plain import apart
from millstream.errors import MillstreamError
from millstream.spark.session import spark_session
from millstream.testing import MariaDbServer, PostgresServer

NAMES = ("postgres_snapshot", "postgres_changes", "mariadb_changes", "sqlite_changes", "follow")
FURTHER = ("debezium_changes",)
"""Measured only where it is asked for: 200 MB are fetched for it."""
_TABLE = (
    "CREATE TABLE orders (id INTEGER NOT NULL PRIMARY KEY, customer INTEGER, status VARCHAR(20), amount NUMERIC(12, 2),"
    " note VARCHAR(60), placed TIMESTAMP NULL, n INTEGER)"
)
_AT_ONCE = 1000
_LOGICAL = {"wal_level": "logical", "max_wal_senders": "10", "max_replication_slots": "10"}
_IN_SQLITE = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA journal_mode = wal")
for line in sys.stdin:
    db.execute(line)
"""

Run = Callable[[list[str]], None]


@dataclass(frozen=True)
class _Place:
    """A database, how statements are run in it, and the name of its table."""

    address: str
    run: Run
    table: str


def measure(names: tuple[str, ...], scale: float, say: Callable[[str], None]) -> Iterator[Result]:
    """Measure what is named, one database after the other."""
    rows = max(_AT_ONCE, int(100_000 * scale) // _AT_ONCE * _AT_ONCE)
    for kind, made in _PLACES.items():
        wanted = [name for name in names if name.startswith(kind) or (kind == "postgres" and name in FURTHER)]
        if wanted:
            say(f"{kind}: {rows:,} rows, each changed once")
            engine = engine_python(say) if "debezium_changes" in wanted else None
            with _made(made) as (place, folder):
                yield from _measured(kind, wanted, place, folder, rows, engine)
    if "follow" in names:
        yield from _followed(max(5.0, 30.0 * scale), say)


def _measured(
    kind: str, names: list[str], place: _Place, folder: Path, rows: int, engine: Path | None
) -> Iterator[Result]:
    place.run([_TABLE, *_inserts(rows)])
    plain = _timed(place.run, _updates(rows))
    log = folder / "log.db"
    read = apart(capture_once, place.address, place.table, log)
    if engine:
        place.run(slot(place.table))
    writing = _timed(place.run, _updates(rows))
    changed = apart(capture_once, place.address, place.table, log)
    for name in sorted(set(names) - set(FURTHER), key=names.index):
        unit, found = ("rows/s", read) if name.endswith("snapshot") else ("changes/s", changed)
        if found.count != rows:
            raise MillstreamError(f"{name}: found {found.count:,} captured, expected {rows:,}")
        yield Result(name, rows / found.seconds, unit)
        yield Result(f"{name}_cpu", found.cpu * 100_000 / rows, "CPU s for 100,000")
        yield Result(f"{name}_memory", found.memory, "MiB at most")
    if engine:
        yield from _beside(changed, engine_captured(engine, place.address, place.table, folder, rows))
    if kind == "sqlite":
        yield Result("sqlite_writes", rows / writing, "updates/s", "without triggers", rows / plain)


def _beside(ours: Captured, engine: Engine) -> Iterator[Result]:
    """Debezium's engine beside our capture, over the same changes."""
    against, of_engine, of_ours = "postgres_changes", 100_000 / engine.count, 100_000 / ours.count
    rates = engine.count / engine.seconds, ours.count / ours.seconds
    yield Result("debezium_changes", rates[0], "changes/s", against, rates[1])
    cpu = engine.cpu * of_engine, ours.cpu * of_ours
    yield Result("debezium_changes_cpu", cpu[0], "CPU s for 100,000", against, cpu[1])
    yield Result("debezium_changes_memory", engine.memory, "MiB at most", against, ours.memory)
    yield Result("debezium_changes_start", engine.start, "s to the first batch")


def _followed(seconds: float, say: Callable[[str], None]) -> Iterator[Result]:
    """How old a view is, at a steady rate."""
    spark = spark_session("millstream-bench")
    for kind, topic in (("postgres", "bench.public.orders"), ("sqlite", "bench.orders")):
        say(f"follow: {CHANGES / EVERY:,.0f} changes/s in {kind} for {seconds:.0f} s")
        with _made(_PLACES[kind]) as (place, folder):
            place.run([_TABLE, *_inserts(ROWS)])
            found = delays(spark, Followed(place.address, place.table, topic), folder, seconds)
            for name, share in (("p50", 0.5), ("p99", 0.99)):
                yield Result(f"follow_{kind}_{name}", found[int(share * (len(found) - 1))] * 1000, "ms")


def _timed(run: Run, statements: list[str]) -> float:
    began = time.monotonic()
    run(statements)
    return time.monotonic() - began


def _inserts(rows: int) -> list[str]:
    return [
        "INSERT INTO orders VALUES "
        + ", ".join(
            f"({one}, {one % 997}, 'placed', {one % 500}.25, 'order number {one} of many', '2026-01-01 12:00:00', 0)"
            for one in range(first, first + _AT_ONCE)
        )
        for first in range(0, rows, _AT_ONCE)
    ]


def _updates(rows: int) -> list[str]:
    return [
        f"UPDATE orders SET n = n + 1, status = 'sent' WHERE id >= {first} AND id < {first + _AT_ONCE}"
        for first in range(0, rows, _AT_ONCE)
    ]


@contextmanager
def _made(made: Callable[[ExitStack, Path], _Place]) -> Iterator[tuple[_Place, Path]]:
    """A database, and a folder beside it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millstream-bench-")))
        yield made(stack, folder), folder


def _postgres(stack: ExitStack, _: Path) -> _Place:
    server = stack.enter_context(PostgresServer(settings=_LOGICAL))
    options = f"host=127.0.0.1 port={server.port} user=millstream dbname=postgres"

    def run(statements: list[str]) -> None:
        with psycopg.connect(options, autocommit=True) as db:
            for each in statements:
                db.execute(each.encode())

    return _Place(f"postgresql://millstream@127.0.0.1:{server.port}/postgres", run, "orders")


def _mariadb(stack: ExitStack, _: Path) -> _Place:
    server = stack.enter_context(MariaDbServer())

    def run(statements: list[str]) -> None:
        db = pymysql.connect(host="127.0.0.1", port=server.port, user="millstream", database="shop", autocommit=True)
        try:
            with db.cursor() as cursor:
                for each in statements:
                    cursor.execute(each)
        finally:
            db.close()

    return _Place(server.address, run, "orders")


def _sqlite(_: ExitStack, folder: Path) -> _Place:
    path = folder / "shop.db"

    def run(
        statements: list[str],
    ) -> None:  # in a process of its own: two SQLite libraries in one lose each other's locks
        subprocess.run(
            [sys.executable, "-c", _IN_SQLITE, str(path)], input="\n".join(statements), text=True, check=True
        )

    return _Place(f"sqlite:{path}", run, "orders")


_PLACES: dict[str, Callable[[ExitStack, Path], _Place]] = {
    "postgres": _postgres,
    "mariadb": _mariadb,
    "sqlite": _sqlite,
}
