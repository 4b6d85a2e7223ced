"""A power cut at any point loses nothing of the log and of the views that was acknowledged, whatever of the rest it leaves."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.errors import MillstreamError
from millstream.log.embedded.engine import SqliteLog
from millstream.store.sqlite.reader import SqliteReader
from millstream.store.sqlite.writer import sqlite_writer
from tests.contracts.log import read_all
from tests.contracts.store import PIPELINE, Batches
from tests.history import check, load
from tests.log.test_faults import sound, stored
from tests.store.test_faults import expect
from tests.unsynced import power_cuts

COUNT = 40
BEGIN = """
import os, sys
from pathlib import Path
from millstream import database
folder, told = Path(sys.argv[1]), os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
database._WAL = 1 << 18  # else the file itself is not written to before there are 16 MB
def tell(text): os.write(told, text.encode())
"""
CARELESS = """
def connect(self, made=database.Database.connect):
    db = made(self)
    db.execute("PRAGMA synchronous=NORMAL").fetchall()
    return db
database.Database.connect = connect
"""
APPENDS = """
from millstream.log.embedded.engine import SqliteLog
from tests.history import Line
from tests.log.test_faults import batch
with SqliteLog(folder / "log.db") as log:
    for sequence in range(COUNT):
        tell(Line("invoke", "p", sequence, 10).dump())
        ack = log.append("t", batch("p", sequence), producer="p", sequence=sequence)
        tell(Line("ok", "p", sequence, 10, tuple(ack.partitions), tuple(ack.offsets)).dump())
"""
COMMITS = """
from millstream.store.sqlite.writer import sqlite_writer
from tests.contracts.store import Batches
from tests.store.test_faults import commit_batch
with sqlite_writer(folder / "views.db") as writer:
    batches = Batches(writer, takeover=True)
    for number in range(COUNT):
        assert commit_batch(batches, number)
        tell("ok\\n")
"""


def look_at_log(folder: Path, told: str) -> None:
    """What was acknowledged is there, in its place and once; the rest is whole appends."""
    (folder / "told").write_text(told)
    with SqliteLog(folder / "log.db", create=False) as log:
        assert check(load(folder / "told"), stored(read_all(log, "t"))) == []
        assert sound(log)


def look_at_views(folder: Path, told: str) -> None:
    """The views are those of the batches that were acknowledged, or of one more."""
    with sqlite_writer(folder / "views.db") as writer:
        last = writer.last(PIPELINE)
    there = 0 if last is None else last.batch + 1
    assert there in (told.count("ok"), told.count("ok") + 1)
    with SqliteReader(folder / "views.db") as store:
        expect(store, there)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log and views that are there already."""
    made = tmp_path / "before"
    made.mkdir()
    with SqliteLog(made / "log.db") as log:
        log.create_topic("t", 2)
    with sqlite_writer(made / "views.db") as writer:
        Batches(writer)
    return made


@pytest.mark.parametrize("careless", [False, True])
@pytest.mark.parametrize(("writes", "look"), [(APPENDS, look_at_log), (COMMITS, look_at_views)], ids=["log", "views"])
def test_a_power_cut_loses_nothing_that_was_acknowledged(
    writes: str, look: Callable[[Path, str], None], careless: bool, folder: Path, tmp_path: Path
) -> None:
    code = BEGIN + CARELESS * careless + writes.replace("COUNT", str(COUNT))
    chance, problems, number = random.Random(20260131), list[str](), 0
    for number, (disk, told) in enumerate(power_cuts(code, folder, tmp_path / "told")):
        left = tmp_path / f"left-{number}"
        disk.leave(left, chance)
        try:
            look(left, told)
        except (AssertionError, MillstreamError) as error:
            problems.append(f"cut {number}: {type(error).__name__}: {error}")
    assert number > (5 if careless else COUNT)
    assert bool(problems) == careless, problems  # where a commit is not synced, it is seen
