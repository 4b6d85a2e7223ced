"""Memory and disk under floods: they go by how much a batch may hold, and not by how much there is to read."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from millstream.event import Event
from millstream.log import open_log
from millstream.store import open_reader
from tests.runtime.shop_file import Child, living

MB = 1 << 20
LIMIT = 16 * MB
"""Bytes of a batch."""
PIPELINE = """
from millstream import Pipeline

p = Pipeline("p", log={log!r}, to={to!r}, checkpoint={checkpoint!r}, buckets=2, dead_letters=1_000)
notes = p.stream("notes", "n long, text string", time="_timestamp", ahead="1 day")
p.view("longest", notes.group_by("n").agg(text="max(text)"))
"""
HOT = """
from millstream import Pipeline
from millstream.window import session

p = Pipeline("p", log={log!r}, to={to!r}, checkpoint={checkpoint!r}, buckets=2)
notes = p.stream("notes", "n long, user long, text string", time="_timestamp", ahead="1 day")
p.view("counts", notes.group_by("user").agg(n="count(*)", last="max(text)"))
p.view("newest", notes.top(3, "n DESC", "user"))
p.view("visits", notes.group_by("user", session("_timestamp", "1 hour")).agg(n="count(*)"))
"""


def notes(count: int) -> Iterator[list[Event]]:
    """So many records of almost a megabyte, of sixteen notes, as appends of ten."""
    for first in range(0, count, 10):
        texts = [(n % 16, str(n % 10) * 990_000) for n in range(first, first + 10)]
        yield [Event(json.dumps({"n": n, "text": text}).encode()) for n, text in texts]


def nonsense(count: int) -> Iterator[list[Event]]:
    """So many records that are no JSON, of a kilobyte."""
    for _ in range(0, count, 5_000):
        yield [Event(b"nonsense" * 128)] * 5_000


def clicks(count: int) -> Iterator[list[Event]]:
    """So many clicks of a hundred bytes, every second of them of one user."""
    for first in range(0, count, 10_000):
        ids = [(n, 7 if n % 2 else n % 1_000) for n in range(first, first + 10_000)]
        yield [Event(json.dumps({"n": n, "user": user, "text": str(n) * 10}).encode()) for n, user in ids]


def peak(folder: Path, definition: str, appends: Iterable[list[Event]], *options: object, driver: bool = True) -> int:
    """Run a pipeline to the end over such appends; the most memory that a Python process of it had, perhaps without the driver."""
    folder.mkdir()
    file, log = folder / "p.py", f"sqlite:{folder / 'log.db'}"
    to, checkpoint = f"sqlite:{folder / 'views.db'}", str(folder / "check")
    file.write_text(definition.format(log=log, to=to, checkpoint=checkpoint), encoding="utf-8")
    with open_log(log, create=True) as opened:
        opened.create_topic("notes", 1)
        for events in appends:
            opened.append("notes", events)
    child, most = Child("run", file, "--once", "--rate-limit", 20_000, *options), 0
    try:
        while child.process.poll() is None:
            watched = living(child.pid) - (set() if driver else {child.pid})
            most = max(most, *(_peak(pid) for pid in watched), 0)
            time.sleep(0.02)
        code, _, said = child.wait()
        assert code == 0, said
    finally:
        child.end()
    return most


def ran(folder: Path, large: int, bad: int, limit: int = LIMIT) -> tuple[int, int]:
    """Run over so many large and bad records; the most memory that a Python process of it had, and the bytes of the file of views."""
    most = peak(folder, PIPELINE, (*notes(large), *nonsense(bad)), "--byte-limit", limit)
    with open_reader(f"sqlite:{folder / 'views.db'}") as store:
        [row] = store.admission("p").to_pylist()
        assert (row["admitted"], row["malformed"]) == (large, bad)
        assert store.dead_letters("p", limit=10_000).num_rows == min(bad, 1_000)
        assert store.table("longest").num_rows == min(large, 16)
    return most, sum(path.stat().st_size for path in folder.glob("views.db*"))


def _peak(pid: int) -> int:
    """The most bytes that a Python process had in memory."""
    with suppress(OSError):
        said = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        if said.startswith("Name:\tpython") and "VmHWM:" in said:  # one that ends has none any more
            return int(said.partition("VmHWM:")[2].split()[0]) << 10
    return 0


@pytest.mark.campaign
def test_memory_and_views_stay_as_they_are_under_a_flood_of_large_and_bad_records(tmp_path: Path) -> None:
    few, some = ran(tmp_path / "few", 30, 5_000)
    many, more = ran(tmp_path / "many", 400, 100_000)
    assert many - few < 8 * LIMIT, f"{few / MB:.0f} MB, then {many / MB:.0f} MB over 450 MB more of records"
    assert more < 2 * some, f"{some:,} bytes, {more:,} bytes"


@pytest.mark.campaign
def test_memory_stays_as_it_is_whatever_the_number_of_events_of_a_hot_key(tmp_path: Path) -> None:
    few = peak(tmp_path / "few", HOT, clicks(40_000), driver=False)
    many = peak(tmp_path / "many", HOT, clicks(300_000), driver=False)
    with open_reader(f"sqlite:{tmp_path / 'many' / 'views.db'}") as store:
        counts = {row["user"]: row["n"] for row in store.table("counts").to_pylist()}
        visits = {row["user"]: row["n"] for row in store.table("visits").to_pylist()}
    assert counts == visits
    assert counts[7] == 150_000
    assert sum(counts.values()) == 300_000
    assert many - few < 40 * MB, (
        f"{few / MB:.0f} MB, then {many / MB:.0f} MB over 260,000 more events, half of them of one key"
    )
