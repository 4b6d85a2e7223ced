"""Addresses: of logs, ``sqlite:PATH`` and ``kafka://HOST:PORT``; of places for views, ``sqlite:PATH`` and
``postgresql://USER@HOST/DATABASE``; of Redis, ``redis://HOST:PORT/NUMBER``; of databases to capture, ``mysql://USER@HOST/DATABASE`` too.

Invariant: an address that was accepted holds no secret, only where to find one (see :mod:`millstream.secret`), so it may be
printed and stored. Errors about an address show nothing that could be a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote

from millstream.errors import ConfigError
from millstream.secret import check_address, is_reference, is_secret, quoted, redacted, resolve

NOWHERE = "nowhere"
"""Where a view is kept of which only the changes matter."""

_REDIS = re.compile(r"(\[[^]@]+\]|[^:/@#]+)(:(\d+|%24%7B[^:/@#]+))?(/(\d*|%24%7B[^:/@#]+))?")
_EXPECTED = "sqlite:PATH or postgresql://USER@HOST/DATABASE"


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """A database and a schema in it. ``options`` are those of libpq, with secrets by reference."""

    options: Mapping[str, str]
    schema: str

    def __str__(self) -> str:
        hosts, ports = (self.options.get(name, "").split(",") for name in ("host", "port"))
        ends = zip(hosts, ports * (len(hosts) if len(ports) == 1 else 1), strict=False)
        place = ",".join(f"{host}:{port}" if port else host for host, port in ends)
        user = f"{self.options['user']}@" if "user" in self.options else ""
        return f"postgresql://{user}{place}/{self.options.get('dbname', '')}?schema={self.schema}"

    def resolved(self) -> dict[str, str]:
        """The options with their secrets: never to be printed."""
        return {name: resolve(value) for name, value in self.options.items()}


def parse_address(address: str) -> Path | PostgresAddress:
    """Read an address; ConfigError if it is none, or if there is a password in it.

    >>> str(parse_address("postgresql://me:${env:SECRET}@db.example:5433/shop?schema=live"))
    'postgresql://me@db.example:5433/shop?schema=live'
    >>> str(parse_address("postgresql://me@a:5433,b/shop"))
    'postgresql://me@a:5433,b/shop?schema=public'
    """
    scheme, _, rest = address.partition(":")
    if scheme == "sqlite" and rest.strip("/"):
        return Path(rest.removeprefix("//") if rest.startswith("///") else rest)
    if scheme == "postgresql" and rest.startswith("//"):
        return _postgres(rest[2:], "views", _EXPECTED)
    raise ConfigError(
        f"views: found {redacted(address)!r}, expected {_EXPECTED}", hint="for example to='sqlite:shop.views.db'"
    )


def parse_postgres(address: str) -> PostgresAddress:
    """Read the address of a database to capture; its schema is that of tables named without one.

    >>> str(parse_postgres("postgresql://me:${env:SECRET}@db.example/shop"))
    'postgresql://me@db.example/shop?schema=public'
    """
    expected = "postgresql://USER@HOST/DATABASE"
    scheme, mark, rest = address.partition("://")
    if scheme != "postgresql" or not mark:
        raise ConfigError(f"capture: found {redacted(address)!r}, expected {expected}")
    return _postgres(rest, "capture", expected)


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A Redis server and a database of it; ``user``, ``password`` and ``query`` are as they were written, with secrets by reference."""

    scheme: str
    user: str
    password: str
    place: str
    query: str

    @property
    def where(self) -> str:
        """Host, port and database, for messages."""
        return unquote(self.place)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.where}"

    def resolved(self) -> str:
        """The address with its secrets, percent-encoded: never to be printed."""
        who = ":".join(quote(resolve(unquote(each)), safe="") for each in (self.user, self.password))
        query = "&".join(
            f"{quote(name)}={quote(resolve(value), safe='')}"
            for name, value in parse_qsl(self.query, keep_blank_values=True)
        )
        return f"{self.scheme}://{f'{who}@' if who != ':' else ''}{resolve(unquote(self.place))}{f'?{query}' if query else ''}"


def parse_redis(address: str) -> RedisAddress:
    """Read the address of a Redis server; ConfigError if there is a secret in it.

    >>> str(parse_redis("redis://:${env:REDIS_PASSWORD}@cache.example:6379/0"))
    'redis://cache.example:6379/0'
    """
    hint = "name where a password is: redis://:${env:REDIS_PASSWORD}@HOST:PORT/0"
    check_address("redis", address, hint)
    scheme, _, rest = quoted(address).partition("://")
    whole, _, query = rest.partition("?")
    who, _, place = whole.rpartition("@")
    user, _, password = who.partition(":")
    if not _REDIS.fullmatch(place) or "@" in query:  # whatever stands there may be part of a password
        raise ConfigError("redis: found an address that cannot be read, expected redis://HOST:PORT/NUMBER", hint=hint)
    return RedisAddress(scheme, user, password, place, query)


@dataclass(frozen=True, slots=True)
class LogAddress:
    """A log: ``embedded`` in the file at ``place``, or on Kafka, whose servers are ``place`` as its clients take them."""

    embedded: bool
    place: str

    def __str__(self) -> str:
        return f"sqlite:{self.place}" if self.embedded else f"kafka://{self.place}"

    def absolute(self) -> LogAddress:
        """The address as seen from here: Spark's Python processes have the folder that the JVM was started in."""
        return replace(self, place=str(Path(self.place).absolute())) if self.embedded else self


