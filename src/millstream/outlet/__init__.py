"""Where the changes of a view go besides its store: :func:`open_outlet` turns a definition into the place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qs

from millstream.config import resolve
from millstream.errors import ConfigError
from millstream.outlet.contract import Outgoing, Outlet, Parcel

__all__ = ["Outgoing", "Outlet", "Parcel", "check_address", "open_outlet"]

_PASSWORD = re.compile(r"//[^/@]*:(?!\$\{)[^/@]+@")
_EXPECTED = "topic:NAME, topic:NAME@LOG, redis://HOST:PORT/DB, files:FOLDER or a function"


def open_outlet(
    wanted: Outgoing, pipeline: str, key: tuple[str, ...], *, log: str, kafka: Mapping[str, str] | None = None
) -> Outlet:
    """Open the place of a sink; ``log`` is the pipeline's own, for topics that name no other."""
    from millstream.outlet.call import CallOutlet
    from millstream.outlet.files import FileOutlet
    from millstream.outlet.redis import RedisOutlet
    from millstream.outlet.topic import TopicOutlet

    producer = f"millstream.{pipeline}.{wanted.name}"
    if not isinstance(wanted.to, str):
        return CallOutlet(wanted.to, producer)
    check_address(wanted.to)
    address = resolve(wanted.to)
    scheme, _, rest = address.partition(":")
    if scheme == "topic":
        from millstream.log import open_log

        topic, _, other = rest.partition("@")
        return TopicOutlet(open_log(other or log, kafka=kafka), topic, producer, key)
    if scheme == "files":
        folder, _, options = rest.partition("?")
        return FileOutlet(Path(folder), parse_qs(options).get("format", ["parquet"])[0])
    return RedisOutlet(address, wanted.view, producer, key)


def check_address(address: str) -> tuple[str, str]:
    """The scheme of an address and the rest; ConfigError if no outlet has such a one."""
    scheme, _, rest = address.partition(":")
    if scheme not in ("topic", "files", "redis", "rediss") or not rest.strip("/"):
        raise ConfigError(f"found {address!r}, expected {_EXPECTED}")
    if _PASSWORD.search(address):
        raise ConfigError(
            "a password must not stand in an address",
            hint="name where it is: redis://:${env:REDIS_PASSWORD}@HOST:PORT/0",
        )
    return scheme, rest
