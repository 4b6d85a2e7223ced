"""A real MariaDB server for tests, from the programs that are installed on this machine.

It writes its binary log by rows, with the names of columns, as a capture needs it. As root it runs as the user ``mysql``, or
``nobody`` where there is none. Everyone on loopback is let in as ``millstream``, without a password. What it writes is not forced to
the disk: that survives a kill of the process, not of the machine. The data of an installed service is never touched.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from millstream.errors import MachineError
from millstream.testing.process import Server, free_ports, tail

_SETTINGS = {
    "bind-address": "127.0.0.1",
    "skip-name-resolve": "ON",
    "server-id": "1",
    "log-bin": "binlog",
    "binlog-format": "ROW",
    "binlog-row-image": "FULL",
    "binlog-row-metadata": "FULL",
    "character-set-server": "utf8mb4",
    "innodb-buffer-pool-size": "32M",
    "innodb-log-file-size": "16M",
    "innodb-flush-log-at-trx-commit": "2",
    "sync-binlog": "0",
    "performance-schema": "OFF",
}
_STARTED = "ready for connections"
_TABLES = ("system_tables.sql", "performance_tables.sql", "system_tables_data.sql")
_SHARES = ("share/mysql", "share/mariadb", "share")
_FIRST = """SET sql_log_bin = 0;
CREATE USER IF NOT EXISTS millstream@'127.0.0.1';
GRANT ALL ON *.* TO millstream@'127.0.0.1' WITH GRANT OPTION;
CREATE DATABASE IF NOT EXISTS shop;
"""


def find_mariadb() -> Path:
    """The server's program; MachineError if there is none."""
    folders = ["/usr/sbin", "/usr/local/sbin", "/usr/libexec", "/opt/homebrew/opt/mariadb/bin"]
    found = shutil.which("mariadbd", path=os.pathsep.join([os.environ.get("PATH", ""), *folders]))
    if found is None:
        raise MachineError("no MariaDB server on this machine", hint="apt-get install mariadb-server-core")
    return Path(found)


class MariaDbServer(Server):
    """A MariaDB server for tests, as a context manager. ``settings`` are further settings, which win over ours."""

    name = "MariaDB server"

    def __init__(
        self, *, settings: Mapping[str, str] | None = None, patience: timedelta = timedelta(seconds=60)
    ) -> None:
        self._program = find_mariadb()
        super().__init__(patience)
        (self.port,) = free_ports(1)
        self._settings = {**_SETTINGS, **(settings or {})}
        if os.geteuid() == 0:
            names = {each.pw_name for each in pwd.getpwall()}
            self.user = "mysql" if "mysql" in names else "nobody"
            owner = pwd.getpwnam(self.user)
            os.chown(self._folder, owner.pw_uid, owner.pw_gid)

    @property
    def address(self) -> str:
        """The address that Millstream wants, of a database that is there at the start."""
        return f"mysql://millstream@127.0.0.1:{self.port}/shop"

    @property
    def data(self) -> Path:
        """The folder of the server's data: its binary log too."""
        return self._folder / "data"

    @property
    def user_group(self) -> int | None:
        """The group of the server's user."""
        return pwd.getpwnam(self.user).pw_gid if self.user else None

    def _prepare(self) -> None:
        self.data.mkdir()
        if self.user:
            owner = pwd.getpwnam(self.user)
            os.chown(self.data, owner.pw_uid, owner.pw_gid)
        first = self._folder / "first.sql"
        first.write_text(_FIRST)
        first.chmod(0o644)
        tables = "CREATE DATABASE mysql;\nUSE mysql;\n" + "".join(_tables_of(self._program))
        done = subprocess.run(
            [*self._start(), "--bootstrap", "--log-bin=OFF", "--skip-networking"],
            input=tables.encode(),
            capture_output=True,
            check=False,
            **self._as_user(),
        )
        if done.returncode != 0:
            said = tail(done.stderr.decode(errors="replace"))
            raise MachineError(f"the data of the {self.name} could not be made: {said}")

    def _start(self) -> list[str]:
        own = {"datadir": self.data, "tmpdir": self._folder, "socket": self._folder / "s", "pid-file": "server.pid"}
        return [str(self._program), "--no-defaults", *(f"--{name}={value}" for name, value in own.items())]

    def _command(self) -> list[str]:
        settings = {"port": self.port, "init-file": self._folder / "first.sql", **self._settings}
        return [*self._start(), *(f"--{name}={value}" for name, value in settings.items())]

    def _ready(self, log: str) -> bool:
        return _STARTED in log


def _tables_of(program: Path) -> list[str]:
    """The statements that make the tables of the server itself, as its own installer runs them."""
    for share in _SHARES:
        for prefix in ("mariadb", "mysql"):
            files = [program.resolve().parent.parent / share / f"{prefix}_{name}" for name in _TABLES]
            if all(file.exists() for file in files):
                return [file.read_text(encoding="utf-8") for file in files]
    raise MachineError(f"{program}: found no {_TABLES[0]} beside it", hint="apt-get install mariadb-server-core")
