"""The embedded log under real faults: killed processes, a full disk, a failing fsync, damaged files, forks and threads."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

from millstream.errors import LogCorrupt, LogUnavailable, NewerFormat, NotALog
from millstream.event import Event, Record
from millstream.log.archive import Archive
from millstream.log.contract import TopicSettings
from millstream.log.embedded.engine import SqliteLog
from millstream.log.embedded.file import FORMAT, LOG_FILE
from tests.contracts.log import read_all
from tests.history import Line, Stored, check, load, value
from tests.mounted import missing, mounted
from tests.waiting import until

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "millstream" / "log"


def start(code: str, *arguments: object, failpoint: str = "", **options: Any) -> subprocess.Popen[bytes]:
    """A Python process that runs ``code`` with our tests on its path."""
    environ = {name: text for name, text in os.environ.items() if name != "MILLSTREAM_FAILPOINT"}
    if failpoint:
        environ["MILLSTREAM_FAILPOINT"] = failpoint
    command = [*options.pop("wrapper", []), sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, env=environ, **options)


def run(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """The same, until it ends."""
    child = start(code, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    out, err = child.communicate(timeout=120)
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


def sound(log: SqliteLog) -> bool:
    with log.store.read() as db:
        return bool(db.execute("PRAGMA integrity_check").get == "ok")


def stored(records: list[Record]) -> list[Stored]:
    return [Stored(r.partition, r.offset, (r.value or b"").decode()) for r in records]


def batch(producer: str, sequence: int, count: int = 10) -> list[Event]:
    return [Event(value(producer, sequence, i).encode(), b"%d" % i) for i in range(count)]


# kill -9

WRITER = """
import os, sys
from millstream.log.embedded.engine import SqliteLog
from tests.history import Line
from tests.log.test_faults import batch
path, history, producer = sys.argv[1:]
log = SqliteLog(path)
out = os.open(history, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
sequence = log.last_sequence("t", producer) or 0  # goes on with a repeat of the last one
while True:
    os.write(out, Line("invoke", producer, sequence, 10).dump().encode())
    ack = log.append("t", batch(producer, sequence), producer=producer, sequence=sequence)
    os.write(out, Line("ok", producer, sequence, 10, tuple(ack.partitions), tuple(ack.offsets)).dump().encode())
    sequence += 1
"""


def test_killed_writers_lose_tear_repeat_and_reorder_nothing(tmp_path: Path) -> None:
    path, chance = tmp_path / "log.db", random.Random(11)
    with SqliteLog(path) as log:
        log.create_topic("t", 2)
    histories: list[Path] = []

    def writer(producer: str) -> tuple[subprocess.Popen[bytes], Path]:
        histories.append(tmp_path / f"history-{len(histories)}")
        return start(WRITER, path, histories[-1], producer), histories[-1]

    def lines(history: Path) -> int:
        return history.read_bytes().count(b"\n") if history.exists() else 0

    running = {producer: writer(producer) for producer in ("a", "b", "c")}
    try:
        for kill in range(15):
            producer = "abc"[kill % 3]
            child, history = running[producer]
            enough = chance.randrange(3, 40)
            until(lambda: lines(history) >= enough, what=f"{enough} lines of writer {producer}")  # noqa: B023
            child.kill()
            assert child.wait(30) == -signal.SIGKILL
            if kill < 12:
                running[producer] = writer(producer)
    finally:
        for child, _ in running.values():
            child.kill()
            child.wait(30)
    told = [line for path in histories for line in load(path)]
    with SqliteLog(path, create=False) as log:
        assert check(told, stored(read_all(log, "t"))) == []
        assert sound(log)
        acknowledged = [(line.producer, line.sequence) for line in told if line.type == "ok"]
        assert len(set(acknowledged)) >= 50
        assert len(acknowledged) > len(set(acknowledged))  # a repeat after a restart was acknowledged again
        for producer in "abc":
            last = max(sequence for name, sequence in acknowledged if name == producer)
            assert log.last_sequence("t", producer) in (last, last + 1)
            ack = log.append("t", batch(producer, last), producer=producer, sequence=last)
            assert ack.duplicate
        assert check(told, stored(read_all(log, "t"))) == []


# failpoints

CREATING = "log.create.before_replace"
APPENDING = {"log.append.in_transaction": "old", "log.before_commit": "old", "log.after_commit": "new"}
COMPACTING = ["log.compact.in_transaction", "log.compact.after_step", "log.before_commit", "log.after_commit"]
EXPIRING = ["log.expire.in_transaction", "log.before_commit", "log.after_commit"]
ARCHIVING = {
    ("archive.before_rename", 1),
    ("archive.before_rename", 3),
    ("archive.after_take", 1),
    ("log.expire.in_transaction", 1),
}

REWRITING = "archive.before_rewrite"

APPEND_ONCE = """
import sys
from millstream.log.embedded.engine import SqliteLog
from tests.log.test_faults import batch
SqliteLog(sys.argv[1]).append("t", batch("p", 3), producer="p", sequence=3)
"""
MAINTAIN = """
import sys
from millstream.log import archive
from millstream.log.embedded import retention
from millstream.log.embedded.engine import SqliteLog
retention._STEP = 40  # or it would take 20,000 records to see a second step
archive._FILE_RECORDS = 30
SqliteLog(sys.argv[1]).maintain("t")
"""
REWRITE = """
import pathlib, sys
import pyarrow as pa
from millstream.log.archive import Archive

def without_values(batch):
    at = batch.schema.get_field_index("value")
    return batch.set_column(at, batch.schema.field(at), pa.nulls(len(batch), pa.binary()))

Archive(pathlib.Path(sys.argv[1]).parent / "cold", "t").rewrite(0, without_values)
"""


def test_every_failpoint_of_the_log_is_killed_at_somewhere_here() -> None:
    found = {name for file in SOURCES.rglob("*.py") for name in re.findall(r'failpoint\("([^"]+)"\)', file.read_text())}
    shared = (SOURCES.parent / "database.py").read_text()  # the file under the log, and under views
    found |= {f"log.{name}" for name in re.findall(r'failpoint\(f"\{self.form.name\}\.([^"]+)"\)', shared)}
    assert found == {CREATING, REWRITING, *APPENDING, *COMPACTING, *EXPIRING, *(name for name, _ in ARCHIVING)}


@pytest.mark.parametrize(("point", "expected"), APPENDING.items())
def test_a_kill_during_an_append_leaves_all_of_the_batch_or_none(tmp_path: Path, point: str, expected: str) -> None:
    path = tmp_path / "log.db"
    with SqliteLog(path) as log:
        log.create_topic("t", 2)
        for sequence in range(3):
            log.append("t", batch("p", sequence), producer="p", sequence=sequence)
        before = read_all(log, "t")
        assert run(APPEND_ONCE, path, failpoint=f"{point}:kill").returncode == -signal.SIGKILL
        after = read_all(log, "t")
        assert sorted(r.value or b"" for r in after if r not in before) == (
            [] if expected == "old" else sorted(e.value or b"" for e in batch("p", 3))
        )
        ack = log.append("t", batch("p", 3), producer="p", sequence=3)
        assert ack.duplicate == (expected == "new")
        history = [Line("invoke", "p", sequence, 10) for sequence in range(3)]
        history.append(Line("ok", "p", 3, 10, tuple(ack.partitions), tuple(ack.offsets)))
        assert check(history, stored(read_all(log, "t"))) == []
        assert sound(log)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("point", COMPACTING)
def test_a_kill_during_compaction_keeps_the_latest_of_every_key(tmp_path: Path, point: str, count: int) -> None:
    path = tmp_path / "log.db"
    with SqliteLog(path) as log:
        log.create_topic("t", 1, TopicSettings(cleanup="compact", tombstone_retention=timedelta(0)))
        for turn in range(12):
            log.append("t", [Event(b"%d.%d" % (turn, k), b"%d" % k) for k in range(10)])
        log.append("t", [Event(None, b"%d" % k) for k in range(5)])  # these must not go before what they delete
        before = read_all(log, "t")

    def latest(records: list[Record]) -> dict[bytes | None, bytes | None]:
        return {key: text for key, text in {r.key: r.value for r in records}.items() if text is not None}

    assert run(MAINTAIN, path, failpoint=f"{point}:kill@{count}").returncode == -signal.SIGKILL
    with SqliteLog(path, create=False) as log:
        after = read_all(log, "t")
        assert set(after) <= set(before)
        removed = len(before) - len(after)
        assert removed in (40 * (count - 1), 40 * count)  # whole steps
        for offset in range(125):
            assert latest([r for r in after if r.offset >= offset]) == latest([r for r in before if r.offset >= offset])
        assert log.maintain("t").compacted == 120 - removed
        assert read_all(log, "t") == before[115:120]
        assert log.maintain("t") == (0, 0)
        assert size_is_right(log)
        assert sound(log)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("point", EXPIRING)
def test_a_kill_during_expiry_leaves_whole_steps(tmp_path: Path, point: str, count: int) -> None:
    path = tmp_path / "log.db"
    with SqliteLog(path) as log:
        log.create_topic("t")
        log.append("t", [Event(b"%04d" % i) for i in range(120)])
        log.alter_topic("t", settings=TopicSettings(retention_bytes=80))
        before = read_all(log, "t")
    assert run(MAINTAIN, path, failpoint=f"{point}:kill@{count}").returncode == -signal.SIGKILL
    with SqliteLog(path, create=False) as log:
        after = read_all(log, "t")
        assert after == before[log.bounds("t")[0].start :]
        assert len(before) - len(after) in (40 * (count - 1), 40 * count)
        log.maintain("t")
        assert read_all(log, "t") == before[100:]
        assert size_is_right(log)
        assert sound(log)


@pytest.mark.parametrize("count", [1, 2])
def test_a_kill_while_archived_records_are_rewritten_leaves_each_file_old_or_new(tmp_path: Path, count: int) -> None:
    archive, path = Archive(tmp_path / "cold", "t"), tmp_path / "log.db"
    with SqliteLog(path) as log:
        log.create_topic("t", 1)
        for first in (0, 50):
            log.append("t", [Event(b"%04d" % i) for i in range(first, first + 50)])
            archive.take(log)
    pieces = archive.pieces(0)

    def values() -> list[bytes | None]:
        return [value for rows in archive.read(0, 0, 100) for value in rows.column("value").to_pylist()]

    before = values()
    assert run(REWRITE, path, failpoint=f"{REWRITING}:kill@{count}").returncode == -signal.SIGKILL
    assert archive.pieces(0) == pieces
    assert values() == [None] * 50 * (count - 1) + before[50 * (count - 1) :]
    assert run(REWRITE, path).returncode == 0
    assert archive.pieces(0) == pieces
    assert values() == [None] * 100
    assert not list(tmp_path.rglob(".fresh"))


@pytest.mark.parametrize(("point", "count"), sorted(ARCHIVING))
def test_a_kill_during_archiving_loses_nothing_between_archive_and_log(tmp_path: Path, point: str, count: int) -> None:
    path = tmp_path / "log.db"
    with SqliteLog(path) as log:
        log.create_topic("t", 2)
        log.append("t", [Event(b"%04d" % i, b"%d" % i) for i in range(300)])
        log.alter_topic("t", settings=TopicSettings(retention_bytes=70, archive="cold"))
        before = {(r.partition, r.offset): r.value for r in read_all(log, "t")}
    assert run(MAINTAIN, path, failpoint=f"{point}:kill@{count}").returncode == -signal.SIGKILL
    archive = Archive(tmp_path / "cold", "t")

    def archived() -> dict[tuple[int, int], bytes]:
        found: dict[tuple[int, int], bytes] = {}
        for partition in (0, 1):
            pieces = archive.pieces(partition)
            assert [piece.next for piece in pieces[:-1]] == [piece.first for piece in pieces[1:]]
            for rows in archive.read(partition, 0, 1000):
                for row in rows.to_pylist():
                    assert (partition, row["offset"]) not in found
                    found[partition, row["offset"]] = row["value"]
        return found

    with SqliteLog(path, create=False) as log:
        live = {(r.partition, r.offset): r.value for r in read_all(log, "t")}
        assert archived() | live == before
        for partition, bounds in log.bounds("t").items():
            span = archive.span(partition)
            assert (span[1] if span else 0) >= bounds.start
        log.maintain("t")
        live = {(r.partition, r.offset): r.value for r in read_all(log, "t")}
        assert archived() | live == before
        assert not archived().keys() & live.keys()
        assert len(live) < 40
        assert size_is_right(log)
        assert sound(log)
    assert not list(archive.folder.glob("*/.fresh"))


def size_is_right(log: SqliteLog) -> bool:
    """The size that retention goes by is the size of what is there."""
    with log.store.read() as db:
        counted = dict(db.execute("SELECT partition, bytes FROM partition"))
    real = dict.fromkeys(counted, 0)
    for record in read_all(log, "t"):
        real[record.partition] += len(record.key or b"") + len(record.value or b"")
    return counted == real


# the disk

FILL = """
import json, sys
from pathlib import Path
from millstream.errors import LogFull
from millstream.event import Event
from millstream.log.embedded.engine import SqliteLog
from tests.contracts.log import read_all
folder = Path(sys.argv[1])
(folder / "ballast").write_bytes(b"x" * 1_600_000)
log = SqliteLog(folder / "log.db")
log.create_topic("t", 2)
batch = lambda n: [Event(b"%d.%d." % (n, i) + b"x" * 1000, b"%d" % i) for i in range(10)]
acknowledged = []
try:
    for n in range(10_000):
        log.append("t", batch(n), producer="p", sequence=n)
        acknowledged.append(n)
except LogFull as error:
    message = str(error)

def kept(log):
    found = {}
    for record in read_all(log, "t"):
        n, i = record.value.split(b".")[:2]
        found.setdefault(int(n), set()).add(int(i))
    return {n: len(parts) for n, parts in found.items()}

same_handle = kept(log)
still_full = False
try:
    log.append("t", batch(n), producer="p", sequence=n)
except LogFull:
    still_full = True
(folder / "ballast").unlink()
duplicate = log.append("t", batch(n), producer="p", sequence=n).duplicate
for more in range(n + 1, n + 6):
    log.append("t", batch(more), producer="p", sequence=more)
log.close()
with SqliteLog(folder / "log.db") as log:
    new_handle = kept(log)
    with log.store.read() as db:
        sound = db.execute("PRAGMA integrity_check").get
print(json.dumps(dict(acknowledged=acknowledged, failed=n, message=message, same_handle=same_handle,
    still_full=still_full, duplicate=duplicate, new_handle=new_handle, sound=sound)))
"""


def test_a_full_disk_refuses_the_batch_keeps_the_rest_and_works_again_when_freed(tmp_path: Path) -> None:
    done = run(FILL, tmp_path, wrapper=mounted(tmp_path, "size=8m"))
    assert done.returncode == 0, done.stderr.decode()
    seen = json.loads(done.stdout)
    whole = {str(n): 10 for n in seen["acknowledged"]}
    assert len(whole) >= 10
    assert seen["same_handle"] == whole  # everything acknowledged, nothing of what was refused
    assert "no room on the disk" in seen["message"]
    assert seen["still_full"]
    assert not seen["duplicate"]
    assert seen["new_handle"] == whole | {str(seen["failed"] + i): 10 for i in range(6)}
    assert seen["sound"] == "ok"


SYNC_FAILS = """
import os, sys
from millstream.errors import LogUnavailable
from millstream.log.embedded.engine import SqliteLog
from tests.history import Line
from tests.log.test_faults import batch
path, history = sys.argv[1:]
out = os.open(history, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def say(*line): os.write(out, Line(*line).dump().encode())
log, sequence, failures = SqliteLog(path), 0, 0
while sequence < 12:
    say("invoke", "p", sequence, 10)
    try:
        ack = log.append("t", batch("p", sequence), producer="p", sequence=sequence)
    except LogUnavailable as error:
        say("info", "p", sequence, 10)
        failures += 1
        assert "whether the last batch was kept is unknown" in str(error), error
        try:
            log.append("t", batch("q", 0), producer="q", sequence=0)
        except LogUnavailable as error:
            assert "the log is closed after" in str(error), error
        else:
            raise AssertionError("the handle went on after a failed fsync")
        log = SqliteLog(path)
    else:
        say("ok", "p", sequence, 10, ack.partitions, ack.offsets)
        sequence += 1
print(failures)
"""


@pytest.mark.parametrize("when", [1, 3, 6])
def test_after_a_failed_fsync_nothing_is_acknowledged_until_the_log_is_opened_again(tmp_path: Path, when: int) -> None:
    if not shutil.which("strace"):
        missing("no strace")
    path, history = tmp_path / "log.db", tmp_path / "history"
    with SqliteLog(path) as log:
        log.create_topic("t", 2)
    inject = f"inject=fsync,fdatasync:error=EIO:when={when}"
    wrapper = [
        "strace",
        "-f",
        "-qq",
        "--seccomp-bpf",
        "-yy",
        "-e",
        "trace=fsync,fdatasync",
        "-e",
        inject,
        "-o",
        str(tmp_path / "trace"),
    ]
    done = run(SYNC_FAILS, path, history, wrapper=wrapper)
    assert done.returncode == 0, done.stderr.decode()
    assert int(done.stdout) >= 1  # the fault did strike an append
    assert "EIO" in (tmp_path / "trace").read_text()
    with SqliteLog(path, create=False) as log:
        assert check(load(history), stored(read_all(log, "t"))) == []
        assert log.last_sequence("t", "p") == 11
        assert sound(log)


# damaged files


def test_a_flipped_bit_in_a_record_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with SqliteLog(path) as log:
        for topic in ("hurt", "fine"):
            log.create_topic(topic)
            log.append(topic, [Event(f"{topic}-{i:04d}-".encode() + b"x" * 2000) for i in range(100)])
    whole = path.read_bytes()
    place = whole.index(b"hurt-0050-") + 1000
    damaged = whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :]
    path.write_bytes(damaged)
    with SqliteLog(path) as log:
        with pytest.raises(LogCorrupt, match=r"topic hurt partition 0, reading from offset 0.*nothing was changed"):
            read_all(log, "hurt")
        with pytest.raises(LogCorrupt, match="topic hurt partition 0, reading from offset 50"):
            log.read("hurt", 0, 50, 1)
        assert len(log.read("hurt", 0, 0, 40)) == 40  # what lies before is still there to be saved
        assert len(read_all(log, "fine")) == 100
        log.append("fine", [Event(b"more")])
        with pytest.raises(LogCorrupt, match="topic hurt partition 0"):
            log.read("hurt", 0, 50, 1)
    assert path.read_bytes()[place - 500 : place + 500] == damaged[place - 500 : place + 500]


def test_reading_a_damaged_file_does_not_write_to_it(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with SqliteLog(path) as log:
        log.create_topic("t")
        log.append("t", [Event(b"%04d" % i + b"x" * 2000) for i in range(100)])
    data = bytearray(path.read_bytes())
    data[data.index(b"0050xx") + 100] ^= 1
    path.write_bytes(data)
    with SqliteLog(path) as log, pytest.raises(LogCorrupt):
        read_all(log, "t")
    assert path.read_bytes() == data


def test_a_torn_tail_of_the_wal_costs_only_whole_transactions_at_its_end(tmp_path: Path) -> None:
    path, history = tmp_path / "log.db", tmp_path / "history"
    with SqliteLog(path) as log:
        log.create_topic("t", 2)
        for sequence in range(5):
            log.append("t", batch("first", sequence), producer="first", sequence=sequence)
    child = start(WRITER, path, history, "late")
    until(lambda: history.exists() and history.read_bytes().count(b"\n") > 30)
    child.kill()
    child.wait(30)
    wal = Path(f"{path}-wal").read_bytes()
    checkpointed = path.read_bytes()
    chance = random.Random(5)
    frame = 24 + LOG_FILE.page
    cuts = [len(wal), len(wal) - 1, len(wal) - frame, *(len(wal) - chance.randrange(1, 12 * frame) for _ in range(6))]
    kept = []
    for number, cut in enumerate(cuts):
        for flip in (False, True):
            copy = tmp_path / f"copy-{number}-{flip}.db"
            copy.write_bytes(checkpointed)
            damaged = bytearray(wal if flip else wal[:cut])
            if flip:
                damaged[cut - 1 :] = bytes(byte ^ 0x55 for byte in damaged[cut - 1 :])
            Path(f"{copy}-wal").write_bytes(damaged)
            with SqliteLog(copy, create=False) as log:
                records = stored(read_all(log, "t"))
                counts: dict[str, int] = {}
                for record in records:
                    counts[record.value.rpartition(":")[0]] = counts.get(record.value.rpartition(":")[0], 0) + 1
                assert set(counts.values()) == {10}
                late = sorted(int(name.partition(":")[2]) for name in counts if name.startswith("late"))
                assert late == list(range(len(late)))  # a prefix: only the end is gone
                assert sum(name.startswith("first") for name in counts) == 5
                assert [p for p in check([], records) if p.kind in ("duplicated", "reordered", "hole")] == []
                assert sound(log)
                log.append("t", batch("after", 0), producer="after", sequence=0)
                kept.append(len(late))
    whole = sum(line.type == "ok" for line in load(history))
    assert whole <= kept[0] <= whole + 1  # undamaged: everything acknowledged
    assert min(kept) < whole  # the damage did reach acknowledged bytes


# opening


def snapshot(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}


@pytest.mark.parametrize("content", [b"dear diary\n" * 500, b"S", b"SQLite format 4\0" + b"\0" * 5000])
def test_a_file_that_is_not_sqlite_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "diary.txt"
    path.write_bytes(content)
    before = snapshot(tmp_path)
    with pytest.raises(NotALog, match=r"diary\.txt is not a Millstream log"):
        SqliteLog(path)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_foreign_database_is_refused_and_left_alone(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "foreign.db"
    # A process that ends without closing leaves its WAL behind: the least touch would fold it in.
    code = (
        "import os, sys, sqlite3; db = sqlite3.connect(sys.argv[1]); db.execute(f'PRAGMA journal_mode={sys.argv[2]}')\n"
        "db.execute('CREATE TABLE theirs (x)'); db.execute('INSERT INTO theirs VALUES (1)'); db.commit()\n"
        "os._exit(0)"
    )
    assert run(code, path, mode).returncode == 0
    before = snapshot(tmp_path)
    assert len(before) == (2 if mode == "wal" else 1)
    with pytest.raises(NotALog, match="database of something else"):
        SqliteLog(path)
    assert snapshot(tmp_path) == before


def test_a_log_of_a_later_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    SqliteLog(path).close()
    db = apsw.Connection(str(path))
    db.execute(f"PRAGMA user_version={FORMAT + 1}")
    db.close()
    before = snapshot(tmp_path)
    with pytest.raises(NewerFormat, match=f"format {FORMAT + 1}, this version reads up to {FORMAT}"):
        SqliteLog(path)
    assert snapshot(tmp_path) == before


def test_a_directory_a_missing_folder_and_a_missing_log_are_unavailable(tmp_path: Path) -> None:
    with pytest.raises(LogUnavailable, match=r"cannot open|cannot make"):
        SqliteLog(tmp_path)
    with pytest.raises(LogUnavailable, match="No such file or directory"):
        SqliteLog(tmp_path / "none" / "log.db")
    with pytest.raises(LogUnavailable, match="no log at"):
        SqliteLog(tmp_path / "log.db", create=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_unavailable(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(LogUnavailable, match="Permission denied"):
        SqliteLog(tmp_path / "log.db")


def test_an_empty_file_becomes_a_log(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.touch()
    with SqliteLog(path) as log:
        log.create_topic("t")
        log.append("t", [Event(b"x")])
    with SqliteLog(path, create=False) as log:
        assert len(read_all(log, "t")) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["log.db"]


CREATE = """
import sys
from millstream.event import Event
from millstream.log.embedded.engine import SqliteLog
for line in sys.stdin:
    log = SqliteLog(line.strip())
    log.ensure_topic("t")
    log.append("t", [Event(b"x")])
    print("done", flush=True)
"""


@pytest.fixture
def creators() -> Iterator[list[subprocess.Popen[bytes]]]:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    children = [start(CREATE, **pipes) for _ in range(2)]
    yield children
    for child in children:
        child.communicate(timeout=30)
        assert child.returncode == 0


@pytest.mark.parametrize("empty", [False, True])
def test_two_processes_may_make_the_same_log_at_once(
    tmp_path: Path, creators: list[subprocess.Popen[bytes]], empty: bool
) -> None:
    for number in range(40):
        path = tmp_path / f"{number}.db"
        if empty:
            path.touch()
        for child in creators:
            assert child.stdin is not None
            child.stdin.write(f"{path}\n".encode())
            child.stdin.flush()
        for child in creators:
            assert child.stdout is not None
            assert child.stdout.readline() == b"done\n"
        with SqliteLog(path, create=False) as log:
            assert len(read_all(log, "t")) == 2
    assert not list(tmp_path.glob(".*"))


CREATE_ONCE = """
import sys
from millstream.event import Event
from millstream.log.embedded.engine import SqliteLog
log = SqliteLog(sys.argv[1])
log.ensure_topic("t")
log.append("t", [Event(b"x")])
"""


def test_of_two_that_find_an_empty_file_the_slow_one_does_not_replace_the_log_of_the_fast(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.touch()
    with start(CREATE_ONCE, path, failpoint=f"{CREATING}:stop") as slow:
        assert os.WIFSTOPPED(os.waitpid(slow.pid, os.WUNTRACED)[1])
        with start(CREATE_ONCE, path) as fast:

            def waits() -> bool:
                locks = Path("/proc/locks").read_text().splitlines()
                return any("->" in line and f" {fast.pid} " in line for line in locks)

            until(lambda: fast.poll() is not None or waits())
            os.kill(slow.pid, signal.SIGCONT)
            assert (slow.wait(30), fast.wait(30)) == (0, 0)
    with SqliteLog(path, create=False) as log:
        assert len(read_all(log, "t")) == 2


def test_a_kill_while_a_log_is_made_leaves_a_file_that_can_still_become_one(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.touch()
    assert run(CREATE_ONCE, path, failpoint=f"{CREATING}:kill").returncode == -signal.SIGKILL
    assert path.stat().st_size == 0
    assert run(CREATE_ONCE, path).returncode == 0
    with SqliteLog(path, create=False) as log:
        assert len(read_all(log, "t")) == 1


# forks and threads

FORK = """
import os, sys
from millstream.event import Event
from millstream.log.embedded.engine import SqliteLog
log = SqliteLog(sys.argv[1])
log.create_topic("t")
log.append("t", [Event(b"before")])
to_parent, to_child = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    log.append("t", [Event(b"child 1")])
    os.write(to_parent[1], b"x")
    os.read(to_child[0], 1)
    log.append("t", [Event(b"child 2")])  # the parent has closed: nobody may have taken the file from under us
    os._exit(0)
os.read(to_parent[0], 1)
log.append("t", [Event(b"parent")])
log.close()
os.write(to_child[1], b"x")
sys.exit(os.waitpid(child, 0)[1])
"""

FORK_AMONG_THREADS = """
import os, sys, threading
from millstream.event import Event
from millstream.log.embedded.engine import SqliteLog
from tests.log.test_faults import batch
log = SqliteLog(sys.argv[1])
log.create_topic("t", 2)
def write(name):
    for n in range(30):
        log.append("t", batch(name, n), producer=name, sequence=n)
        log.read("t", 0, 0, 10)
threads = [threading.Thread(target=write, args=(f"thread{i}",)) for i in range(3)]
for thread in threads: thread.start()
children = []
for i in range(4):
    child = os.fork()
    if child == 0:
        write(f"child{i}")
        log.close()
        os._exit(0)
    children.append(child)
for thread in threads: thread.join()
log.close()
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


def test_a_log_opened_before_a_fork_serves_both_sides_whoever_closes_first(tmp_path: Path) -> None:
    done = run(FORK, tmp_path / "log.db")
    assert done.returncode == 0, done.stderr.decode()
    with SqliteLog(tmp_path / "log.db") as log:
        assert [r.value for r in read_all(log, "t")] == [b"before", b"child 1", b"parent", b"child 2"]
        assert sound(log)


def test_a_fork_among_threads_that_write_loses_nothing(tmp_path: Path) -> None:
    done = run(FORK_AMONG_THREADS, tmp_path / "log.db")
    assert done.returncode == 0, done.stderr.decode()
    names = [f"thread{i}" for i in range(3)] + [f"child{i}" for i in range(4)]
    history = [Line("invoke", name, n, 10) for name in names for n in range(30)]
    with SqliteLog(tmp_path / "log.db") as log:
        records = stored(read_all(log, "t"))
        assert len(records) == 7 * 30 * 10
        assert check(history, records) == []
        assert sound(log)


def test_many_threads_append_and_read_through_one_log(tmp_path: Path) -> None:
    history: list[Line] = []
    problems: list[BaseException] = []
    writing = threading.Event()
    writing.set()
    with SqliteLog(tmp_path / "log.db") as log:
        log.create_topic("t", 3)

        def write(name: str) -> None:
            for n in range(15):
                ack = log.append("t", batch(name, n), producer=name, sequence=n)
                history.append(Line("ok", name, n, 10, tuple(ack.partitions), tuple(ack.offsets)))

        def read() -> None:
            with log.reader("t") as reader:
                seen = dict.fromkeys(range(3), 0)
                while writing.is_set() or reader.positions != {p: b.end for p, b in log.bounds("t").items()}:
                    for record in reader.poll(100, 0.05):
                        assert record.offset == seen[record.partition]
                        seen[record.partition] += 1
                assert sum(seen.values()) == 8 * 15 * 10

        def guarded(work: Any, *arguments: Any) -> None:
            try:
                work(*arguments)
            except BaseException as error:
                problems.append(error)

        writers = [threading.Thread(target=guarded, args=(write, f"w{i}")) for i in range(8)]
        readers = [threading.Thread(target=guarded, args=(read,)) for _ in range(3)]
        for thread in writers + readers:
            thread.start()
        for thread in writers:
            thread.join(60)
        writing.clear()
        for thread in readers:
            thread.join(60)
        assert problems == []
        assert check(history, stored(read_all(log, "t"))) == []
        assert sound(log)
