"""A small schema registry for tests: Confluent's HTTP interface over real HTTP, in memory."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

Answer = tuple[int, Any]


class SchemaRegistry:
    """Serves on loopback until it is closed; ``asked`` has every request, ``login`` is who may ask, if not everybody."""

    def __init__(self, login: tuple[str, str] | None = None) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.login = login
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def add(self, subject: str, schema: object, kind: str = "AVRO", **more: object) -> int:
        """Register a schema, as its owner would; gives its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        entry = {"schema": text, **({"schemaType": kind} if kind != "AVRO" else {}), **more}
        if entry not in self.schemas:
            self.schemas.append(entry)
        number = self.schemas.index(entry) + 1
        if number not in self.subjects.setdefault(subject, []):
            self.subjects[subject].append(number)
        return number

    def answer(self, method: str, path: str, body: dict[str, Any]) -> Answer:
        """What the registry says: status and JSON."""
        match method, [unquote(part) for part in path.partition("?")[0].strip("/").split("/")]:
            case "GET", ["schemas", "ids", text] if 1 <= int(text) <= len(self.schemas):
                return 200, self.schemas[int(text) - 1]
            case "GET", ["subjects", subject, "versions", "latest"] if subject in self.subjects:
                number = self.subjects[subject][-1]
                version = len(self.subjects[subject])
                return 200, {"subject": subject, "version": version, "id": number, **self.schemas[number - 1]}
            case "GET", ["subjects", subject, "versions"] if subject in self.subjects:
                return 200, list(range(1, len(self.subjects[subject]) + 1))
            case "GET", ["subjects", subject, "versions", version] if int(version) <= len(
                self.subjects.get(subject, [])
            ):
                number = self.subjects[subject][int(version) - 1]
                return 200, {"subject": subject, "version": int(version), "id": number, **self.schemas[number - 1]}
            case "POST", ["subjects", subject, "versions"]:
                number = self.add(subject, body["schema"], body.get("schemaType", "AVRO"))
                return 200, {"id": number, "version": self.subjects[subject].index(number) + 1, **body}
            case "POST", ["subjects", subject]:
                wanted = {key: body[key] for key in ("schema", "schemaType") if key in body}
                for number in self.subjects.get(subject, []):
                    if self.schemas[number - 1] == wanted:
                        return 200, {"subject": subject, "version": 1, "id": number} | wanted
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _handler(registry) -> type[BaseHTTPRequestHandler]:  # noqa: N805  (self is the handler's)
        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                registry.asked.append(f"{self.command} {self.path}")
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                wanted = "Basic " + base64.b64encode(":".join(registry.login or ()).encode()).decode()
                if registry.login and self.headers.get("Authorization") != wanted:
                    status, said = 401, {"error_code": 401, "message": "Unauthorized"}
                else:
                    status, said = registry.answer(self.command, self.path, json.loads(body or b"{}"))
                data = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = _serve  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
