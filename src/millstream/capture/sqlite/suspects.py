"""Rows that a REPLACE may have deleted without firing a trigger: each is told as deleted where it was, once, and not where it was not.

A suspect is a row that was in the way of an insert or update. If the row that comes next has what it had, it is gone. Else the next change
that names its key says what became of it: if a row comes with that key, it was gone; if the row is changed or deleted, or in the way once
more, it was still there, or its own trigger has told. Without such a change the table says it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from millstream.capture.contract import Change

Key: TypeAlias = tuple[Any, ...]
MANY = 20_000
"""How many rows are kept in memory before the changes behind are asked."""


class Suspects:
    """The suspects of which nothing more is known; ``gone`` says which rows are gone right behind a change."""

    def __init__(self, gone: Callable[[set[Key], int], set[Key]]) -> None:
        self._gone = gone
        self._waiting: dict[Key, Change] = {}
        self._fresh: list[tuple[Key, Sequence[Any]]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def full(self) -> bool:
        """Whether there are so many that they must be resolved."""
        return len(self._waiting) > MANY

    def add(self, key: Key, deleted: Change, stored: Sequence[Any]) -> None:
        """A row was in the way; ``deleted`` is what is told if it is gone."""
        self._waiting[key] = deleted
        self._fresh.append((key, stored))

    def met(self, there: Key, came: Key, table: str, taken: Callable[[Sequence[Any]], bool]) -> Iterator[Change]:
        """A change names a row that was there, and one that came; ``taken`` says whether that has what another of the table had."""
        self._waiting.pop(there, None)
        gone = [came, *(key for key, stored in self._fresh if key[0] == table and taken(stored))]
        self._fresh.clear()
        for key in gone:
            if (deleted := self._waiting.pop(key, None)) is not None:
                yield deleted

    def resolved(self, last: int) -> Iterator[Change]:
        """Those that are gone, as of a change."""
        self._fresh.clear()
        if self._waiting:
            gone = self._gone(set(self._waiting), last)
            for key, deleted in self._waiting.items():
                if key in gone:
                    yield deleted
            self._waiting.clear()
