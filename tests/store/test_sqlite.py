"""The SQLite file keeps the contract, and what only it promises."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
import pytest

from millstream.errors import CheckpointMismatch, ConfigError, ViewError, ViewStoreUnavailable
from millstream.failpoint import armed
from millstream.store import judge_at, open_reader, open_writer
from millstream.store.contract import Batch, StoreReader, StoreWriter, Target, Told
from millstream.store.rejects import Judge
from millstream.store.sqlite.file import FORMAT
from millstream.store.sqlite.reader import SqliteReader
from millstream.store.sqlite.writer import SqliteEngine, sqlite_writer
from tests.contracts.store import (
    BAG,
    BEAT,
    NOON,
    PAIRS,
    PIPELINE,
    TOTALS,
    Batches,
    StoreContract,
    changes,
    counts,
    flood_of_beats,
    flood_of_letters,
    rejects,
    rows,
)
from tests.contracts.versions import VersionContract
from tests.store.stopped import is_stopped, ticks


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "views.db"


@pytest.fixture
def writer(path: Path) -> Iterator[StoreWriter]:
    with sqlite_writer(path) as opened:
        yield opened


@pytest.fixture
def again(path: Path) -> Callable[[], StoreWriter]:
    return lambda: sqlite_writer(path)


@pytest.fixture
def again_store(path: Path) -> Callable[[], StoreReader]:
    return lambda: SqliteReader(path)


@pytest.fixture
def store(writer: StoreWriter, path: Path) -> Iterator[StoreReader]:
    with SqliteReader(path) as opened:
        yield opened


@pytest.fixture
def judge(path: Path) -> Judge | None:
    return judge_at(f"sqlite:{path}")


@pytest.fixture
def refusable() -> set[str]:
    """It has a place for everything."""
    return set()


class TestSqlite(StoreContract, VersionContract):
    """Every promise of the contract."""


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}


# addresses


def test_an_address_becomes_a_writer_and_a_reader(path: Path) -> None:
    with open_writer(f"sqlite:{path}") as writer:
        assert writer.claim("p") == 1
    with open_reader(f"sqlite:{path}") as store:
        assert store.views() == []


@pytest.mark.parametrize("address", ["postgres://x", "views.db", "sqlite:", "", "kafka:views"])
def test_any_other_address_is_an_error_that_says_what_there_is(address: str) -> None:
    for way in (open_writer, open_reader):
        with pytest.raises(ConfigError, match="expected sqlite:PATH"):
            way(address)


def test_a_missing_file_is_not_made_by_reading(path: Path) -> None:
    with pytest.raises(ViewStoreUnavailable, match="no views at") as caught:
        open_reader(f"sqlite:{path}")
    assert "millstream run FILE" in caught.value.hint
    assert not path.exists()
    open_reader(f"sqlite:{path}", create=True).close()
    assert path.exists()


# files that are not ours


@pytest.mark.parametrize("content", [b"dear diary\n" * 500, b"S", b"SQLite format 4\0" + b"\0" * 5000])
def test_a_file_that_is_not_sqlite_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for way in (sqlite_writer, SqliteReader):
        with pytest.raises(ViewError, match="not a file of views"):
            way(path)
    assert files(path.parent) == {"views.db": content}


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_foreign_database_is_refused_and_left_alone(path: Path, mode: str) -> None:
    code = (
        "import os, sys, sqlite3; db = sqlite3.connect(sys.argv[1]); db.execute(f'PRAGMA journal_mode={sys.argv[2]}')\n"
        "db.execute('CREATE TABLE theirs (x)'); db.execute('INSERT INTO theirs VALUES (1)'); db.commit()\n"
        "os._exit(0)"  # without closing, so its WAL stays: the least touch would fold it in
    )
    subprocess.run([sys.executable, "-c", code, str(path), mode], check=True)
    before = files(path.parent)
    with pytest.raises(ViewError, match="database of something else"):
        sqlite_writer(path)
    assert files(path.parent) == before


def test_a_log_is_not_a_file_of_views(path: Path) -> None:
    from millstream.log.embedded.engine import SqliteLog

    SqliteLog(path).close()
    with pytest.raises(ViewError, match="database of something else"):
        SqliteReader(path)


def test_heartbeats_that_are_not_needed_go(path: Path) -> None:
    with sqlite_writer(path, keep=5) as writer:
        flood_of_beats(writer)


def test_a_file_of_an_earlier_version_is_brought_up_when_it_is_opened_to_write(path: Path) -> None:
    with sqlite_writer(path) as writer:
        Batches(writer).commit(BAG, ("home", 1.0, 1))
        writer.release()
    db = apsw.Connection(str(path))
    db.execute("ALTER TABLE millstream_admission DROP COLUMN erased").fetchall()
    db.execute("DROP TABLE millstream_heartbeats; PRAGMA user_version=1").fetchall()
    db.close()
    with SqliteReader(path) as store:
        assert rows(store, "bag") == [("home", 1.0)]
        assert "erased" in store.admission(PIPELINE).column_names
    with armed("views.before_commit"), pytest.raises(RuntimeError):
        sqlite_writer(path)
    with sqlite_writer(path) as writer:
        assert writer.heartbeats(PIPELINE) == []
        batches = Batches(writer)
        batches.next = 1
        batches.commit(BAG, ("home", 1.0, 1), beats=[BEAT])
        assert writer.heartbeats(PIPELINE) == [Told("c1", 1, BEAT)]


def test_a_file_of_a_later_version_is_refused_and_left_alone(path: Path) -> None:
    sqlite_writer(path).close()
    db = apsw.Connection(str(path))
    db.execute(f"PRAGMA user_version={FORMAT + 1}")
    db.close()
    before = files(path.parent)
    with pytest.raises(ViewError, match=f"format {FORMAT + 1}, this version reads up to {FORMAT}") as caught:
        sqlite_writer(path)
    assert "upgrade" in caught.value.hint
    assert files(path.parent) == before


def test_a_folder_and_a_missing_folder_are_unavailable(tmp_path: Path) -> None:
    with pytest.raises(ViewStoreUnavailable):
        sqlite_writer(tmp_path)
    with pytest.raises(ViewStoreUnavailable, match="No such file"):
        sqlite_writer(tmp_path / "none" / "views.db")


def test_a_table_of_someone_else_in_our_file_is_not_taken_for_a_view(writer: StoreWriter, path: Path) -> None:
    db = apsw.Connection(str(path), vfs="cksmvfs")
    db.execute("CREATE TABLE Bag (mine)")
    db.close()
    writer.claim("p")
    with pytest.raises(ViewError, match="already a table 'bag'"):
        writer.prepare("p", "f", [BAG])


# what people see

LOOK = """
import json, sqlite3, sys
db = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
print(json.dumps([list(row) for row in db.execute(sys.argv[2])]))
"""


def look(path: Path, sql: str) -> str:
    done = subprocess.run([sys.executable, "-c", LOOK, str(path), sql], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_any_tool_can_read_the_views_while_they_are_written(writer: StoreWriter, path: Path) -> None:
    batches = Batches(writer)
    batches.commit(TOTALS, ("ann", 1, 2.5, 1), ("bob", None, float("nan"), 1))
    batches.commit(PAIRS, (1, None, 3, 1))
    batches.commit(BAG, ("home", None, 2))
    assert look(path, "SELECT * FROM totals ORDER BY user") == '[["ann", 1, 2.5], ["bob", null, "NaN"]]'
    assert look(path, "SELECT a, n FROM pairs WHERE b IS NULL") == "[[1, 3]]"
    assert look(path, "SELECT page, score, _count FROM bag") == '[["home", null, 2]]'
    assert (
        look(path, "SELECT batch, fence, committed_at > '2026' FROM millstream_ledger")
        == "[[0, 1, 1], [1, 1, 1], [2, 1, 1]]"
    )
    assert look(path, "PRAGMA integrity_check") == '[["ok"]]'


def test_times_are_text_that_sqlite_understands_and_sorts(writer: StoreWriter, path: Path) -> None:
    target = Target("moments", pa.schema([("at", pa.timestamp("us", "Europe/Berlin")), ("day", pa.date32())]), ("at",))
    fence = writer.claim("p")
    writer.prepare("p", "f", [target])
    moments = [NOON, NOON.replace(microsecond=1), NOON.replace(second=1), NOON.replace(year=33)]
    writer.commit(Batch("c", 0, fence, changes={"moments": changes(target, *((m, m.date(), 1) for m in moments))}))
    assert look(path, "SELECT at, day FROM moments ORDER BY at") == (
        '[["0033-01-01 12:00:00", "0033-01-01"], ["2026-01-01 12:00:00", "2026-01-01"],'
        ' ["2026-01-01 12:00:00.000001", "2026-01-01"], ["2026-01-01 12:00:01", "2026-01-01"]]'
    )
    assert look(path, "SELECT DISTINCT strftime('%Y %j', at), date(day, '+1 day') FROM moments WHERE at > '2000'") == (
        '[["2026 001", "2026-01-02"]]'
    )


def test_nan_sorts_after_every_number(writer: StoreWriter, store: StoreReader) -> None:
    batches = Batches(writer)
    reals = [float("nan"), float("inf"), 1e300, -5.0, float("-inf"), None]
    batches.commit(TOTALS, *((str(i), i, real, 1) for i, real in enumerate(reals)))
    assert [row[0] for row in store.query("SELECT n FROM totals ORDER BY total").rows] == [5, 4, 3, 2, 1, 0]


def test_a_query_cannot_reach_another_file_or_lift_its_own_limits(
    writer: StoreWriter, store: StoreReader, tmp_path: Path
) -> None:
    Batches(writer)
    for sql in (
        f"ATTACH '{tmp_path / 'other.db'}' AS other",
        f"VACUUM INTO '{tmp_path / 'other.db'}'",
        "PRAGMA query_only=OFF",
        "PRAGMA writable_schema=ON",
        "SELECT load_extension('x')",
        "BEGIN IMMEDIATE",
        "WITH x AS (SELECT 1) DELETE FROM totals",
    ):
        with pytest.raises(ViewError):
            store.query(sql)
    assert not (tmp_path / "other.db").exists()
    assert store.query("PRAGMA table_info(totals)").rows[0][1] == "user"


def test_a_row_that_is_no_more_leaves_nothing_behind(writer: StoreWriter, store: StoreReader) -> None:
    batches = Batches(writer)
    batches.commit(BAG, ("home", 1.0, 2), ("shop", 1.0, 1))
    batches.commit(BAG, ("home", 1.0, -2))
    assert store.query("SELECT page, _count FROM bag").rows == [("shop", 1)]


# the ledger stays small


def test_dead_letters_are_bounded_and_their_counts_are_exact(path: Path) -> None:
    with sqlite_writer(path, letters=10) as writer, SqliteReader(path) as store:
        flood_of_letters(writer, store)


def test_the_ledger_keeps_the_newest_batches_and_totals_lose_nothing(path: Path) -> None:
    with sqlite_writer(path, keep=5) as writer, SqliteReader(path) as store:
        batches = Batches(writer)

        def more(number: int) -> None:
            for _ in range(number):
                mark = NOON.replace(minute=batches.next)
                seen = counts(("t", 0, 3, 2, 1, 0, 0, 0, 0, 0, 0, mark), ("t", 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, None))
                batches.commit(BAG, ("home", 1.0, 1), counts=seen)

        more(12)
        assert [entry.batch for entry in writer.entries("shop")] == [11, 10, 9, 8, 7]
        summed = "SELECT batch, checkpoint, partition, records, heartbeats, watermark FROM millstream_admission ORDER BY 1, 3"
        assert store.query(summed).rows[:2] == [(-1, "", 0, 21, 0, "2026-01-01 12:06:00"), (-1, "", 1, 7, 7, None)]
        assert len(store.query(summed).rows) == 2 + 5 * 2
        batches.checkpoint, batches.next = "c2", 0
        more(20)
        by_checkpoint = "SELECT checkpoint, min(batch), count(*) FROM millstream_ledger GROUP BY 1 ORDER BY 1"
        assert store.query(by_checkpoint).rows == [("c1", 11, 1), ("c2", 15, 5)]
        assert len(store.query(summed).rows) == 2 + 5 * 2
        totals = [
            (row["records"], row["admitted"], row["late"], row["heartbeats"]) for row in store.admission().to_pylist()
        ]
        assert totals == [(96, 64, 32, 0), (32, 32, 0, 32)]
        assert [row["watermark"] for row in store.admission().to_pylist()] == [NOON.replace(minute=19), None]
        for checkpoint, number in (("c1", 11), ("c2", 19)):
            assert not writer.commit(batches.batch((BAG, [("home", 1.0, 1)]), checkpoint=checkpoint, batch=number))
            with pytest.raises(CheckpointMismatch, match="comes again"):
                writer.commit(batches.batch((BAG, [("home", 1.0, 1)]), checkpoint=checkpoint, batch=0))
        assert len(rows(store, "bag")) == 32


def test_a_dead_letter_without_a_reason_is_refused_with_its_whole_batch(
    writer: StoreWriter, store: StoreReader
) -> None:
    batches = Batches(writer)
    letter = rejects(("t", 0, 1, None, None, None, None))
    with pytest.raises(ViewError, match=r"millstream_dead_letters\.reason; nothing was written"):
        writer.commit(batches.batch((BAG, [("home", 1.0, 1)]), rejects=letter))
    assert rows(store, "bag") == []


# null keys


def test_a_table_changes_its_kind_when_the_first_null_key_comes_and_keeps_its_rows(
    writer: StoreWriter, store: StoreReader
) -> None:
    batches = Batches(writer)
    kind = "SELECT wr FROM pragma_table_list WHERE name = 'pairs'"
    batches.commit(PAIRS, *((i, f"x{i}", i, 1) for i in range(1000)))
    assert store.query(kind).rows == [(1,)]
    batches.commit(PAIRS, (None, "x", 1, 1), (5, "x5", 50, 1), (6, "x6", 6, -1))
    assert store.query(kind).rows == [(0,)]
    assert len(rows(store, "pairs")) == 1000
    assert store.get("pairs", [5, "x5"]) == {"a": 5, "b": "x5", "n": 50}
    plan = store.query("EXPLAIN QUERY PLAN SELECT * FROM pairs WHERE a = 1 AND b = 'x'").rows
    assert "USING INDEX" in plan[0][3]
    batches.commit(PAIRS, (7, "x7", 70, 1))
    assert store.get("pairs", [7, "x7"]) == {"a": 7, "b": "x7", "n": 70}


def test_a_refused_batch_does_not_change_the_kind_of_a_table(writer: StoreWriter, store: StoreReader) -> None:
    batches = Batches(writer)
    batches.commit(PAIRS, (1, "x", 1, 1))
    with pytest.raises(Exception, match="count would be -1"):
        writer.commit(batches.batch((PAIRS, [(None, "x", 1, 1)]), (TOTALS, []), (BAG, [("home", 1.0, -1)])))
    assert store.query("SELECT wr FROM pragma_table_list WHERE name = 'pairs'").rows == [(1,)]
    assert store.query("SELECT null_keys FROM millstream_views WHERE view = 'pairs'").rows == [(0,)]


# connections


def test_a_writer_and_a_reader_serve_many_threads(writer: StoreWriter, store: StoreReader) -> None:
    batches = Batches(writer)
    problems: list[BaseException] = []

    def guarded(work: Callable[[], Any]) -> None:
        try:
            for _ in range(20):
                work()
        except BaseException as error:
            problems.append(error)

    def turn() -> None:
        batches.commit(BAG, ("home", 1.0, 1))

    threads = [
        threading.Thread(target=guarded, args=(work,)) for work in (turn, writer.renew, store.views, store.views)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    assert len(rows(store, "bag")) == 20


FORK = """
import os, sys
from millstream.store.sqlite.reader import SqliteReader
from millstream.store.rejects import Judge
from millstream.store.sqlite.writer import sqlite_writer
from tests.contracts.store import BAG, Batches, rows
from tests.contracts.versions import VersionContract
writer, store = sqlite_writer(sys.argv[1]), SqliteReader(sys.argv[1])
batches = Batches(writer)
batches.commit(BAG, ("before", 1.0, 1))
to_parent, to_child = os.pipe(), os.pipe()
child = os.fork()
if child == 0:  # no commit: Polars, which works out the changes, does not survive a fork
    writer.renew()
    os.write(to_parent[1], b"x")
    os.read(to_child[0], 1)
    writer.renew()  # the parent has closed: nobody may have taken the file from under us
    os._exit(0 if len(rows(store, "bag")) == 2 else 1)
