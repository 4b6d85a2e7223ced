"""A program at a terminal: what it shows, what is typed, and never longer than it should take."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from pathlib import Path

_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[=>]|\([A-Z0-9])")


class Terminal:
    """A child process with a terminal of its own, 40 lines of 160 columns."""

    def __init__(self, command: Sequence[str], cwd: Path, env: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=env, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(theirs)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def expect(self, pattern: str, seconds: float = 60) -> str:
        """Wait until what is shown since the last time matches; give all of that."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            if time.monotonic() > deadline or not self._read(deadline):
                raise AssertionError(f"waited for {pattern!r}; saw {self.seen!r}")
        shown, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return shown

    def _read(self, deadline: float) -> bool:
        """Take in what is there; False when there is nothing more to come."""
        if not select.select([self._ours], [], [], max(0.0, min(1.0, deadline - time.monotonic())))[0]:
            return True
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # the other end is closed
            return False
        self.seen += _ESCAPES.sub("", data.decode(errors="replace")).replace("\r", "")
        return bool(data)

    def end(self) -> None:
        """Kill it and what it started, if it is still there."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._ours)
