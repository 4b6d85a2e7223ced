"""Flink SQL, as durable as we are or without any fault tolerance, with the settings that its documentation gives for speed.

PyFlink needs other versions of packages than we do, so it lives in an environment of its own in the user's cache, which is made
on first use. Queries are files beside this one. A result goes nowhere when it is timed; when it is looked at it goes into files as
changes, whose sum is the answer.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from string import Template
from typing import Any

from millstream.bench.nexmark.peers.layout import READERS, Input, dealt, written_iso
from millstream.bench.rules import for_flink
from millstream.errors import MachineError
from millstream.spark.environment import Package, python_with
from millstream.spark.jars import resolve
from millstream.spark.java import find_java

VERSION = "2.3.0"
_PACKAGE = Package("apache-flink", VERSION, "pyflink.table", "900 MB", "a package index and a Python from 3.9 to 3.12")
CLUSTER = {
    "rest.address": "127.0.0.1",
    "rest.bind-address": "127.0.0.1",
    "rest.bind-port": "0",
    "taskmanager.memory.managed.size": "1536m",
    "taskmanager.memory.network.min": "128m",
    "taskmanager.memory.network.max": "128m",
}
SETTINGS = {
    "parallelism.default": str(READERS),
    "pipeline.object-reuse": "true",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
    "table.local-time-zone": "UTC",
    "table.optimizer.distinct-agg.split.enabled": "true",
}
DURABLE = {
    "state.backend.type": "rocksdb",
    "execution.checkpointing.interval": "10 s",
    "execution.checkpointing.incremental": "true",
    # Else a job that is through waits for one more checkpoint, up to 10 s.
    "execution.checkpointing.checkpoints-after-tasks-finish": "false",
}
HEAP = {"state.backend.type": "hashmap"}
CONNECTOR = "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2"
"""The newest there is; it is made for Flink 2.2, and runs on 2.3."""
KAFKA = {
    "scan.startup.mode": "earliest-offset",
    "scan.bounded.mode": "latest-offset",
    "properties.isolation.level": "read_committed",
}
MEMORY = "-Xms1g -Xmx4g"

_HERE = Path(__file__).parent
_NOWHERE = "CREATE TABLE answer WITH ('connector' = 'blackhole') AS\n"
_FILES = """CREATE TABLE answer {partitioned} WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = '{format}') AS
"""
_PARTITIONED = {"q10": "PARTITIONED BY (dt, hm)"}


class Flink:
    """A small cluster in a process of its own; :meth:`close` ends it."""

    def __init__(self, say: Callable[[str], None], *, kafka: bool) -> None:
        python = installed(say)
        if kafka:
            _add_connector(python)
        say("flink: starting")
        self._folder = tempfile.TemporaryDirectory(prefix="millstream-flink-")
        self._work = Path(self._folder.name)
        self._errors = (self._work / "errors.txt").open("w+")
        self._laid: dict[tuple[Path, bool], Path] = {}
        self._numbers = count()
        logs = self._work / "logs"
        logs.mkdir()
        settings = {**CLUSTER, "io.tmp.dirs": str(self._work)}
        environment = {**os.environ, "JAVA_HOME": str(find_java().home), "JVM_ARGS": MEMORY, "FLINK_LOG_DIR": str(logs)}
        environment.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(
            [python, str(_HERE / "flink_worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )
        self._ask({"settings": settings, "slots": READERS})

    def seconds(self, system: str, query: str, given: Input) -> float | str:
        """Time a query from its start to its end; or say why Flink does not run it."""
        where = self._work / f"out-{next(self._numbers)}"
        sink = _NOWHERE
        if query in _PARTITIONED:
            sink = _FILES.format(partitioned=_PARTITIONED[query], path=where.as_uri(), format="csv")
        try:
            return self._run(system, query, given, sink)
        finally:
            shutil.rmtree(where, ignore_errors=True)

    def answer(self, system: str, query: str, given: Input) -> list[list[Any]] | str:
        """Give the final content of a query; or say why Flink does not run it."""
        where = self._work / f"out-{next(self._numbers)}"
        sink = _FILES.format(partitioned="", path=where.as_uri(), format="debezium-json")
        try:
            ran = self._run(system, query, given, sink)
            return ran if isinstance(ran, str) else summed(where)
        finally:
            shutil.rmtree(where, ignore_errors=True)

    def close(self) -> None:
        """End the process, and forget what it wrote."""
        with suppress(BrokenPipeError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()  # type: ignore[union-attr]
        self._errors.close()
        self._folder.cleanup()

    def _run(self, system: str, query: str, given: Input, sink: str) -> float | str:
        settings = dict(SETTINGS)
        if system == "flink":
            checkpoints = self._work / f"checkpoints-{next(self._numbers)}"
            settings |= {**DURABLE, "execution.checkpointing.dir": checkpoints.as_uri()}
        else:
            settings |= HEAP
        iso = written_iso(given.folder)
        values = {
            "EVENTS": self._events(query, given),
            "SIDE": self._side().as_uri(),
            "TIME": "TIMESTAMP_LTZ(3)" if iso else "TIMESTAMP(3)",
            "STANDARD": "ISO-8601" if iso else "SQL",
        }
        *before, question = [*statements("prelude", values), *statements(query, values)]
        return self._ask({"settings": settings, "statements": [*before, sink + question]})

    def _events(self, query: str, given: Input) -> str:
        """The options of the table of events. For a pattern the bids of an auction come by one reader, in their order."""
        if given.bootstrap:
            options = {"connector": "kafka", "topic": given.topic, "properties.bootstrap.servers": given.bootstrap}
            options |= KAFKA
        else:
            laid = (given.folder, not query.startswith("q"))
            if laid not in self._laid:
                self._laid[laid] = dealt(laid[0], self._work / f"in-{next(self._numbers)}", by_auction=laid[1])
            options = {"connector": "filesystem", "path": self._laid[laid].as_uri()}
        return ", ".join(f"'{name}' = '{value}'" for name, value in options.items())

    def _side(self) -> Path:
        path = self._work / "side.csv"
        if not path.exists():
            path.write_text("".join(f"{key},{key},1970-01-01 00:00:00\n" for key in range(10_000)))
        return path

    def _ask(self, request: dict[str, Any]) -> float | str:
        assert self._process.stdin is not None  # noqa: S101
        assert self._process.stdout is not None  # noqa: S101
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            told = self._errors.read().strip().splitlines()[-1:] or ["it said nothing"]
            raise MachineError(
                f"Flink's process ended: {told[0]}", hint="look at the memory and the Java of this machine"
            )
        answer = json.loads(line)
        if "error" in answer:
            return f"{'failed' if answer['begun'] else 'refused'}: {cause(answer['error'])}"
        return float(answer["seconds"])


def statements(query: str, values: dict[str, str]) -> list[str]:
    """The statements of a file, without comments; of ``many_N``, which is so many patterns, the one."""
    kind, _, number = query.partition("_")
    if kind == "many":
        return [for_flink(int(number))]
    lines = (_HERE / "flink" / f"{query}.sql").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("--"))
    return [each.strip() for each in Template(text).substitute(values).split(";") if each.strip()]


def summed(folder: Path) -> list[list[Any]]:
    """The rows that are left when all changes in the files of a folder are taken together."""
    left: Counter[str] = Counter()
    for path in filter(Path.is_file, folder.rglob("*")):
        for line in path.read_bytes().splitlines():
            change = json.loads(line)
            removed = change["op"] == "d"
            left[json.dumps(list(change["before" if removed else "after"].values()))] += -1 if removed else 1
    return [json.loads(row) for row in left.elements()]


def cause(error: str) -> str:
    """The innermost reason of a Java error."""
    reasons = [line for line in error.splitlines() if line.startswith("Caused by: ")]
    first = reasons[-1].removeprefix("Caused by: ") if reasons else error.strip().splitlines()[0]
    return first.split(": ", 1)[-1]


def installed(say: Callable[[str], None]) -> Path:
    """The Python that has PyFlink; it is made where there is none, which takes a minute and 900 MB."""
    return python_with(_PACKAGE, "flink", say)


def _add_connector(python: Path) -> None:
    """Put the connector for Kafka where Flink loads its own classes from, so that no job has to bring it."""
    (lib,) = python.parent.parent.glob("lib/python*/site-packages/pyflink/lib")
    for jar in resolve(CONNECTOR, alone=True):
        if not (lib / jar.name).exists():
            shutil.copy2(jar, lib / jar.name)
