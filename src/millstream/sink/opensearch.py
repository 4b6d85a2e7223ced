"""Documents of an OpenSearch index as a sink: at least once, and a repeat changes nothing.

A document has the number of its batch as its external version, so OpenSearch itself refuses what is older or there already. A request
with many documents is not all or nothing: a batch that was cut short is there in part until it is sent again. Which batch is there in
whole stands in a document of the index ``millstream-sinks``, written when all of it is.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote, urlsplit

from millstream.errors import ConfigError, SinkError, SinkUnavailable
from millstream.failpoint import failpoint
from millstream.relation.sink_address import SearchServer
from millstream.sink import json_rows
from millstream.sink.contract import ChangeSet, Packed, Sink
from millstream.store.contract import Refusal

NUMBERS = "millstream-sinks"
"""The index in which the numbers of batches are."""
ROWS, BYTES = 5_000, 5 << 20
"""Documents and bytes of a request, at most; but always one document."""
_PAGE = 1000
_TIMEOUT = 30.0
_LONGEST = 512
_BUSY = (429, 502, 503, 504)
_THERE, _MISSING, _REFUSED = 409, 404, 400

Document: TypeAlias = tuple[str, str | None]
"""An id, and the document as JSON; None if it goes."""


class _Answer(NamedTuple):
    status: int
    body: Any


class OpenSearchSink(Sink):
    """An index whose ids are the JSON of rows' keys."""

    def __init__(self, server: SearchServer, view: str, producer: str, key: tuple[str, ...]) -> None:
        if not key:
            raise ConfigError(
                f"view {view} has no key, so its rows cannot be documents with ids", hint="group_by gives it one"
            )
        self._server, self._view, self._producer, self._key = server, view, producer, list(key)
        self._connection: http.client.HTTPConnection | None = None
        self._checked = False

    @property
    def _where(self) -> str:
        return f"OpenSearch at {self._server.url}, index {self._server.name}"

    def last(self) -> int | None:
        """The number of the newest batch that is there in whole."""
        found = self._ask("GET", self._number())
        return int(found.body["_source"]["sequence"]) if found.status == http.client.OK else None

    def pack(self, change_set: ChangeSet) -> Packed:
        """Rows as documents by id, and the ids that are gone."""
        rows, refused = json_rows.writable(change_set.rows)
        made: list[Document] = []
        ids, documents = json_rows.documents(rows.select(self._key)), json_rows.documents(rows)
        for at, (name, document) in enumerate(zip(ids.to_list(), documents.to_list(), strict=True)):
            if len(name.encode()) > _LONGEST:
                refused += json_rows.refusals(rows[at], f"the id of a document has at most {_LONGEST} bytes")
            else:
                made.append((name, document))
        gone, _ = json_rows.writable(change_set.gone)  # what was refused when it came is not there
        made += [(name, None) for name in json_rows.documents(gone).to_list() if len(name.encode()) <= _LONGEST]
        return Packed(made, refused)

    def send(
        self,
        payload: list[Document],
        sequence: int,
        *,
        marked: bool,  # noqa: ARG002
        after: int | None = None,  # noqa: ARG002
    ) -> list[Refusal]:
        """Send the documents with the number as their version, then say that all of them are there."""
        known = self.last()
        if not payload or (known is not None and sequence <= known):
            return []
        self._check(payload)
        refused: list[Refusal] = []
        for part in _parts(payload):
            refused += self._bulk(part, sequence)
            failpoint("sink.opensearch.part")
        said = self._ask(
            "PUT", f"{self._number()}?version={sequence}&version_type=external", json.dumps({"sequence": sequence})
        )
        if said.status >= _REFUSED and said.status != _THERE:
            raise self._error(said)
        return refused

    def held(self) -> Iterator[tuple[str, str]]:
        """All documents of the index as it is now, a thousand a request."""
        found = self._ask("POST", f"/{self._server.name}/_refresh")
        if found.status == _MISSING:
            return
        query = {"size": _PAGE, "sort": ["_doc"]}
        found = self._ask("POST", f"/{self._server.name}/_search?scroll=1m", json.dumps(query))
        while found.status == http.client.OK and (hits := found.body["hits"]["hits"]):
            for each in hits:
                yield each["_id"], json.dumps(each["_source"])
            scroll = {"scroll": "1m", "scroll_id": found.body["_scroll_id"]}
            found = self._ask("POST", "/_search/scroll", json.dumps(scroll))
        if found.status != http.client.OK:
            raise self._error(found)
        self._ask("DELETE", "/_search/scroll", json.dumps({"scroll_id": found.body["_scroll_id"]}))

    def anew(self) -> bool:
        """Whether the index is empty: who else has documents in it is not known."""
        found = self._ask("GET", f"/{self._server.name}/_count")
        return found.status == _MISSING or (found.status == http.client.OK and not found.body["count"])

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    def _number(self) -> str:
        return f"/{NUMBERS}/_doc/{quote(f'{self._producer} {self._server.name}', safe='')}"

    def _check(self, payload: Sequence[Document]) -> None:
        """Make the index, or refuse one whose mapping has no room for the view's columns."""
        if self._checked:
            return
        found = self._ask("GET", f"/{self._server.name}/_mapping")
        if found.status == _MISSING:
            made = self._ask("PUT", f"/{self._server.name}", "{}")
            if made.status >= _REFUSED and "already_exists" not in json.dumps(made.body):
                raise self._error(made)
        elif found.status >= _REFUSED:
            raise self._error(found)
        else:
            mapping = next(iter(found.body.values()))["mappings"]
            columns: dict[str, Any] = json.loads(next((text for _, text in payload if text is not None), "{}"))
            missing = [name for name in columns if name not in mapping.get("properties", {})]
            if missing and str(mapping.get("dynamic", "true")).lower() == "strict":
                raise SinkError(
                    f"{self._where}: its mapping is strict and has no {', '.join(missing)}, columns of view {self._view}",
                    hint="add them to the mapping, or name another index",
                )
        self._checked = True

    def _bulk(self, part: Sequence[Document], sequence: int) -> list[Refusal]:
        """Send some documents in one request; those that are there, or were refused, are no error."""
        lines = []
        for name, document in part:
            about = {"_index": self._server.name, "_id": name, "version": sequence, "version_type": "external"}
            lines.append(json.dumps({"index" if document is not None else "delete": about}))
            lines += [] if document is None else [document]
        found = self._ask("POST", "/_bulk", "\n".join(lines) + "\n", "application/x-ndjson")
        if found.status != http.client.OK:
            raise self._error(found)
        refused: list[Refusal] = []
        items = found.body["items"]
        for (name, document), item in zip(part, items, strict=True):
            (said,) = item.values()
            status, why = said["status"], said.get("error", {})
            if status in (_THERE, *range(200, 300)) or (status == _MISSING and document is None):
                continue
            if status == _REFUSED and document is not None:
                refused.append(Refusal(name, why.get("reason", "refused")))
                continue
            raise self._error(_Answer(status, said))
        return refused

    def _ask(self, method: str, path: str, body: str | None = None, kind: str = "application/json") -> _Answer:
        """Ask the server; SinkUnavailable if it does not answer, or is too busy."""
        headers = {"Content-Type": kind}
        if who := self._server.who():
            headers["Authorization"] = "Basic " + base64.b64encode(who.encode()).decode()
        try:
            if self._connection is None:
                self._connection = _connect(self._server.url)
            self._connection.request(method, path, None if body is None else body.encode(), headers)
            response = self._connection.getresponse()
            found = _Answer(response.status, _read(response.read()))
        except (OSError, http.client.HTTPException) as error:
            self.close()
            self._connection = None
            raise SinkUnavailable(f"{self._where}: {error or type(error).__name__}", hint="is it running?") from error
        if found.status in (401, 403):
            raise self._error(found)
        if found.status in _BUSY:
            raise SinkUnavailable(f"{self._where}: {_reason(found)}", hint="it is too busy; the batch is sent again")
        return found

    def _error(self, found: _Answer) -> SinkError:
        if found.status in _BUSY:
            return SinkUnavailable(f"{self._where}: {_reason(found)}", hint="it is too busy; the batch is sent again")
        hints = {
            401: "name who you are: opensearch://USER:${env:PASSWORD}@HOST:PORT/INDEX",
            403: "let the user write to the index and to millstream-sinks",
        }
        return SinkError(f"{self._where}: {_reason(found)}", hint=hints.get(found.status, ""))


def _connect(url: str) -> http.client.HTTPConnection:
    place = urlsplit(url)
    assert place.hostname is not None  # noqa: S101
    if place.scheme == "https":
        return http.client.HTTPSConnection(
            place.hostname, place.port, timeout=_TIMEOUT, context=ssl.create_default_context()
        )
    return http.client.HTTPConnection(place.hostname, place.port, timeout=_TIMEOUT)


def _read(data: bytes) -> Any:
    try:
        return json.loads(data) if data else {}
    except ValueError:  # a proxy that answers in its own words
        return {"error": data[:200].decode(errors="replace")}


def _reason(found: _Answer) -> str:
    """What the server says of an error, with its status."""
    error = found.body.get("error", "") if isinstance(found.body, dict) else ""
    return f"{found.status} {error.get('reason', '') if isinstance(error, dict) else error}".strip()


def _parts(documents: Sequence[Document]) -> Iterator[list[Document]]:
    part: list[Document] = []
    size = 0
    for name, document in documents:
        bytes_ = len(name) + len(document or "") + 100
        if part and (len(part) == ROWS or size + bytes_ > BYTES):
            yield part
            part, size = [], 0
        part.append((name, document))
        size += bytes_
    yield part
