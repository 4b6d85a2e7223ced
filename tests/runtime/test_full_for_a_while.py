"""A disk that is full for a while under a live run: the run waits, says so, and goes on when there is room."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from millstream.log import open_log
from millstream.runtime.phases.course import Progress
from millstream.runtime.run import run
from millstream.sink.files import committed_files
from tests.mounted import mounted
from tests.runtime.shop_file import ROOT, admission, append_clicks, click, load, write_shop
from tests.waiting import until

TEXT = """
from millstream.pipeline import Pipeline

shop = Pipeline("shop", log="sqlite:{folder}/log.db", to="sqlite:{folder}/store/views.db", checkpoint="{folder}/check/shop", buckets=2)
clicks = shop.stream("clicks", "user long, page string, amount double, at timestamp")
shop.view("by_user", clicks.group_by("user").agg(n="count(*)"))
pages = shop.view("pages", clicks.select("user", "page"))
shop.sink("sent", pages, "topic:pages@sqlite:{folder}/topic/log.db")
shop.sink("written", pages, "files:{folder}/files/pages?format=json")
"""
DISKS = ("check", "spill", "store", "topic", "files")
STEP = 200
RUNS = """
import sys
from pathlib import Path
from tests.runtime.test_full_for_a_while import live
live(Path(sys.argv[1]))
"""


def live(folder: Path) -> None:
    """Run the pipeline while each of its disks is full for a while, and once all of them; say what was waited for."""
    from millstream.spark.session import spark_session, stop_session

    stop, seen, said = threading.Event(), list[Progress](), dict[str, str]()
    spark = spark_session("full", settings={"spark.local.dir": str(folder / "spill")})
    with open_log(f"sqlite:{folder / 'topic' / 'log.db'}") as log:
        log.create_topic("pages")

    def fill() -> None:
        try:
            until(lambda: seen and seen[-1].records == STEP, timeout=60, what="the first batch")
            for number, disks in enumerate([*((disk,) for disk in DISKS), DISKS], 1):
                for disk in disks:
                    stuff(folder / disk)
                known = len(seen)
                append_clicks(folder, STEP * number, STEP)
                until(lambda: any(each.waiting for each in seen[known:]), timeout=60, what=f"a wait for {disks}")  # noqa: B023
                said[" ".join(disks)] = next(each.waiting for each in seen[known:] if each.waiting)
                for disk in disks:
                    (folder / disk / "ballast").unlink()
                until(
                    lambda: seen[-1].records >= STEP * (number + 1) and not seen[-1].waiting,  # noqa: B023
                    timeout=90,
                    what=f"what came while {disks} was full",
                )
        finally:
            stop.set()

    append_clicks(folder, 0, STEP)
    filler = threading.Thread(target=fill)
    filler.start()
    run(load(folder / "shop.py"), spark=spark, progress=seen.append, stop=stop)
    filler.join()
    stop_session()
    sys.stdout.write(json.dumps(said))


def stuff(disk: Path) -> None:
    """Leave no room on a disk, to which others may be writing."""
    with (disk / "ballast").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 20))


@pytest.mark.timeout(500)
@pytest.mark.campaign
def test_a_live_run_waits_for_room_on_each_of_its_disks_and_goes_on(tmp_path: Path) -> None:
    file, wrapper = write_shop(tmp_path, TEXT), list[str]()
    for disk in DISKS:
        (tmp_path / disk).mkdir()
        wrapper += mounted(tmp_path / disk, "size=20m")
    shown = f"{RUNS}\nimport shutil; shutil.copytree(sys.argv[1], sys.argv[2])"  # the disks are there for this process alone
    seen = tmp_path.parent / f"{tmp_path.name}-seen"
    done = subprocess.run(
        [*wrapper, sys.executable, "-c", shown, tmp_path, seen], cwd=ROOT, capture_output=True, text=True, timeout=450
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    for disk in ("check", "spill", " ".join(DISKS)):
        assert said[disk].startswith("pipeline shop: a disk is full; its checkpoint in "), said
    assert "no room on the disk" in said["store"]
    assert said["topic"].startswith("sink sent: ")
    assert "no room on the disk" in said["topic"]
    assert said["files"].startswith("sink written: ")
    assert "No space left on device" in said["files"]
    file.write_text(TEXT.replace("{folder}", str(seen)))
    check(file, seen, STEP * (len(said) + 1))


def check(file: Path, folder: Path, count: int) -> None:
    """Compare views, topic and files with what the clicks say: each of them once."""
    shop = load(file)
    values = [json.loads(value) for number in range(count) if (value := click(number).value or b"")[:1] == b"{"]
    users: dict[int, int] = {}
    for value in values:
        users[value["user"]] = users.get(value["user"], 0) + 1
    pages = sorted((value["user"], value["page"]) for value in values)
    assert sum(row["records"] for row in admission(shop)) == count
    assert {row["user"]: row["n"] for row in shop.views["by_user"].to_arrow().to_pylist()} == users
    assert sorted((row["user"], row["page"]) for row in shop.views["pages"].to_arrow().to_pylist()) == pages
    with open_log(f"sqlite:{folder / 'topic' / 'log.db'}", create=False) as log:
        sent = [json.loads(record.value or b"") for record in log.reader("pages").poll(10**6)]
    assert sorted((row["user"], row["page"]) for row in sent) == pages
    written = [
        json.loads(line)
        for path in committed_files(folder / "files" / "pages")
        for line in path.read_text().splitlines()
    ]
    assert sorted((row["user"], row["page"]) for row in written) == pages
