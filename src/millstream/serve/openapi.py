"""``/openapi.json``: the server's paths as OpenAPI 3.1 has them, for clients that are made from it. It names no topic and no view."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from millstream.serve import cloudevents
from millstream.serve.bodies import JSON, LINES
from millstream.serve.metrics import CONTENT_TYPE
from millstream.serve.refusal import PROBLEM
from millstream.version import __version__

_TEXT, _NUMBER = {"type": "string"}, {"type": "integer", "minimum": 0}
_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": _TEXT,
        "title": _TEXT,
        "status": _NUMBER,
        "detail": _TEXT,
        "hint": _TEXT,
        "events": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"event": _NUMBER, "reason": _TEXT},
                "required": ["event", "reason"],
            },
        },
    },
}
_APPENDED = {
    "type": "object",
    "required": ["topic", "events", "positions"],
    "properties": {
        "topic": _TEXT,
        "events": _NUMBER,
        "positions": {"type": "array", "items": {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}},
    },
}
_ROWS = {
    "type": "object",
    "required": ["view", "batch", "offset", "rows"],
    "properties": {
        "view": _TEXT,
        "batch": {"type": ["integer", "null"]},
        "offset": _NUMBER,
        "rows": {"type": "array", "items": {"type": "object"}},
    },
}


def _parameter(place: str, name: str, schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {"in": place, "name": name, "schema": schema, "description": text, "required": place == "path"}


def _query(**named: tuple[dict[str, Any], str]) -> list[dict[str, Any]]:
    return [_parameter("query", name, schema, text) for name, (schema, text) in named.items()]


def _operation(summary: str, kind: str, schema: dict[str, Any], parameters: list[dict[str, Any]], **more: Any) -> Any:
    return {
        "summary": summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": "done", "content": {kind: {"schema": schema}}},
            "default": {
                "description": "refused",
                "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
        **more,
    }


def _body(*kinds: str) -> dict[str, Any]:
    return {"required": True, "content": {kind: {} for kind in kinds}}


def document() -> dict[str, Any]:
    """All of it."""
    topic = _parameter("path", "topic", _TEXT, "the name of a topic")
    key = _parameter(
        "header", "Idempotency-Key", {"type": "string", "minLength": 1, "maxLength": 255}, "makes a retry safe"
    )
    last = _parameter("header", "Last-Event-ID", _TEXT, "the id of the last event that was seen")
    signed = [
        _parameter("header", f"webhook-{name}", _TEXT, "as in Standard Webhooks")
        for name in ("id", "timestamp", "signature")
    ]
    fields = _query(
        key=(_TEXT, "the key of a single event"),
        key_field=(_TEXT, "the field of JSON that is the key"),
        time_field=(_TEXT, "the field of JSON that is the time"),
    )
    page = _query(
        sort=(_TEXT, "columns by comma, - before one that goes downwards"),
        limit=({"type": "integer", "minimum": 1, "maximum": 1000}, "so many rows"),
        offset=({"type": "integer", "minimum": 0, "maximum": 100_000}, "after so many"),
        at_least=(_TEXT, "TOPIC/PARTITION:OFFSET,…: not before the view has seen these records"),
        wait=({"type": "number", "minimum": 0}, "seconds to wait for that"),
    )
    kinds = (JSON, LINES[0], cloudevents.STRUCTURED, cloudevents.BATCH)
    plain = "text/plain"
    opened: dict[str, Any] = {"security": []}
    paths = {
        "/topics/{topic}": {
            "post": _operation("append events", JSON, _APPENDED, [topic, key, *fields], requestBody=_body(*kinds))
        },
        "/topics/{topic}/events": {
            "get": _operation(
                "follow a topic", "text/event-stream", _TEXT,
                [topic, last, *_query(**{"from": (_TEXT, "earliest, latest, a time, or offsets: 0:17,1:4")})],
            )
        },
        "/webhooks/{name}": {
            "post": _operation(
                "append a signed webhook", JSON, _APPENDED, [_parameter("path", "name", _TEXT, "of the settings"), *signed],
                requestBody=_body(*kinds), **opened,
            )
        },
        "/views/{view}": {
            "get": _operation("rows of a view", JSON, _ROWS, [_parameter("path", "view", _TEXT, "the name of a view"), *page])
        },
        "/metrics": {"get": _operation("how all of it stands", CONTENT_TYPE.partition(";")[0], _TEXT, [])},
        "/healthz": {"get": _operation("whether the process answers", plain, _TEXT, [], **opened)},
        "/readyz": {"get": _operation("whether events can be appended", plain, _TEXT, [], **opened)},
        "/openapi.json": {"get": _operation("this document", JSON, {"type": "object"}, [], **opened)},
    }  # fmt: skip
    return {
        "openapi": "3.1.0",
        "info": {"title": "Millstream", "version": __version__},
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


async def get(_request: Request) -> Response:
    """Give it."""
    return Response(msgspec.json.encode(document()), media_type=JSON)
