"""Who may do what: tokens with scopes, and requests that a browser was tricked into.

A token is kept as its digest and compared in constant time. A scope is ``read:NAME``, ``write:NAME``, ``read:*``, ``write:*`` or
``metrics``. Without tokens, everyone who reaches this machine's loopback may do everything, which is why a server that others can
reach does not start without one.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import Request

from millstream.errors import ConfigError
from millstream.secret import resolve
from millstream.serve.refusal import Refusal
from millstream.serve_settings import ServeSettings

ANYONE = "anyone"
"""The owner of a request where there are no tokens."""
_SHORTEST = 16  # characters of a token
_WORDS = ("read", "write")


@dataclass(frozen=True)
class Token:
    """The digest of a token, whose it is, and what it may do."""

    owner: str
    digest: bytes
    scopes: frozenset[str]

    def allows(self, word: str, name: str) -> bool:
        """Whether it may ``read`` or ``write`` what is called ``name``."""
        return f"{word}:{name}" in self.scopes or f"{word}:*" in self.scopes


class Access:
    """What requests are let in."""

    def __init__(self, settings: ServeSettings, hosts: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        self._tokens = [_token(name, each.token, each.scopes, environ) for name, each in settings.tokens.items()]
        self._hosts = frozenset(host.lower() for host in (*hosts, *settings.hosts))

    @property
    def open(self) -> bool:
        """Whether nobody is asked for a token."""
        return not self._tokens

    def check_origin(self, request: Request) -> None:
        """Refusal of a request for another host (421), and of one that a page of another site makes (403)."""
        if host_of(request.headers.get("host", "")) not in self._hosts:
            raise Refusal(421, "this server does not answer for that host", hint="name it in serve.hosts")
        origin = request.headers.get("origin")
        foreign = origin is not None and host_of(urlsplit(origin).netloc) not in self._hosts
        if foreign or request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            raise Refusal(403, "requests by pages of other sites are not answered")

    def check(self, request: Request, word: str, name: str) -> str:
        """The owner of the request's token, which may ``read`` or ``write`` what is called ``name``; Refusal 401 or 403."""
        if not self._tokens:
            return ANYONE
        token = self._token_of(request)
        if not token.allows(word, name):
            raise Refusal(403, f"this token may not {word} {name}")
        return token.owner

    def check_metrics(self, request: Request) -> None:
        """Refusal unless the token has the scope ``metrics``."""
        if self._tokens and "metrics" not in self._token_of(request).scopes:
            raise Refusal(403, "this token may not read metrics")

    def _token_of(self, request: Request) -> Token:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not given:
            raise Refusal(401, "a token is needed", hint="Authorization: Bearer TOKEN")
        digest = _digest(given.strip())
        found = [token for token in self._tokens if hmac.compare_digest(token.digest, digest)]  # all are compared
        if not found:
            raise Refusal(401, "this token is not known")
        return found[0]


def host_of(netloc: str) -> str:
    """The name in an address, without its port, in lower case.

    >>> host_of("Localhost:8080"), host_of("[::1]:8080"), host_of("user@evil")
    ('localhost', '::1', '')
    """
    if "@" in netloc:
        return ""
    try:
        return (urlsplit(f"//{netloc}").hostname or "").lower()
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("shop.example")
    (True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _token(name: str, reference: str, scopes: Sequence[str], environ: Mapping[str, str] | None) -> Token:
    text = resolve(reference, environ)
    if len(text) < _SHORTEST:
        raise ConfigError(
            f"serve.tokens.{name}: found a token of {len(text)} characters, expected at least {_SHORTEST}",
            hint="`python -c 'import secrets; print(secrets.token_urlsafe())'` makes one",
        )
    for scope in scopes:
        word, _, what = scope.partition(":")
        if scope != "metrics" and (word not in _WORDS or not what):
            raise ConfigError(
                f"serve.tokens.{name}: found the scope {scope!r}, expected read:NAME, write:NAME, read:*, write:* or metrics"
            )
    return Token(name, _digest(text), frozenset(scopes))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogateescape")).digest()
