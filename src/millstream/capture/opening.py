"""An address becomes a database to capture; what that needs is loaded when it is asked for."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any

from millstream.address import parse_log
from millstream.capture.contract import Source
from millstream.errors import ConfigError, MachineError
from millstream.secret import redacted

_KINDS = {
    "debezium": ("engine", "DebeziumSource", ""),
    "mysql": ("capture.mysql", "MysqlSource", "capture-mysql"),
    "mariadb": ("capture.mysql", "MysqlSource", "capture-mysql"),
    "postgresql": ("capture.postgres", "PostgresSource", "postgres"),
    "sqlite": ("capture.sqlite", "SqliteSource", ""),
}
EXPECTED = (
    "postgresql://USER@HOST/DATABASE, mysql://USER@HOST/DATABASE, mariadb://…, sqlite:PATH or debezium:FILE.properties"
)


def is_address(text: str) -> bool:
    """Whether a text is the address of a database, and not the name of a file."""
    return text.partition(":")[0] in _KINDS


def name_of(address: str) -> str:
    """What a capture is called unless it is said: as the database.

    >>> name_of("postgresql://me@db/shop?sslmode=require"), name_of("sqlite:/srv/my.shop.db")
    ('shop', 'my_shop')
    """
    last = re.split(r"[/:]", address.partition("?")[0])[-1]
    return re.sub(r"[^A-Za-z0-9_-]", "_", PurePath(last).stem) or "capture"


def absolute(address: str) -> str:
    """The address as others see it, who are in another folder."""
    if address.startswith("debezium:"):
        return f"debezium:{Path(address.removeprefix('debezium:')).absolute()}"
    return str(parse_log(address).absolute()) if address.startswith("sqlite:") else address


def open_source(address: str, tables: Sequence[str], name: str, *, allow: Collection[str] = ()) -> Source:
    """The source at an address.

    :param address: of the database, secrets by reference
    :param tables: which are captured
    :param name: that of the capture
    :param allow: what else the source may take, as ``cascades`` of MariaDB
    :raises ConfigError: if it is no address
    :raises MachineError: if a library is missing
    """
    kind = address.partition(":")[0]
    if kind not in _KINDS:
        raise ConfigError(f"capture: found {redacted(address)!r}, expected {EXPECTED}")
    package, of, extra = _KINDS[kind]
    try:
        module: Any = import_module(f"millstream.{package}.source")
    except ModuleNotFoundError as error:
        raise MachineError(
            f"capture from {kind}: the library {error.name} is not there",
            hint=f"pip install 'millstream[{extra}]'" if extra else "",
        ) from error
    given = {"allow": allow} if allow else {}
    source: Source = getattr(module, of)(address, tables, name, **given)
    return source
