"""The server's paths, and what is said of every answer."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millstream.errors import MillstreamError
from millstream.serve import openapi
from millstream.serve.access import Access
from millstream.serve.events import Events
from millstream.serve.health import OPEN, Health
from millstream.serve.refusal import Refusal, answer_refusal, refusal_of
from millstream.serve.topics import Topics
from millstream.serve.views import Views

_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
"""What every answer says: it is data, of now, and no page."""


class Guard:
    """Lets in only requests for this server's host that no page of another site makes; its answers are never taken for a page."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            if scope["path"] not in OPEN:
                self._access.check_origin(Request(scope))
        except Refusal as refusal:
            await refusal.response()(scope, receive, told)
            return
        await self._app(scope, receive, told)


async def _unknown(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for nothing else
    why = {404: "there is nothing at this path", 405: "this path does not take that method"}
    refusal = Refusal(error.status_code, why.get(error.status_code, "the request cannot be answered"))
    response = refusal.response()
    response.headers.update(error.headers or {})
    return response


async def _failed(_request: Request, error: Exception) -> Response:
    assert isinstance(error, MillstreamError)  # noqa: S101 - registered for nothing else
    return refusal_of(error).response()


def routes_of(topics: Topics, events: Events, views: Views, health: Health) -> list[BaseRoute]:
    """The paths."""
    return [
        Route("/healthz", health.alive, methods=["GET"]),
        Route("/readyz", health.ready, methods=["GET"]),
        Route("/openapi.json", openapi.get, methods=["GET"]),
        Route("/metrics", health.metrics, methods=["GET"]),
        Route("/views/{view}", views.get, methods=["GET"]),
        Route("/topics/{topic}/events", events.get, methods=["GET"]),
        Route("/topics/{topic}", topics.post, methods=["POST"]),
        Route("/webhooks/{name}", topics.webhook, methods=["POST"]),
    ]


def make_app(access: Access, routes: Sequence[BaseRoute]) -> ASGIApp:
    """The whole of it."""
    handlers = {Refusal: answer_refusal, HTTPException: _unknown, MillstreamError: _failed}
    app = Starlette(routes=routes, exception_handlers=handlers)
    return Guard(app, access)
