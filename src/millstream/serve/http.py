"""The server itself: sockets, and connections that take too long to say what they want.

Invariant: when it ends in good order, what was accepted has been appended and answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from millstream.errors import ConfigError, LogUnavailable
from millstream.log.contract import Log
from millstream.pipeline import Pipeline
from millstream.serve.access import Access, is_loopback
from millstream.serve.app import make_app, routes_of
from millstream.serve.committer import Committer
from millstream.serve.events import Events
from millstream.serve.follow import Tails
from millstream.serve.health import Health
from millstream.serve.journal import Journal
from millstream.serve.judge import Definitions
from millstream.serve.metrics import Metrics
from millstream.serve.topics import Topics
from millstream.serve.views import Views
from millstream.serve_settings import ServeSettings

_GRACE = 10  # seconds for requests that are on their way when the server ends


@dataclass(frozen=True)
class Address:
    """Where a server listens, and with which certificate."""

    host: str = "127.0.0.1"
    port: int = 8080
    certificate: str | None = None
    key: str | None = None

    @property
    def url(self) -> str:
        """The address for people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.certificate else ''}://{host}:{self.port}"


class _Listener(uvicorn.Server):
    """Says where it listens once it does: the port may be 0, for any that is free."""

    def __init__(
        self, config: uvicorn.Config, address: Address, ready: Callable[[Address], None], ending: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._address, self._ready, self._ending = address, ready, ending

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            self._ready(Address(self._address.host, port, self._address.certificate))

    async def shutdown(self, sockets: Any = None) -> None:
        self._ending()
        await super().shutdown(sockets)


def serve(
    log: Log,
    pipelines: Sequence[Pipeline],
    settings: ServeSettings,
    address: Address,
    *,
    name: str,
    ready: Callable[[Address], None],
    sealed: Collection[str] = (),
) -> None:
    """Serve until SIGINT or SIGTERM. ``ready`` is called with the address once it listens; nothing is appended to ``sealed`` topics.

    ConfigError if others could reach it without a token or could read what is sent. LogUnavailable if the log failed under it.
    """
    access = Access(settings, _hosts(address))
    _check_exposure(address, access)
    with ExitStack() as stack:
        definitions = Definitions(pipelines)
        journal = Journal(log, name)
        listener: list[_Listener] = []

        def stop() -> None:
            for each in listener:
                each.should_exit = True

        committer = Committer(log, journal, definitions.reasons, keys=settings.limits.keys, stopped=stop)
        stack.callback(committer.close)
        parts = _Parts(log, pipelines, settings, address, access, committer, frozenset(sealed))
        asyncio.run(_listen(parts, listener, ready))
        if committer.error is not None:
            raise LogUnavailable(f"the server ended: {committer.error.message}", hint=committer.error.hint)


@dataclass(frozen=True)
class _Parts:
    """What the paths of a server are made of."""

    log: Log
    pipelines: Sequence[Pipeline]
    settings: ServeSettings
    address: Address
    access: Access
    committer: Committer
    sealed: frozenset[str]


async def _listen(parts: _Parts, listener: list[_Listener], ready: Callable[[Address], None]) -> None:
    log, access, limits = parts.log, parts.access, parts.settings.limits
    tails = Tails(log)
    with closing(Views(parts.pipelines, access, limits.seconds)) as views:
        routes = routes_of(
            Topics(log, parts.committer, access, parts.settings, parts.sealed),
            Events(log, tails, access, limits),
            views,
            Health(log, parts.committer, Metrics(log, parts.pipelines, parts.committer), access),
        )
        config = _config(make_app(access, routes), parts.settings, parts.address)
        listener.append(_Listener(config, parts.address, ready, tails.end))
        await listener[0].serve()


def _hosts(address: Address) -> list[str]:
    return ["localhost", "127.0.0.1", "::1"] if is_loopback(address.host) else [address.host]


def _check_exposure(address: Address, access: Access) -> None:
    if is_loopback(address.host):
        return
    if access.open:
        raise ConfigError(
            f"{address.host}: others can reach this address, and nobody would be asked for a token",
            hint="name tokens in [serve.tokens.NAME], or listen on 127.0.0.1",
        )
    if not address.certificate:
        raise ConfigError(
            f"{address.host}: others could read tokens on their way to this address",
            hint="give --certificate and --key, or listen on 127.0.0.1 behind a proxy that has them",
        )


def _config(app: Any, settings: ServeSettings, address: Address) -> uvicorn.Config:
    class Patient(_Patient):
        seconds = settings.limits.seconds

    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # what clients do wrong is told to them
    return uvicorn.Config(
        app,
        host=address.host,
        port=address.port,
        http=Patient,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=settings.limits.connections,
        timeout_graceful_shutdown=_GRACE,
        ssl_certfile=address.certificate,
        ssl_keyfile=address.key,
    )


class _Patient(H11Protocol):
    """A connection whose client has so many seconds for the head of each request: else slow ones would hold all connections."""

    seconds: float
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.seconds, self._give_up)

    def data_received(self, data: bytes) -> None:
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._timer = self.loop.call_later(self.seconds, self._give_up)
        super().data_received(data)
        if self._timer is not None and self.cycle is not None and not self.cycle.response_complete:
            self._timer.cancel()
            self._timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _give_up(self) -> None:
        self._timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
