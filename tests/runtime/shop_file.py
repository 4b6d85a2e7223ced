"""A pipeline file and its log, for tests that run it in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from millstream.event import Event
from millstream.load import load_pipeline
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.store import open_reader, open_writer
from tests.waiting import until

ROOT = Path(__file__).parents[2]
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
TEXT = """
from millstream.pipeline import Pipeline
from millstream.window import tumbling

shop = Pipeline("shop", log="sqlite:{folder}/log.db", to="sqlite:{folder}/views.db", checkpoint="{folder}/check", buckets=2)
clicks = shop.stream("clicks", "user long, page string, amount double, at timestamp", time="at", delay="10 seconds")
shop.view("per_minute", clicks.group_by("page", tumbling("at", "1 minute")).agg(n="count(*)", total="sum(amount)"))
shop.view("by_user", clicks.group_by("user").agg(n="count(*)", best="max(amount)"))
"""


def write_shop(folder: Path, text: str = TEXT, partitions: int = 2) -> Path:
    """Write the file and make its topic."""
    with open_log(f"sqlite:{folder / 'log.db'}", create=True) as log:
        log.create_topic("clicks", partitions)
    file = folder / "shop.py"
    file.write_text(text.replace("{folder}", str(folder)))
    return file


def append_clicks(folder: Path, first: int, count: int) -> None:
    """Append clicks that depend on their numbers only, fifty an append; every tenth is a minute late, every fiftieth is nonsense."""
    with open_log(f"sqlite:{folder / 'log.db'}", create=False) as log:
        for low in range(first, first + count, 50):
            log.append("clicks", [click(number) for number in range(low, min(low + 50, first + count))])
            time.sleep(0.002)  # batches are cut by append time, in milliseconds: no two appends have the same


def click(number: int) -> Event:
    """The click of a number."""
    at = BEGIN + timedelta(seconds=number - (60 if number % 10 == 9 else 0))
    value = {"user": number % 7, "page": "abc"[number % 3], "amount": number / 8, "at": at.isoformat()}
    return Event(b"nonsense" if number % 50 == 7 else json.dumps(value).encode(), key=str(number % 7).encode())


class Child:
    """A ``millstream`` command in a process group of its own."""

    def __init__(
        self,
        *arguments: object,
        failpoint: str = "",
        cwd: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        environ = {name: text for name, text in os.environ.items() if not name.startswith("MILLSTREAM_")}
        environ |= {"MILLSTREAM_CLASS_ARCHIVE": "keep", "PYTHONPATH": str(ROOT / "src"), **(variables or {})}
        if failpoint:
            environ["MILLSTREAM_FAILPOINT"] = failpoint
        command = [sys.executable, "-c", "from millstream.cli import main; main()", *map(str, arguments)]
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid

    def wait(self, timeout: float = 200) -> tuple[int, str, str]:
        """Its exit code and what it wrote, when it has ended."""
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err

    def kill(self) -> None:
        """Kill the driver alone: what it started has to notice by itself."""
        self.process.send_signal(signal.SIGKILL)

    def leaves_nothing(self, timeout: float = 30) -> None:
        """Wait until nothing of what it started is left."""
        until(lambda: not living(self.pid), timeout=timeout, what="the end of the JVM and its workers")

    def end(self) -> None:
        """Leave nothing behind, whatever happened."""
        for pid in living(self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()


def living(session: int) -> set[int]:
    """The processes of a session, whoever their parent is by now."""
    found: set[int] = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, member = stat.read_text(errors="replace").rpartition(")")[2].split()[:4]
            if int(member) == session and state not in ("Z", "X"):
                found.add(int(stat.parent.name))
    return found


def batches(pipeline: Pipeline) -> list[tuple[int, int]]:
    """Batch and fence of every entry of the ledger, oldest first."""
    if pipeline.to.startswith("sqlite:") and not Path(pipeline.to.removeprefix("sqlite:")).exists():
        return []
    with open_writer(pipeline.to) as sink:
        return [(entry.batch, entry.fence) for entry in reversed(sink.entries(pipeline.name))]


def admission(pipeline: Pipeline) -> list[dict[str, Any]]:
    """What became of all records, by partition."""
    with open_reader(pipeline.to) as store:
        return [dict(row) for row in store.admission(pipeline.name).drop_columns(["pipeline"]).to_pylist()]


def load(file: Path) -> Pipeline:
    """The pipeline of the file."""
    return load_pipeline(file)


def kill_around_sends(file: Path, folder: Path) -> None:
    """Run the file over some more clicks and kill it, once at each place around a send."""
    for number, point in enumerate(
        ["sink.before_send", "sink.after_send", "store.before_commit", "store.after_commit"]
    ):
        append_clicks(folder, 100 * number, 100)
        child = Child("run", file, "--once", "--rate-limit", 60, failpoint=f"{point}:kill@{1 + number % 2}")
        try:
            code, _, err = child.wait()
            assert code == -signal.SIGKILL, (point, err)
        finally:
            child.end()
