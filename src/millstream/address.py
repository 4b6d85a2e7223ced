"""Addresses of places for views: ``sqlite:PATH`` and ``postgresql://USER@HOST/DATABASE``.

Invariant: an address that was accepted holds no secret, only where to find one (``${env:NAME}``, ``${file:PATH}``), so it may be
printed and stored. Errors about an address show nothing that could be a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote

from millstream.config import resolve
from millstream.errors import ConfigError

NOWHERE = "nowhere"
"""Where a view is kept of which only the changes matter."""

_REFERENCE = re.compile(r"\$\{(?:env|file):[^}]*\}")
_SECRET = re.compile(r"password|secret|token", re.IGNORECASE)
_EXPECTED = "sqlite:PATH or postgresql://USER@HOST/DATABASE"


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """A database and a schema in it. ``options`` are those of libpq, with secrets by reference."""

    options: Mapping[str, str]
    schema: str

    def __str__(self) -> str:
        host = self.options.get("host", "")
        port = f":{self.options['port']}" if "port" in self.options else ""
        user = f"{self.options['user']}@" if "user" in self.options else ""
        return f"postgresql://{user}{host}{port}/{self.options.get('dbname', '')}?schema={self.schema}"

    def resolved(self) -> dict[str, str]:
        """The options with their secrets: never to be printed."""
        return {name: resolve(value) for name, value in self.options.items()}


def parse_address(address: str) -> Path | PostgresAddress:
    """Read an address; ConfigError if it is none, or if there is a password in it.

    >>> str(parse_address("postgresql://me:${env:SECRET}@db.example:5433/shop?schema=live"))
    'postgresql://me@db.example:5433/shop?schema=live'
    """
    scheme, _, rest = address.partition(":")
    if scheme == "sqlite" and rest.strip("/"):
        return Path(rest.removeprefix("//") if rest.startswith("///") else rest)
    if scheme == "postgresql" and rest.startswith("//"):
        return _postgres(rest[2:])
    raise ConfigError(
        f"views: found {redacted(address)!r}, expected {_EXPECTED}", hint="for example to='sqlite:shop.views.db'"
    )


def redacted(address: str) -> str:
    """What may be printed of an address that was not accepted.

    >>> redacted("postgres://me:secret@host/db?password=secret")
    'postgres:…@host/db?…'
    """
    place, mark, _ = address.partition("?")
    return re.sub(r":.*@", ":…@", place, flags=re.DOTALL) + ("?…" if mark else "")


def _postgres(rest: str) -> PostgresAddress:
    # A reference may hold what has a meaning in an address, such as a slash.
    escaped = _REFERENCE.sub(lambda found: quote(found.group(), safe=""), rest)
    place, _, query = escaped.partition("?")
    machine, _, database = place.partition("/")
    who, _, hosts = machine.rpartition("@")
    user, _, password = who.partition(":")
    options = {"user": user, "password": password, "dbname": database}
    ends = [_host(each) for each in hosts.split(",")]
    if "@" in database or any(port and not port.isdigit() for _, port in ends):
        raise ConfigError(  # whatever stands there may be part of a password
            f"views: found an address of PostgreSQL that cannot be read, expected {_EXPECTED}",
            hint="write %2F for a slash in a name, %40 for an @; and a password as ${env:NAME}",
        )
    options["host"] = ",".join(host for host, _ in ends)
    if any(port for _, port in ends):
        options["port"] = ",".join(port for _, port in ends)
    options = {name: unquote(value) for name, value in options.items() if value}
    options |= dict(parse_qsl(query.replace("+", "%2B"), keep_blank_values=True))
    for name, value in options.items():
        if _SECRET.search(name) and not _REFERENCE.fullmatch(value):
            raise ConfigError(
                f"views in postgresql://…/{options.get('dbname', '')}: found a secret in the address ({name})",
                hint=f"write {name}=${{env:NAME}} or {name}=${{file:PATH}} behind the '?'; PGPASSWORD and ~/.pgpass work as well",
            )
    schema = options.pop("schema", "public")
    if not schema or "\0" in schema or len(schema.encode()) > 63 or schema.lower().startswith("pg_"):
        raise ConfigError(
            f"views: found the schema {schema!r}, expected a name of at most 63 bytes, not beginning with pg_"
        )
    return PostgresAddress(options, schema)


def _host(text: str) -> tuple[str, str]:
    """Host and port; an IPv6 address stands in brackets."""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        return host, port.removeprefix(":")
    host, _, port = text.partition(":")
    return host, port
