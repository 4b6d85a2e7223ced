"""One process with everything loaded, from which Spark's Python processes on this machine are forked.

Spark starts Python for each source of a query, for each of its stages (to ask what state the stage keeps) and for the daemons of its
workers. Each of these processes would import the same modules, and the query would wait a third of a second for it. So the setting
for Spark's Python names another program, :mod:`millstream.spark.internals.python_shim`, which asks this process for a fork.

This process ends with the process that started it. Without it everything works, only slower.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import importlib.util
import marshal
import os
import re
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from millstream.spark.internals import python_shim, quiet_daemon
from millstream.spark.internals.registry import Internal, expect

_DAEMON = "pyspark.daemon"
"""The daemon that Spark's planner starts; a fork runs it as :mod:`millstream.spark.internals.quiet_daemon`."""
MODULES = (
    "millstream.spark.internals.daemon",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.streaming.transform_with_state_driver_worker",
    _DAEMON,
)
"""The modules that Spark runs with ``python -m``. A call of any other module is refused."""

_OTHERS = re.compile(r"_?(SPARK|PYSPARK|PYTHON)_|PYTHON(PATH|UNBUFFERED)$|(_|PWD|OLDPWD|SHLVL)$")
"""Variables that may differ: those of Spark itself and of the shell that starts it. Modules may have read any other when they were loaded."""


class Preload:
    """The handle that the owner has of the process; ``python`` is the program for Spark to start."""

    def __init__(self, parent: Path) -> None:
        """Start it, with its files in a new folder in ``parent``."""
        folder = Path(tempfile.mkdtemp(prefix="python-", dir=parent))
        self.python, address = folder / "python", str(folder / "calls")
        words = [sys.executable, "-IS", python_shim.__file__, address]
        try:
            self.python.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            self.python.chmod(0o700)
            if not os.access(self.python, os.X_OK):
                raise PermissionError(f"{self.python}: no program may be run there")
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(address)
                server.listen()  # a call that comes while the modules are loaded waits
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "millstream.spark.internals.preload", str(server.fileno())],
                    stdin=subprocess.PIPE,
                    pass_fds=[server.fileno()],
                    env={"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"} | os.environ,  # as Spark has them
                )
        except OSError:
            shutil.rmtree(folder)
            raise
        atexit.register(self.close)

    @classmethod
    def start(cls, parent: Path) -> Preload | None:
        """Start the process, or return None: the path may be too long for a socket, the disk read-only or mounted without ``exec``."""
        try:
            return cls(parent) if FORK.works() else None
        except OSError:
            return None

    def close(self) -> None:
        """End the process. Its forks go on until Spark ends them."""
        atexit.unregister(self.close)
        self._process.communicate()


class Call(NamedTuple):
    """A call of Python: the socket of the caller, the arguments, the environment, and the files of input and outputs."""

    caller: socket.socket
    arguments: list[str]
    environment: dict[str, str]
    files: list[int]

    @classmethod
    def receive(cls, caller: socket.socket) -> Call:
        """Read what :mod:`millstream.spark.internals.python_shim` sends."""
        size, files, _, _ = socket.recv_fds(caller, 4, 3)
        text, length = b"", int.from_bytes(size)
        while len(text) < length and (part := caller.recv(length - len(text))):
            text += part
        arguments, environment = marshal.loads(text)  # noqa: S302  (its folder is ours alone)
        return cls(caller, arguments, environment, list(files))

    def is_for_us(self, ours: Mapping[str, str]) -> bool:
        """Whether it runs one of :data:`MODULES`, in an environment in which they would be loaded as they were in ``ours``."""
        wanted, found = (
            {name: value for name, value in each.items() if not _OTHERS.match(name)}
            for each in (self.environment, ours)
        )
        wanted.setdefault("OMP_NUM_THREADS", found["OMP_NUM_THREADS"])  # Spark tells it only to some
        return self.arguments[0] == "-m" and self.arguments[1] in MODULES and wanted == found


def serve(server: socket.socket, environment: Mapping[str, str]) -> Call | None:
    """Answer calls until our input ends. A fork returns with the call that it is to run; this process returns None at the end."""
    own_input = sys.stdin.fileno()
    while own_input not in select.select([server.fileno(), own_input], [], [])[0]:
        caller, _ = server.accept()
        caller.settimeout(3)  # others wait while it speaks
        with caller, suppress(OSError, ValueError, EOFError):  # who asked may be gone
            call = Call.receive(caller)
            if call.is_for_us(environment) and not os.fork():
                return call._replace(caller=caller.dup())
            for each in call.files:
                os.close(each)
    return None


def become(call: Call) -> None:
    """Run a module as if Python had been started for it, and tell how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.register_at_fork(after_in_child=call.caller.close)
    for target, each in enumerate(call.files):
        os.dup2(each, target)
        os.close(each)
    os.environ.clear()
    os.environ.update(call.environment)
    sys.path[1:1] = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each not in sys.path]
    _, module, *rest = call.arguments
    if module.startswith("pyspark.sql.streaming."):  # they speak by a socket, and say on their output that they do
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.argv = [module, *rest]
    code = 1
    try:
        call.caller.sendall(os.getpid().to_bytes(4))
        if module == _DAEMON:
            quiet_daemon.manager()
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        with suppress(OSError):
            call.caller.sendall(bytes([code & 255]))


def main(server: socket.socket) -> None:
    """Load everything, then fork."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for our owner, and Spark's Python ignores it too
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    environment = dict(os.environ)  # before any module changes it
    for name in set(MODULES) - {_DAEMON}:
        importlib.import_module(name)
        del sys.modules[name]  # it will be __main__
    gc.collect()
    gc.freeze()
    folder = Path(server.getsockname()).parent
    with server:
        call = serve(server, environment)
    if call is None:
        shutil.rmtree(folder)
    else:
        become(call)


def _test() -> None:
    for name in (each for each in MODULES if each.startswith("pyspark.")):
        found = importlib.util.find_spec(name)
        expect(found is not None and found.origin, f"there is no module {name}")
        text = Path(found.origin).read_text(encoding="utf-8")  # type: ignore[union-attr, arg-type]
        expect('if __name__ == "__main__":' in text, f"{name} is not run with python -m")
        speaks = name == _DAEMON or "get_sock_file_to_executor(" in text
        expect(speaks, f"{name} does not speak by a socket")  # for what it says on its output goes nowhere


FORK = Internal("fork", "Spark starts Python itself, which loads everything each time", _test)

if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
