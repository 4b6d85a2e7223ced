"""What a new user sees on the terminal: answers and errors of ours, and nothing of Spark, Java or the way between."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from millstream.event import Event
from millstream.log import open_log
from tests.runtime.shop_file import ROOT
from tests.waiting import until

NOISE = re.compile(
    r"py4j|java|scala|Exception|Traceback|\bat [\w.$]+\(|\bWARN|\bINFO|TransformWithState|\x1b|^\s*\{", re.M
)
"""Python's and Java's stacks, what Spark and its workers log, as text or JSON, and escapes."""

COMMANDS = """
from pathlib import Path
from millstream.cli import execute
from millstream.cli.output import quiet_fd
from millstream.spark.session import spark_session

with quiet_fd(Path("spark.log")):  # as a command starts it
    spark_session()
for file in ("typo.py", "failing.py"):
    print(file, execute(["run", file, "--once"]), flush=True)
"""
PIPELINE = """
import time
from pathlib import Path
from millstream import Pipeline

made = Pipeline("NAME", log="sqlite:log.db")
numbers = made.stream("numbers", "n int", failed="stop")
"""
PIPELINES = {
    "typo": 'made.view("v", numbers.select("uper(n) AS m"))',
    "failing": 'made.view("v", numbers.select("n", "10 / n AS share"))',
    "slow": """
def slow(changes):
    Path("begun").touch()
    time.sleep(1000)

made.sink("out", made.view("v", numbers.select("n")), slow)
""",
}


def started(folder: Path, *command: str) -> subprocess.Popen[str]:
    environ = {name: text for name, text in os.environ.items() if not name.startswith("MILLSTREAM_")}
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env={**environ, "MILLSTREAM_CLASS_ARCHIVE": "keep", "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def quiet(text: str) -> list[str]:
    assert not NOISE.search(text), text
    return [line for line in text.splitlines() if line]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, view in PIPELINES.items():
        (tmp_path / f"{name}.py").write_text(PIPELINE.replace("NAME", name) + view)
    with open_log(f"sqlite:{tmp_path / 'log.db'}") as log:
        log.create_topic("numbers")
        log.append("numbers", [Event(b'{"n": %d}' % n) for n in (5, 2, 0, 1)])
    return tmp_path


def test_a_typo_and_a_record_that_fails_are_told_in_our_words(folder: Path) -> None:
    process = started(folder, "-c", COMMANDS)
    try:
        out, err = process.communicate(timeout=200)
    finally:
        end(process)
    assert (process.returncode, out.splitlines()) == (0, ["typo.py 1", "failing.py 1"])
    typo, _, failing, _ = quiet(err)
    assert "typo.py:8: view v: `uper(n)`" in typo
    assert "10 / n fails on numbers/0 offset 2: Division by zero" in failing


def test_a_second_ctrl_c_ends_a_run_at_once(folder: Path) -> None:
    process = started(folder, "-c", "from millstream.cli import main; main()", "run", "slow.py")
    try:
        until(lambda: (folder / "begun").exists() or process.poll() is not None, timeout=200)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)  # the same to a run; of two SIGINTs at once the system may make one
        out, err = process.communicate(timeout=60)  # long before the batch would have ended
    finally:
        end(process)
    assert (process.returncode, out, quiet(err)) == (130, "", ["interrupted"])
