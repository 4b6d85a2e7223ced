"""Views under real faults: processes killed and stopped, a full disk, damaged files."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import ViewError
from millstream.store.contract import StoreReader, StoreWriter
from millstream.store.sqlite.reader import SqliteReader
from millstream.store.sqlite.writer import sqlite_writer
from millstream.store.versioned import Beside
from tests.contracts.store import BAG, NOON, PAIRS, PIPELINE, TOTALS, Batches, counts, rejects, rows
from tests.mounted import mounted
from tests.waiting import until

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "millstream" / "store"


def start(code: str, *arguments: object, failpoint: str = "", **options: Any) -> subprocess.Popen[bytes]:
    environ = {name: text for name, text in os.environ.items() if name != "MILLSTREAM_FAILPOINT"}
    if failpoint:
        environ["MILLSTREAM_FAILPOINT"] = failpoint
    command = [*options.pop("wrapper", []), sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def run(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    child = start(code, *arguments, **options)
    out, err = child.communicate(timeout=120)
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


def commit_batch(batches: Batches, number: int) -> bool:
    """Batch ``number``, a function of its number: it moves one unit between two views, and rejects one record."""
    parts = (
        (BAG, [("home", float(number), 1)]),
        (PAIRS, [(number % 5 if number % 7 else None, "x", number, 1)]),
        (TOTALS, [("ann", number, number / 2, 1), *([("ann", number - 1, (number - 1) / 2, -1)] if number else [])]),
    )
    seen = counts(("t", 0, 2, 1, 1, 0, 0, 0, 0, 0, 0, NOON))
    letter = rejects(("t", 0, 2 * number, NOON, NOON, "late", None))
    return batches.writer.commit(
        batches.batch(*parts, batch=number, offsets={"t": {0: 2 * number + 2}}, counts=seen, rejects=letter)
    )


def expect(store: StoreReader, batches: int) -> None:
    """Everything is as after exactly so many batches."""
    last = batches - 1
    assert rows(store, "bag") == [("home", float(n)) for n in range(batches)]
    assert rows(store, "totals") == ([("ann", last, last / 2)] if batches else [])
    pairs = {(n % 5 if n % 7 else None): n for n in range(batches)}
    assert {row[0]: row[2] for row in rows(store, "pairs")} == pairs
    assert len(rows(store, "pairs")) == len(pairs)
    assert sorted(store.dead_letters()["offset"].to_pylist()) == [2 * n for n in range(batches)]
    assert [row["records"] for row in store.admission().to_pylist()] == ([2 * batches] if batches else [])
    ledger = store.query("SELECT batch, offsets FROM millstream_ledger ORDER BY number").rows
    read = [(n, json.loads(offsets) if isinstance(offsets, str) else offsets) for n, offsets in ledger]
    assert read == [(n, {"t": {"0": 2 * n + 2}}) for n in range(batches)]
    if isinstance(store, SqliteReader):
        assert store.query("PRAGMA integrity_check").rows == [("ok",)]


# kill -9

RUN = """
import sys
from pathlib import Path
from tests.store.test_faults import go_on
go_on(Path(sys.argv[1]), int(sys.argv[2]))
"""


def go_on(path: Path, upto: int) -> None:
    """Go on in a file."""
    with sqlite_writer(path) as writer:
        go_on_in(writer, upto)


def go_on_in(writer: StoreWriter, upto: int) -> None:
    """Start where the ledger ends, or just before it: Spark runs its last batch again."""
    last = writer.last(PIPELINE)
    batches = Batches(writer)
    for number in range(last.batch if last else 0, upto):
        assert commit_batch(batches, number) == (last is None or number > last.batch)
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
    writer.release()


POINTS = {
    ("store.before_write", 3): 2,
    ("store.in_transaction", 7): 2,  # three views a batch: the first of the third batch
    ("store.in_transaction", 8): 2,
    ("store.in_transaction", 9): 2,
    ("store.in_transaction", 22): 7,  # batch 7 is the second to bring a null key
    ("store.in_transaction", 2): 0,  # … and batch 0 the first: the table is being rebuilt
    ("store.before_commit", 3): 2,
    ("store.after_commit", 3): 3,
}
CREATING = "views.create.before_replace"
SWAPPING = "store.in_swap"
SWAP = """
import sys
from millstream.store.sqlite.writer import sqlite_writer
with sqlite_writer(sys.argv[1]) as writer:
    writer.claim("shop")
    writer.swap("shop", "shop~next", "shop~old")
    writer.release()
