"""A query in a process of its own, which is asked to stop while the query runs."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.waiting import until

ASK = """
import signal, sys
from millstream.store import open_reader
signal.signal(signal.SIGTERM, signal.default_int_handler)  # as the command does
with open_reader(sys.argv[1]) as store:
    store.views()
    print("ready", flush=True)
    store.query(sys.argv[2])
"""


def is_stopped(address: str, sql: str, number: int, begun: Callable[[int], bool]) -> bool:
    """Whether a signal in the middle of the query, when it has ``begun`` (given its process), ends it."""
    with subprocess.Popen(
        [sys.executable, "-c", ASK, address, sql], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            until(lambda: begun(child.pid))
            child.send_signal(number)
            return child.wait(timeout=30) == -signal.SIGINT
        finally:
            child.kill()


def ticks(pid: int) -> int:
    """Hundredths of a second that a process has computed."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11])
