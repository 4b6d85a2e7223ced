"""The measurements of change capture, over little."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest
from pyspark.sql import SparkSession

from millstream.bench.capture import measure
from millstream.bench.capture_delay import EVERY, Followed, delays
from millstream.bench.capture_process import peak_memory
from millstream.bench.plain import apart

MIB = 1 << 20


def grown(size: int) -> tuple[float, float]:
    before = peak_memory()
    held = b"x" * size
    return before, peak_memory() if held else 0.0


def test_memory_is_the_most_that_the_process_itself_had() -> None:
    ours = b"x" * (400 * MIB)  # what starts a process is no part of it
    before, after = apart(grown, 100 * MIB)
    assert len(ours) / MIB > after > before + 90


def test_a_capture_says_its_rate_its_processor_and_its_memory() -> None:
    found = {each.name: each for each in measure(("sqlite_changes",), 0.001, lambda _: None)}
    assert list(found) == ["sqlite_changes", "sqlite_changes_cpu", "sqlite_changes_memory", "sqlite_writes"]
    assert all(each.value > 0 for each in found.values())
    assert 10 < found["sqlite_changes_memory"].value < 500


def test_every_transaction_is_followed_into_the_view(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    statements = ["CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, status TEXT, note TEXT, n INTEGER)"]
    statements += [f"INSERT INTO orders VALUES ({one}, 0, '', '', 0)" for one in range(1000)]
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA journal_mode = wal")
        for each in statements:
            db.execute(each)
    found = delays(spark, Followed(f"sqlite:{path}", "orders", "bench.orders"), tmp_path, 50 * EVERY)
    assert len(found) == 50
    assert 0 < found[0] <= found[-1] < 60  # what did not come has waited that long
    with closing(apsw.Connection(str(tmp_path / "views.db"))) as db:
        assert db.execute("SELECT max(n), count(*), count(DISTINCT n) FROM now").fetchall() == [(51, 1000, 52)]


@pytest.mark.peers
def test_debezium_captures_what_our_capture_has_captured() -> None:
    found = {each.name: each for each in measure(("postgres_changes", "debezium_changes"), 0.02, lambda _: None)}
    for name in ("", "_cpu", "_memory"):
        ours, theirs = found[f"postgres_changes{name}"], found[f"debezium_changes{name}"]
        assert (theirs.unit, theirs.against, theirs.baseline) == (ours.unit, "postgres_changes", ours.value)
        assert theirs.value > 0
    assert found["debezium_changes_start"].value > 0
