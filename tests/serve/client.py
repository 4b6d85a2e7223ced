"""A server of its own process, as people start it, and a plain client of it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

COMMAND = [sys.executable, "-c", "from millstream.cli import main; main()"]


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Server:
    """One that runs in ``folder``, with its settings in ``millstream.toml`` there."""

    def __init__(self, folder: Path, log: str, arguments: Sequence[str] = (), environ: Mapping[str, str] | None = None):
        command = [*COMMAND, "serve", *arguments, "--port", "0", "--json", "--log", log]
        self.errors = folder / "stderr.txt"
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, env={**os.environ, **(environ or {})}
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors.read_text()
        self.port = int(json.loads(line)["url"].rpartition(":")[2])

    def ask(
        self, method: str, path: str, body: bytes | str | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            return ask(connection, method, path, body, headers)
        finally:
            connection.close()

    def post(self, path: str, value: Any, **headers: str) -> Answer:
        """A document of JSON; ``idempotency_key`` is the header Idempotency-Key."""
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        return self.ask("POST", path, json.dumps(value), {"Content-Type": "application/json"} | named)

    def kill(self) -> None:
        """End it as a crash does; one that has ended stays so."""
        self.process.kill()
        self._close()

    def stop(self) -> int:
        """End it in good order; give its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._close()

    def _close(self) -> int:
        code = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """One request on an open connection."""
    connection.request(method, path, body, dict(headers or {}))
    response = connection.getresponse()
    return Answer(response.status, cast("Mapping[str, str]", response.headers), response.read().decode())


@contextmanager
def serving(
    folder: Path, log: str, arguments: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """A server that is ended with the block."""
    server = Server(folder, log, arguments, environ)
    try:
        yield server
    finally:
        server.kill()


class Listening:
    """A client of server-sent events."""

    def __init__(self, server: Server, path: str, headers: Mapping[str, str] | None = None) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        self.connection.request("GET", path, headers=dict(headers or {}))
        self.response = self.connection.getresponse()
        self.last = ""

    def next(self) -> tuple[str, Any]:
        """The kind and the data of the next event; comments are passed over. EOFError at the end."""
        kind, data = "message", None
        while True:
            line = self.response.readline().decode()
            if not line:
                raise EOFError
            name, _, value = line.rstrip("\n").partition(": ")
            if not line.strip():
                if data is not None:
                    return kind, data
                kind = "message"
            elif name == "id":
                self.last = value
            elif name == "event":
                kind = value
            elif name == "data":
                data = json.loads(value)

    def take(self, count: int) -> list[Any]:
        """The data of so many events, none of which is a reset."""
        found = [self.next() for _ in range(count)]
        assert {kind for kind, _ in found} <= {"message"}, found
        return [data for _, data in found]

    def close(self) -> None:
        self.response.close()
        self.connection.close()


@contextmanager
def listening(server: Server, path: str, headers: Mapping[str, str] | None = None) -> Iterator[Listening]:
    client = Listening(server, path, headers)
    try:
        yield client
    finally:
        client.close()
