"""Why a request is refused, as an answer that a client can act on: RFC 9457's problem details.

Invariant: what is told is what the client sent or may know; never a token, a path of this machine or a stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from millstream.errors import BadEvent, BadName, LogFull, MillstreamError, UnknownTopic, UnknownView
from millstream.printable import printable

PROBLEM = "application/problem+json"


class Refusal(Exception):
    """A request that is refused: a status, why, what to do, and after how many seconds to ask again.

    ``events`` are those that are at fault, by their place in the request, each with its reason.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        hint: str = "",
        after: float | None = None,
        events: Sequence[tuple[int, str]] = (),
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.hint, self.after, self.events = status, detail, hint, after, tuple(events)

    def response(self) -> Response:
        """The answer."""
        told: dict[str, object] = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": printable(self.detail),
        }
        if self.hint:
            told["hint"] = printable(self.hint)
        if self.events:
            told["events"] = [{"event": place, "reason": printable(reason)} for place, reason in self.events]
        headers = {} if self.after is None else {"Retry-After": str(max(1, round(self.after)))}
        if self.status == 401:
            headers["WWW-Authenticate"] = 'Bearer realm="millstream"'
        return Response(msgspec.json.encode(told), self.status, headers, media_type=PROBLEM)


_STATUS: tuple[tuple[type[MillstreamError], int], ...] = (
    (UnknownTopic, 404),
    (UnknownView, 404),
    (BadName, 404),
    (BadEvent, 422),
    (LogFull, 503),
)


def refusal_of(error: MillstreamError) -> Refusal:
    """An error of ours as a refusal. What is not the client's concern is told as unavailable, and no more of it."""
    for kind, status in _STATUS:
        if isinstance(error, kind):
            if status == 503:
                return Refusal(503, "the disk under the log is full; nothing was appended", after=10)
            return Refusal(status, error.message)
    return Refusal(503, "the log or the store of views is not available", after=2)


async def answer_refusal(_request: Request, error: Exception) -> Response:
    """What Starlette calls for a :class:`Refusal`."""
    assert isinstance(error, Refusal)  # noqa: S101 - registered for nothing else
    return error.response()
