"""Where a sink sends, as text: the addresses of sinks and their options, read and checked. Nothing is opened here.

Invariant: an address that was accepted holds no secret (:mod:`millstream.secret`), and every option in it is known to its kind of sink.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import timedelta
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from millstream.address import parse_log, parse_redis
from millstream.errors import ConfigError, PlanError
from millstream.relation.schema import parse_duration
from millstream.secret import check_address, quoted, redacted, resolve

EXPECTED = (
    "topic:NAME, topic:NAME@LOG, redis://HOST:PORT/DB, files:FOLDER, delta:FOLDER, search:PATH?columns=A,B,"
    " opensearch://HOST:PORT/INDEX or a function"
)
TOKENIZERS = ("unicode61", "porter", "trigram")
"""How a text index cuts text into words: at what is no letter or digit; that with English endings removed; every three characters."""

_OPTIONS = {
    "files": ("format", "partition"),
    "delta": ("partition",),
    "search": ("columns", "tokenizer"),
    "opensearch": ("tls",),
}
_SCHEMES = ("topic", "redis", "rediss", *_OPTIONS)
_OPENSEARCH = re.compile(r"(\[[^]@]+\]|[^:/@?#\[\]]+)(:\d+)?/([^/@?#]+)")
_INDEX = re.compile(r"[a-z0-9][a-z0-9_.-]*")


class Folder(NamedTuple):
    """Where and how a sink of files writes: ``files:FOLDER?format=json&partition=day,minute``."""

    path: str
    format: str
    partition: tuple[str, ...]


class SearchFile(NamedTuple):
    """A text index: ``search:PATH?columns=title,body&tokenizer=porter``."""

    path: str
    columns: tuple[str, ...]
    tokenizer: str


class SearchServer(NamedTuple):
    """An index of an OpenSearch server; ``user`` and ``password`` are as they were written, with secrets by reference."""

    url: str
    name: str
    user: str
    password: str

    def who(self) -> str:
        """User and password with a colon between them: never to be printed. Nothing if nobody is named."""
        return ":".join(resolve(unquote(each)) for each in (self.user, self.password)) if self.user else ""


def scheme_of(address: str) -> str:
    """What kind of sink an address names; PlanError if there is no such kind, or what it says does not hold together."""
    scheme, _, rest = address.partition(":") if isinstance(address, str) else ("", "", "")
    if scheme not in _SCHEMES or not rest.partition("?")[0].strip("/"):
        found = redacted(address) if isinstance(address, str) else address
        raise PlanError(f"found {found!r}, expected {EXPECTED}")
    try:
        check_address(scheme, address)
        if scheme.startswith("redis"):
            parse_redis(address)
            ttl_of(address)
        elif "@" in rest and scheme == "topic":
            parse_log(rest.partition("@")[2])
    except ConfigError as error:
        raise PlanError(error.message, hint=error.hint) from error
    if scheme in ("files", "delta"):
        folder_of(address)
    elif scheme == "search":
        search_file_of(address)
    elif scheme == "opensearch":
        search_server_of(address)
    return scheme


def folder_of(address: str) -> Folder:
    """Read the address of a sink of files, or of a Delta table; PlanError if it has options that there are not."""
    scheme, path, options = _read(address)
    if scheme == "delta" and "://" in path:
        raise PlanError(
            "delta: found the address of a store, expected a folder of this machine",
            hint="delta:FOLDER, mounted where it runs",
        )
    return Folder(
        path, options.get("format", "parquet"), _names(options["partition"]) if "partition" in options else ()
    )


def search_file_of(address: str) -> SearchFile:
    """Read the address of a text index; PlanError if it does not say which columns are searched, or how in a way there is not."""
    _, path, options = _read(address)
    columns, tokenizer = _names(options.get("columns", "")), options.get("tokenizer", TOKENIZERS[0])
    if not any(columns):
        raise PlanError("search: found no columns=, expected those to search", hint="search:PATH?columns=title,body")
    lower = [name.lower() for name in columns]
    if len(set(lower)) < len(lower):
        raise PlanError(f"search: columns={options['columns']} names a column twice")
    if tokenizer not in TOKENIZERS:
        raise PlanError(f"search: found tokenizer={tokenizer}, expected {', '.join(TOKENIZERS)}")
    return SearchFile(path, columns, tokenizer)


def search_server_of(address: str) -> SearchServer:
    """Read the address of an index of OpenSearch; PlanError if it cannot be read."""
    hint = "opensearch://HOST:PORT/INDEX, who you are by opensearch://USER:${env:PASSWORD}@HOST:PORT/INDEX"
    _, _, options = _read(address)
    if options.get("tls", "true") not in ("true", "false"):
        raise PlanError(f"opensearch: found tls={options['tls']}, expected true or false")
    whole = quoted(address).partition("?")[0].partition("://")[2]
    who, _, place = whole.rpartition("@")
    found = _OPENSEARCH.fullmatch(place)
    if found is None:  # whatever stands there may be part of a password
        raise PlanError(
            "opensearch: found an address that cannot be read, expected opensearch://HOST:PORT/INDEX", hint=hint
        )
    host, port, index = found.groups()
    if not _INDEX.fullmatch(index):
        raise PlanError(
            f"opensearch: found the index {index!r}, expected lower-case letters, digits, _, - and .", hint=hint
        )
    user, _, password = who.partition(":")
    plain = options.get("tls") == "false"
    return SearchServer(f"{'http' if plain else 'https'}://{host}{port or ':9200'}", index, user, password)


def ttl_of(address: str) -> timedelta | None:
    """How long Redis keeps a row that nothing writes again, ``redis://…?ttl=1h``; None for ever. PlanError if that is no duration."""
    said = dict(parse_qsl(quoted(address).partition("?")[2], keep_blank_values=True)).get("ttl")
    if said is None:
        return None
    ttl = parse_duration(said)
    if ttl < timedelta(seconds=1):
        raise PlanError(f"redis: found ttl={said}, expected a second at least")
    return ttl


def without_ttl(address: str) -> str:
    """The address of a Redis server without the option that only a sink knows."""
    place, _, query = address.partition("?")
    rest = "&".join(each for each in query.split("&") if not each.startswith("ttl="))
    return f"{place}?{rest}" if rest else place


def _read(address: str) -> tuple[str, str, dict[str, str]]:
    """Scheme, path and options; PlanError for an option that the scheme does not have."""
    scheme, _, rest = address.partition(":")
    path, _, text = rest.partition("?")
    options = dict(parse_qsl(text, keep_blank_values=True))
    _check(scheme, options, _OPTIONS[scheme])
    return scheme, path, options


def _check(scheme: str, found: Collection[str], known: tuple[str, ...]) -> None:
    if unknown := sorted(set(found) - set(known)):
        raise PlanError(f"{scheme}: found {unknown[0]}=, expected {' or '.join(f'{name}=' for name in known)}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))