def parse_log(address: str, what: str = "log") -> LogAddress:
    """Read the address of a log; ConfigError, about ``what``, if it is none, or if there is a secret in it.

    >>> parse_log("kafka://a:9092,b:9092/")
    LogAddress(embedded=False, place='a:9092,b:9092')
    >>> str(parse_log("sqlite:///srv/events.db"))
    'sqlite:/srv/events.db'
    """
    scheme, _, rest = address.partition(":")
    if scheme == "sqlite" and rest.strip("/"):
        return LogAddress(True, rest.removeprefix("//") if rest.startswith("///") else rest)
    if scheme == "kafka" and rest.startswith("//") and len(rest) > 2:
        if "@" in rest or "?" in rest:
            raise ConfigError(
                f"{what}: found {redacted(address)!r}, expected kafka://HOST:PORT",
                hint='name and password belong into the settings: kafka."sasl.username", kafka."sasl.password" = "${env:NAME}"',
            )
        return LogAddress(False, rest[2:].rstrip("/"))
    raise ConfigError(
        f"{what}: found {redacted(address)!r}, expected sqlite:PATH or kafka://HOST:PORT",
        hint="for example --log sqlite:millstream.db",
    )


def _postgres(rest: str, what: str, expected: str) -> PostgresAddress:
    place, _, query = quoted(rest).partition("?")
    machine, _, database = place.partition("/")
    who, _, hosts = machine.rpartition("@")
    user, _, password = who.partition(":")
    options = {"user": user, "password": password, "dbname": database}
    ends = [_host(each) for each in hosts.split(",")]
    if "@" in database or any(port and not port.isdigit() for _, port in ends):
        raise ConfigError(  # whatever stands there may be part of a password
            f"{what}: found an address of PostgreSQL that cannot be read, expected {expected}",
            hint="write %2F for a slash in a name, %40 for an @; and a password as ${env:NAME}",
        )
    options["host"] = ",".join(host for host, _ in ends)
    if any(port for _, port in ends):
        options["port"] = ",".join(port for _, port in ends)
    options = {name: unquote(value) for name, value in options.items() if value}
    options |= dict(parse_qsl(query.replace("+", "%2B"), keep_blank_values=True))
    for name, value in options.items():
        if is_secret(name) and not is_reference(value):
            raise ConfigError(
                f"{what} in postgresql://…/{options.get('dbname', '')}: found a secret in the address ({name})",
                hint=f"write {name}=${{env:NAME}} or {name}=${{file:PATH}} behind the '?'; PGPASSWORD and ~/.pgpass work as well",
            )
    schema = options.pop("schema", "public")
    if not schema or "\0" in schema or len(schema.encode()) > 63 or schema.lower().startswith("pg_"):
        raise ConfigError(
            f"{what}: found the schema {schema!r}, expected a name of at most 63 bytes, not beginning with pg_"
        )
    return PostgresAddress(options, schema)


def _host(text: str) -> tuple[str, str]:
    """Host and port; an IPv6 address stands in brackets."""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        return host, port.removeprefix(":")
    host, _, port = text.partition(":")
    return host, port


@dataclass(frozen=True, slots=True)
class MysqlAddress:
    """A database of MariaDB or MySQL; ``options`` are those of its client, with secrets by reference."""

    host: str
    port: int
    user: str
    database: str
    options: Mapping[str, str]

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"mysql://{self.user}@{host}:{self.port}/{self.database}"

    def resolved(self) -> dict[str, str]:
        """The options with their secrets: never to be printed."""
        return {name: resolve(value) for name, value in self.options.items()}


_MYSQL_OPTIONS = ("password", "ssl_ca", "ssl_cert", "ssl_key", "ssl_key_password", "ssl_verify_identity")


def parse_mysql(address: str) -> MysqlAddress:
    """Read the address of a database of MariaDB or MySQL; ConfigError if it is none, or if there is a password in it.

    >>> str(parse_mysql("mariadb://me:${env:SECRET}@db.example/shop"))
    'mysql://me@db.example:3306/shop'
    """
    expected = "mysql://USER@HOST:PORT/DATABASE"
    hint = "name where a password is: mysql://USER:${env:NAME}@HOST/DATABASE, or ?password=${file:PATH}"
    check_address("capture", address, hint)
    scheme, mark, rest = quoted(address).partition("://")
    if scheme not in ("mysql", "mariadb") or not mark:
        raise ConfigError(f"capture: found {redacted(address)!r}, expected {expected}", hint=hint)
    place, _, query = rest.partition("?")
    machine, _, database = place.partition("/")
    who, _, end = machine.rpartition("@")
    user, _, password = who.partition(":")
    host, port = _host(end)
    if not user or not host or not database or "@" in who or "/" in database or (port and not port.isdigit()):
        raise ConfigError(  # whatever stands there may be part of a password
            f"capture: found an address of MariaDB or MySQL that cannot be read, expected {expected}", hint=hint
        )
    options = {"password": unquote(password)} if password else {}
    options |= dict(parse_qsl(query.replace("+", "%2B"), keep_blank_values=True))
    for name, value in options.items():
        if name not in _MYSQL_OPTIONS:
            raise ConfigError(f"capture: found the option {name!r}, expected one of {', '.join(_MYSQL_OPTIONS)}")
        if is_secret(name) and not is_reference(value):
            raise ConfigError(f"capture: found a secret in the address ({name})", hint=hint)
    return MysqlAddress(host, int(port or 3306), unquote(user), unquote(database), options)