os.read(to_parent[0], 1)
batches.commit(BAG, ("parent", 1.0, 1))
writer.close()
store.close()
os.write(to_child[1], b"x")
sys.exit(os.waitpid(child, 0)[1])
"""


def test_a_file_opened_before_a_fork_serves_both_sides(path: Path) -> None:
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", FORK, str(path)], cwd=root, check=True, timeout=60)


def test_a_closed_store_says_so(path: Path) -> None:
    writer = sqlite_writer(path)
    writer.close()
    with pytest.raises(ViewStoreUnavailable, match="closed"):
        writer.claim("p")


# rows without a key

TIMED = Target("timed", pa.schema([("what", pa.string()), ("at", pa.timestamp("us", "UTC"))]))


@pytest.mark.parametrize("made_earlier", [False, True])
def test_rows_without_a_key_lie_by_their_time_where_the_table_was_made_so(path: Path, made_earlier: bool) -> None:
    moments = [*(NOON + timedelta(seconds=(7 * number) % 100 - 50) for number in range(100)), None]
    with sqlite_writer(path) as writer, SqliteReader(path, create=True) as store:
        fence = writer.claim("p")
        writer.prepare("p", "f", [TIMED])
        if made_earlier:
            assert isinstance(writer.engine, SqliteEngine)
            with writer.engine.file.write() as db:
                db.execute("UPDATE millstream_views SET columns = replace(columns, ', \"first\": true', '')")
            writer.prepare("p", "f", [TIMED])
        writer.commit(Batch("c", 0, fence, changes={"timed": changes(TIMED, *((str(at), at, 1) for at in moments))}))
        there = [row[0] for row in store.query("SELECT at FROM timed").rows]
        in_order = [row[0] for row in store.query("SELECT at FROM timed ORDER BY at").rows]
        assert len(there) == 101
        assert (there == in_order) is not made_earlier
        writer.commit(Batch("c", 1, fence, changes={"timed": changes(TIMED, *((str(at), at, -1) for at in moments))}))
        assert rows(store, "timed") == []


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_query_without_an_end_can_be_stopped(writer: StoreWriter, path: Path, number: int) -> None:
    seen: list[int] = []

    def begun(pid: int) -> bool:
        seen.append(ticks(pid))
        return seen[-1] - seen[0] > 50

    assert is_stopped(f"sqlite:{path}", ENDLESS, number, begun)