"""


def test_every_failpoint_of_the_stores_is_killed_at_somewhere_here() -> None:
    found = {name for file in SOURCES.rglob("*.py") for name in re.findall(r'failpoint\("([^"]+)"\)', file.read_text())}
    assert found == {name for name, _ in POINTS} | {SWAPPING}


@pytest.mark.parametrize("time", [1, 2])
def test_a_kill_in_the_middle_of_a_swap_leaves_both_versions_where_they_were(tmp_path: Path, time: int) -> None:
    path = tmp_path / "views.db"
    go_on(path, 3)
    with Beside(sqlite_writer(path)) as beside:
        go_on_in(beside, 5)
    assert run(SWAP, path, failpoint=f"{SWAPPING}:kill@{time}").returncode == -signal.SIGKILL
    with SqliteReader(path) as store:
        assert rows(store, "totals") == [("ann", 2, 1.0)]
        assert rows(store, "totals~next") == [("ann", 4, 2.0)]
        assert run(SWAP, path).returncode == 0
        assert rows(store, "totals") == [("ann", 4, 2.0)]
        assert rows(store, "totals~old") == [("ann", 2, 1.0)]


@pytest.mark.parametrize(("point", "batches"), POINTS.items())
def test_a_kill_leaves_all_of_a_batch_or_none_and_a_restart_goes_on_at_once(
    tmp_path: Path, point: tuple[str, int], batches: int
) -> None:
    path = tmp_path / "views.db"
    assert run(RUN, path, 10, failpoint=f"{point[0]}:kill@{point[1]}").returncode == -signal.SIGKILL
    with SqliteReader(path) as store:
        expect(store, batches)
        go_on(path, 10)
        expect(store, 10)


def test_killed_again_and_again_the_views_are_as_if_nothing_had_happened(tmp_path: Path) -> None:
    path, chance = tmp_path / "views.db", random.Random(7)
    sqlite_writer(path).close()
    with SqliteReader(path) as store:
        done = 0
        for _ in range(5):
            child = start(RUN, path, 10_000)
            assert child.stdout is not None
            for _ in range(chance.randrange(5, 40)):
                done = max(done, int(child.stdout.readline()) + 1)
            child.kill()
            child.communicate(timeout=30)
            with sqlite_writer(path) as writer:
                last = writer.last(PIPELINE)
            assert last is not None
            assert last.batch + 1 >= done  # acknowledged means there
            expect(store, last.batch + 1)
    assert done > 20


def test_a_kill_while_a_file_is_made_leaves_one_that_can_still_become_views(tmp_path: Path) -> None:
    path = tmp_path / "views.db"
    path.touch()
    assert run(RUN, path, 1, failpoint=f"{CREATING}:kill").returncode == -signal.SIGKILL
    assert path.stat().st_size == 0
    go_on(path, 3)
    with SqliteReader(path) as store:
        expect(store, 3)


@pytest.mark.parametrize("point", ["store.before_write", "store.before_commit"])
def test_a_zombie_that_wakes_up_writes_nothing(tmp_path: Path, point: str) -> None:
    path = tmp_path / "views.db"
    with start(RUN, path, 10, failpoint=f"{point}:stop@4") as zombie:
        assert os.WIFSTOPPED(os.waitpid(zombie.pid, os.WUNTRACED)[1])
        with sqlite_writer(path) as writer, SqliteReader(path) as store:
            expect(store, 3)
            if point == "store.before_write":
                writer.claim(PIPELINE, takeover=True)
                os.kill(zombie.pid, signal.SIGCONT)
                _, err = zombie.communicate(timeout=60)
                assert zombie.returncode == 1
                assert b"TakenOver" in err
                expect(store, 3)
            else:  # it stopped holding the lock: whoever takes over has to wait, and then finds its batch
                os.kill(zombie.pid, signal.SIGCONT)
                until(lambda: writer.last(PIPELINE).batch >= 3)  # type: ignore[union-attr]
                zombie.kill()
                zombie.communicate(timeout=60)
            writer.release()
    go_on(path, 10)
    with SqliteReader(path) as store:
        expect(store, 10)


# the disk

FILL = """
import json, sys
from pathlib import Path
from millstream.errors import ViewStoreUnavailable
from millstream.store.sqlite.reader import SqliteReader
from millstream.store.sqlite.writer import sqlite_writer
from tests.contracts.store import BAG, Batches, rows
folder = Path(sys.argv[1])
(folder / "ballast").write_bytes(b"x" * 1_500_000)
writer, store = sqlite_writer(folder / "views.db"), SqliteReader(folder / "views.db")
batches = Batches(writer)
def batch(n): return batches.batch((BAG, [(f"{n}.{i}." + "x" * 1000, 1.0, 1) for i in range(10)]), batch=n)
def kept():
    found = {}
    for page, _ in rows(store, "bag"):
        found.setdefault(int(page.split(".")[0]), []).append(page)
    return {n: len(parts) for n, parts in found.items()}
for n in range(10_000):
    try:
        writer.commit(batch(n))
    except ViewStoreUnavailable as error:
        message = str(error)
        break
same_handle, last = kept(), writer.last("shop").batch
(folder / "ballast").unlink()
for more in range(n, n + 5):
    assert writer.commit(batch(more))
print(json.dumps(dict(failed=n, message=message, same_handle=same_handle, last=last, after=kept(),
    sound=store.query("PRAGMA integrity_check").rows)))
"""


def test_a_full_disk_refuses_the_batch_keeps_the_rest_and_works_again_when_freed(tmp_path: Path) -> None:
    done = run(FILL, tmp_path, wrapper=mounted(tmp_path, "size=4m"))
    assert done.returncode == 0, done.stderr.decode()
    seen = json.loads(done.stdout)
    assert seen["failed"] >= 10
    assert "no room on the disk" in seen["message"]
    assert seen["last"] == seen["failed"] - 1
    assert seen["same_handle"] == {str(n): 10 for n in range(seen["failed"])}
    assert seen["after"] == {str(n): 10 for n in range(seen["failed"] + 5)}
    assert seen["sound"] == [["ok"]]


def test_a_flipped_bit_is_an_error_and_never_a_wrong_row(tmp_path: Path) -> None:
    path = tmp_path / "views.db"
    with sqlite_writer(path) as writer:
        batches = Batches(writer)
        batches.commit(BAG, *((f"page-{i:04d}-" + "x" * 500, 1.0, 1) for i in range(200)))
        batches.commit(TOTALS, ("ann", 1, 1.0, 1))
    data = bytearray(path.read_bytes())
    data[data.index(b"page-0100-") + 300] ^= 4
    path.write_bytes(data)
    with SqliteReader(path) as store:
        for ask in (lambda: store.table("bag"), lambda: store.query("SELECT * FROM bag")):
            with pytest.raises(ViewError, match=r"not what was written.*nothing was changed") as caught:
                ask()
            assert "run it" in caught.value.hint
        assert rows(store, "totals") == [("ann", 1, 1.0)]
    assert path.read_bytes() == data
