"""The demo: a click stream, from its first record to views that are right after a crash. `make demo` runs it.

Everything happens in a temporary folder, with the same commands and functions that a user has. What is not as it should
be ends the demo with an error.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console

from millstream import Event, View, load_pipeline, open_log
from millstream.errors import ViewError
from millstream.json_event import to_event

console = Console(highlight=False)
COMMAND = [sys.executable, "-c", "from millstream.cli import main; main()"]
PIPELINE = Path(__file__).with_name("clicks.py")
START = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=20)
"""The time of the first click."""


def step(title: str) -> None:
    console.print(f"\n[bold cyan]{title}[/]", soft_wrap=True)


def millstream(*arguments: str, text: str | None = None) -> None:
    """Run the command as a user would, and show it."""
    shown = [f'"{each}"' if " " in each else each for each in arguments]
    console.print(f"[dim]$ millstream {' '.join(shown)}[/]", soft_wrap=True)
    subprocess.run([*COMMAND, *arguments], input=text, text=True, check=True)


def background(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def until(condition: Callable[[], bool], what: str, seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} took more than {seconds:.0f} s")
        time.sleep(0.05)


def expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise SystemExit(f"{what}: found {found}, expected {wanted}")


def members(group: str) -> list[str]:
    with open_log("sqlite:demo.db", create=False) as log:
        return next((list(g.members) for g in log.groups() if g.name == group), [])


def lag(group: str) -> int:
    with open_log("sqlite:demo.db", create=False) as log:
        ends = {p: b.end for p, b in log.bounds("clicks").items()}
        offsets = next((g.offsets for g in log.groups() if g.name == group), {})
        return sum(ends.values()) - sum(offsets.values())


def clicks(count: int, *, begin: int, minutes: int) -> str:
    """So many clicks, evenly over some minutes, as lines of JSON; ``begin`` is the first minute."""
    rng = random.Random(begin)
    lines = []
    for i in range(count):
        at = START + timedelta(minutes=begin, milliseconds=i * minutes * 60_000 / count)
        page = rng.choice(["/", "/cart", "/search", "/item/1", "/item/2"])
        lines.append(json.dumps({"user": rng.randrange(500), "page": page, "at": at.isoformat()}))
    return "\n".join(lines)


def one(minutes: float, user: object = 7) -> str:
    """A click on the cart so many minutes after the start."""
    return json.dumps({"user": user, "page": "/cart", "at": (START + timedelta(minutes=minutes)).isoformat()})


def produce(text: str) -> None:
    millstream("produce", "clicks", "--key-field", "user", "--time-field", "at", text=text)


def append(text: str) -> None:
    """The same from Python, without waiting for a process to start and end; 1,000 at a time."""
    lines = text.splitlines()
    with open_log("sqlite:demo.db", create=False) as log:
        for low in range(0, len(lines), 1_000):
            events = [to_event(line.encode(), "user", "at") for line in lines[low : low + 1_000]]
            log.append("clicks", events)


def counted(view: View) -> int:
    """The clicks in the view, over all minutes; it is read while the pipeline writes it."""
    try:
        return int(view.to_polars()["n"].sum())
    except ViewError:  # not made yet
        return 0


def the_log() -> None:
    step("1. A topic with four partitions, and 20,000 clicks in it, keyed by user")
    millstream("topics", "create", "clicks", "--partitions", "4", "--retention", "7d")
    produce(clicks(20_000, begin=0, minutes=10))
    millstream("consume", "clicks", "--max", "3")

    step("2. Two groups read it, each at its own pace: `billing` with two members, `search` with one")
    follow = ["consume", "clicks", "--follow", "--lease", "2s", "--group"]
    billing = [background(*follow, "billing"), background(*follow, "billing")]
    search = background(*follow, "search")
    try:
        until(lambda: len(members("billing")) == 2 and lag("billing") == lag("search") == 0, "reading")
        millstream("lag")

        step("3. kill -9 one member of `billing`: its lease runs out, the other takes over its partitions")
        billing[0].send_signal(signal.SIGKILL)
        began = time.monotonic()
        produce(clicks(2_000, begin=10, minutes=1))
        until(lambda: len(members("billing")) == 1 and lag("billing") == 0, "the rebalance")
        console.print(f"one member left, nothing unread, {time.monotonic() - began:.1f} s after the kill")
    finally:
        for process in (*billing, search):
            process.terminate()
            process.wait(30)

    step("4. A compacted topic keeps the latest value of each key")
    with open_log("sqlite:demo.db") as log:
        millstream("topics", "create", "profiles", "--cleanup", "compact", "--tombstone-retention", "0s")
        for round_ in range(20):
            log.append("profiles", [Event(b'{"visits": %d}' % round_, b"user-%d" % user) for user in range(100)])
        log.append("profiles", [Event(None, b"user-0")])
        millstream("topics", "compact", "profiles")
        left = len(log.read("profiles", 0, 0, 10_000))
        console.print(f"2,001 records before, {left} after: 99 users, the deleted one gone")
        expect(left, 99, "records after compaction")


def the_views() -> None:
    per_minute = load_pipeline("clicks.py").views["per_minute"]
    minute = START + timedelta(minutes=3)

    step("5. A pipeline: clicks per page and minute, kept up to date while it runs (Spark starts: some seconds)")
    console.print(Path("clicks.py").read_text().partition("shop = ")[2].join(["shop = ", ""]).rstrip(), soft_wrap=True)
    console.print("[dim]$ millstream run clicks.py --rate-limit 5000 &[/]")
    running = background("run", "clicks.py", "--rate-limit", "5000")
    try:
        until(lambda: running.poll() is not None or counted(per_minute) == 22_000, "the first views")
        expect(running.poll(), None, "`millstream run` ended by itself")
        millstream("views", "list")

        step(
            "6. A click that comes 8 minutes late corrects its minute; one that is 2 hours late, and one that is none, do not"
        )
        before = per_minute.get("/cart", minute)
        produce("\n".join([one(3.5), one(-120), one(11, user="seven")]))
        until(lambda: running.poll() is not None or counted(per_minute) == 22_001, "the correction")
        after = per_minute.get("/cart", minute)
        assert before is not None
        assert after is not None
        console.print(f"/cart at {minute:%H:%M}: {before['n']} clicks before, {after['n']} after")
        expect(after["n"], before["n"] + 1, "the corrected minute")
        letters = "SELECT reason, partition, offset, detail FROM millstream_dead_letters"
        millstream("views", "query", "per_minute", letters)

        step("7. 20,000 more clicks, and kill -9 in the middle of them")
        append(clicks(20_000, begin=11, minutes=5))
        until(lambda: running.poll() is not None or counted(per_minute) > 22_001, "the next batch")
        running.send_signal(signal.SIGKILL)
        running.wait(30)
        found = counted(per_minute)
        console.print(f"killed with {found:,} of 42,001 clicks in the view: whole batches, no half one")
        expect(found < 42_001, True, "killed before the end")
    finally:
        if running.poll() is None:
            running.kill()
            running.wait(30)

    step("8. Start it again: it goes on where the last batch ended, nothing lost and nothing twice")
    millstream("run", "clicks.py", "--once")
    expect(counted(per_minute), 42_001, "clicks in the view")
    admission = (
        "SELECT sum(records) AS records, sum(admitted) AS admitted, sum(late) AS late, sum(duplicate) AS duplicate,"
    )
    admission += " sum(future) AS future, sum(malformed) AS malformed FROM millstream_admission"
    millstream("views", "query", "per_minute", admission)
    busiest = "SELECT page, window_start, n, people FROM per_minute ORDER BY n DESC, page, window_start LIMIT 3"
    millstream("views", "query", "per_minute", busiest)

    step("9. Are the views what the log says? Compute them anew, in one batch, and compare")
    millstream("verify", "clicks.py")


def main() -> None:
    began = time.monotonic()
    os.environ["MILLSTREAM_LOG"] = "sqlite:demo.db"
    shutil.copy(PIPELINE, "clicks.py")
    the_log()
    the_views()
    step(
        f"Done in {time.monotonic() - began:.0f} s. `millstream --help` lists the commands; docs/tutorial.md goes through them."
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-demo-", ignore_cleanup_errors=True) as folder:
        os.chdir(Path(folder))
        try:
            main()
        finally:
            os.chdir("/")
