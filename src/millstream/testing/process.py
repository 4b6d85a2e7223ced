"""A server for tests: one process on loopback, with its data in a temporary folder.

It ends when its owner ends, however that happens; ``kill`` and ``start`` let a test see what a crash does: the data and the
port stay.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from millstream.errors import MachineError


class Server(ABC):
    """A process that is started, stopped, killed and started again; a context manager."""

    name: str
    """What it is called in errors."""
    user: str | None = None
    """Whose process it is; None means ours."""

    def __init__(self, patience: timedelta) -> None:
        self._patience = patience.total_seconds()
        self._folder = Path(tempfile.mkdtemp(prefix="millstream-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._starts = 0

    @abstractmethod
    def _prepare(self) -> None:
        """Make the data, before the first start."""

    @abstractmethod
    def _command(self) -> list[str]:
        """What to run."""

    @abstractmethod
    def _ready(self, log: str) -> bool:
        """Whether what it has logged says that it answers."""

    @property
    def pid(self) -> int | None:
        """The process of the server, while it runs."""
        return self._process.pid if self._process else None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        if self._process is not None:
            return
        if self._starts == 0:
            self._prepare()
        self._starts += 1
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C is for the test, which then stops the server itself
                **self._as_user(),
            )
        # Holds a pipe to us. If we end in any way, even by SIGKILL, the pipe closes and it kills the server; a line
        # on the pipe lets it go. Not the kernel's "signal at the parent's death": that is the death of the
        # parent's *thread*, and Linux only.
        self._watchdog = subprocess.Popen(
            ["sh", "-c", 'read -r _ || { kill -9 "$0"; sleep 1; rm -rf "$1"; }', str(self._process.pid), self._folder],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._wait()

    def stop(self) -> None:
        """Stop the server in good order; the data stays for :meth:`start`."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server, as a crash would; the data stays for :meth:`start`."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop, and start with the same port and data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End the server and delete its data."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _log(self) -> Path:
        return self._folder / f"server-{self._starts}.log"

    def _as_user(self) -> dict[str, Any]:
        """How a process becomes the server's user."""
        return {} if self.user is None else {"user": self.user, "group": self.user_group, "extra_groups": []}

    @property
    def user_group(self) -> int | None:
        """The group of the server's user."""
        return None

    def _do(self, command: list[str]) -> None:
        """Run something that prepares the data."""
        done = subprocess.run(command, capture_output=True, text=True, check=False, **self._as_user())
        if done.returncode != 0:
            raise MachineError(f"the data of the {self.name} could not be made: {tail(done.stdout + done.stderr)}")

    def _wait(self) -> None:
        deadline = time.monotonic() + self._patience
        while not self._ready(text := self._log.read_text(errors="replace")):
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                self.kill()
                what = "ended" if ended else f"was not ready after {self._patience:.0f} s"
                raise MachineError(f"the {self.name} {what}; its log ends with\n{tail(text)}")
            time.sleep(0.05)

    def _end(self, how: signal.Signals) -> None:
        process, watchdog = self._process, self._watchdog
        self._process = self._watchdog = None
        if process is not None:
            process.send_signal(how)
            try:
                process.wait(self._patience)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if watchdog is not None:
            # after the wait: should we die before it, the watchdog must still be there
            with suppress(BrokenPipeError):
                watchdog.communicate(b"\n")


def free_ports(count: int) -> list[int]:
    """Ports that are free now; all are held until the last is known, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def tail(text: str, lines: int = 20) -> str:
    """The last lines of a log."""
    return "\n".join(text.strip().splitlines()[-lines:])
