"""Where views are kept: one contract, a ledger beside the data. :func:`open_sink` writes, :func:`open_store` reads."""

from __future__ import annotations

from pathlib import Path

from millstream.errors import ConfigError
from millstream.sink.contract import Batch, Entry, Sink, Store, Target

__all__ = ["Batch", "Entry", "Sink", "Store", "Target", "open_sink", "open_store"]


def open_sink(address: str) -> Sink:
    """Open ``sqlite:PATH`` for writing; a missing file is made."""
    from millstream.sink.sqlite import SqliteSink

    return SqliteSink(_path(address))


def open_store(address: str, create: bool = False) -> Store:
    """Open ``sqlite:PATH`` for reading; ``create`` makes a missing file, with no views in it."""
    from millstream.sink.reading import SqliteStore

    return SqliteStore(_path(address), create=create)


def _path(address: str) -> Path:
    scheme, _, rest = address.partition(":")
    if scheme != "sqlite" or not rest.strip("/"):
        raise ConfigError(
            f"views: found {address!r}, expected sqlite:PATH", hint="for example to='sqlite:shop.views.db'"
        )
    return Path(rest.removeprefix("//") if rest.startswith("///") else rest)
