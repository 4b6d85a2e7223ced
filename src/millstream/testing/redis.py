"""A real Redis server for tests, from the program that is installed on this machine. What it acknowledges is on the disk."""

from __future__ import annotations

import shutil
from datetime import timedelta

from millstream.errors import MachineError
from millstream.testing.process import Server, free_ports

_STARTED = "Ready to accept connections"


class RedisServer(Server):
    """A Redis server for tests, as a context manager."""

    name = "Redis server"

    def __init__(self, *, patience: timedelta = timedelta(seconds=60)) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise MachineError("no Redis server on this machine", hint="apt-get install redis-server")
        super().__init__(patience)
        self._program = program
        (self.port,) = free_ports(1)

    @property
    def url(self) -> str:
        """The address of its first database."""
        return f"redis://127.0.0.1:{self.port}/0"

    def _prepare(self) -> None:
        pass

    def _command(self) -> list[str]:
        settings = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self._folder,
            "appendonly": "yes",
            "appendfsync": "always",
        }
        return [self._program, *(str(part) for name, value in settings.items() for part in (f"--{name}", value))]

    def _ready(self, log: str) -> bool:
        return _STARTED in log
