"""A ``millstream`` command in a process of its own, and waiting for what it does, but never for ever."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Mapping

from millstream.errors import MillstreamError
from tests.runtime.shop_file import ROOT, Child

PATIENCE = 240.0
"""Seconds that anything may take on a busy machine before it counts as stuck."""


class Wrong(Exception):
    """What a fault must not lead to."""


class Runner:
    """A ``millstream`` command whose batches are heard as they are delivered."""

    def __init__(self, *arguments: object, failpoint: str = "", variables: Mapping[str, str] | None = None) -> None:
        path = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        self._child = Child(*arguments, failpoint=failpoint, variables={**path, **(variables or {})})
        self.lines: list[str] = []
        self.errors: list[str] = []
        process = self._child.process
        self._threads = [
            threading.Thread(target=lambda: self.lines.extend(process.stdout or ()), daemon=True),
            threading.Thread(target=lambda: self.errors.extend(process.stderr or ()), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """The driver's process."""
        return self._child.pid

    @property
    def code(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._child.process.poll()

    @property
    def said(self) -> str:
        """What it wrote to its standard error, at the end."""
        return "".join(self.errors[-30:])

    def batches(self) -> int:
        """How many batches it has delivered; what it says while it waits for somebody does not count."""
        return sum(1 for line in list(self.lines) if line.startswith("{") and not json.loads(line)["waiting"])

    def failed(self, *words: str) -> None:
        """It must end with an error in our words, which has one of those."""
        code = self.ended()
        if code != 1 or "error: " not in self.said or "Traceback" in self.said:
            raise Wrong(f"expected an error with a cause; found exit code {code}: {self.said}")
        if words and not any(word in self.said for word in words):
            raise Wrong(f"expected an error that says {' or '.join(words)}; found: {self.said}")

    def kill(self) -> None:
        """SIGKILL of the driver."""
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the driver."""
        self._child.process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end, and for that of all it started; give its exit code."""
        wait(lambda: self.code is not None, "the end of a run", self.batches)
        self._child.leaves_nothing(PATIENCE)
        for thread in self._threads:
            thread.join(10)
        return self.code if self.code is not None else -1

    def end(self) -> None:
        """Leave nothing behind, whatever happened."""
        self._child.end()


def wait(condition: Callable[[], bool], what: str, progress: Callable[[], int] = int) -> None:
    """Wait for something, as long as there is progress, but not for ever."""
    deadline, reached = time.monotonic() + PATIENCE, progress()
    while not condition():
        if (now := progress()) > reached:
            deadline, reached = time.monotonic() + PATIENCE, now
        if time.monotonic() > deadline:
            raise Wrong(f"{what} did not come in {PATIENCE:.0f} s")
        time.sleep(0.05)


def patiently(do: Callable[[], None]) -> None:
    """Do it again while a server is not back yet."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            do()
        except MillstreamError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
        else:
            return
