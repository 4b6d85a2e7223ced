"""Where views are kept: one contract, a ledger beside the data. :func:`open_sink` writes, :func:`open_store` reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.address import PostgresAddress, parse_address
from millstream.store.contract import LETTERS_KEPT, Batch, Entry, Sink, Store, Target

if TYPE_CHECKING:
    from millstream.store.rejects import Judge

__all__ = ["Batch", "Entry", "Sink", "Store", "Target", "judge_at", "open_sink", "open_store"]


def open_sink(address: str, *, letters: int = LETTERS_KEPT) -> Sink:
    """Open ``sqlite:PATH`` or ``postgresql://USER@HOST/DATABASE?schema=NAME`` for writing; a missing file or schema is made.

    ``letters`` is how many dead letters of a pipeline are kept.
    """
    place = parse_address(address)
    if isinstance(place, PostgresAddress):
        from millstream.store.postgres.writer import PostgresSink

        return PostgresSink(place, letters=letters)
    from millstream.store.sqlite.writer import SqliteSink

    return SqliteSink(place, letters=letters)


def open_store(address: str, create: bool = False) -> Store:
    """Open the same for reading; ``create`` makes a missing file or schema, with no views in it."""
    place = parse_address(address)
    if isinstance(place, PostgresAddress):
        from millstream.store.postgres.reader import PostgresStore

        return PostgresStore(place, create=create)
    from millstream.store.sqlite.reader import SqliteStore

    return SqliteStore(place, create=create)


def judge_at(address: str) -> Judge | None:
    """What tells the rows that cannot be kept there; None where every row can be, as in SQLite."""
    if not isinstance(parse_address(address), PostgresAddress):
        return None
    from millstream.store.postgres.values import refused

    return refused
