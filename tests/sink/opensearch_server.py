"""A stand-in for OpenSearch: as much of its HTTP interface as the sink uses, by its documented rules. It is not OpenSearch.

Documents have external versions, also for a while after they were deleted; a bulk request answers for each of its documents; types of
fields follow the first document that has them, and another type is refused. Faults are told to it: so many requests, or so many
documents of a request, that are too many; a connection that ends before the answer.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_BUSY = {"type": "rejected_execution_exception", "reason": "rejected execution of coordinating operation"}
_DATE = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d(\.\d+)?Z)?")


@dataclass
class Index:
    """Documents, their versions, those of documents that are gone, and the types of fields."""

    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    dynamic: str = "true"


@dataclass
class State:
    """What the server has, and which faults wait."""

    indexes: dict[str, Index] = field(default_factory=dict)
    who: str = ""
    busy: int = 0
    """Requests that are answered by 429."""
    busy_items: int = 0
    """Documents of the next bulk request that are too many: its last ones."""
    silent: int = 0
    """Bulk requests that are done, and whose answer is lost."""
    bulks: int = 0
    scrolls: list[tuple[list[dict[str, Any]], int]] = field(default_factory=list)
    away: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


def _type(value: Any) -> str | None:
    match value:
        case None | []:
            return None
        case bool():
            return "boolean"
        case int():
            return "long"
        case float():
            return "float"
        case str():
            return "date" if _DATE.fullmatch(value) else "text"
        case [first, *_]:
            return _type(first)
        case _:
            return "object"


def _fits(kind: str, value: Any) -> bool:
    """Whether a field of a type takes a value: numbers take numbers, text takes all but objects."""
    found = _type(value)
    if found in (None, kind) or {found, kind} <= {"long", "float"}:
        return True
    if kind == "text":
        return found != "object"
    return kind in ("long", "float") and isinstance(value, str) and value.replace(".", "", 1).isdigit()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: State

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""

    def do_GET(self) -> None:
        self._do("GET")

    def do_PUT(self) -> None:
        self._do("PUT")

    def do_DELETE(self) -> None:
        self._do("DELETE")

    def do_POST(self) -> None:
        self._do("POST")

    def _do(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.state.lock:
            status, answer = self._answer(method, body)
        if status == 0:
            self.close_connection = True
            return
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _answer(self, method: str, body: bytes) -> tuple[int, Any]:
        state, url = self.state, urlsplit(self.path)
        wanted = "Basic " + base64.b64encode(state.who.encode()).decode()
        if state.who and self.headers.get("Authorization") != wanted:
            return 401, {"error": {"type": "security_exception", "reason": "Unauthorized"}, "status": 401}
        if state.away:
            return 0, {}
        if state.busy:
            state.busy -= 1
            return 429, {"error": _BUSY, "status": 429}
        path = [unquote(part) for part in url.path.strip("/").split("/")]
        match (method, path):
            case ("POST", ["_bulk"]):
                return self._bulk(body)
            case ("GET", [name, "_mapping" | "_count"]) | ("POST", [name, "_refresh"]) if name not in state.indexes:
                return 404, {
                    "error": {"type": "index_not_found_exception", "reason": f"no such index [{name}]"},
                    "status": 404,
                }
            case ("GET", [name, "_mapping"]):
                index = state.indexes[name]
                properties = {each: {"type": kind} for each, kind in index.types.items()}
                return 200, {name: {"mappings": {"dynamic": index.dynamic, "properties": properties}}}
            case ("POST", [name, "_refresh"]):
                return 200, {"_shards": {"failed": 0}}
            case ("POST", [name, "_search"]) if parse_qs(url.query).get("scroll") and name != "_search":
                asked = json.loads(body)
                assert asked["sort"] == ["_doc"]
                found = [{"_id": each, "_source": row} for each, row in state.indexes[name].documents.items()]
                state.scrolls.append((found, asked["size"]))
                return self._page(len(state.scrolls) - 1)
            case ("POST", ["_search", "scroll"]):
                return self._page(int(json.loads(body)["scroll_id"]))
            case ("DELETE", ["_search", "scroll"]):
                state.scrolls[int(json.loads(body)["scroll_id"])] = ([], 0)
                return 200, {"succeeded": True}
            case ("GET", [name, "_count"]):
                return 200, {"count": len(state.indexes[name].documents)}
            case ("PUT", [name]):
                if name in state.indexes:
                    return 400, {
                        "error": {"type": "resource_already_exists_exception", "reason": "exists"},
                        "status": 400,
                    }
                state.indexes[name] = Index()
                return 200, {"acknowledged": True}
            case ("GET", [name, "_doc", found]):
                index = state.indexes.get(name, Index())
                if found not in index.documents:
                    return 404, {"_index": name, "_id": found, "found": False}
                return 200, {
                    "_id": found,
                    "_version": index.versions[found],
                    "found": True,
                    "_source": index.documents[found],
                }
            case ("PUT", [name, "_doc", found]):
                options = parse_qs(url.query)
                assert options["version_type"] == ["external"]
                return self._put("index", name, found, int(options["version"][0]), json.loads(body))
        return 400, {"error": {"type": "illegal_argument_exception", "reason": f"{method} {self.path}"}, "status": 400}

    def _page(self, number: int) -> tuple[int, Any]:
        """The next documents of a scroll, as they were when it began."""
        found, size = self.state.scrolls[number]
        self.state.scrolls[number] = (found[size:], size)
        return 200, {"_scroll_id": str(number), "hits": {"hits": found[:size]}}

    def _bulk(self, body: bytes) -> tuple[int, Any]:
        self.state.bulks += 1
        assert body.endswith(b"\n"), "a bulk request ends with a newline"
        assert self.headers["Content-Type"] == "application/x-ndjson"
        lines = iter(body.decode().split("\n")[:-1])
        asked = []
        for line in lines:
            ((action, about),) = json.loads(line).items()
            assert about["version_type"] == "external"
            document = json.loads(next(lines)) if action == "index" else None
            asked.append((action, about, document))
        fine = len(asked) - self.state.busy_items
        self.state.busy_items = 0
        items = []
        for number, (action, about, document) in enumerate(asked):
            status, said = 429, {"error": _BUSY}
            if number < fine:
                status, said = self._put(action, about["_index"], about["_id"], about["version"], document)
            items.append({action: {"_index": about["_index"], "_id": about["_id"], "status": status, **said}})
        if self.state.silent:
            self.state.silent -= 1
            return 0, {}
        return 200, {"errors": any("error" in next(iter(item.values())) for item in items), "items": items}

    def _put(
        self, action: str, name: str, found: str, version: int, document: dict[str, Any] | None
    ) -> tuple[int, Any]:
        if not 0 < len(found.encode()) <= 512:
            return 400, {"error": {"type": "illegal_argument_exception", "reason": "id is too long"}}
        index = self.state.indexes.setdefault(name, Index())
        there = index.versions.get(found)
        if there is not None and there >= version:
            reason = f"[{found}]: version conflict, current version [{there}] is higher or equal to the one provided [{version}]"
            return 409, {"error": {"type": "version_conflict_engine_exception", "reason": reason}}
        if document is None:
            index.versions[found] = version
            gone = index.documents.pop(found, None)
            return (404, {"result": "not_found"}) if gone is None else (200, {"result": "deleted"})
        for column, value in document.items():
            if column not in index.types and index.dynamic == "strict":
                return 400, {
                    "error": {
                        "type": "strict_dynamic_mapping_exception",
                        "reason": f"introduction of [{column}] is not allowed",
                    }
                }
            if column in index.types and not _fits(index.types[column], value):
                reason = (
                    f"failed to parse field [{column}] of type [{index.types[column]}] in document with id '{found}'"
                )
                return 400, {"error": {"type": "mapper_parsing_exception", "reason": reason}}
        for column, value in document.items():
            if (kind := _type(value)) is not None:
                index.types.setdefault(column, kind)
        created = found not in index.documents
        index.versions[found], index.documents[found] = version, document
        return (201 if created else 200), {"result": "created" if created else "updated", "_version": version}


@contextmanager
def opensearch() -> Iterator[tuple[str, State]]:
    """Run it on a free port; give HOST:PORT and its state."""
    state = State()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"state": state}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", state
    finally:
        state.away = True  # also on connections that are open
        server.shutdown()
        thread.join()
        server.server_close()
