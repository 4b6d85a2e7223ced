"""Where views are kept: one contract, a ledger beside the data. :func:`open_writer` writes, :func:`open_reader` reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.address import PostgresAddress, parse_address
from millstream.store.contract import LETTERS_KEPT, Batch, Entry, StoreReader, StoreWriter, Target

if TYPE_CHECKING:
    from millstream.store.rejects import Judge

__all__ = ["Batch", "Entry", "StoreReader", "StoreWriter", "Target", "judge_at", "open_reader", "open_writer"]


def open_writer(address: str, *, letters: int = LETTERS_KEPT) -> StoreWriter:
    """Open ``sqlite:PATH`` or ``postgresql://USER@HOST/DATABASE?schema=NAME`` for writing; a missing file or schema is made.

    ``letters`` is how many dead letters of a pipeline are kept.
    """
    place = parse_address(address)
    if isinstance(place, PostgresAddress):
        from millstream.store.postgres.writer import postgres_writer

        return postgres_writer(place, letters=letters)
    from millstream.store.sqlite.writer import sqlite_writer

    return sqlite_writer(place, letters=letters)


def open_reader(address: str, create: bool = False, *, hides: bool = False) -> StoreReader:
    """Open the same for reading; ``create`` makes a missing file or schema, with no views in it.

    ``hides`` leaves out the rows of those who are to be forgotten: it is for whoever shows rows to somebody.
    """
    if hides:
        from millstream.store.hiding import Hiding

        return Hiding(open_reader(address, create))
    place = parse_address(address)
    if isinstance(place, PostgresAddress):
        from millstream.store.postgres.reader import PostgresReader

        return PostgresReader(place, create=create)
    from millstream.store.sqlite.reader import SqliteReader

    return SqliteReader(place, create=create)


def judge_at(address: str) -> Judge | None:
    """The function that finds the rows that cannot be stored there; None where every row can be, as in SQLite."""
    if not isinstance(parse_address(address), PostgresAddress):
        return None
    from millstream.store.postgres.values import refused

    return refused
