"""A real PostgreSQL server for tests, from the programs that are installed on this machine.

PostgreSQL refuses to run as root; then it runs as the user ``postgres``, or ``nobody`` where there is none. Everyone on
loopback is let in as ``millstream``, without a password. What it writes is not forced to the disk: that survives a kill of
the process, not of the machine.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from millstream.errors import MachineError
from millstream.testing.process import Server, free_ports

_OLDEST = 15
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "50",
    "max_wal_size": "256MB",
}
_STARTED = "database system is ready to accept connections"
_FOLDERS = ("/usr/lib/postgresql", "/opt/homebrew/opt", "/usr/local/opt", "/usr/pgsql")


def find_postgres() -> Path:
    """The folder of the server's programs, the newest there is; MachineError if there is none."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).resolve().parent] if on_path else []
    found += [path.parent for folder in _FOLDERS for path in Path(folder).glob("*/bin/initdb")]
    newest = max(found, key=_version, default=None)
    if newest is None or _version(newest) < _OLDEST:
        older = f"; found {newest}" if newest else ""
        raise MachineError(
            f"no PostgreSQL server of version {_OLDEST} or later on this machine{older}",
            hint="apt-get install postgresql",
        )
    return newest


class PostgresServer(Server):
    """A PostgreSQL server for tests, as a context manager. ``settings`` are further settings, which win over ours."""

    name = "PostgreSQL server"

    def __init__(
        self, *, settings: Mapping[str, str] | None = None, patience: timedelta = timedelta(seconds=60)
    ) -> None:
        self._programs = find_postgres()
        super().__init__(patience)
        (self.port,) = free_ports(1)
        self._settings = {**_SETTINGS, "port": str(self.port), **(settings or {})}
        if os.geteuid() == 0:
            self.user = _user()
            owner = pwd.getpwnam(self.user)
            os.chown(self._folder, owner.pw_uid, owner.pw_gid)

    @property
    def address(self) -> str:
        """The address that Millstream wants, of the database that is there at the start."""
        return f"postgresql://millstream@127.0.0.1:{self.port}/postgres"

    @property
    def user_group(self) -> int | None:
        """The group of the server's user."""
        return pwd.getpwnam(self.user).pw_gid if self.user else None

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _prepare(self) -> None:
        encoding = ["--encoding=UTF8", "--locale=C"]
        who = ["--username=millstream", "--auth=trust"]
        self._do([str(self._programs / "initdb"), "-D", str(self._data), "--no-sync", *encoding, *who])

    def _command(self) -> list[str]:
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self._programs / "postgres"), "-D", str(self._data), *settings]

    def _ready(self, log: str) -> bool:
        return _STARTED in log

    def _end(self, how: signal.Signals) -> None:
        # "Smart" is SIGTERM and waits for every client to leave; "fast" is what a restart does.
        children = _children(self.pid) if how == signal.SIGKILL and self.pid else []
        super()._end(signal.SIGINT if how == signal.SIGTERM else how)
        for child in children:  # they notice by themselves, but a new server does not start while one is left
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def _version(programs: Path) -> int:
    found = re.findall(r"\d+", str(programs))
    return int(found[-1]) if found else _OLDEST  # a folder without a number: whatever is on the path


def _user() -> str:
    names = {each.pw_name for each in pwd.getpwall()}
    for name in ("postgres", "nobody"):
        if name in names:
            return name
    raise MachineError("PostgreSQL does not run as root, and there is no user postgres or nobody")


def _children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text(errors="replace").rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found
