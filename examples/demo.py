"""The demo: a click stream through the embedded log, from the first record to a count in Spark. `make demo` runs it.

Everything happens in a temporary folder, with the same commands and functions that a user has.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console

from millstream.event import Event
from millstream.log import open_log
from millstream.spark.read import read_batch
from millstream.spark.session import spark_session, stop_session

console = Console()
COMMAND = [sys.executable, "-c", "from millstream.cli import main; main()"]


def step(title: str) -> None:
    console.print(f"\n[bold cyan]{title}[/]", soft_wrap=True)


def millstream(*arguments: str, text: str | None = None) -> None:
    """Run the command as a user would, and show it."""
    console.print(f"[dim]$ millstream {' '.join(arguments)}[/]", soft_wrap=True)
    subprocess.run([*COMMAND, *arguments], input=text, text=True, check=True)


def member(group: str) -> subprocess.Popen[bytes]:
    arguments = ["consume", "clicks", "--group", group, "--follow", "--lease", "2s"]
    return subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def until(condition, what: str, seconds: float = 60.0) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} took more than {seconds:.0f} s")
        time.sleep(0.05)


def members(group: str) -> list[str]:
    with open_log("sqlite:demo.db", create=False) as log:
        return next((list(g.members) for g in log.groups() if g.name == group), [])


def lag(group: str) -> int:
    with open_log("sqlite:demo.db", create=False) as log:
        ends = {p: b.end for p, b in log.bounds("clicks").items()}
        offsets = next((g.offsets for g in log.groups() if g.name == group), {})
        return sum(ends.values()) - sum(offsets.values())


def clicks(count: int) -> str:
    rng = random.Random(7)
    start = datetime.now(UTC) - timedelta(minutes=10)
    lines = []
    for i in range(count):
        at = start + timedelta(milliseconds=i * 600_000 / count)
        page = rng.choice(["/", "/cart", "/search", "/item/1", "/item/2"])
        lines.append(json.dumps({"user": rng.randrange(500), "page": page, "at": at.isoformat()}))
    return "\n".join(lines)


def main() -> None:
    os.environ["MILLSTREAM_LOG"] = "sqlite:demo.db"

    step("1. A topic with four partitions, and 20,000 clicks in it, keyed by user")
    millstream("topics", "create", "clicks", "--partitions", "4", "--retention", "7d")
    millstream("produce", "clicks", "--key-field", "user", "--time-field", "at", text=clicks(20_000))
    millstream("consume", "clicks", "--max", "3")

    step("2. Two groups read it, each at its own pace: `billing` with two members, `search` with one")
    billing = [member("billing"), member("billing")]
    search = member("search")
    try:
        until(lambda: len(members("billing")) == 2 and lag("billing") == lag("search") == 0, "reading")
        millstream("groups", "list")
        millstream("lag")

        step("3. kill -9 one member of `billing`: its lease runs out, the other takes over its partitions")
        billing[0].send_signal(signal.SIGKILL)
        began = time.monotonic()
        millstream("produce", "clicks", "--key-field", "user", "--time-field", "at", text=clicks(2_000))
        until(lambda: len(members("billing")) == 1 and lag("billing") == 0, "the rebalance")
        console.print(f"one member left, nothing unread, {time.monotonic() - began:.1f} s after the kill")
        millstream("groups", "describe", "billing")
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
        console.print(
            f"2,001 records before, {len(log.read('profiles', 0, 0, 10_000))} after: 99 users, the deleted one gone"
        )

    step("5. Replay: move a group back, look first, then do it")
    millstream("groups", "reset", "search", "--topic", "clicks", "--to", "earliest")
    millstream("groups", "reset", "search", "--topic", "clicks", "--to", "earliest", "--yes")
    millstream("lag", "--group", "search")

    step("6. Spark counts it (the first start takes some seconds)")
    began = time.monotonic()
    with console.status("starting Spark…"):
        spark = spark_session("demo")
        frame = read_batch(spark, "sqlite:demo.db", "clicks")
        counts = (
            frame.selectExpr("from_json(cast(value AS string), 'user long, page string') AS click")
            .groupBy("click.page")
            .count()
            .orderBy("count", ascending=False)
            .collect()
        )
    for row in counts:
        console.print(f"  {row['page']:<10} {row['count']:>7,}")
    total = sum(row["count"] for row in counts)
    console.print(f"{total:,} clicks, Spark start included {time.monotonic() - began:.1f} s")
    stop_session()
    if total != 22_000:
        raise SystemExit(f"expected 22,000 clicks, found {total:,}")
    step("Done. `millstream --help` lists the commands; docs/tutorial.md goes through them.")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-demo-") as folder:
        os.chdir(Path(folder))
        main()
        os.chdir("/")
