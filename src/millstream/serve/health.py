"""``/healthz``, ``/readyz`` and ``/metrics``: whether the server lives, whether it can do its work, and how all of it stands."""

from __future__ import annotations

import asyncio

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from millstream.errors import MillstreamError
from millstream.log.contract import Log
from millstream.serve.access import Access
from millstream.serve.committer import Committer
from millstream.serve.metrics import CONTENT_TYPE, Metrics
from millstream.serve.refusal import Refusal

OPEN = ("/healthz", "/readyz")
"""Paths that are asked for by address, and tell nothing but a word: any host is theirs."""
_PATIENCE = 5.0  # seconds for the log to answer


class Health:
    """What whoever runs the server asks."""

    def __init__(self, log: Log, committer: Committer, metrics: Metrics, access: Access) -> None:
        self._log, self._committer, self._metrics, self._access = log, committer, metrics, access
        self._one = asyncio.Lock()

    async def alive(self, _request: Request) -> Response:
        """200 as long as the process answers."""
        return PlainTextResponse("alive\n")

    async def ready(self, _request: Request) -> Response:
        """200 if events can be appended; 503 if the log is away or has failed."""
        try:
            async with asyncio.timeout(_PATIENCE):
                await run_in_threadpool(self._log.topics)
        except (MillstreamError, TimeoutError):
            raise Refusal(503, "the log does not answer", after=2) from None
        if self._committer.away or self._committer.error is not None:
            raise Refusal(503, "the log is away", after=2)
        return PlainTextResponse("ready\n")

    async def metrics(self, request: Request) -> Response:
        """Everything that is counted."""
        self._access.check_metrics(request)
        async with self._one:
            text = await run_in_threadpool(self._metrics.text)
        return Response(text, media_type=CONTENT_TYPE)
